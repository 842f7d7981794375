"""What all policies share: resources are filled one after the other, and each task says why it is there.

A policy is a subclass with a table of keys for each form; the first key decides, the next where it is equal.
It may also keep applications from places, as by a tail guard. The rest is here: what is predicted of a task,
what is cancelled; and in `first_tasks`, what is done where nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from yarn_accel.core.tasks.commands import Candidate, EndTask, StartTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.contention import READ_SECONDS, Profile
from yarn_accel.core.tasks.events import Decide, TaskEvent
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.first_tasks import FirstTasks
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.core.tasks.policies.values import FORMS, Key, OpenPlace, TaskChoice
from yarn_accel.core.tasks.records import AppRecord, PlacedTask, PriorityLevel, ResourceRecord, by_order
from yarn_accel.core.tasks.state import SchedulingState
from yarn_accel.core.tasks.values import Form, FormDemand, ResourceId

_UNKNOWN_S = float("inf")


class FillingPolicy:
    """Fills the resources where something became possible, in the order of their ids."""

    name: ClassVar[str]
    needs_figures: ClassVar[bool] = False
    uses_gpus: ClassVar[bool] = True
    #: Forms in which `allowed` may refuse a place later to what it once let have it, as time passes.
    withheld_later: ClassVar[tuple[Form, ...]] = ()

    def __init__(self, options: PolicyOptions | None = None, figures: FigureStore | None = None) -> None:
        self.options = options or PolicyOptions()
        self.figures = figures if figures is not None else FigureStore()
        self.state = SchedulingState(
            self.figures, learns=self.options.learns, has_queues=self.options.next_tasks_per_slot > 0
        )
        self._read_seconds = READ_SECONDS[self.options.above_saturation]
        self.now_s = 0.0
        #: What was free where nothing that waits could start, in the decision pass that goes on.
        self._useless: set[tuple[object, ...]] = set()
        self.first_tasks = FirstTasks(self.state, self.options.measure_wait_s)

    def apply(self, event: TaskEvent) -> tuple[TaskCommand, ...]:
        """Take one fact in; commands come from `Decide` alone, in the order to carry them out."""
        if isinstance(event, Decide):
            return tuple(self._decide(event.now_s))
        self.state.apply(event)
        return ()

    def keys(self, form: Form) -> tuple[Key, ...]:
        """What decides who gets a place in this form; after them the earlier start, then the id."""
        raise NotImplementedError

    def allowed(
        self, apps: list[AppRecord], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[AppRecord]:
        """Those of `apps`, which fit, that this policy lets have the place."""
        return apps

    def withheld(self, app: AppRecord, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """Why `allowed` left an application out, for its owner."""
        return "this policy keeps it from the place"

    def choose(self, place: OpenPlace) -> TaskChoice | None:
        """The next task for a resource, None if nothing that waits can start there now.

        Priorities from high to low, in each GPUs first, then cores.
        """
        resource = place.resource
        for level in self.state.levels:
            for form in FORMS:
                if form is Form.GPU and resource.n_free_gpus <= 0:
                    continue
                apps = self.fitting(level, form, place, resource.fits)
                if apps and (apps := self.allowed(apps, form, level, place)):
                    return self.best(apps, form, place)
        return None

    def best(self, apps: list[AppRecord], form: Form, place: OpenPlace) -> TaskChoice:
        """The one of `apps` that the keys of the form choose, and the key that decided."""
        if len(apps) == 1:
            return TaskChoice(apps[0], form, "the only candidate")
        for key in self.keys(form):
            values = [key.value(app, place) for app in apps]
            tolerance = self.options.tie_tolerance if key.has_tolerance else 0.0
            if key.is_most:
                best = max(values)
                apps = [app for app, value in zip(apps, values, strict=True) if value >= best - tolerance]
            else:
                best = min(values)
                apps = [app for app, value in zip(apps, values, strict=True) if value <= best + tolerance]
            if len(apps) == 1:
                return TaskChoice(apps[0], form, f"{key.label} {best:.6g}")
        return TaskChoice(min(apps, key=by_order), form, "equal in all keys, first by id")

    def candidates(self, resource: ResourceId, form: Form) -> tuple[Candidate, ...]:
        """What would be considered for a place in this form, best first; none for an unknown resource.

        All keys are computed again, for the time of the last `Decide`. Where no such place is free, the
        answer is for one that becomes free.
        """
        record = self.state.resources.get(resource)
        if record is None:
            return ()
        place = self.place_of(record, self.now_s)
        ranked = [each for level in self.state.levels for each in self._rank(level, form, place)]
        return tuple(sorted(ranked, key=lambda candidate: bool(candidate.excluded)))

    def next_tasks(self, resources: list[ResourceRecord]) -> list[TaskCommand]:
        """What to queue at these resources, which were filled, and what to take back anywhere."""
        return []

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        self.state.validate()

    def predict(self, profile: Profile, place: OpenPlace) -> float:
        """T of a task placed here now, by equations (2) and (3)."""
        bandwidth = place.resource.spec.bandwidth_bytes_per_s
        return self._read_seconds(profile, place.io, place.readers, bandwidth) + profile.compute_s

    def delay(self, app: AppRecord, form: Form, place: OpenPlace) -> float:
        """Predicted T of a task over its T_base; 1 where nothing is known."""
        profile = app.profile(form, place.accelerator)
        return self.predict(profile, place) / profile.alone_s if profile else 1.0

    # Who is considered.

    def fitting(
        self, level: PriorityLevel, form: Form, place: OpenPlace, fits: Callable[[FormDemand], bool]
    ) -> list[AppRecord]:
        """Those of a priority that wait, have this form, are known in it and fit."""
        found = []
        accelerator, needs_figures = place.accelerator, self.needs_figures
        for app in level.with_form(form):
            demand = app.gpu_demand if form is Form.GPU else app.cpu_demand
            if demand is None or not fits(demand):
                continue
            if needs_figures and app.profile(form, accelerator) is None:
                continue
            found.append(app)
        return found

    def _rank(self, level: PriorityLevel, form: Form, place: OpenPlace) -> list[Candidate]:
        resource = place.resource
        is_free = resource.free_cores > 0 and (form is Form.CPU or resource.n_free_gpus > 0)
        fitting = self.fitting(level, form, place, resource.fits if is_free else resource.could_fit)
        allowed = self.allowed(fitting, form, level, place) if fitting else []
        ranked = []
        left = list(allowed)
        while left:
            app = self.best(left, form, place).app
            left.remove(app)
            ranked.append(self._candidate(app, form, place))
        for app in level.in_order():
            if app not in fitting:
                ranked.append(self._candidate(app, form, place, self._unfit(app, form, place)))
            elif app not in allowed:
                ranked.append(self._candidate(app, form, place, self.withheld(app, form, level, place)))
        return ranked

    def _candidate(self, app: AppRecord, form: Form, place: OpenPlace, excluded: str = "") -> Candidate:
        is_known = app.profile(form, place.accelerator) is not None
        keys = () if excluded else tuple((key.label, key.value(app, place)) for key in self.keys(form))
        return Candidate(app.app, keys, self.delay(app, form, place) if is_known else None, excluded)

    def _unfit(self, app: AppRecord, form: Form, place: OpenPlace) -> str:
        demand, spec = app.demand(form), place.resource.spec
        if demand is None:
            return f"has no form {form.value}"
        if not place.resource.could_fit(demand):
            whose, gpus = (" of a server", spec.server_gpus) if demand.is_served else ("", spec.gpus)
            needs = f"{demand.cores} cores, {demand.gpus} GPUs{whose}, {demand.memory_bytes} bytes"
            return f"needs {needs}; there are {spec.cores}, {gpus}, {spec.memory_bytes}"
        if self.needs_figures and app.profile(form, place.accelerator) is None:
            return f"its form {form.value} was not measured yet"
        return "needs more than is free"

    # One decision pass.

    def _decide(self, now_s: float) -> list[TaskCommand]:
        self.now_s = now_s
        self._useless.clear()
        commands = self._end_cancelled()
        if self.needs_figures:
            self.first_tasks.open(now_s)
        resources = self.state.open_resources()
        for resource in resources:
            self._start_queued(resource, now_s)
        for placed in sorted(self.state.unexpected.values(), key=lambda each: (each.started_s, each.task)):
            self._expect_started(placed)
        self.state.unexpected.clear()
        for resource in resources:
            self._fill(resource, now_s, commands)
        if self.options.next_tasks_per_slot:
            commands += self.next_tasks(resources)
        return commands

    def _end_cancelled(self) -> list[TaskCommand]:
        commands: list[TaskCommand] = []
        for task in sorted(self.state.to_end):
            placed = self.state.to_end[task]
            order = TakeBackTask if placed.is_queued else EndTask
            commands.append(order(task, placed.resource.spec.resource, f"{placed.app.app} was cancelled"))
            placed.is_ending = True
        self.state.to_end.clear()
        return commands

    def _start_queued(self, resource: ResourceRecord, now_s: float) -> None:
        """The worker starts what fits of its queue by itself."""
        for placed in list(resource.queued.values()) if resource.queued else ():
            if not placed.is_ending and resource.fits(placed.demand):
                self.state.start_queued(placed, now_s)

    def _fill(self, resource: ResourceRecord, now_s: float, commands: list[TaskCommand]) -> None:
        if resource.free_cores <= 0 or not self.state.levels:
            return
        if not self.first_tasks.is_needed and self.is_known_useless(resource):
            return
        place = self.place_of(resource, now_s)
        while self.state.levels:
            if (choice := self._next(place)) is None:
                return
            placed = self._start(choice, place)
            reason = _with_prediction(choice.reason, placed)
            name = resource.spec.resource
            commands.append(StartTask(placed.task, name, choice.form, reason, placed.predicted_s))
            if self.options.tasks_per_heartbeat == "one":
                self.state.open(resource)
                return

    def _next(self, place: OpenPlace) -> TaskChoice | None:
        first, resource = self.first_tasks, place.resource
        if not first.is_needed:
            return self._choose_or_note(place)
        if first.is_kept_quiet(resource):
            return None
        is_quiet = place.readers == 0 and not resource.queued
        if (is_quiet, *free_of(resource)) in self._useless:
            return None
        choice = first.choose(place) or self._choose_or_note(place) or first.fill(place)
        if choice is None:
            self._useless.add((is_quiet, *free_of(resource)))
        elif choice.is_probe:
            self._useless.clear()  # other tasks of its form may fill what is left over
        return choice

    def _choose_or_note(self, place: OpenPlace) -> TaskChoice | None:
        if self.is_known_useless(place.resource):
            return None
        choice = self.choose(place)
        if choice is None:
            self._useless.add(free_of(place.resource))
        return choice

    def is_known_useless(self, resource: ResourceRecord) -> bool:
        """Whether `choose` found nothing for another resource with as much free, earlier in this pass.

        Within a pass less and less waits, so there is nothing for this one either.
        """
        return free_of(resource) in self._useless

    def _start(self, choice: TaskChoice, place: OpenPlace) -> PlacedTask:
        placed = self.state.place(choice.app, choice.form, place.resource, place.now_s)
        self._expect(placed, place)
        if choice.is_probe:
            self.first_tasks.begin(placed)
        return placed

    def _expect_started(self, placed: PlacedTask) -> None:
        """The same for one that this policy did not start just now: what it reads may be in the sample."""
        place = self.place_of(placed.resource, placed.started_s)
        profile = placed.app.profile(placed.form, place.accelerator)
        if placed.in_sample and profile is not None and profile.request_bytes_per_s:
            place.io = max(0.0, place.io - profile.request_bytes_per_s)
            place.readers = max(0, place.readers - 1)
        self._expect(placed, place)

    def _expect(self, placed: PlacedTask, place: OpenPlace) -> None:
        """Set what is expected of a task that starts now, and what it adds to the place's I/O."""
        profile = placed.app.profile(placed.form, place.accelerator)
        if profile is None:
            placed.reads_until_s = _UNKNOWN_S
            place.readers += 1
        else:
            placed.predicted_s = self.predict(profile, place)
            read_s = placed.predicted_s - profile.compute_s
            placed.reads_until_s = place.now_s + read_s
            if profile.request_bytes_per_s:
                placed.request_bytes_per_s = profile.request_bytes_per_s
                place.io += profile.request_bytes_per_s
                place.readers += 1

    def place_of(self, resource: ResourceRecord, now_s: float) -> OpenPlace:
        """A resource with its I/O now."""
        return OpenPlace(resource, now_s, *resource.load(now_s))


def free_of(resource: ResourceRecord) -> tuple[object, ...]:
    """All on which it depends whether something can start there."""
    gpus = resource.free_gpus, resource.free_server_gpus
    return resource.spec.accelerator, resource.free_cores, *gpus, resource.free_memory_bytes


def _with_prediction(reason: str, placed: PlacedTask) -> str:
    if placed.predicted_s is None:
        return reason
    profile = placed.app.profile(placed.form, placed.resource.spec.accelerator)
    delay = placed.predicted_s / profile.alone_s if profile else 1.0
    return f"{reason}; {placed.predicted_s:.4g} s predicted, delay {delay:.3g}"
