"""`fairness-fpft`: Zhao and Sakellariou (2006), slowdown by finish time.

The DAG with the least slowdown places its next task; equal ones by larger own makespan. Its slowdown is then
the task's finish in its own schedule over that in the shared one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from yarn_accel.core.dags.model import DagId
from yarn_accel.core.dags.policies.static import StaticPolicy, unstarted
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord


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
