"""What lies at workers: tasks that they start by themselves, without waiting for an order.

One task lies at each machine that is busy, and of short ones as many as are to start within `_AHEAD_S`: an
order that goes through the journal takes longer than they do. What lies must be right whatever ends before it
on its worker, so none lies behind ends that make something ready of as high a class. It stays as long as it
comes soon by its worker's plan; of equal tasks, those that lie there are the ones that come.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np

from yarn_accel.core.dags.live.slots import WorkerSlot, WorkerSlots, WorkerTable
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.state import DagTaskRecord, DagTaskState, MachineRecord
from yarn_accel.core.tasks.commands import EnqueueTask, TakeBackTask
from yarn_accel.core.tasks.values import Form, TaskId

#: Of each machine, and of a worker with several; twice as many where what comes goes before what lies.
MOST_LYING, _MOST_AT_WORKER = 16, 48
#: What starts later by the plan does not lie at a worker yet, unless it is the next.
_AHEAD_S = 0.25
#: What lies stays as one of so many that come next, so soon: a new one before it is no reason to leave.
_MOST_KEPT, _KEPT_S = 2 * MOST_LYING, 2 * _AHEAD_S
_TO_START = (DagTaskState.IN_POOL, DagTaskState.WAITS)

_Queue = list[DagTaskRecord]


class LyingTasks:
    """Decides what lies where, by the plan.

    Args:
        inner: the policy that plans.
        table: where each task is.
        ready: tasks that may be given to a worker, and are nowhere.
    """

    def __init__(self, inner: DagPolicy, table: WorkerTable, ready: set[TaskId]) -> None:
        self._inner = inner
        self._table = table
        self._ready = ready

    def next(self, host: MachineRecord, queue: _Queue) -> DagTaskRecord | None:
        """The next task of a machine; one that the service holds back for a while is left out."""
        return next(iter(self._coming(host, queue, 1, 0.0)), None)

    def _coming(self, host: MachineRecord, queue: _Queue, most: int, until_s: float) -> _Queue:
        """The next tasks of a machine: the first one, and others that start by then."""
        found: _Queue = []
        for task in queue:
            if task.host is not host or task.state not in _TO_START:
                continue
            if found and task.start_s > until_s:
                break
            is_waiting = task.state is DagTaskState.WAITS
            if is_waiting or task.task in self._ready or task.task in self._table.lying:
                found.append(task)
                # Nothing goes to a worker before what waits for others.
                if is_waiting or len(found) == most:
                    break
        return found

    def is_short(self) -> bool:
        """Whether a machine has nothing to do, or a worker less than half of what it was given."""
        return any(
            2 * len(worker.queue) < worker.n_given or any(slot.occupant is None for slot in worker.slots)
            for worker in self._table.workers.values()
        )

    # ---- equal tasks

    def keep(self, now_s: float) -> None:
        """Let what lies at a worker come soon there, where the plan has tasks there that are equal to it."""
        plans = dict(self._inner.machine_plans())
        hosts: dict[WorkerSlots, list[MachineRecord]] = defaultdict(list)
        for host in plans:
            worker = self._table.slots[host.name].worker
            if worker.queue:
                hosts[worker].append(host)
        for worker, mine in hosts.items():
            each_coming = (self._coming(host, plans[host], MOST_LYING, now_s + _AHEAD_S) for host in mine)
            tasks = [task for coming in each_coming for task in coming]
            names = {task.task for task in tasks}
            strays: dict[object, deque[DagTaskRecord]] = defaultdict(deque)
            for name in worker.queue:
                task = self._record(name)
                if name not in names and task is not None and task.host in plans:
                    strays[_likeness(task)].append(task)
            here = set(worker.queue) if strays else set()
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
        for each in (one, other):
            self._inner.state.table.plan(each.dag.dag_id, each.number, each.start_s, each.seconds)

    # ---- what leaves, and what comes

    def take_back(self, now_s: float) -> Iterator[TakeBackTask]:
        """Ask back what lies where it does not come soon, or would start before what should."""
        if not any(worker.queue for worker in self._table.workers.values()):
            return
        coming: dict[WorkerSlots, set[TaskId]] = defaultdict(set)
        starting: dict[WorkerSlots, _Queue] = defaultdict(list)
        for host, queue in self._inner.machine_plans():
            slot = self._table.slots[host.name]
            tasks = self._coming(host, queue, _MOST_KEPT, now_s + _KEPT_S)
            coming[slot.worker].update(task.task for task in tasks)
            if slot.occupant is None:
                starting[slot.worker] += tasks[:1]
        for worker in self._table.workers.values():
            ends = self._ends_on(worker)
            for each in starting[worker]:
                ends.add(each)
            first = {each.task for each in starting[worker]}
            for name in list(worker.queue):
                task = self._record(name)
                may_stay = task is not None and (name in first or ends.may_precede(task))
                if task is not None and may_stay and name in coming[worker]:
                    if name not in first:
                        ends.add(task)
                else:
                    self._table.ask_back(name)
                    yield TakeBackTask(name, worker.name, "planned anew")

    def queue(self, now_s: float) -> Iterator[EnqueueTask]:
        """More tasks for each machine that is busy, where they may lie there."""
        for host, queue in self._inner.machine_plans():
            slot = self._table.slots[host.name]
            if slot.occupant is not None:
                tasks = self._coming(host, queue, MOST_LYING, now_s + _AHEAD_S)
                yield from self._queue_at(slot, tasks, now_s)
        for worker in self._table.workers.values():
            worker.n_given = len(worker.queue)

    def _queue_at(self, slot: WorkerSlot, tasks: _Queue, now_s: float) -> Iterator[EnqueueTask]:
        worker = slot.worker
        ends = self._ends_on(worker)
        for name in worker.queue:
            if (lying := self._record(name)) is not None:
                ends.add(lying)
        for task in tasks:
            if task.task in worker.queue:
                continue
            if task.task not in self._ready or not ends.may_precede(task):
                return
            position = sum(self._begins_s(each, now_s) <= task.start_s for each in worker.queue)
            if len(worker.queue) >= _most_at(worker) * (1 if position == len(worker.queue) else 2):
                return
            ends.add(task)
            self._ready.discard(task.task)
            self._table.lay(worker, task.task, position)
            yield EnqueueTask(task.task, worker.name, Form.CPU, position, self._reason(task, now_s))

    def _reason(self, task: DagTaskRecord, now_s: float) -> str:
        if task.host is not None and task.finish_s[task.host.column] != task.end_s:
            # Policies note the finish on all machines for the first tasks of their queues alone.
            task.finish_s.fill(np.nan)
            task.finish_s[task.host.column] = task.end_s
        return self._inner.reason(task, now_s)

    def _begins_s(self, name: TaskId, now_s: float) -> float:
        task = self._record(name)
        return task.start_s if task is not None else now_s

    def _ends_on(self, worker: WorkerSlots) -> _Ends:
        ends = _Ends()
        for slot in worker.slots:
            running = self._record(slot.occupant) if slot.occupant is not None else None
            if running is not None:
                ends.add(running)
        return ends

    def _record(self, name: TaskId) -> DagTaskRecord | None:
        try:
            return self._inner.state.task(name)
        except KeyError:
            return None


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


def _most_at(worker: WorkerSlots) -> int:
    n_slots = len(worker.slots)
    return max(n_slots, min(MOST_LYING * n_slots, _MOST_AT_WORKER))


def _likeness(task: DagTaskRecord) -> object:
    """Equal where nothing but their names tells two tasks of a pool apart."""
    if task.state is not DagTaskState.IN_POOL:
        return task
    return task.dag, task.is_overdue, task.rank, task.row.tobytes(), task.ready_s.tobytes()
