"""The one state of the world for tasks: applications, tasks, attempts and workers, with their indexes.

Services, simulations and agents change a `TaskTable` by its operations, and policies read it. A service does
so by the records of its journal (`core.tasks.service.journaled_table`), so a replay makes the same table.
What workers say again by themselves is in no journal: their sizes, their I/O, what began.

*Ready* by application, and applications by priority and class: GPU only, CPU only, mixed (HDAS 2.1.1).
*Open* are the workers where something may have become possible since a policy last looked, so a decision
costs nothing for full ones. *Unexpected* are attempts that began without an order to begin now; a policy has
yet to say what it expects of them. *Changed* are the tasks of DAGs that a policy has yet to look at again, as
they are elsewhere or in another state than before. A policy without all three looks at everything.

A task that becomes ready is offered to policies with `announce`, at the end of an event: in the order of the
times of these, and in each in the order in which the tasks became ready.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush

from yarn_accel.core.dags.model import DoneTask, SubmittedDag
from yarn_accel.core.tasks.applications import AppDefinition, TaskDefinition
from yarn_accel.core.tasks.attempt_orders import AttemptId
from yarn_accel.core.tasks.commands import PLACING, EndTask, EnqueueTask, StartTask, TaskCommand
from yarn_accel.core.tasks.events import EndReason, IoSampled
from yarn_accel.core.tasks.records import (
    Assignment,
    ChosenRule,
    Drop,
    PriorityLevel,
    ServedApp,
    ServedTask,
    TaskState,
    TaskWorker,
    by_order,
)
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceId, ResourceSpec, TaskId

#: To start now, and not to wait in a worker's queue.
TO_START = -1
_WITHOUT_PROGRAM = TaskDefinition(TaskId(""))
_Probe = tuple[AppId, Form, str]


class TaskTable:
    """The world as it is known, and as orders are to make it.

    Attributes:
        resources: the workers that may be given something.
        has_queues: whether full workers are of interest, too, since tasks may be queued there.
        levels: the applications that have ready tasks, by falling priority.
        totals: cores, GPUs and bytes of memory of all `resources`.
        node_kinds: kind of accelerator, GPUs and bandwidth -> how many of `resources`.
        accelerators: the kinds that there were so far.
        n_kind_changes: so often these two changed.
        n_opened: so many applications were opened so far.
        unexpected, changed: see above; the last changed is the last.
        probes: attempts that run to be measured; `quiet_workers` start nothing else meanwhile, and
            `probe_news` is what of this the last pass went by.
        n_queued: tasks that wait at workers.
        chosen_rule: of a policy that has several; None: it did not choose yet.
    """

    def __init__(self, *, has_queues: bool = False) -> None:
        self.has_queues = has_queues
        self.apps: dict[AppId, ServedApp] = {}
        self.tasks: dict[TaskId, ServedTask] = {}
        self.workers: dict[ResourceId, TaskWorker] = {}
        self.resources: dict[ResourceId, TaskWorker] = {}
        self.levels: list[PriorityLevel] = []
        self.totals = Counter[str]()
        self.node_kinds = Counter[tuple[str, int, float]]()
        self.accelerators: dict[str, None] = {}
        self.n_kind_changes = 0
        self.n_opened = 0
        self.unexpected: dict[TaskId, Assignment] = {}
        self.changed: dict[TaskId, ServedTask] = {}
        self.probes: dict[TaskId, Assignment] = {}
        self.quiet_workers: set[ResourceId] = set()
        self.probe_news: tuple[frozenset[TaskId], frozenset[_Probe]] = (frozenset(), frozenset())
        self.n_queued = 0
        self.chosen_rule: ChosenRule | None = None
        self._open: set[ResourceId] = set()
        self._entering: dict[AppId, list[ServedTask]] = {}
        self._held_back: list[tuple[float, TaskId]] = []

    # ---- what a policy asks

    def open_resources(self) -> list[TaskWorker]:
        """Take the open workers, by id; each is open again once an event frees something there."""
        found = [self.resources[name] for name in sorted(self._open)]
        self._open.clear()
        return found

    def open_all(self) -> None:
        """Look at every worker again that may take something: more became possible than before."""
        if self.has_queues:
            self._open.update(self.resources)
        else:
            self.open_free()

    def open_free(self) -> None:
        """Look at every worker with a free core again: more can start than before."""
        self._open.update(name for name, each in self.resources.items() if each.free_cores > 0)

    def open(self, worker: TaskWorker) -> None:
        """Look at this worker again."""
        self._open.add(worker.id)

    def next_ready(self, app: ServedApp) -> ServedTask:
        """Find the next of an application's ready tasks; there is one."""
        ready, heap = app.ready, app.heap
        while True:
            key = heap[0]
            if ready.get(key[2]) == key:
                return self.tasks[key[2]]
            heappop(heap)

    def unmeasured(self) -> list[tuple[ServedApp, Form, str]]:
        """List what waits and was never measured: application, form, kind of accelerator."""
        accelerators = sorted({accelerator for accelerator, gpus, _ in self.node_kinds if gpus})
        found = []
        for level in self.levels:
            for app in (*level.gpu_only, *level.cpu_only, *level.mixed):
                beliefs = app.beliefs
                if beliefs.is_complete:
                    continue
                if beliefs.cpu is None and app.cpu_demand is not None:
                    found.append((app, Form.CPU, ""))
                if app.gpu_demand is not None:
                    found += [(app, Form.GPU, each) for each in accelerators if beliefs.gpu.get(each) is None]
        return found

    # ---- applications

    def submit(self, spec: AppSpec, now_s: float) -> ServedApp:
        """Add an application without programs, as in a simulation; its tasks follow."""
        app = self.apps[spec.app] = ServedApp(AppDefinition(spec, {}, ()))
        self.open_app(app, now_s)
        return app

    def add_tasks(self, app: ServedApp, names: Iterable[TaskId]) -> None:
        """Add tasks without programs to an application, which are ready; they share one definition."""
        tasks = [
            ServedTask(_WITHOUT_PROGRAM, app, number, TaskState.READY, id=name)
            for number, name in enumerate(names, len(app.tasks))
        ]
        app.tasks += tasks
        app.counts[TaskState.READY] += len(tasks)
        self.tasks.update((each.id, each) for each in tasks)
        self._entering.setdefault(app.id, []).extend(tasks)

    def take_changed(self) -> list[ServedTask]:
        """Take the changed tasks, the last changed last."""
        changed = list(self.changed.values())
        self.changed.clear()
        return changed

    def remove_task(self, task: ServedTask) -> None:
        """Remove a task that no worker has: it will not run here."""
        if task.id in task.app.ready:
            self._unready(task.app, task.id)
        if task in (entering := self._entering.get(task.app.id, [])):
            entering.remove(task)
        task.app.counts[task.state] -= 1
        task.app.tasks.remove(task)
        del self.tasks[task.id]

    def open_app(self, app: ServedApp, now_s: float, dag: SubmittedDag | None = None) -> None:
        """Let policies plan an application from now on."""
        app.start_s, app.order, app.dag = now_s, (now_s, app.id), dag
        self.n_opened += 1

    def set_paused(self, app: ServedApp, is_paused: bool, now_s: float) -> None:
        """Let nothing of a DAG start from now on, or let it go on."""
        app.is_paused = is_paused
        if not is_paused:
            app.resumed_s = now_s

    def set_counts(self, app: ServedApp, n_alloc: int, n_gpu: int, start_s: float) -> None:
        """Note what the whole cluster knows of an application of which only a part is here."""
        app.n_alloc, app.n_gpu = n_alloc, n_gpu
        if app.start_s != start_s:
            queue = self._level(app.spec.priority).queue_of(app) if app.ready else None
            if queue is not None:
                queue.remove(app)
            app.start_s, app.order = start_s, (start_s, app.id)
            if queue is not None:
                insort(queue, app, key=by_order)

    def end_app(self, app: ServedApp, error: str) -> None:
        """End an application before all of its tasks did: what waits is cancelled, the rest is to leave."""
        app.is_over, app.error = True, error
        self._entering.pop(app.id, None)
        if app.ready:
            self._leave(app)
            app.ready.clear()
            app.heap.clear()
        for task in app.tasks:
            if task.assignment is not None:
                task.assignment.worker.drop(task.assignment, Drop.OVER)
            elif task.state in (TaskState.WAITING, TaskState.READY):
                task.move(TaskState.CANCELLED)

    def remove_app(self, app: ServedApp) -> None:
        """Forget an application of which nothing is left."""
        del self.apps[app.id]
        for task in app.tasks:
            del self.tasks[task.id]

    # ---- tasks that are ready

    def make_ready(self, task: ServedTask) -> None:
        """Make a task ready; policies may place it from the next `announce` on."""
        task.move(TaskState.READY)
        self.enter(task)

    def enter(self, task: ServedTask) -> None:
        """Offer a ready task with the next `announce`."""
        self._entering.setdefault(task.app.id, []).append(task)

    def announce(self, now_s: float) -> None:
        """Offer what became ready."""
        if not self._entering:
            return
        entering, self._entering = self._entering, {}
        for tasks in entering.values():
            if tasks:
                self._offer(tasks[0].app, tasks, now_s)

    @property
    def has_entering(self) -> bool:
        """Something became ready since the last `announce`."""
        return bool(self._entering)

    def offer_all_ready(self, app: ServedApp) -> None:
        """Offer all ready tasks of an application of an earlier master with the next `announce`."""
        if ready := [task for task in app.tasks if task.state is TaskState.READY]:
            self._entering[app.id] = ready

    def forget_entering(self) -> None:
        """Offer nothing of what became ready, as where a journal is replayed."""
        self._entering.clear()

    def hold_back(self, task: ServedTask, until_s: float) -> None:
        """Offer a ready task no more until then."""
        if task.id in task.app.ready:
            self._unready(task.app, task.id)
        heapq.heappush(self._held_back, (until_s, task.id))

    def offer_held_back(self, now_s: float) -> None:
        """Offer the tasks with the next `announce` whose time has come."""
        while self._held_back and self._held_back[0][0] <= now_s:
            task = self.tasks.get(heapq.heappop(self._held_back)[1])
            if task is not None and task.state is TaskState.READY:
                self.enter(task)

    def _offer(self, app: ServedApp, tasks: list[ServedTask], now_s: float) -> None:
        if app.is_over:
            return
        was_empty = not app.ready
        fresh = [
            (now_s, index, task.id)
            for index, task in enumerate(tasks)
            if task.id not in app.ready and task.assignment is None
        ]
        app.ready.update((key[2], key) for key in fresh)
        if app.dag is not None:
            for key in fresh:
                self._touch(self.tasks[key[2]])
        if len(fresh) > 8 and len(fresh) > len(app.heap) // 8:
            app.heap += fresh
            heapify(app.heap)
        else:
            for key in fresh:
                heappush(app.heap, key)
        if was_empty and app.ready:
            self._begin_waiting(app, now_s)
            insort(self._level(app.spec.priority).queue_of(app), app, key=by_order)

    def _begin_waiting(self, app: ServedApp, now_s: float) -> None:
        """Its first task waits, and any worker may take it."""
        app.ready_since_s = max(now_s, app.start_s)
        self.open_all()

    def _unready(self, app: ServedApp, task: TaskId) -> None:
        if app.ready.pop(task, None) is not None and not app.ready:
            self._leave(app)
            app.heap.clear()

    def _level(self, priority: int) -> PriorityLevel:
        for level in self.levels:
            if level.priority == priority:
                return level
        level = PriorityLevel(priority)
        insort(self.levels, level, key=lambda each: -each.priority)
        return level

    def _leave(self, app: ServedApp) -> None:
        level = self._level(app.spec.priority)
        level.queue_of(app).remove(app)
        if not (level.gpu_only or level.cpu_only or level.mixed):
            self.levels.remove(level)

    # ---- attempts

    def enact(self, order: TaskCommand, now_s: float) -> None:
        """Make an order true where no journal has to have it first."""
        task = self.tasks[order.task]
        if isinstance(order, PLACING):
            worker, demand = self.workers[order.resource], task.app.demand(order.form)
            assert demand is not None
            position = order.position if isinstance(order, EnqueueTask) else TO_START
            predicted_s = order.predicted_s if isinstance(order, StartTask) else None
            assignment = Assignment(
                task,
                task.n_attempts,
                AttemptId(task.id),
                worker,
                order.form,
                demand,
                position == TO_START,
                order.reason,
                predicted_s=predicted_s,
            )
            self.assign(assignment, position, now_s)
        elif (held := task.assignment) is not None:
            held.worker.drop(held, Drop.END if isinstance(order, EndTask) else Drop.TAKE_BACK)

    def assign(self, assignment: Assignment, position: int, now_s: float, *, is_counted: bool = True) -> None:
        """Give an attempt to a worker: to start now (`TO_START`), or at a position of its queue."""
        task = assignment.task
        task.assignment = assignment
        task.n_attempts = assignment.number + 1
        task.move(TaskState.QUEUED)
        assignment.worker.add(assignment, position)
        if is_counted and not assignment.is_counted:
            self._count(assignment, position, now_s)

    def reserve(self, assignment: Assignment, position: int, now_s: float) -> None:
        """Count an attempt in its place until `assign` gives it that place, or `release` takes it away."""
        assignment.task.assignment = assignment
        self._count(assignment, position, now_s)

    def release(self, assignment: Assignment, now_s: float) -> None:
        """Free a reserved place; its task is ready, but not offered."""
        assignment.task.assignment = None
        self._end(assignment, EndReason.LOST, now_s)

    def expect_unordered(self, assignment: Assignment, now_s: float) -> None:
        """Count an attempt as begun that was given to another worker than a policy wanted."""
        task = assignment.task
        if not task.app.ready:
            self._begin_waiting(task.app, now_s)
        self.unexpected[task.id] = assignment
        assignment.in_sample = assignment.is_sampled
        assignment.has_begun = True

    def adopt(self, task: ServedTask, worker: TaskWorker, form: Form, now_s: float) -> None:
        """Take note of a task that runs where no order put it."""
        demand = task.app.demand(form)
        assert demand is not None
        held = Assignment(task, task.n_attempts, AttemptId(task.id), worker, form, demand, True, "")
        self.assign(held, TO_START, now_s, is_counted=False)
        self.begin(held, now_s, now_s)

    def begin(self, assignment: Assignment, started_s: float, now_s: float) -> None:
        """Take note of an attempt that its worker began at `started_s`, and reports now."""
        worker = assignment.worker
        assignment.started_s = started_s
        if assignment.drop is Drop.TAKE_BACK:
            worker.keep(assignment)
        elif not assignment.is_start and assignment.drop is None:
            worker.start(assignment)
        assignment.task.move(TaskState.RUNNING)
        if assignment.is_counted or assignment.drop is None:
            self.note_start(assignment, now_s)

    def note_start(self, assignment: Assignment, now_s: float) -> None:
        """Count an attempt as running: its worker began it, or an earlier master had ordered it to."""
        task = assignment.task
        if not assignment.is_counted:
            if not task.app.ready:
                self._begin_waiting(task.app, now_s)
            self._count(assignment, TO_START, now_s)
            self.unexpected[task.id] = assignment
            assignment.in_sample = assignment.is_sampled
        elif assignment.is_queued:
            self.start_queued(assignment, now_s)
            assignment.in_sample = assignment.is_sampled
            self.open(assignment.worker)
        assignment.has_begun = True
        assignment.reads_until_s += now_s - assignment.since_s
        assignment.since_s = now_s
        assignment.in_sample = assignment.in_sample and assignment.is_sampled
        if task.app.dag is not None:
            self._touch(task)

    def start_queued(self, assignment: Assignment, now_s: float) -> None:
        """Count a queued attempt as running: it fits now, so its worker starts it by itself."""
        self._dequeue(assignment)
        assignment.is_queued = False
        assignment.since_s = now_s
        self._occupy(assignment, 1)
        self.unexpected[assignment.task.id] = assignment

    def probe(self, assignment: Assignment) -> None:
        """Have an attempt measured: its worker starts nothing else for a while."""
        self.probes[assignment.task.id] = assignment
        self.quiet_workers.add(assignment.worker.id)
        is_gpu = assignment.form is Form.GPU
        assignment.app.probes.add(assignment.worker.spec.accelerator if is_gpu else None)

    def settle(
        self, assignment: Assignment, end: EndReason, now_s: float, error: str = "", has_failed: bool = False
    ) -> None:
        """Settle an attempt that ended; `has_failed`: its task may not try again."""
        task, app = assignment.task, assignment.app
        assignment.worker.discard(assignment)
        task.assignment = None
        was_counted = assignment.is_counted
        if was_counted:
            self._end(assignment, end, now_s)
        elif app.dag is not None:
            self._touch(task)
        if end is EndReason.DONE:
            self._complete(assignment, now_s)
            return
        if was_counted and end is EndReason.TAKEN_BACK:
            task.n_moves += 1
            app.n_moved += 1
        elif not assignment.is_queued:
            task.ready_s = now_s
        if assignment.drop is Drop.END and end is EndReason.CANCELLED:
            task.n_interrupts += 1
            app.n_interrupted += 1
        task.error = error or task.error
        if has_failed:
            task.move(TaskState.FAILED)
        elif app.is_over:
            task.move(TaskState.CANCELLED)
        else:
            self.make_ready(task)
            if was_counted and end is EndReason.TAKEN_BACK:
                self._offer(app, [task], float("-inf"))  # it keeps its turn

    def _complete(self, assignment: Assignment, now_s: float) -> None:
        task = assignment.task
        if task.app.dag is not None:
            task.done = DoneTask(assignment.place, assignment.slot_s, now_s)
        task.move(TaskState.DONE)
        self.release_successors(task, now_s)

    def release_successors(self, task: ServedTask, now_s: float) -> None:
        """Make the tasks ready that wait for this one alone, which is done."""
        for after in task.successors or ():
            after.n_missing -= 1
            if not after.n_missing and after.state is TaskState.WAITING:
                after.ready_s = now_s
                self.make_ready(after)

    def _end(self, assignment: Assignment, end: EndReason, now_s: float) -> None:
        app, worker = assignment.app, assignment.worker
        self._discount(assignment)
        self._open.add(worker.id)
        if not assignment.is_queued:
            assignment.ended_s = now_s
            worker.ended.append(assignment)
        if end in (EndReason.TAKEN_BACK, EndReason.LOST) and not assignment.has_begun:
            app.n_alloc -= 1
            app.n_gpu -= assignment.form is Form.GPU

    # ---- workers

    def add_worker(self, name: ResourceId, incarnation: str = "") -> TaskWorker:
        """Add a worker, which gets nothing before it `join`s."""
        worker = self.workers[name] = TaskWorker(name, incarnation)
        return worker

    def join(self, worker: TaskWorker, spec: ResourceSpec) -> None:
        """Let policies use a worker, which has reported."""
        worker.spec = spec
        worker.free_cores, worker.free_gpus = spec.cores, spec.gpus
        worker.free_memory_bytes, worker.free_server_gpus = spec.memory_bytes, spec.server_gpus
        worker.slots = [None] * spec.cores
        self.resources[worker.id] = worker
        self._count_spec(spec, 1)
        self._open.add(worker.id)

    def retire(self, worker: TaskWorker) -> None:
        """Give a worker nothing any more; what it had was settled, or is not counted any longer."""
        if self.resources.pop(worker.id, None) is None:
            return
        for assignment in [*worker.running.values(), *worker.queued.values()]:
            self._discount(assignment)
        self._open.discard(worker.id)
        self._count_spec(worker.spec, -1)

    def forget_worker(self, worker: TaskWorker) -> None:
        """Forget a worker; the tasks that it had are ready, but not offered."""
        self.retire(worker)
        for assignment in list(worker.held()):
            assignment.task.assignment = None
            assignment.task.move(TaskState.READY)
        del self.workers[worker.id]

    def set_server_gpus(self, worker: TaskWorker, n_gpus: int) -> None:
        """Let a worker's tasks use so many GPUs of a pipeline server from now on; what runs there goes on."""
        worker.free_server_gpus += n_gpus - worker.spec.server_gpus
        self._count_spec(worker.spec, -1)
        worker.spec = replace(worker.spec, server_gpus=n_gpus)
        self._count_spec(worker.spec, 1)
        self._open.add(worker.id)

    def sample(self, worker: TaskWorker, sample: IoSampled) -> None:
        """Take in a node's I/O; an older sample than the last is ignored."""
        if worker.sample is None or sample.sampled_s >= worker.sample.sampled_s:
            worker.take_sample(sample)

    def _count_spec(self, spec: ResourceSpec, sign: int) -> None:
        self.totals["cores"] += sign * spec.cores
        self.totals["gpus"] += sign * spec.all_gpus
        self.totals["memory_bytes"] += sign * spec.memory_bytes
        kind = (spec.accelerator, spec.all_gpus, spec.bandwidth_bytes_per_s)
        self.node_kinds[kind] += sign
        if not self.node_kinds[kind]:
            del self.node_kinds[kind]
        if spec.all_gpus:
            self.accelerators[spec.accelerator] = None
        self.n_kind_changes += 1

    # ---- how the indexes change together

    def _count(self, assignment: Assignment, position: int, now_s: float) -> None:
        """Count an attempt in its worker's places and among those that its application got."""
        task, app, worker = assignment.task, assignment.app, assignment.worker
        self._unready(app, task.id)
        assignment.is_counted = True
        assignment.since_s = now_s
        assignment.is_queued = position != TO_START
        app.placed[task.id] = assignment
        if assignment.is_queued:
            behind = list(worker.queued)[position:]
            worker.queued[task.id] = assignment
            for later in behind:
                worker.queued[later] = worker.queued.pop(later)
            app.queued[task.id] = assignment
            app.n_queued_cpu += assignment.form is Form.CPU
            self.n_queued += 1
        else:
            self._occupy(assignment, 1)
        app.n_alloc += 1
        app.n_gpu += assignment.form is Form.GPU
        if app.dag is not None:
            self._touch(task)

    def _discount(self, assignment: Assignment) -> None:
        task, app = assignment.task.id, assignment.app
        assignment.is_counted = False
        del app.placed[task]
        if self.probes.pop(task, None) is not None:
            is_gpu = assignment.form is Form.GPU
            app.probes.discard(assignment.worker.spec.accelerator if is_gpu else None)
        self.unexpected.pop(task, None)
        if assignment.is_queued:
            self._dequeue(assignment)
        else:
            self._occupy(assignment, -1)
        if app.dag is not None:
            self._touch(assignment.task)

    def _dequeue(self, assignment: Assignment) -> None:
        del assignment.worker.queued[assignment.task.id], assignment.app.queued[assignment.task.id]
        assignment.app.n_queued_cpu -= assignment.form is Form.CPU
        self.n_queued -= 1

    def _occupy(self, assignment: Assignment, sign: int) -> None:
        worker, app, demand = assignment.worker, assignment.app, assignment.demand
        if sign > 0:
            worker.running[assignment.task.id] = assignment
        else:
            del worker.running[assignment.task.id]
        worker.free_cores -= sign * demand.cores
        if demand.is_served:
            worker.free_server_gpus -= sign * demand.gpus
        else:
            worker.free_gpus -= sign * demand.gpus
        worker.free_memory_bytes -= sign * demand.memory_bytes
        app.cores += sign * demand.cores
        app.gpus += sign * demand.gpus
        app.memory_bytes += sign * demand.memory_bytes
        if app.dag is not None:
            (self._take_slot if sign > 0 else self._leave_slot)(assignment)

    def _take_slot(self, assignment: Assignment) -> None:
        """Let an attempt run on the core that it is to have where that is free, else on the first that is.

        None is where a worker began one of its queue before it heard of another start: both run by its
        orders, so both count as running; the one that began has no core until one is left.
        """
        slots = assignment.worker.slots
        assignment.slot_s = assignment.since_s
        if assignment.slot is None or slots[assignment.slot] is not None:
            assignment.slot = next((n for n, each in enumerate(slots) if each is None), None)
        if assignment.slot is not None:
            slots[assignment.slot] = assignment

    def _leave_slot(self, assignment: Assignment) -> None:
        worker, n = assignment.worker, assignment.slot
        if n is None:
            return
        worker.slots[n] = None
        if len(worker.running) >= len(worker.slots):
            extra = next((each for each in worker.running.values() if each.slot is None), None)
            if extra is not None:
                extra.slot, worker.slots[n] = n, extra
                self._touch(extra.task)

    def use_slot(self, assignment: Assignment, n: int) -> None:
        """Let an attempt that runs do so on a core that is free, or that is its own."""
        slots = assignment.worker.slots
        if assignment.slot is not None:
            slots[assignment.slot] = None
        assert slots[n] is None, f"{assignment.worker.id}: core {n} is taken"
        assignment.slot, slots[n] = n, assignment

    def _touch(self, task: ServedTask) -> None:
        """A policy has to look at a task of a DAG again."""
        self.changed.pop(task.id, None)
        self.changed[task.id] = task

    # ---- for tests

    def validate(self) -> None:
        """Check that the indexes agree with the rows; visits all tasks.

        Raises:
            AssertionError: naming what is broken.
        """
        tasks = {task.id: task for app in self.apps.values() for task in app.tasks}
        assert self.tasks == tasks, "tasks and their index differ"
        usable = {name: each for name, each in self.workers.items() if each.is_usable}
        assert self.resources == usable, "workers and those that may get something differ"
        for worker in self.workers.values():
            _check_worker(worker)
        assert self.n_queued == sum(len(each.queued) for each in self.workers.values())
        placed = {id(each) for worker in self.workers.values() for each in _counted(worker)}
        assert placed == {id(each) for app in self.apps.values() for each in app.placed.values()}
        waiting = {app.id for level in self.levels for app in level.in_order()}
        assert waiting == {app.id for app in self.apps.values() if app.ready}, (
            "queues and waiting tasks differ"
        )
        assert self._open <= self.resources.keys()
        for app in self.apps.values():
            _check_app(app)


