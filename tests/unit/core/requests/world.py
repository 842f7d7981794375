"""A shell for the request machine that believes nothing: it carries out every command and checks it.

Connections, requests and segments are numbers here; `apply` puts the machine's records in their places, and
numbers in place of records in its commands.  Everything that a real shell would do at once happens at once
(segments are made, replies are sent, connections are closed), unless a test says otherwise.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from yarn_accel.core.requests import commands as c
from yarn_accel.core.requests import events as e
from yarn_accel.core.requests.machine import RequestMachine
from yarn_accel.core.requests.records import (
    ConnectionRecord,
    Grant,
    Needs,
    SegmentRecord,
    WorkRecord,
    WorkState,
)
from yarn_accel.core.requests.settings import MachineSettings, TenantSettings

KIB = 1024
MIB = 1024 * 1024
FINAL = (c.ReplyResult, c.Repeat, c.ReplyFailure, c.ReplyBusy, c.ReplyCancelled)
_S = WorkState
#: What may follow a state at once.
SUCCESSORS: dict[WorkState, frozenset[WorkState]] = {
    _S.LOOKING: frozenset({_S.WAITING, _S.CHECKING, _S.ENDED}),
    _S.WAITING: frozenset({_S.RECEIVING, _S.READING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.RECEIVING: frozenset({_S.CHECKING, _S.READING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.CHECKING: frozenset({_S.WAITING, _S.READING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.READING: frozenset({_S.WAITING, _S.QUEUED, _S.RUNNING, _S.ENDED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.ENDED}),
    _S.RUNNING: frozenset({_S.QUEUED, _S.LOOKING, _S.WRITING, _S.ENDED}),
    _S.WRITING: frozenset({_S.ENDED}),
    _S.ENDED: frozenset(),
}
WEIGHTS = {"light": 1.0, "heavy": 3.0}


def settings(**changes):
    """Small limits, and tenants with rights below hdfs://nn/in and hdfs://nn/out."""
    tenants = {
        name: TenantSettings(weight, ("hdfs://nn/in",), ("hdfs://nn/out",))
        for name, weight in {**WEIGHTS, "*": 1.0}.items()
    }
    values = {"pool_bytes": 16 * MIB, "queue_bytes": 8 * MIB, "max_request_bytes": 4 * MIB}
    values |= {"max_shared_bytes": 4 * MIB, "reply_cache_bytes": 64 * KIB, "tenants": tenants}
    values |= {"max_in_flight": 64, "reply_cache_age_s": 600.0, "max_attempts": 2, "max_batch_size": 64}
    values |= {"max_batch_bytes": 4 * MIB, "max_queue_delay_s": 0.0}
    return MachineSettings(**{**values, **changes})


