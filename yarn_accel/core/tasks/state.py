"""What every policy knows: applications and what waits of them, resources and what runs there.

`SchedulingState` takes the events in and the policy's own placements; it decides nothing. Applications whose
tasks wait stand in three queues for each priority, as HDAS section 2.1.1 has them: GPU only, CPU only, mixed.

*I/O of a resource* is its last sample, and by their figures what began since then and still reads; less what
read at the sample and has ended since. Without any sample it is the requests of all that reads.

*Open* are the resources where something may have become possible since they were last filled; only they are
looked at, so a decision costs nothing for full nodes.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

from yarn_accel.core.tasks.events import (
    AppCancelled,
    AppCounted,
    AppFinished,
    AppSubmitted,
    EndReason,
    FiguresShared,
    IoSampled,
    ResourceJoined,
    ResourceLeft,
    ServerGpusChanged,
    TaskEnded,
    TaskEvent,
    TasksReady,
    TaskStarted,
    TaskWithdrawn,
)
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.records import AppRecord, PlacedTask, PriorityLevel, ResourceRecord, by_order
from yarn_accel.core.tasks.values import AppId, Form, ResourceId, ResourceSpec, TaskId
from yarn_accel.errors import ConfigError


class SchedulingState:
    """The world as the events tell it, and as the policy's placements change it.

    Args:
        figures: what is believed of applications; what ends is learned there.
        learns: False leaves the figures as they were declared.
        has_queues: whether full resources are of interest, too, since tasks may be queued there.
    """

    def __init__(self, figures: FigureStore, *, learns: bool = True, has_queues: bool = False) -> None:
        self.figures = figures
        self.apps: dict[AppId, AppRecord] = {}
        self.resources: dict[ResourceId, ResourceRecord] = {}
        self.levels: list[PriorityLevel] = []
        self.totals = Counter[str]()
        self.node_kinds = Counter[tuple[str, int, float]]()
        self.ignored = Counter[str]()
        self.unexpected: dict[TaskId, PlacedTask] = {}
        self.to_end: dict[TaskId, PlacedTask] = {}
        self.probes: dict[TaskId, PlacedTask] = {}
        self.n_queued = 0
        self._learns = learns
        self._has_queues = has_queues
        self._open: set[ResourceId] = set()
        self._app_of: dict[TaskId, AppRecord] = {}
        self._placed: dict[TaskId, PlacedTask] = {}
        self._by_name: dict[str, dict[AppId, AppRecord]] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            ResourceJoined: self._resource_joined,
            ResourceLeft: self._resource_left,
            ServerGpusChanged: self._server_gpus_changed,
            AppSubmitted: self._app_submitted,
            TasksReady: self._tasks_ready,
            TaskStarted: self._task_started,
            TaskEnded: self._task_ended,
            IoSampled: self._io_sampled,
            AppCancelled: self._app_cancelled,
            AppFinished: self._app_finished,
            TaskWithdrawn: self._task_withdrawn,
            AppCounted: self._app_counted,
            FiguresShared: self._figures_shared,
        }

    def apply(self, event: TaskEvent) -> None:
        """Take one fact in.

        Raises:
            ConfigError: an application that exists was submitted again with another specification.
        """
        self._handlers[type(event)](event)

    # What a policy asks and orders.

    def open_resources(self) -> list[ResourceRecord]:
        """Those to fill now, by id; each is open again after the next event that frees something there."""
        found = [self.resources[name] for name in sorted(self._open)]
        self._open.clear()
        return found

    def open_all(self) -> None:
        """Look at every resource again that may take something: more became possible than before."""
        if self._has_queues:
            self._open.update(self.resources)
        else:
            self.open_free()

    def open_free(self) -> None:
        """Look at every resource with a free core again: more can start than before."""
        self._open.update(name for name, each in self.resources.items() if each.free_cores > 0)

    def open(self, resource: ResourceRecord) -> None:
        """Look at this resource again."""
        self._open.add(resource.spec.resource)

    def place(
        self,
        app: AppRecord,
        form: Form,
        resource: ResourceRecord,
        now_s: float,
        position: int | None = None,
    ) -> PlacedTask:
        """Dispatch the next task of an application, into the resource's queue where a position is given."""
        task = self._next_ready(app)
        demand = app.demand(form)
        assert demand is not None, f"{app.app} has no form {form.value}"
        placed = PlacedTask(task, app, resource, form, demand, now_s, is_queued=position is not None)
        self._add(placed)
        if position is not None:
            for later in list(resource.queued)[position:-1]:
                resource.queued[later] = resource.queued.pop(later)
        app.n_alloc += 1
        app.n_gpu += form is Form.GPU
        return placed

    def start_queued(self, placed: PlacedTask, now_s: float) -> None:
        """A queued task fits now: its worker starts it, or has."""
        self._dequeue(placed)
        placed.is_queued = False
        placed.started_s = now_s
        self._occupy(placed, 1)
        self.unexpected[placed.task] = placed

    def probe(self, placed: PlacedTask) -> None:
        """This task runs to be measured."""
        self.probes[placed.task] = placed
        placed.app.probes.add(placed.resource.spec.accelerator if placed.form is Form.GPU else None)

    def unmeasured(self) -> list[tuple[AppRecord, Form, str]]:
        """What waits and was never measured: application, form, kind of accelerator."""
        accelerators = sorted(self._accelerators())
        found = []
        for level in self.levels:
            for app in (*level.gpu_only, *level.cpu_only, *level.mixed):
                if app.cpu is None and app.cpu_demand is not None:
                    found.append((app, Form.CPU, ""))
                if app.gpu_demand is not None:
                    found += [(app, Form.GPU, each) for each in accelerators if app.gpu.get(each) is None]
        return found

    def task(self, task: TaskId) -> PlacedTask | None:
        """Where a task is, None if it waits, ended or is unknown."""
        return self._placed.get(task)

    # Events.

    def _resource_joined(self, event: ResourceJoined) -> None:
        spec = event.spec
        self._forget_resource(spec.resource)
        record = ResourceRecord(spec, spec.cores, spec.gpus, spec.memory_bytes, spec.server_gpus)
        self.resources[spec.resource] = record
        self._count_new(spec)
        self._open.add(spec.resource)

    def _count_new(self, spec: ResourceSpec) -> None:
        is_new_kind = spec.accelerator not in self._accelerators()
        self._count(spec, 1)
        if is_new_kind:
            for app in self.apps.values():
                self._believe(app)

    def _server_gpus_changed(self, event: ServerGpusChanged) -> None:
        resource = self.resources.get(event.resource)
        if resource is None:
            return self._ignore(event)
        resource.free_server_gpus += event.server_gpus - resource.spec.server_gpus
        self._count(resource.spec, -1)
        resource.spec = replace(resource.spec, server_gpus=event.server_gpus)
        self._count_new(resource.spec)
        self._open.add(event.resource)

    def _resource_left(self, event: ResourceLeft) -> None:
        if not self._forget_resource(event.resource):
            self._ignore(event)

    def _app_submitted(self, event: AppSubmitted) -> None:
        spec = event.spec
        known = self.apps.get(spec.app)
        if known is not None:
            if known.spec != spec:
                raise ConfigError(f"application {spec.app}: submitted twice, with different specifications")
            return
        app = AppRecord(
            spec,
            spec.app,
            (event.now_s, spec.app),
            event.now_s,
            spec.demands.get(Form.CPU),
            spec.demands.get(Form.GPU),
        )
        self.apps[spec.app] = app
        self._by_name.setdefault(spec.name, {})[spec.app] = app
        self._believe(app)

    def _tasks_ready(self, event: TasksReady) -> None:
        app = self.apps.get(event.app)
        if app is None or app.is_cancelled:
            return self._ignore(event)
        is_new = not app.ready
        keys = [(event.now_s, index, task) for index, task in enumerate(event.tasks)]
        fresh = [key for key in keys if key[2] not in self._app_of]
        for key in fresh:
            app.ready[key[2]] = key
            self._app_of[key[2]] = app
        if len(fresh) > 8 and len(fresh) > len(app.heap) // 8:
            app.heap += fresh
            heapify(app.heap)
        else:
            for key in fresh:
                heappush(app.heap, key)
        if is_new and app.ready:
            self._enter(app, event.now_s)

    def _task_started(self, event: TaskStarted) -> None:
        placed, resource = self._placed.get(event.task), self.resources.get(event.resource)
        app = self._app_of.get(event.task)
        if app is None or resource is None or app.demand(event.form) is None:
            return self._ignore(event)
        if placed is None or placed.resource is not resource or placed.form is not event.form:
            placed = self._adopt(event, app, resource)
            placed.in_sample = self._is_sampled(placed)
        elif placed.is_queued:
            self.start_queued(placed, event.now_s)
            placed.in_sample = self._is_sampled(placed)
            self.open(resource)
        placed.has_begun = True
        placed.reads_until_s += event.now_s - placed.started_s
        placed.started_s = event.now_s
        placed.in_sample = placed.in_sample and self._is_sampled(placed)

    def _is_sampled(self, placed: PlacedTask) -> bool:
        sample = placed.resource.sample
        return sample is not None and placed.started_s <= sample.sampled_s

    def _adopt(self, event: TaskStarted, app: AppRecord, resource: ResourceRecord) -> PlacedTask:
        """It runs where it was not ordered: believe what is."""
        former = self._placed.get(event.task)
        if former is not None:
            self._remove(former)
        else:
            self._unready(app, event.task)
            app.n_alloc += 1
            app.n_gpu += event.form is Form.GPU
        demand = app.demand(event.form)
        assert demand is not None
        placed = PlacedTask(event.task, app, resource, event.form, demand, event.now_s)
        self._add(placed)
        self.unexpected[placed.task] = placed
        return placed

    def _task_ended(self, event: TaskEnded) -> None:
        placed = self._placed.get(event.task)
        if placed is None or placed.resource.spec.resource != event.resource:
            return self._ignore(event)
        app, resource = placed.app, placed.resource
        self._remove(placed)
        self._open.add(event.resource)
        if not placed.is_queued:
            placed.ended_s = event.now_s
            resource.ended.append(placed)
        if event.reason is EndReason.DONE:
            app.n_done += 1
            self._learn(placed, event)
        if event.reason in (EndReason.TAKEN_BACK, EndReason.LOST) and not placed.has_begun:
            app.n_alloc -= 1
            app.n_gpu -= placed.form is Form.GPU
        if event.reason is EndReason.TAKEN_BACK and not app.is_cancelled:
            self._tasks_ready(TasksReady(app.app, (event.task,), float("-inf")))
        self._forget_if_over(app)

    def _learn(self, placed: PlacedTask, event: TaskEnded) -> None:
        if event.measured is None or not self._learns:
            return
        app, accelerator = placed.app, placed.resource.spec.accelerator
        self.figures.observe(
            app.spec,
            placed.form,
            accelerator,
            event.measured,
            placed.predicted_s,
        )
        was_unknown = app.profile(placed.form, accelerator) is None
        for same in self._by_name[app.spec.name].values():
            self._believe(same)
        if was_unknown:
            self.open_all()

    def _figures_shared(self, event: FiguresShared) -> None:
        for name in event.names:
            for app in self._by_name.get(name, {}).values():
                self._believe(app)
        self.open_all()

    def _io_sampled(self, event: IoSampled) -> None:
        resource = self.resources.get(event.resource)
        if resource is None or (resource.sample and event.sampled_s < resource.sample.sampled_s):
            return self._ignore(event)
        resource.take_sample(event)

    def _app_cancelled(self, event: AppCancelled) -> None:
        app = self.apps.get(event.app)
        if app is None:
            return self._ignore(event)
        app.is_cancelled = True
        if app.ready:
            self._leave(app)
            for task in app.ready:
                del self._app_of[task]
            app.ready.clear()
            app.heap.clear()
        for task, placed in app.placed.items():
            if not placed.is_ending:
                self.to_end[task] = placed
        self._forget_if_over(app)

    def _app_finished(self, event: AppFinished) -> None:
        if event.app in self.apps:  # as where tasks were done before this policy began
            self._app_cancelled(AppCancelled(event.app, event.now_s))

    def _task_withdrawn(self, event: TaskWithdrawn) -> None:
        app = self._app_of.get(event.task)
        if app is None or event.task not in app.ready:
            return self._ignore(event)
        self._unready(app, event.task)
        del self._app_of[event.task]
        self._forget_if_over(app)

    def _app_counted(self, event: AppCounted) -> None:
        app = self.apps.get(event.app)
        if app is None:
            return self._ignore(event)
        app.n_alloc, app.n_gpu = event.n_alloc, event.n_gpu
        if app.start_s != event.start_s:
            queue = self._level(app.spec.priority).queue_of(app) if app.ready else None
            if queue is not None:
                queue.remove(app)
            app.start_s, app.order = event.start_s, (event.start_s, app.app)
            if queue is not None:
                insort(queue, app, key=by_order)

    # How the parts change together.

    def _next_ready(self, app: AppRecord) -> TaskId:
        while True:
            key = heappop(app.heap)
            task = key[2]
            if app.ready.get(task) == key:
                self._unready(app, task)
                return task

    def _unready(self, app: AppRecord, task: TaskId) -> None:
        if app.ready.pop(task, None) is not None and not app.ready:
            self._leave(app)
            app.heap.clear()

    def _add(self, placed: PlacedTask) -> None:
        self._placed[placed.task] = placed
        self._app_of[placed.task] = placed.app
        placed.app.placed[placed.task] = placed
        if placed.is_queued:
            placed.resource.queued[placed.task] = placed.app.queued[placed.task] = placed
            placed.app.n_queued_cpu += placed.form is Form.CPU
            self.n_queued += 1
        else:
            self._occupy(placed, 1)

    def _remove(self, placed: PlacedTask) -> None:
        task, app = placed.task, placed.app
        del self._placed[task], self._app_of[task], app.placed[task]
        self.to_end.pop(task, None)
        if self.probes.pop(task, None) is not None:
            app.probes.discard(placed.resource.spec.accelerator if placed.form is Form.GPU else None)
        self.unexpected.pop(task, None)
        if placed.is_queued:
            self._dequeue(placed)
        else:
            self._occupy(placed, -1)

    def _dequeue(self, placed: PlacedTask) -> None:
        del placed.resource.queued[placed.task], placed.app.queued[placed.task]
        placed.app.n_queued_cpu -= placed.form is Form.CPU
        self.n_queued -= 1

    def _occupy(self, placed: PlacedTask, sign: int) -> None:
        resource, app, demand = placed.resource, placed.app, placed.demand
        if sign > 0:
            resource.running[placed.task] = placed
        else:
            del resource.running[placed.task]
        resource.free_cores -= sign * demand.cores
        if demand.is_served:
            resource.free_server_gpus -= sign * demand.gpus
        else:
            resource.free_gpus -= sign * demand.gpus
        resource.free_memory_bytes -= sign * demand.memory_bytes
        app.cores += sign * demand.cores
        app.gpus += sign * demand.gpus
        app.memory_bytes += sign * demand.memory_bytes

    def _forget_resource(self, name: ResourceId) -> bool:
        resource = self.resources.get(name)
        if resource is None:
            return False
        for placed in [*resource.running.values(), *resource.queued.values()]:
            self._remove(placed)
            self._forget_if_over(placed.app)
        del self.resources[name]
        self._open.discard(name)
        self._count(resource.spec, -1)
        return True

    def _count(self, spec: ResourceSpec, sign: int) -> None:
        self.totals["cores"] += sign * spec.cores
        self.totals["gpus"] += sign * spec.all_gpus
        self.totals["memory_bytes"] += sign * spec.memory_bytes
        kind = (spec.accelerator, spec.all_gpus, spec.bandwidth_bytes_per_s)
        self.node_kinds[kind] += sign
        if not self.node_kinds[kind]:
            del self.node_kinds[kind]
        for app in self.apps.values():
            app.gpu_rate = None

    def _accelerators(self) -> set[str]:
        return {accelerator for accelerator, gpus, _ in self.node_kinds if gpus}

    def _believe(self, app: AppRecord) -> None:
        """Take over what is believed of an application now."""
        app.affinities.clear()
        app.gpu_rate = None
        if app.cpu_demand is not None:
            app.cpu = self.figures.profile(app.spec, Form.CPU, "")
        if app.gpu_demand is not None:
            for accelerator in self._accelerators():
                app.gpu[accelerator] = self.figures.profile(app.spec, Form.GPU, accelerator)

    def _level(self, priority: int) -> PriorityLevel:
        for level in self.levels:
            if level.priority == priority:
                return level
        level = PriorityLevel(priority)
        insort(self.levels, level, key=lambda each: -each.priority)
        return level

    def _enter(self, app: AppRecord, now_s: float) -> None:
        """Its first task waits: it stands in its queue, and any resource may take it."""
        app.ready_since_s = max(now_s, app.start_s)
        insort(self._level(app.spec.priority).queue_of(app), app, key=by_order)
        self.open_all()

    def _leave(self, app: AppRecord) -> None:
        level = self._level(app.spec.priority)
        level.queue_of(app).remove(app)
        if not (level.gpu_only or level.cpu_only or level.mixed):
            self.levels.remove(level)

    def _forget_if_over(self, app: AppRecord) -> None:
        """A cancelled application of which nothing runs is forgotten; so its id is free again."""
        is_over = app.is_cancelled or app.n_done >= app.spec.n_tasks
        if is_over and not app.placed and not app.ready and self.apps.get(app.app) is app:
            del self.apps[app.app]
            same = self._by_name[app.spec.name]
            del same[app.app]
            if not same:
                del self._by_name[app.spec.name]

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: naming what is broken.
        """
        for name, resource in self.resources.items():
            spec, running = resource.spec, resource.running.values()
            used = [sum(getattr(p.demand, key) for p in running) for key in ("cores", "gpus", "memory_bytes")]
            n_free_gpus = resource.free_gpus + resource.free_server_gpus
            free = [resource.free_cores, n_free_gpus, resource.free_memory_bytes]
            total = [spec.cores, spec.all_gpus, spec.memory_bytes]
            assert [a + b for a, b in zip(used, free, strict=True)] == total, f"{name}: free and used differ"
            there = {**resource.running, **resource.queued}
            assert len(there) == len(resource.running) + len(resource.queued), f"{name}: runs and is queued"
            for task, placed in there.items():
                assert self._placed.get(task) is placed, f"{task}: {name} and the state differ"
                assert placed.is_queued is (task in resource.queued), f"{task}: queued or not?"
        queued = {task for resource in self.resources.values() for task in resource.queued}
        assert self.n_queued == len(queued), "the number of queued tasks differs"
        assert queued == {task for app in self.apps.values() for task in app.queued}, "queued tasks differ"
        for app in self.apps.values():
            n_cpu = sum(placed.form is Form.CPU for placed in app.queued.values())
            assert app.n_queued_cpu == n_cpu, f"{app.app}: {app.n_queued_cpu} queued on cores, {n_cpu} there"
        assert sum(len(r.running) + len(r.queued) for r in self.resources.values()) == len(self._placed)
        waiting = {app.app for level in self.levels for app in level.in_order()}
        assert waiting == {app.app for app in self.apps.values() if app.ready}, (
            "queues and waiting tasks differ"
        )
        for app in self.apps.values():
            self._validate_app(app)
        known = sum(len(app.ready) + len(app.placed) for app in self.apps.values())
        assert known == len(self._app_of), "tasks of unknown applications"

    def _validate_app(self, app: AppRecord) -> None:
        assert not app.ready.keys() & app.placed.keys(), f"{app.app}: a task waits and is placed"
        assert all(self._app_of[task] is app for task in (*app.ready, *app.placed)), f"{app.app}: tasks"
        assert app.ready.items() <= {key[2]: key for key in app.heap}.items() or len(app.heap) > len(
            app.ready
        )
        running = [placed for placed in app.placed.values() if not placed.is_queued]
        assert app.cores == sum(p.demand.cores for p in running), f"{app.app}: cores"
        assert app.gpus == sum(p.demand.gpus for p in running), f"{app.app}: GPUs"
        assert 0 <= app.n_gpu <= app.n_alloc, f"{app.app}: #Alloc"
        assert not (app.is_cancelled and app.ready), f"{app.app}: cancelled, and tasks wait"

    def _ignore(self, event: TaskEvent) -> None:
        self.ignored[type(event).__name__] += 1
