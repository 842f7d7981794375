"""`merged_heft`: HEFT on all DAGs that arrive together, as if they were one DAG."""

from __future__ import annotations

from collections.abc import Iterator

from yarn_accel.core.dags.policies.static import StaticPolicy, unstarted
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord


class MergedHeftPolicy(StaticPolicy):
    """By the ranks of all tasks."""

    name = "merged_heft"

    def sequence(self, dags: list[DagRecord]) -> Iterator[DagTaskRecord]:
        """By rank; in a DAG as in its own schedule."""
        tasks = [task for dag in dags for task in unstarted(dag) if task.host is None]
        yield from sorted(
            tasks, key=lambda task: (-task.rank, task.dag.arrival_s, task.dag.dag_id, task.position)
        )
