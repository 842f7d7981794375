"""The calls of one open connection: requests out, answers in, and what is still unanswered.

A channel ends with its connection; `Client` opens the next one.
"""

from __future__ import annotations

import collections
import os
import time
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from yarn_accel.client.call_source import Outcome
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.memory import ReplyPool
from yarn_accel.client.payload import PayloadCodec
from yarn_accel.client.shared_memory import SharedMemory, SharedSegment, aligned
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.transport import PROBE_TOKEN, Transport
from yarn_accel.errors import (
    AccelError,
    LocalProtocolError,
    RejectedError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from yarn_accel.wire import (
    NEED_DATA,
    Busy,
    Cancel,
    Cancelled,
    Closed,
    Drain,
    Failed,
    GiveBack,
    Goodbye,
    Lend,
    Lent,
    PayloadComplete,
    Ping,
    Pong,
    Progress,
    Result,
    Stats,
    StatsRequest,
    TensorSpec,
)

#: Begins the reason of a `Busy` that asks for the same call at once: a worker was lost with its inputs.
_AGAIN = "again:"
_MAX_AGAIN = 8
_NO_PAYLOAD = memoryview(b"")


class _Open(NamedTuple):
    """A call that was sent, the shared memory it uses, and how often it had to be sent again."""

    call: Call
    segment: Optional[SharedSegment]
    n_again: int


class _Receiving(NamedTuple):
    """A result whose payload is on its way into `buffers`."""

    result: Result
    buffers: List[memoryview]


class ServerChannel:
    """An open connection and the calls on it; one thread's.

    Args:
        transport: the connection, just opened.
        pool: memory for results that come through the socket.
        copy_results: hand out results as memory of their own, never as views of shared memory.
        on_progress: called with the call, its stage and its seconds so far while the server works on it.

    Attributes:
        is_over: the connection was lost or closed; `unanswered` is what is left.
        is_draining: the server takes nothing new: it finishes what it has.
        shared_memory: the memory the server lends to this connection; None: it lends none.
    """

    def __init__(
        self,
        transport: Transport,
        pool: ReplyPool,
        copy_results: bool,
        on_progress: Optional[Callable[[Call, str, float], None]],
    ) -> None:
        welcome = transport.connection.welcome
        assert welcome is not None
        self.is_over = False
        self.is_draining = False
        self.packable = frozenset(welcome.packable)
        self.shared_memory = SharedMemory(welcome.max_lent_bytes) if transport.carrier == "memfd" else None
        self.transport = transport
        self._payload = PayloadCodec(self.shared_memory, pool, welcome.max_request_bytes, copy_results)
        self._on_progress = on_progress
        self._last_id = 0
        self._open: Dict[int, _Open] = {}
        self._abandoned: Dict[int, _Open] = {}
        self._again: Deque[_Open] = collections.deque()
        self._ready: Deque[Tuple[Call, Outcome]] = collections.deque()
        self._answers: Dict[int, Any] = {}
        self._lends: Dict[int, int] = {}
        self._receiving: Optional[_Receiving] = None
        self._progress: Deque[Tuple[Call, str, float]] = collections.deque()

    def close(self) -> None:
        """Close the connection; arrays handed out stay valid."""
        self.is_over = True
        self.transport.close()

    @property
    def n_in_flight(self) -> int:
        """Calls submitted whose outcome `next_outcome` has not given yet."""
        return len(self._open) + len(self._ready) + len(self._again)

    @property
    def has_answers(self) -> bool:
        """Whether `arrived` has something without receiving anything."""
        return bool(self._ready or self._again)

    def unanswered(self) -> List[Call]:
        """The calls that were submitted and not answered, oldest first."""
        return [entry.call for entry in (*self._open.values(), *self._again)]

    def submit(self, call: Call, is_blocking: bool = True) -> None:
        """Send a call; returns when its bytes have left, taking answers that arrive meanwhile.

        Args:
            is_blocking: False: return at once; `arrived` sends what has not left.

        Raises:
            UnavailableError: the server was lost.
        """
        if not self._open:
            self.transport.expect_answer()
        self._submit(call, 0, is_blocking)

    def await_bytes(self) -> bool:
        """Wait for a moment until bytes have moved; whether some have.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        if self.transport.connection.is_mid_frame and self._take_one(is_new=False):
            return True
        try:
            return self.transport.pump_briefly()
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            self.close()
            raise self._lost(error) from None

    def arrived(self, is_new: bool = True) -> Optional[Tuple[Call, Outcome]]:
        """The next answer if it is here, or None; never waits.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        while not self._ready:
            if self._again:
                entry = self._again.popleft()
                self._submit(entry.call, entry.n_again + 1, is_blocking=False)
            if not self._take_one(is_new):
                return None
        return self._ready.popleft()

    def next_outcome(self) -> Tuple[Call, Outcome]:
        """Wait for the next answer.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        while not self._ready:
            if self._again:
                entry = self._again.popleft()
                self._submit(entry.call, entry.n_again + 1)
            elif self._open:
                self._step()
            else:
                raise LocalProtocolError("nothing is in flight")
        return self._ready.popleft()

    def exchange(self, call: Call) -> Optional[Outcome]:
        """One call, start to end, while nothing else is under way; None when something is.

        What `submit` and `next_outcome` do, but it waits for bytes before it looks for events.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        if self._open or self._ready or self._again:
            return None
        self.transport.expect_answer()
        self._submit(call, 0)
        if not self._ready and not self.transport.connection.is_mid_frame:
            self._pump()
        return self.next_outcome()[1]

    def put_back(self, outcomes: Sequence[Tuple[Call, Outcome]]) -> None:
        """Let `next_outcome` give these later: they came while another was waited for."""
        self._ready.extend(outcomes)

    def cancel(self, call: Call) -> None:
        """Tell the server that a submitted call is no longer wanted."""
        for request_id, entry in self._open.items():
            if entry.call is call:
                self.transport.send(Cancel(request_id))
                return

    def abandon(self) -> None:
        """Nobody waits for what is under way any more: tell the server, and ignore its answers."""
        self._ready.clear()
        self._again.clear()
        try:
            for request_id in list(self._open):
                self.transport.send(Cancel(request_id))
                self._abandoned[request_id] = self._open.pop(request_id)
        except UnavailableError as error:
            reraise_from_signal(error)
            self.close()

    def stats(self) -> Dict[str, Any]:
        """The server's counters."""
        asked = self._new_id()
        self.transport.send(StatsRequest(asked))
        return dict(self._await_answer(asked))

    def ping(self) -> None:
        """Returns when the server has answered."""
        asked = self._new_id()
        self.transport.send(Ping(asked))
        self._await_answer(asked)

    def allocate(self, specs: Sequence[TensorSpec]) -> List[Tensor]:
        """Tensors to fill in, in memory shared with the server where there is some."""
        n_bytes = sum(aligned(spec.nbytes) for spec in specs)
        return self._payload.allocate(specs, self._segment(n_bytes) if n_bytes else None)

    def _take_one(self, is_new: bool) -> bool:
        """Take one event, or some bytes, without waiting; False when there is neither."""
        try:
            event = self.transport.next_event()
            if event is not NEED_DATA:
                self._take(event)
            elif not is_new:
                return False
            elif not self.transport.pump_now():
                if self._open:
                    self.transport.check()
                return False
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            self.close()
            raise self._lost(error) from None
        self._report_progress()
        return True

    def _report_progress(self) -> None:
        """Call the caller's function where an error of it is not taken for one of the connection."""
        while self._progress:
            progress = self._progress.popleft()
            if self._on_progress is not None:
                self._on_progress(*progress)

    def _submit(self, call: Call, n_again: int, is_blocking: bool = True) -> None:
        request_id = self._new_id()
        self._open[request_id] = _Open(call, None, n_again)
        used: Optional[SharedSegment] = None
        try:
            shared_bytes = self._payload.segment_bytes(call)
            if shared_bytes:
                used = self._segment(shared_bytes)
            encoded = self._payload.encode(call, request_id, used)
            used = encoded.segment
            if self.shared_memory is not None:
                for number in self.shared_memory.segments_to_return():
                    self.transport.send_later(GiveBack(number))
            is_alone = is_blocking and len(self._open) == 1
            self.transport.send(encoded.request, encoded.payload, encoded.n_bytes, is_alone)
        except (LocalProtocolError, RejectedError) as error:
            reraise_from_signal(error)
            del self._open[request_id]
            if used is not None and self.shared_memory is not None:
                self.shared_memory.release(used)
            is_named = isinstance(error, RejectedError)
            self._ready.append((call, error if is_named else RejectedError("cannot-be-sent", error.message)))
            return
        except UnavailableError as error:
            reraise_from_signal(error)
            if self.is_over:
                raise
            self.close()
            raise self._lost(error) from None
        if used is not None:
            self._open[request_id] = _Open(call, used, n_again)
        while is_blocking and self.transport.has_outgoing:
            self._step()

    def _segment(self, n_bytes: int) -> Optional[SharedSegment]:
        """A segment for inputs, with one user; None when the server lends none now."""
        shared_memory = self.shared_memory
        if shared_memory is None:
            return None
        segment = shared_memory.take(n_bytes)
        wish_bytes = 0 if segment is not None else shared_memory.bytes_to_request(n_bytes, time.monotonic())
        if not wish_bytes:
            return segment
        asked = self._new_id()
        self._lends[asked] = n_bytes
        self.transport.send(Lend(asked, wish_bytes))
        answer: Optional[SharedSegment] = self._await_answer(asked)
        if answer is None:
            return None
        answer.n_users = 1
        if answer.region.n_bytes >= n_bytes:
            return answer
        shared_memory.release(answer)
        return None

    def _await_answer(self, asked: int) -> Any:
        while asked not in self._answers:
            self._step()
        return self._answers.pop(asked)

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _step(self) -> None:
        """Take one event; if there is none yet, wait for bytes."""
        try:
            event = self.transport.next_event()
            if event is not NEED_DATA:
                self._take(event)
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            self.close()
            raise self._lost(error) from None
        if event is NEED_DATA:
            self._pump()
        else:
            self._report_progress()

    def _pump(self) -> None:
        try:
            self.transport.pump()
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            self.close()
            raise self._lost(error) from None

    def _lost(self, error: AccelError) -> UnavailableError:
        message = error.message
        if self.transport.where not in message:
            message = "server {}: {}".format(self.transport.where, message)
        n_open = len(self._open) + len(self._again)
        if n_open:
            message += ", {} call(s) unanswered".format(n_open)
        return UnavailableError(message, cure=error.cure)

    def _take(self, event: object) -> None:
        if isinstance(event, Result):
            self._start_result(event)
        elif isinstance(event, PayloadComplete):
            self._finish_result()
        elif isinstance(event, (Failed, Busy, Cancelled)):
            self._take_refusal(event)
        elif isinstance(event, Progress):
            entry = self._open.get(event.id)
            if self._on_progress is not None and entry is not None:
                self._progress.append((entry.call, event.stage, event.seconds))
        elif isinstance(event, Lent):
            self._take_lent(event)
        else:
            self._take_other(event)

    def _take_other(self, event: object) -> None:
        if isinstance(event, Pong):
            if event.token != PROBE_TOKEN:
                self._answers[event.token] = {}
        elif isinstance(event, Stats):
            self._answers[event.id] = event.stats
        elif isinstance(event, Drain):
            self.is_draining = True
        elif isinstance(event, Ping):
            self.transport.send(Pong(event.token))
        elif isinstance(event, Goodbye):
            raise UnavailableError("the server closes the connection: {}".format(event.message))
        elif isinstance(event, Closed):
            raise UnavailableError("the server closed the connection")

    def _take_lent(self, event: Lent) -> None:
        shared_memory = self.shared_memory
        fd = self.transport.take_descriptor()
        try:
            if shared_memory is None:
                raise RemoteProtocolError("memory was granted to a client that shares none")
            is_reusable = self._lends.pop(event.id, None) is not None
            segment = shared_memory.add(event.segment, fd, event.n_bytes, is_reusable)
        finally:
            os.close(fd)
        if is_reusable:
            self._answers[event.id] = segment

    def _take_refusal(self, event: Union[Failed, Busy, Cancelled]) -> None:
        n_bytes = self._lends.pop(event.id, None)
        if n_bytes is not None:
            assert self.shared_memory is not None
            self.shared_memory.note_refusal(n_bytes, time.monotonic())
            self._answers[event.id] = None
            return
        if isinstance(event, Busy) and event.reason.startswith(_AGAIN):
            entry = self._open.get(event.id)
            if entry is not None and entry.n_again < _MAX_AGAIN:
                self._again.append(entry)
                self._close_entry(event.id)
                return
        self._settle(event.id, _error_of(event), isinstance(event, Cancelled))

    def _start_result(self, result: Result) -> None:
        if result.placement is not None:
            self._settle(
                result.id, _reply_of(result, self._payload.results_in_segment(result, result.placement))
            )
            return
        connection = self.transport.connection
        arrived = connection.arrived_payload() if connection.payload_left else _NO_PAYLOAD
        if arrived is not None:
            self._settle(result.id, _reply_of(result, self._payload.results_copied_from(result, arrived)))
            return
        buffers = self._payload.result_buffers(result)
        self._receiving = _Receiving(result, buffers)
        connection.take_payload(buffers)

    def _finish_result(self) -> None:
        assert self._receiving is not None
        result, buffers = self._receiving
        self._receiving = None
        tensors = {
            item.name: Tensor(item.spec, buffer)
            for item, buffer in zip(result.tensors, buffers)  # noqa: B905 -- Python 3.8
        }
        self._settle(result.id, _reply_of(result, tensors))

    def _settle(self, request_id: int, outcome: Outcome, is_cancelled: bool = False) -> None:
        call = self._close_entry(request_id, is_cancelled)
        if call is not None:
            self._ready.append((call, outcome))

    def _close_entry(self, request_id: int, is_cancelled: bool = False) -> Optional[Call]:
        """An answer came: the call it is for, or None if nobody waits for it."""
        entry = self._open.pop(request_id, None)
        call = None if entry is None else entry.call
        if entry is None:
            entry = self._abandoned.pop(request_id, None)
        if entry is None:
            raise RemoteProtocolError("an answer to request {}, which is not open".format(request_id))
        if entry.segment is not None and self.shared_memory is not None:
            if is_cancelled:
                self.shared_memory.retire(entry.segment)
            else:
                self.shared_memory.release(entry.segment)
        return call


def _reply_of(result: Result, tensors: Dict[str, Tensor]) -> Reply:
    return Reply(
        result.info,
        tensors,
        result.server,
        result.device,
        result.seconds,
        result.bytes_in,
        result.bytes_out,
    )


def _error_of(event: Union[Failed, Busy, Cancelled]) -> AccelError:
    if isinstance(event, Busy):
        return UnavailableError(
            "the server is busy: {}".format(event.reason), retry_after_s=event.retry_after_s
        )
    if isinstance(event, Cancelled):
        return RejectedError("cancelled", "the call was cancelled")
    if event.kind == "storage":
        return StorageError(event.message, cure=event.cure, transient=event.transient, code=event.code)
    if event.kind == "unavailable":
        return UnavailableError(event.message, cure=event.cure)
    return RejectedError(event.code, event.message, cure=event.cure)
