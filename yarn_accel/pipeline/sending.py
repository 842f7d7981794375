"""The sending side of a connection: any thread may post, a slow peer blocks nobody but its own writer.

Whoever posts sends as much as the socket takes at once, without waiting.  What is left, and all that is
posted until it has gone, is the business of the session's writer: a thread made when it is first needed,
which ends after a second without work.  A connection whose outbox overflows, or whose peer takes longer than
the limits allow, is closed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from yarn_accel.errors import LocalProtocolError
from yarn_accel.wire import Buffer, Failed, Message, State

if TYPE_CHECKING:
    from yarn_accel.pipeline.budget import ByteBudget
    from yarn_accel.pipeline.tls import TlsStream
    from yarn_accel.wire import ServerConnection

    Stream = socket.socket | TlsStream

__all__ = ["Parcel", "Sender"]

logger = logging.getLogger(__name__)

_MAX_OUTBOX = 1024
_LINGER_S = 1.0
#: A larger payload is summed up and sent piece by piece; a smaller one goes faster in one call.
_WHOLE_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
#: Summing up more than this is left to the writer.
_DIRECT_BYTES = 1024 * 1024


@dataclass(slots=True)
class Parcel:
    """A message with its payload.

    Attributes:
        on_gone: called once, when it was sent or never will be.
        fd: a descriptor that travels with its first byte; -1: none.
        on_unsent: called once, before `on_gone`, when it will never be sent, or was only in part.
    """

    message: Message
    payload: Sequence[memoryview] = ()
    on_gone: Callable[[], None] | None = None
    fd: int = -1
    on_unsent: Callable[[], None] | None = None

    @property
    def n_bytes(self) -> int:
        """Of the payload."""
        return sum(map(len, self.payload)) if self.payload else 0

    def over(self, was_sent: bool) -> None:
        """Tell who posted it that it is over."""
        if not was_sent and self.on_unsent is not None:
            self.on_unsent()
        if self.on_gone is not None:
            self.on_gone()


class Sender:
    """Sends parcels in the order in which they are posted.

    Args:
        stream: the socket, blocking, with a send time-out.
        connection: the protocol object; its sending side belongs to this object once `is_open` is set.
        is_direct: whether a posting thread may send (not with TLS: its records cannot be sent in part).
        stall_timeout_s: how long the peer may take beside what `min_bytes_per_s` allows.
        min_bytes_per_s: slowest acceptable rate.
        writing: counts the bytes of payloads that wait to leave.
        on_left: called, by the writer, when some have left.
        on_lost: called, from any thread, when the connection cannot go on.
    """

    def __init__(
        self,
        stream: Stream,
        connection: ServerConnection,
        is_direct: bool,
        stall_timeout_s: float,
        min_bytes_per_s: int,
        writing: ByteBudget,
        on_left: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        #: Whether the handshake is over; what is posted before is dropped.
        self.is_open = False
        self._stream = stream
        self._connection = connection
        self._is_direct = is_direct
        self._stall_timeout_s = stall_timeout_s
        self._min_bytes_per_s = min_bytes_per_s
        self._writing = writing
        self._on_left = on_left
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._outbox: queue.SimpleQueue[_Transit | Parcel] = queue.SimpleQueue()
        self._n_pending = 0
        self._has_writer = False
        self._is_closed = False
        self._is_released = False

    @property
    def has_outgoing(self) -> bool:
        """Whether something waits to be sent or is being sent."""
        return self._n_pending > 0

    def post(self, parcel: Parcel) -> None:
        """Send a parcel as soon as may be; never blocks."""
        was_sent = is_lost = False
        with self._lock:
            if self.is_open and not self._is_closed:
                item: _Transit | Parcel | None = parcel
                if not self._n_pending and self._is_direct:
                    item = self._send_directly(parcel)
                if item is not None and self._leave_to_writer(parcel, item):
                    return
                is_lost = self._is_closed
                was_sent = item is None and not is_lost and self._connection.state is State.OPEN
        parcel.over(was_sent)
        if is_lost:
            self._on_lost()

    def goodbye(self, code: str, message: str) -> bool:
        """Send the last frame, if no other is half sent; whether it went."""
        with self._lock:
            if not self.is_open or self._n_pending or self._is_closed:
                return False
            try:
                for part in self._connection.goodbye(code, message):
                    self._stream.sendmsg([part])
            except (OSError, LocalProtocolError):
                return False
            return True

    def close(self) -> None:
        """Send nothing more; what waits is dropped."""
        self._is_closed = True

    def release(self) -> None:
        """Free the socket; if the writer is at work, as soon as it is done."""
        with self._lock:
            self._is_released = True
            if not self._n_pending:
                self._stream.close()

    # With the lock

    def _send_directly(self, parcel: Parcel) -> _Transit | None:
        """Send what goes without waiting; returns what is left of it."""
        transit = self._begin(parcel)
        if transit is None or transit.is_long:
            return transit
        try:
            return None if transit.send(self._stream, socket.MSG_DONTWAIT) else transit
        except BlockingIOError:
            return transit
        except OSError as error:
            self._lose(error)
            return None

    def _leave_to_writer(self, parcel: Parcel, item: _Transit | Parcel) -> bool:
        if self._n_pending >= _MAX_OUTBOX:
            self._lose(TimeoutError("too many answers wait for the peer to read them"))
            return False
        if not self._has_writer:
            try:
                threading.Thread(target=self._write_loop, name="session-writer", daemon=True).start()
            except RuntimeError as error:
                self._lose(error)
                return False
            self._has_writer = True
        self._n_pending += 1
        self._writing.count(parcel.n_bytes)
        self._outbox.put(item)
        return True

    def _lose(self, error: Exception) -> None:
        logger.info("connection lost while sending: %s", error)
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    # The writer's thread

    def _write_loop(self) -> None:
        while True:
            try:
                item = self._outbox.get(timeout=_LINGER_S)
            except queue.Empty:
                with self._lock:
                    if not self._n_pending:
                        self._has_writer = False
                        return
                continue
            self._write(item)
            del item

    def _write(self, item: _Transit | Parcel) -> None:
        parcel = item if isinstance(item, Parcel) else item.parcel
        was_sent = False
        try:
            transit = self._begin(item) if isinstance(item, Parcel) else item
            if transit is not None and not self._is_closed:
                was_sent = self._send_all(transit)
        except OSError as error:
            self._lose(error)
            self._on_lost()
        finally:
            # Views of the memory must be gone before it is given back.
            del item
            transit = None
            n_bytes = parcel.n_bytes
            parcel.over(was_sent)
            self._writing.release(n_bytes)
            with self._lock:
                self._n_pending -= 1
                if self._is_released and not self._n_pending:
                    self._stream.close()
            self._on_left()

    def _send_all(self, transit: _Transit) -> bool:
        """Send the rest of a frame; False when the connection was closed meanwhile."""
        due_s = time.monotonic() + self._stall_timeout_s + transit.parcel.n_bytes / self._min_bytes_per_s
        while True:
            try:
                if transit.send(self._stream, 0):
                    return True
            except BlockingIOError:
                raise TimeoutError("the peer does not read") from None
            if self._is_closed:
                return False
            if time.monotonic() > due_s:
                raise TimeoutError("the peer reads too slowly")

    def _begin(self, parcel: Parcel) -> _Transit | None:
        """Encode a message; one that cannot be encoded becomes `Failed`, and its payload stays here."""
        connection = self._connection
        if self._is_closed:
            return None
        try:
            head, trailer = connection.send_head(parcel.message)
            return _Transit(parcel, head, parcel.payload, trailer)
        except LocalProtocolError as error:
            if connection.state is not State.OPEN:
                return None
            logger.warning("a message cannot be sent: %s", error.message)
            request_id = int(getattr(parcel.message, "id", 0))
            text = f"the result cannot be sent: {error.message}"[:2000]
            head, trailer = connection.send_head(Failed(request_id, "internal", "unsendable-result", text))
            return _Transit(parcel, head, (), trailer)


class _Transit:
    """A frame on its way: what is ready to be sent, and what is still to be summed up.

    Attributes:
        is_long: whether much is to be summed up.
    """

    __slots__ = ("_ancillary", "_ready", "_rest", "_trailer", "is_long", "parcel")

    def __init__(self, parcel: Parcel, head: Buffer, payload: Sequence[memoryview], trailer: Any) -> None:
        self.parcel = parcel
        self._trailer = trailer
        self._ancillary: Sequence[tuple[int, int, array[int]]] = ()
        if trailer is None:
            self._ready: list[Buffer] = [head, *payload]
            self.is_long = False
        else:
            self._ready = [head]
            self._rest = list(payload)
            self.is_long = parcel.n_bytes > _DIRECT_BYTES
        if parcel.fd >= 0:
            self._ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [parcel.fd]))]

    def send(self, stream: Stream, flags: int) -> bool:
        """Send some more; whether everything has gone.

        Raises:
            OSError: among them BlockingIOError when nothing more goes now.
        """
        if self._trailer is not None:
            self._sum_up()
        n_bytes = stream.sendmsg(self._ready, self._ancillary, flags)
        self._ancillary = ()
        self._ready = _after(self._ready, n_bytes)
        return not self._ready and self._trailer is None

    def _sum_up(self) -> None:
        """Make the next pieces ready; after the last one comes the checksum."""
        room = _WHOLE_BYTES if self.parcel.n_bytes <= _WHOLE_BYTES else _PIECE_BYTES
        while self._rest and room:
            part = self._rest[0]
            piece = part[:room]
            self._trailer.update(piece)
            self._ready.append(piece)
            room -= len(piece)
            if len(piece) == len(part):
                self._rest.pop(0)
            else:
                self._rest[0] = part[len(piece) :]
        if not self._rest:
            self._ready.append(self._trailer.digest())
            self._trailer = None


def _after(parts: list[Buffer], n_bytes: int) -> list[Buffer]:
    """What is left of `parts` behind the first `n_bytes`."""
    for index, part in enumerate(parts):
        if n_bytes < len(part):
            rest = parts[index:]
            if n_bytes:
                rest[0] = memoryview(part)[n_bytes:]
            return rest
        n_bytes -= len(part)
    return []
