"""The client of one pipeline server: calls in, replies out, several in flight.

::

    with Client(endpoint, credential) as client:
        for call, outcome in client.map(calls, window=4):
            ...                     # outcome: a Reply, or an AccelError for this call only

How the bytes travel is chosen when it connects: through memory shared with the server (large payloads on its
own node), its Unix socket, TLS or TCP.

A client never connects again by itself: when its server is lost it raises, and `unanswered` says what is
open. `Dispatcher` is the layer that goes on to the next server.
"""

from __future__ import annotations

import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.call_source import CallSource, Outcome
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.channel import ServerChannel
from yarn_accel.client.connector import CARRIERS
from yarn_accel.client.liveness import LOST_AFTER_S
from yarn_accel.client.memory import ReplyPool
from yarn_accel.client.transport import Transport
from yarn_accel.errors import AccelError
from yarn_accel.wire import Credential, TensorSpec

if TYPE_CHECKING:
    import ssl

DEFAULT_MAX_REPLY_BYTES = 4 << 30


class Client:
    """A connection to one pipeline server; use it as a context manager, from one thread.

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
            (see `liveness`); a busy node acknowledges, so this may be much shorter than ``timeout_s``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Credential,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
        *,
        node: Optional[str] = None,
        carriers: Sequence[str] = CARRIERS,
        checksums: Optional[Sequence[str]] = None,
        tls: Optional[ssl.SSLContext] = None,
        max_reply_bytes: int = DEFAULT_MAX_REPLY_BYTES,
        copy_results: bool = False,
        on_progress: Optional[Callable[[Call, str, float], None]] = None,
        lost_after_s: float = LOST_AFTER_S,
        silent_after_s: Optional[float] = None,
    ) -> None:
        self.endpoint = endpoint
        is_local = node is None or node == endpoint.node
        self._connect_with: Dict[str, Any] = {
            "connect_timeout_s": connect_timeout_s,
            "timeout_s": timeout_s,
            "carriers": [name for name in carriers if is_local or name not in ("memfd", "unix")],
            "checksums": checksums,
            "max_payload_bytes": max_reply_bytes,
            "tls": tls,
            "lost_after_s": lost_after_s,
            "silent_after_s": silent_after_s,
        }
        self._credential = credential
        self._on_progress = on_progress
        self._copy_results = copy_results
        self._pool = ReplyPool()
        self._channel: Optional[ServerChannel] = None

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
        if self._channel is not None:
            self._channel.close()

    @property
    def carrier(self) -> str:
        """How the bytes travel: ``memfd`` (large ones; small ones by Unix socket), ``unix``, ``tls`` or
        ``tcp``; empty when not connected."""
        channel = self._channel
        return "" if channel is None or channel.is_over else channel.transport.carrier

    @property
    def is_draining(self) -> bool:
        """Whether the server takes nothing new: it finishes what it has."""
        return self._channel is not None and self._channel.is_draining

    @property
    def n_in_flight(self) -> int:
        """Calls submitted whose outcome `next_outcome` has not given yet."""
        return 0 if self._channel is None else self._channel.n_in_flight

    def unanswered(self) -> List[Call]:
        """The calls that were submitted and not answered, oldest first."""
        return [] if self._channel is None else self._channel.unanswered()

    def call(self, call: Call) -> Reply:
        """One call, start to end.

        Raises:
            RejectedError: this call is bad and will stay so.
            StorageError: a URI of it could not be read or written.
            UnavailableError: the server is busy or was lost.
        """
        channel = self._connected()
        outcome = channel.exchange(call)
        if outcome is None:
            outcome = self._call_among_others(channel, call)
        if isinstance(outcome, AccelError):
            raise outcome
        return outcome

    def map(
        self,
        calls: Iterable[Call],
        window: int = 4,
        *,
        ordered: bool = False,
        pack: Union[int, str] = 1,
    ) -> Iterator[Tuple[Call, Outcome]]:
        """Every call with its outcome.

        Args:
            window: requests in flight.
            ordered: in the order of the calls, not in that of completion.
            pack: how many consecutive small calls of the same form (operation, params, specs) may travel as
                one request, or "auto"; each still gets its own outcome.

        Leaving the loop early cancels what is under way.

        Raises:
            UnavailableError: the server was lost; `unanswered` says which requests are open.
        """
        channel = self._connected()
        source = CallSource(calls, window, ordered, pack, self.takes_stacks)
        try:
            while True:
                while channel.n_in_flight < window:
                    following = source.next()
                    if following is None:
                        break
                    channel.submit(following)
                if not channel.n_in_flight:
                    return
                yield from source.settle(*channel.next_outcome())
        except GeneratorExit:
            channel.abandon()
            raise

    def takes_stacks(self, operation: str) -> bool:
        """Whether the server says that several small calls of this operation may travel as one request."""
        return self._channel is not None and operation in self._channel.packable

    def submit(self, call: Call, is_blocking: bool = True) -> None:
        """Send a call; returns when its bytes have left, taking answers that arrive meanwhile.

        A call that cannot be said at all (a key that is too long) or is too large for the server gets its
        `RejectedError` as outcome like any other.

        Args:
            is_blocking: False: return at once; `arrived` sends what has not left by then.

        Raises:
            UnavailableError: the server was lost.
        """
        self._connected().submit(call, is_blocking)

    def arrived(self, is_new: bool = True) -> Optional[Tuple[Call, Outcome]]:
        """The next answer if it is here, or None; never waits, and sends on what has not left.

        Args:
            is_new: False: only what was received before.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        return self._connected().arrived(is_new)

    def await_bytes(self) -> bool:
        """Wait for a moment (`LOOK_S` at most) until bytes have moved, for `arrived`; whether some have.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        return self._connected().await_bytes()

    def fileno(self) -> int:
        """The descriptor to wait for until `arrived` makes sense, for who waits for several clients."""
        return self._connected().transport.fileno()

    @property
    def has_outgoing(self) -> bool:
        """Whether `arrived` has something to send when the descriptor takes it."""
        return self._channel is not None and self._channel.transport.has_outgoing

    @property
    def has_answers(self) -> bool:
        """Whether `arrived` has something even if the descriptor has nothing."""
        return self._channel is not None and self._channel.has_answers

    def cancel(self, call: Call) -> None:
        """Tell the server that a submitted call is no longer wanted.

        Its outcome is then a `RejectedError` with the code ``cancelled``, or the answer if that was faster.
        """
        self._connected().cancel(call)

    def doubt(self) -> None:
        """Others say that the server does not work: wait for ``silent_after_s`` only, promise or not."""
        self._connected().transport.doubt()

    def next_outcome(self) -> Tuple[Call, Outcome]:
        """Wait for the next answer.

        Raises:
            UnavailableError: the server was lost, or silent for too long.
        """
        return self._connected().next_outcome()

    def allocate(self, *specs: TensorSpec) -> List[Tensor]:
        """Tensors to fill in (`Tensor.array`), in memory shared with the server where there is some.

        As inputs of one call they then need no copy at all; the server leaves them as they are. On another
        connection, or together with inputs from elsewhere, they travel like any others.
        """
        return self._connected().allocate(specs)

    def stats(self) -> Mapping[str, Any]:
        """The server's counters, and under ``connection`` how this client's own bytes travel."""
        channel = self._connected()
        stats = channel.stats()
        stats["connection"] = {
            "carrier": channel.transport.carrier,
            "checksum": channel.transport.connection.checksum,
            "shared_bytes": 0 if channel.shared_memory is None else channel.shared_memory.n_bytes,
        }
        return stats

    def ping(self) -> float:
        """Seconds of a round trip through the server's connection (not its stages)."""
        channel = self._connected()
        started_s = time.perf_counter()
        channel.ping()
        return time.perf_counter() - started_s

    def _call_among_others(self, channel: ServerChannel, call: Call) -> Outcome:
        channel.submit(call)
        answered, outcome = channel.next_outcome()
        others = []
        while answered is not call:
            others.append((answered, outcome))
            answered, outcome = channel.next_outcome()
        channel.put_back(others)
        return outcome

    def _connected(self) -> ServerChannel:
        channel = self._channel
        if channel is None or channel.is_over:
            transport = Transport(self.endpoint, self._credential, **self._connect_with)
            try:
                channel = ServerChannel(transport, self._pool, self._copy_results, self._on_progress)
                self._channel = channel
            except BaseException:
                transport.close()
                raise
        return channel
