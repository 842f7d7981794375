"""Everything the server decides about requests: events in, commands out, nothing else touched.

::

    Received ──> LOOKING ──> WAITING ──> RECEIVING ──> CHECKING ──> READING ──> QUEUED ──> RUNNING ──> WRITING
    (each may be left out)  for memory    payload    own output   inputs      worker                 storage

The parts, each of which knows only those behind it: `intake` (a request comes), `preparation` (its memory,
its inputs, others of its key), `computing` (workers), `replies` (who gets which answer), `idempotency` (what
is under way and what is remembered), `memory`, `sharing`.  Here are the connections, and what follows from
every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from yarn_accel.core.requests.commands import Command, Drained, ReplyBusy, ReplyCancelled, WakeAt
from yarn_accel.core.requests.computing import Computing
from yarn_accel.core.requests.events import (
    Arrived,
    ConnectionClosed,
    ConnectionOpened,
    DrainStarted,
    Event,
    Finished,
    InputsRead,
    Looked,
    MemoryReturned,
    MemoryWanted,
    Moved,
    OutputLooked,
    RateMeasured,
    Received,
    RequestCancelled,
    SegmentCreated,
    SegmentFailed,
    Sent,
    StorageFailed,
    Tick,
    WorkerLost,
    WorkerStarted,
    Written,
)
from yarn_accel.core.requests.idempotency import Idempotency
from yarn_accel.core.requests.intake import Intake
from yarn_accel.core.requests.memory import MemoryPool
from yarn_accel.core.requests.preparation import Preparation
from yarn_accel.core.requests.replies import Replies
from yarn_accel.core.requests.settings import MachineSettings
from yarn_accel.core.requests.work import (
    STAGES,
    ConnectionRecord,
    MachineState,
    TenantRecord,
    WorkRecord,
    WorkState,
)

_NEVER = float("inf")
_SHARE_RETRY_S = 0.1
_WAITING = WorkState.WAITING
_RECEIVING = WorkState.RECEIVING
_QUEUED = WorkState.QUEUED
_RUNNING = WorkState.RUNNING


class RequestMachine:
    """The state of all requests of one server; one caller at a time."""

    def __init__(self, settings: MachineSettings) -> None:
        self._settings = settings
        self._state = state = MachineState()
        self._memory = memory = MemoryPool(settings, state)
        self._idempotency = idempotency = Idempotency(settings, memory, state)
        self._replies = replies = Replies(memory, idempotency, state)
        self._computing = computing = Computing(settings, memory, idempotency, replies, state)
        self._scheduler = computing.scheduler
        preparation = Preparation(settings, memory, idempotency, replies, computing, state)
        self._preparation = preparation
        self._wake_s = _NEVER
        self._is_drained = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            ConnectionOpened: self._opened,
            ConnectionClosed: self._closed,
            Received: Intake(settings, memory, idempotency, preparation, state).received,
            Arrived: preparation.arrived,
            Looked: preparation.looked,
            OutputLooked: preparation.output_looked,
            InputsRead: preparation.inputs_read,
            StorageFailed: preparation.storage_failed,
            Written: computing.written,
            WorkerStarted: computing.worker_started,
            WorkerLost: computing.worker_lost,
            Finished: computing.finished,
            Sent: replies.sent,
            RequestCancelled: self._cancelled,
            MemoryWanted: self._memory_wanted,
            MemoryReturned: self._memory_returned,
            SegmentCreated: preparation.segment_created,
            SegmentFailed: preparation.segment_failed,
            Moved: self._moved,
            DrainStarted: self._drain_started,
            RateMeasured: computing.measured,
            Tick: self._tick,
        }

    def apply(self, event: Event) -> list[Command]:
        """Take note of what happened and say what to do now, in this order."""
        state = self._state
        if event.now_s > state.now_s:
            state.now_s = event.now_s
        out: list[Command] = []
        state.out = out
        self._handlers[type(event)](event)
        scheduler = self._scheduler
        is_anybody_waiting = scheduler.waiting or scheduler.due or scheduler.alarms or self._memory.n_waiting
        if is_anybody_waiting or state.is_unsettled:
            self._settle()
        return out

    # Connections

    def _opened(self, event: ConnectionOpened) -> None:
        state = self._state
        tenant = state.tenants.get(event.tenant)
        if tenant is None:
            settings = self._settings.tenant(event.tenant)
            tenant = TenantRecord(event.tenant, settings, self._scheduler.tenant(event.tenant))
            tenant.queue.n_users += 1
            state.tenants[event.tenant] = tenant
        tenant.n_connections += 1
        state.connections[event.connection] = ConnectionRecord(event.connection, tenant, state.now_s)

    def _closed(self, event: ConnectionClosed) -> None:
        state = self._state
        connection = state.connections.pop(event.connection, None)
        if connection is None:
            return
        connection.is_open = False
        state.counts["abandoned"] += len(connection.waits)
        concerned = {**dict.fromkeys(connection.works.values()), **dict.fromkeys(connection.waits.values())}
        for request_id, work in list(connection.waits.items()):
            work.waiters.remove((connection, request_id))
        connection.waits.clear()
        for work in concerned:
            if not work.waiters:
                self._abandon(work)
            elif work.connection is connection:
                self._owner_gone(work)
        self._memory.sharing.end(connection)
        connection.tenant.n_connections -= 1
        if not connection.tenant.n_connections:
            state.departed.add(connection.tenant)
            state.is_unsettled = True

    def _owner_gone(self, work: WorkRecord) -> None:
        """Others wait for a work whose connection is gone, with its payload if that had not come."""
        if not work.is_placed and (work.needs.payload_bytes or work.shared is not None):
            self._preparation.stop_waiting(work)
            self._replies.again(work, "the connection that sent this request was lost")

    def _forget_tenants(self) -> None:
        """Let go of tenants that have no connection any more, and nothing else."""
        state = self._state
        for tenant in list(state.departed):
            if tenant.n_connections:
                state.departed.remove(tenant)
            elif not (tenant.n_works or tenant.held_bytes or tenant.queue.used_bytes):
                state.departed.remove(tenant)
                del state.tenants[tenant.name]
                tenant.queue.n_users -= 1

    def _cancelled(self, event: RequestCancelled) -> None:
        state = self._state
        connection = state.connections.get(event.connection)
        work = connection.waits.pop(event.request_id, None) if connection is not None else None
        if connection is None or work is None:
            return
        work.waiters.remove((connection, event.request_id))
        state.counts["cancelled"] += 1
        state.out.append(ReplyCancelled(connection.id, event.request_id))
        if not work.waiters:
            self._abandon(work)

    def _abandon(self, work: WorkRecord) -> None:
        """Nobody waits for a work any more: drop it, unless a worker or a thread is at it."""
        state = work.state
        if state is _QUEUED:
            self._scheduler.cancel(work)
            self._replies.drop(work)
        elif state is _WAITING or (state is _RECEIVING and not work.connection.is_open):
            self._preparation.stop_waiting(work)
            self._preparation.unblock(work)
            self._replies.drop(work)

    def _moved(self, event: Moved) -> None:
        connection = self._state.connections.get(event.connection)
        if connection is not None:
            connection.moved_s = event.now_s

    def _memory_wanted(self, event: MemoryWanted) -> None:
        connection = self._state.connections.get(event.connection)
        if connection is None:
            return
        connection.moved_s = event.now_s
        if not self._memory.sharing.want(connection, event.request_id, event.n_bytes):
            reason = "no memory to lend now"
            self._state.out.append(ReplyBusy(connection.id, event.request_id, _SHARE_RETRY_S, reason))

    def _memory_returned(self, event: MemoryReturned) -> None:
        connection = self._state.connections.get(event.connection)
        if connection is not None:
            connection.moved_s = event.now_s
            self._memory.sharing.give_back(connection, event.segment)

    # Time, and what follows from everything

    def _drain_started(self, event: DrainStarted) -> None:
        self._state.is_draining = self._state.is_unsettled = True

    def _tick(self, event: Tick) -> None:
        memory = self._memory
        if memory.retry_s <= self._state.now_s:
            memory.retry_s = _NEVER
        memory.must_serve = True

    def _settle(self) -> None:
        """Do what has become possible."""
        memory, computing, state = self._memory, self._computing, self._state
        scheduler = computing.scheduler
        now_s = state.now_s
        if self._wake_s <= now_s:
            self._wake_s = _NEVER
        wake_s = scheduler.wake_s()
        while wake_s <= now_s or scheduler.waiting or (memory.must_serve and memory.n_waiting):
            computing.expire()
            is_changed = computing.dispatch()
            if memory.must_serve and memory.n_waiting:
                is_changed |= self._preparation.serve()
            wake_s = scheduler.wake_s()
            if not is_changed:
                break
        if memory.n_waiting:
            wake_s = min(wake_s, memory.retry_s, self._preparation.look())
        if state.departed:
            self._forget_tenants()
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            state.out.append(WakeAt(wake_s))
        state.is_unsettled = state.is_draining or bool(state.departed)
        if state.is_draining and not self._is_drained and not state.n_active and not self._replies.leaving:
            self._is_drained = True
            state.out.append(Drained())

    # What to look at

    def waiting(self) -> Iterator[tuple[int, int, str, float]]:
        """Who waits for an answer: connection, request number, stage, when the request was received."""
        for work in self._state.works.values():
            for connection, request_id in work.waiters:
                yield connection.id, request_id, STAGES[work.state], work.arrived_s

    def snapshot(self) -> dict[str, Any]:
        """Queues, memory, tenants and workers as plain values, for `stats`."""
        state, memory, idempotency = self._state, self._memory, self._idempotency
        n_bytes = self._settings.queue_bytes
        return {
            **self._scheduler.snapshot(),
            "in_flight": state.n_active,
            "busy_s": self._computing.busy_s,
            "is_draining": state.is_draining,
            "pool": {**memory.snapshot(), "kept_bytes": idempotency.kept_bytes},
            "queues": {
                "read": {
                    "bytes": memory.reading_bytes,
                    "peak_bytes": memory.peak_reading_bytes,
                    "bound_bytes": n_bytes,
                },
                "write": {
                    "bytes": self._replies.bytes,
                    "peak_bytes": self._replies.peak_bytes,
                    "bound_bytes": n_bytes,
                },
            },
            "reply_cache_bytes": idempotency.cached_bytes,
            **state.counts,
        }

    def explain(self, work: int) -> str:
        """One sentence about where a work is and what it waits for."""
        known = self._state.works.get(work)
        if known is None:
            return f"work {work} is not here: never admitted, or over"
        begin = f"work {work} of {known.owner.name}"
        state = known.state
        if state is _QUEUED:
            return f"{begin} is {self._scheduler.explain(known)}"
        if state is _RUNNING:
            return f"{begin} is on worker {known.worker}"
        if state is _WAITING:
            return f"{begin} {self._memory.explain(known)}"
        return f"{begin} is {state.value}"

    def validate(self) -> None:
        """Check that the state agrees with itself; for tests.

        Raises:
            AssertionError: it does not.
        """
        state = self._state
        for part in (self._scheduler, self._memory, self._memory.sharing, self._idempotency, self._replies):
            part.validate()
        active = [work for work in state.works.values() if work.state is not WorkState.ENDED]
        assert state.n_active == len(active)
        for work in state.works.values():
            work.validate()
        waits = {(each, number): work for work in active for each, number in work.waiters}
        for connection in state.connections.values():
            connection.validate()
            mine = {number: work for (each, number), work in waits.items() if each is connection}
            assert mine == connection.waits
        assert all(each.is_open for each, _ in waits)
        for tenant in state.tenants.values():
            assert tenant.n_works == sum(work.owner is tenant for work in state.works.values())
        needed = self._memory.n_waiting and not self._memory.must_serve
        assert not needed or self._wake_s < _NEVER, "somebody waits for memory and nobody looks"
