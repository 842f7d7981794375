"""The bytes of a connection: a socket, or TLS over one, and the queue of what leaves; none ever waits.

Responses leave in the order in which they are posted. As much as the socket takes goes at once, the rest
waits in `ResponseWriter` until the loop says that the socket takes more. TLS works on memory, and what it
says goes when it can. Shared memory carries payloads only: a message names the segment they lie in
(`wire.Placement`), and its descriptor travels with `Carrier.send`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import socket
import ssl
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from yarn_accel.errors import LocalProtocolError, StartupError
from yarn_accel.wire import Buffer, Failed, Message, State

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.wire import ServerConnection


#: A payload on its way in wakes the server when so much of it has come.
_WAKE_BYTES = 512 * 1024


class Carrier:
    """The bytes of one connection.

    Attributes:
        kind: ``tcp``, ``tls`` or ``unix``.
        fd: the descriptor to be watched.
        has_received: whether bytes are at hand that no descriptor tells of.
        has_unsent: whether bytes that `send` has taken are still to be flushed.
    """

    kind = ""
    fd = -1
    has_received = False
    has_unsent = False

    def receive_into(self, view: memoryview) -> int:
        """Receive into `view`; 0: the peer closed its side.

        Raises:
            BlockingIOError: nothing is there now.
            OSError: the connection is lost.
        """
        raise NotImplementedError

    def send(self, parts: Sequence[Buffer], fd: int = -1) -> int:
        """Send some of these parts; how many bytes were taken.

        Args:
            parts: sent one after the other.
            fd: a descriptor that travels with the first byte; -1: none.

        Raises:
            BlockingIOError: nothing more goes now.
            OSError: the connection is lost.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Send what `send` has taken; raises what it raises."""

    def expect(self, n_bytes: int) -> None:
        """So many bytes of a payload are to come: do not wake for less than a good part of them."""

    def shutdown(self, how: int) -> None:
        """Shut one side of the socket down, or both."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the socket."""
        raise NotImplementedError


class SocketCarrier(Carrier):
    """A TCP or Unix socket.

    Args:
        sock: the accepted socket.
        kind: ``tcp`` or ``unix``.
    """

    def __init__(self, sock: socket.socket, kind: str) -> None:
        sock.setblocking(False)
        self.kind = kind
        self.fd = sock.fileno()
        self.receive_into = sock.recv_into  # type: ignore[method-assign,assignment]
        self._sock = sock
        self._wakes_at = 1

    def send(self, parts: Sequence[Buffer], fd: int = -1) -> int:
        """Send some of these parts; see `Carrier.send`."""
        if fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
            return self._sock.sendmsg(parts, rights)
        if len(parts) == 1:
            return self._sock.send(parts[0])
        return self._sock.sendmsg(parts)

    def expect(self, n_bytes: int) -> None:
        """Have the kernel gather a good part of a payload first."""
        if self.kind != "tcp":
            return
        wakes_at = max(1, min(n_bytes, _WAKE_BYTES))
        if wakes_at != self._wakes_at:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)
            self._wakes_at = wakes_at

    def shutdown(self, how: int) -> None:
        """Shut one side of the socket down, or both."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


_RECEIVE_BYTES = 256 * 1024
_SEND_BYTES = 256 * 1024
#: Ciphertext that waits for the socket; while there is more, nothing is encrypted.
_MOST_UNSENT_BYTES = 2 * _SEND_BYTES
#: One for all connections: it holds nothing between two calls.
_received = bytearray(_RECEIVE_BYTES)


def server_context(config: PipelineConfig) -> ssl.SSLContext | None:
    """The TLS context that the configuration asks for; None: none.

    Raises:
        StartupError: a certificate or key cannot be used.
    """
    if not config.tls_cert_file:
        return None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
        if config.tls_client_ca_file:
            context.load_verify_locations(config.tls_client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"TLS cannot be used: {error}",
            cure="see tls_cert_file, tls_key_file and tls_client_ca_file",
        ) from None
    return context


class TlsCarrier(Carrier):
    """TLS over an accepted socket; the handshake happens with the first bytes received.

    Args:
        sock: the socket.
        context: the server's certificate and what it asks of clients.
    """

    kind = "tls"

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        sock.setblocking(False)
        self.fd = sock.fileno()
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        self._is_open = False

    def receive_into(self, view: memoryview) -> int:
        """Receive into `view`; see `Carrier.receive_into`; also raises `ssl.SSLError`."""
        while not self._is_open:
            self._shake_hands()
        while True:
            try:
                n_bytes: int = self._tls.read(len(view), view)  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                self.has_received = False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            else:
                self.has_received = True
                return n_bytes
            if not self._receive():
                return 0
            self._flush_gently()

    def send(self, parts: Sequence[Buffer], fd: int = -1) -> int:
        """Encrypt some of these parts and send what goes; see `Carrier.send`."""
        if len(self._unsent) + self._outgoing.pending >= _MOST_UNSENT_BYTES:
            self.flush()
        part = next((memoryview(part) for part in parts if len(part)), memoryview(b""))[:_SEND_BYTES]
        n_bytes = self._tls.write(part) if len(part) else 0
        self._flush_gently()
        return n_bytes

    def flush(self) -> None:
        """Send the ciphertext that waits; see `Carrier.flush`."""
        try:
            while True:
                if not len(self._unsent):
                    self._unsent = memoryview(self._outgoing.read())
                if not len(self._unsent):
                    return
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        finally:
            self.has_unsent = bool(len(self._unsent) or self._outgoing.pending)

    def shutdown(self, how: int) -> None:
        """Shut one side of the socket down, or both."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
            self._is_open = True
        except ssl.SSLWantReadError:
            pass
        self._flush_gently()
        if not self._is_open and not self._receive():
            raise ConnectionResetError("the peer closed the connection in the TLS handshake")

    def _receive(self) -> bool:
        n_bytes = self._sock.recv_into(_received)
        if n_bytes:
            self._incoming.write(memoryview(_received)[:n_bytes])
        return n_bytes > 0

    def _flush_gently(self) -> None:
        """Send what goes now; the rest waits."""
        with contextlib.suppress(BlockingIOError):
            self.flush()


