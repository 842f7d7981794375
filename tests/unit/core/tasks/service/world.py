"""A virtual cluster for a `TaskService`: real `WorkerState`s, a network and a journal that fail as asked.

The world holds the truth: what ran where, what output was committed. It checks every command: that no order
and no answer leaves before its records are on the disk, that nobody computes an attempt twice, that each
output is committed once.
"""

import random
from collections import Counter, defaultdict, deque

from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition
from yarn_accel.core.tasks.events import EndReason, TaskMeasurement
from yarn_accel.core.tasks.service import ServiceSettings, TaskService, WorkerSize
from yarn_accel.core.tasks.service import commands as cmd
from yarn_accel.core.tasks.service import events as ev
from yarn_accel.core.tasks.service.journal import decode_journal, encode_records
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceId, TaskId
from yarn_accel.core.tasks.worker_messages import AttemptEnd, AttemptOutcome
from yarn_accel.core.tasks.worker_state import (
    ClockTicked,
    OrderReceived,
    ProcessesEnded,
    RunEnded,
    StartAttempt,
    StopAttempt,
    WorkerCapacity,
    WorkerState,
)

MIB = 1024 * 1024
#: Unix time when the world began.
STARTED_AT = 1_700_000_000.0
#: So long an attempt that is done has written its output, and occupied nothing.
WRITING_S = 0.3
SMALL = WorkerSize("small", cores=2, gpus=0, memory_bytes=4096 * MIB, max_workers=4)
LARGE = WorkerSize("large", cores=4, gpus=2, memory_bytes=8192 * MIB, max_workers=2)
SETTINGS = ServiceSettings(started_ms=1_700_000_000_000, sizes=(SMALL, LARGE), elsewhere_s=0.5)


def app(name="a", n_tasks=3, *, chain=None, forms=(Form.CPU,), output="hdfs:///out/a", **more):
    """An application; `chain` maps a task's number to those of its predecessors."""
    demands = {form: FormDemand(gpus=int(form is Form.GPU), memory_bytes=MIB) for form in forms}
    spec = AppSpec(AppId(name), more.pop("name", name), more.pop("priority", 0), n_tasks, demands)
    tasks = tuple(
        TaskDefinition(
            TaskId(f"{name}/{i}"),
            tuple(TaskId(f"{name}/{j}") for j in (chain or {}).get(i, ())),
            output=f"part-{i:05d}" if output else "",
        )
        for i in range(n_tasks)
    )
    programs = {form: FormProgram(("./mapper",)) for form in forms}
    return AppDefinition(spec, programs, tasks, output, **more)


class VirtualWorker:
    """A container: the worker's own decisions, and attempts that take virtual time."""

    def __init__(self, world, name, size, seed):
        self.world = world
        self.name = ResourceId(name)
        self.size = size
        incarnation = f"{seed:016x}"
        self.state = WorkerState(
            WorkerCapacity(
                self.name, f"node-{name}", incarnation, size.cores, size.gpus, size.memory_bytes, 1e8
            )
        )
        self.running = {}
        self.is_stopped = False
        self.is_alive = True

    def carry_out(self, actions):
        for action in actions:
            if isinstance(action, StartAttempt):
                self.start(action.order)
            elif isinstance(action, StopAttempt) and action.attempt in self.running:
                del self.running[action.attempt]
                end = AttemptEnd(AttemptOutcome.CANCELLED)
                self.carry_out(self.state.apply(RunEnded(action.attempt, end, self.world.now_s)))
        self.state.validate()

    def start(self, order):
        self.world.begun(order, self)
        outcome = self.world.behaviour(order, self)
        takes_s = float("inf") if outcome == "hang" else self.world.rng.uniform(0.1, 3.0)
        until_s = self.world.now_s + takes_s
        self.running[order.attempt] = (until_s, order, outcome)

    def receive(self, order):
        if self.is_alive and not self.is_stopped:
            self.carry_out(self.state.apply(OrderReceived(order, self.world.now_s)))

    def step(self):
        """Attempts end whose time has come."""
        if not self.is_alive or self.is_stopped:
            return
        now_s = self.world.now_s
        for attempt, (until_s, order, outcome) in list(self.running.items()):
            if until_s <= now_s and attempt in self.running:
                if outcome == "crash":
                    self.world.kill(self, by_itself=True)
                    return
                del self.running[attempt]
                end = self.end(order, outcome)
                self.carry_out(self.state.apply(RunEnded(attempt, end, now_s)))
            elif until_s <= now_s + WRITING_S and outcome == "done" and attempt in self.running:
                self.carry_out(self.state.apply(ProcessesEnded(attempt, now_s)))
        self.carry_out(self.state.apply(ClockTicked(now_s)))

    def end(self, order, outcome):
        if outcome == "fail":
            return AttemptEnd(AttemptOutcome.FAILED, 1, "it said no")
        was_done = order.output is not None and not self.world.commit(order)
        return AttemptEnd(
            AttemptOutcome.DONE,
            0,
            was_done_before=was_done,
            wall_s=1.0,
            measured=TaskMeasurement(1.0, 0.5, 0.5, True),
        )


