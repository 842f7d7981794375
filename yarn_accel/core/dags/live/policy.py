"""A policy for DAGs behind the protocol of task policies: the object that simulations drive, driven live.

The inner policy plans; what it plans takes effect like this. A task starts by an order when its machine is
free in the account of this module, which then counts as started, as in a simulation. More tasks lie at a
machine that is busy, see `lying`, where no end there can make them the wrong ones: the ends of what is before
them on that worker make nothing ready, or nothing of as high a class. So a worker never starts by itself what
a successor of its last task would have come before; the successor's order follows from the report of the end.
Starts and ends from which nothing follows but that the next ones start make no new plan, until a worker has
begun half of what lay there.

A task is in one place: it is given to another machine once the worker from which it was asked back has said
that it did not start it. Events are applied when a decision is asked for, starts for which no slot is free
after the ends that free one, as a report may name them in any order. A start that finds no slot waits for
one; if the task ends first, it ran before what is in the slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from yarn_accel.core.dags.events import DagCancelled, DagPaused, DagSubmitted, MachineJoined
from yarn_accel.core.dags.live.expected_times import ExpectedTimes
from yarn_accel.core.dags.live.interrupting import choose_interrupted
from yarn_accel.core.dags.live.lying import LyingTasks
from yarn_accel.core.dags.live.own_makespans import MOST_ADMITTED, LiveDag, OwnMakespans
from yarn_accel.core.dags.live.slots import WorkerSlot, WorkerSlots, WorkerTable
from yarn_accel.core.dags.model import DagFacts, DagId, Machine, PriorityClass, SubmittedDag
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord, DagTaskState
from yarn_accel.core.tasks.commands import (
    Candidate,
    EndTask,
    StartTask,
    TaskCommand,
)
from yarn_accel.core.tasks.durations import DurationStore
from yarn_accel.core.tasks.events import (
    AppCancelled,
    AppFinished,
    AppPaused,
    AppSubmitted,
    Decide,
    EndReason,
    ResourceJoined,
    ResourceLeft,
    TaskEnded,
    TaskEvent,
    TasksReady,
    TaskStarted,
)
from yarn_accel.core.tasks.values import AppId, Form, ResourceId, TaskId

#: While something waits, plans are made anew so often, as what runs may take longer than expected.
_REPLAN_S = 1.0
_LEARN_S = 1.0


class LiveDagPolicy:
    """One policy for DAGs in a task service.

    Args:
        inner: the policy, new.
        durations: what is learned of tasks' times.
    """

    def __init__(self, inner: DagPolicy, durations: DurationStore) -> None:
        self._inner = inner
        inner.counts_moves = False
        self._table = WorkerTable()
        self._times = ExpectedTimes(durations, self._node_of)
        inner.state.seconds_matrix = self._times.matrix
        self._own = OwnMakespans(inner.state, self._times)
        self._dags: dict[AppId, LiveDag] = {}
        #: DAGs of which the inner policy has not heard yet, by their submission.
        self._waiting: dict[AppId, DagSubmitted] = {}
        #: Tasks that may be given to a worker: their predecessors are done, and they are nowhere.
        self._ready: set[TaskId] = set()
        self._lying = LyingTasks(inner, self._table, self._ready)
        self._inbox: list[TaskEvent] = []
        self._is_changed = False
        self._now_s = self._decided_s = self._learned_s = 0.0
        self._handlers: dict[type, Callable[[Any], None]] = {
            ResourceJoined: self._joined,
            ResourceLeft: self._left,
            AppSubmitted: self._submitted,
            AppPaused: self._paused,
            AppCancelled: self._cancelled,
            AppFinished: self._finished,
            TasksReady: self._tasks_ready,
            TaskStarted: self._started,
            TaskEnded: self._ended,
        }

    def apply(self, event: TaskEvent) -> tuple[TaskCommand, ...]:
        """Take one fact in; commands come from `Decide` alone."""
        if not isinstance(event, Decide):
            if type(event) in self._handlers:
                self._inbox.append(event)
            return ()
        self._now_s = event.now_s
        self._drain()
        self._admit_some()
        if not (self._is_changed or self._is_late()):
            return ()
        self._is_changed, self._decided_s = False, event.now_s
        self._refresh_times()
        self._inner.apply(event)
        self._own.note_admitted(self._dags)
        commands = tuple(self._commands())
        if not commands and self._is_stuck():
            # Times that are not as planned may put tasks of static plans before those that they wait for.
            for dag in self._inner.state.dags.values():
                self._inner.state.unplan_waiting(dag)
                for task in dag.pool:
                    self._inner.state.unplan(task)
            self._inner.apply(event)
            commands = tuple(self._commands())
        return commands

    def candidates(self, resource: ResourceId, form: Form) -> tuple[Candidate, ...]:
        """None: the reason of each start has the finish on each machine."""
        return ()

    def facts(self, app: AppId) -> DagFacts | None:
        """What is known of a DAG; None: it was never planned, as there was no machine yet."""
        dag = self._dags.get(app)
        if dag is None or dag.record is None:
            return None
        record = dag.record
        if DagId(app) not in self._inner.state.dags:
            return DagFacts(self._own.seconds(dag), record.slowdown, None, dag.n_moved)
        slowdown = self._inner.state.slowdowns(self._now_s)[app]
        return DagFacts(self._own.seconds(dag), slowdown, self._predicted_end_s(record), dag.n_moved)

    def own_makespan_s(self, app: AppId) -> float | None:
        """M_own of a DAG whose last task has just ended, with what is known by now; None: nobody knows."""
        dag = self._dags.get(app)
        self._learn_ends(app)
        # The first report of a worker may have that end: then no decision knows of its machines yet.
        joined = (each.spec for each in self._inbox if isinstance(each, ResourceJoined))
        new = [Machine(slot.machine) for spec in joined for slot in WorkerSlots(spec).slots]
        return None if dag is None else self._own.at_end(dag, new)

    def explain(self, task: TaskId) -> str:
        """Where a task that waits is planned, and why there; empty: nowhere."""
        record = self._record(task)
        if record is None or record.host is None or record.state is not DagTaskState.IN_POOL:
            return ""
        begins_s = max(0.0, record.start_s - self._now_s)
        reason = self._inner.reason(record, self._now_s)
        return f"planned on {record.host.name} in {begins_s:.3g} s: {reason}"

    def slowdowns(self) -> dict[str, float]:
        """SD by equation (3) of all DAGs now."""
        return self._inner.state.slowdowns(self._now_s)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        self._inner.validate()
        self._table.validate()
        for host in self._inner.state.machines:
            occupant = self._table.slots[host.name].occupant
            assert host.running is None or host.running.task == occupant, f"{host.name}: not what runs there"
        if not self._inbox:
            places = self._table.slot_of.keys() | self._table.lying.keys()
            assert not self._ready & places, "a task that waits is somewhere"

    def _is_stuck(self) -> bool:
        """Whether nothing runs or is about to, though it could."""
        table = self._table
        if table.slot_of or table.lying or not self._inner.state.machines:
            return False
        return any(task.task in self._ready for dag in self._inner.state.active() for task in dag.pool)

    def _is_late(self) -> bool:
        """Whether something waits longer than the plan says."""
        state = self._inner.state
        if self._now_s < self._decided_s + _REPLAN_S or not any(dag.pool for dag in state.dags.values()):
            return False
        if self._is_stuck():
            return True
        return any(host.running is not None and host.running.end_s < self._now_s for host in state.machines)

    # ---- facts

    def _drain(self) -> None:
        """Apply what happened; ends come before the starts to which they leave a slot."""
        events, self._inbox = deque(self._inbox), []
        has_quiet = False
        while events:
            event = events.popleft()
            if isinstance(event, TaskStarted) and self._is_crowded(event):
                end = next((each for each in events if self._leaves_slot(each, event.resource)), None)
                if end is None:
                    self._inbox.append(event)
                    continue
                events.remove(end)
                events.appendleft(event)
                event = end
            is_quiet = self._is_quiet(event)
            self._handlers[type(event)](event)
            has_quiet = has_quiet or is_quiet
            self._is_changed = self._is_changed or not is_quiet
        if has_quiet and not self._is_changed:
            self._is_changed = self._lying.is_short()

    def _is_quiet(self, event: TaskEvent) -> bool:
        """Whether nothing follows from it but that the next task of a worker starts."""
        if isinstance(event, TaskStarted):
            return True
        if not isinstance(event, TaskEnded) or event.reason is not EndReason.DONE:
            return False
        record = self._record(event.task)
        return record is not None and not record.dag.dag.children[record.number]

    def _is_crowded(self, event: TaskStarted) -> bool:
        """Whether a task started where all slots are taken."""
        worker = self._table.workers.get(event.resource)
        if worker is None or event.task in self._table.slot_of:
            return False
        return all(slot.occupant is not None for slot in worker.slots)

    def _leaves_slot(self, event: TaskEvent, worker: ResourceId) -> bool:
        if not isinstance(event, TaskEnded):
            return False
        slot = self._table.slot_of.get(event.task)
        return slot is not None and slot.worker.name == worker

    def _joined(self, event: ResourceJoined) -> None:
        self._left(ResourceLeft(event.spec.resource, event.now_s))
        for machine in self._table.join(event.spec):
            self._inner.apply(MachineJoined(machine, event.now_s))

    def _left(self, event: ResourceLeft) -> None:
        for machine in self._table.leave(event.resource):
            self._inner.apply(ResourceLeft(machine, event.now_s))

    def _submitted(self, event: AppSubmitted) -> None:
        submitted = event.dag
        if submitted is None or event.spec.app in self._dags:
            return
        self._dags[event.spec.app] = LiveDag(submitted)
        self._times.add(submitted)
        if len(submitted.done) == len(submitted.dag.tasks):
            return
        terms = submitted.terms
        self._waiting[event.spec.app] = DagSubmitted(
            DagId(event.spec.app),
            submitted.dag,
            terms.priority_class,
            submitted.arrival_s,
            submitted.done,
            terms.is_paused,
        )

    def _admit_some(self) -> None:
        """Let the inner policy hear of some DAGs that wait, high classes first, then in their order."""
        n_left = MOST_ADMITTED
        if not self._inner.state.machines and not self._table.slots:
            return
        for app, event in sorted(self._waiting.items(), key=lambda each: each[1].priority_class):
            if n_left <= 0:
                return
            self._admit(app)
            self._is_changed = True
            n_left -= len(event.dag.tasks)
        for live in self._dags.values():
            if n_left <= 0:
                return
            if live.record is not None and live.own_makespan_s is None:
                n_left -= self._own.compute(live)

    def _admit(self, app: str) -> None:
        event = self._waiting.pop(AppId(app), None)
        if event is not None:
            self._inner.apply(event)

    def _paused(self, event: AppPaused) -> None:
        waiting = self._waiting.get(event.app)
        if waiting is not None:
            self._waiting[event.app] = replace(waiting, is_paused=event.is_paused)
            return
        self._inner.apply(DagPaused(DagId(event.app), event.is_paused, event.now_s))

    def _cancelled(self, event: AppCancelled) -> None:
        dag = self._dags.get(event.app)
        if dag is not None:
            self._ready.difference_update(_task_ids(dag.submitted))
            if self._waiting.pop(event.app, None) is None:
                self._inner.apply(DagCancelled(DagId(event.app), event.now_s))

    def _finished(self, event: AppFinished) -> None:
        dag = self._dags.pop(event.app, None)
        if dag is not None:
            self._ready.difference_update(_task_ids(dag.submitted))
            self._times.remove(dag.submitted.dag.name)
            self._waiting.pop(event.app, None)
            if DagId(event.app) in self._inner.state.dags:
                self._inner.apply(DagCancelled(DagId(event.app), event.now_s))

    def _tasks_ready(self, event: TasksReady) -> None:
        table = self._table
        if event.app in self._dags:
            self._ready.update(
                task for task in event.tasks if task not in table.slot_of and task not in table.lying
            )

    def _started(self, event: TaskStarted) -> None:
        slot = self._table.slot_of.get(event.task)
        if slot is not None:
            slot.started_s = event.now_s
            return
        worker = self._table.workers.get(event.resource)
        if worker is None:
            return
        self._occupy(self._free_slot(worker, event.task), event.task, event.now_s)

    def _occupy(self, slot: WorkerSlot, task: TaskId, now_s: float) -> None:
        self._admit_dag_of(task, now_s)
        self._ready.discard(task)
        record = self._record(task)
        expected_s = None
        self._inner.apply(TaskStarted(task, slot.machine, Form.CPU, now_s))
        if record is not None and record.state is DagTaskState.RUNS:
            expected_s = record.end_s - now_s
        self._table.occupy(slot, task, now_s, expected_s)

    def _admit_dag_of(self, task: TaskId, now_s: float) -> None:
        """A task runs: its DAG counts now."""
        self._admit(task.partition("/")[0])
        self._inner.admit(now_s)

    def _free_slot(self, worker: WorkerSlots, task: TaskId) -> WorkerSlot:
        """A free slot of a worker, the planned one where it is."""
        record = self._record(task)
        planned = record.host.name if record is not None and record.host is not None else None
        free = [slot for slot in worker.slots if slot.occupant is None]
        return next((slot for slot in free if slot.machine == planned), free[0])

    def _record(self, task: TaskId) -> DagTaskRecord | None:
        try:
            return self._inner.state.task(task)
        except KeyError:
            return None

    def _ended(self, event: TaskEnded) -> None:
        if event.reason is EndReason.TAKEN_BACK:
            if event.task in self._table.lying:
                self._ready.add(event.task)
                self._table.forget_lying(event.task)
                live = self._dags.get(AppId(event.task.partition("/")[0]))
                if live is not None:
                    live.n_moved += 1
                if (record := self._record(event.task)) is not None:
                    record.n_moves += 1
            return
        record, slot = self._record(event.task), self._table.vacate(event.task)
        if slot is None:
            self._end_crowded(event)
            return
        if event.reason is EndReason.DONE and record is not None:
            self._learn(event, slot.worker, slot.started_s, record)
        self._inner.apply(TaskEnded(event.task, slot.machine, event.reason, event.now_s))

    def _end_crowded(self, event: TaskEnded) -> None:
        """A task ended for whose start no slot was free: what was ordered into the slot runs after it.

        So it is when a worker starts a task of its queue just before it hears what is to run instead.
        """
        start = next((each for each in self._inbox if _is_start_of(each, event.task)), None)
        if start is None:
            return
        self._inbox.remove(start)
        worker = self._table.workers.get(event.resource)
        if worker is None or event.reason is not EndReason.DONE:
            return
        slot = max(worker.slots, key=lambda each: (each.occupant is None, each.started_s))
        machine, next_task = slot.machine, slot.occupant
        self._admit_dag_of(event.task, event.now_s)
        if next_task is not None:
            self._inner.apply(TaskEnded(next_task, machine, EndReason.LOST, event.now_s))
        self._inner.apply(TaskStarted(event.task, machine, Form.CPU, start.now_s))
        self._inner.apply(TaskEnded(event.task, machine, EndReason.DONE, event.now_s))
        if next_task is not None:
            slot.started_s = event.now_s
            self._inner.apply(TaskStarted(next_task, machine, Form.CPU, event.now_s))

    def _learn_ends(self, app: AppId) -> None:
        """Learn from the ends of a DAG's tasks that are not applied yet; once."""
        for at, event in enumerate(self._inbox):
            if isinstance(event, TaskEnded) and event.measured is not None and event.ran_s is not None:
                record, worker = self._record(event.task), self._table.workers.get(event.resource)
                if record is not None and record.dag.dag_id == DagId(app) and worker is not None:
                    self._learn(event, worker, event.now_s - event.ran_s, record)
                    self._inbox[at] = replace(event, measured=None)

    def _learn(self, event: TaskEnded, worker: WorkerSlots, started_s: float, record: DagTaskRecord) -> None:
        if event.ran_s is not None and event.measured is None:
            return  # its output was there already
        transfers = sum(n_bytes for _, n_bytes in record.dag.dag.parents[record.number])
        read_s = event.measured.read_s if event.measured is not None and transfers else 0.0
        # By the worker's own clock: one report may say both that a task began and that it has ended.
        ran_s = event.now_s - started_s if event.ran_s is None else event.ran_s
        happened_s = max(0.0, ran_s - read_s)
        self._times.learn(record.dag.dag.name, record.number, worker.node, happened_s, record.seconds or None)

    def _refresh_times(self) -> None:
        """Plan with what was learned; not at every end, as it takes time proportional to the tasks."""
        state = self._inner.state
        if state.machines and self._now_s >= self._learned_s + _LEARN_S:
            names = self._times.take_changed()
            if names:
                self._learned_s = self._now_s
                state.refresh_seconds([dag for dag in state.dags.values() if dag.dag_id in names])

    def _predicted_end_s(self, record: DagRecord) -> float | None:
        """What runs or is planned, with the longest way behind it; None where nothing is planned."""
        now_s = self._now_s
        placed = (task for task in record.tasks if task.state in (DagTaskState.RUNS, DagTaskState.IN_POOL))
        ends = [max(now_s, task.start_s + task.rank) for task in placed if task.host is not None]
        return max(ends, default=None)

    def _node_of(self, machine: ResourceId) -> str:
        slot = self._table.slots.get(machine)
        return slot.worker.node if slot is not None else ""

    # ---- orders

    def _commands(self) -> Iterator[TaskCommand]:
        self._lying.keep(self._now_s)
        yield from self._lying.take_back(self._now_s)
        for host, queue in self._inner.machine_plans():
            slot = self._table.slots[host.name]
            if slot.occupant is None:
                head = self._lying.next(host, queue)
                if head is not None and head.task in self._ready:
                    yield self._start(slot, head)
        yield from self._lying.queue(self._now_s)
        yield from self._interrupt()

    def _start(self, slot: WorkerSlot, task: DagTaskRecord) -> StartTask:
        reason = self._inner.reason(task, self._now_s)
        self._occupy(slot, task.task, self._now_s)
        return StartTask(task.task, slot.worker.name, Form.CPU, reason, slot.expected_s)

    def _interrupt(self) -> Iterator[TaskCommand]:
        """End what gives way to preemptive tasks that no machine takes soon."""
        allowed = {app for app, live in self._dags.items() if live.submitted.terms.may_interrupt}
        waiting = [
            task
            for dag in self._inner.state.active()
            if allowed and dag.priority_class is PriorityClass.PREEMPTIVE
            for task in dag.pool
            if task.task in self._ready or task.task in self._table.lying
        ]
        if not waiting:
            return
        running = [
            (slot, record)
            for slot in self._table.slots.values()
            if slot.occupant is not None and (record := self._record(slot.occupant)) is not None
        ]
        for slot, record, for_task in choose_interrupted(waiting, running, allowed, self._now_s):
            slot.is_ending = True
            record.end_s = self._now_s
            yield EndTask(record.task, slot.worker.name, f"gives way to {for_task.task}")


def _is_start_of(event: TaskEvent, task: TaskId) -> bool:
    return isinstance(event, TaskStarted) and event.task == task


def _task_ids(submitted: SubmittedDag) -> Iterator[TaskId]:
    return (TaskId(f"{submitted.dag.name}/{task.task}") for task in submitted.dag.tasks)
