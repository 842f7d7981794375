"""What failed lately and is left alone for a while: longer with every failure in a row, never for ever."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torque_sched.policies.context import Pause

Key = TypeVar("Key", bound=Hashable)
_ROUNDING_S = 1.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Pauses of ``first_s``, twice that, four times that ... at most ``longest_s``."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """The pause after this many failures in a row."""
        return min(self.longest_s, self.first_s * 2.0 ** min(40, failures - 1))


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures in a row of one key, and until when it is left alone for them."""

    failures: int
    until_s: float
    why: str


class Pauses(Generic[Key]):
    """Pauses by key.

    A key whose pause ended longer ago than the pause was long starts over with the first step.

    Attributes:
        steps: may be replaced; a pause under way that is longer than the new steps allow is over.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._entries: dict[Key, Failures] = {}

    def failed(self, key: Key, now_s: float, why: str) -> float:
        """Note a failure; returns how long the pause is. One during a pause does not lengthen it."""
        entry = self._entries.get(key)
        if entry is not None and self._is_active(entry, now_s):
            self._entries[key] = replace(entry, why=why)
            return entry.until_s - now_s
        failures = 1
        if entry is not None and now_s - entry.until_s < self.steps.pause_s(entry.failures):
            failures = entry.failures + 1
        pause_s = self.steps.pause_s(failures)
        self._entries[key] = Failures(failures, now_s + pause_s, why)
        return pause_s

    def worked(self, key: Key) -> None:
        """All is forgiven."""
        self._entries.pop(key, None)

    def active(self, now_s: float) -> dict[Key, Pause]:
        """Those not to be tried now."""
        return {
            key: Pause(entry.until_s, entry.why)
            for key, entry in self._entries.items()
            if self._is_active(entry, now_s)
        }

    def _is_active(self, entry: Failures, now_s: float) -> bool:
        # One that has longer to go than it was long began by a clock that was put back since.
        return 0 < entry.until_s - now_s <= self.steps.pause_s(entry.failures) + _ROUNDING_S

    def entries(self) -> dict[Key, Failures]:
        """All that is not forgotten, to be restored by a daemon started anew."""
        return dict(self._entries)

    def restore(self, key: Key, entry: Failures, now_s: float) -> None:
        """Go on with what a daemon before knew; no pause gets longer than these steps allow."""
        until_s = min(entry.until_s, now_s + self.steps.longest_s)
        self._entries[key] = replace(entry, until_s=until_s)

    def names(self) -> tuple[Key, ...]:
        """All keys with a failure not yet forgotten."""
        return tuple(self._entries)

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop keys that are no more."""
        for key in tuple(keys):
            self._entries.pop(key, None)

    def prune(self, now_s: float) -> None:
        """Drop what would start over with the first step anyway."""
        old = [k for k, e in self._entries.items() if now_s - e.until_s >= self.steps.pause_s(e.failures)]
        self.forget(old)
