"""Answers: which are remembered so that nothing is computed twice, and how they reach everyone who waits.

A request is known by tenant and idempotency key, and is the same when its header and the digest of its inputs
are.  The digest is known when the payload has arrived, or the referenced files were looked at, so that is
when everything is decided (`Idempotency`); before, each request stands for itself.

Answers are remembered within a bound of bytes and of age: small ones as a copy, large ones where they lie, if
computing them took longer than copying would, or if nobody received them: an answer whose connection is lost
on the way is kept for who asks again. What lies in memory shared with a client is not: the client can write
there, and may have begun to. What leaves is counted by `Replies`.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable

from yarn_accel.core.requests.commands import Forget, Remember, Repeat, ReplyBusy, ReplyFailure, ReplyResult
from yarn_accel.core.requests.events import Sent, WorkResult
from yarn_accel.core.requests.memory import MemoryPool
from yarn_accel.core.requests.records import (
    ConnectionRecord,
    Failure,
    MachineState,
    Needs,
    TenantQueue,
    WorkRecord,
    WorkState,
)
from yarn_accel.core.requests.settings import MachineSettings

#: A larger answer is not copied.
SMALL_ANSWER_BYTES = 64 * 1024
#: Memory of an answer beside its payload: the message, the request it belongs to.
_OVERHEAD_BYTES = 1024
#: A large answer is worth keeping when computing took longer than this rate would need to copy it.
_COPY_BYTES_PER_S = 1e9
#: Answers that were dear may keep this part of the memory until it is needed.
_KEPT_PART = 4
_MAX_CRASHED = 4096


class KeyVerdict(enum.Enum):
    """How a request whose inputs are known goes on."""

    COMPUTE = "compute"
    JOIN = "join"
    REPEAT = "repeat"
    CONFLICT = "conflict"
    #: Its answer was written: look first whether it still lies there.
    CHECK = "check"


_COMPUTE = KeyVerdict.COMPUTE


class Known:
    """An answer, or only that there was one: then the key still cannot mean anything else.

    Attributes:
        content, writes, digest: of the request.
        answer: the number of a result the shell has; 0: none.
        failure: in place of a result; None: none.
        work: whose memory the result lies in; None: it was copied.
        payload_bytes: of the result.
        is_written: the output was stored, and looked like `stamp`.
        cost_bytes: memory for remembering it.
    """

    # Most answers never differ from these, and setting them takes time.
    answer = 0
    failure: Failure | None = None
    work: WorkRecord | None = None
    payload_bytes = 0
    is_written = False
    stamp: Hashable | None = None

    def __init__(self, work: WorkRecord, now_s: float) -> None:
        needs = work.needs
        self.since_s = now_s
        self.content = needs.content
        self.writes = work.writes
        self.digest = work.digest
        self.cost_bytes = _OVERHEAD_BYTES + needs.remember_bytes + work.answer_bytes


class Idempotency:
    """The requests under way and the answers of late.

    Attributes:
        running: the one request that is computed for a tenant and key.
        answered: the answers of late, the oldest first.
        all_young_until_s: no answer is too old until then.
        cached_bytes: memory of the copied answers.
        kept_bytes: memory of those kept where they lie.
    """

    def __init__(self, settings: MachineSettings, memory: MemoryPool, state: MachineState) -> None:
        self.running: dict[tuple[str, str], WorkRecord] = {}
        self.answered: OrderedDict[tuple[str, str], Known] = OrderedDict()
        self.cached_bytes = 0
        self.kept_bytes = 0
        self._memory = memory
        self._state = state
        self._cache_bytes = settings.reply_cache_bytes
        self._cache_age_s = settings.reply_cache_age_s
        self._kept_bound_bytes = settings.pool_bytes // _KEPT_PART
        self._kept: OrderedDict[tuple[str, str], WorkRecord] = OrderedDict()
        self._crashed: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.all_young_until_s = 0.0
        self._n_answers = 0

    def is_conflict(self, name: tuple[str, str], needs: Needs, writes: str) -> bool:
        """Whether the header alone says that the key belongs to something else."""
        work = self.running.get(name)
        if work is not None:
            return work.needs.content != needs.content or work.writes != writes
        known = self.answered.get(name)
        return known is not None and (known.content != needs.content or known.writes != writes)

    def confirm(self, work: WorkRecord, digest: bytes) -> KeyVerdict:
        """Decide about a request whose inputs are known; what is to be computed is under way from now on."""
        name = work.name
        work.digest = digest
        running, known = self.running.get(name), self.answered.get(name)
        if running is None and known is None:
            work.is_confirmed = True
            self.running[name] = work
            return _COMPUTE
        if running is not None:
            is_same = running.needs.content == work.needs.content and running.writes == work.writes
            return KeyVerdict.JOIN if is_same and running.digest == digest else KeyVerdict.CONFLICT
        if known is not None:
            is_same = known.content == work.needs.content and known.writes == work.writes
            if not is_same or known.digest != digest:
                return KeyVerdict.CONFLICT
            if known.failure is not None or (known.answer and not known.is_written):
                return KeyVerdict.REPEAT
            if known.answer:
                return KeyVerdict.CHECK
        work.is_confirmed = True
        self.running[name] = work
        return KeyVerdict.COMPUTE

    def confirm_written(self, work: WorkRecord, stamp: Hashable | None) -> KeyVerdict:
        """Decide about a request whose answer may have been written; `stamp`: what lies there."""
        known = self.answered.get(work.name)
        assert work.digest is not None
        if known is None or not known.is_written or work.name in self.running:
            verdict = self.confirm(work, work.digest)
            # Written once more in the meantime: what was looked at is older than that.
            return self._compute(work) if verdict is KeyVerdict.CHECK else verdict
        if known.digest != work.digest or known.content != work.needs.content:
            return KeyVerdict.CONFLICT
        return KeyVerdict.REPEAT if known.answer and known.stamp == stamp else self._compute(work)

    def drop(self, work: WorkRecord) -> None:
        """A request is not under way any more."""
        if work.is_confirmed and self.running.get(work.name) is work:
            del self.running[work.name]
        work.is_confirmed = False

    def settle(self, work: WorkRecord, is_written: bool, is_received: bool) -> None:
        """A request has its result: remember it if it is worth that, or if nobody receives it."""
        if work.is_confirmed:
            del self.running[work.name]
            work.is_confirmed = False
            if self._crashed:
                self._crashed.pop(work.name, None)
            payload_bytes = 0 if is_written else work.bytes_out
            is_dear = work.compute_s * _COPY_BYTES_PER_S > payload_bytes or not is_received
            self._remember(work, payload_bytes, is_written, is_dear)

    def settle_failure(self, work: WorkRecord, failure: Failure) -> None:
        """A request has failed: remember that, if computing again would give the same."""
        is_final = failure.kind == "rejected" and failure.code != "deadline-exceeded"
        if work.is_confirmed and is_final:
            self._crashed.pop(work.name, None)
            known = self._known(work)
            known.failure = failure
            self._insert(work.name, known)
        self.drop(work)

    def keep(self, work: WorkRecord) -> None:
        """Remember a result that could not be delivered, however cheap it was."""
        known = self.answered.get(work.name)
        if work.name in self.running or (known is not None and (known.answer or known.failure)):
            return
        self._remember(work, work.bytes_out, False, True)

    def crashed(self, work: WorkRecord) -> int:
        """Count a worker that a request has cost; returns how many, also under the same key before."""
        n_crashed = self._crashed.pop(work.name, 0) + 1
        self._crashed[work.name] = n_crashed
        if len(self._crashed) > _MAX_CRASHED:
            self._crashed.popitem(last=False)
        return n_crashed

    def n_crashes(self, work: WorkRecord) -> int:
        """How many workers a request may have cost, also under the same key before."""
        return self._crashed.get(work.name, 0) if self._crashed else 0

    def evict(self, n_bytes: int) -> None:
        """Let go of kept answers that nobody is being sent, oldest first, until so much memory is free."""
        for name, work in list(self._kept.items()):
            if n_bytes <= 0:
                return
            if not work.is_charged:
                n_bytes -= work.segment_bytes
                self._forget(name)

    # Below

    def _compute(self, work: WorkRecord) -> KeyVerdict:
        work.is_confirmed = True
        self.running[work.name] = work
        return KeyVerdict.COMPUTE

    def _known(self, work: WorkRecord) -> Known:
        """A new entry, in place of the one before."""
        if work.name in self.answered:
            self._forget(work.name)
        return Known(work, self._state.now_s)

    def _remember(self, work: WorkRecord, payload_bytes: int, is_written: bool, is_dear: bool) -> None:
        """Copy a small answer, keep a large one, or note at least that there was one."""
        known = self._known(work)
        known.payload_bytes = payload_bytes
        is_copy = payload_bytes <= SMALL_ANSWER_BYTES
        if work.writes and (not is_written or work.stamp is None):
            # The file there cannot be distinguished from another.
            pass
        elif is_copy or (is_dear and self._may_keep(work)):
            self._n_answers += 1
            known.answer = self._n_answers
            known.is_written, known.stamp = is_written, work.stamp
            self._state.out.append(Remember(work, known.answer, is_copy))
            if is_copy:
                known.cost_bytes += payload_bytes
            else:
                known.work = self._kept[work.name] = work
                work.is_kept = True
                self.kept_bytes += work.segment_bytes
        self._insert(work.name, known)

    def _may_keep(self, work: WorkRecord) -> bool:
        """Whether its result may stay where it lies; not in shared memory, where its client may write."""
        if work.arena is None or work.input_grant is not None or work.is_kept:
            return False
        return work.segment_bytes <= self._kept_bound_bytes

    def _insert(self, name: tuple[str, str], known: Known) -> None:
        self.answered[name] = known
        self.cached_bytes += known.cost_bytes
        while self.cached_bytes > self._cache_bytes:
            self._let_go(self.answered.popitem(last=False))
        while self.kept_bytes > self._kept_bound_bytes:
            self._forget(next(iter(self._kept)))

    def forget_old(self) -> None:
        """Let go of answers that are too old; to be called when it is later than `all_young_until_s`."""
        now_s = self._state.now_s
        self.all_young_until_s = now_s + self._cache_age_s
        while self.answered:
            name, oldest = next(iter(self.answered.items()))
            if now_s - oldest.since_s <= self._cache_age_s:
                self.all_young_until_s = oldest.since_s + self._cache_age_s
                return
            self._forget(name)

    def _forget(self, name: tuple[str, str]) -> None:
        self._let_go((name, self.answered.pop(name)))

    def _let_go(self, forgotten: tuple[tuple[str, str], Known]) -> None:
        name, known = forgotten
        self.cached_bytes -= known.cost_bytes
        if known.answer:
            self._state.out.append(Forget(known.answer))
        work = known.work
        if work is not None:
            self.kept_bytes -= work.segment_bytes
            del self._kept[name]
            self._memory.unkeep(work)

    def validate(self) -> None:
        """Check that what is remembered agrees with what is counted.

        Raises:
            AssertionError: it does not.
        """
        assert self.cached_bytes == sum(known.cost_bytes for known in self.answered.values())
        assert self.cached_bytes <= self._cache_bytes
        kept = {name: known.work for name, known in self.answered.items() if known.work is not None}
        assert kept == dict(self._kept)
        assert self.kept_bytes == sum(work.segment_bytes for work in kept.values() if work is not None)
        assert self.kept_bytes <= self._kept_bound_bytes
        assert all(work.is_kept for work in self._kept.values())
        for name, work in self.running.items():
            assert work.is_confirmed
            assert work.name == name


#: How the reason of a `ReplyBusy` begins that asks for the same request again, at once.
AGAIN = "again: "
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
            out.append(ReplyFailure(connection, request_id, failure, work, index > 0))
        self._memory.settle(work)

    def again(self, work: WorkRecord, reason: str) -> None:
        """Have everyone who waits send the same request once more: its inputs are gone."""
        self._idempotency.drop(work)
        for connection, request_id in self.end(work):
            self._state.out.append(ReplyBusy(connection, request_id, 0.0, AGAIN + reason))
        self._memory.settle(work)

    def drop(self, work: WorkRecord) -> None:
        """End a work that nobody waits for."""
        self._idempotency.drop(work)
        self.end(work)
        self._memory.settle(work)

    def end(self, work: WorkRecord) -> list[tuple[ConnectionRecord, int]]:
        """A work is no longer under way; returns those who waited for it."""
        work.state = WorkState.ENDED
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
            self._state.out.append(ReplyFailure(connection, request_id, known.failure, None, True))
            return
        if known.work is not None:
            self._memory.hold(known.work)
        reply = self._leave(known.work, connection, known.payload_bytes, False)
        self._state.out.append(Repeat(reply, connection, request_id, known.answer))

    def sent(self, event: Sent) -> None:
        """A reply has left, or never will."""
        reply, was_sent, now_s = event
        leaving = self.leaving.pop(reply, None)
        if leaving is None:
            return
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
        if work.state is WorkState.ENDED and work.input_grant is None and not work.writes:
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
            out.append(ReplyResult(reply, connection, request_id, work, 0, is_duplicate))
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
                    out.append(ReplyBusy(connection, request_id, 0.0, reason))
                    continue
                is_owner = False
            elif shown:
                if outputs is not None and shown == outputs.id:
                    sharing.show_result(work, outputs)
                out.append(ReplyResult(0, connection, request_id, work, shown, is_duplicate))
                is_duplicate = True
                continue
            else:
                is_owner = True
            work.n_holders += 1
            reply = self._leave(work, connection, n_bytes, is_owner)
            out.append(ReplyResult(reply, connection, request_id, work, 0, is_duplicate))
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
        for connection in self._state.connections:
            assert connection.n_leaving == n_leaving.get(connection, 0)
