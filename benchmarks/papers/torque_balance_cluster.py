"""A simulated Torque cluster under SimPy that the policies of `torque_sched` schedule: no daemon, no clock.

Jobs take processors by what they really use, not by what they ask for: where they want more cores than a node
has, all of them there slow down alike. The scheduler sees what a real one would: slots, requests, and load
samples as old as the heartbeat; a job's end makes its node report at once.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import simpy

from torque_sched.decide.context import NO_LOAD, Context, Load, Measured, PlacedLoad, Prediction, Predictions
from torque_sched.decide.decide import decide, placed_loads
from torque_sched.decide.settings import Settings
from torque_sched.learn.ensemble import new_predictor
from torque_sched.learn.predictors import Fingerprint
from torque_sched.model.cluster import (
    GpuSlot,
    HostSlots,
    Job,
    JobId,
    JobSlots,
    Node,
    NodeName,
    NodeStatus,
    Queue,
    QueueName,
    Server,
)
from torque_sched.model.decisions import Start
from torque_sched.model.request import Chunk, Request
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState

GIB = 1024.0**3
_QUEUE = QueueName("batch")


@dataclass(frozen=True)
class Machine:
    """One node: cores, speed of each against the reference, bytes, GPUs and the memory of each."""

    name: str
    cores: int
    speed: float
    mem_bytes: float
    gpus: int = 0
    gpu_speed: float = 0.0
    gpu_mem_bytes: float = 0.0

    @property
    def slots(self) -> int:
        """Slots of the server's nodes file (np), one for each core."""
        return self.cores


#: Shaped as the paper's four nodes (its Table 1 is lost): the master, which computes too; a weak node; the
#: strongest with Tesla GPUs; a weak one with a Quadro. Speeds are GHz.
MACHINES = (
    Machine("cluster", 12, 2.4, 16 * GIB),
    Machine("compute-0-0", 6, 2.0, 8 * GIB),
    Machine("compute-0-1", 24, 2.93, 48 * GIB, 2, 1.15, 3 * GIB),
    Machine("compute-0-2", 12, 2.26, 12 * GIB, 1, 0.9, 1 * GIB),
)
_REFERENCE_SPEED = 2.4


@dataclass(frozen=True)
class Kind:
    """A type of job: what it asks for and what it really uses, run time at the reference speed."""

    name: str
    weight: float
    load: Load
    runtime_s: float
    ppn: int = 1
    gpus: int = 0


@dataclass
class Task:
    """One job on its way, with what it really uses and the work left in seconds at the reference speed."""

    kind: Kind
    job: Job
    load: Load
    left_s: float
    started_s: float = 0.0
    host: str = ""


class History(Predictions):
    """What jobs that ended used, learned by one predictor per figure; with no name it knows nothing."""

    def __init__(self, name: str) -> None:
        self._predictors = [new_predictor(name) for _ in range(4)] if name else []
        self._n = 0
        self.errors: list[float] = []
        """Absolute errors of the busy cores expected, in the order in which jobs ended."""
        self._said: dict[JobId, Prediction | None] = {}

    @staticmethod
    def _kind(job: Job) -> Fingerprint:
        return Fingerprint(job.user, job.name, f"{job.request.n_procs}+{job.request.n_gpus}")

    def expect(self, job: Job) -> Prediction | None:
        """As `Predictions.expect`; without a predictor jobs are taken to add nothing."""
        if not self._predictors:
            return Prediction(NO_LOAD)
        if not self._n:
            return None
        values = [predictor.predict(self._kind(job)).value for predictor in self._predictors]
        if not job.request.n_gpus:
            values[2:] = [0.0, 0.0]
        return Prediction(Load(*values))

    def started(self, job: Job) -> None:
        """Remember what was said, to be judged at the end."""
        self._said[job.id] = self.expect(job)

    def ended(self, task: Task) -> None:
        """Learn what it used."""
        said = self._said.pop(task.job.id, None)
        if said is not None:
            self.errors.append(abs(said.load.cpu_cores - task.load.cpu_cores))
        load = task.load
        amounts = (load.cpu_cores, load.mem_bytes, load.gpus, load.gpu_mem_bytes)
        for predictor, amount in zip(self._predictors, amounts, strict=False):
            predictor.observe(self._kind(task.job), amount)
        self._n += 1


