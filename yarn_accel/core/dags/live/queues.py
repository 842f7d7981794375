"""What waits in the queues of workers: tasks that they start by themselves, without waiting for an order.

One task waits at each machine that is busy, and of short ones as many as are to start within `_AHEAD_S`: an
order that goes through the journal takes longer than they do. What waits there must be right whatever ends
before it on its worker, so none waits behind ends that make something ready of as high a class. It stays as
long as it comes soon by its worker's plan; of equal tasks, those that wait there are the ones that come.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from yarn_accel.core.dags.live.rows import PlannedRows
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.state import TO_START, DagTaskRecord, DagTaskState, MachineRecord
from yarn_accel.core.tasks.commands import EnqueueTask, TakeBackTask
from yarn_accel.core.tasks.records import Assignment, TaskWorker
from yarn_accel.core.tasks.values import Form, ResourceId, TaskId

#: Of each machine, and of a worker with several; twice as many where what comes goes before what waits.
MOST_QUEUED, _MOST_AT_WORKER = 16, 48
#: What starts later by the plan does not wait at a worker yet, unless it is the next.
_AHEAD_S = 0.25
#: What waits there stays as one of so many that come next, so soon; a new one before it changes nothing.
_MOST_KEPT, _KEPT_S = 2 * MOST_QUEUED, 2 * _AHEAD_S

_Queue = list[DagTaskRecord]


class WorkerQueues:
    """Decides what waits where, by the plan.

    Args:
        inner: the policy that plans.
        rows: the table, and what the plan has of it.
    """

    def __init__(self, inner: DagPolicy, rows: PlannedRows) -> None:
        self._inner = inner
        self._rows = rows
        #: So many waited at each worker after the last plan.
        self._n_given: dict[ResourceId, int] = {}

    def next(self, host: MachineRecord, queue: _Queue) -> DagTaskRecord | None:
        """The next task of a machine; one that the service holds back for a while is left out."""
        return next(iter(self._coming(host, queue, 1, 0.0)), None)

    def _coming(self, host: MachineRecord, queue: _Queue, most: int, until_s: float) -> _Queue:
        """The next tasks of a machine: the first one, and others that start by then."""
        found: _Queue = []
        for task in queue:
            if task.host is not host or task.state not in TO_START:
                continue
            if found and task.start_s > until_s:
                break
            is_waiting = task.state is DagTaskState.WAITS
            if is_waiting or self._rows.may_start(task):
                found.append(task)
                # Nothing goes to a worker before what waits for others.
                if is_waiting or len(found) == most:
                    break
        return found

    def is_short(self) -> bool:
        """Whether a machine has nothing to do, or a worker less than half of what it was given."""
        n_given = self._n_given
        return any(
            2 * len(worker.queue) < n_given.get(worker.id, 0) or None in worker.slots
            for worker in self._workers()
        )

    def _workers(self) -> Iterable[TaskWorker]:
        return self._rows.table.resources.values()

    # ---- equal tasks

    def keep(self, now_s: float) -> None:
        """Let what waits at a worker come soon there, where the plan has tasks there that are equal to it."""
        plans = dict(self._inner.machine_plans())
        hosts: dict[TaskWorker, list[MachineRecord]] = defaultdict(list)
        for host in plans:
            worker = self._rows.places[host.name].worker
            if worker.queue:
                hosts[worker].append(host)
        for worker, mine in hosts.items():
            each_coming = (self._coming(host, plans[host], MOST_QUEUED, now_s + _AHEAD_S) for host in mine)
            tasks = [task for coming in each_coming for task in coming]
            names = {task.task for task in tasks}
            strays: dict[object, deque[DagTaskRecord]] = defaultdict(deque)
            for held in worker.queue:
                task = self._rows.row(held.task)
                if task is not None and task.task not in names and task.host in plans:
                    strays[_likeness(task)].append(task)
            here = {held.task.id for held in worker.queue} if strays else set()
            for task in tasks if strays else ():
                if task.task not in here and (equal := strays.get(_likeness(task))):
                    self._exchange(plans, task, equal.popleft())

    def _exchange(self, plans: dict[MachineRecord, _Queue], one: DagTaskRecord, other: DagTaskRecord) -> None:
        """Each of two equal tasks takes the other one's place in the plan."""
        assert one.host is not None
        assert other.host is not None
        first, second = plans[one.host], plans[other.host]
        at, other_at = first.index(one), second.index(other)
        first[at], second[other_at] = other, one
        for name in ("host", "start_s", "seconds", "end_s", "finish_s", "note"):
            ours, theirs = getattr(one, name), getattr(other, name)
            setattr(one, name, theirs)
            setattr(other, name, ours)

    # ---- what leaves, and what comes

    def take_back(self, now_s: float) -> Iterator[TakeBackTask]:
        """Ask back what waits where it does not come soon, or would start before what should."""
        if not any(worker.queue for worker in self._workers()):
            return
        coming: dict[TaskWorker, set[TaskId]] = defaultdict(set)
        starting: dict[TaskWorker, _Queue] = defaultdict(list)
        for host, queue in self._inner.machine_plans():
            place = self._rows.places[host.name]
            tasks = self._coming(host, queue, _MOST_KEPT, now_s + _KEPT_S)
            coming[place.worker].update(task.task for task in tasks)
            if place.occupant is None:
                starting[place.worker] += tasks[:1]
        for worker in self._workers():
            ends = self._ends_on(worker)
            for each in starting[worker]:
                ends.add(each)
            first = {each.task for each in starting[worker]}
            for held in list(worker.queue):
                task, name = self._rows.row(held.task), held.task.id
                may_stay = task is not None and (name in first or ends.may_precede(task))
                if task is not None and may_stay and name in coming[worker]:
                    if name not in first:
                        ends.add(task)
                else:
                    yield TakeBackTask(name, worker.id, "planned anew")

    def queue(self, now_s: float) -> Iterator[EnqueueTask]:
        """More tasks for each machine that is busy, where they may wait there."""
        for host, queue in self._inner.machine_plans():
            place = self._rows.places[host.name]
            if place.occupant is not None:
                tasks = self._coming(host, queue, MOST_QUEUED, now_s + _AHEAD_S)
                yield from self._queue_at(place.worker, tasks, now_s)
        for worker in self._workers():
            self._n_given[worker.id] = len(worker.queue)
            for held in worker.queued.values():
                held.slot = self._planned_slot(held)

    def _queue_at(self, worker: TaskWorker, tasks: _Queue, now_s: float) -> Iterator[EnqueueTask]:
        ends = self._ends_on(worker)
        for held in worker.queue:
            if (queued := self._rows.row(held.task)) is not None:
                ends.add(queued)
        for task in tasks:
            served = self._rows.table.tasks[task.task]
            if any(held.task is served for held in worker.queue):
                continue
            if not self._rows.may_go(task) or not ends.may_precede(task):
                return
            position = sum(self._begins_s(held, now_s) <= task.start_s for held in worker.queue)
            if len(worker.queue) >= _most_at(worker) * (1 if position == len(worker.queue) else 2):
                return
            ends.add(task)
            yield EnqueueTask(task.task, worker.id, Form.CPU, position, self._inner.reason(task, now_s))
            self._rows.note_order(served)

    def _planned_slot(self, held: Assignment) -> int | None:
        """The core of its worker on which an attempt is planned, so that it runs there."""
        row = self._rows.row(held.task)
        place = None if row is None or row.host is None else self._rows.places.get(row.host.name)
        return place.slot if place is not None and place.worker is held.worker else None

    def _begins_s(self, held: Assignment, now_s: float) -> float:
        task = self._rows.row(held.task)
        return task.start_s if task is not None else now_s

    def _ends_on(self, worker: TaskWorker) -> _Ends:
        ends = _Ends()
        for held in worker.running.values():
            if (running := self._rows.row(held.task)) is not None:
                ends.add(running)
        return ends


