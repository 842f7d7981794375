"""Shared memory of connections: which segments each has, and whose turn each is."""

from __future__ import annotations

from typing import Protocol

from yarn_accel.core.requests.commands import GrantMemory
from yarn_accel.core.requests.events import Failure, SharedInputs
from yarn_accel.core.requests.settings import MachineSettings
from yarn_accel.core.requests.work import ConnectionRecord, Grant, MachineState, TenantRecord, WorkRecord

#: A segment the client returned serves a request of at least this part of it.
_MOST_WASTE = 4


class SegmentSource(Protocol):
    """Where segments for connections come from: `memory.MemoryPool`."""

    def size_of(self, n_bytes: int) -> int:
        """Bytes of the segment that is made for so many."""

    def create_shared(self, size: int, connection: int) -> int:
        """Begin to make a segment; its number, or 0: there is no memory now."""

    def destroy_shared(self, segment: int, size: int, is_created: bool) -> None:
        """Give a segment up."""


class Sharing:
    """All shared memory.

    At most `max_shared_bytes` for one connection, and half of all memory together.

    Attributes:
        n_bytes: of all of it.
    """

    def __init__(self, settings: MachineSettings, memory: SegmentSource, state: MachineState) -> None:
        self.n_bytes = 0
        self._memory = memory
        self._state = state
        self._connection_bytes = settings.max_shared_bytes
        self._bound_bytes = settings.pool_bytes // 2
        self._grants: dict[int, Grant] = {}
        #: Segments being made: the request that wants one for its client or, 0, the work its result is for.
        self._pending: dict[int, tuple[int, WorkRecord | None]] = {}

    def want(self, connection: ConnectionRecord, request_id: int, n_bytes: int) -> bool:
        """A client wants shared memory; whether it gets some, now or when it was made."""
        grant = self._returned(connection, n_bytes)
        if grant is None:
            grant = self._create(connection, n_bytes)
            if grant is None:
                return False
            self._pending[grant.id] = request_id, None
            return True
        grant.is_returned = False
        self._show(grant, request_id)
        return True

    def use(self, connection: ConnectionRecord, place: SharedInputs, is_exclusive: bool) -> Grant | Failure:
        """Begin a request whose inputs lie in shared memory; a failure says why it cannot be."""
        number, n_bytes = place
        grant = connection.grants.get(number)
        if grant is None or grant.is_returned or not grant.is_created:
            return _bad(f"segment {number} is not shared with this connection")
        if n_bytes > grant.n_bytes:
            return _bad(f"segment {number} has {grant.n_bytes} bytes, {n_bytes} are named")
        if grant.is_exclusive or (is_exclusive and grant.n_users):
            return _bad(f"segment {number} is used by another request")
        grant.n_users += 1
        grant.is_exclusive = is_exclusive
        return grant

    def take_for_result(self, work: WorkRecord, n_bytes: int) -> Grant | None:
        """Shared memory for the result of a work; None: there is none now.

        It may still have to be made: then it counts in `work.pending`.
        """
        connection = work.connection
        grant = self._returned(connection, n_bytes) or self._create(connection, n_bytes)
        if grant is None:
            return None
        if not grant.is_created:
            self._pending[grant.id] = 0, work
            work.pending += 1
        grant.is_returned = False
        grant.n_users += 1
        grant.is_exclusive = True
        return grant

    def show_result(self, work: WorkRecord, grant: Grant) -> None:
        """Let the client have the memory its result lies in, before it gets the message about the result."""
        work.is_shown = True
        if not grant.is_known:
            self._show(grant, 0)

    def free_inputs(self, work: WorkRecord) -> None:
        """A request is about to be answered: its client may name the memory of its inputs from now on."""
        grant = work.input_grant
        if grant is not None and not work.is_input_free:
            work.is_input_free = True
            grant.n_leaving += 1
            _user_gone(grant)

    def end_work(self, work: WorkRecord) -> None:
        """A work, and all that leaves from its memory, is over."""
        inputs, work.input_grant = work.input_grant, None
        outputs, work.output_grant = work.output_grant, None
        if inputs is not None:
            if work.is_input_free:
                inputs.n_leaving -= 1
            else:
                _user_gone(inputs)
            self._drop_if_over(inputs)
        if outputs is not None:
            _user_gone(outputs)
            if not work.is_shown:
                outputs.is_returned = True
            self._drop_if_over(outputs)

    def give_back(self, connection: ConnectionRecord, number: int) -> None:
        """The client reads a segment no more; unknown numbers are ignored."""
        grant = connection.grants.get(number)
        if grant is not None:
            grant.is_returned = True

    def end(self, connection: ConnectionRecord) -> None:
        """A connection is over: destroy what is not in use now, the rest when its use ends."""
        for grant in tuple(connection.grants.values()):
            self._drop_if_over(grant)

    def is_pending(self, number: int) -> bool:
        """Whether this segment is being made for a connection."""
        return number in self._pending

    def created(self, number: int) -> WorkRecord | None:
        """A segment is there; returns the work that waits for nothing more now."""
        request_id, work = self._pending.pop(number)
        grant = self._grants[number]
        grant.is_created = True
        if work is not None:
            work.pending -= 1
            return None if work.pending else work
        if grant.connection.is_open:
            self._show(grant, request_id)
        self._drop_if_over(grant)
        return None

    def failed(self, number: int) -> tuple[ConnectionRecord, int, WorkRecord | None]:
        """A segment could not be made; returns who wanted it."""
        request_id, work = self._pending.pop(number)
        grant = self._grants[number]
        if work is not None:
            work.pending -= 1
            work.output_grant = None
        self._drop(grant)
        return grant.connection, request_id, work

    def bytes_of(self, tenant: TenantRecord) -> int:
        """Shared memory of all connections of a tenant."""
        return sum(each.n_bytes for each in self._grants.values() if each.connection.tenant is tenant)

    def validate(self) -> None:
        """Check that users and bytes agree with the works.

        Raises:
            AssertionError: they do not.
        """
        assert self.n_bytes == sum(grant.n_bytes for grant in self._grants.values()) <= self._bound_bytes
        works = self._state.works.values()
        for number, grant in self._grants.items():
            assert grant.connection.grants[number] is grant
            inputs = [work for work in works if work.input_grant is grant]
            n_users = sum(not work.is_input_free for work in inputs)
            n_users += sum(work.output_grant is grant for work in works)
            assert grant.n_users == n_users
            assert grant.n_leaving == sum(work.is_input_free for work in inputs)
            assert grant.connection.is_open or inputs or n_users or number in self._pending

    # Below

    def _show(self, grant: Grant, request_id: int) -> None:
        grant.is_known = True
        self._state.out.append(GrantMemory(grant.connection.id, request_id, grant.id, grant.n_bytes))

    def _returned(self, connection: ConnectionRecord, n_bytes: int) -> Grant | None:
        """A segment the client returned, of about the right size."""
        for grant in connection.grants.values():
            is_idle = grant.is_created and not (grant.n_users or grant.n_leaving)
            if grant.is_returned and is_idle and n_bytes <= grant.n_bytes <= _MOST_WASTE * n_bytes:
                return grant
        return None

    def _create(self, connection: ConnectionRecord, n_bytes: int) -> Grant | None:
        """Begin to make fresh memory: used one would show the client what others left in it."""
        memory = self._memory
        size = memory.size_of(n_bytes)
        is_full = connection.granted_bytes + size > self._connection_bytes
        if is_full or self.n_bytes + size > self._bound_bytes or not connection.is_open:
            return None
        number = memory.create_shared(size, connection.id)
        if not number:
            return None
        grant = Grant(number, size, connection)
        self._grants[number] = connection.grants[number] = grant
        connection.granted_bytes += size
        connection.tenant.held_bytes += size
        self.n_bytes += size
        return grant

    def _drop_if_over(self, grant: Grant) -> None:
        is_used = grant.n_users or grant.n_leaving or grant.id in self._pending
        if not grant.connection.is_open and not is_used:
            self._drop(grant)

    def _drop(self, grant: Grant) -> None:
        connection = grant.connection
        del self._grants[grant.id], connection.grants[grant.id]
        connection.granted_bytes -= grant.n_bytes
        connection.tenant.held_bytes -= grant.n_bytes
        self.n_bytes -= grant.n_bytes
        self._memory.destroy_shared(grant.id, grant.n_bytes, grant.is_created)


def _user_gone(grant: Grant) -> None:
    grant.n_users -= 1
    if not grant.n_users:
        grant.is_exclusive = False


def _bad(message: str) -> Failure:
    return Failure("rejected", "bad-placement", message)
