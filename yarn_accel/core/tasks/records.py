"""The records of `SchedulingState`: applications, tasks in their places, resources, priorities."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter

from yarn_accel.core.tasks.contention import Profile
from yarn_accel.core.tasks.events import IoSampled
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceSpec, TaskId

_MOST_ENDED = 32
_ReadyKey = tuple[float, int, TaskId]
by_order = attrgetter("order")


@dataclass(slots=True, eq=False)
class AppRecord:
    """An application while anything of it waits or runs, or may yet.

    Attributes:
        order: start of the application, then its id: who is earlier, where nothing else decides.
        cpu_demand: what a task on a core occupies; None without that form.
        gpu_demand: the same for a GPU.
        cpu: what is believed of the form cpu; None while unknown.
        gpu: the same by kind of accelerator.
        affinities: equation (4) by kind of node, as far as it was computed from these figures.
        gpu_rate: tasks per second that all GPUs together do, where a policy computed it from these figures.
        ready: tasks that wait, with their place in the order.
        placed: its tasks that are queued or run, by id; `queued` those that wait at a worker,
            `n_queued_cpu` of them in the form cpu.
        n_alloc: #Alloc, tasks dispatched so far in either form; failed ones count, those that never began
            do not.
        n_gpu: those of them on GPUs.
        probes: what is being measured now: a kind of accelerator, or None for the form cpu.
        ready_since_s: since when something waits without a pause.
    """

    spec: AppSpec
    app: AppId
    order: tuple[float, AppId]
    start_s: float
    cpu_demand: FormDemand | None
    gpu_demand: FormDemand | None
    cpu: Profile | None = None
    gpu: dict[str, Profile | None] = field(default_factory=dict)
    affinities: dict[tuple[str, int, float], float] = field(default_factory=dict)
    gpu_rate: float | None = None
    ready: dict[TaskId, _ReadyKey] = field(default_factory=dict)
    heap: list[_ReadyKey] = field(default_factory=list)
    placed: dict[TaskId, PlacedTask] = field(default_factory=dict)
    queued: dict[TaskId, PlacedTask] = field(default_factory=dict)
    n_queued_cpu: int = 0
    probes: set[str | None] = field(default_factory=set)
    n_alloc: int = 0
    n_gpu: int = 0
    n_done: int = 0
    cores: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    ready_since_s: float = 0.0
    is_cancelled: bool = False

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
        return self.gpu.get(accelerator) if form is Form.GPU else self.cpu


@dataclass(slots=True, eq=False)
class PlacedTask:
    """A task that is queued at a resource, on its way there or running.

    Attributes:
        is_queued: it occupies nothing yet, and can be taken back.
        in_sample: the last sample counts what it reads.
        has_begun: its worker said so.
        is_ending: the policy ordered to end it or to take it back.
        started_s: when it began or was ordered to.
        ended_s: when it ended, for I/O until the next sample.
        reads_until_s: when it stops to read, as predicted; infinite if nothing was known.
        request_bytes_per_s: what it requests until then.
        predicted_s: the seconds predicted; None if nothing was known.
    """

    task: TaskId
    app: AppRecord
    resource: ResourceRecord
    form: Form
    demand: FormDemand
    started_s: float
    is_queued: bool = False
    has_begun: bool = False
    is_ending: bool = False
    in_sample: bool = False
    ended_s: float = 0.0
    reads_until_s: float = 0.0
    request_bytes_per_s: float = 0.0
    predicted_s: float | None = None


@dataclass(slots=True, eq=False)
class ResourceRecord:
    """The worker of a node: what is free, what is there, and its I/O.

    Attributes:
        free_server_gpus: below 0 where the server's GPUs became fewer while tasks used them.
    """

    spec: ResourceSpec
    free_cores: int
    free_gpus: int
    free_memory_bytes: int
    free_server_gpus: int = 0
    running: dict[TaskId, PlacedTask] = field(default_factory=dict)
    queued: dict[TaskId, PlacedTask] = field(default_factory=dict)
    sample: IoSampled | None = None
    ended: deque[PlacedTask] = field(default_factory=lambda: deque(maxlen=_MOST_ENDED))

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
        later = [placed for placed in self.ended if placed.ended_s > sample.sampled_s]
        self.ended.clear()
        self.ended.extend(later)
        for placed in (*self.running.values(), *later):
            placed.in_sample = placed.started_s <= sample.sampled_s

    def load(self, now_s: float) -> tuple[float, int]:
        """TotalIO in bytes per second, and #IOtask."""
        sample = self.sample
        io, readers = 0.0, 0
        if sample is not None:
            io, readers = sample.io_bytes_per_s, sample.readers
            for placed in self.ended:
                if placed.in_sample and sample.sampled_s < min(placed.reads_until_s, placed.ended_s):
                    io = max(0.0, io - placed.request_bytes_per_s)
                    readers = max(0, readers - 1)
        for placed in self.running.values():
            if not placed.in_sample and now_s < placed.reads_until_s:
                io, readers = io + placed.request_bytes_per_s, readers + 1
        return io, readers


@dataclass(slots=True, eq=False)
class PriorityLevel:
    """The applications of one priority whose tasks wait, in three queues, each by start."""

    priority: int
    gpu_only: list[AppRecord] = field(default_factory=list)
    cpu_only: list[AppRecord] = field(default_factory=list)
    mixed: list[AppRecord] = field(default_factory=list)

    def queue_of(self, app: AppRecord) -> list[AppRecord]:
        """The queue in which an application stands while its tasks wait."""
        if app.is_mixed:
            return self.mixed
        return self.cpu_only if app.gpu_demand is None else self.gpu_only

    def with_form(self, form: Form) -> list[AppRecord]:
        """Those that have this form."""
        return [*(self.gpu_only if form is Form.GPU else self.cpu_only), *self.mixed]

    def in_order(self) -> list[AppRecord]:
        """All of them, the earliest first."""
        return sorted([*self.gpu_only, *self.cpu_only, *self.mixed], key=by_order)