logger = logging.getLogger(__name__)

#: A larger payload is summed up and sent piece by piece; a smaller one goes faster in one call.
_WHOLE_BYTES = 1024 * 1024
_PIECE_BYTES = 512 * 1024
#: So much leaves in one turn of the loop; others want to be served as well.
_TURN_BYTES = 4 * 1024 * 1024


class ResponseWriter:
    """Sends the messages of one connection.

    Args:
        carrier: the socket.
        connection: the protocol object; its sending side belongs to this object once `is_open` is set.
        stall_timeout_s: how long the peer may take beside what `min_bytes_per_s` allows.
        min_bytes_per_s: slowest acceptable rate.
        on_over: called with the number of each reply that was sent (True) or never will be (False).
        on_blocked: called with whether the socket is to be watched for space.

    Attributes:
        is_open: whether the handshake is over; what is posted before is dropped.
    """

    def __init__(
        self,
        carrier: Carrier,
        connection: ServerConnection,
        stall_timeout_s: float,
        min_bytes_per_s: int,
        on_over: Callable[[int, bool], None],
        on_blocked: Callable[[bool], None],
    ) -> None:
        self.is_open = False
        self._carrier = carrier
        self._connection = connection
        self._stall_timeout_s = stall_timeout_s
        self._min_bytes_per_s = min_bytes_per_s
        self._on_over = on_over
        self._on_blocked = on_blocked
        self._outbox: collections.deque[_Frame] = collections.deque()
        self._due_s = 0.0
        self._is_closed = False
        #: Whether what goes at once goes in one piece.
        self._is_plain = carrier.kind != "tls"

    @property
    def n_waiting(self) -> int:
        """Messages that wait to be sent or are being sent."""
        return len(self._outbox)

    def post(
        self, message: Message, payload: Sequence[memoryview] = (), reply: int = 0, fd: int = -1
    ) -> None:
        """Send a message as soon as may be.

        Args:
            message: what to say; a result that cannot be encoded is said as `Failed`.
            payload: the data of its tensors; must stay as it is until `on_over`.
            reply: passed to `on_over`; 0: nobody wants to know.
            fd: a descriptor that travels with its first byte; -1: none.

        Raises:
            OSError: the connection is lost.
        """
        if not self.is_open or self._is_closed:
            if reply:
                self._on_over(reply, False)
            return
        if fd < 0 and self._is_plain and not self._outbox and self._post_whole(message, payload, reply):
            return
        self._outbox.append(_Frame(message, payload, reply, fd))
        if len(self._outbox) == 1:
            self.flush()

    def _post_whole(self, message: Message, payload: Sequence[memoryview], reply: int) -> bool:
        """Send a message in one call, as most are; False: it is too large, or cannot be said like this."""
        n_bytes = _length(payload)
        if n_bytes > _WHOLE_BYTES:
            return False
        try:
            head, checksum = self._connection.send_head(message)
        except LocalProtocolError:
            return False
        parts: list[Buffer] = [head, *payload]
        if checksum is not None:
            for part in payload:
                checksum.update(part)
            parts.append(checksum.digest())
        try:
            rest = _after(parts, self._carrier.send(parts))
        except BlockingIOError:
            rest = parts
        except OSError:
            if reply:
                self._on_over(reply, False)
            raise
        if rest:
            frame = _Frame(message, payload, reply, -1)
            frame.rest, frame.ready, frame.is_begun = [], rest, True
            self._outbox.append(frame)
            self._on_blocked(True)
        elif reply:
            self._on_over(reply, True)
        return True

    def flush(self) -> None:
        """Send what the socket takes now; to be called when it takes more.

        Raises:
            OSError: the connection is lost.
        """
        left = _TURN_BYTES
        outbox = self._outbox
        try:
            while outbox and left > 0:
                frame = outbox[0]
                if not frame.is_begun:
                    self._begin(frame)
                n_bytes = self._send_some(frame)
                left -= n_bytes
                if not frame.is_over or self._carrier.has_unsent:
                    if not n_bytes:
                        self._carrier.flush()
                    continue
                outbox.popleft()
                self._due_s = 0.0
                reply = frame.reply
                # Views of the memory must be gone before it is given back.
                del frame
                if reply:
                    self._on_over(reply, True)
        except BlockingIOError:
            pass
        if not self._is_closed:
            self._on_blocked(bool(outbox))

    def check_pace(self, now_s: float) -> None:
        """Give up on a peer that does not read what is sent to it, or too slowly.

        Raises:
            TimeoutError: it had its time.
        """
        if not self._outbox:
            self._due_s = 0.0
        elif not self._due_s:
            n_bytes = self._outbox[0].n_bytes
            self._due_s = now_s + self._stall_timeout_s + n_bytes / self._min_bytes_per_s
        elif now_s > self._due_s:
            raise TimeoutError("the peer does not read, or too slowly")

    def goodbye(self, code: str, message: str) -> bool:
        """Send the last frame, if no other is half sent; whether it went."""
        if not self.is_open or self._outbox or self._is_closed:
            return False
        try:
            for part in self._connection.goodbye(code, message):
                self._carrier.send([part])
        except (OSError, LocalProtocolError):
            return False
        return True

    def close(self) -> None:
        """Send nothing more; what waits is dropped."""
        self._is_closed = True
        # Without this circle the memory of a connection returns at once.
        self._on_blocked = _nothing
        left, self._outbox = self._outbox, collections.deque()
        for frame in left:
            if frame.reply:
                self._on_over(frame.reply, False)

    def _begin(self, frame: _Frame) -> None:
        """Encode a message; one that cannot be encoded becomes `Failed`, and its payload stays here."""
        connection = self._connection
        frame.is_begun = True
        try:
            head, frame.sum = connection.send_head(frame.message)
        except LocalProtocolError as error:
            if connection.state is not State.OPEN:
                raise ConnectionResetError("the connection is closed") from None
            logger.warning("a message cannot be sent: %s", error.message)
            request_id = int(getattr(frame.message, "id", 0))
            text = f"the result cannot be sent: {error.message}"[:2000]
            head, frame.sum = connection.send_head(Failed(request_id, "internal", "unsendable-result", text))
            frame.rest = []
        frame.ready.append(head)
        if frame.sum is None:
            frame.ready += frame.rest
            frame.rest = []

    def _send_some(self, frame: _Frame) -> int:
        if frame.sum is not None and _length(frame.ready) < _PIECE_BYTES:
            frame.sum_up()
        if not frame.ready:
            return 0
        n_bytes = self._carrier.send(frame.ready, frame.fd)
        frame.fd = -1
        frame.ready = _after(frame.ready, n_bytes)
        self._due_s = self._due_s if frame.n_bytes else 0.0
        return n_bytes


