"""How long a computation takes on each device, learned from calibration and from what is served.

A rate is the seconds per unit of work (flops, or bytes for what only moves them) of an operation in a
size class on a device.  A size class is a power of two of work; what was never seen is judged by the nearest
class of the same operation, then by the device's other operations, then by a rate no device falls far below.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How much a new observation counts against what is known.
_SHARE_OF_NEW = 0.2
#: Nothing is believed to be so much faster or slower than before at once: a stolen core is not a new device.
_MAX_CHANGE = 8.0
#: Observations after which a rate moves slowly.
_N_EARLY = 4
#: Units of work per second of a device kind nothing is known of.
_FIRST_GUESS = {"cpu": 2e9, "cuda": 2e11}
#: An operation never seen on a device is not believed to be short, so that nothing is queued up behind it.
_LEAST_GUESS_S = 0.01


def size_class(work: float) -> int:
    """The power of two below an amount of work.

    >>> size_class(0), size_class(1), size_class(1023), size_class(1024)
    (0, 0, 9, 10)
    """
    return max(int(work).bit_length() - 1, 0)


@dataclass(slots=True)
class Rate:
    """What is known of an operation in one size class on one device; `n_seen` 0: nothing."""

    s_per_unit: float = 0.0
    n_seen: int = 0

    def learn(self, s_per_unit: float) -> None:
        """Take one more observation into account."""
        known = self.s_per_unit
        if not self.n_seen:
            self.s_per_unit = s_per_unit
        else:
            share = _SHARE_OF_NEW
            if self.n_seen < _N_EARLY and share * (self.n_seen + 1) < 1.0:
                share = 1.0 / (self.n_seen + 1)
            if s_per_unit > known * _MAX_CHANGE:
                s_per_unit = known * _MAX_CHANGE
            elif s_per_unit < known / _MAX_CHANGE:
                s_per_unit = known / _MAX_CHANGE
            self.s_per_unit = known + share * (s_per_unit - known)
        self.n_seen += 1


class RateTable:
    """Seconds per unit of work by (operation, size class, device).

    A device is named as the caller likes, ``cuda:0`` or just ``cpu``; its kind is what stands before the
    colon.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], dict[int, Rate]] = {}

    def rate(self, operation: str, work: float, device: str) -> Rate:
        """The rate that computations of this size are measured by."""
        classes = self._rates.setdefault((operation, device), {})
        return classes.setdefault(size_class(work), Rate())

    def observe(self, operation: str, work: float, device: str, seconds: float) -> float:
        """Learn from one computation, or from one entry's part of a batch; returns what is expected now."""
        if seconds <= 0.0:
            return self.expected_s(operation, work, device)
        rate = self.rate(operation, work, device)
        rate.learn(seconds / max(work, 1.0))
        return rate.s_per_unit * max(work, 1.0)

    def expected_s(self, operation: str, work: float, device: str) -> float:
        """Seconds such a computation should take; above 0, however little is known."""
        work = max(work, 1.0)
        classes = self._rates.get((operation, device), {})
        seen = [known for known, rate in classes.items() if rate.n_seen]
        if seen:
            wanted = size_class(work)
            nearest = min(seen, key=lambda known: abs(known - wanted))
            return classes[nearest].s_per_unit * work
        return max(work * self._typical(device), _LEAST_GUESS_S)

    def _typical(self, device: str) -> float:
        """Seconds per unit of work of a device for an operation it was never seen with: its middle rate."""
        known = sorted(
            rate.s_per_unit
            for (_, other), classes in self._rates.items()
            if other == device
            for rate in classes.values()
            if rate.n_seen
        )
        return known[len(known) // 2] if known else 1.0 / _FIRST_GUESS.get(device.partition(":")[0], 2e9)
