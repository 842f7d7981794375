"""`mps`: preemptive scheduling of many DAGs (Sun, Yu, Zhu): P-Fairness in a class, T-Backfill below it.

At every event all tasks that are planned and have not started are taken back (R1) and planned anew: DAGs by
class, slowdown (equation 3), remaining makespan; tasks of a DAG by rank; each where it finishes first, behind
what is planned. Tasks below the highest class that is there first try the gaps, which they may overrun by
C = gap / n (equation 4), unless an idle machine ends them sooner. In the paper a high DAG takes nothing back
from basic ones: their planned tasks keep their times. That made many high DAGs slower than if they had been
basic, as those do take back from their peers; so planned basic tasks yield here.

Where there is far more work than machines, no order makes the slowest DAG faster, and equal slowdowns mean
that all DAGs end last. So a class is crowded if its slowest DAG is to end with a slowdown below
`CROWDED_BELOW`. There the DAGs that are to end within `EQUAL_WITHIN` of the slowest count as equally slow;
the one with least left goes first. What lies at a worker is planned before the rest, and stays there unless
another machine ends it sooner by more than `STAYS_FOR` times its own length.

Two bounds are ours, too. A task that went from one worker's queue to another's `most_moves` times keeps its
machine. A task that waited `overdue_after` times its DAG's own makespan is overdue. While there is one,
`overdue_share` of the machines' time is saved for such tasks; when it pays for the longest overdue one, that
is planned before all others. So no class starves, and none takes more than that share from a higher one.

A decision's time does not grow with what waits. Of each class the first `horizon` tasks for each machine are
planned; for the rest of each DAG only its beginning and end are estimated, as if all machines shared it. A
DAG of which nothing runs and nothing is planned is *far*. Where more than `most_far` are, slowdowns and the
order of DAGs are computed at every `order_every`-th decision, and when a DAG or a machine comes or goes.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np

from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.policies.base import DagPolicy, DagPolicyOptions
from yarn_accel.core.dags.policies.pool import by_slowdown
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord, DagTaskState
from yarn_accel.core.tasks.outcome import slowdown_at_end

CROWDED_BELOW = 0.25
EQUAL_WITHIN = 0.05
STAYS_FOR = 2.0

_CROWDED = "the class is crowded: of equally slow DAGs the one with least left goes first"

#: So often the least tail is looked up; it only grows.
_REFRESH = 256


class _Overdue(NamedTuple):
    """An overdue task: the how manieth, since when it waits, and the task."""

    number: int
    since_s: float
    task: DagTaskRecord

    def is_over(self) -> bool:
        """Whether the task has started, or waits anew."""
        return self.task.state is not DagTaskState.IN_POOL or self.task.in_pool_since_s != self.since_s


def _drop_over(entries: deque[_Overdue]) -> None:
    """Forget the first that wait no more, or need no payment."""
    while entries and (entries[0].is_over() or entries[0].task.is_overdue):
        entries.popleft()


class MpsPolicy(DagPolicy):
    """Plans everything anew at every event, within the rights of the classes."""

    name = "mps"
    #: Where more DAGs are far, they are ordered at every so manieth decision.
    most_far: ClassVar[int] = 32
    order_every: ClassVar[int] = 8
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
        #: Overdue tasks that go first, and those that are still to be paid for, the longest overdue first.
        self._paid: list[_Overdue] = []
        self._unpaid: dict[PriorityClass, deque[_Overdue]] = {each: deque() for each in PriorityClass}
        self._n_overdue = 0
        #: The DAGs in their order, and of how many decisions and which changes in the state it is.
        self._classes: dict[PriorityClass, list[DagRecord]] = {}
        self._n_since = 0
        self._n_changes = -1
        #: So many DAGs were far then.
        self._n_far = 0
        self._now_s = 0.0
        self._overrun = 0.0
        self._highest = PriorityClass.BASIC
        self._crowded: set[PriorityClass] = set()
        #: Seconds of machines that overdue tasks of each class may take, as of when.
        self._saved_s: dict[PriorityClass, float] = {}
        self._saved_at_s = 0.0
        #: Row: a buffer.
        self._end_s = self.timeline.tail_s

    def plan_tasks(self, now_s: float) -> None:
        """One pass of R1."""
        self._now_s = now_s
        is_ordered = self._is_order_due()
        if is_ordered:
            self.slowdowns.update(now_s)
            self._classes = self._by_class()
            self._n_since, self._n_changes = 0, self.state.n_changes
        else:
            self.slowdowns.keep(now_s)
        self._n_since += 1
        self._highest = min(self._classes, default=PriorityClass.BASIC)
        self._overrun = 1 / len(self.state.machines) if self.options.backfill == "threshold" else 0.0
        overdue = self._next_overdue(now_s)
        queues = [] if self.options.take_back else self.planned()
        before, in_pool = self.timeline.queues, DagTaskState.IN_POOL
        self.open_timeline(now_s, self._overrun)
        if self.options.take_back:
            for task in chain.from_iterable(before):
                if task.state is in_pool:
                    task.host = None
            for task in overdue:
                self.append(task, self._only(task))
                task.note = f"first of all, as it waits since {task.in_pool_since_s:.6g} s"
        else:
            self.keep(queues)
        n_far = sum(self._place_class(priority_class, is_ordered) for priority_class in self._classes)
        if is_ordered:
            self._n_far = n_far

    def plan_document(self) -> dict[str, Any]:
        """The plan, with what is saved for overdue tasks."""
        saved = {each.word: seconds for each, seconds in self._saved_s.items()}
        estimates = {
            dag.dag_id: [dag.begins_s, dag.goes_on_s, dag.n_unplanned]
            for dag in self.state.dags.values()
            if dag.n_unplanned
        }
        order = {each.word: [dag.dag_id for dag in dags] for each, dags in self._classes.items()}
        return {
            **super().plan_document(),
            "saved_s": saved,
            "saved_at_s": self._saved_at_s,
            "estimates": estimates,
            "order": {} if self._is_order_due() else order,
            "slowdowns": {dag.dag_id: dag.slowdown for dag in self.state.dags.values()},
            "crowded": [each.word for each in self._crowded],
            "n_since": self._n_since,
            "n_far": self._n_far,
        }

    def restore_plan(self, document: Mapping[str, Any]) -> None:
        """As the base; plans of earlier versions saved and estimated nothing."""
        super().restore_plan(document)
        for name, estimate in document.get("estimates", {}).items():
            dag = self.state.dags[name]
            dag.begins_s, dag.goes_on_s, dag.n_unplanned = estimate
        if order := document.get("order"):
            for name, slowdown in document["slowdowns"].items():
                self.state.dags[name].slowdown = slowdown
            by_word = {each.word: each for each in PriorityClass}
            self._classes = {by_word[word]: [self.state.dags[name] for name in order[word]] for word in order}
            self._crowded = {by_word[word] for word in document["crowded"]}
            self._n_since, self._n_far = document["n_since"], document["n_far"]
            self._n_changes = self.state.n_changes
        saved = document.get("saved_s", {})
        self._saved_s = {each: saved[each.word] for each in PriorityClass if each.word in saved}
        self._saved_at_s = document.get("saved_at_s", 0.0)

    # Who comes when

    def _is_order_due(self) -> bool:
        """Whether slowdowns and the order of DAGs are to be computed anew."""
        is_short = self._n_far <= self.most_far
        return is_short or self._n_since >= self.order_every or self._n_changes != self.state.n_changes

    def _by_class(self) -> dict[PriorityClass, list[DagRecord]]:
        found: dict[PriorityClass, list[DagRecord]] = defaultdict(list)
        for dag in self.state.active():
            found[dag.priority_class].append(dag)
        classes = {each: sorted(found[each], key=by_slowdown) for each in sorted(found)}
        self._crowded = {each for each, those in classes.items() if self._let_end(those)}
        return classes

    def _let_end(self, dags: list[DagRecord]) -> bool:
        """In a crowded class, move those with least left before the others that are about as slow."""
        least = _at_end(dags[0])
        if least >= CROWDED_BELOW:
            return False
        bound = least + EQUAL_WITHIN
        left_s = [dag.remaining_s() if _at_end(dag) <= bound else math.inf for dag in dags]
        dags[:] = [dags[at] for at in sorted(range(len(dags)), key=left_s.__getitem__)]
        return True

    def _next_overdue(self, now_s: float) -> list[DagTaskRecord]:
        """The overdue tasks that go first: as many as may, the longest overdue first."""
        while self._due and self._due[0][0] <= now_s:
            _, _, _, _, since_s, task = heapq.heappop(self._due)
            self._n_overdue += 1
            entry = _Overdue(self._n_overdue, since_s, task)
            if not entry.is_over():
                # After a restart it may be paid for already.
                (self._paid if task.is_overdue else self._unpaid[task.dag.priority_class]).append(entry)
        self._paid = [each for each in self._paid if not each.is_over()]
        classes = {each.task.dag.priority_class for each in self._paid}
        for priority_class, unpaid in self._unpaid.items():
            _drop_over(unpaid)
            if unpaid:
                classes.add(priority_class)
        share = self.options.overdue_share / max(1, len(classes))
        saved_s = share * len(self.state.machines) * (now_s - self._saved_at_s)
        self._saved_s = {
            each: self._saved_s[each] + saved_s if each in self._saved_s else 0.0 for each in classes
        }
        self._saved_at_s = now_s
        for priority_class in classes:
            self._pay(priority_class)
        self._paid.sort()
        return [each.task for each in self._paid]

    def _pay(self, priority_class: PriorityClass) -> None:
        """Let the first of the overdue tasks of one class go first, as far as its savings reach."""
        unpaid = self._unpaid[priority_class]
        while unpaid:
            most_s = float(unpaid[0].task.row.max())
            if most_s > self._saved_s[priority_class]:
                return
            self._saved_s[priority_class] -= most_s
            unpaid[0].task.is_overdue = True
            self._paid.append(unpaid.popleft())
            _drop_over(unpaid)
        del self._saved_s[priority_class]

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

    def _place_class(self, priority_class: PriorityClass, is_ordered: bool) -> int:
        """Plan what is not planned yet, as far as the horizon, and estimate the rest; returns the far DAGs.

        Args:
            is_ordered: just now; else those that were far then are left as they are.
        """
        dags, is_lower = self._classes[priority_class], priority_class > self._highest
        if not self.options.take_back:
            new = [task for dag in dags for task in dag.pool if task.host is None]
            self._place(new, is_lower=is_lower, is_crowded=False)
            return 0
        is_crowded = priority_class in self._crowded
        tasks, left_out = self._next_tasks(dags, is_crowded, is_ordered)
        self._place(tasks, is_lower=is_lower, is_crowded=is_crowded)
        tail_s = float(self.timeline.tail_s.mean())
        for dag in left_out:
            tail_s = dag.estimate(tail_s)
        return sum(dag.n_unplanned == len(dag.pool) and not dag.running for dag in left_out)

    def _next_tasks(
        self, dags: list[DagRecord], is_crowded: bool, is_ordered: bool
    ) -> tuple[list[DagTaskRecord], list[DagRecord]]:
        """The tasks that are to be planned, in this order, and the DAGs of which others are estimated."""
        tasks = self._lying(dags) if is_crowded else []
        lying = set(map(id, tasks))
        left_out: list[DagRecord] = []
        n_left = self.horizon * len(self._hosts)
        for dag in dags:
            n_in_pool = len(dag.pool)
            if not n_left:
                if 0 < n_in_pool <= dag.n_unplanned and not is_ordered:
                    break
                dag.n_unplanned = n_in_pool
                if n_in_pool:
                    left_out.append(dag)
                continue
            n_planned = min(n_left, n_in_pool)
            n_left -= n_planned
            dag.n_unplanned = n_in_pool - n_planned
            pool = dag.pool
            if dag.n_unplanned:
                pool = pool[:n_planned]
                left_out.append(dag)
            if lying or self._paid:
                pool = [task for task in pool if not task.is_overdue and id(task) not in lying]
            tasks += pool
        return tasks, left_out

    def _lying(self, dags: list[DagRecord]) -> list[DagTaskRecord]:
        """The tasks of these DAGs that lie at workers, in the order of the DAGs."""
        found = [
            task
            for host in self._hosts
            for task in host.published
            if task.dag.priority_class is dags[0].priority_class
            and task.state is DagTaskState.IN_POOL
            and not task.is_overdue
        ]
        return sorted(found, key=lambda task: (dags.index(task.dag), task.position))

    def _place(self, tasks: list[DagTaskRecord], *, is_lower: bool, is_crowded: bool) -> None:
        """Backfill lower and crowded classes, else go behind the queues; fast where all inputs are there.

        Such tasks end first where tail + w is least: nothing starts later than its queue's tail, so there is
        no gap to note, and only what goes to a worker needs its finish on each machine.
        """
        hosts, timeline = self._hosts, self.timeline
        tail_s, queues = timeline.tail_s, timeline.queues
        most_moves, depth = self.options.most_moves, self.options.queue_depth
        backfills = (is_lower or is_crowded) and self.options.backfill != "none"
        finish_s = np.empty(len(hosts))
        self._end_s = np.empty(len(hosts))
        add, first_least = np.add, finish_s.argmin
        floor_s = tail_s.item(tail_s.argmin())
        note = _CROWDED if is_crowded else ""
        has_idle = True
        for number, task in enumerate(tasks):
            if not number % _REFRESH:
                floor_s = tail_s.item(tail_s.argmin())
            row = task.row
            only = self._only(task) if task.n_moves >= most_moves else None
            if only is None and is_crowded and task.last_queue is not None:
                only = self._stays(task)
            may_fit = backfills and task.least_s <= timeline.reach_s and timeline.may_hold(row)
            if may_fit:
                # Tails only grow: once no machine is idle, none is for the tasks that follow.
                has_idle = has_idle and tail_s.item(tail_s.argmin()) <= self._now_s
                idle = self._idle(task) if only is None and has_idle else None
                if idle is not None:
                    self.append(task, idle)
                    continue
                if self.backfill(task, only):
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
            task.host, task.note = hosts[column], note

    def _only(self, task: DagTaskRecord) -> int | None:
        """The machine that a task keeps, as it was moved often enough."""
        if task.n_moves < self.options.most_moves or task.last_queue is None:
            return None
        return task.last_queue.column if task.last_queue.column >= 0 else None

    def _stays(self, task: DagTaskRecord) -> int | None:
        """The machine at whose worker a task lies, unless another one ends it much sooner."""
        assert task.last_queue is not None
        column = task.last_queue.column
        if column < 0 or len(self.timeline.queues[column]) >= self.options.queue_depth:
            return None
        end_s = np.maximum(self.timeline.tail_s, task.ready_s, out=self._end_s)
        end_s += task.row
        best_s = end_s.item(end_s.argmin())
        return column if end_s.item(column) <= best_s + STAYS_FOR * task.row.item(column) else None

    def _idle(self, task: DagTaskRecord) -> int | None:
        """The idle machine, with nothing planned, on which a task ends sooner than in any gap."""
        timeline = self.timeline
        end_s = np.where(
            timeline.tail_s <= self._now_s, np.maximum(timeline.tail_s, task.ready_s) + task.row, np.inf
        )
        column = int(end_s.argmin())
        if end_s.item(column) == math.inf:
            return None
        found = timeline.fit(task.ready_s, task.row, task.least_s, None)
        gap_end_s = math.inf if found is None else found[1] + task.row.item(found[0])
        return column if end_s.item(column) < gap_end_s else None


def _at_end(dag: DagRecord) -> float:
    """Equation (2), if the delay that equation (3) sees now stays as it is."""
    own_s = dag.own.makespan_s
    return slowdown_at_end(own_s, own_s + max(0.0, dag.delay_s))
