"""The shell around the request machine: what happens becomes an event, what the machine orders is done.

All of it happens in the loop's thread. A request is one `Work` from its header on; the machine keeps and
changes what it decides by, and names the object in its commands (`core.requests.records`), so there are no
tables of requests, connections or segments here. The parts below: what sessions report, what workers report,
memory, the way of a request, its answer.
"""

from __future__ import annotations

import collections
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from yarn_accel.core.requests import commands as order
from yarn_accel.core.requests import events as event
from yarn_accel.core.requests.machine import RequestMachine
from yarn_accel.core.requests.records import Failure, Grant, SharedInputs, WorkState
from yarn_accel.errors import AccelError, RejectedError
from yarn_accel.operations.models import WITH_MODELS
from yarn_accel.operations.registry import OPERATIONS
from yarn_accel.operations.registry import get as find_operation
from yarn_accel.pipeline.config import machine_settings
from yarn_accel.pipeline.models import RETRY_S, Models
from yarn_accel.pipeline.own_filesystem import USERS_CURE
from yarn_accel.pipeline.plans import Plans, Work, digest_of, failure_of
from yarn_accel.pipeline.storage import outputs_of
from yarn_accel.pipeline.workers.protocol import Area, Job
from yarn_accel.uris import shown
from yarn_accel.wire import (
    ALIGNMENT_BYTES,
    Busy,
    Cancel,
    Cancelled,
    Closed,
    Failed,
    GiveBack,
    Lend,
    Lent,
    NamedTensor,
    Opened,
    PayloadComplete,
    Placement,
    Progress,
    Request,
    Result,
    TensorSpec,
)

if TYPE_CHECKING:
    from yarn_accel.pipeline.calibration import Measured
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.connections import Session
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.pipeline.loop import EventLoop, Timer
    from yarn_accel.pipeline.own_filesystem import OwnFilesystem
    from yarn_accel.pipeline.storage import Storage
    from yarn_accel.pipeline.trace import Trace
    from yarn_accel.pipeline.worker_process import Buffers, WorkerProcess
    from yarn_accel.pipeline.workers.protocol import JobDone, Lost
    from yarn_accel.storage import Store

logger = logging.getLogger(__name__)
#: Of its own, so that other lines do not push these out.
_request_logger = logging.getLogger("yarn_accel.pipeline.requests")

_PER_TENSOR_BYTES = 256
_MAX_MESSAGE = 2000
_MAX_CURE = 500
_MAX_REASON = 500
_OF_STORAGE = (order.Look, order.LookAtOutput, order.Read, order.Write)
_OF_CONNECTION = (
    order.GrantMemory,
    order.Repeat,
    order.ReplyBusy,
    order.ReplyCancelled,
    order.ReplyFailure,
    order.ReplyResult,
    order.Skip,
)


class _Answer(NamedTuple):
    """An answer that may be repeated: its message, and its payload where it lies or was copied to."""

    result: Result
    payload: tuple[memoryview, ...]


def _note(tenant: str, request: Request, text: str) -> None:
    """Say in the log by its key what became of a request; `yarn-accel logs KEY` finds that."""
    line = f"request {request.key} ({request.operation}, tenant {tenant}) {text}"
    _request_logger.warning("%s", _printable(line)[:_MAX_MESSAGE])


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


