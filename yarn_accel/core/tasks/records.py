"""The rows of a `TaskTable`: applications, tasks, their attempts, workers.

::

    WAITING ──▶ READY ──▶ QUEUED ──▶ RUNNING ──▶ DONE, FAILED, CANCELLED
    for predecessors ▲    at a worker   │
                     └──────────────────┘  taken back, lost, ended for others, or failed and may try again

A task has one assignment at most: that attempt's end counts, and no other one's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from yarn_accel.core.dags.model import DoneTask, SubmittedDag
from yarn_accel.core.tasks.applications import AppDefinition, TaskDefinition
from yarn_accel.core.tasks.attempt_orders import AttemptId
from yarn_accel.core.tasks.contention import Profile
from yarn_accel.core.tasks.events import IoSampled
from yarn_accel.core.tasks.history import AppHistory, EndedDag
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceId, ResourceSpec, TaskId

_MOST_ENDED = 32
_OF_DEFINITION = TaskId("")
_ReadyKey = tuple[float, int, TaskId]
by_order = attrgetter("order")
#: Of a worker that has not reported yet.
_NOT_REPORTED = ResourceSpec(ResourceId(""), "", 0, 0, 0, 1.0)


class TaskState(Enum):
    """Where a task is."""

    WAITING = "waiting"
    READY = "ready"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    __hash__ = object.__hash__  # see `Form`

    @property
    def is_final(self) -> bool:
        """Nothing follows."""
        return self in _FINAL


_FINAL = frozenset((TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED))


class Drop(Enum):
    """Why an attempt is to leave its worker."""

    TAKE_BACK = "take-back"
    END = "end"
    OVER = "over"
    """Its application was cancelled, or has failed."""


@dataclass(slots=True, eq=False)
class Beliefs:
    """What a policy computed of an application from its figures; it may be dropped at any moment.

    Attributes:
        version: of the figures and of the kinds of nodes that it was computed from.
        cpu: the form cpu; None while unknown.
        gpu: the form gpu by kind of accelerator.
        affinities: equation (4) by kind of node, as far as it was asked for.
        is_complete: nothing of its forms is unknown.
        gpu_rate: tasks per second that all GPUs together do, where it was asked for.
        gpu_gain: how much faster than one core these are, in doublings, where it was asked for.
        best_s: the least seconds of a task alone in any form, where it was asked for.
    """

    version: tuple[int, int]
    cpu: Profile | None
    gpu: dict[str, Profile | None]
    is_complete: bool = False
    affinities: dict[tuple[str, int, float], float] = field(default_factory=dict)
    gpu_rate: float | None = None
    gpu_gain: float | None = None
    best_s: float | None = None


#: Before a policy has looked at an application.
NO_BELIEFS = Beliefs((-1, -1), None, {})


@dataclass(slots=True, eq=False)
class ServedApp:
    """An application that has not ended.

    Attributes:
        definition: as it was submitted; programs and tasks are empty where nothing is run by it.
        number: of the applications of a service, from 1; a part of its attempts' names.
        begun_at: Unix time of its submission, in seconds.
        tasks: in the order of its definition.
        history: its tasks that are done.
        counts: of its tasks by state.
        is_over: it was cancelled or has failed; `error` says why it failed.
        dag: what a policy plans of it, once it is opened; None: it is no DAG.
        is_paused: nothing of it starts, which only DAGs know; `resumed_s`: when it went on last.
        n_interrupted: its attempts that were ended for other tasks.
        lost_s: so long these had run.
        core_s_before, core_s_after, own_makespan_s, n_moved: as of `EndedDag`; the second and third are known
            when the last task of a DAG ends.
        start_s: when it was opened for this master's policy.
        order: its start, then its id: who is earlier, where nothing else decides.
        cpu_demand: what a task on a core occupies; None without that form.
        gpu_demand: the same for a GPU.
        beliefs: a cache, see there.
        ready: tasks that wait for a place, with their place in the order.
        placed: its attempts that count, queued or running, by task; `queued` those that wait at a worker,
            `n_queued_cpu` of them in the form cpu.
        n_alloc: #Alloc, tasks dispatched since `start_s` in either form; failed ones count, those that never
            began do not.
        n_gpu: those of them on GPUs.
        cores, gpus, memory_bytes: what its attempts occupy.
        probes: what is being measured now: a kind of accelerator, or None for the form cpu.
        ready_since_s: since when something waits without a pause.
    """

    definition: AppDefinition
    number: int = 0
    begun_at: float = 0.0
    tasks: list[ServedTask] = field(default_factory=list)
    history: AppHistory = field(default_factory=AppHistory)
    counts: dict[TaskState, int] = field(default_factory=lambda: dict.fromkeys(TaskState, 0))
    is_over: bool = False
    error: str = ""
    dag: SubmittedDag | None = None
    is_paused: bool = False
    resumed_s: float = 0.0
    n_interrupted: int = 0
    lost_s: float = 0.0
    core_s_before: float = 0.0
    core_s_after: float | None = None
    own_makespan_s: float | None = None
    n_moved: int = 0
    start_s: float = 0.0
    ready_since_s: float = 0.0
    n_alloc: int = 0
    n_gpu: int = 0
    n_queued_cpu: int = 0
    cores: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    beliefs: Beliefs = NO_BELIEFS
    ready: dict[TaskId, _ReadyKey] = field(default_factory=dict)
    heap: list[_ReadyKey] = field(default_factory=list)
    placed: dict[TaskId, Assignment] = field(default_factory=dict)
    queued: dict[TaskId, Assignment] = field(default_factory=dict)
    probes: set[str | None] = field(default_factory=set)
    spec: AppSpec = field(init=False)
    id: AppId = field(init=False)
    order: tuple[float, AppId] = field(init=False)
    cpu_demand: FormDemand | None = field(init=False)
    gpu_demand: FormDemand | None = field(init=False)

    def __post_init__(self) -> None:
        self.spec = spec = self.definition.spec
        self.id = spec.app
        self.order = (self.start_s, spec.app)
        self.cpu_demand = spec.demands.get(Form.CPU)
        self.gpu_demand = spec.demands.get(Form.GPU)

    @property
    def n_open(self) -> int:
        """Tasks that have not ended."""
        counts = self.counts
        n_over = counts[TaskState.DONE] + counts[TaskState.FAILED] + counts[TaskState.CANCELLED]
        return len(self.tasks) - n_over

    @property
    def n_waiting(self) -> int:
        """Tasks that are ready and have not begun."""
        return len(self.ready) + len(self.queued)

    @property
    def is_mixed(self) -> bool:
        """Whether its tasks run on cores and on GPUs."""
        return self.cpu_demand is not None and self.gpu_demand is not None

    def demand(self, form: Form) -> FormDemand | None:
        """What a task of this form occupies; None without that form."""
        return self.gpu_demand if form is Form.GPU else self.cpu_demand

    def is_measured_now(self, form: Form, accelerator: str) -> bool:
        """Whether a first task of this form runs."""
        return (accelerator if form is Form.GPU else None) in self.probes

    def profile(self, form: Form, accelerator: str) -> Profile | None:
        """What is believed of a form on a kind of node; None while unknown."""
        beliefs = self.beliefs
        return beliefs.gpu.get(accelerator) if form is Form.GPU else beliefs.cpu


@dataclass(slots=True, eq=False)
class ServedTask:
    """One task.

    Attributes:
        partition: its number within its application, from 0.
        n_missing: predecessors that are not done.
        n_attempts: so many were assigned; the number of the next one.
        avoid: workers on which it failed.
        n_elsewhere: so often it was not started where it had failed.
        ready_s: since when it could run; it may wait at a worker.
        n_moves: how often it was taken back from a worker's queue.
        n_interrupts: how often an attempt was ended for another task.
        done: where and when it ran that is done of a DAG.
        id: empty: its definition's.
    """

    definition: TaskDefinition
    app: ServedApp
    partition: int
    state: TaskState = TaskState.WAITING
    n_missing: int = 0
    successors: list[ServedTask] | None = None
    n_attempts: int = 0
    n_failures: int = 0
    n_crashes: int = 0
    assignment: Assignment | None = None
    avoid: set[ResourceId] | None = None
    n_elsewhere: int = 0
    ready_s: float = 0.0
    n_moves: int = 0
    n_interrupts: int = 0
    done: DoneTask | None = None
    error: str = ""
    id: TaskId = _OF_DEFINITION

    def __post_init__(self) -> None:
        self.id = self.id or self.definition.task

    def move(self, state: TaskState) -> None:
        """Change its state."""
        counts = self.app.counts
        counts[self.state] -= 1
        counts[state] += 1
        self.state = state


@dataclass(slots=True, eq=False)
class Assignment:
    """An attempt that a worker has, is to have, or is to leave.

    Attributes:
        number: of the task's attempts, from 0; -1: its place is reserved until the end of a pass.
        demand: what it occupies while it runs.
        is_start: to start now, not to wait in the worker's queue.
        drop: why it is to leave; None: it is not.
        listed_in: the number of this master's first order that had it; 0: an earlier master's may have;
            None: no order had it, so the worker knows nothing of it.
        dropped_in: the number of this master's first order that had it no more.
        started_s: when its worker began it; None: it has not.
        predicted_s: what it was expected to take there; None: nothing was known.
        slot: of a DAG's, the core of its worker on which it runs, or is to run where it waits; None: any, or
            where it runs, none was left. `slot_s`: since when it runs there, or is to.
        is_counted: it counts in the places of its worker and in its application; False: an earlier master
            assigned it, and its worker has not reported yet.
        is_queued: it occupies nothing yet, and can be taken back.
        has_begun: its worker said so, or is to have begun it.
        since_s: when it was placed, was expected to begin or began.
        ended_s: when it ended, for I/O until the next sample.
        in_sample: the last sample counts what it reads.
        reads_until_s: when it stops to read, as predicted; infinite if nothing was known.
        request_bytes_per_s: what it requests until then.
    """

    task: ServedTask
    number: int
    attempt: AttemptId
    worker: TaskWorker
    form: Form
    demand: FormDemand
    is_start: bool
    reason: str
    drop: Drop | None = None
    listed_in: int | None = None
    dropped_in: int | None = None
    started_s: float | None = None
    predicted_s: float | None = None
    slot: int | None = None
    slot_s: float = 0.0
    is_counted: bool = False
    is_queued: bool = False
    has_begun: bool = False
    in_sample: bool = False
    since_s: float = 0.0
    ended_s: float = 0.0
    reads_until_s: float = 0.0
    request_bytes_per_s: float = 0.0
    app: ServedApp = field(init=False)

    def __post_init__(self) -> None:
        self.app = self.task.app

    @property
    def place(self) -> ResourceId:
        """The core on which it runs; where its worker has more than cores, the one that was taken last."""
        slots, n = self.worker.slots, self.slot
        if n is None and slots:
            n = max(range(len(slots)), key=lambda at: _begun_last(slots[at]))
        return self.worker.place(n or 0)

    @property
    def is_sampled(self) -> bool:
        """Whether its worker's last sample is from after its begin."""
        sample = self.worker.sample
        return sample is not None and self.since_s <= sample.sampled_s


