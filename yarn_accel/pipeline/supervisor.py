"""The workers of a server: one process for each device, and what happens when one is lost.

All of it happens in the loop: messages of workers when their channels are ready, everything else in a tick a
few times a second.  The tick starts the processes that are missing, gives idle ones something to measure, and
looks for those that will never answer: computations that take far too long, processes that do not run any
more, faults that GPUs report.  A process ends with the thread that started it, so nothing else starts one.

There is a place (`Slot`) for each worker that the server should have, whoever holds it at the time. What is
lost is reported, not repaired: which works to try again is for `core.requests` to decide.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from yarn_accel.core.device_health import (
    Command,
    DeviceHealth,
    DeviceHealthSettings,
    Faulted,
    Passed,
    Rest,
    TimePassed,
    Trust,
)
from yarn_accel.pipeline.calibration import Calibration
from yarn_accel.pipeline.devices import GpuMonitor, find_devices, used_by_others
from yarn_accel.pipeline.worker_process import WorkerProcess
from yarn_accel.pipeline.workers.launching import Device, launch

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.engine import RequestEngine
    from yarn_accel.pipeline.loop import EventLoop
    from yarn_accel.pipeline.worker_process import Segment
    from yarn_accel.pipeline.workers.protocol import Lost

logger = logging.getLogger(__name__)

_MAX_TICK_S = 0.25
_MAX_START_S = 60.0
#: So many worker processes in a row that do not start are no accident.
_FEW_FAILURES = 3
_MAX_PAUSE_S = 5.0
_IDLE_BEFORE_MEASURING_S = 1.0
_BURIAL_RETRY_S = 0.002
_SHARE_MEMORY_S = 30.0
_OUT = ("absent", "quarantined")
"""States of a place whose device cannot be used."""
_UNKILLABLE = "unkillable"
"""State of a process that SIGKILL has not ended, as in a driver that never returns; it has no place."""


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one worker: a device, and who holds it.

    Attributes:
        is_resting: its device is in quarantine.
    """

    index: int
    device: Device
    process: WorkerProcess | None = None
    n_lost: int = 0
    last_fault: str = ""
    is_resting: bool = False

    @property
    def is_free(self) -> bool:
        """Whether a process should take it."""
        return self.process is None and not self.device.fault and not self.is_resting


