"""How long tasks of DAGs take, by application name, kind of task, and node: first declared, then measured.

A task with declared seconds takes these times a factor, the median of what its kind took over what was
declared; the declaration counts as the oldest measurement. Without a declaration the factor is the seconds
themselves. Measurements of a node come before those of all nodes. Transfers are not in it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from yarn_accel.errors import ConfigError

_WINDOW = 15
_MOST_CARRIED = 3
_SHORTEST_S = 1e-3
_MOST = 1e12
#: Of one kind; and of kinds in all, those that were measured last.
_MOST_NODES = 64
_MOST_KINDS = 2000
_KEYS = {"kind", "is_declared", "node", "factor", "n_measured"}


class DurationKind(NamedTuple):
    """Tasks that are learned together; `is_declared`: by what they take over what was declared."""

    name: str
    kind: str
    is_declared: bool


@dataclass(frozen=True, slots=True)
class DurationBelief:
    """What is believed of one kind of tasks, beside what happened since the store was made.

    Attributes:
        factor: seconds of a task over its declared ones; without a declaration, seconds.
        predicted_s: mean of the predictions; None without any.
        happened_s: mean of what the same tasks took.
        mean_error: mean of |happened / predicted - 1| over them.
    """

    kind: DurationKind
    factor: float
    n_measured: int
    predicted_s: float | None
    happened_s: float | None
    mean_error: float | None


@dataclass(slots=True)
class _Samples:
    last: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    n_measured: int = 0

    def add(self, factor: float) -> None:
        self.last.append(factor)
        self.n_measured += 1

    def factor(self, is_declared: bool) -> float:
        is_full = len(self.last) == _WINDOW
        return median(self.last if is_full or not is_declared else [1.0, *self.last])


@dataclass(slots=True)
class _Learned:
    whole: _Samples = field(default_factory=_Samples)
    by_node: dict[str, _Samples] = field(default_factory=dict)
    n_predicted: int = 0
    predicted_s: float = 0.0
    happened_s: float = 0.0
    errors: float = 0.0

    def of_node(self, node: str) -> _Samples:
        samples = self.by_node[node] = self.by_node.pop(node, _Samples())
        if len(self.by_node) > _MOST_NODES:
            del self.by_node[next(iter(self.by_node))]
        return samples


class DurationStore:
    """What was learned of all kinds of tasks."""

    def __init__(self) -> None:
        #: Those that were measured last are the last.
        self._kinds: dict[DurationKind, _Learned] = {}
        self._own: set[str] = set()
        self.n_observed = 0

    def factor(self, kind: DurationKind, node: str) -> float | None:
        """Seconds of a task there over its declared ones, or its seconds; None: nothing is known."""
        learned = self._kinds.get(kind)
        if learned is None:
            return 1.0 if kind.is_declared else None
        return (learned.by_node.get(node) or learned.whole).factor(kind.is_declared)

    def observe(
        self, kind: DurationKind, node: str, declared_s: float, happened_s: float, predicted_s: float | None
    ) -> None:
        """Learn from a task that ended well.

        Args:
            declared_s: 1 where nothing was declared.
            happened_s: from its start to its end, without transfers.
            predicted_s: the same as it was expected; None: it was not.
        """
        learned = self._kinds[kind] = self._kinds.pop(kind, _Learned())
        self._own.add(kind.name)
        self.n_observed += 1
        factor = min(max(happened_s, _SHORTEST_S) / max(declared_s, _SHORTEST_S), _MOST)
        learned.whole.add(factor)
        learned.of_node(node).add(factor)
        if predicted_s is not None and predicted_s > 0:
            learned.n_predicted += 1
            learned.predicted_s += predicted_s
            learned.happened_s += happened_s
            learned.errors += abs(happened_s / predicted_s - 1)
        self._forget()

    def beliefs(self, names: Iterable[str] | None = None) -> tuple[DurationBelief, ...]:
        """What was measured of applications of these names, default all, by name and kind."""
        wanted = None if names is None else set(names)
        found = []
        for kind in sorted(self._kinds):
            if wanted is None or kind.name in wanted:
                each = self._kinds[kind]
                n = each.n_predicted
                means = (each.predicted_s / n, each.happened_s / n, each.errors / n) if n else (None,) * 3
                factor = each.whole.factor(kind.is_declared)
                found.append(DurationBelief(kind, factor, each.whole.n_measured, *means))
        return tuple(found)

    @property
    def measured_here(self) -> frozenset[str]:
        """The names that were measured since this store was made."""
        return frozenset(self._own)

    def to_document(self) -> dict[str, list[dict[str, Any]]]:
        """What a file keeps, by name; node "" is all nodes together."""
        found: dict[str, list[dict[str, Any]]] = {}
        for kind, learned in self._kinds.items():
            for node, samples in (("", learned.whole), *learned.by_node.items()):
                row = {
                    "kind": kind.kind,
                    "is_declared": kind.is_declared,
                    "node": node,
                    "factor": median(samples.last),
                    "n_measured": samples.n_measured,
                }
                found.setdefault(kind.name, []).append(row)
        return found

    def take_over(self, document: Any) -> None:
        """Believe a document, but for the names that were measured here: these are newer.

        Raises:
            ConfigError: it is none; nothing was changed.
        """
        if not isinstance(document, Mapping):
            raise ConfigError("figures: durations: expected names with a list each")
        others: dict[DurationKind, _Learned] = {}
        for name, rows in document.items():
            if not isinstance(name, str) or not isinstance(rows, list):
                raise ConfigError(f"figures: durations of {name!r}: expected a list")
            for row in rows:
                _load(others, name, row)
        kept = {kind: each for kind, each in others.items() if each.whole.last and kind.name not in self._own}
        self._kinds = kept | {kind: each for kind, each in self._kinds.items() if kind.name in self._own}
        self._forget()

    def _forget(self) -> None:
        while len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]


def _load(kinds: dict[DurationKind, _Learned], name: str, row: Any) -> None:
    if not isinstance(row, Mapping) or row.keys() != _KEYS:
        raise ConfigError(f"figures: durations of {name!r}: expected the keys {', '.join(sorted(_KEYS))}")
    factor, n_measured = row["factor"], row["n_measured"]
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not is_number or not 0 < factor <= _MOST or not math.isfinite(factor):
        raise ConfigError(
            f"figures: durations of {name!r}: factor: expected a number above 0, found {factor!r}"
        )
    if isinstance(n_measured, bool) or not isinstance(n_measured, int) or n_measured < 1:
        raise ConfigError(f"figures: durations of {name!r}: n_measured: expected a whole number from 1")
    if (
        not isinstance(row["kind"], str)
        or not isinstance(row["node"], str)
        or row["is_declared"] not in (0, 1)
    ):
        raise ConfigError(f"figures: durations of {name!r}: expected kind, node and is_declared")
    learned = kinds.setdefault(DurationKind(name, row["kind"], bool(row["is_declared"])), _Learned())
    samples = learned.of_node(row["node"]) if row["node"] else learned.whole
    # Several, so that the first measurement of a new run does not turn over what many runs agreed on.
    samples.last.extend([float(factor)] * min(n_measured, _MOST_CARRIED))
    samples.n_measured = n_measured
