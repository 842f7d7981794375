"""M_own of live DAGs: what each would take alone, on the most machines that were there at once for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from yarn_accel.core.dags.heft import heft
from yarn_accel.core.dags.live.expected_times import ExpectedTimes
from yarn_accel.core.dags.live.rows import LiveDag
from yarn_accel.core.dags.model import DagId, Machine
from yarn_accel.core.dags.state import DagState
from yarn_accel.core.tasks.values import AppId

#: The own makespans that one decision computes are of DAGs with so many tasks together, or of one DAG: that
#: takes half a second, and reports of workers wait meanwhile. Other DAGs follow with the next decisions.
MOST_ADMITTED = 2000
#: DAGs with more tasks keep the own makespan of their arrival: another one takes long.
_MOST_RECOMPUTED = 5000


class OwnMakespans:
    """Computes them: at arrival, again when there are more machines, and with what was learned at the end.

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
