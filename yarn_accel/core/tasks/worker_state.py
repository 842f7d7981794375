"""What a worker does with its orders: facts come in, actions go out; no clock, no process.

An attempt waits, runs and ends; it is forgotten when the master has seen its end and lists it no more
(`worker_messages` has the rules). An attempt is started at most once: the ids of those that were forgotten
last are kept, and an attempt that is listed once more is refused.

An attempt whose processes have ended occupies nothing while its output is written, so the next one starts
meanwhile. Few attempts write so at a time: where the storage is slow, the others keep their places until one
of these is over.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum

from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.core.tasks.worker_messages import (
    MAX_HELD,
    MAX_LINE,
    AttemptEnd,
    AttemptOutcome,
    AttemptPhase,
    AttemptReport,
    IoSample,
    OrderNumber,
    WorkerOrder,
    WorkerReport,
)

#: From SIGTERM to SIGKILL.
STOP_GRACE_S = 5.0
#: A gap between two ticks that is longer than this was a worker that stood still: its children's silence
#: is not theirs.
_STALL_S = 2.0
_MAX_FORGOTTEN = 10_000
#: Attempts that write their outputs while others have their places.
_WRITING_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """Who a worker is, and what it has."""

    worker: ResourceId
    node: str
    incarnation: str
    cores: int
    gpus: int
    memory_bytes: int
    bandwidth_bytes_per_s: float = 0.0
    accelerator: str = ""


# ---- facts


@dataclass(frozen=True, slots=True)
class OrderReceived:
    """The master replied."""

    order: WorkerOrder
    now_s: float


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """There was no reply, or none that is an order."""

    problem: str
    now_s: float


@dataclass(frozen=True, slots=True)
class ProcessesEnded:
    """Nothing of an attempt runs any more, and its output is being written; `RunEnded` follows."""

    attempt: AttemptId
    now_s: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """An attempt that was started is over, as its end says; nothing of it runs any more."""

    attempt: AttemptId
    end: AttemptEnd
    now_s: float


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """An attempt read, wrote or reported something since its last progress."""

    attempt: AttemptId
    status: str
    read_bytes: int
    now_s: float


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """What an attempt's processes occupy together."""

    attempt: AttemptId
    memory_bytes: int
    now_s: float


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """Time passes; sent several times a second."""

    now_s: float


WorkerFact = (
    OrderReceived | OrderRefused | ProcessesEnded | RunEnded | AttemptProgress | MemoryMeasured | ClockTicked
)


# ---- actions


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start it; `RunEnded` follows in any case. The devices are its own as long as it runs."""

    order: AttemptOrder
    devices: tuple[int, ...]


class StopForce(Enum):
    """How hard an attempt is ended."""

    TERMINATE = "terminate"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End all its processes; commit nothing that is not committed."""

    attempt: AttemptId
    force: StopForce


@dataclass(frozen=True, slots=True)
class SendReport:
    """The master should know: at once, or soon, together with what follows."""

    is_urgent: bool = True


WorkerAction = StartAttempt | StopAttempt | SendReport


@dataclass(slots=True)
class _HeldAttempt:
    order: AttemptOrder
    phase: AttemptPhase
    since_s: float
    devices: tuple[int, ...] = ()
    #: Its output is written.
    have_processes_ended: bool = False
    #: So it is, and the attempt occupies nothing.
    is_writing: bool = False
    active_s: float = 0.0
    status: str = ""
    read_bytes: int = 0
    stop_outcome: AttemptOutcome | None = None
    stop_error: str = ""
    stop_s: float = 0.0
    is_killed: bool = False
    end: AttemptEnd | None = None
    #: The first report that shows its end.
    reported_in: int | None = None


@dataclass(slots=True)
class _Free:
    """What nobody has; `are_gpus_wanted` once somebody waits for GPUs."""

    cores: int
    memory_bytes: int
    devices: list[int]
    are_gpus_wanted: bool = False