class _Ends:
    """What the ends of some tasks make ready."""

    def __init__(self) -> None:
        self._n_ended: dict[DagTaskRecord, int] = defaultdict(int)
        #: Of what they make ready.
        self._highest: PriorityClass | None = None

    def add(self, task: DagTaskRecord) -> None:
        """This one ends, too."""
        dag = task.dag
        for number, _ in dag.dag.children[task.number]:
            child = dag.tasks[number]
            self._n_ended[child] += 1
            if self._n_ended[child] == child.n_parents_left:
                mine, highest = dag.priority_class, self._highest
                self._highest = mine if highest is None else min(mine, highest)

    def may_precede(self, task: DagTaskRecord) -> bool:
        """Whether nothing of as high a class becomes ready before this one starts."""
        return self._highest is None or self._highest > task.dag.priority_class


def _most_at(worker: TaskWorker) -> int:
    n_slots = len(worker.slots)
    return max(n_slots, min(MOST_QUEUED * n_slots, _MOST_AT_WORKER))


def _likeness(task: DagTaskRecord) -> object:
    """Equal where nothing but their names tells two tasks of a pool apart."""
    if task.state is not DagTaskState.IN_POOL:
        return task
    return task.dag, task.is_overdue, task.rank, task.row.tobytes(), task.ready_s.tobytes()
