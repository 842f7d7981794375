"""Compute: the scheduler decides, the worker processes do, and every thread helps to pass the word on.

There is no thread of its own here but the alarm clock.  A session's thread that completes a request asks the
scheduler what to do now and sends the job itself; a worker's collector that takes an answer gives the worker
its next job first and passes the answer on afterwards.  One lock makes decision and deed one step, so a
worker hears of its jobs in the order of the decisions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from yarn_accel.core.scheduling import (
    Arrived,
    Cancelled,
    Command,
    Drop,
    Event,
    Expire,
    Finished,
    Item,
    Room,
    Run,
    Scheduler,
    SchedulerSettings,
    Tick,
    WakeAt,
)
from yarn_accel.core.scheduling import WorkerDown as SchedulerWorkerDown
from yarn_accel.core.scheduling import WorkerUp as SchedulerWorkerUp
from yarn_accel.pipeline.work import Work
from yarn_accel.pipeline.workers.jobs import Job, JobDone, Lost, Measured, WorkerChange, WorkerDown, WorkerUp
from yarn_accel.pipeline.workers.pool import WorkerPool

if TYPE_CHECKING:
    from yarn_accel.core.weights import Weights
    from yarn_accel.pipeline.budget import ByteBudget
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.pool import Pool
    from yarn_accel.pipeline.trace import Trace
    from yarn_accel.pipeline.work import Plan
    from yarn_accel.pipeline.workers.process import WorkerProcess

__all__ = ["Flow"]

logger = logging.getLogger(__name__)


class Flow:
    """The compute stage.

    Args:
        config: sizes and patience.
        pool: whose segments the workers map.
        weights: what computations are expected to take; kept up to date with what they took.
        writing: what waits to be sent or written; while it is full nothing is started.
        on_started: called with each work that a worker was given and that counts in the read queue.
        on_done: called with each work and what its worker said; the worker has its next job already.
        on_expired: called with a work whose deadline passed before it was started.
        on_dropped: called with a work that was cancelled before it was started.
        on_lost: called with a work whose worker is gone, what that means for it, and what happened.
        trace: where spans go; None: nowhere.
        first: see `WorkerPool`.
    """

    def __init__(
        self,
        config: PipelineConfig,
        pool: Pool,
        weights: Weights,
        writing: ByteBudget,
        *,
        on_started: Callable[[Work], None],
        on_done: Callable[[Work, JobDone], None],
        on_expired: Callable[[Work], None],
        on_dropped: Callable[[Work], None],
        on_lost: Callable[[Work, Lost, str], None],
        trace: Trace | None = None,
        first: WorkerProcess | None = None,
    ) -> None:
        self._weights = weights
        self._learning = threading.Lock()
        self._on_started = on_started
        self._on_done = on_done
        self._on_expired = on_expired
        self._on_dropped = on_dropped
        self._on_lost = on_lost
        self._trace = trace
        self._writing = writing
        self._scheduler = Scheduler(_settings(config))
        self.workers = WorkerPool(config, pool.segment, self._collected, self._changed, self._measured, first)
        self._lock = threading.Lock()
        self._works: dict[int, Work] = {}
        self._devices: dict[int, tuple[str, str]] = {}
        #: What was to be sent to workers that were gone already; their `WorkerDown` is on its way.
        self._stranded: dict[int, list[int]] = {}
        self._n_queued = 0
        self._running_bytes = 0
        self._is_roomy = True
        self._clock = _Clock(self._ring)
        #: Set when the first worker is up.
        self.can_compute = threading.Event()
        #: Seconds all workers together were busy.
        self.busy_s = 0.0

    def start(self) -> None:
        """Start the workers; returns at once, and what arrives waits for the first of them."""
        self._clock.start()
        self.workers.start()

    def close(self) -> None:
        """End the workers; what is under way is lost without a word."""
        self._clock.close()
        self.workers.close()
        with self._lock:
            left, self._works = list(self._works.values()), {}
        for work in left:
            work.is_dropped = True
            self._on_dropped(work)

    def put(self, work: Work) -> None:
        """Take a work whose inputs are complete."""
        work.ready_s = now_s = time.monotonic()
        plan = work.plan
        item = Item(
            work.id,
            work.tenant,
            work.request.priority,
            None if work.n_lost else plan.batch_key,
            work.bytes_in,
            plan.expected_s or self._expected_s(plan),
            work.due_s,
            work.arrived_s,
        )
        with self._lock:
            self._works[work.id] = work
            self._n_queued += 1
            worker = self._scheduler.start_at_once(item, now_s)
            if worker is None:
                after = self._apply(Arrived(item, now_s))
            else:
                self._run(worker, (work.id,), now_s)
                after = self._check_room([])
        if after:
            self._finish(after)

    def cancel(self, work: Work) -> None:
        """Nobody waits for a work any more: drop it if it was not started, else its answer."""
        work.is_dropped = True
        with self._lock:
            if work.id not in self._works:
                return
            after = self._apply(Cancelled(work.id, time.monotonic()))
        self._finish(after)

    def room_made(self) -> None:
        """Results have left: go on if computing had stopped for them."""
        if self._is_roomy:
            return
        with self._lock:
            after = self._check_room([])
        self._finish(after)

    def snapshot(self) -> dict[str, Any]:
        """The scheduler's state as plain values."""
        with self._lock:
            return self._scheduler.snapshot()

    def validate(self) -> None:
        """For tests: the scheduler's state agrees with itself and with ours."""
        with self._lock:
            self._scheduler.validate()

    # What workers say

    def _collected(self, worker: int, dones: Sequence[JobDone]) -> None:
        now_s = time.monotonic()
        finished = []
        works = self._works
        with self._lock:
            for done in dones:
                work = works.pop(done.job, None)
                if work is not None:
                    self._running_bytes -= work.plan.arena_bytes
                    finished.append((work, done))
            is_awaited = self._n_queued > 0
        # The worker's next job comes before anything else; where there is none, the answer does.
        if is_awaited:
            self._free_worker(worker, dones, now_s)
        for work, done in finished:
            self._on_done(work, done)
        if not is_awaited:
            self._free_worker(worker, dones, now_s)
        for work, done in finished:
            self._note(worker, work, done, now_s)

    def _free_worker(self, worker: int, dones: Sequence[JobDone], now_s: float) -> None:
        busy_s = 0.0
        for done in dones:
            busy_s += done.compute_s
        event = Finished(worker, tuple([done.job for done in dones]), busy_s, now_s)
        with self._lock:
            self.busy_s += busy_s
            after = self._apply(event)
        if after:
            self._finish(after)

    def _note(self, worker: int, work: Work, done: JobDone, now_s: float) -> None:
        """Learn from a computation, and show it in the trace."""
        plan = work.plan
        name = plan.operation.name
        known = self._devices.get(worker)
        if known is not None and done.error is None:
            kind = known[1]
            with self._learning:
                expected_s = self._weights.observe(name, plan.amount, kind, done.compute_s)
            plan.expected_s = {**plan.expected_s, kind: expected_s}
        if self._trace is not None:
            self._trace.span("queue", "queue", name, work.ready_s, work.started_s, id=work.id)
            took_s = max(done.compute_s, done.kernel_s)
            self._trace.span("compute", f"worker {worker}", name, now_s - took_s, now_s, id=work.id)

    def _measured(self, found: Measured) -> None:
        kind = found.device.partition(":")[0]
        with self._learning:
            self._weights.observe(found.operation, found.flops or found.n_bytes, kind, found.seconds)

    def _changed(self, change: WorkerChange) -> None:
        now_s = time.monotonic()
        if isinstance(change, WorkerUp):
            logger.info("worker %d computes on %s", change.worker, change.device)
            with self._lock:
                self._devices[change.worker] = (change.device, change.device_kind)
                after = self._apply(SchedulerWorkerUp(change.worker, change.device_kind, now_s))
            self._finish(after)
            self.can_compute.set()
        elif isinstance(change, WorkerDown):
            self._worker_down(change, now_s)

    def _worker_down(self, change: WorkerDown, now_s: float) -> None:
        logger.warning(
            "worker %d on %s is %s: %s", change.worker, change.device, change.reason, change.detail
        )
        lost = []
        with self._lock:
            self._devices.pop(change.worker, None)
            after = self._apply(SchedulerWorkerDown(change.worker, now_s))
            stranded = [Lost(job, False, False) for job in self._stranded.pop(change.worker, ())]
            for loss in [*change.lost, *stranded]:
                work = self._works.pop(loss.job, None)
                if work is not None:
                    self._running_bytes -= work.plan.arena_bytes
                    lost.append((work, loss))
        self._finish(after)
        for work, loss in lost:
            text = f"the worker on {change.device} {change.reason}"
            text = f"{text}: {change.detail}" if change.detail else text
            self._on_lost(work, loss, text)

    def _ring(self, now_s: float) -> None:
        with self._lock:
            after = self._apply(Tick(now_s))
        self._finish(after)

    def _expected_s(self, plan: Plan) -> dict[str, float]:
        """By kind of device; renewed with each computation of this plan."""
        name, amount = plan.operation.name, plan.amount
        with self._learning:
            plan.expected_s = {kind: self._weights.expected_s(name, amount, kind) for kind in plan.kinds}
        return plan.expected_s

    # With the lock

    def _apply(self, event: Event) -> list[Command]:
        """Tell the scheduler, and do what must be done at once; returns what can wait for the lock to go."""
        after: list[Command] = []
        self._obey(self._scheduler.apply(event), after)
        return self._check_room(after)

    def _obey(self, commands: Sequence[Command], after: list[Command]) -> None:
        for command in commands:
            if type(command) is Run:
                self._run(command.worker, command.ids, time.monotonic())
            elif type(command) is WakeAt:
                self._clock.set(command.at_s)
            elif isinstance(command, Expire | Drop):
                after.append(command)

    def _run(self, worker: int, numbers: tuple[int, ...], now_s: float) -> None:
        device, kind = self._devices[worker]
        jobs = []
        expected_s = 0.0
        self._n_queued -= len(numbers)
        for number in numbers:
            work = self._works[number]
            plan, request = work.plan, work.request
            work.started_s = now_s
            work.device = device
            work.entry.stage = "compute"
            self._running_bytes += plan.arena_bytes
            if work.read_bytes:
                self._on_started(work)
            jobs.append(
                Job(
                    number,
                    plan.operation.name,
                    request.params,
                    work.inputs,
                    work.output_segment,
                    work.output_offset,
                    work.output_bytes,
                    not request.keep_inputs,
                    plan.likeness,
                    work.due_s,
                )
            )
            expected_s += plan.expected_s.get(kind, 0.0)
        if not self.workers.send(worker, jobs, expected_s):
            self._stranded.setdefault(worker, []).extend(numbers)

    def _check_room(self, after: list[Command]) -> list[Command]:
        """Start nothing while what runs and what waits to leave fills the write queue."""
        while (self._running_bytes + self._writing.used_bytes < self._writing.bound_bytes) != self._is_roomy:
            self._is_roomy = not self._is_roomy
            self._obey(self._scheduler.apply(Room(time.monotonic(), self._is_roomy)), after)
        return after

    # Without the lock

    def _finish(self, after: Sequence[Command]) -> None:
        for command in after:
            assert isinstance(command, Expire | Drop)
            with self._lock:
                work = self._works.pop(command.id, None)
                self._n_queued -= 1
            if work is None:
                continue
            if isinstance(command, Expire):
                self._on_expired(work)
            else:
                self._on_dropped(work)


