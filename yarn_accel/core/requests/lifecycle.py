"""The way of a request: its memory, its place among others of its key, its inputs, a worker, its outputs.

`Preparation` leads it to the workers, `Computing` through them. `CutOff` ends connections that hold memory
and do not move while others wait for it.
"""

from __future__ import annotations

from yarn_accel.core.requests.answers import Idempotency, KeyVerdict, Replies
from yarn_accel.core.requests.commands import (
    Admit,
    Disconnect,
    Look,
    LookAtOutput,
    Read,
    Receive,
    ReplyBusy,
    ReplyFailure,
    Run,
    Skip,
    Write,
)
from yarn_accel.core.requests.events import (
    Arrived,
    Finished,
    InputsRead,
    Looked,
    OutputLooked,
    RateMeasured,
    SegmentCreated,
    SegmentFailed,
    StorageFailed,
    WorkerLost,
    WorkerStarted,
    WorkResult,
    Written,
)
from yarn_accel.core.requests.memory import LEAST_BYTES, MemoryPool
from yarn_accel.core.requests.records import (
    EXPIRED,
    ConnectionRecord,
    Failure,
    Grant,
    MachineState,
    Needs,
    QueueEntry,
    SegmentRecord,
    SharedInputs,
    TenantRecord,
    WorkRecord,
    WorkState,
)
from yarn_accel.core.requests.scheduling import Rate, RateTable, Scheduler
from yarn_accel.core.requests.settings import MachineSettings

