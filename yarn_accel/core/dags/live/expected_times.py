"""What tasks of live DAGs are expected to take: as was learned, else as was declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from yarn_accel.core.dags.heft import Matrix
from yarn_accel.core.dags.model import Dag, Machine, SubmittedDag
from yarn_accel.core.tasks.durations import DurationKind, DurationStore
from yarn_accel.core.tasks.values import ResourceId

_DEFAULT_S = 1.0
#: A belief that changed by so much makes a new plan.
_CHANGE = 0.1


class ExpectedTimes:
    """Seconds of all tasks of the DAGs that are there.

    Args:
        durations: what is learned.
        node_of: the node of a machine.
    """

    def __init__(self, durations: DurationStore, node_of: Callable[[ResourceId], str]) -> None:
        self.durations = durations
        self._node_of = node_of
        self._dags: dict[str, SubmittedDag] = {}
        #: What plans were made with.
        self._used: dict[tuple[DurationKind, str], float] = {}
        self._changed: set[str] = set()

    def add(self, dag: SubmittedDag) -> None:
        """A DAG is there from now on."""
        self._dags[dag.dag.name] = dag

    def remove(self, name: str) -> None:
        """A DAG is no more."""
        self._dags.pop(name, None)

    def is_known(self, dag: SubmittedDag) -> bool:
        """Whether something is known of all its kinds."""
        return all(self.durations.factor(kind, "") is not None for kind in set(dag.kinds))

    def matrix(self, dag: Dag, machines: Sequence[Machine]) -> Matrix:
        """w: row per task, column per machine; what nobody knows is the median of the rest."""
        submitted = self._dags[dag.name]
        nodes = [self._node_of(each.machine) for each in machines]
        kinds = submitted.kinds
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        rows = np.array([[self._factor(kind, node) for node in nodes] for kind in numbers])
        base_s = np.array([task.runtime_s for task in dag.tasks], dtype=np.float64)
        seconds = np.asarray(base_s[:, None] * rows[[numbers[kind] for kind in kinds]])
        known = seconds[~np.isnan(seconds)]
        seconds[np.isnan(seconds)] = float(np.median(known)) if len(known) else _DEFAULT_S
        return seconds

    def learn(self, dag: str, number: int, node: str, happened_s: float, predicted_s: float | None) -> None:
        """A task ended well after so many seconds, without transfers."""
        submitted = self._dags.get(dag)
        if submitted is None:
            return
        kind = submitted.kinds[number]
        runtime_s = submitted.dag.tasks[number].runtime_s if kind.is_declared else 1.0
        self.durations.observe(kind, node, runtime_s or 0.0, happened_s, predicted_s)
        factor, used = self.durations.factor(kind, node), self._used.get((kind, node))
        if factor is not None and (used is None or abs(factor - used) > _CHANGE * used):
            self._changed.add(kind.name)

    def take_changed(self) -> set[str]:
        """The DAGs whose times have changed since this was asked last."""
        changed, self._changed = self._changed, set()
        return {name for name, each in self._dags.items() if each.kinds[0].name in changed}

    def _factor(self, kind: DurationKind, node: str) -> float:
        factor = self.durations.factor(kind, node)
        if factor is None:
            return np.nan
        self._used[kind, node] = factor
        return factor