class WorkerState:
    """All that one worker holds."""

    def __init__(self, capacity: WorkerCapacity) -> None:
        self._capacity = capacity
        self._held: dict[AttemptId, _HeldAttempt] = {}
        #: Waiting attempts, in the order in which they start.
        self._queue: list[AttemptId] = []
        self._listed: frozenset[AttemptId] = frozenset()
        self._forgotten: OrderedDict[AttemptId, None] = OrderedDict()
        self._number: OrderNumber | None = None
        self._sequence = 0
        self._acknowledged = 0
        self._ticked_s: float | None = None
        self._problem = ""

    @property
    def running(self) -> tuple[AttemptId, ...]:
        """The attempts that have begun and not ended."""
        return tuple(id_ for id_, held in self._held.items() if held.phase is AttemptPhase.RUNNING)

    @property
    def is_full(self) -> bool:
        """Whether no core is free."""
        return not self._free().cores

    @property
    def order_number(self) -> OrderNumber | None:
        """Of the last order that was taken."""
        return self._number

    def inputs(self) -> tuple[list[str], list[str]]:
        """URIs of what attempts take: of those that wait, the next first, and of those that run."""
        waiting, running = (
            [uri for id_ in ids for _, uri in self._held[id_].order.inputs]
            for ids in (self._queue, self.running)
        )
        return waiting, running

    def apply(self, fact: WorkerFact) -> tuple[WorkerAction, ...]:
        """Take one fact in; the actions are to be carried out in order."""
        if isinstance(fact, OrderReceived):
            return self._take(fact.order, fact.now_s)
        if isinstance(fact, OrderRefused):
            self._problem = fact.problem[:MAX_LINE]
            return ()
        if isinstance(fact, ClockTicked):
            return self._tick(fact.now_s)
        held = self._held.get(fact.attempt)
        if held is None or held.phase is not AttemptPhase.RUNNING:
            return ()
        if isinstance(fact, RunEnded):
            self._end(held, _judged(held, fact.end), fact.now_s)
            self._free_writing()
            starts = self._start_waiting(fact.now_s)
            # While more waits here, nobody waits for the news.
            is_urgent = fact.end.outcome is not AttemptOutcome.DONE or not self._queue
            return (*starts, SendReport(is_urgent))
        if isinstance(fact, ProcessesEnded):
            held.have_processes_ended = True
            self._free_writing()
            return tuple(self._start_waiting(fact.now_s))
        if isinstance(fact, AttemptProgress):
            held.status, held.read_bytes, held.active_s = fact.status, fact.read_bytes, fact.now_s
            return ()
        limit = held.order.demand.memory_bytes
        if not limit or fact.memory_bytes <= limit:
            return ()
        error = f"its processes occupied {fact.memory_bytes} bytes, {limit} are its limit"
        return self._stop(held, AttemptOutcome.OUT_OF_MEMORY, error, fact.now_s)

    def report(self, now_s: float, io: IoSample | None = None) -> WorkerReport:
        """The next report; each has a number of its own."""
        self._sequence += 1
        for held in self._held.values():
            if held.phase is AttemptPhase.ENDED and held.reported_in is None:
                held.reported_in = self._sequence
        own = self._capacity
        return WorkerReport(
            worker=own.worker,
            node=own.node,
            incarnation=own.incarnation,
            sequence=self._sequence,
            order=self._number,
            cores=own.cores,
            gpus=own.gpus,
            memory_bytes=own.memory_bytes,
            attempts=tuple(_shown(held, now_s) for held in self._held.values()),
            io=io,
            bandwidth_bytes_per_s=own.bandwidth_bytes_per_s,
            accelerator=own.accelerator,
            problem=self._problem,
        )

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        waiting = {id_ for id_, held in self._held.items() if held.phase is AttemptPhase.QUEUED}
        assert sorted(self._queue) == sorted(waiting), "the queue is not what waits"
        assert waiting <= self._listed, "something waits that is not wanted"
        assert len(self._held) <= MAX_HELD
        assert not self._forgotten.keys() & self._held.keys()
        free = self._free()
        assert free.cores >= 0
        assert free.memory_bytes >= 0
        assert len({*self._devices_in_use()}) == len(self._devices_in_use()), "a device is given twice"
        for held in self._held.values():
            assert (held.end is not None) == (held.phase is AttemptPhase.ENDED)
            assert held.reported_in is None or held.reported_in <= self._sequence
            is_running = held.phase is AttemptPhase.RUNNING
            assert is_running or not held.have_processes_ended
            assert held.have_processes_ended or not held.is_writing
            occupies = is_running and not held.is_writing
            assert len(held.devices) == (held.order.demand.gpus if occupies else 0)
            assert self._held[held.order.attempt] is held
        assert not self._startable(), "something waits that could run"

    # ---- orders

    def _take(self, order: WorkerOrder, now_s: float) -> tuple[WorkerAction, ...]:
        if order.incarnation != self._capacity.incarnation or order.report_sequence > self._sequence:
            self._problem = "the order is meant for another incarnation of this worker"
            return ()
        if self._number is not None and order.number < self._number:
            return ()
        self._acknowledged = max(self._acknowledged, order.report_sequence)
        if order.number != self._number:
            if not self._has_capacity_for(order):
                self._problem = f"more than {MAX_HELD} attempts would be held: take reports in first"
                return ()
            self._number = order.number
            self._listed = frozenset(each.attempt for each in order.attempts)
            actions = [*self._drop_unlisted(now_s), *self._add_listed(order, now_s)]
            actions += self._take_back(order, now_s)
            self._queue = [
                each.attempt
                for each in order.attempts
                if self._held[each.attempt].phase is AttemptPhase.QUEUED
            ]
            starts = self._start_waiting(now_s)
            # The master learns of it soon, also where no end follows; of a short task of both at once. Where
            # nothing more can start, it learns of it with the next report, which comes in any case.
            actions += [*starts, SendReport(is_urgent=False)] if starts and not self.is_full else starts
        else:
            actions = []
        self._problem = ""
        self._forget()
        return tuple(actions)

    def _has_capacity_for(self, order: WorkerOrder) -> bool:
        return len(self._held.keys() | {each.attempt for each in order.attempts}) <= MAX_HELD

    def _drop_unlisted(self, now_s: float) -> list[WorkerAction]:
        actions: list[WorkerAction] = []
        for id_, held in self._held.items():
            if id_ in self._listed:
                continue
            if held.phase is AttemptPhase.QUEUED:
                self._end(held, AttemptEnd(AttemptOutcome.TAKEN_BACK), now_s)
            elif held.phase is AttemptPhase.RUNNING:
                actions += self._stop(held, AttemptOutcome.CANCELLED, "", now_s)
        return actions

    def _add_listed(self, order: WorkerOrder, now_s: float) -> list[WorkerAction]:
        actions: list[WorkerAction] = []
        for each in order.attempts:
            if each.attempt in self._held:
                continue
            held = _HeldAttempt(each, AttemptPhase.QUEUED, now_s)
            self._held[each.attempt] = held
            error = self._refusal(each)
            if error:
                self._forgotten.pop(each.attempt, None)
                self._end(held, AttemptEnd(AttemptOutcome.FAILED, error=error), now_s)
                actions = [SendReport()]
        return actions

    def _take_back(self, order: WorkerOrder, now_s: float) -> list[WorkerAction]:
        waiting = [
            held
            for each in order.attempts
            if each.take_back and (held := self._held[each.attempt]).phase is AttemptPhase.QUEUED
        ]
        for held in waiting:
            self._end(held, AttemptEnd(AttemptOutcome.TAKEN_BACK), now_s)
        return [SendReport()] if waiting else []

    def _refusal(self, order: AttemptOrder) -> str:
        """Why an attempt can never run here; empty: it can."""
        own, demand = self._capacity, order.demand
        if order.attempt in self._forgotten:
            return "it was here before: an attempt runs once"
        for wanted, there, what in (
            (demand.cores, own.cores, "cores"),
            (demand.gpus, own.gpus, "GPUs"),
            (demand.memory_bytes, own.memory_bytes, "bytes of memory"),
        ):
            if wanted > there:
                return f"it wants {wanted} {what}, and worker {own.worker} has {there}"
        return ""

    def _forget(self) -> None:
        for id_, held in list(self._held.items()):
            is_seen = held.reported_in is not None and held.reported_in <= self._acknowledged
            if is_seen and id_ not in self._listed:
                del self._held[id_]
                self._forgotten[id_] = None
        while len(self._forgotten) > _MAX_FORGOTTEN:
            self._forgotten.popitem(last=False)

    # ---- starting and ending

    def _start_waiting(self, now_s: float) -> list[WorkerAction]:
        actions: list[WorkerAction] = []
        free = self._free()
        for id_ in self._startable():
            held = self._held[id_]
            n_gpus = held.order.demand.gpus
            held.devices, free.devices = tuple(free.devices[:n_gpus]), free.devices[n_gpus:]
            held.phase, held.since_s, held.active_s = AttemptPhase.RUNNING, now_s, now_s
            self._queue.remove(id_)
            actions.append(StartAttempt(held.order, held.devices))
        return actions

    def _startable(self) -> list[AttemptId]:
        """What fits now, in the order of the queue."""
        free, found = self._free(), []
        for id_ in self._queue:
            demand = self._held[id_].order.demand
            if demand.gpus and (free.are_gpus_wanted or demand.gpus > len(free.devices)):
                free.are_gpus_wanted = True
                continue
            if demand.cores > free.cores or demand.memory_bytes > free.memory_bytes:
                break
            free.cores -= demand.cores
            free.memory_bytes -= demand.memory_bytes
            del free.devices[: demand.gpus]
            found.append(id_)
        return found

    def _free_writing(self) -> None:
        """Free the places of attempts that write their outputs, of those first that were ordered first."""
        writing = [held for held in self._held.values() if held.have_processes_ended]
        n_free = _WRITING_PER_CORE * self._capacity.cores - sum(held.is_writing for held in writing)
        for held in [each for each in writing if not each.is_writing][: max(0, n_free)]:
            held.is_writing, held.devices = True, ()

    def _free(self) -> _Free:
        running = [self._held[id_] for id_ in self.running]
        demands = [held.order.demand for held in running if not held.is_writing]
        used = set(self._devices_in_use())
        return _Free(
            self._capacity.cores - sum(each.cores for each in demands),
            self._capacity.memory_bytes - sum(each.memory_bytes for each in demands),
            [device for device in range(self._capacity.gpus) if device not in used],
        )

    def _devices_in_use(self) -> list[int]:
        return [device for id_ in self.running for device in self._held[id_].devices]

    def _end(self, held: _HeldAttempt, end: AttemptEnd, now_s: float) -> None:
        held.phase, held.since_s, held.end = AttemptPhase.ENDED, now_s, end
        held.devices, held.have_processes_ended, held.is_writing = (), False, False

    def _stop(
        self, held: _HeldAttempt, outcome: AttemptOutcome, error: str, now_s: float
    ) -> tuple[WorkerAction, ...]:
        """End a running attempt; the first reason counts."""
        if held.stop_outcome is not None:
            return ()
        held.stop_outcome, held.stop_error, held.stop_s = outcome, error, now_s
        return (StopAttempt(held.order.attempt, StopForce.TERMINATE),)

    def _tick(self, now_s: float) -> tuple[WorkerAction, ...]:
        stalled_s = 0.0 if self._ticked_s is None else max(0.0, now_s - self._ticked_s)
        self._ticked_s = now_s
        actions: list[WorkerAction] = []
        for id_ in self.running:
            held = self._held[id_]
            if stalled_s > _STALL_S:
                held.active_s = min(now_s, held.active_s + stalled_s)
            if held.stop_outcome is None:
                actions += self._stop_at_limit(held, now_s)
            elif not held.is_killed and now_s - held.stop_s >= STOP_GRACE_S:
                held.is_killed = True
                actions.append(StopAttempt(id_, StopForce.KILL))
        return tuple(actions)

    def _stop_at_limit(self, held: _HeldAttempt, now_s: float) -> tuple[WorkerAction, ...]:
        order = held.order
        if order.time_limit_s and now_s - held.since_s >= order.time_limit_s:
            error = f"it did not end within its {order.time_limit_s:g} s"
            return self._stop(held, AttemptOutcome.TIMED_OUT, error, now_s)
        if order.silence_limit_s and now_s - held.active_s >= order.silence_limit_s:
            error = f"it read, wrote and reported nothing for {order.silence_limit_s:g} s"
            return self._stop(held, AttemptOutcome.TIMED_OUT, error, now_s)
        return ()


def _judged(held: _HeldAttempt, end: AttemptEnd) -> AttemptEnd:
    """The end of an attempt that we may have caused; one that had committed before is done all the same."""
    if held.stop_outcome is None or end.outcome is AttemptOutcome.DONE:
        return end
    return replace(end, outcome=held.stop_outcome, error=held.stop_error, measured=None, is_transient=False)


def _shown(held: _HeldAttempt, now_s: float) -> AttemptReport:
    return AttemptReport(
        held.order.attempt,
        held.phase,
        max(0.0, now_s - held.since_s),
        held.status,
        held.read_bytes,
        held.end,
    )
