"""The client of one pipeline server: calls in, replies out, several in flight.

::

    with Client(endpoint, credential) as client:
        for call, outcome in client.map(calls, window=4):
            ...                                             # outcome: a Reply, or an AccelError for this call
            only

A client never connects again by itself: when its server is lost it raises, and `unanswered` says what is
open. `Dispatcher` is the layer that goes on to the next server.
"""

from __future__ import annotations

import collections
import sys
import time
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
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
from yarn_accel.client.calls import Call, Reference, Reply, Tensor
from yarn_accel.client.transport import Transport, describe
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
    Cancelled,
    Closed,
    Credential,
    Drain,
    Failed,
    Goodbye,
    PayloadComplete,
    Ping,
    Pong,
    Progress,
    RemoteInput,
    Request,
    Result,
    Stats,
    StatsRequest,
    TensorSpec,
)

__all__ = ["Call", "Client", "Outcome", "Reference", "Reply", "Tensor"]

Outcome = Union[Reply, AccelError]
DEFAULT_MAX_REPLY_BYTES = 4 << 30


class _Receiving(NamedTuple):
    """A result whose payload is on its way into `buffers`."""

    result: Result
    buffers: List[Any]


class Client:
    """A connection to one pipeline server; use it as a context manager.

    Args:
        endpoint: where the server listens.
        credential: proves the tenant.
        timeout_s: longest silence of the server while an answer is due; it reports progress more often than
            that.
        connect_timeout_s: limit for connecting and proving the credential.
        node: the node this process runs on. The server's Unix socket is used when the server is on this node;
            None
            leaves that to the endpoint: it is used when the endpoint names one.
        checksums: payload checksums accepted over TCP, best first.
        max_reply_bytes: a larger answer ends the connection.
        on_progress: told the call, its stage and its seconds so far while the server works on it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Credential,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
        *,
        node: Optional[str] = None,
        checksums: Sequence[str] = ("crc32",),
        max_reply_bytes: int = DEFAULT_MAX_REPLY_BYTES,
        on_progress: Optional[Callable[[Call, str, float], None]] = None,
    ) -> None:
        self.endpoint = endpoint
        self._credential = credential
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._is_local = node is None or node == endpoint.node
        self._checksums = tuple(checksums)
        self._max_reply_bytes = max_reply_bytes
        self._on_progress = on_progress
        self._transport: Optional[Transport] = None
        self._next_id = 1
        self._open: Dict[int, Call] = {}
        self._ready: Deque[Tuple[Call, Outcome]] = collections.deque()
        self._answers: Dict[int, Mapping[str, Any]] = {}
        self._receiving: Optional[_Receiving] = None
        #: The server takes nothing new: it finishes what it has.
        self.is_draining = False

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect and prove the credential; nothing happens when connected already.

        Raises:
            UnavailableError: nobody there, or the server takes no connection now.
            AuthenticationError: one side could not prove the credential.
            RemoteProtocolError: another protocol version, or not a pipeline server.
        """
        if self._transport is None:
            self._transport = Transport(
                self.endpoint,
                self._credential,
                connect_timeout_s=self._connect_timeout_s,
                timeout_s=self._timeout_s,
                is_local=self._is_local,
                checksums=self._checksums,
                max_payload_bytes=self._max_reply_bytes,
            )

    def close(self) -> None:
        """Close the connection; what is unanswered stays so."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    @property
    def carrier(self) -> str:
        """How the bytes travel: ``tcp`` or ``unix``; empty when not connected."""
        return self._transport.carrier if self._transport is not None else ""

    @property
    def n_in_flight(self) -> int:
        """Calls submitted whose outcome `next_outcome` has not given yet."""
        return len(self._open) + len(self._ready)

    def unanswered(self) -> List[Call]:
        """The calls that were submitted and not answered, oldest first."""
        return list(self._open.values())

    def call(self, call: Call) -> Reply:
        """One call, start to end.

        Raises:
            RejectedError: this call is bad and will stay so.
            StorageError: a URI of it could not be read or written.
            UnavailableError: the server is busy or was lost.
        """
        for _, outcome in self.map((call,), window=1):
            if isinstance(outcome, AccelError):
                raise outcome
            return outcome
        raise LocalProtocolError("a call without outcome")

    def map(self, calls: Iterable[Call], window: int = 4) -> Iterator[Tuple[Call, Outcome]]:
        """Every call with its outcome, in the order in which they complete, `window` of them in flight.

        Raises:
            UnavailableError: the server was lost; `unanswered` says which calls are open.
        """
        source = iter(calls)
        exhausted = False
        while True:
            while not exhausted and self.n_in_flight < window:
                following = next(source, None)
                if following is None:
                    exhausted = True
                else:
                    self.submit(following)
            if not self.n_in_flight:
                return
            yield self.next_outcome()

    def submit(self, call: Call) -> None:
        """Send a call; returns when its bytes have left, taking answers that arrive meanwhile.

        A call that cannot be said at all (a key that is too long) or is too large for the server gets its
        `RejectedError` as outcome like any other.

        Raises:
            UnavailableError: the server was lost.
        """
        transport = self._connected()
        try:
            request, payload = self._request(call)
            transport.send(request, payload)
        except LocalProtocolError as error:
            self._ready.append((call, RejectedError("cannot-be-sent", error.message)))
            return
        self._open[request.id] = call
        while transport.has_outgoing:
            self._step()

    def next_outcome(self) -> Tuple[Call, Outcome]:
        """Wait for the next answer.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        while not self._ready:
            if not self._open:
                raise LocalProtocolError("nothing is in flight")
            self._step()
        return self._ready.popleft()

    def stats(self) -> Mapping[str, Any]:
        """The server's counters."""
        asked = self._new_id()
        self._connected().send(StatsRequest(asked))
        return self._await_answer(asked)

    def ping(self) -> float:
        """Seconds of a round trip through the server's connection (not its stages)."""
        asked = self._new_id()
        started_s = time.perf_counter()
        self._connected().send(Ping(asked))
        self._await_answer(asked)
        return time.perf_counter() - started_s

    def _await_answer(self, asked: int) -> Mapping[str, Any]:
        while asked not in self._answers:
            self._step()
        return self._answers.pop(asked)

    def _connected(self) -> Transport:
        self.connect()
        assert self._transport is not None
        return self._transport

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _request(self, call: Call) -> Tuple[Request, List[Any]]:
        inputs: List[Union[TensorSpec, RemoteInput]] = []
        payload = []
        for item in call.inputs:
            if isinstance(item, Reference):
                inputs.append(RemoteInput(item.uri, item.spec))
            else:
                inputs.append(item.spec)
                payload.append(item.flat())
        n_bytes = sum(len(part) for part in payload)
        welcome = self._connected().connection.welcome
        if welcome is not None and n_bytes > welcome.max_request_bytes:
            raise LocalProtocolError(
                "{} bytes of inputs, the server takes {}".format(n_bytes, welcome.max_request_bytes)
            )
        request = Request(
            self._new_id(),
            call.key,
            call.operation,
            dict(call.params),
            tuple(inputs),
            call.output_uri,
            call.deadline_s,
        )
        return request, payload

    def _step(self) -> None:
        transport = self._connected()
        try:
            transport.pump()
            while True:
                event = transport.next_event()
                if event is NEED_DATA:
                    return
                self._take(event)
        except (UnavailableError, RemoteProtocolError) as error:
            self.close()
            raise self._lost(error) from None

    def _lost(self, error: AccelError) -> UnavailableError:
        message = error.message
        if describe(self.endpoint) not in message:
            message = "server {}: {}".format(describe(self.endpoint), message)
        if self._open:
            message += ", {} call(s) unanswered".format(len(self._open))
        return UnavailableError(message, cure=error.cure)

    def _take(self, event: object) -> None:
        if isinstance(event, Result):
            self._start_result(event)
        elif isinstance(event, PayloadComplete):
            self._finish_result()
        elif isinstance(event, (Failed, Busy, Cancelled)):
            self._settle(event.id, _error_of(event))
        elif isinstance(event, Progress):
            call = self._open.get(event.id)
            if self._on_progress is not None and call is not None:
                self._on_progress(call, event.stage, event.seconds)
        else:
            self._take_other(event)

    def _take_other(self, event: object) -> None:
        if isinstance(event, Pong):
            self._answers[event.token] = {}
        elif isinstance(event, Stats):
            self._answers[event.id] = event.stats
        elif isinstance(event, Drain):
            self.is_draining = True
        elif isinstance(event, Ping):
            self._connected().send(Pong(event.token))
        elif isinstance(event, Goodbye):
            raise UnavailableError("the server closes the connection: {}".format(event.message))
        elif isinstance(event, Closed):
            raise UnavailableError("the server closed the connection")

    def _start_result(self, result: Result) -> None:
        buffers = [_new_buffer(item.spec.nbytes) for item in result.tensors]
        self._receiving = _Receiving(result, buffers)
        connection = self._connected().connection
        if connection.payload_left:
            connection.take_payload([memoryview(buffer) for buffer in buffers])
        else:
            self._finish_result()

    def _finish_result(self) -> None:
        assert self._receiving is not None
        result, buffers = self._receiving
        self._receiving = None
        tensors = {
            item.name: Tensor(item.spec, buffer)
            for item, buffer in zip(result.tensors, buffers)  # noqa: B905
        }
        reply = Reply(
            result.info,
            tensors,
            result.server,
            result.device,
            result.seconds,
            result.bytes_in,
            result.bytes_out,
        )
        self._settle(result.id, reply)

    def _settle(self, request_id: int, outcome: Outcome) -> None:
        call = self._open.pop(request_id, None)
        if call is None:
            raise RemoteProtocolError("an answer to request {}, which is not open".format(request_id))
        self._ready.append((call, outcome))


def _new_buffer(n_bytes: int) -> Any:
    """Memory for an answer; numpy's when it is loaded, since that is not cleared first."""
    numpy = sys.modules.get("numpy")
    return bytearray(n_bytes) if numpy is None else numpy.empty(n_bytes, dtype="u1")


def _error_of(event: Union[Failed, Busy, Cancelled]) -> AccelError:
    if isinstance(event, Busy):
        return UnavailableError(
            "the server is busy: {}".format(event.reason), retry_after_s=event.retry_after_s
        )
    if isinstance(event, Cancelled):
        return RejectedError("cancelled", "the call was cancelled")
    if event.kind == "storage":
        return StorageError(event.message, cure=event.cure, transient=event.transient)
    if event.kind == "unavailable":
        return UnavailableError(event.message, cure=event.cure)
    return RejectedError(event.code, event.message, cure=event.cure)
