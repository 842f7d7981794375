"""The shell around the request machine: what happens becomes an event, what the machine orders is done.

All of it happens in the loop's thread.  The tables here say which object a number of the machine stands for:
connections, works, remembered answers; what to do with them is decided by `core.requests`.
"""

from __future__ import annotations

import collections
import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from yarn_accel.core.requests import commands as order
from yarn_accel.core.requests import events as event
from yarn_accel.core.requests.machine import RequestMachine
from yarn_accel.errors import AccelError, RejectedError
from yarn_accel.operations.registry import OPERATIONS
from yarn_accel.operations.registry import get as find_operation
from yarn_accel.pipeline.answers import Responder
from yarn_accel.pipeline.command_failures import connection_to_end, events_of
from yarn_accel.pipeline.machine_settings import machine_settings
from yarn_accel.pipeline.plans import Plans
from yarn_accel.pipeline.storage import outputs_of
from yarn_accel.pipeline.work import Work, digest_of, failure_of
from yarn_accel.pipeline.workers.jobs import Area, Job
from yarn_accel.wire import (
    Lend,
    Placement,
    Progress,
    Request,
    StatsRequest,
    TensorSpec,
)

if TYPE_CHECKING:
    from yarn_accel.pipeline.buffers import Buffers
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.connections import Session
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.pipeline.loop import EventLoop, Timer
    from yarn_accel.pipeline.own_filesystem import OwnFilesystem
    from yarn_accel.pipeline.storage import Storage
    from yarn_accel.pipeline.trace import Trace
    from yarn_accel.pipeline.workers.jobs import JobDone, Lost, Measured
    from yarn_accel.pipeline.workers.supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

_PER_TENSOR_BYTES = 256
_ALIGNMENT_BYTES = 64


