"""What all policies share: resources are filled one after the other, and each task says why it is there.

A policy is a subclass with a table of keys for each form; the first key decides, the next where it is equal.
It may also keep applications from places, as by a tail guard. The rest is here: what is predicted of a task,
what is cancelled; and in `first_tasks`, what is done where nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from yarn_accel.core.tasks.commands import Candidate, StartTask, TaskCommand
from yarn_accel.core.tasks.contention import READ_SECONDS, Profile
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.first_tasks import FirstTasks
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.core.tasks.policies.values import FORMS, Key, OpenPlace, TaskChoice
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.records import Assignment, Beliefs, PriorityLevel, ServedApp, TaskWorker, by_order
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import Form, FormDemand, ResourceId

_UNKNOWN_S = float("inf")


class FillingPolicy(TaskPolicy):
    """Fills the workers where something became possible, in the order of their ids.

    It keeps nothing from one pass to the next that cannot be computed again: that is in the table.

    Attributes:
        table, figures, now_s: those of the pass that goes on, or of the last one.
        first_tasks: what is done in it where nothing is known.
    """

    name: ClassVar[str]
    needs_figures: ClassVar[bool] = False
    uses_gpus: ClassVar[bool] = True
    #: Forms in which `allowed` may refuse a place later to what it once let have it, as time passes.
    withheld_later: ClassVar[tuple[Form, ...]] = ()

    table: TaskTable
    figures: FigureStore
    first_tasks: FirstTasks

    def __init__(self, options: PolicyOptions | None = None) -> None:
        self.options = options or PolicyOptions()
        self._read_seconds = READ_SECONDS[self.options.above_saturation]
        self.now_s = 0.0
        #: What was free where nothing that waits could start, in the pass that goes on.
        self._useless: set[tuple[object, ...]] = set()
        #: What the beliefs of all applications were computed from last; a cache, as they are.
        self._versions: tuple[object, ...] = ()

    def follow(self, table: TaskTable) -> None:
        """Full workers are of interest, too, where tasks are queued there."""
        table.has_queues = self.options.next_tasks_per_slot > 0

    def prepare(self) -> None:
        """Look at the table before a pass."""

    def keys(self, form: Form) -> tuple[Key, ...]:
        """What decides who gets a place in this form; after them the earlier start, then the id."""
        raise NotImplementedError

    def allowed(
        self, apps: list[ServedApp], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[ServedApp]:
        """Those of `apps`, which fit, that this policy lets have the place."""
        return apps

    def withheld(self, app: ServedApp, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """Why `allowed` left an application out, for its owner."""
        return "this policy keeps it from the place"

    def choose(self, place: OpenPlace) -> TaskChoice | None:
        """The next task for a resource, None if nothing that waits can start there now.

        Priorities from high to low, in each GPUs first, then cores.
        """
        resource = place.resource
        for level in self.table.levels:
            for form in FORMS:
                if form is Form.GPU and resource.n_free_gpus <= 0:
                    continue
                apps = self.fitting(level, form, place, resource.fits)
                if apps and (apps := self.allowed(apps, form, level, place)):
                    return self.best(apps, form, place)
        return None

    def best(self, apps: list[ServedApp], form: Form, place: OpenPlace) -> TaskChoice:
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

    def learn(
        self,
        table: TaskTable,
        figures: FigureStore,
        assignment: Assignment,
        measured: TaskMeasurement,
        ran_s: float,
    ) -> None:
        """Believe it from now on; what was unknown may be placed everywhere now."""
        if self.options.learns:
            spec, form = assignment.app.spec, assignment.form
            accelerator = assignment.worker.spec.accelerator
            was_unknown = figures.profile(spec, form, accelerator) is None
            figures.observe(spec, form, accelerator, measured, assignment.predicted_s)
            if was_unknown:
                table.open_all()

    def candidates(
        self, table: TaskTable, figures: FigureStore, now_s: float, worker: ResourceId, form: Form
    ) -> tuple[Candidate, ...]:
        """What would be considered for a place in this form, best first; none for an unknown worker.

        All keys are computed again. Where no such place is free, the answer is for one that becomes free.
        """
        record = table.resources.get(worker)
        if record is None:
            return ()
        self._look_at(table, figures, now_s)
        place = self.place_of(record, now_s)
        ranked = [each for level in table.levels for each in self._rank(level, form, place)]
        return tuple(sorted(ranked, key=lambda candidate: bool(candidate.excluded)))

    def next_tasks(self, resources: list[TaskWorker]) -> Iterator[TaskCommand]:
        """What to queue at these workers, which were filled, and what to take back anywhere."""
        yield from ()

    def predict(self, profile: Profile, place: OpenPlace) -> float:
        """T of a task placed here now, by equations (2) and (3)."""
        bandwidth = place.bandwidth_bytes_per_s
        return self._read_seconds(profile, place.io, place.readers, bandwidth) + profile.compute_s

    def delay(self, app: ServedApp, form: Form, place: OpenPlace) -> float:
        """Predicted T of a task over its T_base; 1 where nothing is known."""
        profile = app.profile(form, place.accelerator)
        return self.predict(profile, place) / profile.alone_s if profile else 1.0

    # Who is considered.

    def fitting(
        self, level: PriorityLevel, form: Form, place: OpenPlace, fits: Callable[[FormDemand], bool]
    ) -> list[ServedApp]:
        """Those of a priority that wait, have this form, are known in it and fit."""
        is_gpu, accelerator, needs_figures = form is Form.GPU, place.accelerator, self.needs_figures
        found = []
        for app in level.with_form(form):
            demand = app.gpu_demand if is_gpu else app.cpu_demand
            if demand is None or not fits(demand):
                continue
            if needs_figures:
                beliefs = app.beliefs
                if (beliefs.gpu.get(accelerator) if is_gpu else beliefs.cpu) is None:
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

    def _candidate(self, app: ServedApp, form: Form, place: OpenPlace, excluded: str = "") -> Candidate:
        is_known = app.profile(form, place.accelerator) is not None
        keys = () if excluded else tuple((key.label, key.value(app, place)) for key in self.keys(form))
        return Candidate(app.id, keys, self.delay(app, form, place) if is_known else None, excluded)

    def _unfit(self, app: ServedApp, form: Form, place: OpenPlace) -> str:
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

    # One pass.

    def plan(self, table: TaskTable, figures: FigureStore, now_s: float) -> Iterator[TaskCommand]:
        """Start what can start, then queue the next tasks where that is wanted."""
        self._look_at(table, figures, now_s)
        self._useless.clear()
        self.prepare()
        if self.needs_figures:
            self.first_tasks.open(now_s)
        workers = table.open_resources()
        for worker in workers:
            self._start_queued(worker)
        for begun in sorted(table.unexpected.values(), key=lambda each: (each.since_s, each.task.id)):
            self._expect_started(begun)
        table.unexpected.clear()
        for worker in workers:
            yield from self._fill(worker)
        if self.options.next_tasks_per_slot:
            yield from self.next_tasks(workers)

    def _look_at(self, table: TaskTable, figures: FigureStore, now_s: float) -> None:
        """Have the beliefs of all applications computed that are not, or not from today's figures."""
        self.table, self.figures, self.now_s = table, figures, now_s
        self.first_tasks = FirstTasks(table, self.options.measure_wait_s)
        versions = (table, figures, figures.n_changes, table.n_kind_changes, table.n_opened)
        if versions == self._versions:
            return
        self._versions = versions
        for app in table.apps.values():
            version = (figures.version(app.spec.name), table.n_kind_changes)
            if app.beliefs.version != version:
                app.beliefs = self._believe(app, version)

    def _believe(self, app: ServedApp, version: tuple[int, int]) -> Beliefs:
        figures, spec = self.figures, app.spec
        cpu, gpu = None, {}
        if app.cpu_demand is not None:
            cpu = figures.profile(spec, Form.CPU, "")
        if app.gpu_demand is not None:
            gpu = {kind: figures.profile(spec, Form.GPU, kind) for kind in self.table.accelerators}
        is_complete = (cpu is not None or app.cpu_demand is None) and None not in gpu.values()
        return Beliefs(version, cpu, gpu, is_complete)

    def _start_queued(self, worker: TaskWorker) -> None:
        """The worker starts what fits of its queue by itself."""
        for queued in list(worker.queued.values()) if worker.queued else ():
            if queued.drop is None and worker.fits(queued.demand):
                self.table.start_queued(queued, self.now_s)

    def _fill(self, worker: TaskWorker) -> Iterator[TaskCommand]:
        table = self.table
        if worker.free_cores <= 0 or not table.levels:
            return
        if not self.first_tasks.is_needed and self.is_known_useless(worker):
            return
        place = self.place_of(worker, self.now_s)
        while table.levels:
            if (choice := self._next(place)) is None:
                return
            app, form = choice.app, choice.form
            task, profile = table.next_ready(app), app.profile(form, place.accelerator)
            predicted_s = None if profile is None else self.predict(profile, place)
            reason = _with_prediction(choice.reason, predicted_s, profile)
            yield StartTask(task.id, worker.id, form, reason, predicted_s)
            if (started := task.assignment) is None:
                return  # the task is not to be had for the moment
            self._expect(started, place, profile, predicted_s)
            if choice.is_probe:
                table.probe(started)
            if self.options.tasks_per_heartbeat == "one":
                table.open(worker)
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

    def is_known_useless(self, resource: TaskWorker) -> bool:
        """Whether `choose` found nothing for another worker with as much free, earlier in this pass.

        Within a pass less and less waits, so there is nothing for this one either.
        """
        return free_of(resource) in self._useless

    def _expect_started(self, begun: Assignment) -> None:
        """The same for an attempt that no order started just now: what it reads may be in the sample."""
        place = self.place_of(begun.worker, begun.since_s)
        profile = begun.app.profile(begun.form, place.accelerator)
        if begun.in_sample and profile is not None and profile.request_bytes_per_s:
            place.io = max(0.0, place.io - profile.request_bytes_per_s)
            place.readers = max(0, place.readers - 1)
        predicted_s = None if profile is None else self.predict(profile, place)
        self._expect(begun, place, profile, predicted_s)

    def _expect(
        self, started: Assignment, place: OpenPlace, profile: Profile | None, predicted_s: float | None
    ) -> None:
        """Note what is expected of an attempt that starts now, and what it adds to the place's I/O."""
        if profile is None or predicted_s is None:
            started.reads_until_s = _UNKNOWN_S
            place.readers += 1
            return
        started.predicted_s = predicted_s
        started.reads_until_s = place.now_s + (predicted_s - profile.compute_s)
        if profile.request_bytes_per_s:
            started.request_bytes_per_s = profile.request_bytes_per_s
            place.io += profile.request_bytes_per_s
            place.readers += 1

    def place_of(self, resource: TaskWorker, now_s: float) -> OpenPlace:
        """A resource with its I/O now."""
        return OpenPlace(resource, now_s, *resource.load(now_s))


def free_of(resource: TaskWorker) -> tuple[object, ...]:
    """All on which it depends whether something can start there."""
    gpus = resource.free_gpus, resource.free_server_gpus
    return resource.spec.accelerator, resource.free_cores, *gpus, resource.free_memory_bytes


def _with_prediction(reason: str, predicted_s: float | None, profile: Profile | None) -> str:
    if predicted_s is None or profile is None:
        return reason
    return f"{reason}; {predicted_s:.4g} s predicted, delay {predicted_s / profile.alone_s:.3g}"
