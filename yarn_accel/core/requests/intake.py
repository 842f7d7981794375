"""A request comes: what is looked at before any memory is taken for it."""

from __future__ import annotations

from yarn_accel.core.requests.admission import forbidden, key_reused, too_large
from yarn_accel.core.requests.commands import Look, ReplyBusy, ReplyFailure
from yarn_accel.core.requests.events import Failure, Needs, Received
from yarn_accel.core.requests.idempotency import Idempotency
from yarn_accel.core.requests.memory import MemoryPool
from yarn_accel.core.requests.preparation import Preparation
from yarn_accel.core.requests.settings import MachineSettings
from yarn_accel.core.requests.work import ConnectionRecord, MachineState, WorkRecord, WorkState

_DRAIN_RETRY_S = 1.0
_FULL_RETRY_S = 0.1
#: Kinds of requests that are known to fit.
_MAX_KINDS = 1024
_RECEIVING = WorkState.RECEIVING
_LOOKING = WorkState.LOOKING


class Intake:
    """Takes requests, or refuses them."""

    def __init__(
        self,
        settings: MachineSettings,
        memory: MemoryPool,
        idempotency: Idempotency,
        preparation: Preparation,
        state: MachineState,
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._idempotency = idempotency
        self._preparation = preparation
        self._state = state
        self._n_works = 0
        #: Needs that are refused for no size, and ask for no rights.
        self._fit: set[Needs] = set()

    def received(self, event: Received) -> None:
        """The header of a request has arrived."""
        state = self._state
        connection = state.connections.get(event.connection)
        if connection is None:
            return
        request_id, needs = event.request_id, event.needs
        connection.moved_s = state.now_s
        waits = connection.waits
        if state.is_draining or len(waits) >= self._settings.max_in_flight:
            self._turn_away(connection, request_id)
            return
        name = (connection.tenant.name, event.key)
        idempotency = self._idempotency
        if state.now_s > idempotency.all_young_until_s:
            idempotency.forget_old()
        is_known = name in idempotency.running or name in idempotency.answered
        if request_id in waits or (is_known and idempotency.is_conflict(name, needs, event.writes)):
            self._refuse(connection, request_id, key_reused(event.key))
            return
        if needs not in self._fit or event.writes:
            failure = self._unfit(connection, event)
            if failure is not None:
                self._refuse(connection, request_id, failure)
                return
        self._admit(connection, name, event)

    def _admit(self, connection: ConnectionRecord, name: tuple[str, str], event: Received) -> None:
        """Make a work of a request, and let it go its way."""
        state = self._state
        request_id, needs = event.request_id, event.needs
        self._n_works = number = self._n_works + 1
        work = WorkRecord(number, connection, request_id, name, needs, _RECEIVING, state.now_s)
        connection.waits[request_id] = connection.works[request_id] = state.works[number] = work
        state.n_active += 1
        connection.tenant.n_works += 1
        if event.priority:
            work.priority = event.priority
        if event.deadline_s:
            work.due_s = state.now_s + event.deadline_s
        if event.writes:
            work.writes = event.writes
        if event.shared is not None:
            self._received_shared(work, event)
        elif needs.reads:
            work.state = _LOOKING
            self._preparation.announce(work)
            state.out.append(Look(number))
        elif event.digest is None or self._preparation.confirm(work, event.digest):
            self._preparation.find_memory(work)

    def _unfit(self, connection: ConnectionRecord, event: Received) -> Failure | None:
        """Why a request is refused whatever its inputs are."""
        needs = event.needs
        if needs.reads or event.writes:
            failure = forbidden(connection.tenant.settings, needs.reads, event.writes)
            if failure is not None:
                return failure
            if needs.reads and event.shared is not None:
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
            out.append(ReplyBusy(connection.id, request_id, _DRAIN_RETRY_S, "shutting down"))
        else:
            reason = "too many requests of this connection"
            out.append(ReplyBusy(connection.id, request_id, _FULL_RETRY_S, reason))
        self._preparation.skip(connection, request_id)

    def _refuse(self, connection: ConnectionRecord, request_id: int, failure: Failure) -> None:
        self._state.out.append(ReplyFailure(connection.id, request_id, failure, 0, False))
        self._preparation.skip(connection, request_id)

    def _received_shared(self, work: WorkRecord, event: Received) -> None:
        """The inputs lie in shared memory already."""
        place = event.shared
        assert place is not None
        work.shared = place
        grant = self._memory.sharing.use(work.connection, place, not work.needs.keep_inputs)
        if isinstance(grant, Failure):
            self._preparation.fail(work, grant)
            return
        work.input_grant = grant
        if self._preparation.confirm(work, event.digest or b""):
            self._preparation.find_memory(work)
