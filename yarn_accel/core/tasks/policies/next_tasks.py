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

from yarn_accel.core.tasks.commands import EnqueueTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.base import FillingPolicy, free_of
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.core.tasks.policies.values import FORMS, OpenPlace
from yarn_accel.core.tasks.records import AppRecord, PlacedTask, PriorityLevel, ResourceRecord
from yarn_accel.core.tasks.values import AppId, Form, TaskId


class QueueingPolicy(FillingPolicy):
    """A policy that keeps next tasks at workers, where `next_tasks_per_slot` says so."""

    def __init__(self, options: PolicyOptions | None = None, figures: FigureStore | None = None) -> None:
        super().__init__(options, figures)
        #: Kinds of resources and forms for which nothing waits, in the decision pass that goes on.
        self._unwanted: set[tuple[object, ...]] = set()
        #: What was free where no task could start that is queued elsewhere, in the same pass.
        self._unmovable: set[tuple[object, ...]] = set()

    def next_tasks(self, resources: list[ResourceRecord]) -> list[TaskCommand]:
        """What to take back anywhere, then what to queue at these resources."""
        self._unwanted.clear()
        self._unmovable.clear()
        is_queued = self.state.n_queued > 0
        commands = self._take_back_withheld() if is_queued else []
        for resource in resources:
            is_free = resource.free_cores > 0 and is_queued
            if not (self.state.levels or is_free):
                continue
            if self.first_tasks.is_kept_quiet(resource) or self._is_to_be_filled(resource):
                continue
            free = free_of(resource) if is_free else ()
            for form in FORMS:
                if is_free and (form, free) not in self._unmovable:
                    self._take_back_for_free(resource, form, free, commands)
                if self.state.levels and (resource.running or resource.queued):
                    self._take_back_for_priority(resource, form, commands)
                    self._enqueue(resource, form, commands)
        return commands

    def _is_to_be_filled(self, resource: ResourceRecord) -> bool:
        """Whether something can start here, in the next pass."""
        if resource.free_cores <= 0 or not self.state.levels or self.is_known_useless(resource):
            return False
        return self.choose(self.place_of(resource, self.now_s)) is not None

    def _enqueue(self, resource: ResourceRecord, form: Form, commands: list[TaskCommand]) -> None:
        """As many next tasks of a form as tasks of it run."""
        missing = _count(resource.running, form) - _count(resource.queued, form)
        if missing <= 0 or not self.state.levels or _kind(resource, form) in self._unwanted:
            return
        place = self._place_then(resource, form)
        while missing > 0 and (chosen := self._best_waiting(place, form)) is not None:
            missing -= 1
            app, reason = chosen
            # Before those for cores, which would else take the core of a GPU that becomes free.
            position = _count(resource.queued, Form.GPU) if form is Form.GPU else len(resource.queued)
            placed = self.state.place(app, form, resource, place.now_s, position)
            self._add_request(place, placed)
            commands.append(
                EnqueueTask(placed.task, resource.spec.resource, form, position, f"next here: {reason}")
            )
        if missing > 0:
            self._unwanted.add(_kind(resource, form))

    def _place_then(self, resource: ResourceRecord, form: Form) -> OpenPlace:
        """The resource when the first of its tasks of this form will have ended, as predicted.

        Counted is what reads then of what runs, what is queued, and what others read now.
        """
        ends_s = [
            placed.started_s + placed.predicted_s
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

    def _add_request(self, place: OpenPlace, placed: PlacedTask) -> None:
        """A queued task that reads half of its time or more counts as one that reads when the next starts."""
        profile = placed.app.profile(placed.form, place.accelerator)
        if profile is not None and profile.request_bytes_per_s and 2 * profile.read_s >= profile.alone_s:
            place.io += profile.request_bytes_per_s
            place.readers += 1

    def _take_back_withheld(self) -> list[TaskCommand]:
        """What the policy would not let have a place any more, as by a tail guard."""
        commands: list[TaskCommand] = []
        for form in self.withheld_later:
            queued: dict[int, dict[AppId, PlacedTask]] = {}
            for app in self.state.apps.values():
                if app.queued and (placed := _first_movable(app, form)) is not None:
                    queued.setdefault(app.spec.priority, {})[app.app] = placed
            for priority, firsts in queued.items():
                place = OpenPlace(next(iter(firsts.values())).resource, self.now_s, 0.0, 0)
                level, apps = PriorityLevel(priority), [placed.app for placed in firsts.values()]
                allowed = self.allowed(apps, form, level, place)
                for app in apps if len(allowed) < len(apps) else ():
                    if app not in allowed:
                        reason = self.withheld(app, form, level, place)
                        mine = [each for each in app.queued.values() if _is_movable(each, form)]
                        commands += [self._take_back(placed, reason) for placed in mine]
        return commands

    def _best_waiting(self, place: OpenPlace, form: Form) -> tuple[AppRecord, str] | None:
        for level in self.state.levels:
            apps = self.fitting(level, form, place, place.resource.could_fit)
            if apps and (apps := self.allowed(apps, form, level, place)):
                choice = self.best(apps, form, place)
                return choice.app, choice.reason
        return None

    def _take_back_for_free(
        self, resource: ResourceRecord, form: Form, free: tuple[object, ...], commands: list[TaskCommand]
    ) -> None:
        """Tasks that are queued for another place and could start here now, where so much is `free`."""
        n_free = min(resource.free_cores, resource.n_free_gpus) if form is Form.GPU else resource.free_cores
        if n_free <= 0:
            return
        place = self.place_of(resource, self.now_s)
        for _ in range(n_free):
            movable = {
                app.app: placed
                for app in self.state.apps.values()
                if app.queued
                and self._could_start(app, form, place)
                and (placed := _last_movable(app, resource, form)) is not None
            }
            priority = max((placed.app.spec.priority for placed in movable.values()), default=0)
            apps = [placed.app for placed in movable.values() if placed.app.spec.priority == priority]
            if not apps or not (apps := self.allowed(apps, form, PriorityLevel(priority), place)):
                self._unmovable.add((form, free))
                return
            last = movable[self.best(apps, form, place).app.app]
            commands.append(self._take_back(last, f"{resource.spec.resource} can start it now"))

    def _could_start(self, app: AppRecord, form: Form, place: OpenPlace) -> bool:
        demand = app.demand(form)
        if demand is None or not place.resource.fits(demand):
            return False
        return not self.needs_figures or app.profile(form, place.accelerator) is not None

    def _take_back_for_priority(
        self, resource: ResourceRecord, form: Form, commands: list[TaskCommand]
    ) -> None:
        """The last queued task of the lowest priority, for each that waits with a higher one."""
        queued = resource.queued.values()
        levels = self.state.levels
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
        reason = f"{best[0].app} has a higher priority"
        commands += [self._take_back(placed, reason) for placed in lower[-len(best[0].ready) :]]

    def _take_back(self, placed: PlacedTask, reason: str) -> TakeBackTask:
        placed.is_ending = True
        return TakeBackTask(placed.task, placed.resource.spec.resource, reason)


def _is_movable(placed: PlacedTask, form: Form) -> bool:
    return placed.form is form and not placed.is_ending


def _first_movable(app: AppRecord, form: Form) -> PlacedTask | None:
    if not (app.n_queued_cpu if form is Form.CPU else len(app.queued) - app.n_queued_cpu):
        return None
    return next((placed for placed in app.queued.values() if _is_movable(placed, form)), None)


def _last_movable(app: AppRecord, resource: ResourceRecord, form: Form) -> PlacedTask | None:
    """Its task that was queued last for another place than this."""
    for placed in reversed(app.queued.values()):
        if not placed.is_ending and (placed.resource is not resource or placed.form is not form):
            return placed
    return None


def _kind(resource: ResourceRecord, form: Form) -> tuple[object, ...]:
    """All on which it depends whether a task of this form can be queued there."""
    spec = resource.spec
    return form, spec.accelerator, spec.cores, spec.gpus, spec.server_gpus, spec.memory_bytes


def _count(tasks: dict[TaskId, PlacedTask], form: Form) -> int:
    return [placed.form for placed in tasks.values()].count(form) if tasks else 0