@dataclass
class Trace:
    """What a run was like: sums over time of figures of all nodes, and where jobs went."""

    until_s: float
    """Figures are averaged up to here: the last arrival, so that the emptying does not count."""
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    makespan_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    homes: list[tuple[Kind, str]] = field(default_factory=list)
    first_use: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each node, the CPU utilisation of all nodes when its first job came."""
    last: Kind | None = None
    """The type of the job that ended last."""

    def mean(self, figure: str) -> float:
        """The time-mean of a figure."""
        return self.figures.get(figure, 0.0) / self.seconds if self.seconds else 0.0

    def note(
        self, since_s: float, now_s: float, cpu: Sequence[float], memory: Sequence[float], gpus_missed: int
    ) -> None:
        """The nodes were so busy since then, and so many GPUs idle though a job waited for one."""
        length_s = min(now_s, self.until_s) - since_s
        if length_s <= 0:
            return
        self.seconds += length_s
        for name, value in (
            ("cpu stdev", statistics.pstdev(cpu)),
            ("cpu range", max(cpu) - min(cpu)),
            ("cpu overload", sum(max(0.0, share - 1.0) for share in cpu)),
            ("memory stdev", statistics.pstdev(memory)),
            ("gpus missed", gpus_missed),
        ):
            self.figures[name] = self.figures.get(name, 0.0) + value * length_s


class _Host:
    """One node with what runs on it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tasks: list[Task] = []
        self.slots: dict[JobId, tuple[int, ...]] = {}
        self.gpus: dict[JobId, tuple[int, ...]] = {}
        self.since_s = 0.0
        self.version = 0
        self.sample = Measured(NO_LOAD, 0.0)

    @property
    def load(self) -> Load:
        total = NO_LOAD
        for task in self.tasks:
            total = total + task.load
        return total

    @property
    def rate(self) -> float:
        """Seconds of work per second: the speed, divided where jobs want more cores than there are."""
        wanted = self.load.cpu_cores
        share = min(1.0, self.machine.cores / wanted) if wanted else 1.0
        return self.machine.speed / _REFERENCE_SPEED * share

    def advance(self, now_s: float) -> None:
        """Let everything here work up to now."""
        done_s = (now_s - self.since_s) * self.rate
        for task in self.tasks:
            task.left_s -= done_s
        self.since_s = now_s

    def take(self, task: Task, slots: int, gpus: int) -> None:
        """Lowest free slots and GPUs, as pbs_server hands them out."""
        used = {slot for taken in self.slots.values() for slot in taken}
        free = [slot for slot in range(self.machine.slots) if slot not in used]
        busy = {index for taken in self.gpus.values() for index in taken}
        idle = [index for index in range(self.machine.gpus) if index not in busy]
        assert len(free) >= slots, "a policy used a node beyond its slots"
        assert len(idle) >= gpus, "a policy used a node beyond its GPUs"
        self.slots[task.job.id] = tuple(free[:slots])
        self.gpus[task.job.id] = tuple(idle[:gpus])
        self.tasks.append(task)

    def node(self, now_s: float) -> Node:
        """As pbsnodes shows it."""
        machine = self.machine
        jobs = tuple(JobSlots(job, slot, slot) for job, slots in self.slots.items() for slot in slots)
        memory = int(machine.mem_bytes)
        status = NodeStatus(
            rectime_s=now_s,
            ncpus=machine.cores,
            loadave=self.sample.load.cpu_cores,
            physmem_bytes=memory,
            totmem_bytes=memory,
        )
        return Node(NodeName(machine.name), machine.slots, gpus=machine.gpus, jobs=jobs, status=status)


