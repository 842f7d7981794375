"""The client of one pipeline server: calls in, replies out, several in flight.

::

    with Client(endpoint, credential) as client:
        for call, outcome in client.map(calls, window=4):
            ...                     # outcome: a Reply, or an AccelError for this call only

How the bytes travel is chosen when it connects: through memory shared with the server (large payloads on its
own node), its Unix socket, TLS or TCP; `Transport` moves them.  This module knows which request on the
connection is which call, and what each message of the server means.

A client does not send calls again by itself: when its server is lost it raises, and `unanswered` says what is
open. `Dispatcher` is the layer that goes on to the next server.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import sys
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Outcome, Reply, Tensor, inputs_of, request_of
from yarn_accel.client.shared_memory import POOL_FROM_BYTES, ReplyPool, SharedMemory, SharedSegment, aligned
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.transport import (
    CARRIERS,
    CONNECT_TIMEOUT_S,
    LOST_AFTER_S,
    PROBE_TOKEN,
    TIMEOUT_S,
    Transport,
)
from yarn_accel.errors import (
    AccelError,
    LocalProtocolError,
    RejectedError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from yarn_accel.wire import (
    LARGE_PACK_BYTES,
    LARGE_PACKS,
    NEED_DATA,
    PACK_BYTES,
    Busy,
    Cancel,
    Cancelled,
    Closed,
    Credential,
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

if TYPE_CHECKING:
    import ssl

    from yarn_accel.client.job_user import JobUser

#: Largest answer that is received.
MAX_REPLY_BYTES = 4 << 30
#: Begins the reason of a `Busy` that asks for the same call at once: a worker was lost with its inputs.
_AGAIN = "again:"
_MAX_AGAIN = 8
_NO_PAYLOAD = memoryview(b"")


class _Open(NamedTuple):
    """A call that was sent, the shared memory it uses, and how often it had to be sent again."""

    call: Call
    segment: Optional[SharedSegment]
    n_again: int


class Client:
    """A connection to one pipeline server; use it as a context manager, from one thread.

    Its methods connect when there is no connection, or the last one is over. Each may raise
    `UnavailableError` when the server is lost.

    Args:
        endpoint: where the server listens.
        credential: proves the tenant.
        timeout_s: longest silence of the server while an answer is due; it reports progress more often than
            that.
        connect_timeout_s: limit for connecting and proving the credential.
        node: the node this process runs on. The server's Unix socket and shared memory are used when the
            server is on this node; None leaves that to the endpoint: used when it names a socket.
        carriers: which of `CARRIERS` may be used.
        checksums: payload checksums accepted over plain TCP, best first; None: all this Python can compute.
        tls: how to speak TLS; with it, plain TCP is not used.
        max_reply_bytes: a larger answer ends the connection.
        copy_results: hand out results as memory of their own, never as views of shared memory; for callers
            that keep many results.
        on_progress: called with the call, its stage and its seconds so far while the server works on it.
        silent_after_s: a server that promises progress (see ``PROGRESS`` of `wire`) hangs after so long a
            silence; None: as ``timeout_s``.
        lost_after_s: after so long without an acknowledgement from the server's node it is off the network
            (see `transport`); a busy node acknowledges, so this may be much shorter than ``timeout_s``.
        job_user: a server that the job knows gets its tokens, so that calls run as that user; see `job_user`.

    Attributes:
        is_draining: the server takes nothing new: it finishes what it has.
        shared_memory: the memory the server lends to the connection; None: it lends none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Credential,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        *,
        node: Optional[str] = None,
        carriers: Sequence[str] = CARRIERS,
        checksums: Optional[Sequence[str]] = None,
        tls: Optional[ssl.SSLContext] = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        copy_results: bool = False,
        on_progress: Optional[Callable[[Call, str, float], None]] = None,
        lost_after_s: float = LOST_AFTER_S,
        silent_after_s: Optional[float] = None,
        job_user: Optional[JobUser] = None,
    ) -> None:
        is_local = node is None or node == endpoint.node
        self.endpoint = endpoint
        self.is_draining = False
        self.shared_memory: Optional[SharedMemory] = None
        self._new_transport = functools.partial(
            Transport,
            endpoint,
            credential,
            connect_timeout_s=connect_timeout_s,
            timeout_s=timeout_s,
            carriers=[name for name in carriers if is_local or name not in ("memfd", "unix")],
            checksums=checksums,
            max_payload_bytes=max_reply_bytes,
            tls=tls,
            lost_after_s=lost_after_s,
            silent_after_s=silent_after_s,
            job_user=job_user,
        )
        self._on_progress = on_progress
        self._copy_results = copy_results
        self._pool = ReplyPool()
        self._transport: Optional[Transport] = None
        self._is_over = True
        self._forget()

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect and prove the credential; nothing happens when connected already.

        What a connection before this one left unanswered is forgotten.

        Raises:
            UnavailableError: nobody there, or the server takes no connection now.
            AuthenticationError: one side could not prove who it is.
            RemoteProtocolError: another protocol version, or not a pipeline server.
        """
        self._connected()

    def close(self) -> None:
        """Close the connection; what is unanswered stays so. Arrays handed out stay valid."""
        self._is_over = True
        if self._transport is not None:
            self._transport.close()

    @property
    def carrier(self) -> str:
        """How the bytes travel: ``memfd`` (large ones; small ones by Unix socket), ``unix``, ``tls`` or
        ``tcp``; empty when not connected."""
        return "" if self._is_over or self._transport is None else self._transport.carrier

    @property
    def principal(self) -> str:
        """The user that the server reads and writes as; empty: its own, or not connected."""
        return "" if self._is_over or self._transport is None else self._transport.principal

    @property
    def n_in_flight(self) -> int:
        """Calls submitted whose outcome `next_outcome` has not given yet."""
        return len(self._open) + len(self._ready) + len(self._again)

    @property
    def has_answers(self) -> bool:
        """Whether `arrived` has something even if the descriptor has nothing."""
        return bool(self._ready or self._again)

    @property
    def has_outgoing(self) -> bool:
        """Whether `arrived` has something to send when the descriptor takes it."""
        return self._transport is not None and self._transport.has_outgoing

    def fileno(self) -> int:
        """The descriptor to wait for until `arrived` makes sense, for who waits for several clients."""
        return self._connected().fileno()

    def unanswered(self) -> List[Call]:
        """The calls that were submitted and not answered, oldest first."""
        return [entry.call for entry in (*self._open.values(), *self._again)]

    def takes_stacks(self, operation: str) -> bool:
        """Whether the server says that several small calls of this operation may travel as one request."""
        return operation in self._packable

    @property
    def pack_bytes(self) -> int:
        """Most inputs of a pack that the server gains from: more where it computes on a GPU."""
        return self._pack_bytes

    # Calls

    def call(self, call: Call) -> Reply:
        """One call, start to end.

        Raises:
            RejectedError: this call is bad and will stay so.
            StorageError: a URI of it could not be read or written.
            UnavailableError: the server is busy or was lost.
        """
        transport = self._connected()
        if self.n_in_flight:
            outcome = self._call_among_others(call)
        else:
            # As `submit` and `next_outcome`, but it waits for bytes before it looks for events.
            transport.expect_answer()
            self._submit(transport, call, 0)
            if not self._ready and not transport.connection.is_mid_frame:
                self._pump(transport)
            outcome = self.next_outcome()[1]
        if isinstance(outcome, AccelError):
            raise outcome
        return outcome

    def map(self, calls: Iterable[Call], window: int = 4) -> Iterator[Tuple[Call, Outcome]]:
        """Every call with its outcome, as they finish; leaving the loop early cancels what is under way.

        Args:
            window: requests in flight.

        Raises:
            UnavailableError: the server was lost; `unanswered` says which requests are open.
        """
        self._connected()
        following = iter(calls)
        try:
            while True:
                for call in itertools.islice(following, max(0, window - self.n_in_flight)):
                    self.submit(call)
                if not self.n_in_flight:
                    return
                yield self.next_outcome()
        except GeneratorExit:
            self._abandon()
            raise

    def submit(self, call: Call, is_blocking: bool = True) -> None:
        """Send a call; returns when its bytes have left, taking answers that arrive meanwhile.

        A call that cannot be said at all (a key that is too long) or is too large for the server gets its
        `RejectedError` as outcome like any other.

        Args:
            is_blocking: False: return at once; `arrived` sends what has not left by then.
        """
        transport = self._connected()
        if not self._open:
            transport.expect_answer()
        self._submit(transport, call, 0, is_blocking)

    def next_outcome(self) -> Tuple[Call, Outcome]:
        """Wait for the next answer."""
        transport = self._connected()
        while not self._ready:
            if self._again:
                self._submit_again(transport, is_blocking=True)
            elif self._open:
                self._step(transport)
            else:
                raise LocalProtocolError("nothing is in flight")
        return self._ready.popleft()

    def arrived(self, is_new: bool = True) -> Optional[Tuple[Call, Outcome]]:
        """The next answer if it is here, or None; never waits, and sends on what has not left.

        Args:
            is_new: False: only what was received before.
        """
        transport = self._connected()
        while not self._ready:
            if self._again:
                self._submit_again(transport, is_blocking=False)
            elif not is_new and not transport.connection.is_mid_frame:
                return None
            if not self._take_one(transport, is_new):
                return None
        return self._ready.popleft()

    def await_bytes(self) -> bool:
        """Wait for a moment (`LOOK_S` at most) until bytes have moved, for `arrived`; whether some have."""
        transport = self._connected()
        if transport.connection.is_mid_frame and self._take_one(transport, is_new=False):
            return True
        try:
            return transport.pump_briefly()
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            raise self._lost(error) from None

    def cancel(self, call: Call) -> None:
        """Tell the server that a submitted call is no longer wanted.

        Its outcome is then a `RejectedError` with the code ``cancelled``, or the answer if that was faster.
        """
        transport = self._connected()
        for request_id, entry in self._open.items():
            if entry.call is call:
                transport.send(Cancel(request_id))
                return

    def doubt(self) -> None:
        """Others say that the server does not work: wait for ``silent_after_s`` only, promise or not."""
        self._connected().doubt()

    # Other requests

    def empty(self, spec: TensorSpec) -> Tensor:
        """A tensor to fill in (`Tensor.array`), in memory shared with the server where there is some.

        As input of a call it then needs no copy at all, nor do arrays that are parts of it; the server leaves
        it as it is. On another connection, or together with inputs from elsewhere, it travels like any other.
        """
        transport = self._connected()
        segment = self._segment(transport, aligned(spec.nbytes))
        if segment is not None and self.shared_memory is not None:
            return Tensor(spec, self.shared_memory.empty(spec.nbytes, segment))
        return Tensor(spec, self._pool.buffers([spec.nbytes])[0])

    def stats(self) -> Mapping[str, Any]:
        """The server's counters, and under ``connection`` how this client's own bytes travel."""
        transport = self._connected()
        asked = self._new_id()
        transport.send(StatsRequest(asked))
        return {
            **self._await_answer(transport, asked),
            "connection": {
                "carrier": transport.carrier,
                "checksum": transport.connection.checksum,
                "shared_bytes": 0 if self.shared_memory is None else self.shared_memory.n_bytes,
            },
        }

    def ping(self) -> float:
        """Seconds of a round trip through the server's connection (not its stages)."""
        transport = self._connected()
        started_s = time.perf_counter()
        asked = self._new_id()
        transport.send(Ping(asked))
        self._await_answer(transport, asked)
        return time.perf_counter() - started_s

    # The connection

    def _forget(self) -> None:
        """Begin anew: nothing was said on this connection."""
        self.is_draining = False
        self.shared_memory = None
        self._packable: FrozenSet[str] = frozenset()
        self._pack_bytes = PACK_BYTES
        self._max_request_bytes = 0
        self._last_id = 0
        self._open: Dict[int, _Open] = {}
        self._abandoned: Dict[int, _Open] = {}
        self._again: Deque[_Open] = collections.deque()
        self._ready: Deque[Tuple[Call, Outcome]] = collections.deque()
        self._answers: Dict[int, Any] = {}
        self._lends: Dict[int, int] = {}
        self._receiving: Optional[Tuple[Result, List[memoryview]]] = None
        self._progress: Deque[Tuple[Call, str, float]] = collections.deque()

    def _connected(self) -> Transport:
        transport = self._transport
        if transport is None or self._is_over:
            transport = self._new_transport()
            try:
                self._forget()
                welcome = transport.connection.welcome
                assert welcome is not None
                if transport.carrier == "memfd":
                    self.shared_memory = SharedMemory(welcome.max_lent_bytes)
                self._packable = frozenset(welcome.packable)
                self._pack_bytes = LARGE_PACK_BYTES if LARGE_PACKS in welcome.capabilities else PACK_BYTES
                self._max_request_bytes = welcome.max_request_bytes
                self._transport = transport
                self._is_over = False
            except BaseException:
                transport.close()
                raise
        return transport

    def _lost(self, error: AccelError) -> UnavailableError:
        """Close the connection, which is over because of this error; the error for the caller."""
        self.close()
        assert self._transport is not None
        message, where = error.message, self._transport.where
        if where not in message:
            message = "server {}: {}".format(where, message)
        n_open = len(self._open) + len(self._again)
        if n_open:
            message += ", {} call(s) unanswered".format(n_open)
        return UnavailableError(message, cure=error.cure)

    def _abandon(self) -> None:
        """Nobody waits for what is under way any more: tell the server, and ignore its answers."""
        self._ready.clear()
        self._again.clear()
        if self._transport is None:
            return
        try:
            for request_id in list(self._open):
                self._transport.send(Cancel(request_id))
                self._abandoned[request_id] = self._open.pop(request_id)
        except UnavailableError as error:
            reraise_from_signal(error)
            self.close()

    # Sending

    def _submit(self, transport: Transport, call: Call, n_again: int, is_blocking: bool = True) -> None:
        request_id = self._new_id()
        self._open[request_id] = _Open(call, None, n_again)
        try:
            self._send(transport, request_id, is_blocking)
        except (LocalProtocolError, RejectedError) as error:
            reraise_from_signal(error)
            self._close_entry(request_id)
            is_named = isinstance(error, RejectedError)
            self._ready.append((call, error if is_named else RejectedError("cannot-be-sent", error.message)))
            return
        except UnavailableError as error:
            reraise_from_signal(error)
            if self._is_over:
                raise
            raise self._lost(error) from None
        while is_blocking and transport.has_outgoing:
            self._step(transport)

    def _send(self, transport: Transport, request_id: int, is_blocking: bool) -> None:
        call = self._open[request_id].call
        specs, payload, n_bytes = inputs_of(call)
        if n_bytes > self._max_request_bytes:
            raise RejectedError(
                "request-too-large",
                "{} bytes of inputs, at most {} are taken".format(n_bytes, self._max_request_bytes),
                cure="raise max_request_bytes of the server to {} or more".format(n_bytes),
            )
        placement, is_kept = None, False
        if self.shared_memory is not None:
            used: Optional[SharedSegment] = None
            found = self.shared_memory.found(call, payload)
            if found is not None:
                (placement, used), is_kept = found, True
            else:
                used = self._segment(transport, self.shared_memory.needed_bytes(call))
                placement = None if used is None else self.shared_memory.place(payload, used)
            if used is not None:
                payload, n_bytes = [], 0
                self._open[request_id] = self._open[request_id]._replace(segment=used)
            for number in self.shared_memory.segments_to_return():
                transport.send_later(GiveBack(number))
        request = request_of(call, request_id, specs, placement, is_kept)
        transport.send(request, payload, n_bytes, is_blocking and len(self._open) == 1)

    def _submit_again(self, transport: Transport, is_blocking: bool) -> None:
        entry = self._again.popleft()
        self._submit(transport, entry.call, entry.n_again + 1, is_blocking)

    def _call_among_others(self, call: Call) -> Outcome:
        self.submit(call)
        answered, outcome = self.next_outcome()
        others = []
        while answered is not call:
            others.append((answered, outcome))
            answered, outcome = self.next_outcome()
        self._ready.extend(others)
        return outcome

    def _segment(self, transport: Transport, n_bytes: int) -> Optional[SharedSegment]:
        """A segment for inputs of that length, with one user; None where there is none now, or for 0."""
        shared_memory = self.shared_memory
        if shared_memory is None or not n_bytes:
            return None
        segment = shared_memory.take(n_bytes)
        wish_bytes = 0 if segment is not None else shared_memory.bytes_to_request(n_bytes, time.monotonic())
        if not wish_bytes:
            return segment
        asked = self._new_id()
        self._lends[asked] = n_bytes
        transport.send(Lend(asked, wish_bytes))
        answer: Optional[SharedSegment] = self._await_answer(transport, asked)
        if answer is None:
            return None
        answer.n_users = 1
        if answer.region.n_bytes >= n_bytes:
            return answer
        shared_memory.release(answer)
        return None

    def _await_answer(self, transport: Transport, asked: int) -> Any:
        while asked not in self._answers:
            self._step(transport)
        return self._answers.pop(asked)

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # Receiving

    def _take_one(self, transport: Transport, is_new: bool) -> bool:
        """Take one event, or some bytes, without waiting; False when there is neither."""
        try:
            event = transport.next_event()
            if event is not NEED_DATA:
                self._take(transport, event)
            elif not is_new:
                return False
            elif not transport.pump_now():
                if self._open:
                    transport.check()
                return False
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            raise self._lost(error) from None
        self._report_progress()
        return True

    def _step(self, transport: Transport) -> None:
        """Take one event; if there is none yet, wait for bytes."""
        try:
            event = transport.next_event()
            if event is NEED_DATA:
                transport.pump()
                return
            self._take(transport, event)
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            raise self._lost(error) from None
        self._report_progress()

    def _pump(self, transport: Transport) -> None:
        try:
            transport.pump()
        except (UnavailableError, RemoteProtocolError) as error:
            reraise_from_signal(error)
            raise self._lost(error) from None

    def _report_progress(self) -> None:
        """Call the caller's function where an error of it is not taken for one of the connection."""
        while self._progress:
            progress = self._progress.popleft()
            if self._on_progress is not None:
                self._on_progress(*progress)

    def _take(self, transport: Transport, event: object) -> None:
        if isinstance(event, Result):
            self._start_result(transport, event)
        elif isinstance(event, PayloadComplete):
            assert self._receiving is not None
            (result, buffers), self._receiving = self._receiving, None
            self._settle_result(result, buffers)
        elif isinstance(event, (Failed, Busy, Cancelled)):
            self._take_refusal(event)
        elif isinstance(event, Progress):
            entry = self._open.get(event.id)
            if self._on_progress is not None and entry is not None:
                self._progress.append((entry.call, event.stage, event.seconds))
        elif isinstance(event, Lent):
            self._take_lent(transport, event)
        else:
            self._take_other(transport, event)

    def _take_other(self, transport: Transport, event: object) -> None:
        if isinstance(event, Pong):
            if event.token != PROBE_TOKEN:
                self._answers[event.token] = {}
        elif isinstance(event, Stats):
            self._answers[event.id] = event.stats
        elif isinstance(event, Drain):
            self.is_draining = True
        elif isinstance(event, Ping):
            transport.send(Pong(event.token))
        elif isinstance(event, Goodbye):
            raise UnavailableError("the server closes the connection: {}".format(event.message))
        elif isinstance(event, Closed):
            raise UnavailableError("the server closed the connection")

    def _take_lent(self, transport: Transport, event: Lent) -> None:
        fd = transport.take_descriptor()
        try:
            if self.shared_memory is None:
                raise RemoteProtocolError("memory was granted to a client that shares none")
            is_reusable = self._lends.pop(event.id, None) is not None
            segment = self.shared_memory.add(event.segment, fd, event.n_bytes, is_reusable)
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

    def _start_result(self, transport: Transport, result: Result) -> None:
        """Take the tensors of a result from where they are, or have them received."""
        if result.placement is not None:
            if self.shared_memory is None:
                raise RemoteProtocolError("an answer lies in shared memory, but none was granted")
            tensors = self.shared_memory.tensors_of(result, result.placement)
            if self._copy_results:
                for name, tensor in tensors.items():
                    buffer = self._pool.buffers([tensor.spec.nbytes])[0]
                    buffer[:] = tensor.data
                    tensors[name] = Tensor(tensor.spec, buffer)
            self._settle(result.id, _reply_of(result, tensors))
            return
        connection = transport.connection
        arrived = connection.arrived_payload() if connection.payload_left else _NO_PAYLOAD
        if arrived is not None:
            copies = []
            start = 0
            for item in result.tensors:
                end = start + item.spec.nbytes
                copies.append(memoryview(bytearray(arrived[start:end])))
                start = end
            self._settle_result(result, copies)
            return
        sizes = [item.spec.nbytes for item in result.tensors]
        is_small = sum(sizes) < POOL_FROM_BYTES
        buffers = [_new_buffer(n_bytes) for n_bytes in sizes] if is_small else self._pool.buffers(sizes)
        self._receiving = result, buffers
        connection.take_payload(buffers)

    def _settle_result(self, result: Result, buffers: Sequence[memoryview]) -> None:
        named = zip(result.tensors, buffers)  # noqa: B905 -- Python 3.8
        tensors = {item.name: Tensor(item.spec, buffer) for item, buffer in named}
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


def _new_buffer(n_bytes: int) -> memoryview:
    """Memory for a small answer; numpy's when it is loaded, since that is not cleared first."""
    numpy = sys.modules.get("numpy")
    return memoryview(bytearray(n_bytes) if numpy is None or n_bytes < 4096 else numpy.empty(n_bytes, "u1"))