class _Frame:
    """A message on its way: what is ready to be sent, and what is still to be summed up.

    Attributes:
        sum: the running checksum of the payload; None: there is none, or it is ready to be sent.
    """

    __slots__ = ("fd", "is_begun", "message", "n_bytes", "ready", "reply", "rest", "sum")

    def __init__(self, message: Any, payload: Sequence[memoryview], reply: int, fd: int) -> None:
        self.message = message
        self.rest = list(payload)
        self.reply = reply
        self.fd = fd
        self.n_bytes = _length(payload)
        self.ready: list[Buffer] = []
        self.sum: Any = None
        self.is_begun = False

    @property
    def is_over(self) -> bool:
        """Whether everything was handed to the carrier."""
        return self.is_begun and not self.ready and self.sum is None

    def sum_up(self) -> None:
        """Make the next pieces ready; after the last one comes the checksum."""
        left = _WHOLE_BYTES if self.n_bytes <= _WHOLE_BYTES else _PIECE_BYTES
        while self.rest and left:
            part = self.rest[0]
            piece = part[:left]
            self.sum.update(piece)
            self.ready.append(piece)
            left -= len(piece)
            if len(piece) == len(part):
                self.rest.pop(0)
            else:
                self.rest[0] = part[len(piece) :]
        if not self.rest:
            self.ready.append(self.sum.digest())
            self.sum = None


def _nothing(is_wanted: bool) -> None:
    """Of a closed connection nothing is watched."""


def _length(parts: Sequence[Buffer]) -> int:
    return sum(map(len, parts)) if parts else 0


def _after(parts: list[Buffer], n_bytes: int) -> list[Buffer]:
    """The rest of `parts` behind the first `n_bytes`."""
    for index, part in enumerate(parts):
        if n_bytes < len(part):
            rest = parts[index:]
            if n_bytes:
                rest[0] = memoryview(part)[n_bytes:]
            return rest
        n_bytes -= len(part)
    return []
