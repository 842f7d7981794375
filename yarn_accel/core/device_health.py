"""When a device that fails is left alone, and when it may try again.

::

    trusted ──fault──> resting ──its time is over──> on probation ──enough successes──> trusted
       ^                  ^                               │
       └ (soft faults     └──────────── any fault ────────┘   each rest twice as long as the one before
          below the limit change nothing)

A hard fault is the device's own: an error raised by CUDA, an Xid or ECC report.  A soft one may be the fault
of what it was given: a worker that died or hung.  Those within a while count by the requests that may be the
reason: the device rests when no fewer than `n_soft` requests together explain them.  So the tries of one
request count once, however often it comes, and one that failed on two devices is no device's fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceHealthSettings:
    """How patient we are.

    Attributes:
        first_rest_s: the first rest; each one is twice as long as the one before, up to `max_rest_s`.
        n_soft: different requests whose soft faults within `soft_window_s` make one hard fault.
        n_probation: computations that must succeed after a rest.
    """

    first_rest_s: float = 30.0
    max_rest_s: float = 3600.0
    n_soft: int = 3
    soft_window_s: float = 60.0
    n_probation: int = 8


@dataclass(frozen=True, slots=True)
class Faulted:
    """A device failed.

    Attributes:
        suspects: the requests it was at, one of which may be the reason; empty: it was at none.
    """

    device: str
    is_hard: bool
    reason: str
    now_s: float
    suspects: frozenset[Hashable] = frozenset()


@dataclass(frozen=True, slots=True)
class Passed:
    """A computation on the device succeeded."""

    device: str
    now_s: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Some time is over; to be sent at the time a `Rest` named, harmless at any other."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Rest:
    """Stop the device's worker and give it nothing until then."""

    device: str
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Start the device's worker again; it is on probation."""

    device: str


@dataclass(frozen=True, slots=True)
class Trust:
    """The device has proved itself: its next rest is a first one again."""

    device: str


Event = Faulted | Passed | TimePassed
Command = Rest | Resume | Trust


@dataclass(frozen=True, slots=True)
class _SoftFault:
    at_s: float
    suspects: frozenset[Hashable]


@dataclass(slots=True)
class _Device:
    next_rest_s: float
    until_s: float = 0.0
    n_left: int = 0
    n_faults: int = 0
    reason: str = ""
    soft: list[_SoftFault] = field(default_factory=list)

    @property
    def state(self) -> str:
        return "resting" if self.until_s else "probation" if self.n_left else "trusted"


class DeviceHealth:
    """The state of every device that ever failed; those never heard of are trusted."""

    def __init__(self, settings: DeviceHealthSettings) -> None:
        self._settings = settings
        self._devices: dict[str, _Device] = {}

    def apply(self, event: Event) -> list[Command]:
        """Take note of what happened and say what to do now."""
        if isinstance(event, Faulted):
            return self._faulted(event)
        if isinstance(event, Passed):
            return self._passed(event)
        return self._resume(event.now_s)

    def state(self, device: str) -> str:
        """``trusted``, ``resting`` or ``probation``."""
        return self._devices[device].state if device in self._devices else "trusted"

    def wake_s(self) -> float | None:
        """When the next rest is over; None when nothing rests."""
        return min((device.until_s for device in self._devices.values() if device.until_s), default=None)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """The record of every device that ever failed, for `stats`."""
        return {
            name: {
                "state": device.state,
                "until_s": device.until_s,
                "faults": device.n_faults,
                "reason": device.reason,
            }
            for name, device in self._devices.items()
        }

    def _faulted(self, event: Faulted) -> list[Command]:
        settings = self._settings
        device = self._devices.setdefault(event.device, _Device(settings.first_rest_s))
        device.n_faults += 1
        device.reason = event.reason
        if device.until_s:
            return []
        if not event.is_hard:
            self._note(device, event)
            faults = self._unexplained(device)
            if _are_explained(faults, 0 if device.n_left else settings.n_soft - 1):
                return []
        device.soft.clear()
        device.n_left = 0
        device.until_s = event.now_s + device.next_rest_s
        device.next_rest_s = min(2 * device.next_rest_s, settings.max_rest_s)
        return [Rest(event.device, device.until_s, event.reason)]

    def _note(self, device: _Device, event: Faulted) -> None:
        """Keep a soft fault for as long as it counts; one with the same suspects only once."""
        suspects = event.suspects or frozenset([("nothing", device.n_faults)])
        for each in self._devices.values():
            each.soft = [
                fault
                for fault in each.soft
                if event.now_s - fault.at_s < self._settings.soft_window_s
                and not (each is device and fault.suspects == suspects)
            ]
        device.soft.append(_SoftFault(event.now_s, suspects))

    def _unexplained(self, device: _Device) -> list[frozenset[Hashable]]:
        """The suspects of each soft fault of a device, less faults of requests that failed on others, too."""
        by_device = [[fault.suspects for fault in each.soft] for each in self._devices.values()]
        n_devices = Counter(request for faults in by_device for request in set().union(*faults))
        alone = [suspects for faults in by_device for suspects in faults if len(suspects) == 1]
        guilty = {request for request in set().union(*alone) if n_devices[request] > 1}
        return [fault.suspects for fault in device.soft if guilty.isdisjoint(fault.suspects)]

    def _passed(self, event: Passed) -> list[Command]:
        device = self._devices.get(event.device)
        if device is None or device.until_s or not device.n_left:
            return []
        device.n_left -= 1
        if device.n_left:
            return []
        device.next_rest_s = self._settings.first_rest_s
        return [Trust(event.device)]

    def _resume(self, now_s: float) -> list[Command]:
        commands: list[Command] = []
        for name, device in self._devices.items():
            if 0.0 < device.until_s <= now_s:
                device.until_s = 0.0
                device.n_left = self._settings.n_probation
                commands.append(Resume(name))
        return commands


def _are_explained(faults: Sequence[frozenset[Hashable]], n_requests: int) -> bool:
    """Whether so many requests can be the reason of all of these faults."""
    if not faults:
        return True
    if not n_requests:
        return False
    return any(
        _are_explained([fault for fault in faults if request not in fault], n_requests - 1)
        for request in faults[0]
    )
