"""What a simulated node and a simulated application have at the moment."""

from __future__ import annotations

from collections.abc import Iterator

from yarn_accel.core.tasks.outcome import NodeUse
from yarn_accel.core.tasks.values import AppFigures, Form, FormDemand, FormFigures, ResourceSpec, TaskId
from yarn_accel.sim.disk import Reader, SharedDisk
from yarn_accel.sim.world import AppEntry


class SimulatedApp:
    """An application, and which of its tasks wait for an order."""

    __slots__ = ("demands", "figures", "is_submitted", "n_left", "spec", "start_s", "waiting")

    def __init__(self, app: AppEntry, start_s: float) -> None:
        self.spec = app.spec
        self.figures: AppFigures = app.figures
        self.demands = self.spec.demands
        self.start_s = start_s
        self.n_left = app.tasks
        self.is_submitted = False
        self.waiting: set[TaskId] = set()

    def tasks(self) -> Iterator[TaskId]:
        """The names of all its tasks, in order."""
        width = len(str(self.spec.n_tasks))
        return (TaskId(f"{self.spec.app}-{number:0{width}}") for number in range(1, self.spec.n_tasks + 1))


class QueuedTask:
    """A task in a node's queue."""

    __slots__ = ("app", "form", "predicted_s", "reason", "task")

    def __init__(
        self, app: SimulatedApp, task: TaskId, form: Form, reason: str, predicted_s: float | None = None
    ) -> None:
        self.app = app
        self.task = task
        self.form = form
        self.reason = reason
        self.predicted_s = predicted_s


class RunningTask:
    """A task on a node, from its start to its end."""

    __slots__ = (
        "computes_since_s",
        "demand",
        "figures",
        "is_alone",
        "is_over",
        "is_reading",
        "left_bytes",
        "node",
        "queued",
        "reader",
        "reads_since_s",
        "start_s",
    )

    def __init__(self, queued: QueuedTask, node: SimulatedNode, figures: FormFigures, now_s: float) -> None:
        self.queued = queued
        self.node = node
        self.figures = figures
        self.demand = queued.app.demands[queued.form]
        self.start_s = now_s
        self.reader: Reader[RunningTask] | None = None
        self.reads_since_s = now_s
        self.is_reading = False
        self.left_bytes = 0.0
        self.is_alone = True
        self.computes_since_s: float | None = None
        self.is_over = False


class SimulatedNode:
    """A node's free places, its disk, its queue, and its use over time where that is wanted."""

    __slots__ = (
        "disk",
        "free_cores",
        "free_gpus",
        "free_memory_bytes",
        "is_changed",
        "n_gpus_computing",
        "n_timers",
        "queue",
        "running",
        "spec",
        "timer_s",
        "use",
    )

    def __init__(self, spec: ResourceSpec, disk: SharedDisk[RunningTask], is_watched: bool) -> None:
        self.spec = spec
        self.disk = disk
        self.free_cores = spec.cores
        self.free_gpus = spec.gpus
        self.free_memory_bytes = spec.memory_bytes
        self.n_gpus_computing = 0
        self.queue: list[QueuedTask] = []
        self.running: dict[TaskId, RunningTask] = {}
        self.is_changed = False
        self.timer_s = float("inf")
        self.n_timers = 0
        self.use: list[NodeUse] | None = [] if is_watched else None

    def fits(self, demand: FormDemand) -> bool:
        """Whether a task may start now."""
        return (
            demand.cores <= self.free_cores
            and demand.gpus <= self.free_gpus
            and demand.memory_bytes <= self.free_memory_bytes
        )

    @property
    def n_reading(self) -> int:
        """#IOtask as a worker counts it: those, too, whose bytes lie ready."""
        return sum(each.is_reading for each in self.running.values())

    def take(self, running: RunningTask) -> None:
        """Give a task its cores, GPUs and memory."""
        demand = running.demand
        self.free_cores -= demand.cores
        self.free_gpus -= demand.gpus
        self.free_memory_bytes -= demand.memory_bytes
        self.running[running.queued.task] = running

    def free(self, running: RunningTask) -> None:
        """Take them back."""
        demand = running.demand
        self.free_cores += demand.cores
        self.free_gpus += demand.gpus
        self.free_memory_bytes += demand.memory_bytes
        if running.computes_since_s is not None:
            self.n_gpus_computing -= demand.gpus
        del self.running[running.queued.task]

    def note_use(self, now_s: float) -> None:
        """Note what it does from now on, where that is wanted."""
        if self.use is None:
            return
        use = NodeUse(
            now_s,
            self.disk.io_bytes_per_s,
            self.spec.cores - self.free_cores,
            self.spec.gpus - self.free_gpus,
            self.n_gpus_computing,
        )
        if self.use and self.use[-1].at_s == now_s:
            self.use.pop()
        self.use.append(use)
