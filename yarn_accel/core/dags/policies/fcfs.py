"""`fcfs`: DAGs in the order of their arrival, tasks of a DAG by rank; never takes back."""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.dags.policies.base import PoolPolicy
from yarn_accel.core.dags.state import DagTaskRecord


class FcfsPolicy(PoolPolicy):
    """First come, first served."""

    name = "fcfs"

    def order(self, tasks: list[DagTaskRecord]) -> Iterable[DagTaskRecord]:
        """By arrival."""
        return sorted(tasks, key=lambda task: (task.dag.arrival_s, task.dag.dag_id, task.position))
