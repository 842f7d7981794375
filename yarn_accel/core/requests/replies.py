"""How answers reach everyone who waits for them, and what is held until they have left.

An answer whose connection is lost on the way is kept, within bounds, for who asks again.  What lies in memory
shared with a client is not: the client can write there, and may have begun to.
"""

from __future__ import annotations

from yarn_accel.core.requests.commands import Repeat, ReplyBusy, ReplyFailure, ReplyResult
from yarn_accel.core.requests.events import Failure, Sent, WorkResult
from yarn_accel.core.requests.idempotency import Idempotency, Known
from yarn_accel.core.requests.memory import MemoryPool
from yarn_accel.core.requests.queues import TenantQueue
from yarn_accel.core.requests.work import ConnectionRecord, MachineState, WorkRecord, WorkState

#: How the reason of a `ReplyBusy` begins that asks for the same request again, at once.
AGAIN = "again: "
_ENDED = WorkState.ENDED
#: A reply that leaves: the work that holds its memory, who gets it, bytes, whether that is who began it.
_Leaving = tuple["WorkRecord | None", ConnectionRecord, int, bool]


class Replies:
    """All replies that leave.

    Attributes:
        leaving: by number; to be looked at, not changed.
        bytes: of results that leave, to clients or to storage.
    """

    def __init__(self, memory: MemoryPool, idempotency: Idempotency, state: MachineState) -> None:
        self.leaving: dict[int, _Leaving] = {}
        self._memory = memory
        self._idempotency = idempotency
        self._state = state
        self.bytes = 0
        self.peak_bytes = 0
        self._n_replies = 0

    # Ends of a work

    def result(self, work: WorkRecord, result: WorkResult | None) -> None:
        """Answer a work that was computed; `result` None: its output was written to storage."""
        if work.input_grant is None:
            self._hand_out(work, result is None)
        else:
            self._hand_out_shared(work, result)
        if not work.n_holders:
            self._memory.settle(work)

    def failure(self, work: WorkRecord, failure: Failure) -> None:
        """Answer a work that has no result."""
        self._idempotency.settle_failure(work, failure)
        out = self._state.out
        waiters = self.end(work)
        for index, (connection, request_id) in enumerate(waiters):
            number = work.id if work.is_announced else 0
            out.append(ReplyFailure(connection.id, request_id, failure, number, index > 0))
        self._memory.settle(work)

    def again(self, work: WorkRecord, reason: str) -> None:
        """Have everyone who waits send the same request once more: its inputs are gone."""
        self._idempotency.drop(work)
        for connection, request_id in self.end(work):
            self._state.out.append(ReplyBusy(connection.id, request_id, 0.0, AGAIN + reason))
        self._memory.settle(work)

    def drop(self, work: WorkRecord) -> None:
        """End a work that nobody waits for."""
        self._idempotency.drop(work)
        self.end(work)
        self._memory.settle(work)

    def end(self, work: WorkRecord) -> list[tuple[ConnectionRecord, int]]:
        """A work is no longer under way; returns those who waited for it."""
        work.state = _ENDED
        self._state.n_active -= 1
        work.connection.works.pop(work.request_id, None)
        if work.connection.receiving is work:
            work.connection.receiving = None
        waiters, work.waiters = work.waiters, []
        for connection, request_id in waiters:
            del connection.waits[request_id]
        return waiters

    # Replies

    def repeat(self, connection: ConnectionRecord, request_id: int, known: Known) -> None:
        """Answer a request with what is remembered."""
        if known.failure is not None:
            self._state.out.append(ReplyFailure(connection.id, request_id, known.failure, 0, True))
            return
        if known.work is not None:
            self._memory.hold(known.work)
        reply = self._leave(known.work, connection, known.payload_bytes, False)
        self._state.out.append(Repeat(reply, connection.id, request_id, known.answer))

    def sent(self, event: Sent) -> None:
        """Replies have left, or never will."""
        replies, was_sent, now_s = event
        for reply in replies:
            leaving = self.leaving.pop(reply, None)
            if leaving is None:
                continue
            work, connection, n_bytes, is_owner = leaving
            connection.n_leaving -= 1
            connection.tenant.queue.used_bytes -= n_bytes
            self.bytes -= n_bytes
            if was_sent:
                connection.moved_s = now_s
            if work is not None:
                work.n_holders -= 1
                if not was_sent and not work.is_kept:
                    self._keep(work)
                if is_owner and work.share_bytes:
                    self._memory.leave_share(work)
                if not work.n_holders:
                    self._memory.settle(work)

    def _keep(self, work: WorkRecord) -> None:
        # Written results and those in shared memory do not hold their work; small ones were copied.
        if work.state is _ENDED and work.input_grant is None and not work.writes:
            self._idempotency.keep(work)

    def count(self, queue: TenantQueue, n_bytes: int) -> None:
        """Count bytes of a result that begin to leave, or, below 0, have left."""
        queue.used_bytes += n_bytes
        self.bytes += n_bytes
        if self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes

    def _leave(
        self, work: WorkRecord | None, connection: ConnectionRecord, n_bytes: int, is_owner: bool
    ) -> int:
        self._n_replies = reply = self._n_replies + 1
        if not connection.n_leaving:
            connection.moved_s = self._state.now_s
        connection.n_leaving += 1
        connection.tenant.queue.used_bytes += n_bytes
        self.bytes += n_bytes
        if self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes
        self.leaving[reply] = work, connection, n_bytes, is_owner
        return reply

    def _hand_out(self, work: WorkRecord, is_written: bool) -> None:
        waiters = self.end(work)
        owner, own_id = work.connection, work.request_id
        n_bytes = 0 if is_written else work.bytes_out
        out = self._state.out
        is_owner_answered = is_duplicate = False
        for connection, request_id in waiters:
            is_owner = connection is owner and request_id == own_id
            is_owner_answered |= is_owner
            work.n_holders += 1
            reply = self._leave(work, connection, n_bytes, is_owner)
            out.append(ReplyResult(reply, connection.id, request_id, work.id, 0, is_duplicate))
            is_duplicate = True
        self._idempotency.settle(work, is_written, bool(waiters))
        if work.share_bytes and not is_owner_answered:
            self._memory.leave_share(work)

    def _hand_out_shared(self, work: WorkRecord, result: WorkResult | None) -> None:
        """The inputs, and perhaps the outputs, lie where a client may write from its answer on."""
        # Copied first: the client may write there as soon as it has its answer.
        self._idempotency.settle(work, result is None, bool(work.waiters))
        segments = result.segments if result is not None else ()
        inputs, outputs = work.input_grant, work.output_grant
        assert inputs is not None
        shown = 0
        if result is not None and result.bytes_out and len(segments) == 1 and result.is_aligned:
            mine = [grant.id for grant in (inputs, outputs) if grant is not None]
            shown = segments[0] if segments[0] in mine else 0
        is_clients = bool(shown) or inputs.id in segments
        sharing = self._memory.sharing
        if not shown:
            sharing.free_inputs(work)
        n_bytes = work.bytes_out if result is not None else 0
        out = self._state.out
        is_duplicate = False
        for connection, request_id in self.end(work):
            if connection is not work.connection or request_id != work.request_id:
                if is_clients:
                    reason = AGAIN + "the result went to another client"
                    out.append(ReplyBusy(connection.id, request_id, 0.0, reason))
                    continue
                is_owner = False
            elif shown:
                if outputs is not None and shown == outputs.id:
                    sharing.show_result(work, outputs)
                out.append(ReplyResult(0, connection.id, request_id, work.id, shown, is_duplicate))
                is_duplicate = True
                continue
            else:
                is_owner = True
            work.n_holders += 1
            reply = self._leave(work, connection, n_bytes, is_owner)
            out.append(ReplyResult(reply, connection.id, request_id, work.id, 0, is_duplicate))
            is_duplicate = True

    def validate(self) -> None:
        """Check that what leaves agrees with what is held.

        Raises:
            AssertionError: it does not.
        """
        n_held: dict[WorkRecord, int] = {}
        used: dict[str, int] = {}
        n_leaving: dict[ConnectionRecord, int] = {}
        for work, connection, n_bytes, _ in self.leaving.values():
            n_leaving[connection] = n_leaving.get(connection, 0) + 1
            used[connection.tenant.name] = used.get(connection.tenant.name, 0) + n_bytes
            if work is not None:
                n_held[work] = n_held.get(work, 0) + 1
        for work in self._state.works.values():
            assert work.n_holders == n_held.pop(work, 0)
            if work.state is WorkState.RUNNING:
                used[work.owner.name] = used.get(work.owner.name, 0) + work.memory_bytes
            if work.state is WorkState.WRITING:
                used[work.owner.name] = used.get(work.owner.name, 0) + work.bytes_out
        assert not n_held
        for tenant in self._state.tenants.values():
            assert tenant.queue.used_bytes == used.get(tenant.name, 0)
        for connection in self._state.connections.values():
            assert connection.n_leaving == n_leaving.get(connection, 0)