class RequestEngine:
    """Requests from their header to their answer.

    Args:
        config: limits and shares.
        filesystem: what URIs and prefixes without a host mean.
        loop: the thread all of this belongs to.
        buffers: the memory.
        storage: reads and writes by URI.
        counters: what is counted.
        server: how the server is named in results.
        trace: where spans go; None: nowhere.

    Attributes:
        workers: who computes; set before anything else is called.
        sessions: the open connections, by number.
        on_drained: called when a drain is over.
        stats_wanted: answers a client that wants the counters.
        can_compute: whether a worker has started.
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
        self.workers: WorkerSupervisor
        self.sessions: dict[int, Session] = {}
        self.machine = RequestMachine(machine_settings(config, filesystem))
        self.on_drained: Callable[[], None] = _nothing
        self.stats_wanted: Callable[[Session, StatsRequest], None] = _nothing
        self.can_compute = False
        self._config = config
        self._loop = loop
        self._buffers = buffers
        self._storage = storage
        self._counters = counters
        self._trace = trace
        self._normalised = filesystem.uri
        self._plans = Plans(
            find_operation, self._normalised, config.max_request_bytes, lambda: self.workers.device_kinds
        )
        self._works: dict[int, Work] = {}
        self._waiting: dict[tuple[int, int], Work] = {}
        self._events: collections.deque[event.Event] = collections.deque()
        self._is_feeding = False
        self._wakes_at_s = 0.0
        self._timer: Timer | None = None
        self._responder = Responder(self.sessions, self._works, buffers, counters, server, self.sent)
        self._handlers = self._make_handlers()

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
                        logger.exception("could not carry out %s", command)
                        self._fail(command, error)
        finally:
            self._is_feeding = False

    def _fail(self, command: order.Command, error: Exception) -> None:
        """End what waits for a command that broke."""
        session = self.sessions.get(connection_to_end(command))
        if session is not None:
            try:
                session.disconnect("internal-error", "the server broke")
            except Exception:
                logger.exception("a connection could not be ended in order")
                session.close()
        if isinstance(command, order.Receive):
            # Its inputs are not there, so it must not be computed for others who wait for it.
            self._works.pop(command.work, None)
        # A worker that has got them writes to their memory: they are lost when it has ended.
        if not (isinstance(command, order.Run) and self.workers.withdraw(command.worker, command.works)):
            self._events.extend(events_of(command, error, time.monotonic()))

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        """By command, who carries it out."""
        return {
            **self._responder.handlers,
            order.Admit: self._admit,
            order.CreateSegment: self._create_segment,
            order.DestroySegment: self._destroy_segment,
            order.Disconnect: self._disconnect,
            order.Drained: self._drained,
            order.Look: self._look,
            order.LookAtOutput: self._look_at_output,
            order.Read: self._read,
            order.Receive: self._receive,
            order.Release: self._release,
            order.Run: self._run,
            order.Skip: self._skip,
            order.WakeAt: self._wake_at,
            order.Write: self._write,
        }

    @property
    def n_done(self) -> int:
        """Requests answered with a result so far."""
        return self._responder.n_done

    # What sessions report

    def opened(self, session: Session) -> None:
        """A client has proved its credential."""
        self._counters.add("connections")
        logger.info("tenant %s connected over %s", session.tenant, session.carrier.kind)
        self.feed(event.ConnectionOpened(session.id, session.tenant, time.monotonic()))

    def closed(self, session: Session) -> None:
        """A connection is over."""
        self.sessions.pop(session.id, None)
        if session.how_ended != "closed":
            self._counters.add(session.how_ended)
        for request_id in session.unanswered:
            self._waiting.pop((session.id, request_id), None)
        self._counters.add("abandoned", len(session.unanswered))
        session.unanswered.clear()
        if session.is_open:
            self.feed(event.ConnectionClosed(session.id, time.monotonic()))

    def requested(self, session: Session, request: Request) -> None:
        """A request's header has arrived."""
        now_s = time.monotonic()
        operation = request.operation
        # Only names we know: a client must not be able to make the table of counters grow.
        self._counters.requested(operation if operation in OPERATIONS else "unknown", session.tenant)
        try:
            plan = session.plan
            if plan is None or not plan.fits(request):
                plan = session.plan = self._plans.plan(request)
            received = self._received(session, request, Work(session, request, plan, now_s))
        except Exception as error:  # noqa: BLE001 -- the client gets it as its answer
            self._refuse(session, request, error)
            return
        self._counters.add("bytes_in", plan.payload_bytes, session.tenant)
        self.feed(received)

    def _received(self, session: Session, request: Request, work: Work) -> event.Received:
        """What the machine must know of a request."""
        plan, payload = work.plan, session.payload
        shared = digest = None
        if request.placement is not None:
            shared = self._place_inputs(session, request.placement, work)
            digest = digest_of(self._input_views(work)) if work.inputs or not plan.inputs else b""
        elif payload is not None and not plan.references:
            digest = digest_of([payload])
        elif not plan.payload_bytes and not plan.references:
            digest = digest_of(())
        session.unanswered.add(request.id)
        self._waiting[session.id, request.id] = work
        return event.Received(
            session.id,
            request.id,
            request.key,
            plan.needs[request.keep_inputs],
            digest,
            work.arrived_s,
            self._normalised(request.output_uri) if request.output_uri else "",
            request.priority,
            request.deadline_s,
            shared,
        )

    def _place_inputs(self, session: Session, placement: Placement, work: Work) -> event.SharedInputs:
        """Where the inputs lie in shared memory; whether they may lie there is for the machine to say."""
        if work.plan.references:
            raise RejectedError("bad-placement", "inputs by reference and in shared memory do not mix")
        specs = work.plan.specs
        ends = [at + spec.nbytes for at, spec in zip(placement.offsets, specs, strict=True)]
        segment = self._buffers.by_id.get(placement.segment)
        if (
            segment is not None
            and placement.segment in session.shared
            and max(ends, default=0) <= segment.n_bytes
        ):
            work.segment = segment.id
            work.inputs = _areas(segment.id, placement.offsets, specs)
        return event.SharedInputs(placement.segment, max(ends, default=0))

    def _refuse(self, session: Session, request: Request, error: Exception) -> None:
        """Answer a request that is not sound, without the machine."""
        if not isinstance(error, AccelError):
            logger.error("a request could not be taken", exc_info=error)
        session.unanswered.discard(request.id)
        failure = failure_of(error)
        self._responder.fail(session, request.id, failure, request.operation)
        session.skip()

    def arrived(self, session: Session) -> None:
        """The payload of a request is complete."""
        work = self._works.get(session.work)
        session.request = None
        if work is None:
            return
        views = work.plan.payload_views(self._buffers.by_id[work.segment].view)
        now_s = time.monotonic()
        if not work.plan.references:
            self._is_ready(work, now_s)
        self.feed(event.Arrived(work.id, digest_of(views, work.stamps), now_s))

    def cancelled(self, session: Session, request_id: int) -> None:
        """The client no longer wants an answer."""
        self.feed(event.RequestCancelled(session.id, request_id, time.monotonic()))

    def memory_wanted(self, session: Session, request: Lend) -> None:
        """The client wants shared memory."""
        self.feed(event.MemoryWanted(session.id, request.id, request.n_bytes, time.monotonic()))

    def memory_returned(self, session: Session, segment: int) -> None:
        """The client does not read a segment any more."""
        self.feed(event.MemoryReturned(session.id, segment, time.monotonic()))

    def moved(self, session: Session) -> None:
        """Some bytes of a large payload or reply have moved."""
        self.feed(event.Moved(session.id, time.monotonic()))

    def sent(self, reply: int, was_sent: bool) -> None:
        """A reply has left, or never will."""
        self.feed(event.Sent((reply,), was_sent, time.monotonic()))

    # What workers report

    def worker_started(self, worker: int, device: str, kind: str) -> None:
        """A worker takes jobs."""
        logger.info("worker %d computes on %s", worker, device)
        self.can_compute = True
        self.feed(event.WorkerStarted(worker, kind, time.monotonic()))

    def worker_done(self, worker: int, answers: list[JobDone]) -> None:
        """A worker has answered a batch."""
        now_s = time.monotonic()
        results = []
        for done in answers:
            work = self._works.get(done.job)
            if work is None:
                continue
            work.done = done
            results.append(_result_of(done))
            if self._trace is not None:
                self._trace_compute(worker, work, done, now_s)
        self.feed(event.Finished(worker, tuple(results), now_s))

    def worker_lost(self, worker: int, device: str, fate: str, lost: tuple[Lost, ...], detail: str) -> None:
        """A worker has ended."""
        text = f"the worker on {device} {fate}"
        text = f"{text}: {detail}" if detail else text
        code = "gpu-failed" if fate == "broke" else "worker-lost"
        works = tuple([event.LostWork(loss.job, loss.overwritten, loss.is_suspect) for loss in lost])
        self.feed(event.WorkerLost(worker, works, text, time.monotonic(), code))

    def measured(self, found: Measured) -> None:
        """A calibration has found how fast a device is."""
        kind = found.device.partition(":")[0]
        amount = float(found.flops or found.n_bytes)
        self.feed(event.RateMeasured(found.operation, amount, kind, found.seconds, time.monotonic()))

    # Memory

    def _create_segment(self, command: order.CreateSegment) -> None:
        now_s = time.monotonic()
        number = command.segment
        if not self._buffers.create(number, command.n_bytes):
            self._events.append(event.SegmentFailed(number, now_s))
            return
        self._buffers.by_id[number].is_shared = bool(command.connection)
        self._events.append(event.SegmentCreated(number, now_s))

    def _destroy_segment(self, command: order.DestroySegment) -> None:
        self._buffers.destroy(command.segment)
        self.workers.drop_segment(command.segment)

    # The way of a request

    def _admit(self, command: order.Admit) -> None:
        work = self._adopt(command.work, command.connection, command.request_id)
        if work is not None and not work.plan.payload_bytes and work.request.placement is None:
            work.session.go_on(command.request_id)

    def _receive(self, command: order.Receive) -> None:
        number = command.work
        work = self._works.get(number)
        if work is None:
            work = self._adopt(number, command.connection, command.request_id)
        if work is None:
            return
        _set_output(work, command)
        session = work.session
        if work.request.placement is not None:
            self._is_ready(work, time.monotonic())
            session.go_on(command.request_id)
            return
        plan = work.plan
        work.segment = segment = command.segment
        if plan.specs:
            work.inputs = plan.areas(segment)
        is_whole = session.payload is not None or not plan.payload_bytes
        views = plan.payload_views(self._buffers.by_id[segment].view)
        session.receive(number, views)
        if not is_whole:
            return
        now_s = time.monotonic()
        if plan.references:
            self._events.append(event.Arrived(number, digest_of(views, work.stamps), now_s))
        else:
            self._is_ready(work, now_s)

    def _adopt(self, number: int, connection: int, request_id: int) -> Work | None:
        """The request just received, or one whose connection waits since then, is a work from now on."""
        work = self._waiting.pop((connection, request_id), None)
        if work is not None:
            work.id = number
            self._works[number] = work
        return work

    def _skip(self, command: order.Skip) -> None:
        self._waiting.pop((command.connection, command.request_id), None)
        session = self.sessions.get(command.connection)
        if session is not None and session.request is not None and session.request.id == command.request_id:
            session.skip()

    def _look(self, command: order.Look) -> None:
        work = self._works[command.work]
        self._storage.look(work, self._plans, functools.partial(self._looked, work))

    def _looked(self, work: Work, found: Any, took_s: float) -> None:
        if isinstance(found, Exception):
            self._storage_failed(work, found)
            return
        work.stamps, work.plan = found.stamps, found.plan
        needs = found.plan.needs[work.request.keep_inputs]
        self.feed(event.Looked(work.id, found.digest, needs, time.monotonic()))

    def _look_at_output(self, command: order.LookAtOutput) -> None:
        work = self._works[command.work]

        def then(found: Any, took_s: float) -> None:
            stamp = None if isinstance(found, Exception) else found
            self.feed(event.OutputLooked(work.id, stamp, time.monotonic()))

        self._storage.look_at_output(work.request.output_uri, then)

    def _read(self, command: order.Read) -> None:
        work = self._works[command.work]
        work.segment = command.segment
        _set_output(work, command)
        view = self._buffers.by_id[command.segment].view
        self._storage.read(work, view, functools.partial(self._inputs_read, work))

    def _inputs_read(self, work: Work, found: Any, took_s: float) -> None:
        if isinstance(found, Exception):
            self._storage_failed(work, found)
            return
        now_s = time.monotonic()
        work.inputs = found.areas
        self._counters.add("bytes_in", found.bytes_in - work.bytes_in, work.session.tenant)
        work.bytes_in = found.bytes_in
        work.read_s = took_s
        work.ready_s = now_s
        if self._trace is not None:
            name = work.request.operation
            self._trace.span("read", "storage", name, now_s - took_s, now_s, id=work.id)
        self.feed(event.InputsRead(work.id, found.bytes_in, now_s))

    def _run(self, command: order.Run) -> None:
        now_s = time.monotonic()
        device = self.workers.device_of(command.worker)
        jobs = []
        for number in command.works:
            work = self._works[number]
            work.started_s = now_s
            work.device = device
            request = work.request
            jobs.append(
                Job(
                    number,
                    request.operation,
                    request.params,
                    work.inputs,
                    work.output_segment,
                    work.output_offset,
                    work.output_bytes,
                    not request.keep_inputs,
                    work.plan.likeness,
                    work.due_s,
                    (work.session.tenant, request.key),
                    command.is_alone,
                )
            )
        self.workers.send(command.worker, jobs, command.expected_s)

    def _write(self, command: order.Write) -> None:
        work = self._works[command.work]
        assert work.done is not None
        outputs = outputs_of(work.done.tensors, lambda segment: self._buffers.by_id[segment].view)
        self._storage.write(work.request.output_uri, outputs, functools.partial(self._written, work))

    def _written(self, work: Work, found: Any, took_s: float) -> None:
        if isinstance(found, Exception):
            self._storage_failed(work, found)
            return
        now_s = time.monotonic()
        work.write_s = took_s
        if self._trace is not None:
            name = work.request.operation
            self._trace.span("write", "storage", name, now_s - took_s, now_s, id=work.id)
        self.feed(event.Written(work.id, found, now_s))

    def _storage_failed(self, work: Work, error: Exception) -> None:
        if not isinstance(error, AccelError):
            logger.error("a request broke the server's own code", exc_info=error)
        self.feed(event.StorageFailed(work.id, failure_of(error), time.monotonic()))

    def _release(self, command: order.Release) -> None:
        work = self._works.pop(command.work, None)
        if work is not None:
            work.payload = ()

    # Everything else

    def _disconnect(self, command: order.Disconnect) -> None:
        session = self.sessions.get(command.connection)
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
            session = self.sessions.get(connection)
            if session is None or session.has_outgoing:
                continue
            if not session.wants_progress and age_s < self._config.progress_interval_s:
                continue
            session.send(Progress(request_id, stage, round(age_s, 3)))

    def _is_ready(self, work: Work, now_s: float) -> None:
        """The inputs came by value and are complete."""
        work.ready_s = now_s
        work.read_s = now_s - work.arrived_s
        if self._trace is not None:
            name = work.request.operation
            self._trace.span("read", "session", name, work.arrived_s, now_s, id=work.id)

    def _trace_compute(self, worker: int, work: Work, done: JobDone, now_s: float) -> None:
        assert self._trace is not None
        name = work.request.operation
        self._trace.span("queue", "queue", name, work.ready_s, work.started_s, id=work.id)
        took_s = max(done.compute_s, done.kernel_s)
        self._trace.span("compute", f"worker {worker}", name, now_s - took_s, now_s, id=work.id)

    def _input_views(self, work: Work) -> list[memoryview]:
        view = self._buffers.by_id[work.segment].view if work.inputs else memoryview(b"")
        return [view[area.offset : area.offset + area.spec.nbytes] for area in work.inputs]


def _set_output(work: Work, command: order.Receive | order.Read) -> None:
    """Where the outputs of a work go."""
    work.output_segment = command.output_segment
    work.output_offset = command.output_offset
    work.output_bytes = command.output_bytes


def _result_of(done: JobDone) -> event.WorkResult:
    bytes_out = 0
    is_aligned = True
    for _, area in done.tensors:
        bytes_out += area.spec.nbytes
        if area.offset % _ALIGNMENT_BYTES:
            is_aligned = False
    tensors = done.tensors
    segments = (tensors[0][1].segment,) if len(tensors) == 1 else tuple({area.segment for _, area in tensors})
    failure = event.Failure(*done.error) if done.error is not None else None
    n_bytes = _PER_TENSOR_BYTES * len(tensors) + (len(repr(done.info)) if done.info else 0)
    return event.WorkResult(done.job, failure, done.compute_s, bytes_out, n_bytes, segments, is_aligned)


def _areas(segment: int, offsets: tuple[int, ...], specs: tuple[TensorSpec, ...]) -> tuple[Area, ...]:
    return tuple([Area(segment, at, spec) for at, spec in zip(offsets, specs, strict=True)])


def _nothing(*_: Any) -> None:
    """Nobody waits for this."""