class WorkerSupervisor:
    """Starts, feeds, watches and replaces worker processes.

    Args:
        config: how many, on which devices, and how patient.
        loop: where all of it happens.
        segments: finds a segment by id, when a worker sees it for the first time.
        engine: notified of everything.
        first: a process that was started already, by the thread that runs the loop.
    """

    def __init__(
        self,
        config: PipelineConfig,
        loop: EventLoop,
        segments: Callable[[int], Segment],
        engine: RequestEngine,
        first: WorkerProcess | None = None,
    ) -> None:
        self._config = config
        self._loop = loop
        self._segments = segments
        self._engine = engine
        self._first = first
        self._slots = [Slot(i, device) for i, device in enumerate(find_devices(config))]
        self._standbys: list[WorkerProcess] = []
        self._starting: list[WorkerProcess] = []
        self._ending: list[WorkerProcess] = []
        self._unkillable: list[WorkerProcess] = []
        #: GPUs on which the last process that made them ready could.
        self._preparable: set[str] = set()
        self._n_numbered = 0
        self._n_failures = 0
        self._not_before_s = 0.0
        self._start_fault = ""
        self._is_closed = False
        self._looked_s = 0.0
        self._tick_s = min(_MAX_TICK_S, config.hang_min_s / 4)
        self._health = DeviceHealth(DeviceHealthSettings(first_rest_s=config.quarantine_s))
        self.gpu_monitor = GpuMonitor([slot.device for slot in self._slots], self._gpu_failed, loop.call_soon)
        self._calibration = Calibration(config, engine.measured, loop.call_soon) if config.calibrate else None

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """The kinds of devices that workers compute on, but of those for what has no form for these."""
        kinds = [slot.device.kind for slot in self._slots if not slot.device.is_for_rest]
        return tuple(dict.fromkeys(kinds))

    @property
    def rest_kinds(self) -> tuple[str, ...]:
        """The kinds that compute what has a form for none of `device_kinds`."""
        is_any = any(slot.device.is_for_rest for slot in self._slots)
        return ("cpu",) if is_any else self.device_kinds

    @property
    def start_fault(self) -> str:
        """Why worker processes cannot start; empty: as far as is known they can."""
        if self._n_failures < _FEW_FAILURES:
            return ""
        return self._start_fault or "each ends while it starts"

    def start(self) -> None:
        """Start the processes; the engine is notified of each that can compute."""
        if self._first is not None:
            self._attend(self._first)
        self.gpu_monitor.start()
        self._looked_s = time.monotonic()
        self._tick()
        self._loop.repeat(self._tick_s, self._tick)

    @property
    def left_pids(self) -> list[int]:
        """The processes that SIGKILL has not ended; what they held comes back when the kernel ends them."""
        return [process.pid for process in self._unkillable]

    def close(self) -> list[tuple[WorkerProcess, tuple[Lost, ...]]]:
        """End all processes at once, whatever they are at; what each leaves unanswered.

        Those that do not end in time are left.
        """
        self._is_closed = True
        self.gpu_monitor.close()
        self._reap()
        placed = self._placed()
        processes = [*placed, *self._standbys, *self._starting, *self._ending]
        for process in processes:
            process.kill()
        left = []
        until_s = time.monotonic() + self._config.kill_timeout_s
        for process in dict.fromkeys(processes):
            while not process.has_ended() and time.monotonic() < until_s:
                time.sleep(_BURIAL_RETRY_S)
            if not process.has_ended():
                process.is_unkillable = True
                self._unkillable.append(process)
            self._loop.forget(process.fd)
            lost = process.bury()
            if process in placed:
                left.append((process, lost))
            process.close()
        for slot in self._slots:
            slot.process = None
        return left

    def info(self) -> list[dict[str, Any]]:
        """Facts for people about each place: who holds it, what it is at, what it has done."""
        probes = self._config.probe_gpus
        facts = [slot_facts(slot, slot.process, self._start_fault, probes) for slot in self._slots]
        others = [("standby", one) for one in self._standbys]
        others += [(_UNKILLABLE, one) for one in self._unkillable]
        return facts + [
            {
                "worker": -1,
                "device": one.device or (one.prepares if one.is_prepared else ""),
                "pid": one.pid,
                "state": state,
                "last_fault": one.detail,
                **memory_facts(one.pid),
            }
            for state, one in others
        ]

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs of this machine as they were a moment ago, and what of them processes of others use."""
        own = {process.pid for process in self._placed()}
        used = {name: used_by_others(found, own) for name, found in self.gpu_monitor.processes.items()}
        return [{**row, "other_bytes": used.get(row["device"])} for row in self.gpu_monitor.latest]

    @property
    def _n_standbys(self) -> int:
        """How many there should be: for each GPU, or for all CPU workers together."""
        slots = [slot for slot in self._slots if slot.device.kind == "cuda" and not slot.device.fault]
        return self._config.standby_workers * max(1, len({slot.device.name for slot in slots}))

    def _placed(self) -> list[WorkerProcess]:
        return [slot.process for slot in self._slots if slot.process is not None]

    # One process: from its start to its end

    def _attend(self, process: WorkerProcess) -> None:
        """Listen to a process that is starting."""
        self._starting.append(process)
        process.attend(self._loop, self._segments, self._config, self._engine.worker_done, self._heed)

    def _pass(self, process: WorkerProcess) -> None:
        """A device that has rested has computed something."""
        slot = self._slot_of(process)
        if slot is not None:
            self._obey(self._health.apply(Passed(slot.device.name, time.monotonic())))
            process.is_on_probation = self._health.state(slot.device.name) == "probation"

    def _heed(self, process: WorkerProcess, message: Any) -> None:
        if message is None:
            self._ending.append(process)
            self._bury_soon(process, time.monotonic())
        elif isinstance(message, list):
            if all(answer.error is None for answer in message):
                self._pass(process)
            self._engine.worker_done(process, message)
        else:
            self._heed_order(process, message)

    def _heed_order(self, process: WorkerProcess, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            process.versions = message["ready"]
            self._enter(process)
        elif "prepared" in message:
            process.is_prepared = True
        elif "taken" in message:
            process.versions.update(message["taken"])
            process.toolkit = str(message["toolkit"])
            self._confirm(process)
        elif "sick" in message:
            process.kill("sick", str(message["sick"]))
        elif "broken" in message:
            process.kill("broke", str(message["broken"]))
        elif "unfit" in message:
            process.is_unfit = True
            process.detail = str(message["unfit"])
            if not process.prepares:
                self._start_fault = process.detail
            logger.error("a worker process cannot start: %s", process.detail)
        elif "measured" in message and self._calibration is not None:
            self._calibration.learn(process.worker, message["measured"])

    def _enter(self, process: WorkerProcess) -> None:
        """A process has everything imported: it takes a free place, else it stands by."""
        if process in self._starting:
            self._starting.remove(process)
        self._n_failures = 0
        self._not_before_s = 0.0
        self._start_fault = ""
        slot = self._free_slot()
        if slot is None:
            self._standbys.append(process)
            self._prepare_standbys()
        else:
            self._take(slot, process)
        self._fill()

    def _take(self, slot: Slot, process: WorkerProcess) -> None:
        """Give a place to a process."""
        process.worker = self._n_numbered
        process.entered_ns = time.monotonic_ns()
        self._n_numbered += 1
        slot.process = process
        device = slot.device
        process.device = device.name
        process.is_on_probation = self._health.state(device.name) == "probation"
        process.order(take=asdict(device), gpu=self._gpu_settings())
        # A CPU needs no preparation; a GPU worker confirms when its device is ready.
        if device.kind == "cpu":
            self._open(slot, process)

    def _confirm(self, process: WorkerProcess) -> None:
        slot = self._slot_of(process)
        if slot is not None:
            logger.info("worker %d computes on %s with %s", process.worker, slot.device.name, process.toolkit)
            self._open(slot, process)
            self._preparable.add(slot.device.name)
            self._prepare_standbys()

    def _gpu_settings(self) -> dict[str, Any]:
        config = self._config
        return {
            "memory_share": config.gpu_memory_share,
            "memory_wait_s": config.gpu_memory_wait_s,
            "probe": config.probe_gpus,
        }

    def _prepare_standbys(self) -> None:
        """Let standbys make a GPU ready, where there is one for each: they take over with a context.

        CUDA shows a process one GPU for good, so there are as many standbys for each GPU.
        """
        gpus = {slot.device.name: slot.device for slot in self._slots if slot.device.kind == "cuda"}
        for name in sorted(self._preparable & gpus.keys()):
            device = gpus[name]
            free = next((each for each in self._standbys if not each.prepares), None)
            is_done = any(each.prepares == name for each in self._standbys)
            if free is not None and not is_done and not device.is_exclusive:
                free.prepares, free.prepares_since_s = name, time.monotonic()
                free.order(prepare=asdict(device), gpu=self._gpu_settings())

    def _take_standby(self, slot: Slot) -> None:
        """Give a place to the standby that is ready for its GPU, else to one that is for none, if any."""
        ready = [each for each in self._standbys if each.is_prepared and each.prepares == slot.device.name]
        found = [*ready, *(each for each in self._standbys if not each.prepares)]
        if found:
            self._standbys.remove(found[0])
            self._take(slot, found[0])

    def _open(self, slot: Slot, process: WorkerProcess) -> None:
        process.is_open = True
        self._engine.worker_started(process, slot.device.name, slot.device.kind)
        if self._calibration is not None and not slot.device.is_for_rest:
            self._calibration.welcome(slot.device, process.versions)

    def _bury_soon(self, process: WorkerProcess, ended_s: float) -> None:
        """Its channel is closed: as soon as it has ended, it writes nothing any more.

        The driver, too, is heard first: its fault may be the reason.
        """
        if self._is_closed or process not in self._ending:
            return
        if process.has_ended() and not self.gpu_monitor.may_report(process.device, ended_s):
            self._bury(process)
        else:
            again = partial(self._bury_soon, process, ended_s)
            self._loop.call_at(time.monotonic() + _BURIAL_RETRY_S, again)

    def _bury(self, process: WorkerProcess) -> None:
        """A process has ended or was given up: report what is lost, and let a standby take its place."""
        lost = process.bury()
        self._ending.remove(process)
        if process in self._standbys and process.prepares:
            self._preparable.discard(process.prepares)
        elif process in self._starting or process.is_unfit:
            self._n_failures += 1
            pause_s = min(_MAX_PAUSE_S, 0.1 * 2**self._n_failures)
            self._not_before_s = time.monotonic() + pause_s
        for group in (self._starting, self._standbys):
            if process in group:
                group.remove(process)
        slot = self._slot_of(process)
        if slot is not None:
            self._leave(slot, process, lost)
            if process.is_open:
                self._report(slot, process, lost)
            if slot.is_free:
                self._take_standby(slot)
        if self._calibration is not None:
            self._calibration.forget(process.worker)
        process.close()
        self._fill()

    def _leave(self, slot: Slot, process: WorkerProcess, lost: tuple[Lost, ...]) -> None:
        """Free the place of a process that has ended."""
        slot.process = None
        slot.n_lost += 1
        slot.last_fault = f"{process.fate}: {process.detail}"
        if slot.device.kind != "cpu":
            suspects = frozenset(each.request for each in lost if each.is_suspect)
            is_hung_start = process.fate == "stuck" and not process.is_open
            is_hard = process.fate == "sick" or process.is_unkillable or is_hung_start
            self._fault(slot.device.name, is_hard, process.detail, suspects)

    def _fault(
        self, device: str, is_hard: bool, reason: str, suspects: frozenset[Hashable] = frozenset()
    ) -> None:
        self._obey(self._health.apply(Faulted(device, is_hard, reason, time.monotonic(), suspects)))

    def _obey(self, commands: Sequence[Command]) -> None:
        """Close or open the places of a device."""
        for command in commands:
            for slot in self._slots:
                if slot.device.name == command.device and not isinstance(command, Trust):
                    slot.is_resting = isinstance(command, Rest)
            if isinstance(command, Rest):
                self._preparable.discard(command.device)
                for process in self._standbys:
                    if process.prepares == command.device:
                        process.kill("sick", "its GPU rests")
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
        self._engine.worker_lost(process, lost)

    # A few times a second

    def _tick(self) -> None:
        if self._is_closed:
            return
        self._reap()
        self._wake_devices()
        self._fill()
        self._watch()
        self._measure()
        self._share_memory()

    def _fill(self) -> None:
        """Start the processes that are missing: first one for each free place, then the standbys."""
        while True:
            n_free = sum(slot.is_free for slot in self._slots)
            n_wanted = n_free or self._n_standbys - len(self._standbys)
            is_late = time.monotonic() < self._not_before_s
            if self._is_closed or is_late or n_wanted <= len(self._starting):
                return
            config = self._config
            self._attend(WorkerProcess(launch(config.cores_per_worker, config.extra_operations)))

    def _wake_devices(self) -> None:
        """Open the places of devices whose rest is over; a standby takes them at once."""
        self._obey(self._health.apply(TimePassed(time.monotonic())))
        for slot in self._slots:
            if slot.is_free:
                self._take_standby(slot)

    def _watch(self) -> None:
        now_s = time.monotonic()
        # Where this process did not run itself, others may not have either.
        passed_s = min(now_s - self._looked_s, 2 * self._tick_s)
        self._looked_s = now_s
        for process in [*self._placed(), *self._standbys]:
            if process.overdue_s(now_s) > 0:
                process.kill("stuck", f"no answer for {now_s - process.busy_since_s():.1f} s")
            elif reason := process.look(passed_s):
                process.kill("stuck", reason)
        self._watch_starts(now_s)
        for process in [*self._placed(), *self._standbys, *self._starting, *self._ending]:
            is_due = process.killed_s and now_s - process.killed_s >= self._config.kill_timeout_s
            if is_due and process not in self._unkillable and not process.has_ended():
                self._give_up(process)

    def _watch_starts(self, now_s: float) -> None:
        """End those whose imports, or whose GPU, take too long."""
        for process in self._starting:
            if now_s - process.tally.started_s > _MAX_START_S:
                process.kill("died", f"not ready after {_MAX_START_S:.0f} s")
        limit_s = self._config.gpu_start_timeout_s
        begun = [(each, each.device, each.entered_ns / 1e9) for each in self._placed() if not each.is_open]
        begun += [
            (each, each.prepares, each.prepares_since_s)
            for each in self._standbys
            if each.prepares and not each.is_prepared
        ]
        for process, device, since_s in begun:
            if now_s - since_s > limit_s:
                process.kill("stuck", f"{device} was not ready and probed after {limit_s:g} s")

    def _give_up(self, process: WorkerProcess) -> None:
        """Go on without a process that does not end, and let nobody use what it may still write to."""
        logger.error("process %d does not end after SIGKILL: its place is given to another", process.pid)
        process.is_unkillable = True
        self._unkillable.append(process)
        self._loop.forget(process.fd)
        if process not in self._ending:
            self._ending.append(process)
        self._bury(process)

    def _reap(self) -> None:
        """Let go of what was held for processes that have ended after all."""
        for process in [each for each in self._unkillable if each.has_ended()]:
            self._unkillable.remove(process)
            logger.warning("process %d has ended, long after SIGKILL", process.pid)
            self._engine.worker_ended(process)

    def _gpu_failed(self, name: str, fault: str) -> None:
        processes = [slot.process for slot in self._slots if slot.device.name == name and slot.process]
        for process in processes:
            process.accuse_device(fault)
        if not processes and self._health.state(name) != "resting":
            self._fault(name, True, fault)

    def _measure(self) -> None:
        """Let one worker that has been idle for a while measure one problem."""
        if self._calibration is None or self._calibration.is_done:
            return
        for slot in self._slots:
            process = slot.process
            if process is not None and process.is_open and process.idle_s() >= _IDLE_BEFORE_MEASURING_S:
                problem = self._calibration.next_problem(process.worker, slot.device)
                if problem is not None:
                    process.order(measure=problem)

    def _share_memory(self) -> None:
        """Have the workers of GPUs count anew what of the memory that they share is taken beside their parts.

        That is when processes without a part come or go, and from time to time, as libraries take memory
        when they are first used.
        """
        now_s = time.monotonic()
        for process in self._placed():
            if not process.is_open or process.device == "cpu":
                continue
            others = {each for each in self._standbys if each.prepares == process.device}
            others |= {each for each in self._unkillable if each.device == process.device}
            beside = sorted(each.pid for each in others)
            if beside != process.beside or now_s - process.shared_s >= _SHARE_MEMORY_S:
                process.beside, process.shared_s = beside, now_s
                process.order(beside=beside)

    def _free_slot(self) -> Slot | None:
        return next((slot for slot in self._slots if slot.is_free), None)

    def _slot_of(self, process: WorkerProcess) -> Slot | None:
        return next((slot for slot in self._slots if slot.process is process), None)


def slot_facts(
    slot: Slot, process: WorkerProcess | None, start_fault: str, probes_gpus: bool
) -> dict[str, Any]:
    """The facts about a place, for people.

    Args:
        slot: the place.
        process: who holds it.
        start_fault: why the last process that was started could not.
        probes_gpus: whether a process computes small cases on its GPU before it takes requests.
    """
    facts: dict[str, Any] = {
        "slot": slot.index,
        "device": slot.device.name,
        "device_kind": slot.device.kind,
        "is_for_rest": slot.device.is_for_rest,
        "affinity": list(slot.device.cores),
        "n_lost": slot.n_lost,
        "last_fault": slot.device.fault or slot.last_fault or start_fault,
    }
    if process is None:
        state = "absent" if slot.device.fault else "quarantined" if slot.is_resting else "starting"
        return {"worker": -1, "pid": 0, "state": state, "busy_s": 0.0, "n_jobs": 0, "rss_bytes": 0, **facts}
    now_s = time.monotonic()
    return {
        "worker": process.worker,
        "pid": process.pid,
        "state": _state(process, probes_gpus),
        "busy_s": process.busy_s(now_s),
        "n_jobs": process.tally.n_jobs,
        "uptime_s": now_s - process.tally.started_s,
        "toolkit": process.toolkit,
        **memory_facts(process.pid),
        **facts,
    }


def _state(process: WorkerProcess, probes_gpus: bool) -> str:
    if not process.is_open:
        return "probing" if probes_gpus else "starting"
    return "busy" if process.busy_since_s() else "measuring" if process.is_measuring else "idle"


def has_places(facts: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any place can be used, of what is said of each; one lost device stops no other."""
    out = (*_OUT, "standby", _UNKILLABLE)
    return any(each["state"] not in out and not each.get("is_for_rest") for each in facts)


def problems_of(facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The troubles an operator should know of, in one line each."""
    return [
        f"{each['device']}: {each['state']}{': ' + fault if (fault := each['last_fault']) else ''}"
        for each in facts
        if each["state"] in (*_OUT, _UNKILLABLE)
    ]


def memory_facts(pid: int) -> dict[str, int]:
    """Resident bytes, and those of them that are the process's own and not shared buffers or libraries."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 -- read often
            _, resident, shared, *_ = (int(text) for text in file.read().split())
    except (OSError, ValueError):
        return {"rss_bytes": 0, "own_bytes": 0}
    return {"rss_bytes": resident * page_bytes, "own_bytes": (resident - shared) * page_bytes}