class Cluster:
    """Runs jobs to their end under one policy.

    Args:
        settings: the policy.
        history: what is known of jobs.
        heartbeat_s: how often every node reports its load.
        tells_end: whether a job's end makes its node report at once.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        heartbeat_s: float = 300.0,
        machines: Sequence[Machine] = MACHINES,
        tells_end: bool = True,
    ) -> None:
        self._settings, self._history, self._heartbeat_s = settings, history, heartbeat_s
        self._tells_end = tells_end
        self._env = simpy.Environment()
        self._hosts = {machine.name: _Host(machine) for machine in machines}
        self._queue: dict[JobId, Task] = {}
        self._placed: list[PlacedLoad] = []
        self._last_node: NodeName | None = None
        self._noted_s = 0.0
        self._open = 0
        self._trace = Trace(0.0)

    def run(self, arrivals: Sequence[tuple[float, Task]]) -> Trace:
        """Submit each task at its time and run until all have ended."""
        self._trace.until_s = max(at_s for at_s, _ in arrivals) or math.inf
        self._open = len(arrivals)
        self._env.process(self._submit(arrivals))
        self._env.process(self._heartbeats())
        self._env.run()
        self._trace.makespan_s = self._noted_s
        return self._trace

    def _submit(self, arrivals: Sequence[tuple[float, Task]]) -> Generator[simpy.Event, None, None]:
        place = 0
        while place < len(arrivals):
            at_s = arrivals[place][0]
            yield self._env.timeout(max(0.0, at_s - self._env.now))
            self._note()
            while place < len(arrivals) and arrivals[place][0] <= at_s:
                task = arrivals[place][1]
                self._queue[task.job.id] = task
                place += 1
            self._cycle()

    def _heartbeats(self) -> Generator[simpy.Event, None, None]:
        while self._open:
            for host in self._hosts.values():
                host.sample = Measured(host.load, self._env.now)
            yield self._env.timeout(self._heartbeat_s)

    def _note(self) -> None:
        """Account for the time since the last change."""
        hosts = self._hosts.values()
        cpu = [host.load.cpu_cores / host.machine.cores for host in hosts]
        memory = [host.load.mem_bytes / host.machine.mem_bytes for host in hosts]
        idle = sum(host.machine.gpus - sum(len(held) for held in host.gpus.values()) for host in hosts)
        wanted = sum(task.job.request.n_gpus for task in self._queue.values())
        self._trace.note(self._noted_s, self._env.now, cpu, memory, min(idle, wanted))
        self._noted_s = self._env.now

    def _snapshot(self) -> Snapshot:
        now_s = self._env.now
        nodes = tuple(host.node(now_s) for host in self._hosts.values())
        running = (task.job for host in self._hosts.values() for task in host.tasks)
        jobs = (*running, *(task.job for task in self._queue.values()))
        return Snapshot(now_s, Server(name="head"), (Queue(name=_QUEUE),), nodes, jobs)

    def _cycle(self) -> None:
        if not self._queue:
            return
        snapshot = self._snapshot()
        self._placed = [load for load in self._placed if load.job in snapshot.job_by_id]
        context = Context(
            measured={NodeName(name): host.sample for name, host in self._hosts.items()},
            placed=tuple(self._placed),
            predictions=self._history,
            last_node=self._last_node,
        )
        for decision in decide(snapshot, self._settings, context):
            if isinstance(decision, Start):
                self._start(decision, context)

    def _start(self, start: Start, context: Context) -> None:
        task = self._queue.pop(start.job)
        (share,) = start.allocation
        host = self._hosts[share.node]
        if not host.tasks:
            loads = {h.machine.name: h.load.cpu_cores / h.machine.cores for h in self._hosts.values()}
            self._trace.first_use.setdefault(share.node, loads)
        self._note()
        host.advance(self._env.now)
        task.started_s, task.host = self._env.now, share.node
        host.take(task, share.slots, share.gpus)
        self._history.started(task.job)
        slots, gpus = host.slots[task.job.id], host.gpus[task.job.id]
        task.job = replace(
            task.job,
            state=JobState.RUNNING,
            start_s=self._env.now,
            allocated_slots=tuple(HostSlots(share.node, slot, slot) for slot in slots),
            allocated_gpus=tuple(GpuSlot(share.node, index) for index in gpus),
        )
        self._trace.waits_s.append(self._env.now - task.job.queued_s)
        self._trace.homes.append((task.kind, share.node))
        self._placed += placed_loads(start, task.job, context, self._env.now)
        self._last_node = share.node
        self._watch(host)

    def _watch(self, host: _Host) -> None:
        """Wake when the next job here ends, unless something changes before."""
        host.version += 1
        if host.tasks:
            next_s = min(task.left_s for task in host.tasks) / host.rate
            self._env.process(self._wait(host, host.version, max(0.0, next_s)))

    def _wait(self, host: _Host, version: int, next_s: float) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(next_s)
        if version != host.version:
            return
        self._note()
        host.advance(self._env.now)
        for task in [task for task in host.tasks if task.left_s <= 1e-6]:
            host.tasks.remove(task)
            del host.slots[task.job.id], host.gpus[task.job.id]
            self._history.ended(task)
            self._trace.last = task.kind
            self._open -= 1
        if self._tells_end:
            host.sample = Measured(host.load, self._env.now)
        self._watch(host)
        self._cycle()


def tasks_of(
    kinds: Sequence[Kind], n: int, every_s: float, noise: float, seed: int, burst: int = 1
) -> list[tuple[float, Task]]:
    """``n`` jobs of these kinds, shuffled; bursts have exponential gaps, ``every_s`` per job on average."""
    rng = random.Random(seed)
    at_s, arrivals = 0.0, []
    for number in range(1, n + 1):
        kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
        if every_s and (number - 1) % burst == 0:
            at_s += rng.expovariate(1.0 / (every_s * burst))
        arrivals.append((at_s, _task(kind, number, at_s, noise, rng)))
    return arrivals


def _task(kind: Kind, number: int, at_s: float, noise: float, rng: random.Random) -> Task:
    def shaken(amount: float) -> float:
        return amount * min(2.0, max(0.2, rng.gauss(1.0, noise)))

    load = Load(
        shaken(kind.load.cpu_cores),
        shaken(kind.load.mem_bytes),
        min(float(kind.gpus), shaken(kind.load.gpus)),
        shaken(kind.load.gpu_mem_bytes),
    )
    request = Request(chunks=(Chunk(1, kind.ppn, kind.gpus),))
    job = Job(
        JobId(f"{number}.head"),
        JobState.QUEUED,
        _QUEUE,
        request,
        name=kind.name,
        user="lab",
        sequence=number,
        qtime_s=at_s,
    )
    return Task(kind, job, load, shaken(kind.runtime_s))