def _counted(worker: TaskWorker) -> Iterable[Assignment]:
    return (*worker.running.values(), *worker.queued.values())


def _check_worker(worker: TaskWorker) -> None:
    for attempt, each in worker.starts.items():
        assert (each.attempt, each.is_start, each.drop) == (attempt, True, None), attempt
    for each in worker.queue:
        assert (each.is_start, each.drop) == (False, None), each.attempt
        assert each.started_s is None, f"{each.attempt}: runs, and is in the queue"
    for attempt, each in worker.dropped.items():
        assert each.attempt == attempt, attempt
        assert each.drop is not None, attempt
    held = list(worker.held())
    assert all(each.worker is worker and each.task.assignment is each for each in held), worker.id
    assert {id(each) for each in _counted(worker)} == {id(each) for each in held if each.is_counted}
    assert all(each.is_queued for each in worker.queued.values()), worker.id
    placed = {n: each for n, each in enumerate(worker.slots) if each is not None}
    assert all(worker.running.get(each.task.id) is each and each.slot == n for n, each in placed.items())
    running = [each.demand for each in worker.running.values()]
    assert not any(each.is_queued for each in worker.running.values()), worker.id
    if worker.is_usable:
        spec = worker.spec
        used = [sum(getattr(each, key) for each in running) for key in ("cores", "gpus", "memory_bytes")]
        n_free_gpus = worker.free_gpus + worker.free_server_gpus
        free = [worker.free_cores, n_free_gpus, worker.free_memory_bytes]
        total = [spec.cores, spec.all_gpus, spec.memory_bytes]
        assert [a + b for a, b in zip(used, free, strict=True)] == total, f"{worker.id}: free and used differ"