class RequestEngine:
    """Requests from their header to their answer.

    Args:
        config: limits and shares.
        filesystem: what URIs and prefixes without a host mean, and where requests use the storage of their
            sessions' users, and no other.
        loop: the thread all of this belongs to.
        buffers: the memory.
        storage: reads and writes by URI.
        counters: what is counted.
        server: how the server is named in results.
        trace: where spans go; None: nowhere.

    Attributes:
        machine: decides, and owns the requests.
        models: the models of requests.
        sessions: the open connections.
        session_handlers: by type of message, what is done about it.
        on_drained: called when a drain is over.
        device_kinds: what there is to compute on; set before anything else is called, as is the next.
        rest_kinds: what computes operations that have a form for none of these.
        can_compute: whether a worker has started.
        n_done: requests answered with a result so far.
        add_up_use: takes connections, some or all, for accounting.
    """

    def __init__(
        self,
        config: PipelineConfig,
        filesystem: OwnFilesystem,
        loop: EventLoop,
        buffers: Buffers,
        storage: Storage,
        counters: Counters,
        server: str,
        trace: Trace | None,
    ) -> None:
        settings = machine_settings(config, filesystem.normalised_prefix, filesystem.users_roots)
        self.machine = RequestMachine(settings)
        self._users_roots = filesystem.users_roots
        self.sessions: dict[Session, None] = {}
        self.session_handlers: dict[type, Callable[[Session, Any], None]] = {
            Opened: self._opened,
            Closed: self._closed,
            Request: self._requested,
            PayloadComplete: self._arrived,
            Cancel: self._cancelled,
            Lend: self._memory_wanted,
            GiveBack: self._memory_returned,
        }
        self.on_drained: Callable[[], None] = _nothing
        self.add_up_use: Callable[[Iterable[Session]], None] = lambda sessions: None
        self.device_kinds: tuple[str, ...] = ()
        self.rest_kinds: tuple[str, ...] = ()
        self.can_compute = False
        self.n_done = 0
        self._config = config
        self._loop = loop
        self._buffers = buffers
        self._storage = storage
        self._counters = counters
        self._server = server
        self._trace = trace
        self._normalised = filesystem.normalised
        self._plans = Plans(
            find_operation,
            self._normalised,
            config.max_request_bytes,
            lambda: self.device_kinds,
            lambda: self.rest_kinds,
        )
        self.models = Models(config, storage, self._normalised, self._users_roots)
        self._answers: dict[int, _Answer] = {}
        self._events: collections.deque[event.Event] = collections.deque()
        self._is_feeding = False
        self._wakes_at_s = 0.0
        self._timer: Timer | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            order.Admit: self._admit,
            order.CreateSegment: self._create_segment,
            order.DestroySegment: self._destroy_segment,
            order.Disconnect: self._disconnect,
            order.Drained: self._drained,
            order.Forget: self._forget,
            order.GrantMemory: self._grant_memory,
            order.Look: self._look,
            order.LookAtOutput: self._look_at_output,
            order.Read: self._read,
            order.Receive: self._receive,
            order.Release: self._release,
            order.Remember: self._remember,
            order.Repeat: self._repeat,
            order.ReplyBusy: self._reply_busy,
            order.ReplyCancelled: self._reply_cancelled,
            order.ReplyFailure: self._reply_failure,
            order.ReplyResult: self._reply_result,
            order.Run: self._run,
            order.Skip: self._skip,
            order.WakeAt: self._wake_at,
            order.Write: self._write,
        }

    def feed(self, what: event.Event) -> None:
        """Tell the machine what happened, and do what it says."""
        events = self._events
        events.append(what)
        if self._is_feeding:
            return
        self._is_feeding = True
        handlers, apply = self._handlers, self.machine.apply
        try:
            while events:
                for command in apply(events.popleft()):
                    try:
                        handlers[type(command)](command)
                    except Exception as error:
                        logger.exception("could not carry out %s", type(command).__name__)
                        self._fail(command, error)
        finally:
            self._is_feeding = False

    def _fail(self, command: order.Command, error: Exception) -> None:
        """End what waits for a command that broke: nobody waits for what will never happen."""
        now_s = time.monotonic()
        # Its connection ends before the machine hears of the rest: what it was still sending is over then.
        self._end_connection(command)
        if isinstance(command, order.Run):
            # A worker that has got them writes to their memory: they are lost when it has ended.
            if not command.worker.withdraw([work.id for work in command.works]):
                failure = failure_of(error)
                results = tuple([event.WorkResult(work, failure, 0.0, 0) for work in command.works])
                self._events.append(event.Finished(command.worker, results, now_s))
        elif isinstance(command, _OF_STORAGE):
            self._events.append(event.StorageFailed(command.work, failure_of(error), now_s))
        elif isinstance(command, order.CreateSegment):
            self._events.append(event.SegmentFailed(command.segment, now_s))
        elif isinstance(command, order.ReplyResult | order.Repeat) and command.reply:
            self._events.append(event.Sent(command.reply, False, now_s))
        elif isinstance(command, order.Receive) and isinstance(command.work, Work):
            # Its inputs are not there, so it must not be computed for others who wait for it.
            command.work.is_without_inputs = True

    def _end_connection(self, command: order.Command) -> None:
        """End the connection that does not get what it waits for, or cannot be read on."""
        if isinstance(command, order.Admit | order.Receive):
            session = command.work.connection.session
        elif isinstance(command, _OF_CONNECTION):
            session = command.connection.session
        else:
            return
        if session is not None:
            try:
                session.disconnect("internal-error", "the server broke")
            except Exception:
                logger.exception("a connection could not be ended in order")
                session.close()

    # From sessions

    def _opened(self, session: Session, _: Opened) -> None:
        """A client has proved its credential, and whose tokens it has."""
        self._counters.add("connections")
        logger.info("tenant %s connected over %s", session.tenant, session.carrier.kind)
        self.feed(event.ConnectionOpened(session.record, session.tenant, time.monotonic(), session.account))

    def _closed(self, session: Session, _: object) -> None:
        """A connection is over."""
        self.sessions.pop(session, None)
        self.add_up_use((session,))
        session.record.session = None
        if session.how_ended != "closed":
            self._counters.add(session.how_ended)
        self._counters.add("abandoned", len(session.unanswered))
        session.unanswered.clear()
        if session.is_open:
            self.feed(event.ConnectionClosed(session.record, time.monotonic()))

    def _requested(self, session: Session, request: Request) -> None:
        """A request's header has arrived."""
        now_s = time.monotonic()
        operation = request.operation
        # Only names we know: a client must not be able to make the table of counters grow.
        self._counters.requested(operation if operation in OPERATIONS else "unknown", session.tenant)
        try:
            if operation in WITH_MODELS:
                resolved = self.models.resolved(session, request)
                if resolved is None:
                    self._postpone(session, request)
                    return
                request = resolved
            plan = session.plan
            if plan is None or not plan.fits(request):
                plan = session.plan = self._plans.plan(request)
            received = self._received(session, Work(session.record, request, plan, now_s))
        except Exception as error:  # noqa: BLE001 -- the client gets it as its answer
            self._refuse(session, request, error)
            return
        self._counters.add("bytes_in", plan.payload_bytes, session.tenant)
        self.feed(received)

    def _received(self, session: Session, work: Work) -> event.Received:
        """A request for the machine: with its rights to be checked, and its digest if all of it is here."""
        request, plan, payload = work.request, work.plan, session.payload
        digest = None
        if request.placement is not None:
            work.shared = self._place_inputs(session, request.placement, work)
            digest = digest_of(self._input_views(work)) if work.inputs or not plan.inputs else b""
        elif payload is not None and not plan.references:
            digest = digest_of([payload])
        elif not plan.payload_bytes and not plan.references:
            digest = digest_of(())
        if request.output_uri:
            work.writes = self._normalised(request.output_uri)
        if self._users_roots and (plan.references or work.writes):
            work.store = self._store_of(session, work)
        if request.priority:
            work.priority = request.priority
        session.unanswered.add(request.id)
        return event.Received(work, digest, work.arrived_s, request.deadline_s)

    def _store_of(self, session: Session, work: Work) -> Store:
        """The storage of a session's user, for what a request names.

        Raises:
            RejectedError: nobody's tokens were handed over, or it names a file system that no setting names.
        """
        if session.user is None:
            raise RejectedError(
                "no-user-tokens",
                "this server reads and writes as the job's user, and this client handed no HDFS token over",
                cure="give the job a token and ACCEL_SERVICE_USER or ACCEL_SERVER_CA_FILE: docs/security.md",
            )
        for uri in (*work.plan.needs[0].reads, work.writes):
            if uri and not uri.startswith(self._users_roots):
                raise RejectedError(
                    "forbidden-uri",
                    f"{shown(uri)}: in no file system of this site, {', '.join(self._users_roots)}",
                    cure=USERS_CURE,
                )
        return session.user.store

    def _place_inputs(self, session: Session, placement: Placement, work: Work) -> SharedInputs:
        """Where the inputs lie in shared memory; whether they may lie there is for the machine to say."""
        if work.plan.references:
            raise RejectedError("bad-placement", "inputs by reference and in shared memory do not mix")
        specs = work.plan.specs
        ends = [at + spec.nbytes for at, spec in zip(placement.offsets, specs, strict=True)]
        end = max(ends, default=0)
        grant = session.record.grants.get(placement.segment)
        if grant is not None and grant.is_known and end <= grant.n_bytes:
            work.segment = grant
            work.inputs = _areas(grant.id, placement.offsets, specs)
        return SharedInputs(placement.segment, end)

    def _input_views(self, work: Work) -> list[memoryview]:
        view = work.segment.memory.view if work.inputs and work.segment is not None else memoryview(b"")
        return [view[area.offset : area.offset + area.spec.nbytes] for area in work.inputs]

    def _refuse(self, session: Session, request: Request, error: Exception) -> None:
        """Answer a request that is not sound, without the machine."""
        if not isinstance(error, AccelError):
            logger.error("a request could not be taken", exc_info=error)
        session.unanswered.discard(request.id)
        self._say_failure(session, request.id, failure_of(error), request)
        session.skip()

    def _postpone(self, session: Session, request: Request) -> None:
        """Have a client ask again soon: the model of its request is being read."""
        session.unanswered.discard(request.id)
        self._counters.add("busy", 1, session.tenant)
        session.send(Busy(request.id, RETRY_S, "its model is being read"))
        session.skip()

    def _arrived(self, session: Session, _: PayloadComplete) -> None:
        """The payload of a request is complete."""
        work = session.work
        session.request = None
        if work is None or work.state is not WorkState.RECEIVING or work.segment is None:
            return
        views = work.plan.payload_views(work.segment.memory.view)
        now_s = time.monotonic()
        if not work.plan.references:
            self._is_ready(work, now_s)
        self.feed(event.Arrived(work, digest_of(views, work.stamps), now_s))

    def _cancelled(self, session: Session, message: Cancel) -> None:
        """The client no longer wants an answer."""
        self.feed(event.RequestCancelled(session.record, message.id, time.monotonic()))

    def _memory_wanted(self, session: Session, request: Lend) -> None:
        """The client wants shared memory."""
        self.feed(event.MemoryWanted(session.record, request.id, request.n_bytes, time.monotonic()))

    def _memory_returned(self, session: Session, message: GiveBack) -> None:
        """The client does not read a segment any more."""
        self.feed(event.MemoryReturned(session.record, message.segment, time.monotonic()))

    def moved(self, session: Session) -> None:
        """Some bytes of a large payload or reply have moved."""
        self.feed(event.Moved(session.record, time.monotonic()))

    def sent(self, reply: int, was_sent: bool) -> None:
        """A reply has left, or never will."""
        self.feed(event.Sent(reply, was_sent, time.monotonic()))

    # From workers

    def worker_started(self, process: WorkerProcess, device: str, kind: str) -> None:
        """A worker takes jobs from now on."""
        logger.info("worker %d computes on %s", process.worker, device)
        self.can_compute |= kind in self.device_kinds
        self.feed(event.WorkerStarted(process, kind, time.monotonic()))

    def worker_done(self, process: WorkerProcess, answers: list[JobDone]) -> None:
        """All answers of a worker to one batch, in its order."""
        now_s = time.monotonic()
        works = self.machine.works
        results = []
        for done in answers:
            work = works.get(done.job)
            if not isinstance(work, Work):
                continue
            work.done = done
            results.append(_result_of(work, done))
            if self._trace is not None:
                self._trace_compute(process.worker, work, done, now_s)
        self.feed(event.Finished(process, tuple(results), now_s))

    def worker_lost(self, process: WorkerProcess, lost: tuple[Lost, ...], reason: str = "") -> None:
        """A worker has ended, so nobody writes to the memory of its jobs any more, or was given up.

        Args:
            process: with its fate and detail.
            lost: the jobs it had not answered.
            reason: for people, in place of its fate.
        """
        text = f"the worker on {process.device} {process.fate}"
        text = reason or (f"{text}: {process.detail}" if process.detail else text)
        code = "gpu-failed" if process.fate == "broke" else "worker-lost"
        works = self.machine.works
        records = [
            event.LostWork(works[loss.job], loss.overwritten, loss.is_suspect)
            for loss in lost
            if loss.job in works
        ]
        for each in records:
            work = each.work
            assert isinstance(work, Work)
            _note(work.owner.name, work.request, f"lost its worker process: {text}")
        now_s, is_running = time.monotonic(), process.is_unkillable
        self.feed(event.WorkerLost(process, tuple(records), text, now_s, code, is_running))

    def worker_ended(self, process: WorkerProcess) -> None:
        """A worker that was given up has ended after all."""
        self.feed(event.WorkerEnded(process, time.monotonic()))

    def measured(self, found: Measured) -> None:
        """A calibration has found how fast a device is, now or for an earlier server."""
        kind = found.device.partition(":")[0]
        amount = float(found.flops or found.n_bytes)
        self.feed(event.RateMeasured(found.operation, amount, kind, found.seconds, time.monotonic()))

    # Memory

    def _create_segment(self, command: order.CreateSegment) -> None:
        now_s = time.monotonic()
        segment = command.segment
        memory = self._buffers.create(segment.id, segment.n_bytes)
        if memory is None:
            self._events.append(event.SegmentFailed(segment, now_s))
            return
        segment.memory = memory
        memory.is_shared = isinstance(segment, Grant)
        self._events.append(event.SegmentCreated(segment, now_s))

    def _destroy_segment(self, command: order.DestroySegment) -> None:
        """Have every worker unmap it, now or as soon as it has answered what it is at.

        Its pages are free only then; who needs them now gives them back with ``MADV_REMOVE``.
        """
        number = command.segment.id
        command.segment.memory = None
        self._buffers.destroy(number)
        process: Any
        for process in self.machine.workers:
            process.drop(number)

    def _grant_memory(self, command: order.GrantMemory) -> None:
        session = command.connection.session
        if session is not None:
            session.has_shared_memory = True
            grant = command.segment
            session.send(Lent(command.request_id, grant.id, grant.n_bytes), fd=grant.memory.fd)

    # The way of a request

    def _admit(self, command: order.Admit) -> None:
        work = command.work
        assert isinstance(work, Work)
        session = work.connection.session
        if session is not None and not work.plan.payload_bytes and work.request.placement is None:
            session.go_on(work.request_id)

    def _receive(self, command: order.Receive) -> None:
        work = command.work
        assert isinstance(work, Work)
        session = work.connection.session
        if work.request.placement is not None:
            self._is_ready(work, time.monotonic())
            if session is not None:
                session.go_on(work.request_id)
            return
        plan = work.plan
        work.segment = segment = command.segment
        if plan.specs:
            work.inputs = plan.areas(segment.id)
        views = plan.payload_views(segment.memory.view)
        is_whole = not plan.payload_bytes
        if session is None:
            work.is_without_inputs = not is_whole
        else:
            is_whole = is_whole or session.payload is not None
            session.receive(work, views)
        if not is_whole:
            return
        now_s = time.monotonic()
        if plan.references:
            self._events.append(event.Arrived(work, digest_of(views, work.stamps), now_s))
        else:
            self._is_ready(work, now_s)

    def _skip(self, command: order.Skip) -> None:
        session = command.connection.session
        if session is not None and session.request is not None and session.request.id == command.request_id:
            session.skip()

    def _look(self, command: order.Look) -> None:
        work = command.work
        assert isinstance(work, Work)
        self._storage.look(work, self._plans, functools.partial(self._looked, work))

    def _looked(self, work: Work, found: Any, took_s: float) -> None:
        if isinstance(found, Exception):
            self._storage_failed(work, found)
            return
        work.stamps, work.plan = found.stamps, found.plan
        needs = found.plan.needs[work.request.keep_inputs]
        self.feed(event.Looked(work, found.digest, needs, time.monotonic()))

    def _look_at_output(self, command: order.LookAtOutput) -> None:
        work = command.work
        assert isinstance(work, Work)

        def then(found: Any, took_s: float) -> None:
            stamp = None if isinstance(found, Exception) else found
            self.feed(event.OutputLooked(work, stamp, time.monotonic()))

        self._storage.look_at_output(work.request.output_uri, then, work.store)

    def _read(self, command: order.Read) -> None:
        work = command.work
        assert isinstance(work, Work)
        work.segment = segment = command.segment
        self._storage.read(work, segment.memory.view, functools.partial(self._inputs_read, work))

    def _inputs_read(self, work: Work, found: Any, took_s: float) -> None:
        if isinstance(found, Exception):
            self._storage_failed(work, found)
            return
        now_s = time.monotonic()
        work.inputs = found.areas
        self._counters.add("bytes_in", found.bytes_in - work.bytes_in, work.owner.name)
        work.bytes_in = found.bytes_in
        work.read_s = took_s
        work.ready_s = now_s
        if self._trace is not None:
            name = work.request.operation
            self._trace.span("read", "storage", name, now_s - took_s, now_s, id=work.id)
        self.feed(event.InputsRead(work, found.bytes_in, now_s))

    def _is_ready(self, work: Work, now_s: float) -> None:
        """The inputs came by value and are complete."""
        work.ready_s = now_s
        work.read_s = now_s - work.arrived_s
        if self._trace is not None:
            name = work.request.operation
            self._trace.span("read", "session", name, work.arrived_s, now_s, id=work.id)

    def _run(self, command: order.Run) -> None:
        now_s = time.monotonic()
        process = command.worker
        device, is_alone = process.device, command.is_alone
        jobs = []
        for work in command.works:
            assert isinstance(work, Work)
            if work.is_without_inputs:
                raise RuntimeError("the inputs were lost with their connection")
            work.started_s = now_s
            work.device = device
            request, outputs = work.request, work.output_segment
            assert outputs is not None
            jobs.append(
                Job(
                    work.id,
                    request.operation,
                    request.params,
                    work.inputs,
                    outputs.id,
                    work.output_offset,
                    work.output_bytes,
                    not request.keep_inputs,
                    work.plan.likeness,
                    work.due_s,
                    work.name,
                    is_alone,
                )
            )
        process.send(jobs, command.expected_s)

    def _trace_compute(self, worker: int, work: Work, done: JobDone, now_s: float) -> None:
        assert self._trace is not None
        name = work.request.operation
        self._trace.span("queue", "queue", name, work.ready_s, work.started_s, id=work.id)
        took_s = max(done.compute_s, done.kernel_s)
        self._trace.span("compute", f"worker {worker}", name, now_s - took_s, now_s, id=work.id)

    def _write(self, command: order.Write) -> None:
        work = command.work
        assert isinstance(work, Work)
        assert work.done is not None
        outputs = outputs_of(work.done.tensors, lambda segment: self._buffers.by_id[segment].view)
        then = functools.partial(self._written, work)
        self._storage.write(work.request.output_uri, outputs, then, work.store)

    def _written(self, work: Work, found: Any, took_s: float) -> None:
        if isinstance(found, Exception):
            self._storage_failed(work, found)
            return
        now_s = time.monotonic()
        work.write_s = took_s
        if self._trace is not None:
            name = work.request.operation
            self._trace.span("write", "storage", name, now_s - took_s, now_s, id=work.id)
        self.feed(event.Written(work, found, now_s))

    def _storage_failed(self, work: Work, error: Exception) -> None:
        if not isinstance(error, AccelError):
            logger.error("a request broke the server's own code", exc_info=error)
        self.feed(event.StorageFailed(work, failure_of(error), time.monotonic()))

    def _release(self, command: order.Release) -> None:
        work = command.work
        assert isinstance(work, Work)
        work.payload = ()

    # Answers

    def _reply_result(self, command: order.ReplyResult) -> None:
        work = command.work
        assert isinstance(work, Work)
        result = work.result or self._make_result(work)
        session = command.connection.session
        if session is None:
            if command.reply:
                self.sent(command.reply, False)
            return
        request_id = command.request_id
        session.unanswered.discard(request_id)
        self.n_done += 1
        if command.is_duplicate:
            self._count_duplicate("done")
        else:
            self._counters.answered(
                work.request.operation, "done", session.tenant, result.seconds, result.bytes_out
            )
            use = session.use
            if not use.n_answered:
                use.begin(work.request.key)
            use.n_answered += 1
            if work.device.startswith("cpu"):
                use.cpu_s += result.seconds["compute"]
            else:
                use.gpu_s += result.seconds["compute"]
            use.read_bytes += result.bytes_in
            use.written_bytes += result.bytes_out
        if result.id != request_id:
            result = result._replace(id=request_id)
        if command.segment:
            assert work.done is not None
            offsets = tuple([area.offset for _, area in work.done.tensors])
            placement = Placement(command.segment, offsets)
            session.send(result._replace(placement=placement), (), command.reply)
        else:
            session.send(result, work.payload, command.reply)

    def _make_result(self, work: Work) -> Result:
        """The message for the client, and the payload that goes with it."""
        done, request = work.done, work.request
        assert done is not None
        bytes_out = 0
        tensors: list[NamedTensor] = []
        payload: list[memoryview] = []
        by_id, is_written = self._buffers.by_id, bool(request.output_uri)
        for name, area in done.tensors:
            offset, spec = area.offset, area.spec
            n_bytes = spec.nbytes
            bytes_out += n_bytes
            if not is_written:
                tensors.append(NamedTensor(name, spec))
                payload.append(by_id[area.segment].view[offset : offset + n_bytes])
        queue_s = work.started_s - work.ready_s
        seconds = {
            "read": work.read_s,
            "queue": queue_s if queue_s > 0.0 else 0.0,
            "compute": done.compute_s,
            "write": work.write_s,
            "total": time.monotonic() - work.arrived_s,
        }
        if "decoder_failure" in done.info:
            self._counters.add("decoder_failures")
        work.payload = tuple(payload)
        work.result = Result(
            request.id,
            _with_conversions(done.info, work.plan.converted),
            tuple(tensors),
            self._server,
            work.device,
            seconds,
            work.bytes_in,
            bytes_out,
        )
        return work.result

    def _repeat(self, command: order.Repeat) -> None:
        answer = self._answers[command.answer]
        session = command.connection.session
        if session is None:
            self.sent(command.reply, False)
            return
        session.unanswered.discard(command.request_id)
        self._count_duplicate("done")
        result = answer.result._replace(id=command.request_id)
        session.send(result, answer.payload, command.reply)

    def _reply_failure(self, command: order.ReplyFailure) -> None:
        session = command.connection.session
        if session is None:
            return
        work = command.work
        request = work.request if isinstance(work, Work) else session.request
        session.unanswered.discard(command.request_id)
        self._say_failure(session, command.request_id, command.failure, request, command.is_duplicate)

    def _say_failure(
        self,
        session: Session,
        request_id: int,
        failure: Failure,
        request: Request | None,
        is_duplicate: bool = False,
    ) -> None:
        outcome = "rejected" if failure.kind == "rejected" else "failed"
        kind, code, message, cure, transient = failure
        text = _printable(message)
        if is_duplicate:
            self._count_duplicate(outcome)
        else:
            operation = request.operation if request is not None else ""
            known = operation if operation in OPERATIONS else "unknown"
            self._counters.answered(known, outcome, session.tenant, {}, 0)
            use = session.use
            if not use.n_answered and request is not None:
                use.begin(request.key)
            use.n_answered += 1
            use.n_failed += 1
        if request is not None:
            _note(session.tenant, request, f"failed: {code}: {text}")
        session.send(Failed(request_id, kind, code, text[:_MAX_MESSAGE], cure[:_MAX_CURE], transient))

    def _reply_busy(self, command: order.ReplyBusy) -> None:
        session = command.connection.session
        if session is None:
            return
        if command.request_id in session.unanswered:
            session.unanswered.discard(command.request_id)
            self._counters.add("busy", 1, session.tenant)
        session.send(Busy(command.request_id, command.retry_after_s, command.reason[:_MAX_REASON]))

    def _reply_cancelled(self, command: order.ReplyCancelled) -> None:
        session = command.connection.session
        if session is not None:
            session.unanswered.discard(command.request_id)
            self._counters.add("cancelled")
            session.send(Cancelled(command.request_id))

    def _remember(self, command: order.Remember) -> None:
        work = command.work
        assert isinstance(work, Work)
        result = work.result or self._make_result(work)
        payload = work.payload
        if command.is_copy:
            payload = tuple([memoryview(bytes(part)) for part in payload])
        self._answers[command.answer] = _Answer(result, payload)

    def _forget(self, command: order.Forget) -> None:
        self._answers.pop(command.answer, None)

    def _count_duplicate(self, outcome: str) -> None:
        self._counters.add(outcome)
        self._counters.add("duplicates")

    # Everything else

    def _disconnect(self, command: order.Disconnect) -> None:
        session = command.connection.session
        if session is not None:
            logger.warning("connection of tenant %s cut off: %s", session.tenant, command.reason)
            session.disconnect(command.code, command.reason)

    def _wake_at(self, command: order.WakeAt) -> None:
        """A tick that comes too early is harmless, so only an earlier time needs another timer."""
        at_s = command.at_s
        if self._timer is not None:
            if self._wakes_at_s <= at_s:
                return
            self._timer.cancel()
        self._wakes_at_s = at_s
        self._timer = self._loop.call_at(at_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.feed(event.Tick(time.monotonic()))

    def _drained(self, _: order.Drained) -> None:
        self.on_drained()

    def report_progress(self) -> None:
        """Tell everyone who has waited for a while what the server is at."""
        now_s = time.monotonic()
        for connection, request_id, stage, since_s in list(self.machine.waiting()):
            age_s = now_s - since_s
            session = connection.session
            if session is None or session.has_outgoing:
                continue
            if not session.wants_progress and age_s < self._config.progress_interval_s:
                continue
            session.send(Progress(request_id, stage, round(age_s, 3)))


def _result_of(work: Work, done: JobDone) -> event.WorkResult:
    bytes_out = 0
    is_aligned = True
    for _, area in done.tensors:
        bytes_out += area.spec.nbytes
        if area.offset % ALIGNMENT_BYTES:
            is_aligned = False
    tensors = done.tensors
    segments = (tensors[0][1].segment,) if len(tensors) == 1 else tuple({area.segment for _, area in tensors})
    n_bytes = _PER_TENSOR_BYTES * len(tensors) + (len(repr(done.info)) if done.info else 0)
    return event.WorkResult(work, done.error, done.compute_s, bytes_out, n_bytes, segments, is_aligned)


def _areas(segment: int, offsets: tuple[int, ...], specs: tuple[TensorSpec, ...]) -> tuple[Area, ...]:
    return tuple([Area(segment, at, spec) for at, spec in zip(offsets, specs, strict=True)])


def _with_conversions(info: Mapping[str, Any], converted: str) -> Mapping[str, Any]:
    """The facts of a computation, with what reading its inputs changed."""
    if not converted:
        return info
    return {
        **info,
        "converted": "; ".join([converted, *([info["converted"]] if "converted" in info else [])]),
    }


def _nothing() -> None:
    """Nobody waits for this."""
