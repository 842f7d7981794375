"""What a request gets before it is computed: its memory, its place among others of its key, its inputs."""

from __future__ import annotations

from yarn_accel.core.requests.admission import key_reused, too_large
from yarn_accel.core.requests.commands import (
    Admit,
    LookAtOutput,
    Read,
    Receive,
    ReplyBusy,
    ReplyFailure,
    Skip,
)
from yarn_accel.core.requests.computing import Computing
from yarn_accel.core.requests.cutoff import CutOff
from yarn_accel.core.requests.events import (
    Arrived,
    Failure,
    InputsRead,
    Looked,
    OutputLooked,
    SegmentCreated,
    SegmentFailed,
    SharedInputs,
    StorageFailed,
)
from yarn_accel.core.requests.idempotency import Idempotency, KeyVerdict
from yarn_accel.core.requests.memory import LEAST_BYTES, MemoryPool
from yarn_accel.core.requests.replies import Replies
from yarn_accel.core.requests.settings import MachineSettings
from yarn_accel.core.requests.work import ConnectionRecord, Grant, MachineState, WorkRecord, WorkState

_SHARE_RETRY_S = 0.1
_OUTPUT_ALIGNMENT = 64
_NO_MEMORY = Failure(
    "unavailable", "out-of-memory", "clients hold too much of the memory as shared memory", "", True
)
#: While somebody waits for memory, whether it is kept from him is looked at so often.
_LOOK_S = 0.1
_COMPUTE = KeyVerdict.COMPUTE
_WAITING = WorkState.WAITING
_RECEIVING = WorkState.RECEIVING
_LOOKING = WorkState.LOOKING
_CHECKING = WorkState.CHECKING
_READING = WorkState.READING
_WRITING = WorkState.WRITING


