"""How long tasks of live DAGs are expected to take, and each DAG alone.

Of tasks it is what was learned, else what was declared.  M_own of a DAG is what it would take alone, on the
most machines that were there at once for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from yarn_accel.core.dags.heft import Matrix, heft
from yarn_accel.core.dags.live.rows import LiveDag, PlannedRows
from yarn_accel.core.dags.model import Dag, DagId, Machine, SubmittedDag
from yarn_accel.core.dags.state import DagState
from yarn_accel.core.tasks.durations import DurationKind, DurationStore
from yarn_accel.core.tasks.values import AppId, ResourceId

_DEFAULT_S = 1.0
#: A belief that changed by so much makes a new plan.
_CHANGE = 0.1
#: The own makespans that one decision computes are of DAGs with so many tasks together, or of one DAG: that
#: takes half a second, and reports of workers wait meanwhile. Other DAGs follow with the next decisions.
MOST_ADMITTED = 2000
#: DAGs with more tasks keep the own makespan of their arrival: another one takes long.
_MOST_RECOMPUTED = 5000


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


class OwnMakespans:
    """Computes M_own: at arrival, again when there are more machines, and with what was learned at the end.

    Args:
        state: of the policy that plans.
        times: what tasks are expected to take.
    """

    def __init__(self, state: DagState, times: ExpectedTimes) -> None:
        self._state = state
        self._times = times

    def note_admitted(self, dags: Mapping[AppId, LiveDag]) -> None:
        """Note what DAGs that are planned for the first time have alone, and the most machines of each."""
        machines = self._machines()
        for app, live in dags.items():
            if live.record is None:
                live.record = self._state.dags.get(DagId(app))
                if live.record is not None:
                    live.is_known = self._times.is_known(live.dag)
                    live.machines, live.own_makespan_s = machines, live.record.own.makespan_s
            elif len(machines) > len(live.machines):
                live.machines, live.own_makespan_s = machines, None

    def seconds(self, live: LiveDag) -> float:
        """Of a DAG that was planned; of one that has ended with what was learned meanwhile."""
        assert live.record is not None
        if live.record.dag_id not in self._state.dags:
            self._settle(live)
        return live.record.own.makespan_s if live.own_makespan_s is None else live.own_makespan_s

    def at_end(self, live: LiveDag, joined: Sequence[Machine]) -> float | None:
        """Of a DAG whose tasks have all ended; None: there is no machine to compute it for.

        It may never have been planned: a task that an earlier master started was its last one.

        Args:
            joined: machines of which the policy that plans does not know yet.
        """
        if live.record is not None:
            self._settle(live)
            return self.seconds(live)
        live.machines = live.machines or (*self._machines(), *joined)
        if live.machines and live.own_makespan_s is None:
            self.compute(live)
        return live.own_makespan_s

    def _settle(self, live: LiveDag) -> None:
        """A DAG has ended: what was not known when it was planned counts with what was learned."""
        if not live.is_known or live.own_makespan_s is None:
            live.is_known = True
            self.compute(live)

    def compute(self, live: LiveDag) -> int:
        """With what is known now, on the most machines that there were; returns the number of its tasks."""
        dag = live.dag.dag
        if len(dag.tasks) > _MOST_RECOMPUTED:
            return 0
        seconds = self._times.matrix(dag, live.machines)
        own = heft(dag, live.machines, self._state.bandwidth_bytes_per_s, seconds=seconds)
        live.own_makespan_s = own.makespan_s
        return len(dag.tasks)

    def _machines(self) -> tuple[Machine, ...]:
        return tuple(host.machine for host in self._state.machines)