def _check_app(app: ServedApp) -> None:
    counts = Counter(task.state for task in app.tasks)
    assert {state: n for state, n in app.counts.items() if n} == counts, f"{app.id}: {app.counts}, {counts}"
    assert not app.ready.keys() & app.placed.keys(), f"{app.id}: a task waits and is placed"
    ready = {task.id for task in app.tasks if task.state is TaskState.READY}
    assert app.ready.keys() <= ready, f"{app.id}: a task that waits is not ready"
    assert set(app.ready.values()) <= set(app.heap), f"{app.id}: a task that waits has no turn"
    queued = {task: each for task, each in app.placed.items() if each.is_queued}
    assert queued == app.queued, f"{app.id}: queued tasks differ"
    assert app.n_queued_cpu == sum(each.form is Form.CPU for each in queued.values()), app.id
    running = [each.demand for each in app.placed.values() if not each.is_queued]
    held = FormDemand(app.cores, app.gpus, app.memory_bytes)
    assert held == FormDemand(*(sum(getattr(each, key) for each in running) for key in _HELD)), app.id
    assert 0 <= app.n_gpu <= app.n_alloc, f"{app.id}: #Alloc"
    assert not (app.is_over and app.ready), f"{app.id}: is over, and tasks wait"


_HELD = ("cores", "gpus", "memory_bytes")
