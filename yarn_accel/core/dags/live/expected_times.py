"""What tasks of live DAGs are expected to take: as was learned, else as was declared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from yarn_accel.core.dags.heft import Matrix
from yarn_accel.core.dags.live.rows import PlannedRows
from yarn_accel.core.dags.model import Dag, Machine, SubmittedDag
from yarn_accel.core.tasks.durations import DurationKind, DurationStore
from yarn_accel.core.tasks.values import AppId, ResourceId

_DEFAULT_S = 1.0
#: A belief that changed by so much makes a new plan.
_CHANGE = 0.1


class ExpectedTimes:
    """Seconds of all tasks of the DAGs that are there.

    Args:
        durations: what is learned.
        rows: the DAGs, and the workers of machines.
    """

    def __init__(self, durations: DurationStore, rows: PlannedRows) -> None:
        self.durations = durations
        self._rows = rows
        #: What plans were made with.
        self._used: dict[tuple[DurationKind, str], float] = {}
        self._changed: set[str] = set()

    def is_known(self, dag: SubmittedDag) -> bool:
        """Whether something is known of all its kinds."""
        return all(self.durations.factor(kind, "") is not None for kind in set(dag.kinds))

    def matrix(self, dag: Dag, machines: Sequence[Machine]) -> Matrix:
        """w: row per task, column per machine; what nobody knows is the median of the rest."""
        nodes = [self._node_of(each.machine) for each in machines]
        kinds = self._rows.dags[AppId(dag.name)].dag.kinds
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        rows = np.array([[self._factor(kind, node) for node in nodes] for kind in numbers])
        base_s = np.array([task.runtime_s for task in dag.tasks], dtype=np.float64)
        seconds = np.asarray(base_s[:, None] * rows[[numbers[kind] for kind in kinds]])
        known = seconds[~np.isnan(seconds)]
        seconds[np.isnan(seconds)] = float(np.median(known)) if len(known) else _DEFAULT_S
        return seconds

    def learn(
        self, dag: SubmittedDag, number: int, node: str, happened_s: float, predicted_s: float | None
    ) -> None:
        """A task ended well after so many seconds, without transfers."""
        kind = dag.kinds[number]
        runtime_s = dag.dag.tasks[number].runtime_s if kind.is_declared else 1.0
        self.durations.observe(kind, node, runtime_s or 0.0, happened_s, predicted_s)
        factor, used = self.durations.factor(kind, node), self._used.get((kind, node))
        if factor is not None and (used is None or abs(factor - used) > _CHANGE * used):
            self._changed.add(kind.name)

    def take_changed(self) -> set[str]:
        """The DAGs whose times have changed since this was asked last."""
        changed, self._changed = self._changed, set()
        return {name for name, live in self._rows.dags.items() if live.dag.kinds[0].name in changed}

    def _node_of(self, machine: ResourceId) -> str:
        place = self._rows.places.get(machine)
        return "" if place is None else place.worker.spec.node

    def _factor(self, kind: DurationKind, node: str) -> float:
        factor = self.durations.factor(kind, node)
        if factor is None:
            return np.nan
        self._used[kind, node] = factor
        return factor