def _begun_last(occupant: Assignment | None) -> tuple[bool, float]:
    return occupant is None, 0.0 if occupant is None else occupant.since_s


@dataclass(slots=True, eq=False)
class TaskWorker:
    """A worker: what it is to have by its orders, what its attempts occupy, and its I/O.

    Attributes:
        spec: has no cores until it reported to this master.
        report_sequence: of its newest report.
        busy_s: when it last had anything.
        is_leaving: it gets nothing more.
        bytes_per_s: of its node, as it last said; None: not measured.
        starts: what runs or is to start now, in this order.
        queue: what starts after these, in this order.
        dropped: what is to leave it and has not yet.
        running, queued: its attempts that count: those that occupy something, and the others, of which some
            may be about to leave.
        slots: its cores, with what DAGs run there.
        free_server_gpus: below 0 where the server's GPUs became fewer while tasks used them.
        sample: the last one.
        ended: what ended since then.
    """

    id: ResourceId
    incarnation: str = ""
    spec: ResourceSpec = _NOT_REPORTED
    report_sequence: int = -1
    busy_s: float = 0.0
    is_leaving: bool = False
    problem: str = ""
    bytes_per_s: float | None = None
    starts: dict[AttemptId, Assignment] = field(default_factory=dict)
    queue: list[Assignment] = field(default_factory=list)
    dropped: dict[AttemptId, Assignment] = field(default_factory=dict)
    free_cores: int = 0
    free_gpus: int = 0
    free_memory_bytes: int = 0
    free_server_gpus: int = 0
    running: dict[TaskId, Assignment] = field(default_factory=dict)
    queued: dict[TaskId, Assignment] = field(default_factory=dict)
    slots: list[Assignment | None] = field(default_factory=list)
    sample: IoSampled | None = None
    ended: deque[Assignment] = field(default_factory=lambda: deque(maxlen=_MOST_ENDED))

    def place(self, slot: int) -> ResourceId:
        """The name of one of its cores."""
        return ResourceId(f"{self.id}#{slot}")

    @property
    def has_reported(self) -> bool:
        """To this master."""
        return self.spec is not _NOT_REPORTED

    @property
    def is_idle(self) -> bool:
        """It has nothing."""
        return not (self.starts or self.queue or self.dropped)

    @property
    def is_usable(self) -> bool:
        """It may be given something."""
        return self.has_reported and not self.is_leaving

    # ---- its orders

    def held(self) -> Iterator[Assignment]:
        """All that it has or is to leave it."""
        yield from self.starts.values()
        yield from self.queue
        yield from self.dropped.values()

    def used(self) -> FormDemand:
        """What its attempts that run occupy together of its own: not the GPUs of pipeline servers.

        That is no more than it has: where the output of one is written, the next has its core already.
        """
        demands = [each.demand for each in self.held() if each.started_s is not None]
        return FormDemand(
            min(self.spec.cores, sum(each.cores for each in demands)),
            min(self.spec.gpus, sum(each.gpus for each in demands if not each.is_served)),
            min(self.spec.memory_bytes, sum(each.memory_bytes for each in demands)),
        )

    def add(self, assignment: Assignment, position: int) -> None:
        """Add an attempt to what it is to have; a position below 0: to start now."""
        if position < 0:
            self.starts[assignment.attempt] = assignment
        else:
            self.queue.insert(position, assignment)

    def start(self, assignment: Assignment) -> None:
        """An attempt of its queue runs, or is to."""
        if not assignment.is_start:
            self.queue.remove(assignment)
            assignment.is_start = True
            self.starts[assignment.attempt] = assignment

    def discard(self, assignment: Assignment) -> None:
        """Remove an attempt from where it is."""
        if assignment.drop is not None:
            del self.dropped[assignment.attempt]
        elif assignment.is_start:
            del self.starts[assignment.attempt]
        else:
            self.queue.remove(assignment)

    def keep(self, assignment: Assignment) -> None:
        """An attempt that was to be taken back runs already, and goes on."""
        del self.dropped[assignment.attempt]
        assignment.drop, assignment.dropped_in, assignment.is_start = None, None, True
        self.starts[assignment.attempt] = assignment

    def drop(self, assignment: Assignment, why: Drop) -> None:
        """An attempt is to leave."""
        if assignment.drop is None:
            self.discard(assignment)
            self.dropped[assignment.attempt] = assignment
        assignment.drop = why

    # ---- its places and its I/O

    def fits(self, demand: FormDemand) -> bool:
        """Whether a task can start here now."""
        return (
            demand.cores <= self.free_cores
            and demand.gpus <= (self.free_server_gpus if demand.is_served else self.free_gpus)
            and demand.memory_bytes <= self.free_memory_bytes
        )

    def could_fit(self, demand: FormDemand) -> bool:
        """Whether a task can start here when nothing else runs."""
        return self.spec.fits(demand)

    @property
    def n_free_gpus(self) -> int:
        """Its own and the server's."""
        return max(self.free_gpus, 0) + max(self.free_server_gpus, 0)

    def take_sample(self, sample: IoSampled) -> None:
        """From now on I/O is what this sample says, and what it does not yet count."""
        self.sample = sample
        later = [each for each in self.ended if each.ended_s > sample.sampled_s]
        self.ended.clear()
        self.ended.extend(later)
        for each in (*self.running.values(), *later):
            each.in_sample = each.since_s <= sample.sampled_s

    def load(self, now_s: float) -> tuple[float, int]:
        """TotalIO in bytes per second, and #IOtask.

        It is the last sample, and by their figures what began since then and still reads; less what read at
        the sample and has ended since. Without any sample it is the requests of all that reads.
        """
        sample = self.sample
        io, readers = 0.0, 0
        if sample is not None:
            io, readers = sample.io_bytes_per_s, sample.readers
            for each in self.ended:
                if each.in_sample and sample.sampled_s < min(each.reads_until_s, each.ended_s):
                    io = max(0.0, io - each.request_bytes_per_s)
                    readers = max(0, readers - 1)
        for each in self.running.values():
            if not each.in_sample and now_s < each.reads_until_s:
                io, readers = io + each.request_bytes_per_s, readers + 1
        return io, readers