def needs(n_bytes=100, out=None, operation="echo", **changes):
    """Needs of a request with so many bytes of payload, and as many of output."""
    values = {"payload_bytes": n_bytes, "input_bytes": -(-n_bytes // 64) * 64}
    values["output_bytes"] = n_bytes if out is None else out
    if changes.get("reads"):
        values = {"payload_bytes": 0, "input_bytes": 0, "output_bytes": 64 * KIB}
    return Needs(operation, (operation, n_bytes, changes.get("reads", ())), **{**values, **changes})


class Request(NamedTuple):
    """A request as its client sent it."""

    connection: int
    request_id: int
    key: str
    needs: Needs
    digest: bytes | None
    now_s: float
    deadline_s: float = 0.0


class World:
    """The machine with everything around it.

    Attributes:
        answers: by connection and request, the one that came.
        runs: what each worker has, in its order.
        leaked: by worker that could not be ended, the memory it may still write to.
        stopped: connections whose client reads nothing.
        blocked: connections that are not read from, and the request they stopped at.
        sending: connections in the middle of a payload, and its work.
        looks, reads, writes, checks: works a storage thread is at.
        can_create: whether segments can be made.
    """

    def __init__(self, **changes):
        self.machine = RequestMachine(settings(**changes))
        self.now_s, self.wake_s = 100.0, None
        self.n_connections = self.n_requests = 0
        self.connections, self.tenants, self.records = {}, {}, {}
        self.asked, self.answers, self.counts = {}, {}, Counter()
        self.works, self.requests, self.work_records = {}, {}, {}
        self.memory, self.users, self.shared, self.outputs, self.segments = {}, {}, {}, {}, {}
        self.workers, self.runs, self.started, self.alone = {}, {}, [], []
        self.leaked = {}
        self.looks, self.reads, self.writes, self.checks = [], [], [], []
        self.replies, self.remembered, self.stopped = {}, {}, set()
        self.blocked, self.sending, self.cut = {}, {}, []
        self.can_create, self.is_drained = True, False
        self._events, self._states, self._reused = deque(), {}, None

    # Verbs

    def open(self, tenant="t", account=""):
        self.n_connections += 1
        self.connections[self.n_connections] = tenant
        self.tenants[self.n_connections] = tenant
        self.records[self.n_connections] = ConnectionRecord(self.n_connections)
        self.apply(e.ConnectionOpened(self.n_connections, tenant, self.now_s, account))
        return self.n_connections

    def ask(self, connection, key=None, what=None, digest=b"digest", **more):
        """Send a request; its payload comes with the header (digest) or later (None)."""
        assert connection in self.free, "the shell does not read this connection, or reads a payload"
        self.n_requests += 1
        request_id = more.pop("request_id", self.n_requests)
        what = what or needs()
        key = key or f"key {self.n_requests}"
        if what.reads:
            digest = None
        if what.payload_bytes or not what.reads:
            self.blocked[connection] = request_id
        if (connection, request_id) in self.asked:
            self._reused = connection, request_id
        self.asked[connection, request_id] = (key, what, digest)
        deadline_s = more.pop("deadline_s", 0.0)
        work = self.new_work(connection, request_id, key, what, **more)
        self._received = Request(connection, request_id, key, what, digest, self.now_s, deadline_s)
        self.apply(e.Received(work, digest, self.now_s, deadline_s))
        return request_id

    def new_work(self, connection, request_id, key, what, **more):
        work = WorkRecord(self.records[connection], request_id, key, what, self.now_s)
        for name, value in more.items():
            setattr(work, name, value)
        return work

    def arrive(self, connection, request_id, digest=b"digest"):
        """The payload of a request is complete."""
        work = self.work_of(connection, request_id)
        self.sending.pop(connection)
        self.apply(e.Arrived(work, digest, self.now_s))

    def cancel(self, connection, request_id):
        self.apply(e.RequestCancelled(connection, request_id, self.now_s))

    def close(self, connection):
        """The client goes away; what it was being sent is over then."""
        self._forget(connection)
        self.apply(e.ConnectionClosed(connection, self.now_s))
        self.sent(connection, was_sent=False)

    def _forget(self, connection):
        self.connections.pop(connection)
        self.blocked.pop(connection, None)
        self.sending.pop(connection, None)
        self.asked = {request: what for request, what in self.asked.items() if request[0] != connection}

    def worker(self, number=1, kind="cpu"):
        self.workers[number] = kind
        self.runs[number] = []
        self.apply(e.WorkerStarted(number, kind, self.now_s))
        return number

    def finish(self, *works, failure=None, compute_s=0.01, **more):
        """Workers answer for these works, or for all they have."""
        for number, mine in list(self.runs.items()):
            done = [work for work in mine if work in works or not works]
            if not done:
                continue
            self.runs[number] = [work for work in mine if work not in done]
            results = tuple(self.result(work, failure, compute_s, **more) for work in done)
            self.apply(e.Finished(number, results, self.now_s))

    def result(self, work, failure=None, compute_s=0.01, bytes_out=None, segments=None):
        what = self.requests[work].needs
        bytes_out = what.output_bytes if bytes_out is None else bytes_out
        segments = (self.outputs[work][0],) if segments is None else segments
        return e.WorkResult(work, failure, compute_s, 0 if failure else bytes_out, 0, segments)

    def lose(self, number=1, suspects=(), overwritten=(), code="worker-lost", is_running=False):
        """A worker is gone, or cannot be ended."""
        mine = self.runs.pop(number)
        del self.workers[number]
        lost = tuple(e.LostWork(work, work in overwritten, work in suspects) for work in mine)
        if is_running:
            # Shared memory is kept from others by the end of its connection.
            held = {segment for segment, work in self.users.items() if work in mine}
            grants = [self.work_records[work].input_grant for work in mine]
            held |= {grant.id for grant in grants if grant is not None}
            self.leaked[number] = held | {self.outputs[work][0] for work in mine}
        self.apply(e.WorkerLost(number, lost, "the worker on cpu died", self.now_s, code, is_running))

    def end(self, number=1):
        """A worker that could not be ended has ended after all."""
        del self.leaked[number]
        self.apply(e.WorkerEnded(number, self.now_s))

    def sent(self, connection, was_sent=True):
        """The client has read all that waits for it, or never will."""
        for reply in [reply for reply, (to, *_) in self.replies.items() if to == connection]:
            self.apply(e.Sent(reply, was_sent, self.now_s))

    def stop(self, connection):
        self.stopped.add(connection)

    def go_on(self, connection):
        self.stopped.discard(connection)
        self.sent(connection)

    def looked(self, what=None, digest=b"stamps"):
        """All files that are being looked at are known now."""
        needs_of = lambda work: what or self.requests[work].needs  # noqa: E731
        self._done("looks", lambda work: e.Looked(work, digest, needs_of(work), self.now_s))

    def checked(self, stamp=None):
        self._done("checks", lambda work: e.OutputLooked(work, stamp, self.now_s))

    def read(self):
        self._done("reads", lambda work: e.InputsRead(work, 100, self.now_s))

    def wrote(self, stamp="stamp"):
        self._done("writes", lambda work: e.Written(work, stamp, self.now_s))

    def _done(self, group, event_of):
        """What a storage thread is at is over, for all works of a group."""
        works = getattr(self, group)
        setattr(self, group, [])
        for work in works:
            self.apply(event_of(work))

    def storage_failed(self, work):
        for group in (self.looks, self.reads, self.writes, self.checks):
            if work in group:
                group.remove(work)
        self.apply(e.StorageFailed(work, e.Failure("storage", "storage", "gone"), self.now_s))

    def want(self, connection, n_bytes):
        """Ask for shared memory; returns its segment, None: busy."""
        self.n_requests += 1
        request_id = self.n_requests
        self.asked[connection, request_id] = ("", None, None)
        self.apply(e.MemoryWanted(connection, request_id, n_bytes, self.now_s))
        answer = self.answers.get((connection, request_id))
        return answer.segment if isinstance(answer, c.GrantMemory) else None

    def give_back(self, connection, segment):
        self.apply(e.MemoryReturned(connection, segment, self.now_s))

    def drain(self):
        self.apply(e.DrainStarted(self.now_s))

    def wait(self, seconds):
        """Let time pass, with a tick whenever one is due."""
        until_s = self.now_s + seconds
        while self.wake_s is not None and self.wake_s <= until_s:
            self.now_s = max(self.now_s, self.wake_s)
            self.apply(e.Tick(self.now_s))
        self.now_s = until_s
        self.apply(e.Tick(self.now_s))

    # What there is to see

    def work_of(self, connection, request_id):
        return next(number for number, who in self.works.items() if who == (connection, request_id))

    def answer(self, connection, request_id):
        return self.answers.get((connection, request_id))

    def kind(self, connection, request_id):
        answer = self.answer(connection, request_id)
        return "" if answer is None else type(answer).__name__

    def code(self, connection, request_id):
        return self.answers[connection, request_id].failure.code

    @property
    def free(self):
        """Connections that may send a request now."""
        return self.connections.keys() - self.blocked.keys() - self.sending.keys()

    @property
    def waiting(self):
        """Connection, request and stage of each request that is not answered."""
        return [(who.session, number, stage) for who, number, stage, _ in self.machine.waiting()]

    @property
    def running(self):
        return [work for works in self.runs.values() for work in works]

    @property
    def used_bytes(self):
        return self.machine.snapshot()["pool"]["used_bytes"]

    # The shell

    def apply(self, event):
        """Apply an event, and whatever follows from its commands."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            event = self._events[0]
            if self.wake_s is not None and self.wake_s <= event.now_s:
                self.wake_s = None
            if isinstance(event, e.Sent):
                del self.replies[event.reply]
            commands = self.machine.apply(self._with_records(event))
            if isinstance(event, e.WorkerLost):
                self._notice_given_up()
            for command in map(self._with_numbers, commands):
                getattr(self, f"_{type(command).__name__}")(command)
            self.machine.validate()
            self._check()
            self._events.popleft()

    def ordered(self, event):
        """The commands that follow from an event; nobody carries them out."""
        return [self._with_numbers(command) for command in self.machine.apply(self._with_records(event))]

    def _with_records(self, event):
        """The event as the machine takes it."""
        fields = event._asdict()
        for name, value in fields.items():
            if name in ("work", "connection") and isinstance(value, int):
                fields[name] = (self.work_records if name == "work" else self.records)[value]
            elif name == "segment" and not isinstance(event, e.MemoryReturned):
                fields[name] = self.segments[value]
            elif name in ("results", "lost"):
                fields[name] = tuple(each._replace(work=self.work_records[each.work]) for each in value)
        return type(event)(**fields)

    def _with_numbers(self, command):
        """The command with what tests look at, by number."""
        return command._replace(**{name: self._number(value) for name, value in command._asdict().items()})

    def _number(self, value):
        if isinstance(value, WorkRecord | SegmentRecord):
            (self.work_records if isinstance(value, WorkRecord) else self.segments)[value.id] = value
            return value.id
        if isinstance(value, ConnectionRecord):
            return value.session
        return tuple(map(self._number, value)) if type(value) is tuple else value

    def _notice_given_up(self):
        """Works that are to be read once more have no memory meanwhile."""
        works = self.machine._state.works
        again = {each for each in works if works[each].state.value in ("waiting", "looking", "reading")}
        self.users = {segment: user for segment, user in self.users.items() if user not in again}

    def _check(self):
        assert sum(self.memory.values()) <= self.machine.snapshot()["pool"]["bound_bytes"]
        assert set(self.works) == set(self.machine._state.works)
        states = {number: work.state for number, work in self.machine._state.works.items()}
        for number, state in states.items():
            before = self._states.get(number, state)
            assert state is before or state in reachable(before), f"{before} to {state}"
        self._states = states
        if len(self._events) > 1:
            return
        waits = {(connection, number) for connection, number, _ in self.waiting}
        assert waits <= set(self.asked)
        open_ = {request for request in self.asked if request not in self.answers}
        assert {request for request in open_ if self.asked[request][1] is not None} == waits

    def _final(self, command):
        request = command.connection, command.request_id
        if command.connection not in self.connections:
            return
        assert request in self.asked
        self.counts[request] += 1
        if request == self._reused:
            # A number that is used while it is under way is refused; the first one keeps it.
            self._reused = None
            assert isinstance(command, c.ReplyFailure)
            assert command.failure.code == "key-reused"
        else:
            assert request not in self.answers
            self.answers[request] = command

    def _know(self, work):
        """Note whose a work is; returns its request."""
        record = self.work_records[work]
        request = record.connection.session, record.request_id
        if work not in self.works:
            self.works[work] = request
            self.requests[work] = self._received
            assert (self._received.connection, self._received.request_id) == request
        assert self.works[work] == request
        return self.requests[work]

    def _Admit(self, command):
        self._know(command.work)

    def _CreateSegment(self, command):
        number = command.segment
        if not self.can_create:
            self._events.append(e.SegmentFailed(number, self.now_s))
            return
        assert number not in self.memory
        record = self.segments[number]
        self.memory[number] = record.n_bytes
        if isinstance(record, Grant):
            self.shared[number] = record.connection.session
        self._events.append(e.SegmentCreated(number, self.now_s))

    def _DestroySegment(self, command):
        del self.memory[command.segment]
        assert not any(command.segment in held for held in self.leaked.values())
        assert command.segment not in self.users, "memory in use was destroyed"
        if command.segment in self.shared:
            assert self.shared.pop(command.segment) not in self.connections

    def _use(self, work, segment):
        assert segment in self.memory
        assert not any(segment in held for held in self.leaked.values()), "a lost worker may write there"
        if segment in self.shared:
            assert self.shared[segment] == self.works[work][0]
        else:
            assert self.users.setdefault(segment, work) == work, "memory was given to two"

    def _Receive(self, command):
        request = self._know(command.work)
        self._use(command.work, command.segment)
        self._place(command.work)
        self._unblock(request)
        if request.digest is None:
            self.sending[request.connection] = command.work

    def _place(self, work):
        record = self.work_records[work]
        segment = self._number(record.output_segment)
        self._use(work, segment)
        assert record.output_offset + record.output_bytes <= self.memory[segment]
        self.outputs[work] = segment, record.output_offset

    def _unblock(self, command):
        if self.blocked.get(command.connection) == command.request_id:
            del self.blocked[command.connection]

    _Skip = _unblock

    def _Look(self, command):
        assert command.work in self.works
        self.looks.append(command.work)

    def _LookAtOutput(self, command):
        assert command.work in self.works
        self.checks.append(command.work)

    def _Read(self, command):
        self._use(command.work, command.segment)
        self._place(command.work)
        self.reads.append(command.work)

    def _Write(self, command):
        assert command.work in self.works
        self.writes.append(command.work)

    def _Run(self, command):
        assert command.works
        self.alone += command.works if command.is_alone else ()
        assert not set(command.works) & set(self.running)
        for work in command.works:
            assert work in self.works
            request = self.requests[work]
            assert not request.deadline_s or self.now_s < request.now_s + request.deadline_s
            self.started.append(work)
        self.runs[command.worker].extend(command.works)
        names = [(self.tenants[self.works[work][0]], self.requests[work].key) for work in self.running]
        assert len(set(names)) == len(names), "a key is computed twice at a time"

    def _ReplyResult(self, command):
        assert command.work in self.works
        if command.segment:
            assert self.shared[command.segment] == command.connection
            assert not command.reply
        self._final(command)
        self._leave(command, command.work)

    def _Repeat(self, command):
        self._final(command)
        self._leave(command, self.remembered[command.answer])

    def _leave(self, command, memory):
        if not command.reply:
            return
        assert command.reply not in self.replies
        self.replies[command.reply] = command.connection, memory
        if command.connection not in self.stopped or command.connection not in self.connections:
            was_sent = command.connection in self.connections
            self._events.append(e.Sent(command.reply, was_sent, self.now_s))

    _ReplyFailure = _ReplyBusy = _ReplyCancelled = _final

    def _Remember(self, command):
        assert command.work in self.works
        assert command.answer not in self.remembered
        self.remembered[command.answer] = None if command.is_copy else command.work

    def _Forget(self, command):
        del self.remembered[command.answer]

    def _GrantMemory(self, command):
        assert self.shared[command.segment] == command.connection
        if command.request_id:
            self.answers[command.connection, command.request_id] = command

    def _Release(self, command):
        work = command.work
        assert work not in self.running
        assert work not in [memory for _, memory in self.replies.values()], "memory is still read from"
        assert work not in self.remembered.values()
        assert work not in self.reads + self.writes
        del self.works[work]
        for group in (self.looks, self.checks):
            if work in group:
                group.remove(work)
        self.users = {segment: user for segment, user in self.users.items() if user != work}

    def _Disconnect(self, command):
        if command.connection in self.connections:
            self.cut.append(command.connection)
            self._forget(command.connection)
            self._events.append(e.ConnectionClosed(command.connection, self.now_s))
            unread = [reply for reply, (to, _) in self.replies.items() if to == command.connection]
            self._events.extend(e.Sent(reply, False, self.now_s) for reply in unread)

    def _WakeAt(self, command):
        assert command.at_s > self.now_s
        self.wake_s = command.at_s

    def _Drained(self, command):
        assert not self.is_drained
        assert not self.replies
        self.is_drained = True


def reachable(state):
    """The states that may follow within one event, over others."""
    found, new = set(), {state}
    while new:
        new = {after for before in new for after in SUCCESSORS[before]} - found
        found |= new
    return found
