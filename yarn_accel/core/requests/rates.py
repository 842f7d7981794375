"""How long a computation takes on each device, learned from calibration and from what is served.

One weight is the seconds per unit of work (flops, or bytes for what only moves them) of an operation in a
size class on a device.  A size class is a power of two of work; what was never seen is judged by the nearest
class of the same operation, then by the device's other operations, then by a rate no device falls far below.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RateTable", "size_class"]

#: How much a new observation counts against what is known.
_SHARE_OF_NEW = 0.2
#: Nothing is believed to be so much faster or slower than before at once: a stolen core is not a new device.
_MAX_CHANGE = 8.0
#: Observations after which a weight moves slowly.
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
class _Weight:
    s_per_unit: float
    n_seen: int


class RateTable:
    """Seconds per unit of work by (operation, size class, device).

    A device is named as the caller likes, ``cuda:0`` or just ``cpu``; its kind is what stands before the
    colon.  Asking and observing from several threads is fine; an observation may then get lost.
    """

    def __init__(self) -> None:
        self._weights: dict[tuple[str, str], dict[int, _Weight]] = {}

    def observe(self, operation: str, work: float, device: str, seconds: float) -> float:
        """Learn from one computation, or from one item's part of a batch; returns what is expected now."""
        if seconds <= 0.0:
            return self.expected_s(operation, work, device)
        seen = seconds / max(work, 1.0)
        work_class = size_class(work)
        classes = self._weights.get((operation, device))
        if classes is None:
            classes = self._weights[operation, device] = {}
        weight = classes.get(work_class)
        if weight is None:
            classes[work_class] = _Weight(seen, 1)
            return seen * max(work, 1.0)
        known = weight.s_per_unit
        seen = min(max(seen, known / _MAX_CHANGE), known * _MAX_CHANGE)
        share = max(_SHARE_OF_NEW, 1.0 / (weight.n_seen + 1)) if weight.n_seen < _N_EARLY else _SHARE_OF_NEW
        weight.s_per_unit = known + share * (seen - known)
        weight.n_seen += 1
        return weight.s_per_unit * max(work, 1.0)

    def expected_s(self, operation: str, work: float, device: str) -> float:
        """Seconds such a computation should take; above 0, however little is known."""
        work = max(work, 1.0)
        classes = self._weights.get((operation, device))
        if classes:
            wanted = size_class(work)
            weight = classes.get(wanted)
            if weight is None:
                nearest = min(list(classes), key=lambda known: abs(known - wanted))
                weight = classes[nearest]
            return weight.s_per_unit * work
        return max(work * self._typical(device), _LEAST_GUESS_S)

    def _typical(self, device: str) -> float:
        """Seconds per unit of work of a device for an operation it was never seen with: its middle weight."""
        known = sorted(
            weight.s_per_unit
            for (_, other), classes in list(self._weights.items())
            if other == device
            for weight in list(classes.values())
        )
        return known[len(known) // 2] if known else 1.0 / _FIRST_GUESS.get(device.partition(":")[0], 2e9)