class Preparation:
    """The works that are not with the workers yet."""

    def __init__(
        self,
        settings: MachineSettings,
        memory: MemoryPool,
        idempotency: Idempotency,
        replies: Replies,
        computing: Computing,
        state: MachineState,
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._idempotency = idempotency
        self._replies = replies
        self._computing = computing
        self._state = state
        self._cutoff = CutOff(settings, memory, replies, state)
        self._look_s = 0.0

    def confirm(self, work: WorkRecord, digest: bytes) -> bool:
        """Whether a work is to go on now; if not, it was answered, joined another, or is looked at."""
        verdict = self._idempotency.confirm(work, digest)
        return verdict is _COMPUTE or self._obey(work, verdict)

    def find_memory(self, work: WorkRecord) -> None:
        """Get a work its memory, now or when it is its turn, and go on with it."""
        memory = self._memory
        if work.shared is None:
            if memory.take_at_once(work):
                self._granted(work)
                return
        elif work.input_grant is not None:
            self._place_output(work, work.shared, work.input_grant)
            if work.output_segment and not work.pending:
                self._granted(work)
                return
        self.announce(work)
        if work.pending:
            work.state = _WAITING
        else:
            memory.wait(work)

    def arrived(self, event: Arrived) -> None:
        """The payload of a work is there."""
        work = self._state.works.get(event.work)
        if work is None or work.state is not _RECEIVING:
            return
        connection = work.connection
        connection.moved_s = self._state.now_s
        if connection.receiving is work:
            connection.receiving = None
        if not work.waiters:
            self._replies.drop(work)
        elif self.confirm(work, event.digest):
            self._go_on(work)

    def looked(self, event: Looked) -> None:
        """The referenced files of a work were looked at."""
        work = self._state.works.get(event.work)
        if work is None or work.state is not _LOOKING:
            return
        if not work.waiters:
            self.unblock(work)
            self._replies.drop(work)
            return
        needs = work.needs = event.needs
        work.memory_bytes = needs.input_bytes + needs.output_bytes
        work.batch_key = needs.batch_key
        failure = too_large(needs, self._settings)
        if failure is not None:
            self.fail(work, failure)
        elif needs.payload_bytes:
            self.find_memory(work)
        elif work.is_confirmed or self.confirm(work, event.digest):
            # One that cost a worker its life was confirmed before.
            self.find_memory(work)

    def output_looked(self, event: OutputLooked) -> None:
        """What lies where the output of a work goes was looked at."""
        work = self._state.works.get(event.work)
        if work is None or work.state is not _CHECKING:
            return
        if not work.waiters:
            self.unblock(work)
            self._replies.drop(work)
        elif self._obey(work, self._idempotency.confirm_written(work, event.stamp)):
            self._go_on(work)

    def inputs_read(self, event: InputsRead) -> None:
        """The referenced inputs of a work are in its memory."""
        work = self._state.works.get(event.work)
        if work is None or work.state is not _READING:
            return
        if not work.waiters:
            self._replies.drop(work)
            return
        work.is_read = True
        work.n_bytes = event.bytes_in
        self._computing.queue(work)

    def storage_failed(self, event: StorageFailed) -> None:
        """The storage did not do what a work needs."""
        work = self._state.works.get(event.work)
        if work is None or work.state not in (_LOOKING, _CHECKING, _READING, _WRITING):
            return
        if work.state is _WRITING:
            self._replies.count(work.tenant, -work.bytes_out)
        self.fail(work, event.failure)

    def segment_created(self, event: SegmentCreated) -> None:
        """A segment is there: go on with what waited for it."""
        sharing = self._memory.sharing
        is_shared = sharing.is_pending(event.segment)
        work = sharing.created(event.segment) if is_shared else self._memory.created(event.segment)
        if work is None:
            return
        if work.state is not _WAITING:
            self._memory.settle(work)
        else:
            self._granted(work)

    def segment_failed(self, event: SegmentFailed) -> None:
        """A segment could not be made: wait, or do without."""
        memory = self._memory
        if not memory.sharing.is_pending(event.segment):
            memory.failed(event.segment)
            return
        connection, request_id, work = memory.sharing.failed(event.segment)
        if work is None:
            if connection.is_open:
                out = self._state.out
                out.append(ReplyBusy(connection.id, request_id, _SHARE_RETRY_S, "no memory to lend now"))
        elif work.state is _WAITING:
            work.output_segment = 0
            memory.wait(work)
        else:
            memory.settle(work)

    def serve(self) -> bool:
        """Give memory to those who wait; whether anybody got some."""
        memory = self._memory
        memory.must_serve = False
        n_waiting = memory.n_waiting
        while memory.n_waiting:
            work = memory.next_waiting(self._cutoff.is_any_stalled())
            if work is None:
                break
            lacking = memory.lacking(work)
            if lacking > 0:
                self._idempotency.evict(lacking)
            if memory.grant(work):
                self._granted(work)
        return memory.n_waiting < n_waiting

    def look(self) -> float:
        """Cut off who keeps others from memory, now and then; returns when to look again."""
        memory, now_s = self._memory, self._state.now_s
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            blocked = memory.blocked()
            if blocked is not None:
                n_cut = self._state.counts["cut_off"]
                self._look_s = min(self._cutoff.free_memory(blocked), self._look_s)
                if n_cut == self._state.counts["cut_off"] and memory.is_hopeless(blocked):
                    self.stop_waiting(blocked)
                    self.fail(blocked, _NO_MEMORY)
        return self._look_s

    def announce(self, work: WorkRecord) -> None:
        """Let the shell know a work that does not get its memory at once."""
        if not work.is_announced:
            work.is_announced = True
            self._state.out.append(Admit(work.id, work.connection.id, work.request_id))

    def fail(self, work: WorkRecord, failure: Failure) -> None:
        """Answer a work that cannot go on."""
        if not work.is_placed:
            self.unblock(work)
        self._replies.failure(work, failure)

    def stop_waiting(self, work: WorkRecord) -> None:
        """A work waits for memory no longer."""
        if work.state is _WAITING and not work.pending:
            self._memory.stop_waiting(work)

    def unblock(self, work: WorkRecord) -> None:
        """Let a connection go on that waits with a payload for which there was no memory."""
        if not work.is_placed and (work.needs.payload_bytes or not work.needs.reads):
            self.skip(work.connection, work.request_id)

    def skip(self, connection: ConnectionRecord, request_id: int) -> None:
        """A request was answered: let its connection go on, past the payload."""
        if connection.is_open:
            self._state.out.append(Skip(connection.id, request_id))

    def _obey(self, work: WorkRecord, verdict: KeyVerdict) -> bool:
        if verdict is KeyVerdict.COMPUTE:
            return True
        state = self._state
        if verdict is KeyVerdict.CHECK:
            self.announce(work)
            work.state = _CHECKING
            state.out.append(LookAtOutput(work.id))
            return False
        name = work.name
        running, known = self._idempotency.running.get(name), self._idempotency.answered.get(name)
        is_new = not work.is_placed
        waiters = self._replies.end(work)
        for connection, request_id in waiters:
            if verdict is KeyVerdict.JOIN and running is not None:
                running.waiters.append((connection, request_id))
                connection.waits[request_id] = running
            elif verdict is KeyVerdict.REPEAT and known is not None:
                self._replies.repeat(connection, request_id, known)
            else:
                state.out.append(ReplyFailure(connection.id, request_id, key_reused(name[1]), 0, False))
        if is_new:
            self.unblock(work)
        self._memory.settle(work)
        return False

    def _place_output(self, work: WorkRecord, place: SharedInputs, inputs: Grant) -> None:
        """Find a place for outputs in memory that the client sees, too, if there is one."""
        needs = work.needs
        n_bytes = work.output_bytes = needs.output_bytes
        end = -(-place.n_bytes // _OUTPUT_ALIGNMENT) * _OUTPUT_ALIGNMENT
        if not needs.keep_inputs and end + n_bytes <= inputs.n_bytes:
            work.output_segment, work.output_offset = inputs.id, end
        elif n_bytes > LEAST_BYTES:
            work.output_grant = self._memory.sharing.take_for_result(work, n_bytes)
            if work.output_grant is not None:
                work.output_segment = work.output_grant.id

    def _granted(self, work: WorkRecord) -> None:
        """A work has its memory."""
        arena, needs = work.arena, work.needs
        if work.shared is None:
            assert arena is not None
            work.output_segment = arena.id
            work.output_offset, work.output_bytes = needs.input_bytes, needs.output_bytes
            segment = arena.id
        else:
            segment = work.shared.segment
            if arena is not None:
                work.output_segment, work.output_offset = arena.id, 0
        if work.digest is None or not needs.reads:
            work.is_placed = work.is_announced = True
            self._state.out.append(
                Receive(
                    work.id,
                    work.connection.id,
                    work.request_id,
                    segment,
                    work.output_segment,
                    work.output_offset,
                    work.output_bytes,
                )
            )
            if work.digest is None:
                work.state = _RECEIVING
                work.connection.receiving = work
                work.connection.moved_s = self._state.now_s
            else:
                self._computing.queue(work)
        else:
            self._go_on(work)

    def _go_on(self, work: WorkRecord) -> None:
        """A confirmed work goes on: to its memory, to storage, or to the workers."""
        if work.arena is None and work.shared is None:
            self.find_memory(work)
        elif work.needs.reads and not work.is_read:
            work.state = _READING
            assert work.arena is not None
            self._state.out.append(
                Read(work.id, work.arena.id, work.output_segment, work.output_offset, work.output_bytes)
            )
        elif not work.is_placed and not work.needs.reads:
            self.find_memory(work)
        else:
            self._computing.queue(work)
