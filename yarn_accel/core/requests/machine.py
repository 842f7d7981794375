"""Everything the server decides about requests: events in, commands out, nothing else touched.

::

    Received ──> LOOKING ──> WAITING ──> RECEIVING ──> CHECKING ──> READING ──> QUEUED ──> RUNNING ──> WRITING
    (each may be left out)  for memory    payload    own output   inputs      worker                 storage

The machine owns the records of requests, connections and segments (`records`); the shell has no tables of
them. The parts, each of which knows only those behind it: `lifecycle` (the way of a request), `answers` (who
gets which, what is remembered), `memory`, `scheduling` (which worker computes what). Here are the
connections, the requests that come and which of them are refused, and what follows from every event.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from yarn_accel.core.requests.answers import Idempotency, Replies
from yarn_accel.core.requests.commands import (
    Command,
    Drained,
    Look,
    ReplyBusy,
    ReplyCancelled,
    ReplyFailure,
    WakeAt,
)
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
    WorkerEnded,
    WorkerLost,
    WorkerStarted,
    Written,
)
from yarn_accel.core.requests.lifecycle import SHARE_RETRY_S, Computing, Preparation, key_reused, too_large
from yarn_accel.core.requests.memory import MemoryPool
from yarn_accel.core.requests.records import (
    STAGES,
    ConnectionRecord,
    Failure,
    MachineState,
    Needs,
    SharedInputs,
    TenantRecord,
    WorkRecord,
    WorkState,
)
from yarn_accel.core.requests.settings import MachineSettings, TenantSettings
from yarn_accel.uris import shown

_NEVER = float("inf")
_DRAIN_RETRY_S = 1.0
_FULL_RETRY_S = 0.1
#: Kinds of requests that are known to fit.
_MAX_KINDS = 1024
_WAITING = WorkState.WAITING
_RECEIVING = WorkState.RECEIVING
_LOOKING = WorkState.LOOKING
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
        self._n_works = 0
        #: Needs that are refused for no size, and ask for no rights.
        self._fit: set[Needs] = set()
        self._handlers: dict[type, Callable[[Any], None]] = {
            ConnectionOpened: self._opened,
            ConnectionClosed: self._closed,
            Received: self._received,
            Arrived: preparation.arrived,
            Looked: preparation.looked,
            OutputLooked: preparation.output_looked,
            InputsRead: preparation.inputs_read,
            StorageFailed: preparation.storage_failed,
            Written: computing.written,
            WorkerStarted: computing.worker_started,
            WorkerLost: computing.worker_lost,
            WorkerEnded: self._worker_ended,
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
            settings = self._settings.tenant(event.tenant, event.account)
            queue = self._scheduler.tenant(event.tenant, settings.weight)
            tenant = TenantRecord(event.tenant, settings, queue)
            tenant.queue.n_users += 1
            state.tenants[event.tenant] = tenant
        tenant.n_connections += 1
        connection = event.connection
        connection.tenant, connection.is_open, connection.moved_s = tenant, True, state.now_s
        state.connections[connection] = None

    def _closed(self, event: ConnectionClosed) -> None:
        state = self._state
        connection = event.connection
        if not connection.is_open:
            return
        del state.connections[connection]
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
        connection = event.connection
        work = connection.waits.pop(event.request_id, None)
        if work is None:
            return
        work.waiters.remove((connection, event.request_id))
        state.counts["cancelled"] += 1
        state.out.append(ReplyCancelled(connection, event.request_id))
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
        event.connection.moved_s = event.now_s

    def _memory_wanted(self, event: MemoryWanted) -> None:
        connection = event.connection
        if not connection.is_open:
            return
        connection.moved_s = event.now_s
        if not self._memory.sharing.want(connection, event.request_id, event.n_bytes):
            reason = "no memory to lend now"
            self._state.out.append(ReplyBusy(connection, event.request_id, SHARE_RETRY_S, reason))

    def _memory_returned(self, event: MemoryReturned) -> None:
        event.connection.moved_s = event.now_s
        self._memory.sharing.give_back(event.connection, event.segment)

    # Requests that come

    def _received(self, event: Received) -> None:
        """The header of a request has arrived."""
        state, work = self._state, event.work
        connection = work.connection
        if not connection.is_open:
            return
        request_id, needs = work.request_id, work.needs
        connection.moved_s = state.now_s
        waits = connection.waits
        if state.is_draining or len(waits) >= self._settings.max_in_flight:
            self._turn_away(connection, request_id)
            return
        name = work.name
        idempotency = self._idempotency
        if state.now_s > idempotency.all_young_until_s:
            idempotency.forget_old()
        is_known = name in idempotency.running or name in idempotency.answered
        if request_id in waits or (is_known and idempotency.is_conflict(name, needs, work.writes)):
            self._refuse(connection, request_id, key_reused(name[1]))
            return
        if needs not in self._fit or work.writes:
            failure = self._unfit(work)
            if failure is not None:
                self._refuse(connection, request_id, failure)
                return
        self._admit(work, event)

    def _admit(self, work: WorkRecord, event: Received) -> None:
        """Take a request, and let it go its way."""
        state, connection, request_id = self._state, work.connection, work.request_id
        work.id = self._n_works = number = self._n_works + 1
        connection.waits[request_id] = connection.works[request_id] = state.works[number] = work
        state.n_active += 1
        connection.tenant.n_works += 1
        if event.deadline_s:
            work.due_s = state.now_s + event.deadline_s
        if work.shared is not None:
            self._admit_shared(work, work.shared, event.digest or b"")
        elif work.needs.reads:
            work.state = _LOOKING
            self._preparation.announce(work)
            state.out.append(Look(work))
        elif event.digest is None or self._preparation.confirm(work, event.digest):
            self._preparation.find_memory(work)

    def _admit_shared(self, work: WorkRecord, place: SharedInputs, digest: bytes) -> None:
        """The inputs lie in shared memory already."""
        grant = self._memory.sharing.use(work.connection, place, not work.needs.keep_inputs)
        if isinstance(grant, Failure):
            self._preparation.fail(work, grant)
            return
        work.input_grant = grant
        if self._preparation.confirm(work, digest):
            self._preparation.find_memory(work)

    def _unfit(self, work: WorkRecord) -> Failure | None:
        """Why a request is refused whatever its inputs are."""
        needs = work.needs
        if needs.reads or work.writes:
            failure = forbidden(work.owner.settings, needs.reads, work.writes)
            if failure is not None:
                return failure
            if needs.reads and work.shared is not None:
                text = "inputs by reference and in shared memory do not mix"
                return Failure("rejected", "bad-placement", text)
        failure = too_large(needs, self._settings)
        if failure is None and not needs.reads:
            if len(self._fit) >= _MAX_KINDS:
                self._fit.clear()
            self._fit.add(needs)
        return failure

    def _turn_away(self, connection: ConnectionRecord, request_id: int) -> None:
        out = self._state.out
        if self._state.is_draining:
            out.append(ReplyBusy(connection, request_id, _DRAIN_RETRY_S, "shutting down"))
        else:
            reason = "too many requests of this connection"
            out.append(ReplyBusy(connection, request_id, _FULL_RETRY_S, reason))
        self._preparation.skip(connection, request_id)

    def _refuse(self, connection: ConnectionRecord, request_id: int, failure: Failure) -> None:
        self._state.out.append(ReplyFailure(connection, request_id, failure, None, False))
        self._preparation.skip(connection, request_id)

    # Time, and what follows from everything

    def _drain_started(self, event: DrainStarted) -> None:
        self._state.is_draining = self._state.is_unsettled = True

    def _worker_ended(self, event: WorkerEnded) -> None:
        self._memory.reclaim(event.worker)

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

    # For stats and tests

    @property
    def works(self) -> dict[int, WorkRecord]:
        """The requests of which anything is left, by number; not to be changed."""
        return self._state.works

    @property
    def workers(self) -> Iterable[Hashable]:
        """The workers that take works."""
        return self._scheduler.workers

    def waiting(self) -> Iterator[tuple[ConnectionRecord, int, str, float]]:
        """Who waits for an answer: connection, request number, stage, when the request was received."""
        for work in self._state.works.values():
            for connection, request_id in work.waiters:
                yield connection, request_id, STAGES[work.state], work.arrived_s

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
        for connection in state.connections:
            connection.validate()
            mine = {number: work for (each, number), work in waits.items() if each is connection}
            assert mine == connection.waits
        assert all(each.is_open for each, _ in waits)
        for tenant in state.tenants.values():
            assert tenant.n_works == sum(work.owner is tenant for work in state.works.values())
        needed = self._memory.n_waiting and not self._memory.must_serve
        assert not needed or self._wake_s < _NEVER, "somebody waits for memory and nobody looks"


def forbidden(tenant: TenantSettings, reads: Iterable[str], writes: str) -> Failure | None:
    """Why a tenant may not read or write one of these URIs; None: it may.

    Both are normalised to ``scheme://authority/path``.  A prefix ends at a path border: ``hdfs://nn/data``
    allows ``hdfs://nn/data/a`` but not ``hdfs://nn/database``.  Without prefixes nothing is allowed.
    """
    for uri in reads:
        if not _is_below(uri, tenant.read_prefixes):
            return _not_below(uri, "read_prefixes", tenant.read_prefixes)
    if writes and not _is_below(writes, tenant.write_prefixes):
        return _not_below(writes, "write_prefixes", tenant.write_prefixes)
    return None


def _is_below(uri: str, prefixes: tuple[str, ...]) -> bool:
    for prefix in prefixes:
        if uri == prefix or uri.startswith(prefix if prefix.endswith("/") else prefix + "/"):
            return True
    return False


def _not_below(uri: str, setting: str, prefixes: tuple[str, ...]) -> Failure:
    text, cure = "not below any allowed prefix", f"see {setting} of the tenant in the server's configuration"
    scheme, authority = _store(uri)
    allowed = sorted({_store(prefix)[1] for prefix in prefixes if _store(prefix)[0] == scheme})
    if scheme == "hdfs" and allowed and authority not in allowed:
        names = ", ".join(each or "none" for each in allowed)
        text = f"{text}: its authority {authority or '(none)'} differs from those allowed ({names})"
        cure = f"write hdfs:///PATH for the cluster's own file system, or {cure}"
    return Failure("rejected", "forbidden-uri", f"{shown(uri)}: {text}", cure)


def _store(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.partition("://")
    return scheme, rest.partition("/")[0]
