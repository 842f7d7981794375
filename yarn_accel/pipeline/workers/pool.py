"""The workers of a server: one process for each device, and what happens when one is lost.

Three kinds of threads touch a worker.  Whoever calls `WorkerPool.send` writes to it.  Its collector thread
reads from it, tells what came, and when nothing comes any more buries it and gives its place to a standby
process that has everything imported already.  The supervisor starts processes (a process ends with the thread
that started it), and watches: for computations that are stuck, for faults that GPUs report, for workers with
time to be measured.

What is lost is said, not repaired: which jobs to try again is for the scheduler to decide.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from yarn_accel.core.quarantine import (
    Command,
    Faulted,
    Passed,
    Quarantine,
    QuarantineSettings,
    Rest,
    TimePassed,
    Trust,
)
from yarn_accel.pipeline.workers.calibration import Calibration
from yarn_accel.pipeline.workers.devices import GpuWatch, find_devices
from yarn_accel.pipeline.workers.jobs import (
    Job,
    JobDone,
    Lost,
    Measured,
    WorkerChange,
    WorkerDown,
    WorkerUp,
)
from yarn_accel.pipeline.workers.launching import launch
from yarn_accel.pipeline.workers.process import SegmentLike, WorkerLiedError, WorkerProcess
from yarn_accel.pipeline.workers.slots import Slot, memory_facts, slot_facts

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["WorkerPool"]

logger = logging.getLogger(__name__)

_MAX_TICK_S = 0.25
_MAX_START_S = 60.0
_MAX_PAUSE_S = 5.0
_IDLE_BEFORE_MEASURING_S = 1.0


class WorkerPool:
    """Starts, feeds, watches and replaces worker processes.

    Args:
        segments: finds a segment by id, when a worker sees it for the first time.
        on_done: ``on_done(worker, answers)``, from the collector thread of that worker: all answers to one
            batch, in its order.
        on_change: a worker came up or went down.  A worker that goes down is told after it has ended, so
            nobody writes to the memory of its jobs any more.
        on_measured: what a calibration found, also what was found by an earlier server.
        first: a process that was started already, by a thread that stays.
    """

    def __init__(
        self,
        config: PipelineConfig,
        segments: Callable[[int], SegmentLike],
        on_done: Callable[[int, list[JobDone]], None],
        on_change: Callable[[WorkerChange], None],
        on_measured: Callable[[Measured], None] | None = None,
        first: WorkerProcess | None = None,
    ) -> None:
        self._config = config
        self._segments = segments
        self._on_done = on_done
        self._on_change = on_change
        self._first = first
        self._lock = threading.Lock()
        self._workers: dict[int, WorkerProcess] = {}
        self._slots = [Slot(i, device) for i, device in enumerate(find_devices(config))]
        self._standbys: list[WorkerProcess] = []
        self._starting: list[WorkerProcess] = []
        self._n_numbered = 0
        self._n_failures = 0
        self._not_before_s = 0.0
        self._start_fault = ""
        self._is_closed = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._supervisor = threading.Thread(target=self._supervise, name="workers", daemon=True)
        self._collectors: dict[WorkerProcess, threading.Thread] = {}
        self._quarantine = Quarantine(QuarantineSettings(first_rest_s=config.quarantine_s))
        self._gpu_watch = GpuWatch([slot.device for slot in self._slots])
        self._calibration = Calibration(config, on_measured) if config.calibrate else None

    def start(self) -> None:
        """Start the processes; each announces itself by `WorkerUp`."""
        if self._first is not None:
            self._attend(self._first)
        self._supervisor.start()

    def close(self) -> None:
        """End all processes at once, whatever they are at; nothing is reported any more."""
        with self._lock:
            self._is_closed = True
            processes = [*self._workers.values(), *self._standbys, *self._starting]
        for process in processes:
            process.kill()
        self._wakes.put(None)
        if self._supervisor.is_alive():
            self._supervisor.join(timeout=10.0)
        for process, thread in list(self._collectors.items()):
            process.kill()
            if thread is not threading.current_thread():
                thread.join(timeout=10.0)

    # Work

    def send(self, worker: int, jobs: Sequence[Job], expected_s: float = 0.0) -> bool:
        """Hand a batch to a worker; does not wait, also not for one that is busy.

        Args:
            worker: its number.
            jobs: computed in this order.
            expected_s: how long they should take; by that the watchdog knows who is stuck.

        Returns:
            False when that worker is gone: the jobs were not begun, and its `WorkerDown` does not list them.
        """
        process = self._workers.get(worker)
        return process is not None and process.send(jobs, self._limit_s(expected_s))

    def drop_segment(self, segment: int) -> None:
        """Have every worker unmap a segment: now, or as soon as it has answered what it is at.

        Its pages are free only then; who needs them now gives them back with ``MADV_REMOVE``.
        """
        for process in list(self._workers.values()):
            process.drop(segment)

    def info(self) -> list[dict[str, Any]]:
        """Facts for people about each place: who holds it, what it is at, what it has done."""
        with self._lock:
            slots = [(slot, slot.process) for slot in self._slots]
            standbys = list(self._standbys)
        facts = [slot_facts(slot, process, self._start_fault) for slot, process in slots]
        return facts + [
            {"worker": -1, "device": "", "pid": one.pid, "state": "standby", **memory_facts(one.pid)}
            for one in standbys
        ]

    def _limit_s(self, expected_s: float) -> float:
        return max(self._config.hang_min_s, self._config.hang_factor * expected_s)

    # One process: from its start to its end, in its collector thread

    def _collect(self, process: WorkerProcess) -> None:
        try:
            while (message := process.receive()) is not None:
                if isinstance(message, list):
                    if process.is_on_probation and all(answer.error is None for answer in message):
                        self._pass(process)
                    self._tell(self._on_done, process.worker, message)
                else:
                    self._heed(process, message)
        except WorkerLiedError as lie:
            process.has_lied = True
            process.kill("died", f"it lied: {lie}")
        self._bury(process)

    def _pass(self, process: WorkerProcess) -> None:
        """A device that has rested has computed something."""
        with self._lock:
            slot = self._slot_of(process)
            if slot is not None:
                self._obey(self._quarantine.apply(Passed(slot.device.name, time.monotonic())))
                process.is_on_probation = self._quarantine.state(slot.device.name) == "probation"

    def _heed(self, process: WorkerProcess, message: dict[str, Any]) -> None:
        if "ready" in message:
            process.versions = message["ready"]
            self._enter(process)
        elif "taken" in message:
            process.versions.update(message["taken"])
            self._confirm(process)
        elif "sick" in message:
            process.kill("sick", str(message["sick"]))
        elif "unfit" in message:
            process.is_unfit = True
            process.detail = self._start_fault = str(message["unfit"])
            logger.error("a worker process cannot start: %s", process.detail)
        elif "measured" in message and self._calibration is not None:
            self._calibration.learn(process.worker, message["measured"])
            self._wakes.put(None)

    def _enter(self, process: WorkerProcess) -> None:
        """A process has everything imported: it takes a free place, else it stands by."""
        with self._lock:
            if process in self._starting:
                self._starting.remove(process)
            self._n_failures = 0
            self._not_before_s = 0.0
            self._start_fault = ""
            if self._is_closed:
                return
            slot = self._free_slot()
            if slot is None:
                self._standbys.append(process)
                return
            self._take(slot, process)
        self._announce(slot, process)
        self._wakes.put(None)

    def _take(self, slot: Slot, process: WorkerProcess) -> None:
        """Give a place to a process; under the lock."""
        process.worker = self._n_numbered
        process.entered_ns = time.monotonic_ns()
        self._n_numbered += 1
        slot.process = process
        self._workers[process.worker] = process
        device = slot.device
        process.is_on_probation = self._quarantine.state(device.name) == "probation"
        process.order(take={"device": device.name, "device_kind": device.kind, "cores": device.cores})

    def _announce(self, slot: Slot, process: WorkerProcess) -> None:
        """A CPU needs no preparation; a GPU worker confirms when its device is ready."""
        if slot.device.kind == "cpu":
            self._open(slot, process)

    def _confirm(self, process: WorkerProcess) -> None:
        slot = self._slot_of(process)
        if slot is not None:
            self._open(slot, process)

    def _open(self, slot: Slot, process: WorkerProcess) -> None:
        with process.door:
            if process.is_buried:
                return
            process.is_open = True
            self._tell(self._on_change, WorkerUp(process.worker, slot.device.name, slot.device.kind))
        if self._calibration is not None:
            self._calibration.welcome(slot.device, process.versions)

    def _bury(self, process: WorkerProcess) -> None:
        """A process has ended: tell what is lost, and let a standby take its place."""
        lost = process.bury()
        with process.door:
            process.is_buried = True
        with self._lock:
            self._workers.pop(process.worker, None)
            if process in self._starting or process.is_unfit:
                self._n_failures += 1
                pause_s = min(_MAX_PAUSE_S, 0.1 * 2**self._n_failures)
                self._not_before_s = time.monotonic() + pause_s
            if process in self._starting:
                self._starting.remove(process)
            if process in self._standbys:
                self._standbys.remove(process)
            slot = self._slot_of(process)
            successor = self._succeed(slot, process) if slot is not None and not self._is_closed else None
            is_closed = self._is_closed
        if slot is not None and not is_closed:
            if process.is_open:
                self._report(slot, process, lost)
            if successor is not None:
                self._announce(slot, successor)
        if self._calibration is not None:
            self._calibration.forget(process.worker)
        process.close()
        self._collectors.pop(process, None)
        self._wakes.put(None)

    def _succeed(self, slot: Slot, process: WorkerProcess) -> WorkerProcess | None:
        """Free the place of a process, and fill it if a standby is there; under the lock."""
        slot.process = None
        slot.n_lost += 1
        slot.last_fault = f"{process.fate}: {process.detail}"
        if slot.device.kind != "cpu":
            fault = Faulted(slot.device.name, process.fate == "sick", process.detail, time.monotonic())
            self._obey(self._quarantine.apply(fault))
        if not self._standbys or not slot.is_free:
            return None
        successor = self._standbys.pop()
        self._take(slot, successor)
        return successor

    def _obey(self, commands: Sequence[Command]) -> None:
        """Close or open the places of a device; under the lock."""
        for command in commands:
            for slot in self._slots:
                if slot.device.name == command.device and not isinstance(command, Trust):
                    slot.is_resting = isinstance(command, Rest)
            logger.warning("device %s: %s", command.device, command)

    def _report(self, slot: Slot, process: WorkerProcess, lost: tuple[Lost, ...]) -> None:
        logger.warning(
            "worker %d (%s, pid %d) %s: %s; %d jobs lost",
            process.worker,
            slot.device.name,
            process.pid,
            process.fate,
            process.detail,
            len(lost),
        )
        change = WorkerDown(process.worker, slot.device.name, process.fate, lost, process.detail)
        self._tell(self._on_change, change)

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back; what goes wrong there must not end the thread that all other news come by."""
        try:
            callback(*arguments)
        except Exception:
            logger.exception("the server could not take what a worker said")

    # The supervisor

    def _supervise(self) -> None:
        tick_s = min(_MAX_TICK_S, self._config.hang_min_s / 4)
        while not self._is_closed:
            try:
                self._fill()
                self._watch()
                self._measure()
            except Exception:
                logger.exception("the supervisor of the workers stumbled")
            try:
                self._wakes.get(timeout=tick_s)
            except queue.Empty:
                continue

    def _fill(self) -> None:
        """Start the processes that are missing: first one for each free place, then the standbys."""
        self._wake_devices()
        while True:
            with self._lock:
                n_free = sum(slot.is_free for slot in self._slots)
                n_wanted = n_free or self._config.standby_workers - len(self._standbys)
                is_late = time.monotonic() < self._not_before_s
                if self._is_closed or is_late or n_wanted <= len(self._starting):
                    return
            self._start_process()

    def _wake_devices(self) -> None:
        """Open the places of devices whose rest is over; a standby takes them at once."""
        with self._lock:
            self._obey(self._quarantine.apply(TimePassed(time.monotonic())))
            taken = []
            while self._standbys and (slot := self._free_slot()) is not None:
                taken.append((slot, self._standbys.pop()))
                self._take(*taken[-1])
        for slot, process in taken:
            self._announce(slot, process)

    def _start_process(self) -> None:
        config = self._config
        self._attend(WorkerProcess(launch(config.cores_per_worker, config.extra_operations)))

    def _attend(self, process: WorkerProcess) -> None:
        """Listen to a process that is starting."""
        process.segments = self._segments
        thread = threading.Thread(target=self._collect, args=(process,), name="collector", daemon=True)
        with self._lock:
            self._starting.append(process)
            self._collectors[process] = thread
        thread.start()

    def _watch(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            workers = list(self._workers.values())
            starting = list(self._starting)
        for process in workers:
            if process.overdue_s(now_s) > 0:
                process.kill("stuck", f"no answer for {now_s - process.busy_since_s():.1f} s")
        for process in starting:
            if now_s - process.tally.started_s > _MAX_START_S:
                process.kill("died", f"not ready after {_MAX_START_S:.0f} s")
        for name, fault in self._gpu_watch.faults():
            for slot in self._slots:
                if slot.device.name == name and slot.process is not None:
                    slot.process.kill("sick", fault)

    def _measure(self) -> None:
        """Let one worker that has been idle for a while measure one problem."""
        if self._calibration is None or self._calibration.is_done:
            return
        for slot in self._slots:
            process = slot.process
            if process is not None and process.idle_s() >= _IDLE_BEFORE_MEASURING_S:
                problem = self._calibration.next_problem(process.worker, slot.device)
                if problem is not None:
                    process.order(measure=problem)

    def _free_slot(self) -> Slot | None:
        return next((slot for slot in self._slots if slot.is_free), None)

    def _slot_of(self, process: WorkerProcess) -> Slot | None:
        return next((slot for slot in self._slots if slot.process is process), None)
