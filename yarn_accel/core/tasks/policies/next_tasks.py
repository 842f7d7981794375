"""Next tasks: one more may lie at a worker for each that runs there, so no slot idles for a round trip.

HDAS plans no queue. A next task is therefore chosen as if a place were free, one task earlier than Algorithm
1 would, for the I/O that is expected when the first task there has ended. It is taken back while it waits

- when another place could start it now and nothing else waits that could;
- when a task of a higher priority waits that would take its place;
- when the policy would not let it have a place any more, as by a tail guard;
- when its application is cancelled.

It is not taken back because the I/O changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from yarn_accel.core.tasks.commands import EnqueueTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.policies.base import FillingPolicy, free_of
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.core.tasks.policies.values import FORMS, OpenPlace
from yarn_accel.core.tasks.records import Assignment, PriorityLevel, ServedApp, TaskWorker
from yarn_accel.core.tasks.values import AppId, Form, TaskId


class QueueingPolicy(FillingPolicy):
    """A policy that keeps next tasks at workers, where `next_tasks_per_slot` says so."""

    def __init__(self, options: PolicyOptions | None = None) -> None:
        super().__init__(options)
        #: Kinds of resources and forms for which nothing waits, in the decision pass that goes on.
        self._unwanted: set[tuple[object, ...]] = set()
        #: What was free where no task could start that is queued elsewhere, in the same pass.
        self._unmovable: set[tuple[object, ...]] = set()

    def next_tasks(self, resources: list[TaskWorker]) -> Iterator[TaskCommand]:
        """What to take back anywhere, then what to queue at these workers."""
        self._unwanted.clear()
        self._unmovable.clear()
        is_queued = self.table.n_queued > 0
        if is_queued:
            yield from self._take_back_withheld()
        for resource in resources:
            is_free = resource.free_cores > 0 and is_queued
            if not (self.table.levels or is_free):
                continue
            if self.first_tasks.is_kept_quiet(resource) or self._is_to_be_filled(resource):
                continue
            free = free_of(resource) if is_free else ()
            for form in FORMS:
                if is_free and (form, free) not in self._unmovable:
                    yield from self._take_back_for_free(resource, form, free)
                if self.table.levels and (resource.running or resource.queued):
                    yield from self._take_back_for_priority(resource, form)
                    yield from self._enqueue(resource, form)

    def _is_to_be_filled(self, resource: TaskWorker) -> bool:
        """Whether something can start here, in the next pass."""
        if resource.free_cores <= 0 or not self.table.levels or self.is_known_useless(resource):
            return False
        return self.choose(self.place_of(resource, self.now_s)) is not None

    def _enqueue(self, resource: TaskWorker, form: Form) -> Iterator[TaskCommand]:
        """As many next tasks of a form as tasks of it run."""
        missing = _count(resource.running, form) - _count(resource.queued, form)
        if missing <= 0 or not self.table.levels or _kind(resource, form) in self._unwanted:
            return
        place = self._place_then(resource, form)
        while missing > 0 and (chosen := self._best_waiting(place, form)) is not None:
            missing -= 1
            app, reason = chosen
            # Before those for cores, which would else take the core of a GPU that becomes free.
            position = _count(resource.queued, Form.GPU) if form is Form.GPU else len(resource.queued)
            task = self.table.next_ready(app)
            yield EnqueueTask(task.id, resource.id, form, position, f"next here: {reason}")
            if (queued := task.assignment) is None:
                return  # the task is not to be had for the moment
            self._add_request(place, queued)
        if missing > 0:
            self._unwanted.add(_kind(resource, form))

    def _place_then(self, resource: TaskWorker, form: Form) -> OpenPlace:
        """The resource when the first of its tasks of this form will have ended, as predicted.

        Counted is what reads then of what runs, what is queued, and what others read now.
        """
        ends_s = [
            placed.since_s + placed.predicted_s
            for placed in resource.running.values()
            if placed.form is form and placed.predicted_s is not None
        ]
        then_s = max(self.now_s, min(ends_s, default=self.now_s))
        place = self.place_of(resource, self.now_s)
        for placed in resource.running.values():
            if self.now_s < placed.reads_until_s <= then_s:
                place.io = max(0.0, place.io - placed.request_bytes_per_s)
                place.readers = max(0, place.readers - 1)
        for placed in resource.queued.values():
            self._add_request(place, placed)
        return place

    def _add_request(self, place: OpenPlace, placed: Assignment) -> None:
        """A queued task that reads half of its time or more counts as one that reads when the next starts."""
        profile = placed.app.profile(placed.form, place.accelerator)
        if profile is not None and profile.request_bytes_per_s and 2 * profile.read_s >= profile.alone_s:
            place.io += profile.request_bytes_per_s
            place.readers += 1

    def _take_back_withheld(self) -> Iterator[TaskCommand]:
        """What the policy would not let have a place any more, as by a tail guard."""
        for form in self.withheld_later:
            queued: dict[int, dict[AppId, Assignment]] = {}
            for app in self.table.apps.values():
                if app.queued and (placed := _first_movable(app, form)) is not None:
                    queued.setdefault(app.spec.priority, {})[app.id] = placed
            for priority, firsts in queued.items():
                place = OpenPlace(next(iter(firsts.values())).worker, self.now_s, 0.0, 0)
                level, apps = PriorityLevel(priority), [placed.app for placed in firsts.values()]
                allowed = self.allowed(apps, form, level, place)
                for app in apps if len(allowed) < len(apps) else ():
                    if app not in allowed:
                        reason = self.withheld(app, form, level, place)
                        for placed in [each for each in app.queued.values() if _is_movable(each, form)]:
                            yield _take_back(placed, reason)

    def _best_waiting(self, place: OpenPlace, form: Form) -> tuple[ServedApp, str] | None:
        for level in self.table.levels:
            apps = self.fitting(level, form, place, place.resource.could_fit)
            if apps and (apps := self.allowed(apps, form, level, place)):
                choice = self.best(apps, form, place)
                return choice.app, choice.reason
        return None

    def _take_back_for_free(
        self, resource: TaskWorker, form: Form, free: tuple[object, ...]
    ) -> Iterator[TaskCommand]:
        """Tasks that are queued for another place and could start here now, where so much is `free`."""
        n_free = min(resource.free_cores, resource.n_free_gpus) if form is Form.GPU else resource.free_cores
        if n_free <= 0:
            return
        place = self.place_of(resource, self.now_s)
        for _ in range(n_free):
            movable = {
                app.id: placed
                for app in self.table.apps.values()
                if app.queued
                and self._could_start(app, form, place)
                and (placed := _last_movable(app, resource, form)) is not None
            }
            priority = max((placed.app.spec.priority for placed in movable.values()), default=0)
            apps = [placed.app for placed in movable.values() if placed.app.spec.priority == priority]
            if not apps or not (apps := self.allowed(apps, form, PriorityLevel(priority), place)):
                self._unmovable.add((form, free))
                return
            last = movable[self.best(apps, form, place).app.id]
            yield _take_back(last, f"{resource.id} can start it now")

    def _could_start(self, app: ServedApp, form: Form, place: OpenPlace) -> bool:
        demand = app.demand(form)
        if demand is None or not place.resource.fits(demand):
            return False
        return not self.needs_figures or app.profile(form, place.accelerator) is not None

    def _take_back_for_priority(self, resource: TaskWorker, form: Form) -> Iterator[TaskCommand]:
        """The last queued task of the lowest priority, for each that waits with a higher one."""
        queued = resource.queued.values()
        levels = self.table.levels
        if not levels or all(each.app.spec.priority >= levels[0].priority for each in queued):
            return
        best = self._best_waiting(self.place_of(resource, self.now_s), form)
        if best is None or _count(resource.running, form) > _count(resource.queued, form):
            return
        lower = [
            each
            for each in queued
            if _is_movable(each, form) and each.app.spec.priority < best[0].spec.priority
        ]
        reason = f"{best[0].id} has a higher priority"
        for placed in lower[-len(best[0].ready) :]:
            yield _take_back(placed, reason)


def _take_back(placed: Assignment, reason: str) -> TakeBackTask:
    return TakeBackTask(placed.task.id, placed.worker.id, reason)


def _is_movable(placed: Assignment, form: Form) -> bool:
    return placed.form is form and placed.drop is None


def _first_movable(app: ServedApp, form: Form) -> Assignment | None:
    if not (app.n_queued_cpu if form is Form.CPU else len(app.queued) - app.n_queued_cpu):
        return None
    return next((placed for placed in app.queued.values() if _is_movable(placed, form)), None)


def _last_movable(app: ServedApp, resource: TaskWorker, form: Form) -> Assignment | None:
    """Its task that was queued last for another place than this."""
    for placed in reversed(app.queued.values()):
        if placed.drop is None and (placed.worker is not resource or placed.form is not form):
            return placed
    return None


def _kind(resource: TaskWorker, form: Form) -> tuple[object, ...]:
    """All on which it depends whether a task of this form can be queued there."""
    spec = resource.spec
    return form, spec.accelerator, spec.cores, spec.gpus, spec.server_gpus, spec.memory_bytes


def _count(tasks: dict[TaskId, Assignment], form: Form) -> int:
    return [placed.form for placed in tasks.values()].count(form) if tasks else 0
