"""One client's connection: a thread that receives, and a box of answers that any thread may send from.

The thread owns the receiving side of the protocol object.  Sending has one owner at a time: whoever puts a
parcel into the empty outbox owns it until it is empty again; everyone else just adds.  So a client that does
not read holds up at most one sender, and that only until `stall_timeout_s`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from yarn_accel.errors import AuthenticationError, LocalProtocolError, ProtocolError, RemoteProtocolError
from yarn_accel.wire import (
    NEED_DATA,
    NONCE_BYTES,
    Buffer,
    Cancel,
    Closed,
    Credential,
    Failed,
    Goodbye,
    Limits,
    Message,
    Opened,
    PayloadComplete,
    Ping,
    Pong,
    Request,
    ServerConnection,
    State,
    StatsRequest,
)

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.work import Work

__all__ = ["Front", "Parcel", "Session"]

logger = logging.getLogger(__name__)

_MAX_OUTBOX = 1024
_MAX_PARTS = 64
_LINGER_S = 1.0


class Front(Protocol):
    """What a session needs of the server behind it."""

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

    def stats_wanted(self, session: Session, request: StatsRequest) -> None:
        """The client wants the counters."""

    def ended(self, session: Session, how: str) -> None:
        """The session is over: ``closed``, ``refused`` or ``broken``."""


@dataclass(slots=True)
class Parcel:
    """A message with its payload; `on_gone` is called once when it was sent or never will be."""

    message: Message
    payload: Sequence[Buffer] = ()
    on_gone: Callable[[], None] | None = None


class Session:
    """A connection and its thread.

    Args:
        sock: the accepted socket.
        carrier: ``tcp`` or ``unix``.
        config: limits and time-outs.
        master: the site's master secret.
        front: the server behind.
        refusal: code and message to refuse the connection with; None: let it in.
    """

    def __init__(
        self,
        sock: socket.socket,
        carrier: str,
        config: PipelineConfig,
        master: bytes,
        front: Front,
        refusal: tuple[str, str] | None = None,
    ) -> None:
        self.carrier = carrier
        self._sock = sock
        self._config = config
        self._front = front
        self._refusal = refusal
        self._connection = ServerConnection(
            master,
            secrets.token_bytes(NONCE_BYTES),
            time.time(),
            config.name,
            ("none", "crc32") if carrier == "unix" or config.checksum == "none" else ("crc32",),
            config.max_request_bytes,
            config.max_in_flight,
            Limits(payload_bytes=1 << 40),
        )
        self._incoming: Work | None = None
        self._frame_due_s = 0.0
        self._started_s = self._heard_s = time.monotonic()
        self._lock = threading.Lock()
        self._outbox: collections.deque[Parcel] = collections.deque()
        self._is_sending = False
        self._is_closed = False
        self._is_released = False
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            seconds = config.stall_timeout_s
            if option == socket.SO_RCVTIMEO:
                seconds = min(seconds, config.handshake_timeout_s) / 4
            sock.setsockopt(socket.SOL_SOCKET, option, _timeval(seconds))

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
    def checksum(self) -> str:
        """The payload checksum of this connection."""
        return self._connection.checksum

    @property
    def has_outgoing(self) -> bool:
        """Whether something waits to be sent or is being sent."""
        return self._is_sending

    # The receiving thread

    def run(self) -> None:
        """Receive until the connection ends; the body of the session's thread."""
        how = "closed"
        try:
            self._receive_all()
        except AuthenticationError as error:
            logger.warning("connection refused: %s", error.message)
            how = "refused"
            self._send_handshake()
        except ProtocolError as error:
            logger.warning("connection broken: %s", error.message)
            how = "broken"
            self._say_goodbye(error)
        except OSError as error:
            logger.info("connection lost: %s", error)
        finally:
            self.close()
            self._front.ended(self, how)
            if self._incoming is not None:
                self._front.broken_off(self._incoming)

    def _receive_all(self) -> None:
        while not self._is_closed:
            try:
                n_bytes = self._sock.recv_into(self._connection.wanted())
            except BlockingIOError:
                self._check_pace()
                continue
            if self._refusal is not None:
                self._connection.refuse(*self._refusal, retry_after_s=1)
                raise AuthenticationError(self._refusal[1])
            self._heard_s = time.monotonic()
            self._connection.received(n_bytes)
            while (event := self._connection.next_event()) is not NEED_DATA:
                if isinstance(event, Closed):
                    return
                self._send_handshake()
                self._take(event)
            self._send_handshake()
            self._check_pace()

    def _take(self, event: Any) -> None:
        if isinstance(event, Request):
            self._take_request(event)
        elif isinstance(event, PayloadComplete):
            work, self._incoming = self._incoming, None
            self._frame_due_s = 0.0
            if work is not None:
                self._front.arrived(work)
        elif isinstance(event, Cancel):
            self._front.cancel(self, event.id)
        elif isinstance(event, StatsRequest):
            self._front.stats_wanted(self, event)
        elif isinstance(event, Ping):
            self.post_and_send(Parcel(Pong(event.token)))
        elif isinstance(event, Opened):
            self._front.opened(self)
        elif isinstance(event, Goodbye):
            raise ConnectionResetError(f"the client says goodbye: {event.message}")

    def _take_request(self, request: Request) -> None:
        work = self._front.request(self, request)
        n_bytes = self._connection.payload_left
        if not n_bytes:
            if work is not None:
                self._front.arrived(work)
            return
        # Waiting for memory was our doing: the client's time for the payload begins now.
        self._heard_s = time.monotonic()
        self._frame_due_s = self._due_s(n_bytes)
        if work is None:
            self._connection.skip_payload()
        else:
            self._incoming = work
            self._connection.take_payload(work.payload_views())

    def _check_pace(self) -> None:
        """End a connection whose peer stays in the middle of a frame or handshake for too long."""
        now_s = time.monotonic()
        if self._connection.credential is None:
            if now_s > self._started_s + self._config.handshake_timeout_s:
                raise RemoteProtocolError("the credential was not proved in time")
            return
        if not self._connection.is_mid_frame:
            self._frame_due_s = 0.0
        elif not self._frame_due_s:
            self._frame_due_s = self._due_s(self._connection.payload_left)
        elif now_s > self._frame_due_s or now_s > self._heard_s + self._config.stall_timeout_s:
            raise RemoteProtocolError("the peer is too slow: a frame was begun and not finished in time")

    def _due_s(self, n_bytes: int) -> float:
        return time.monotonic() + self._config.stall_timeout_s + n_bytes / self._config.min_bytes_per_s

    # Sending, from any thread

    def post(self, parcel: Parcel) -> bool:
        """Put a parcel into the outbox; True: the caller must see to it that `send_outbox` is called."""
        with self._lock:
            if not self._is_closed and len(self._outbox) < _MAX_OUTBOX:
                self._outbox.append(parcel)
                is_mine, self._is_sending = not self._is_sending, True
                return is_mine
        self.close()
        _gone(parcel)
        return False

    def post_and_send(self, parcel: Parcel) -> None:
        """Put a parcel into the outbox, and send it unless somebody is sending already."""
        if self.post(parcel):
            self.send_outbox()

    def send_outbox(self) -> None:
        """Send until the outbox is empty."""
        while True:
            with self._lock:
                if not self._outbox:
                    self._is_sending = False
                    if self._is_released:
                        self._sock.close()
                    return
                parcel = self._outbox.popleft()
            try:
                if not self._is_closed:
                    self._send(self._parts(parcel))
            except (OSError, LocalProtocolError) as error:
                logger.info("connection lost while sending: %s", error)
                self.close()
            finally:
                _gone(parcel)

    def close(self) -> None:
        """End the connection; the receiving thread ends soon after."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            dropped = list(self._outbox)
            self._outbox.clear()
        if not was_closed:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        for parcel in dropped:
            _gone(parcel)

    def release(self) -> None:
        """Free the socket; if another thread is sending, as soon as it is done."""
        with self._lock:
            self._is_released = True
            if not self._is_sending:
                self._sock.close()

    def _parts(self, parcel: Parcel) -> list[Buffer]:
        try:
            return self._connection.send(parcel.message, parcel.payload)
        except LocalProtocolError as error:
            if self._connection.state is not State.OPEN:
                return []
            logger.exception("a result cannot be sent")
            request_id = int(getattr(parcel.message, "id", 0))
            text = f"the result cannot be sent: {error.message}"[:2000]
            return self._connection.send(Failed(request_id, "internal", "unsendable-result", text))

    def _send(self, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part) for part in parts]
        due_s = self._due_s(sum(len(view) for view in views))
        first = 0
        while first < len(views):
            try:
                n_bytes = self._sock.sendmsg(views[first : first + _MAX_PARTS])
            except BlockingIOError:
                raise TimeoutError("the peer does not read") from None
            while first < len(views) and n_bytes >= len(views[first]):
                n_bytes -= len(views[first])
                first += 1
            if first < len(views):
                views[first] = views[first][n_bytes:]
                if time.monotonic() > due_s:
                    raise TimeoutError("the peer reads too slowly")

    def _send_handshake(self) -> None:
        for part in self._connection.data_to_send():
            with contextlib.suppress(OSError):
                self._send([part])

    def _say_goodbye(self, error: ProtocolError) -> None:
        """Tell the peer what it did wrong, if it still listens."""
        self._send_handshake()
        with self._lock:
            is_mine, self._is_sending = not self._is_sending, True
        if not is_mine:
            return
        self._send_goodbye(error)
        self.send_outbox()

    def _send_goodbye(self, error: ProtocolError) -> None:
        with contextlib.suppress(OSError, LocalProtocolError):
            self._send(self._connection.goodbye("protocol-error", error.message))
            # Closing with unread bytes would discard what was just sent.
            self._sock.shutdown(socket.SHUT_WR)
            until_s = time.monotonic() + _LINGER_S
            while time.monotonic() < until_s and self._sock.recv(65536):
                pass


def _gone(parcel: Parcel) -> None:
    if parcel.on_gone is not None:
        parcel.on_gone()


def _timeval(seconds: float) -> bytes:
    seconds = max(seconds, 0.001)
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