class World:
    """Service, journal, network, workers, and the truth."""

    def __init__(self, make_policy, seed=0, settings=SETTINGS, behaviour=None, disk=b"", figures=None):
        self.figures = figures
        self.make_policy = make_policy
        self.rng = random.Random(seed)
        self.settings = settings
        self.behaviour = behaviour or (lambda order, worker: "done")
        self.loss = 0.0
        self.now_s = 0.0
        self.master_attempt = 0
        self.workers = {}
        self.n_workers = 0
        self.wanted = {}
        self.grows = True
        self.disk = disk
        self.on_disk = set()
        self.unwritten = deque()
        self.writes_by_itself = True
        self.orders = {}
        self.in_flight = []
        self.begun_attempts = Counter()
        self.outputs = Counter()
        self.counted = defaultdict(list)
        self.ended = {}
        self.accepted = set()
        self.refused = {}
        self.commits = Counter()
        self.definitions = {}
        self.commit_errors = deque()
        self.history = []
        self.start_master()

    # ---- master and journal

    def start_master(self, cut=None):
        """A new master; what the last one had not written is lost; `cut` loses bytes of the journal's end."""
        self.master_attempt += 1
        self.unwritten.clear()
        self.orders.clear()
        content = self.disk if cut is None else self.disk[:cut]
        decoded = decode_journal(content, "journal")
        self.disk = content[: decoded.n_bytes]
        self.policy = self.make_policy()
        settings = ServiceSettings(
            **{
                **{name: getattr(self.settings, name) for name in ServiceSettings.__slots__},
                "master_attempt": self.master_attempt,
            }
        )
        self.service = TaskService(settings, self.policy, self.figures)
        self.apply(ev.Recovered(decoded.records, self.now_s, STARTED_AT + self.now_s))

    def kill_master(self):
        """It dies with some of what it was writing on the disk; another one starts."""
        while self.unwritten and self.rng.random() < 0.5:
            self.write_one(answers=False)
        torn = b""
        if self.unwritten and isinstance(self.unwritten[0], cmd.WriteJournal):
            line = encode_records(self.unwritten[0].records)
            torn = line[: self.rng.randrange(len(line))]
        self.disk += torn
        self.start_master()

    def apply(self, event):
        commands = self.service.apply(event)
        self.service.validate()
        for command in commands:
            self.obey(command)
        if self.writes_by_itself:
            while self.unwritten:
                self.write_one()

    def write_one(self, answers=True):
        write = self.unwritten.popleft()
        lines = encode_records(write.records)
        if isinstance(write, cmd.ReplaceJournal):
            self.on_disk.clear()
        self.on_disk |= {(each["task"], each["number"]) for each in write.records if each["r"] == "assigned"}
        self.disk = lines if isinstance(write, cmd.ReplaceJournal) else self.disk + lines
        if answers:
            self.apply(ev.JournalWritten(write.sequence, self.now_s))

    def tick(self):
        self.apply(ev.ServiceTick(self.now_s))

    # ---- commands

    def obey(self, command):
        getattr(self, f"_{type(command).__name__}")(command)

    def _WriteJournal(self, command):
        self.unwritten.append(command)

    _ReplaceJournal = _WriteJournal

    def _SendOrder(self, command):
        for each in command.order.attempts:
            attempt = (each.task, int(each.attempt.rpartition("_")[2]))
            assert attempt in self.on_disk, "ordered before written"
        former = self.orders.get(command.worker)
        assert former is None or former.number < command.order.number
        self.orders[command.worker] = command.order

    def _AppAccepted(self, command):
        self.accepted.add(command.app)

    def _AppRefused(self, command):
        self.refused[command.app] = command.error

    def _CommitOutput(self, command):
        error = self.commit_errors.popleft() if self.commit_errors else ""
        self.commits[command.app, "commit"] += not error
        self.in_flight.append(ev.OutputSettled(command.app, error, self.now_s))

    def _RemoveUnfinished(self, command):
        self.commits[command.app, "remove"] += 1
        self.in_flight.append(ev.OutputSettled(command.app, "", self.now_s))

    def _AppEnded(self, command):
        assert command.app not in self.ended
        self.ended[command.app] = command

    def _AttemptEnded(self, command):
        self.history.append(command)
        if command.end is EndReason.DONE:
            self.counted[command.task].append(command.attempt)
            assert len(self.counted[command.task]) == 1, "done twice"

    def _WorkersWanted(self, command):
        self.wanted = dict(command.counts)

    def _ReleaseWorker(self, command):
        worker = self.workers.get(command.worker)
        if worker is not None:
            self.kill(worker, by_itself=False)

    # ---- workers

    def add_worker(self, size=SMALL, name=""):
        self.n_workers += 1
        name = name or f"w{self.n_workers}"
        worker = VirtualWorker(self, name, size, self.n_workers)
        self.workers[worker.name] = worker
        return worker

    def kill(self, worker, by_itself=False, notices=True):
        worker.is_alive = False
        self.workers.pop(worker.name, None)
        if notices:
            self.in_flight.append(ev.WorkerGone(worker.name, by_itself, "killed", self.now_s))

    def begun(self, order, worker):
        self.begun_attempts[order.attempt] += 1
        assert self.begun_attempts[order.attempt] == 1, "an attempt runs once"

    def commit(self, order):
        """The output of an attempt becomes the task's, unless there is one."""
        is_first = not self.outputs[order.app, order.output.name]
        self.outputs[order.app, order.output.name] += is_first
        return is_first

    def is_lost(self):
        return self.rng.random() < self.loss

    def report(self, worker):
        """A worker reports and gets its order; either may be lost, late or twice."""
        if not worker.is_alive or worker.is_stopped:
            return
        event = ev.WorkerReported(worker.state.report(self.now_s), self.now_s)
        for _ in range(1 + self.is_lost()):
            if self.is_lost():
                self.in_flight.append(event)  # late
            elif not self.is_lost():
                self.apply(event)
        if worker.name in self.orders and not self.is_lost():
            worker.receive(self.orders[worker.name])

    # ---- time

    def step(self, seconds=0.5):
        """Time passes: attempts end, workers report, the service decides, containers come."""
        self.now_s += seconds
        for worker in list(self.workers.values()):
            worker.step()
        flying, self.in_flight = self.in_flight, []
        for event in flying:
            if self.is_lost():
                self.in_flight.append(event)
            else:
                self.apply(type(event)(*(getattr(event, each) for each in event.__slots__[:-1]), self.now_s))
        for worker in list(self.workers.values()):
            self.report(worker)
        self.tick()
        for worker in list(self.workers.values()):
            if worker.name in self.orders and not self.is_lost():
                worker.receive(self.orders[worker.name])
        if self.grows:
            for size in self.settings.sizes:
                here = sum(each.size is size for each in self.workers.values())
                if here < self.wanted.get(size.name, 0):
                    self.add_worker(size)

    def run(self, n_steps):
        for _ in range(n_steps):
            self.step()

    def submit(self, definition):
        self.definitions[definition.spec.app] = definition
        self.apply(ev.SubmitRequested(definition, self.now_s))

    def cancel(self, name):
        self.apply(ev.CancelRequested(AppId(name), self.now_s))

    # ---- what is to hold in the end

    def calm(self, n_steps=400):
        """Everything works again; all must end."""
        self.loss = 0.0
        self.writes_by_itself = True
        self.grows = True
        while self.unwritten:
            self.write_one()
        for worker in self.workers.values():
            worker.is_stopped = False
        for _ in range(n_steps):
            self.step()
            if not self.service.snapshot()["apps"]:
                return
        raise AssertionError(f"not ended: {self.service.snapshot()}")

    def assert_ended_well(self):
        """All that was taken has ended once, with counts that add up; no worker keeps anything of it."""
        self.run(4)
        for worker in self.workers.values():
            assert not worker.state.report(self.now_s).attempts, f"{worker.name} still holds what is over"
        ended = self.service.snapshot()["ended"]
        for name in self.accepted:
            counts = ended[name]["tasks"]
            assert sum(counts.values()) == len(self.definitions[name].tasks)
            assert set(counts) == {
                "waiting", "ready", "queued", "running", "done", "failed", "cancelled"
            }  # fmt: skip
            if ended[name]["state"] == "done":
                assert counts["done"] == len(self.definitions[name].tasks)
        assert all(n == 1 for n in self.outputs.values() if n)
