"""Policies that plan a DAG when it arrives, all its tasks at once, and keep that plan.

They are for comparison: a plan holds as long as tasks take what was expected. When a machine joins or leaves,
all that has not started is planned again.

`merged_heft`: HEFT on all DAGs that arrive together, as if they were one DAG.

`fairness-fpft`: Zhao and Sakellariou (2006), slowdown by finish time. The DAG with the least slowdown places
its next task, equal ones by larger own makespan. Its slowdown is then the task's finish in its own schedule
over that in the shared one.

`fairness-fpct`: the same by current time. The slowdowns of all DAGs are those at the finish of the task that
was placed. Of each DAG the placed task counts that is furthest by then: the time to which it is as far in the
own schedule, over the shared time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from yarn_accel.core.dags.heft import ready_row
from yarn_accel.core.dags.model import DagId
from yarn_accel.core.dags.policies.base import DagPolicy, DagPolicyOptions
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord, DagTaskState


class StaticPolicy(DagPolicy):
    """HEFT with insertion, over tasks whose parents may still have to run."""

    def __init__(self, bandwidth_bytes_per_s: float, options: DagPolicyOptions | None = None) -> None:
        super().__init__(bandwidth_bytes_per_s, options)
        self.state.plans_waiting = True

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


class MergedHeftPolicy(StaticPolicy):
    """By the ranks of all tasks."""

    name = "merged_heft"

    def sequence(self, dags: list[DagRecord]) -> Iterator[DagTaskRecord]:
        """By rank; in a DAG as in its own schedule."""
        tasks = [task for dag in dags for task in unstarted(dag) if task.host is None]
        yield from sorted(
            tasks, key=lambda task: (-task.rank, task.dag.arrival_s, task.dag.dag_id, task.position)
        )


class FpftPolicy(StaticPolicy):
    """Slowdown by finish time."""

    name = "fairness-fpft"

    def sequence(self, dags: list[DagRecord]) -> Iterator[DagTaskRecord]:
        """One task at a time."""
        left = {
            dag.dag_id: [task for task in reversed(unstarted(dag)) if task.host is None]
            for dag in sorted(dags, key=lambda dag: -dag.own.makespan_s)
        }
        slowdowns = {dag_id: 0.0 for dag_id in left}
        records = {dag.dag_id: dag for dag in dags}
        while left:
            chosen = min(left, key=lambda dag_id: slowdowns[dag_id])
            task = left[chosen].pop()
            yield task
            if not left[chosen]:
                del left[chosen]
            self.update(slowdowns, task, records.values())

    def update(self, slowdowns: dict[DagId, float], task: DagTaskRecord, dags: Iterable[DagRecord]) -> None:
        """After a task was placed."""
        own_s = float(task.dag.own.end_s[task.number])
        shared_s = task.end_s - task.dag.arrival_s
        slowdowns[task.dag.dag_id] = own_s / shared_s if shared_s > 0 else 1.0


class FpctPolicy(FpftPolicy):
    """Slowdown by current time."""

    name = "fairness-fpct"

    def update(self, slowdowns: dict[DagId, float], task: DagTaskRecord, dags: Iterable[DagRecord]) -> None:
        """After a task was placed."""
        for dag in dags:
            slowdowns[dag.dag_id] = _slowdown_at(dag, task.end_s)


def _slowdown_at(dag: DagRecord, now_s: float) -> float:
    """Progress in the own schedule over the shared time; 0 where nothing of a DAG was placed by then."""
    best = (0.0, 0.0)
    for task in dag.tasks:
        if task.host is not None and task.start_s < now_s:
            share = min(1.0, (now_s - task.start_s) / task.seconds) if task.seconds else 1.0
            own_start_s = float(dag.own.start_s[task.number])
            own_s = own_start_s + share * (float(dag.own.end_s[task.number]) - own_start_s)
            best = max(best, (min(now_s, task.end_s) - dag.arrival_s, own_s))
    return best[1] / best[0] if best[0] > 0 else 0.0
