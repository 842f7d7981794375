"""Policies that place what is new in the task pool, behind what is planned, and never take it back.

`fairness`: the DAG with the least slowdown first. It is Zhao and Sakellariou's rule as the MPS paper draws it
in Figure 3(a): the pool is served by equation (3) at each event. Their own, static form: `fairness-fpft`,
`fairness-fpct`. `round_robin_at_entry`: one task of each DAG in turn; as tasks are placed when they enter the
pool, turns seldom matter, and a round robin over free machines is `round_robin_at_dispatch`. `fcfs`: DAGs in
the order of their arrival.

`mmhs` stands in for MMHS (Tian et al. 2012), of which no text could be had. Known is that it is a hybrid:
fairness within a class, plain backfilling between classes. So: `fairness` by class, and lower classes first
try the gaps, without overrun (C = 0).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import ClassVar

from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord


class PoolPolicy(DagPolicy):
    """Places what is new in the pool, behind the queues, where it finishes first; never takes back."""

    needs_slowdowns: ClassVar[bool] = False

    def order(self, tasks: list[DagTaskRecord]) -> Iterable[DagTaskRecord]:
        """The order in which new tasks are placed."""
        raise NotImplementedError

    def place_one(self, task: DagTaskRecord) -> None:
        """HEFT without insertion."""
        self.append(task)

    def plan_tasks(self, now_s: float) -> None:
        """Keep what was planned, and place what was not."""
        if self.needs_slowdowns:
            self.slowdowns.update(now_s)
        queues = self.planned()
        self.open_timeline(now_s)
        self.keep(queues)
        for task in self.order([task for task in self.state.pool() if task.host is None]):
            self.place_one(task)


def by_slowdown(dag: DagRecord) -> tuple[float, float, float, str]:
    """The paper's order of DAGs in one class: slowdown, larger remaining makespan; then arrival and name.

    Rounded, so that no sum in another order breaks a tie.
    """
    return round(dag.slowdown, 12), -dag.remaining_s(), dag.arrival_s, dag.dag_id


class FairnessPolicy(PoolPolicy):
    """Orders DAGs by slowdown, tasks of a DAG by rank."""

    name = "fairness"
    needs_slowdowns = True

    def order(self, tasks: list[DagTaskRecord]) -> Iterable[DagTaskRecord]:
        """Classes do not count."""
        keys = {dag.dag_id: by_slowdown(dag) for dag in self.state.dags.values()}
        return sorted(tasks, key=lambda task: (keys[task.dag.dag_id], task.position))


class RoundRobinAtEntryPolicy(PoolPolicy):
    """Turns go in the order of arrival; each decision begins anew with the first DAG."""

    name = "round_robin_at_entry"

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


class FcfsPolicy(PoolPolicy):
    """First come, first served."""

    name = "fcfs"

    def order(self, tasks: list[DagTaskRecord]) -> Iterable[DagTaskRecord]:
        """By arrival."""
        return sorted(tasks, key=lambda task: (task.dag.arrival_s, task.dag.dag_id, task.position))


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