@dataclass(slots=True, eq=False)
class PriorityLevel:
    """The applications of one priority whose tasks wait, in three queues, each by start (HDAS 2.1.1)."""

    priority: int
    gpu_only: list[ServedApp] = field(default_factory=list)
    cpu_only: list[ServedApp] = field(default_factory=list)
    mixed: list[ServedApp] = field(default_factory=list)

    def queue_of(self, app: ServedApp) -> list[ServedApp]:
        """The queue in which an application stands while its tasks wait."""
        if app.is_mixed:
            return self.mixed
        return self.cpu_only if app.gpu_demand is None else self.gpu_only

    def with_form(self, form: Form) -> list[ServedApp]:
        """Those that have this form."""
        return [*(self.gpu_only if form is Form.GPU else self.cpu_only), *self.mixed]

    def in_order(self) -> list[ServedApp]:
        """All of them, the earliest first."""
        found = [*self.gpu_only, *self.cpu_only, *self.mixed]
        is_one_queue = len(found) in (len(self.gpu_only), len(self.cpu_only), len(self.mixed))
        return found if is_one_queue else sorted(found, key=by_order)


@dataclass(frozen=True, slots=True)
class ChosenRule:
    """By which of its rules a policy decides since it last worked out what each would lead to.

    Attributes:
        why: what it expected of each then; empty: it was not worked out.
        late_s: all should have ended well before, by this rule; infinite: nobody knows.
        n_opened, n_kind_changes: those of the table then.
    """

    rule: str
    why: str
    late_s: float
    n_opened: int
    n_kind_changes: int


@dataclass(frozen=True, slots=True)
class EndedApp:
    """What is remembered of an application that ended.

    Attributes:
        demands: form, cores and GPUs of its tasks.
        begun_at: Unix time of its submission, in seconds.
        ended_at: the same of its end.
        history: its tasks that were done; of the applications that ended longest ago they are dropped.
    """

    app: AppId
    number: int
    counts: tuple[tuple[str, int], ...]
    is_cancelled: bool
    error: str
    name: str
    demands: tuple[tuple[str, int, int], ...]
    begun_at: float
    ended_at: float
    history: AppHistory
    dag: EndedDag | None = None