#: A client that got no shared memory asks again after so long.
SHARE_RETRY_S = 0.1
_OUTPUT_ALIGNMENT = 64
_NO_MEMORY = Failure(
    "unavailable",
    "out-of-memory",
    "clients hold too much of the memory as shared memory, or worker processes that do not end hold it",
    "",
    True,
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


def too_large(needs: Needs, settings: MachineSettings) -> Failure | None:
    """Why inputs are too large, or inputs and outputs together; None: they are not."""
    n_bytes = max(needs.payload_bytes, needs.input_bytes if needs.reads else 0)
    if n_bytes > settings.max_request_bytes:
        text = f"{n_bytes} bytes of inputs, at most {settings.max_request_bytes} are taken"
        return _too_large(text, f"raise max_request_bytes of the server to {n_bytes} or more")
    if needs.input_bytes + needs.output_bytes > settings.pool_bytes:
        text = f"{needs.input_bytes} bytes of inputs and {needs.output_bytes} of outputs"
        text = f"{text}, the server has {settings.pool_bytes}"
        return _too_large(text, f"raise pool_bytes of the server to {needs.input_bytes + needs.output_bytes}")
    return None


def _too_large(message: str, cure: str) -> Failure:
    return Failure("rejected", "request-too-large", message, cure)


def key_reused(key: str) -> Failure:
    """Why a request is refused whose key belongs to another."""
    return Failure("rejected", "key-reused", f"key {key!r} was used for another request")


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
            is_granted = memory.take_at_once(work)
        else:
            assert work.input_grant is not None
            self._place_output(work, work.shared, work.input_grant)
            has_place = work.output_segment is not None
            is_granted = not work.pending if has_place else memory.take_at_once(work)
        if is_granted:
            self._granted(work)
            return
        self.announce(work)
        if work.pending:
            work.state = _WAITING
        else:
            memory.wait(work)

    def arrived(self, event: Arrived) -> None:
        """The payload of a work is there."""
        work = event.work
        if work.state is not _RECEIVING:
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
        work = event.work
        if work.state is not _LOOKING:
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
        """The file where the output of a work goes was looked at."""
        work = event.work
        if work.state is not _CHECKING:
            return
        if not work.waiters:
            self.unblock(work)
            self._replies.drop(work)
        elif self._obey(work, self._idempotency.confirm_written(work, event.stamp)):
            self._go_on(work)

    def inputs_read(self, event: InputsRead) -> None:
        """The referenced inputs of a work are in its memory."""
        work = event.work
        if work.state is not _READING:
            return
        if not work.waiters:
            self._replies.drop(work)
            return
        work.is_read = True
        work.n_bytes = event.bytes_in
        self._computing.queue(work)

    def storage_failed(self, event: StorageFailed) -> None:
        """The storage did not do what a work needs."""
        work = event.work
        if work.state not in (_LOOKING, _CHECKING, _READING, _WRITING):
            return
        if work.state is _WRITING:
            self._replies.count(work.tenant, -work.bytes_out)
        self.fail(work, event.failure)

    def segment_created(self, event: SegmentCreated) -> None:
        """A segment is there: go on with what waited for it."""
        memory, segment = self._memory, event.segment
        sharing = memory.sharing
        work = sharing.created(segment) if isinstance(segment, Grant) else memory.created(segment)
        if work is None:
            return
        if work.state is not _WAITING:
            memory.settle(work)
        else:
            self._granted(work)

    def segment_failed(self, event: SegmentFailed) -> None:
        """A segment could not be made: wait, or do without."""
        memory, segment = self._memory, event.segment
        if not isinstance(segment, Grant):
            memory.failed(segment)
            return
        work, connection = memory.sharing.failed(segment), segment.connection
        if work is None:
            if connection.is_open:
                reason = "no memory to lend now"
                self._state.out.append(ReplyBusy(connection, segment.request_id, SHARE_RETRY_S, reason))
        elif work.state is _WAITING:
            work.output_segment = None
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
            self._state.out.append(Admit(work))

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
            self._state.out.append(Skip(connection, request_id))

    def _obey(self, work: WorkRecord, verdict: KeyVerdict) -> bool:
        if verdict is KeyVerdict.COMPUTE:
            return True
        state = self._state
        if verdict is KeyVerdict.CHECK:
            self.announce(work)
            work.state = _CHECKING
            state.out.append(LookAtOutput(work))
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
                state.out.append(ReplyFailure(connection, request_id, key_reused(name[1]), None, False))
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
            work.output_segment, work.output_offset = inputs, end
        elif n_bytes > LEAST_BYTES:
            work.output_segment = work.output_grant = self._memory.sharing.take_for_result(work, n_bytes)

    def _granted(self, work: WorkRecord) -> None:
        """A work has its memory."""
        arena, needs = work.arena, work.needs
        segment: SegmentRecord | None = arena
        if work.shared is None:
            work.output_segment = arena
            work.output_offset, work.output_bytes = needs.input_bytes, needs.output_bytes
        else:
            segment = work.input_grant
            if arena is not None:
                work.output_segment, work.output_offset = arena, 0
        if work.digest is None or not needs.reads:
            assert segment is not None
            work.is_placed = work.is_announced = True
            self._state.out.append(Receive(work, segment))
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
            self._state.out.append(Read(work, work.arena))
        elif not work.is_placed and not work.needs.reads:
            self.find_memory(work)
        else:
            self._computing.queue(work)


_ON_CPU = "send it to a server that computes on its CPU, and report the message"
#: Failures of requests that have cost too many workers, by code.
COSTLY = {
    failure.code: failure
    for failure in (
        Failure("internal", "worker-lost", ""),
        Failure("rejected", "gpu-failed", "", _ON_CPU),
    )
}

#: A request goes down with no more workers than this, even if it is suspected of nothing.
_MOST_LOSSES = 8
#: Kinds of requests whose expected seconds are remembered.
_MAX_KINDS = 1024
_QUEUED = WorkState.QUEUED
_RUNNING = WorkState.RUNNING


class Computing:
    """The workers, and the works that are theirs.

    Attributes:
        scheduler: which worker computes what.
        busy_s: seconds all workers together were busy.
    """

    def __init__(
        self,
        settings: MachineSettings,
        memory: MemoryPool,
        idempotency: Idempotency,
        replies: Replies,
        state: MachineState,
    ) -> None:
        self.scheduler = Scheduler(settings)
        self.busy_s = 0.0
        self._max_attempts = settings.max_attempts
        self._memory = memory
        self._idempotency = idempotency
        self._replies = replies
        self._state = state
        self._rates = RateTable()
        self._expected: dict[Needs, dict[str, float]] = {}
        self._measured: dict[tuple[Needs, str], tuple[Rate, float]] = {}

    def queue(self, work: WorkRecord) -> None:
        """All inputs are there: have it computed."""
        needs = work.needs
        work.expected_s = self._expected.get(needs) or self._expect(needs)
        work.n_crashes = self._idempotency.n_crashes(work)
        if work.n_crashes:
            work.batch_key = None
        scheduler = self.scheduler
        state = self._state
        worker = scheduler.start_at_once(work, state.now_s)
        if worker is not None:
            work.state = _RUNNING
            if work.reading_bytes:
                self._memory.stop_reading(work)
            for seconds in work.expected_s.values():
                state.out.append(Run(worker, (work,), seconds, work.n_crashes > 0))
        else:
            work.state = _QUEUED
            scheduler.add(work, state.now_s)

    def worker_started(self, event: WorkerStarted) -> None:
        """A worker takes works from now on."""
        self.scheduler.add_worker(event.worker, event.kind, event.now_s)

    def finished(self, event: Finished) -> None:
        """A worker has answered for some of its works."""
        worker = event.worker
        done: list[QueueEntry] = []
        answers: list[tuple[WorkRecord, WorkResult]] = []
        busy_s = 0.0
        for result in event.results:
            work = result.work
            if work.worker != worker or work.state is not _RUNNING or work in done:
                continue
            busy_s += result.compute_s
            done.append(work)
            answers.append((work, result))
        if not done:
            return
        self.busy_s += busy_s
        kind = self.scheduler.finish(worker, done, busy_s, event.now_s)
        if self.scheduler.waiting:
            # The worker's next batch comes before anything else, unless the results stop their tenant.
            for work, result in answers:
                work.tenant.used_bytes += result.bytes_out
            self.dispatch()
            for work, result in answers:
                work.tenant.used_bytes -= result.bytes_out
        for work, result in answers:
            self._pass_on(work, result)
            if result.failure is None:
                self._learn(work.needs, kind, result.compute_s)

    def written(self, event: Written) -> None:
        """The output of a work is stored."""
        work = event.work
        if work.state is _WRITING:
            self._replies.count(work.tenant, -work.bytes_out)
            work.stamp = event.stamp
            self._replies.result(work, None)

    def worker_lost(self, event: WorkerLost) -> None:
        """A worker is gone: compute again what it had."""
        reported = {lost.work: lost for lost in event.lost}
        for entry in self.scheduler.remove_worker(event.worker, event.now_s):
            assert isinstance(entry, WorkRecord)
            lost = reported.get(entry)
            is_overwritten = lost is not None and lost.overwritten
            if lost is not None and event.is_running:
                self._leak(entry, event)
                is_overwritten = True
            self._retry(entry, is_overwritten, lost is not None and lost.is_suspect, event)

    def measured(self, event: RateMeasured) -> None:
        """Learn from a calibration."""
        self._rates.observe(event.operation, event.amount, event.kind, event.seconds)

    def expire(self) -> None:
        """Refuse what was not started before its deadline."""
        for entry in self.scheduler.advance(self._state.now_s):
            assert isinstance(entry, WorkRecord)
            self._replies.failure(entry, EXPIRED)

    def dispatch(self) -> bool:
        """Start what can be started; whether anything was."""
        starts = self.scheduler.dispatch()
        for worker, entries, expected_s in starts:
            works: list[WorkRecord] = []
            for entry in entries:
                assert isinstance(entry, WorkRecord)
                entry.state = _RUNNING
                if entry.reading_bytes:
                    self._memory.stop_reading(entry)
                works.append(entry)
            # One that may have cost a worker is never in a batch with others.
            self._state.out.append(Run(worker, tuple(works), expected_s, works[-1].n_crashes > 0))
        return bool(starts)

    def _expect(self, needs: Needs) -> dict[str, float]:
        """By kind of device; renewed with each computation of these needs."""
        if len(self._expected) >= _MAX_KINDS:
            self._expected.clear()
            self._measured.clear()
        expected = {kind: self._rates.expected_s(needs.operation, needs.amount, kind) for kind in needs.kinds}
        self._expected[needs] = expected
        return expected

    def _pass_on(self, work: WorkRecord, result: WorkResult) -> None:
        if result.failure is not None:
            self._replies.failure(work, result.failure)
            return
        work.compute_s, work.bytes_out = result.compute_s, result.bytes_out
        if result.answer_bytes:
            work.answer_bytes = result.answer_bytes
        if work.writes and work.waiters:
            work.state = _WRITING
            self._replies.count(work.tenant, work.bytes_out)
            self._state.out.append(Write(work))
        else:
            self._replies.result(work, result)

    def _learn(self, needs: Needs, kind: str, compute_s: float) -> None:
        known = self._expected.get(needs)
        if known is None or compute_s <= 0.0:
            return
        measured = self._measured.get((needs, kind))
        if measured is None:
            amount = max(needs.amount, 1.0)
            measured = self._rates.rate(needs.operation, needs.amount, kind), amount
            self._measured[needs, kind] = measured
        rate, amount = measured
        rate.learn(compute_s / amount)
        # In place of the one before, never changed: entries that are queued were counted with it.
        self._expected[needs] = {**known, kind: rate.s_per_unit * amount}

    def _leak(self, work: WorkRecord, event: WorkerLost) -> None:
        """Leave the memory of a work to its worker; a client whose shared memory that is begins anew."""
        connection = work.connection
        if self._memory.leak(work, event.worker) and connection.is_open and not connection.is_cut:
            connection.is_cut = True
            reason = "a worker process that does not end may write to shared memory of this connection"
            self._state.out.append(Disconnect(connection, "worker-lost", reason))

    def _retry(self, work: WorkRecord, is_overwritten: bool, is_suspect: bool, event: WorkerLost) -> None:
        """Compute again what still can be, so often as the settings say."""
        work.n_lost += 1
        if is_suspect:
            work.n_crashes = self._idempotency.crashed(work)
        if not work.waiters:
            self._replies.drop(work)
        elif work.n_crashes >= self._max_attempts or work.n_lost >= _MOST_LOSSES:
            n_lost = max(work.n_lost, work.n_crashes)
            text = f"{event.detail}; this request was with {n_lost} workers that are gone"
            self._replies.failure(work, COSTLY[event.code]._replace(message=text))
        elif not is_overwritten:
            self.queue(work)
        elif work.needs.reads and not work.needs.payload_bytes:
            self._memory.give_up(work)
            work.state = _LOOKING
            self._state.out.append(Look(work))
        else:
            self._replies.again(work, event.detail)


_NEVER = float("inf")
#: A worker or a thread is at these: their memory comes back when that is over, whoever waits for it.
_BUSY = frozenset({WorkState.RUNNING, WorkState.WRITING, WorkState.READING, WorkState.LOOKING})


class CutOff:
    """Ends connections that keep others from memory.

    When a work waits that stays within the share of its tenant, connections of tenants above theirs are
    ended that have replies to read, a payload to send, or shared memory to use, and have not moved for
    `unread_grace_s`: the one that stands still for longest first, until the work fits.  When a work has
    waited for long, connections that only have shared memory they do not use are ended, whosever they are.
    """

    def __init__(
        self, settings: MachineSettings, memory: MemoryPool, replies: Replies, state: MachineState
    ) -> None:
        self._grace_s = settings.unread_grace_s
        self._memory = memory
        self._replies = replies
        self._state = state

    def is_any_stalled(self) -> bool:
        """Whether a connection holds memory and does not move."""
        now_s = self._state.now_s
        return any(
            (_owes(connection) or _is_idle(connection)) and now_s - connection.moved_s >= self._grace_s
            for connection in self._state.connections
        )

    def free_memory(self, work: WorkRecord) -> float:
        """Cut off whom a work need not wait for; returns when to look again, infinity: never."""
        now_s = self._state.now_s
        excess = self._excess()
        excess.pop(work.owner, None)
        is_long = self._memory.waits_long(work)
        lacking = self._memory.lacking(work) - self._memory.kept_bytes
        candidates = []
        for connection in self._state.connections:
            is_above = excess.get(connection.tenant, 0.0) > 0.0
            if connection.is_cut:
                lacking -= self._held(connection)
            elif (_is_idle(connection) and (is_long or is_above)) or (_owes(connection) and is_above):
                candidates.append(connection)
        candidates.sort(key=lambda connection: connection.moved_s)
        for connection in candidates:
            if lacking <= 0:
                return _NEVER
            tenant, freed = connection.tenant, self._held(connection)
            is_above = excess.get(tenant, 0.0) > 0.0
            if not freed or not (is_above or (is_long and _is_idle(connection))):
                continue
            due_s = connection.moved_s + self._grace_s
            if due_s > now_s:
                return due_s
            self._end(connection)
            lacking -= freed
            excess[tenant] = excess.get(tenant, 0.0) - freed
        return _NEVER

    def _excess(self) -> dict[TenantRecord, float]:
        """Bytes that each tenant holds above its share, once the connections being ended are gone."""
        share = self._memory.share_per_weight()
        tenants = self._state.tenants.values()
        excess = {each: each.held_bytes - share * each.settings.weight for each in tenants}
        for connection in self._state.connections:
            if connection.is_cut:
                excess[connection.tenant] -= self._held(connection)
        return excess

    def _end(self, connection: ConnectionRecord) -> None:
        connection.is_cut = True
        self._state.counts["cut_off"] += 1
        reason = "others wait for the memory that this connection holds and does not use"
        self._state.out.append(Disconnect(connection, "memory-held", reason))

    def _held(self, connection: ConnectionRecord) -> int:
        """Bytes that come back soon after a connection is gone."""
        works = {work for work in connection.works.values() if work.state not in _BUSY}
        works |= {each[0] for each in self._replies.leaving.values() if each[0] and each[1] is connection}
        granted = sum(grant.n_bytes for grant in connection.grants.values() if not grant.n_users)
        return granted + sum(work.segment_bytes for work in works)


def _owes(connection: ConnectionRecord) -> bool:
    """Whether it is the client's turn, and memory is held until it does something."""
    return connection.n_leaving > 0 or connection.receiving is not None


def _is_idle(connection: ConnectionRecord) -> bool:
    """Whether a client has shared memory and asks for nothing."""
    return bool(connection.grants) and not (connection.waits or connection.works or connection.n_leaving)
