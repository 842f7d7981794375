"""A cluster in SimPy's time, driven by the policy objects that run live.

All that happens in one moment is applied first, then the policy decides once. A task that was started goes
through three phases: its overhead, its read, in which the disk of its node gives it what it can, and its
computation; cores, GPUs and memory are held all along. I/O is sampled exactly: a node reports what changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import Any, cast

import simpy
from simpy.events import EventPriority

from yarn_accel.core.tasks.commands import PLACING, EndTask, EnqueueTask, StartTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.events import EndReason, IoSampled, TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.outcome import RunOutcome, TaskOutcome, outcome_of
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import TaskId
from yarn_accel.errors import AccelError
from yarn_accel.sim.disk import Reader, SharedDisk
from yarn_accel.sim.node import QueuedTask, RunningTask, SimulatedApp, SimulatedNode
from yarn_accel.sim.world import World

_AFTER_ALL_ELSE = EventPriority(2)
#: So many heartbeats without an order while nothing runs: the policy will never start what waits.
_MOST_IDLE_HEARTBEATS = 1000


def _perform(event: simpy.Event) -> None:
    act, args = cast("tuple[Callable[..., None], tuple[Any, ...]]", event.value)
    act(*args)


class _MomentEnd(simpy.Event):
    """Comes after everything else that happens at this time."""

    def __init__(self, env: simpy.Environment, callback: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self.callbacks = [callback]
        self._ok = True
        self._value = None
        env.schedule(self, _AFTER_ALL_ELSE)


class Simulation:
    """One run of a world under one policy.

    Args:
        shuffle: reorders the facts that come with one heartbeat; for tests.

    Attributes:
        table: what the policy reads: the world as nodes report it.
    """

    def __init__(
        self,
        world: World,
        policy: TaskPolicy,
        watched: Collection[str] = (),
        figures: FigureStore | None = None,
        shuffle: Callable[[list[Callable[[], None]]], None] = lambda facts: None,
    ) -> None:
        self.table = TaskTable()
        self._shuffle = shuffle
        self._env = simpy.Environment()
        self._world = world
        self._policy = policy
        self._figures = figures if figures is not None else FigureStore()
        policy.follow(self.table)
        self._overhead_s = world.options.overhead_s
        self._heartbeat_s = world.options.heartbeat_s
        self._sample_interval_s = world.options.sample_interval_s
        self._piece_bytes = world.options.read_piece_mb * 1e6
        self._nodes = {
            spec.resource: SimulatedNode(
                spec, SharedDisk(disk.bandwidth_mb_s * 1e6, disk.gamma), spec.node in watched
            )
            for spec, disk in world.resources()
        }
        self._apps = [
            SimulatedApp(app, start) for app, start in zip(world.apps, world.starts_s(), strict=True)
        ]
        self._app_of: dict[TaskId, SimulatedApp] = {}
        self._ended: list[TaskOutcome] = []
        self._changed: list[SimulatedNode] = []
        self._unreported: list[Callable[[], None]] = []
        self._is_moment_open = False
        self._is_news = False

    def run(self) -> RunOutcome:
        """Go through it from the first application's submission to the last task's end.

        Raises:
            AccelError: the policy ordered the impossible, or left tasks that it could have started.
        """
        for node in self._nodes.values():
            self.table.join(self.table.add_worker(node.spec.resource), node.spec)
        for app in self._apps:
            self._after(app.start_s, self._submit, app)
        if self._heartbeat_s:
            self._env.process(self._heartbeats())
        if self._sample_interval_s:
            self._env.process(self._samples())
        self._env.run()
        left = [f"{app.n_left} of {app.spec.app}" for app in self._apps if app.n_left]
        if left:
            raise AccelError(
                f"policy {self._world.policy} never starts some tasks: {', '.join(left)}",
                cure="give the application a form, or the cluster a node, that this policy uses",
            )
        started_s = {app.spec.app: app.start_s for app in self._apps}
        use = {node.spec.node: tuple(node.use) for node in self._nodes.values() if node.use is not None}
        return outcome_of(self._world.policy, started_s, self._ended, use)

    # What happens

    def _after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        simpy.Timeout(self._env, delay_s, (act, args)).callbacks.append(_perform)

    def _submit(self, app: SimulatedApp) -> None:
        now_s = self._env.now
        app.is_submitted = True
        tasks = tuple(app.tasks())
        app.waiting.update(tasks)
        self._app_of.update(dict.fromkeys(tasks, app))
        self.table.add_tasks(self.table.submit(app.spec, now_s), tasks)
        self.table.announce(now_s)
        self._open_moment()

    def _start(self, queued: QueuedTask, node: SimulatedNode) -> None:
        now_s = self._env.now
        figures = queued.app.figures.of(queued.form, node.spec.accelerator)
        assert figures is not None
        running = RunningTask(queued, node, figures, now_s)
        node.take(running)
        self._change(node)
        self._report(partial(self._note_start, queued.task, now_s))
        if self._overhead_s:
            self._after(self._overhead_s, self._read, running)
        else:
            self._read(running)

    def _read(self, running: RunningTask) -> None:
        if running.is_over:
            return
        running.reads_since_s = self._env.now
        if not running.figures.read_s:
            self._compute(running)
            return
        running.is_reading = True
        running.left_bytes = running.queued.app.figures.split_bytes
        self._read_on(running)

    def _read_on(self, running: RunningTask) -> None:
        """Read the whole split as its task takes it, or its next piece as fast as the disk gives it."""
        if running.is_over:
            return
        disk, n_bytes = running.node.disk, running.left_bytes
        if self._piece_bytes:
            n_bytes, limit = min(self._piece_bytes, n_bytes), disk.capacity_bytes_per_s(1)
        else:
            limit = running.queued.app.figures.request_bytes_per_s(running.figures)
        running.left_bytes -= n_bytes
        running.reader = Reader(running, n_bytes, limit, self._env.now)
        disk.add(running.reader, self._env.now)
        self._set_timer(running.node)

    def _has_read(self, running: RunningTask) -> None:
        """A piece lies ready: the next one comes in time for the task, which computes when it took all."""
        assert running.reader is not None
        running.is_alone = running.is_alone and running.reader.is_alone
        running.reader = None
        if not self._piece_bytes:
            self._compute(running)
            return
        split_bytes = running.queued.app.figures.split_bytes
        taken_s = running.reads_since_s + running.figures.read_s * (1 - running.left_bytes / split_bytes)
        if running.left_bytes > 0:
            n_bytes = min(self._piece_bytes, running.left_bytes)
            taken_s -= n_bytes / running.node.disk.capacity_bytes_per_s(1)
        self._after(
            max(0.0, taken_s - self._env.now),
            self._read_on if running.left_bytes > 0 else self._compute,
            running,
        )

    def _compute(self, running: RunningTask) -> None:
        if running.is_over:
            return
        running.is_reading = False
        running.computes_since_s = self._env.now
        running.node.n_gpus_computing += running.demand.gpus
        self._change(running.node)
        if running.figures.compute_s:
            self._after(running.figures.compute_s, self._end, running)
        else:
            self._end(running)

    def _end(self, running: RunningTask) -> None:
        if running.is_over:
            return
        now_s, queued, node = self._env.now, running.queued, running.node
        self._leave(running)
        queued.app.n_left -= 1
        computes_since_s = running.computes_since_s
        assert computes_since_s is not None
        measured = TaskMeasurement(
            queued.app.figures.split_bytes,
            computes_since_s - running.reads_since_s,
            now_s - computes_since_s,
            running.is_alone,
        )
        self._report(partial(self._note_end, queued.task, EndReason.DONE, now_s, measured))
        self._ended.append(
            TaskOutcome(
                queued.app.spec.app,
                queued.task,
                node.spec.node,
                queued.form,
                running.start_s,
                now_s,
                self._overhead_s + running.figures.alone_s,
                queued.reason,
                math.nan if queued.predicted_s is None else self._overhead_s + queued.predicted_s,
            )
        )
        self._start_queued(node)

    def _leave(self, running: RunningTask) -> None:
        running.is_over = True
        running.node.free(running)
        self._change(running.node)

    # The disks

    def _set_timer(self, node: SimulatedNode) -> None:
        """Wake up when the first reader of a node will have read all, as things stand."""
        self._change(node)
        end_s = node.disk.next_end_s
        if end_s == node.timer_s:
            return
        node.timer_s = end_s
        node.n_timers += 1
        if node.disk.n_readers:
            self._after(max(end_s - self._env.now, 0.0), self._take_ended, node, node.n_timers)

    def _take_ended(self, node: SimulatedNode, timer: int) -> None:
        if timer != node.n_timers:
            return
        node.timer_s = float("inf")
        for reader in node.disk.ended(self._env.now):
            self._has_read(reader.owner)
        self._set_timer(node)

    # What the policy knows

    def _report(self, fact: Callable[[], None]) -> None:
        if self._heartbeat_s:
            self._unreported.append(fact)
        else:
            fact()
            self._open_moment()

    def _note_start(self, task: TaskId, now_s: float) -> None:
        held = self.table.tasks[task].assignment
        assert held is not None
        self.table.begin(held, now_s, now_s)

    def _note_end(
        self, task: TaskId, end: EndReason, now_s: float, measured: TaskMeasurement | None = None
    ) -> None:
        held = self.table.tasks[task].assignment
        assert held is not None
        if measured is not None:
            self._policy.learn(self.table, self._figures, held, measured, now_s - held.since_s)
        self.table.settle(held, end, now_s)
        self.table.announce(now_s)
        if not held.app.n_open:
            self.table.remove_app(held.app)

    def _note_sample(self, sample: IoSampled) -> None:
        self.table.sample(self.table.workers[sample.resource], sample)

    def _change(self, node: SimulatedNode) -> None:
        if not node.is_changed:
            node.is_changed = True
            self._changed.append(node)
        if not self._is_moment_open:
            self._open_moment()

    def _open_moment(self) -> None:
        if not self._is_moment_open:
            self._is_moment_open = True
            _MomentEnd(self._env, self._close_moment)

    def _close_moment(self, _: simpy.Event) -> None:
        for node in self._changed:
            node.note_use(self._env.now)
        if not self._heartbeat_s:
            self._decide()
        self._is_moment_open = False
        if self._is_news:
            # Of what the policy ordered just now, more came than the starts of which it knows.
            self._is_news = False
            self._open_moment()

    def _decide(self) -> bool:
        """Report what changed, let the policy decide, carry out; whether it ordered anything."""
        now_s = self._env.now
        changed, self._changed = self._changed, []
        for node in changed:
            node.is_changed = False
            if not self._sample_interval_s:
                self._note_sample(self._sample(node))
        commands = []
        for command in self._policy.plan(self.table, self._figures, now_s):
            self._check(command)
            self.table.enact(command, now_s)
            commands.append(command)
        for command in commands:
            self._carry_out(command)
        for node in self._changed:
            node.note_use(now_s)
        return bool(commands)

    def _sample(self, node: SimulatedNode) -> IoSampled:
        disk, now_s = node.disk, self._env.now
        is_given = self._world.options.samples == "given"
        io = disk.io_bytes_per_s if is_given else disk.requested_bytes_per_s
        n_readers = node.n_reading if self._piece_bytes else disk.n_readers
        return IoSampled(node.spec.resource, io, n_readers, now_s, now_s)

    def _heartbeats(self) -> Generator[simpy.Event, Any, None]:
        n_idle = 0
        while any(app.n_left for app in self._apps) and n_idle < _MOST_IDLE_HEARTBEATS:
            yield self._env.timeout(self._heartbeat_s)
            facts, self._unreported = self._unreported, []
            self._shuffle(facts)
            for fact in facts:
                fact()
            has_ordered = self._decide()
            n_idle = 0 if has_ordered or self._is_busy() else n_idle + 1

    def _is_busy(self) -> bool:
        """Whether more happens without an order."""
        runs = any(node.running for node in self._nodes.values())
        return runs or not all(app.is_submitted for app in self._apps)

    def _samples(self) -> Generator[simpy.Event, Any, None]:
        """What workers report of their nodes: the mean of an interval, and the readers in its middle."""
        n_idle, half_s = 0, self._sample_interval_s / 2
        totals = dict.fromkeys(self._nodes, 0.0)
        while any(app.n_left for app in self._apps) and n_idle < _MOST_IDLE_HEARTBEATS:
            yield self._env.timeout(half_s)
            n_readers = {name: node.n_reading for name, node in self._nodes.items()}
            middle_s = self._env.now
            yield self._env.timeout(half_s)
            for name, node in self._nodes.items():
                before, totals[name] = totals[name], node.disk.total_bytes(self._env.now)
                mean = (totals[name] - before) / (2 * half_s)
                sample = IoSampled(name, mean, n_readers[name], middle_s, self._env.now)
                self._report(partial(self._note_sample, sample))
            n_idle = 0 if self._is_busy() else n_idle + 1

    # Its orders

    def _check(self, command: TaskCommand) -> None:
        """Refuse what contradicts the table, before it is there."""
        task, worker = self.table.tasks.get(command.task), self.table.workers.get(command.resource)
        if worker is None:
            raise self._impossible(command, "there is no such node")
        if isinstance(command, PLACING):
            if task is None or task.id not in task.app.ready:
                raise self._impossible(command, "the task does not wait")
            demand = task.app.demand(command.form)
            if demand is None:
                raise self._impossible(command, "its application has no such form")
            if isinstance(command, StartTask) and not worker.fits(demand):
                raise self._impossible(command, "it does not fit there now")

    def _carry_out(self, command: TaskCommand) -> None:
        node = self._nodes[command.resource]
        if isinstance(command, StartTask):
            queued = self._queued(command)
            if not node.fits(queued.app.demands[command.form]):
                raise self._impossible(command, "it does not fit there now")
            self._start(queued, node)
        elif isinstance(command, EnqueueTask):
            node.queue.insert(command.position, self._queued(command))
            self._start_queued(node)
        elif isinstance(command, TakeBackTask):
            self._take_back(command.task, node)
        else:
            self._stop(command, node)

    def _queued(self, command: StartTask | EnqueueTask) -> QueuedTask:
        app = self._app_of[command.task]
        if command.task not in app.waiting:
            raise self._impossible(command, "the task does not wait")
        app.waiting.remove(command.task)
        predicted_s = command.predicted_s if isinstance(command, StartTask) else None
        return QueuedTask(app, command.task, command.form, command.reason, predicted_s)

    def _start_queued(self, node: SimulatedNode) -> None:
        for queued in list(node.queue):
            if node.fits(queued.app.demands[queued.form]):
                self._is_news = True
                node.queue.remove(queued)
                self._start(queued, node)

    def _take_back(self, task: TaskId, node: SimulatedNode) -> None:
        """Take a task out of a queue; one that has started stays, as `TaskStarted` has said."""
        for queued in node.queue:
            if queued.task == task:
                node.queue.remove(queued)
                queued.app.waiting.add(task)
                self._is_news = True
                self._report(partial(self._note_end, task, EndReason.TAKEN_BACK, self._env.now))
                return

    def _stop(self, command: EndTask, node: SimulatedNode) -> None:
        """End an attempt; its task waits again."""
        running = node.running.get(command.task)
        if running is None:
            return
        now_s = self._env.now
        if running.reader is not None:
            node.disk.remove(running.reader, now_s)
            self._set_timer(node)
        self._leave(running)
        app = running.queued.app
        app.waiting.add(command.task)
        self._is_news = True
        self._report(partial(self._note_end, command.task, EndReason.CANCELLED, now_s))
        self._start_queued(node)

    def _impossible(self, command: TaskCommand, why: str) -> AccelError:
        return AccelError(
            f"policy {self._world.policy} ordered the impossible at {self._env.now:g} s: {command}: {why}"
        )


def simulate(
    world: World, policy: TaskPolicy, watched: Collection[str] = (), figures: FigureStore | None = None
) -> RunOutcome:
    """Run a world under a policy.

    Args:
        world: what there is; its `policy` names the object.
        policy: who decides.
        watched: names of nodes whose use over time is wanted.
        figures: what is believed of applications; the policy learns into it.

    Raises:
        AccelError: as `Simulation.run`.
    """
    return Simulation(world, policy, watched, figures).run()
