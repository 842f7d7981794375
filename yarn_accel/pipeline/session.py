"""One client's connection: a thread that receives, while any thread may answer (`sending.Sender`).

The thread owns the receiving side of the protocol object.  When a connection has been quiet for a while the
thread ends, and the socket is watched together with all other quiet ones (`parking.Parking`) until it has
something to say.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Protocol

from yarn_accel.errors import AuthenticationError, LocalProtocolError, ProtocolError, RemoteProtocolError
from yarn_accel.pipeline.budget import ByteBudget
from yarn_accel.pipeline.loans import Loans
from yarn_accel.pipeline.sending import Parcel, Sender
from yarn_accel.wire import (
    MEMFD,
    NEED_DATA,
    NONCE_BYTES,
    PROGRESS,
    Cancel,
    Closed,
    Credential,
    GiveBack,
    Goodbye,
    Lend,
    Limits,
    Opened,
    PayloadComplete,
    Ping,
    Pong,
    Request,
    ServerConnection,
    StatsRequest,
    available_checksums,
)

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.pool import Pool
    from yarn_accel.pipeline.sending import Stream
    from yarn_accel.pipeline.work import Plan, Work

__all__ = ["Front", "Session"]

logger = logging.getLogger(__name__)

_LINGER_S = 1.0
#: One connection may hold this part of a queue.
_SHARE = 2
#: A connection that was quiet for so long gives its thread back.
_QUIET_S = 2.0
#: A payload is waited for in large pieces; if it is summed up, in such as are still in the cache then.
_PIECE_BYTES = 8 * 1024 * 1024
_SUMMED_PIECE_BYTES = 1024 * 1024
#: Of a request that was refused, a longer payload ends the connection.
_MOST_SKIPPED_BYTES = 64 * 1024 * 1024
_ONE_CALL_BYTES = 64 * 1024


class Front(Protocol):
    """What a session needs of the server behind it.

    Attributes:
        writing: counts the bytes of answers that wait to leave.
    """

    writing: ByteBudget

    def room_made(self) -> None:
        """Some have left."""

    def opened(self, session: Session) -> None:
        """The session has proved its credential."""

    def request(self, session: Session, request: Request) -> Work | None:
        """Admit a request; None when it was answered at once and its payload is not wanted."""

    def arrived(self, work: Work) -> None:
        """The payload of a work is complete."""

    def broken_off(self, work: Work) -> None:
        """The payload of a work will never be complete."""

    def cancel(self, session: Session, request_id: int) -> None:
        """The client no longer wants an answer."""

    def lend(self, session: Session, request: Lend) -> None:
        """The client wants shared memory."""

    def stats_wanted(self, session: Session, request: StatsRequest) -> None:
        """The client wants the counters."""


class Session:
    """A connection.

    Args:
        stream: the accepted socket, or TLS over it.
        carrier: ``tcp``, ``tls`` or ``unix``.
        config: limits and time-outs.
        master: the site's master secret.
        pool: where lent memory comes from.
        front: the server behind.
        refusal: code and message to refuse the connection with; None: let it in.
    """

    def __init__(
        self,
        stream: Stream,
        carrier: str,
        config: PipelineConfig,
        master: bytes,
        pool: Pool,
        front: Front,
        refusal: tuple[str, str] | None = None,
    ) -> None:
        self.carrier = carrier
        #: The plan of the last request: most clients send many of one kind.
        self.plan: Plan | None = None
        #: How the connection ended: ``closed``, ``refused`` or ``broken``.
        self.how_ended = "closed"
        #: What its requests hold until their answers have left: who does not read fills its own share of the
        #: queues, not all of them.
        self.held = ByteBudget(config.queue_bytes // _SHARE)
        #: Its requests under way, by their number.
        self.works: dict[int, Work] = {}
        self._stream = stream
        self._config = config
        self._front = front
        self._refusal = refusal
        may_lend = carrier == "unix" and config.max_lent_bytes > 0
        self._connection = _connection(carrier, config, master, may_lend)
        self.sender = self._sender(stream, carrier, config, front)
        self.loans = Loans(pool, config.max_lent_bytes if may_lend else 0)
        self._incoming: Work | None = None
        self._piece_bytes = _PIECE_BYTES
        self._frame_due_s = 0.0
        self._started_s = self._heard_s = time.monotonic()
        self._is_open = False
        self._is_closed = False
        patience_s = min(config.stall_timeout_s, config.handshake_timeout_s, 4 * _QUIET_S) / 4
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(patience_s))
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(config.stall_timeout_s))

    def _sender(self, stream: Stream, carrier: str, config: PipelineConfig, front: Front) -> Sender:
        return Sender(
            stream,
            self._connection,
            carrier != "tls",
            config.stall_timeout_s,
            config.min_bytes_per_s,
            front.writing,
            front.room_made,
            self.close,
        )

    @property
    def credential(self) -> Credential:
        """Who the client is.

        Raises:
            LocalProtocolError: it has not proved it yet.
        """
        if self._connection.credential is None:
            raise LocalProtocolError("the client has not proved its credential")
        return self._connection.credential

    @property
    def wants_progress(self) -> bool:
        """Whether every unanswered request is to be reported once per `PROGRESS_INTERVAL_S`."""
        return PROGRESS in self._connection.capabilities

    @property
    def label(self) -> str:
        """Carrier and payload checksum, as ``stats`` shows them."""
        carrier = "memfd" if len(self.loans) else self.carrier
        return f"{carrier}/{self._connection.checksum}"

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._stream.fileno()

    def run(self) -> bool:
        """Receive until the connection ends, which is True, or has been quiet for a while."""
        try:
            if not self._receive():
                return False
        except AuthenticationError as error:
            logger.warning("connection refused: %s", error.message)
            self.how_ended = "refused"
            self._send_handshake()
            self._say_goodbye("credential", error.message)
        except ProtocolError as error:
            logger.warning("connection broken: %s", error.message)
            self.how_ended = "broken"
            self._send_handshake()
            self._say_goodbye("protocol-error", error.message)
        except OSError as error:
            logger.info("connection lost: %s", error)
        return True

    def end(self) -> None:
        """Let go of everything after `run` is over."""
        self.close()
        work, self._incoming = self._incoming, None
        if work is not None:
            self._front.broken_off(work)
        self.loans.end()
        self.sender.release()

    def close(self) -> None:
        """End the connection, from any thread; its own thread sees that soon after."""
        self._is_closed = True
        self.held.close()
        self.sender.close()
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    # The receiving thread

    def _receive(self) -> bool:
        connection, stream = self._connection, self._stream
        while not self._is_closed:
            view = connection.wanted()
            flags = 0
            if self._incoming is not None and len(view) > _ONE_CALL_BYTES:
                view, flags = view[: self._piece_bytes], socket.MSG_WAITALL
            try:
                n_bytes = stream.recv_into(view, 0, flags)
            except BlockingIOError:
                if self._is_quiet():
                    connection.rest()
                    return False
                self._check_pace()
                continue
            if self._refusal is not None:
                connection.refuse(*self._refusal, retry_after_s=1)
                raise AuthenticationError(self._refusal[1])
            connection.received(n_bytes)
            while (event := connection.next_event()) is not NEED_DATA:
                if isinstance(event, Closed):
                    return True
                self._take(event)
            if not self._is_open:
                self._send_handshake()
                self._check_pace()
            elif connection.is_mid_frame:
                self._check_pace()
                self._heard_s = time.monotonic()
        return True

    def _is_quiet(self) -> bool:
        return (
            self._is_open
            and not self._connection.is_mid_frame
            and not getattr(self._stream, "pending", False)
        )

    def _take(self, event: Any) -> None:
        kind = type(event)
        if kind is Request:
            self._take_request(event)
        elif kind is PayloadComplete:
            work, self._incoming = self._incoming, None
            self._frame_due_s = 0.0
            if work is not None:
                self._front.arrived(work)
        else:
            self._take_other(kind, event)

    def _take_other(self, kind: type, event: Any) -> None:
        if kind is GiveBack:
            self.loans.give_back(event.segment)
        elif kind is Lend:
            self._front.lend(self, event)
        elif kind is Cancel:
            self._front.cancel(self, event.id)
        elif kind is StatsRequest:
            self._front.stats_wanted(self, event)
        elif kind is Ping:
            self.sender.post(Parcel(Pong(event.token)))
        elif kind is Opened:
            self._send_handshake()
            self._is_open = self.sender.is_open = True
            self._piece_bytes = _PIECE_BYTES if self._connection.checksum == "none" else _SUMMED_PIECE_BYTES
            self._front.opened(self)
        elif kind is Goodbye:
            raise ConnectionResetError(f"the client says goodbye: {event.message}")

    def _take_request(self, request: Request) -> None:
        connection = self._connection
        work = self._front.request(self, request)
        n_bytes = connection.payload_left
        if not n_bytes:
            if work is not None:
                self._front.arrived(work)
            return
        # Waiting for memory was our doing: the client's time for the payload begins now.
        self._frame_due_s = 0.0
        if work is None:
            if n_bytes > max(self._config.max_request_bytes, _MOST_SKIPPED_BYTES):
                raise RemoteProtocolError(f"a payload of {n_bytes} bytes is not waited for")
            connection.skip_payload()
        else:
            self._incoming = work
            connection.take_payload(work.payload_views())

    def _check_pace(self) -> None:
        """End a connection whose peer stays in the middle of a frame or handshake for too long."""
        now_s = time.monotonic()
        if not self._is_open:
            if now_s > self._started_s + self._config.handshake_timeout_s:
                raise RemoteProtocolError("the credential was not proved in time")
            return
        if not self._connection.is_mid_frame:
            self._frame_due_s = 0.0
        elif not self._frame_due_s:
            self._heard_s = now_s
            self._frame_due_s = self._due_s(self._connection.payload_left)
        elif now_s > self._frame_due_s or now_s > self._heard_s + self._config.stall_timeout_s:
            raise RemoteProtocolError("the peer is too slow: a frame was begun and not finished in time")

    def _due_s(self, n_bytes: int) -> float:
        return time.monotonic() + self._config.stall_timeout_s + n_bytes / self._config.min_bytes_per_s

    def _send_handshake(self) -> None:
        for part in self._connection.data_to_send():
            with contextlib.suppress(OSError):
                self._stream.sendall(part)

    def _say_goodbye(self, code: str, message: str) -> None:
        """Tell the peer what it did wrong, if it still listens."""
        if not self.sender.goodbye(code, message) and self._is_open:
            return
        with contextlib.suppress(OSError):
            # Closing with unread bytes would discard what was just sent.
            self._stream.shutdown(socket.SHUT_WR)
            until_s = time.monotonic() + _LINGER_S
            scratch = bytearray(65536)
            while time.monotonic() < until_s and self._stream.recv_into(scratch):
                pass


def _connection(carrier: str, config: PipelineConfig, master: bytes, may_lend: bool) -> ServerConnection:
    return ServerConnection(
        master,
        secrets.token_bytes(NONCE_BYTES),
        time.time(),
        config.name,
        _checksums(carrier, config),
        config.max_request_bytes,
        config.max_in_flight,
        Limits(payload_bytes=1 << 40),
        max_lent_bytes=config.max_lent_bytes if may_lend else 0,
        capabilities=(PROGRESS, MEMFD) if may_lend else (PROGRESS,),
    )


def _checksums(carrier: str, config: PipelineConfig) -> tuple[str, ...]:
    """What a client may choose: no checksum only where nothing can be damaged on the way."""
    allowed = [name for name in config.checksums if name == "none" or name in available_checksums()]
    if carrier != "tcp" and "none" not in allowed:
        allowed.append("none")
    return tuple(allowed)


def _timeval(seconds: float) -> bytes:
    seconds = max(seconds, 0.001)
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
