"""`round_robin`: one task of each DAG in turn, by rank in a DAG; never takes back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from yarn_accel.core.dags.policies.base import PoolPolicy
from yarn_accel.core.dags.state import DagTaskRecord


class RoundRobinPolicy(PoolPolicy):
    """Turns go in the order of arrival; each decision begins anew with the first DAG."""

    name = "round_robin"

    def order(self, tasks: list[DagTaskRecord]) -> Iterator[DagTaskRecord]:
        """The best of each DAG, then the second of each."""
        turns: dict[int, list[DagTaskRecord]] = defaultdict(list)
        n_of: dict[str, int] = defaultdict(int)
        by_arrival = sorted(tasks, key=lambda task: (task.dag.arrival_s, task.dag.dag_id, task.position))
        for task in by_arrival:
            turns[n_of[task.dag.dag_id]].append(task)
            n_of[task.dag.dag_id] += 1
        for turn in sorted(turns):
            yield from turns[turn]
