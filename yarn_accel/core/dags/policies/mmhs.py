"""`mmhs`: a stand-in for MMHS (Tian et al. 2012), of which no text could be had.

Known is that it is a hybrid: fairness within a class, plain backfilling between classes. So: `fairness` by
class, and lower classes first try the gaps, without overrun (C = 0). Never takes back.
"""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.dags.policies.base import PoolPolicy
from yarn_accel.core.dags.policies.fairness import by_slowdown
from yarn_accel.core.dags.state import DagTaskRecord


class MmhsStandInPolicy(PoolPolicy):
    """Higher classes first; below the highest one present, gaps before tails."""

    name = "mmhs"
    needs_slowdowns = True

    def order(self, tasks: list[DagTaskRecord]) -> Iterable[DagTaskRecord]:
        """By class, then by slowdown."""
        keys = {dag.dag_id: (dag.priority_class, by_slowdown(dag)) for dag in self.state.dags.values()}
        return sorted(tasks, key=lambda task: (keys[task.dag.dag_id], task.position))

    def place_one(self, task: DagTaskRecord) -> None:
        """A gap where it fits, else HEFT without insertion."""
        highest = min(dag.priority_class for dag in self.state.active())
        if task.dag.priority_class == highest or not self.backfill(task):
            self.append(task)
