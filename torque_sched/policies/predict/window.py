"""The last few jobs of one kind, and the simple rules that look at them."""

from __future__ import annotations

from collections import deque

#: In the order of `Window.answers`.
RULES = ("last", "median of last 3", "moving average", "median of last 10")
_LENGTH = 10
_DECAY = 0.9


class Window:
    """A short window over the values of one kind of job.

    Old runs pollute a mean over all of them; each rule here forgets within ten jobs, and which of
    them suits this kind of job shows in its error.
    """

    __slots__ = ("_average", "_values", "errors", "n", "weight")

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_LENGTH)
        self._average = 0.0
        self.n = 0
        self.errors = [0.0] * len(RULES)
        """Sums of absolute errors by rule, the older the less."""
        self.weight = 0.0
        """Of how many checks these are, the older the less."""

    def answers(self) -> tuple[float, float, float, float]:
        """What each of `RULES` expects next; there must be a value."""
        values = self._values
        last = values[-1]
        recent = last
        if len(values) == 2:
            recent = (last + values[0]) / 2
        elif len(values) > 2:
            recent = sorted((last, values[-2], values[-3]))[1]
        ordered = sorted(values)
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return last, recent, self._average, median

    def add(self, value: float) -> tuple[float, ...]:
        """Check the rules against a value, then take it in; returns their errors (none for the first)."""
        errors: tuple[float, ...] = ()
        if self.n:
            errors = tuple(abs(answer - value) for answer in self.answers())
            self.errors = [_DECAY * old + new for old, new in zip(self.errors, errors, strict=True)]
            self.weight = _DECAY * self.weight + 1
        self._average = (self._average + value) / 2 if self.n else value
        self._values.append(value)
        self.n += 1
        return errors
