"""`mps`: preemptive scheduling of many DAGs (Sun, Yu, Zhu): P-Fairness in a class, T-Backfill below it.

At every event all tasks that are planned and have not started are taken back (R1) and planned anew: DAGs by
class, slowdown (equation 3), remaining makespan; tasks of a DAG by rank; each where it finishes first, behind
what is planned. What crosses classes:

- While a preemptive DAG is there, everything is planned anew, high classes first. Tasks below the highest
  class present first try the gaps, which they may overrun by C = gap / n (equation 4).
- High DAGs without it take nothing back from basic ones: planned basic tasks keep their times, and high tasks
  go into the gaps among them or behind them. After that basic ones are planned anew around the high ones.

Two bounds are ours. A task that went from one worker's queue to another's `most_moves` times keeps its
machine. A task that waited `overdue_after` times its DAG's own makespan is planned before all others, the
longest overdue first, as long as no more than `overdue_share` of the machines are busy with such tasks.
"""

from __future__ import annotations

import heapq
from itertools import groupby

import numpy as np

from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.policies.fairness import by_slowdown
from yarn_accel.core.dags.policies.options import DagPolicyOptions
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord, DagTaskState, MachineRecord

#: So often the least tail is looked up; it only grows.
_REFRESH = 256


class MpsPolicy(DagPolicy):
    """Plans everything anew at every event, within the rights of the classes."""

    name = "mps"
    settings = (
        "most_moves",
        "overdue_after",
        "overdue_share",
        "backfill",
        "take_back",
        "queue_depth",
    )

    def __init__(self, bandwidth_bytes_per_s: float, options: DagPolicyOptions | None = None) -> None:
        super().__init__(bandwidth_bytes_per_s, options)
        #: When a task is overdue, DAG, number, a number that tells entries apart, since when, and the task.
        self._due: list[tuple[float, str, int, int, float, DagTaskRecord]] = []
        self._n_due = 0
        self._overdue: list[DagTaskRecord] = []
        self._now_s = 0.0
        self._overrun = 0.0
        self._highest = PriorityClass.BASIC

    def plan_tasks(self, now_s: float) -> None:
        """One pass of R1."""
        self._now_s = now_s
        self.state.update_slowdowns(now_s)
        classes = self._by_class()
        self._highest = min(classes, default=PriorityClass.BASIC)
        self._overrun = 1 / len(self.state.machines) if self.options.backfill == "threshold" else 0.0
        overdue = self._next_overdue(now_s)
        takes_back, is_high = self.options.take_back, self._highest is PriorityClass.HIGH
        keeps_basic = takes_back and is_high and PriorityClass.BASIC in classes and not overdue
        queues = self.planned() if keeps_basic or not takes_back else []
        self.open_timeline(now_s, 0.0 if keeps_basic else self._overrun)
        if not takes_back:
            self.keep(queues)
            self._place_classes(classes)
        elif keeps_basic:
            self._place_around_basic(classes, queues)
        else:
            for task in overdue:
                self.append(task, self._only(task))
                task.note = f"first of all, as it waits since {task.in_pool_since_s:.6g} s"
            self._place_classes(classes)

    # Who comes when

    def _by_class(self) -> dict[PriorityClass, list[DagRecord]]:
        dags = sorted(self.state.active(), key=lambda dag: (dag.priority_class, *by_slowdown(dag)))
        return {each: list(those) for each, those in groupby(dags, lambda dag: dag.priority_class)}

    def _next_overdue(self, now_s: float) -> list[DagTaskRecord]:
        """The overdue tasks that go first: as many as may, the longest overdue first."""
        while self._due and self._due[0][0] <= now_s:
            _, _, _, _, since_s, task = heapq.heappop(self._due)
            if task.in_pool_since_s == since_s and task not in self._overdue:
                self._overdue.append(task)
        self._overdue = [task for task in self._overdue if task.state is DagTaskState.IN_POOL]
        running = [host.running for host in self.state.machines]
        n_busy = sum(task is not None and task.is_overdue for task in running)
        n_most = max(1, int(len(running) * self.options.overdue_share)) - n_busy
        for number, task in enumerate(self._overdue):
            task.is_overdue = number < n_most
        return self._overdue[: max(0, n_most)]

    def note_entered(self) -> None:
        """Note when what is new in the pool will be overdue."""
        for task in self.state.entered:
            # It may have run when it was overdue, on a machine that left.
            task.is_overdue = False
            since_s, dag = task.in_pool_since_s, task.dag
            due_s = since_s + self.options.overdue_after * dag.own.makespan_s
            self._n_due += 1
            heapq.heappush(self._due, (due_s, dag.dag_id, task.number, self._n_due, since_s, task))
        super().note_entered()

    # Where each goes

    def _place_classes(self, classes: dict[PriorityClass, list[DagRecord]]) -> None:
        """Plan all that is not planned yet."""
        takes_back = self.options.take_back
        for priority_class, dags in classes.items():
            tasks = [
                task
                for dag in dags
                for task in dag.pool
                if (not task.is_overdue if takes_back else task.host is None)
            ]
            self._place(tasks, is_lower=priority_class > self._highest)

    def _place(self, tasks: list[DagTaskRecord], *, is_lower: bool) -> None:
        """Backfill lower classes, else go behind the queues; written out for tasks whose inputs are there.

        These end first where tail + w is least: nothing starts later than its queue's tail, so there is no
        gap to note, and only what goes to a worker needs its finish on each machine.
        """
        hosts, timeline = self._hosts, self.timeline
        tail_s, queues = timeline.tail_s, timeline.queues
        most_moves, depth = self.options.most_moves, self.options.queue_depth
        backfills = is_lower and self.options.backfill != "none"
        finish_s = np.empty(len(hosts))
        add, first_least = np.add, finish_s.argmin
        floor_s = tail_s.item(tail_s.argmin())
        for number, task in enumerate(tasks):
            if not number % _REFRESH:
                floor_s = tail_s.item(tail_s.argmin())
            row = task.row
            only = self._only(task) if task.n_moves >= most_moves else None
            may_fit = backfills and task.least_s <= timeline.reach_s and timeline.may_hold(row)
            if may_fit and self.backfill(task, only):
                continue
            if only is not None or task.latest_ready_s > floor_s:
                self.append(task, only)
                continue
            add(tail_s, row, finish_s)
            column = int(first_least())
            queue = queues[column]
            if len(queue) < depth:
                task.finish_s[:] = finish_s
            task.start_s, task.seconds = tail_s.item(column), row.item(column)
            tail_s[column] = task.end_s = task.start_s + task.seconds
            queue.append(task)
            task.host, task.note = hosts[column], ""

    def _place_around_basic(
        self,
        classes: dict[PriorityClass, list[DagRecord]],
        queues: list[tuple[MachineRecord, list[DagTaskRecord]]],
    ) -> None:
        """High DAGs take nothing back from basic ones, which then are planned anew around them."""
        basic = PriorityClass.BASIC
        self.keep(
            (host, [each for each in queue if each.dag.priority_class is basic]) for host, queue in queues
        )
        for task in (task for dag in classes[PriorityClass.HIGH] for task in dag.pool):
            column = self.timeline.insert_or_append(
                task, task.ready_s, task.row, task.least_s, task.finish_s, self._only(task)
            )
            task.host, task.note = self._hosts[column], ""
        high = self.timeline.queues
        self.open_timeline(self._now_s, self._overrun)
        for column, queue in enumerate(high):
            self.timeline.add_fixed(column, [each for each in queue if each.dag.priority_class is not basic])
        self._place([task for dag in classes[basic] for task in dag.pool], is_lower=True)

    def _only(self, task: DagTaskRecord) -> int | None:
        """The machine that a task keeps, as it was moved often enough."""
        if task.n_moves < self.options.most_moves or task.last_queue is None:
            return None
        return task.last_queue.column if task.last_queue.column >= 0 else None
