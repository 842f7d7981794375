"""Policies that plan a DAG when it arrives, all its tasks at once, and keep that plan.

They are for comparison: a plan holds as long as tasks take what was expected. When a machine joins or leaves,
all that has not started is planned again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from yarn_accel.core.dags.heft import ready_row
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord, DagTaskState


class StaticPolicy(DagPolicy):
    """HEFT with insertion, over tasks whose parents may still have to run."""

    def sequence(self, dags: list[DagRecord]) -> Iterator[DagTaskRecord]:
        """The tasks to place, parents first; each is placed before the next is asked for."""
        raise NotImplementedError

    def plan_tasks(self, now_s: float) -> None:
        """Plan the DAGs that are new; all, where machines have changed."""
        queues = self.planned()
        is_changed = self._hosts != tuple(self.state.machines)
        self.open_timeline(now_s)
        for dag in self.state.dags.values():
            if is_changed:
                for task in unstarted(dag):
                    task.host = None
        if not is_changed:
            self.keep(queues)
        new = [dag for dag in self.state.active() if any(each.host is None for each in unstarted(dag))]
        for task in self.sequence(sorted(new, key=lambda dag: (dag.arrival_s, dag.dag_id))):
            self._place(task, now_s)

    def _place(self, task: DagTaskRecord, now_s: float) -> None:
        dag = task.dag
        arrivals = []
        for number, n_bytes in dag.dag.parents[task.number]:
            parent = dag.tasks[number]
            assert parent.host is not None, "a parent comes before its children"
            arrivals.append((parent.end_s, parent.host.column, n_bytes))
        n_machines = len(self._hosts)
        ready_s = ready_row(arrivals, n_machines, self.state.bandwidth_bytes_per_s, now_s)
        row = dag.seconds[task.number]
        task.finish_s = np.full(n_machines, np.nan)
        column = self.timeline.insert_or_append(task, ready_s, row, float(row.min()), task.finish_s)
        task.host = self._hosts[column]


def unstarted(dag: DagRecord) -> list[DagTaskRecord]:
    """The tasks of a DAG that have not started, by rank."""
    order = (dag.tasks[number] for number in dag.own.order)
    return [task for task in order if task.state in (DagTaskState.WAITS, DagTaskState.IN_POOL)]