def _settings(config: PipelineConfig) -> SchedulerSettings:
    return SchedulerSettings(
        weight_of=lambda tenant: config.tenant(tenant).weight,
        max_batch_size=config.max_batch_size,
        max_batch_bytes=config.max_batch_bytes,
        max_queue_delay_s=config.max_queue_delay_us / 1e6,
    )


class _Clock:
    """Calls back at the time last set."""

    def __init__(self, ring: Callable[[float], None]) -> None:
        self._ring = ring
        self._changed = threading.Condition()
        self._at_s = 0.0
        self._until_s = 0.0
        self._is_closed = False
        self._runner = threading.Thread(target=self._run, name="alarm", daemon=True)

    def start(self) -> None:
        self._runner.start()

    def set(self, at_s: float) -> None:
        """Ring then, and not at the time set before; a later time may ring early, which is harmless."""
        with self._changed:
            self._at_s = at_s
            if not self._until_s or at_s < self._until_s:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._runner.ident is not None:
            self._runner.join(timeout=5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now_s = time.monotonic()
                if not self._at_s or now_s < self._at_s:
                    self._until_s = self._at_s
                    self._changed.wait(self._at_s - now_s if self._at_s else None)
                    is_due = False
                else:
                    self._at_s = self._until_s = 0.0
                    is_due = True
            if is_due:
                self._ring(now_s)
