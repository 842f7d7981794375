"""`fairness`: the DAG with the least slowdown first; what is planned once is never taken back.

Zhao and Sakellariou's rule as the MPS paper draws it in Figure 3(a): the task pool is served by equation (3)
at each event. Their own, static form is `fairness-fpft` and `fairness-fpct`.
"""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.dags.policies.base import PoolPolicy
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord


def by_slowdown(dag: DagRecord) -> tuple[float, float, float, str]:
    """The paper's order of DAGs in one class: slowdown, larger remaining makespan; then arrival and name."""
    return dag.slowdown, -dag.remaining_s(), dag.arrival_s, dag.dag_id


class FairnessPolicy(PoolPolicy):
    """Orders DAGs by slowdown, tasks of a DAG by rank."""

    name = "fairness"
    needs_slowdowns = True

    def order(self, tasks: list[DagTaskRecord]) -> Iterable[DagTaskRecord]:
        """Classes do not count."""
        keys = {dag.dag_id: by_slowdown(dag) for dag in self.state.dags.values()}
        return sorted(tasks, key=lambda task: (keys[task.dag.dag_id], task.position))
