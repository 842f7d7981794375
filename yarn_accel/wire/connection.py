"""The protocol object: one end of one connection, without a socket.

Theory of operation.  The owner of the socket repeats four steps::

    n_bytes = sock.recv_into(connection.wanted()); connection.received(n_bytes)     # or receive_data(data)
    for part in connection.data_to_send(): sock.sendall(part)                       # handshake answers
    event = connection.next_event()                                                 # until it is NEED_DATA
    sock.sendmsg(connection.send(message, payload))

A message with a payload (``connection.payload_left`` is not 0 after it) must be followed by `take_payload` or
`skip_payload` (`PayloadComplete` then says when the owner's buffers are filled), or by `arrived_payload` when
that is not None.  One thread may receive while another sends: the two directions share nothing after the
handshake, but each direction belongs to one thread at a time.

A frame is a fixed prefix (magic, kind, length of the varying part, header length, payload length, tag), the
header, the payload and, where a checksum was negotiated and there is a payload, the checksum of the payload.
Both lengths are compared with the limits as soon as the prefix is there, before anything is allocated for
them; a header that does not fit the buffer makes it grow only as its bytes arrive.

The receiver never owns payload memory.  The owner says where a payload goes.  What had come together with the
header is copied once, at most one buffer; for the rest `wanted` hands out the owner's memory itself, so that
``sock.recv_into(connection.wanted())`` needs no copy, and each piece is added to the checksum while it is
still in the cache.

The *tag* is a keyed BLAKE2b of 16 bytes over the number of the frame, its prefix and its header: without the
key of a direction nobody can make, change, move or repeat a frame.  BLAKE2b is a MAC by itself (RFC 7693),
and because a keyed state can be copied it is six times faster from Python than HMAC-SHA256.

A frame that is not accepted, a field that breaks its rule, a length above its limit, a wrong tag or checksum
raise `RemoteProtocolError`; the connection is then closed for good, and `goodbye` makes the last frame that
tells the peer why.  The handshake before that is in `handshake`.
"""

import enum
import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from yarn_accel.errors import AccelError, LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import messages as msg
from yarn_accel.wire.checksums import TRAILER_BYTES, Buffer, Checksum, checksum_maker

_MAGIC = b"YA"
TAG_BYTES = 16
_UNTAGGED = struct.Struct("!2sBBIQ")
_PREFIX = struct.Struct("!2sBBIQ{}s".format(TAG_BYTES))
#: The prefix, without and with its tag.
UNTAGGED_BYTES = _UNTAGGED.size
PREFIX_BYTES = _PREFIX.size
#: No frame of a handshake has a larger header.
HANDSHAKE_LIMIT_BYTES = 8192
_BUFFER_BYTES = 32 * 1024
_NO_BUFFER = memoryview(bytearray())
_WRONG_TAG = "the tag of a frame header is wrong: changed, replayed or out of order"


class NeedData(enum.Enum):
    """Nothing to report until more bytes arrive."""

    NEED_DATA = "NEED_DATA"


NEED_DATA = NeedData.NEED_DATA


class Opened:
    """The handshake is over: both ends have proved the credential."""


class PayloadComplete:
    """The payload of the message before is in the owner's buffers (or thrown away)."""


class Closed:
    """The peer closed the connection between two frames."""


Event = Union[NeedData, Opened, PayloadComplete, Closed, msg.Message]


class State(enum.Enum):
    """Where a connection stands; the first four belong to the handshake."""

    AWAIT_HELLO = "await-hello"
    AWAIT_CHALLENGE = "await-challenge"
    AWAIT_PROOF = "await-proof"
    AWAIT_WELCOME = "await-welcome"
    OPEN = "open"
    CLOSED = "closed"


_BOTH = frozenset({msg.Ping, msg.Pong, msg.Goodbye})
_FROM_CLIENT = _BOTH | {
    msg.Request,
    msg.Cancel,
    msg.StatsRequest,
    msg.Lend,
    msg.GiveBack,
    msg.UserTokens,
}
_FROM_SERVER = _BOTH | {
    msg.Result,
    msg.Failed,
    msg.Busy,
    msg.Progress,
    msg.Cancelled,
    msg.Drain,
    msg.Stats,
    msg.Lent,
    msg.UserAccepted,
}
#: Whose end -> message classes that an open connection accepts there.
ACCEPTED: Dict[str, FrozenSet[Type[object]]] = {
    "server": frozenset(_FROM_CLIENT),
    "client": frozenset(_FROM_SERVER),
}
_ABOUT_LENDING = frozenset({msg.Lend, msg.Lent, msg.GiveBack})
#: Accepted only where both ends have agreed that requests may run as the job's user.
ABOUT_USERS = frozenset({msg.UserTokens, msg.UserAccepted})
_PAYLOAD_COMPLETE = PayloadComplete()


@dataclass(frozen=True)
class Limits:
    """The largest header and payload, in bytes; a frame that announces more ends the connection."""

    header_bytes: int = msg.MAX_HEADER_BYTES
    payload_bytes: int = 1 << 40


class Frame(NamedTuple):
    """A frame up to and including its header; `payload_bytes` more follow.

    Attributes:
        prefix: the first `UNTAGGED_BYTES`, as they came.
        varying_bytes: length of the header's varying part (see `codec`).
    """

    kind: int
    varying_bytes: int
    payload_bytes: int
    prefix: bytes
    tag: bytes
    header: bytes


def pack_prefix(kind: int, header_bytes: int, payload_bytes: int, varying_bytes: int = 0) -> bytes:
    """The prefix without its tag."""
    return _UNTAGGED.pack(_MAGIC, kind, varying_bytes, header_bytes, payload_bytes)


class FrameReceiver:
    """Bytes in, frames out: the receiving half of a connection, below the messages.

    The owner repeats: read into `wanted` (or `wanted_all`), report with `received`, then call `next_frame`
    until it returns None; after a frame with a payload, `take_payload` or `skip_payload`, then read on until
    `payload_done`.

    Attributes:
        limits: for the frames to come.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._new_checksum = checksum_maker("none")
        self._trailer_bytes = 0
        # Bytes not looked at yet are _buffer[_start:_end].
        self._buffer = _NO_BUFFER
        self._start = 0
        self._end = 0
        # The payload of the current frame: announced, then taken (with views) or skipped (without).
        self._is_announced = False
        self._is_moving = False
        self._views: List[memoryview] = []
        self._left = 0
        self._checksum: Optional[Checksum] = None
        self._ended = False

    def use_checksum(self, name: str) -> None:
        """Expect this checksum behind every payload from now on."""
        self._new_checksum = checksum_maker(name)
        self._trailer_bytes = TRAILER_BYTES[name]

    @property
    def is_mid_frame(self) -> bool:
        """Whether some, but not all, bytes of a frame have arrived."""
        return self._end > self._start or self._is_announced

    @property
    def payload_left(self) -> int:
        """Payload bytes of the current frame that have not arrived yet."""
        return self._left

    def rest(self) -> None:
        """Free the buffer if nothing is in it; the next `wanted` makes a new one."""
        if not self.is_mid_frame:
            self._buffer = _NO_BUFFER
            self._start = self._end = 0

    def wanted(self) -> memoryview:
        """Where the next bytes from the peer belong; never empty."""
        if self._is_moving and self._left:
            return self._views[0] if self._views else self._space()[: self._left]
        return self._space()

    def wanted_all(self) -> List[memoryview]:
        """Where the next bytes belong, with what may follow the payload, for one ``recvmsg_into``."""
        if self._is_moving and self._left:
            return [*self._views, self._space()] if self._views else [self._space()[: self._left]]
        return [self._space()]

    def received(self, n_bytes: int) -> None:
        """Say how many bytes were read into `wanted` or `wanted_all`; 0: the peer closed its side."""
        if not n_bytes:
            self._ended = True
        if not self._left or not self._is_moving:
            self._end += n_bytes
        elif self._views:
            self._end += self._count_payload(n_bytes)
        else:
            self._left -= n_bytes
        if self._end > len(self._buffer) or self._left < 0:
            raise LocalProtocolError("more bytes reported than were wanted")

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that the owner already has, which costs a copy; none: the peer closed its side."""
        view = memoryview(data)
        if not len(view):
            self._ended = True
        while len(view) and self._is_moving and self._left:
            target = self.wanted()
            n_bytes = min(len(target), len(view))
            target[:n_bytes] = view[:n_bytes]
            self.received(n_bytes)
            view = view[n_bytes:]
        if len(view):
            if len(self._buffer) - self._end < len(view):
                self._move_to(max(_BUFFER_BYTES, self._end - self._start + len(view)))
            self._buffer[self._end : self._end + len(view)] = view
            self._end += len(view)

    def next_frame(self) -> Optional[Frame]:
        """The next frame's prefix and header, or None when more bytes are needed.

        Raises:
            RemoteProtocolError: not a frame of this protocol, or a length above the limits.
        """
        if self._is_announced:
            raise LocalProtocolError("the payload of the frame before is still to be taken")
        start, stop = self._start, self._end
        if start == stop:
            return None
        head_end = start + PREFIX_BYTES
        if stop < head_end:
            _check_magic(bytes(self._buffer[start : min(stop, start + len(_MAGIC))]))
            return None
        magic, kind, varying, header_bytes, payload_bytes, tag = _PREFIX.unpack_from(self._buffer, start)
        if magic != _MAGIC:
            _check_magic(magic)
        limits = self.limits
        if header_bytes > limits.header_bytes or payload_bytes > limits.payload_bytes:
            raise _too_long(header_bytes, payload_bytes, limits)
        end = head_end + header_bytes
        if stop < end:
            return None
        whole = bytes(self._buffer[start:end])
        frame = Frame(kind, varying, payload_bytes, whole[:UNTAGGED_BYTES], tag, whole[PREFIX_BYTES:])
        self._start = end
        self._is_announced = payload_bytes > 0
        self._left = payload_bytes
        return frame

    def take_payload(self, views: Sequence[memoryview]) -> None:
        """Have the payload of the current frame written into these buffers, one after the other.

        Raises:
            LocalProtocolError: there is no payload to take, or the buffers have another total length.
        """
        self._check_announced()
        flat = [view.cast("B") for view in views if view.nbytes]
        if sum(map(len, flat)) != self._left:
            raise LocalProtocolError(
                "buffers of another length than the payload's {} bytes".format(self._left)
            )
        self._views = flat
        self._checksum = self._new_checksum()
        self._is_moving = True
        while flat and self._end > self._start:
            n_bytes = min(len(flat[0]), self._end - self._start)
            flat[0][:n_bytes] = self._buffer[self._start : self._start + n_bytes]
            self._start += n_bytes
            self._count_payload(n_bytes)

    def arrived_payload(self) -> Optional[memoryview]:
        """The payload of the current frame if all of it came with the header, which ends the frame.

        None: there is more to come, so `take_payload`.  The view is good until more bytes are received.

        Raises:
            RemoteProtocolError: the checksum does not match.
        """
        end = self._start + self._left
        stop = end + self._trailer_bytes
        if self._end < stop or not self._is_announced or self._is_moving:
            return None
        payload = self._buffer[self._start : end]
        if self._trailer_bytes:
            checksum = self._new_checksum()
            checksum.update(payload)
            _check_trailer(self._buffer[end:stop], checksum)
        self._start = stop
        self._left = 0
        self._is_announced = False
        return payload

    def skip_payload(self) -> None:
        """Throw the payload of the current frame away: no memory, no look at its checksum."""
        self._check_announced()
        self._views = []
        self._checksum = None
        self._is_moving = True
        n_bytes = min(self._left, self._end - self._start)
        self._start += n_bytes
        self._left -= n_bytes

    def payload_done(self) -> bool:
        """Whether the payload has arrived completely; True ends the frame.

        Raises:
            RemoteProtocolError: the checksum does not match.
        """
        if not self._is_moving:
            return False
        end = self._start + self._trailer_bytes
        if self._left or self._end < end:
            return False
        trailer = self._buffer[self._start : end]
        if self._trailer_bytes and self._checksum is not None:
            _check_trailer(trailer, self._checksum)
        self._start = end
        self._is_announced = self._is_moving = False
        return True

    def _check_announced(self) -> None:
        if not self._is_announced or self._is_moving:
            raise LocalProtocolError("there is no payload to take")

    def _count_payload(self, n_bytes: int) -> int:
        """Add received bytes to the checksum; returns how many of them lie behind the payload."""
        views = self._views
        while views and n_bytes:
            view = views[0]
            if n_bytes < len(view):
                views[0] = view[n_bytes:]
                view = view[:n_bytes]
            else:
                del views[0]
            if self._trailer_bytes and self._checksum is not None:
                self._checksum.update(view)
            self._left -= len(view)
            n_bytes -= len(view)
        return n_bytes

    def _space(self) -> memoryview:
        """The free end of the buffer, after making some if there is none."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) != _BUFFER_BYTES:
                self._buffer = memoryview(bytearray(_BUFFER_BYTES))
            return self._buffer
        if self._end == len(self._buffer):
            held = self._end - self._start
            if held >= PREFIX_BYTES + self.limits.header_bytes:
                raise LocalProtocolError("events must be taken before more can be received")
            self._move_to(max(_BUFFER_BYTES, min(2 * held, PREFIX_BYTES + self.limits.header_bytes)))
        return self._buffer[self._end :]

    def _move_to(self, n_bytes: int) -> None:
        """Move what the buffer holds to the front of a new one of this size."""
        held = self._end - self._start
        buffer = memoryview(bytearray(n_bytes))
        buffer[:held] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, held


class Connection(FrameReceiver):
    """Messages both ways, common to both ends; use `ClientConnection` or `ServerConnection`.

    Attributes:
        state: where it stands.
        checksum: of payloads in both directions, once negotiated.
        capabilities: what both ends can do, once open.
    """

    role = ""

    def __init__(self, limits: Limits, state: State) -> None:
        super().__init__(Limits(HANDSHAKE_LIMIT_BYTES, 0))
        self.state = state
        self.checksum = "none"
        self.capabilities: FrozenSet[str] = frozenset()
        self._limits = limits
        self._outbox: List[bytes] = []
        self._receive_tags = self._send_tags = Tagger(b"")
        self._has_keys = False
        self._receives = ACCEPTED[self.role]
        self._sends = ACCEPTED["client" if self.role == "server" else "server"]
        self._may_lend = False

    # Receiving

    def arrived_payload(self) -> Optional[memoryview]:
        """The payload of the message just returned, if all of it has arrived; else None, and `take_payload`.

        There is no `PayloadComplete` then.  The view is good until more bytes are received.

        Raises:
            RemoteProtocolError: the checksum does not match; the connection is closed.
        """
        try:
            return super().arrived_payload()
        except RemoteProtocolError:
            self.state = State.CLOSED
            raise

    def next_event(self) -> Event:
        """The received bytes as events, one at a time.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            AuthenticationError: the peer could not prove its credential, or refused ours.
            UnavailableError: the peer refused the connection for now.
        """
        if self.state is State.CLOSED:
            raise LocalProtocolError("the connection is closed")
        try:
            return self._next_event()
        except AccelError as error:
            if not isinstance(error, LocalProtocolError):
                self.state = State.CLOSED
            raise

    def data_to_send(self) -> List[bytes]:
        """Bytes that the handshake wants sent; call it after `next_event` until the connection is open."""
        parts, self._outbox = self._outbox, []
        return parts

    def _next_event(self) -> Event:
        if self._is_moving:
            return _PAYLOAD_COMPLETE if self.payload_done() else self._need_data()
        while True:
            frame = self.next_frame()
            if frame is None:
                return self._need_data()
            if self.state is State.OPEN:
                return self._message(frame)
            if self._shake_hands(frame):
                return Opened()

    def _need_data(self) -> Event:
        if not self._ended:
            return NEED_DATA
        if self.is_mid_frame or self.state is not State.OPEN:
            raise RemoteProtocolError("the peer closed the connection in the middle of a frame or handshake")
        self.state = State.CLOSED
        return Closed()

    def _message(self, frame: Frame) -> Event:
        self._check_tag(frame)
        layout = msg.BY_KIND.get(frame.kind)
        if layout is None or layout.make not in self._receives:
            raise RemoteProtocolError("frame kind {} is not accepted by the {}".format(frame.kind, self.role))
        message, announced_bytes = msg.decode(frame.kind, frame.varying_bytes, frame.header)
        if announced_bytes != frame.payload_bytes:
            raise RemoteProtocolError(
                "{}: its tensors have {} bytes but its payload has {}".format(
                    type(message).__name__, announced_bytes, frame.payload_bytes
                )
            )
        if not self._may_lend and self._lends(message):
            raise RemoteProtocolError("{}: lending was not agreed".format(type(message).__name__))
        return message

    def _check_tag(self, frame: Frame) -> None:
        if not hmac.compare_digest(self._receive_tags.next_tag(frame.prefix, frame.header), frame.tag):
            raise RemoteProtocolError(_WRONG_TAG)

    @staticmethod
    def _lends(message: msg.Message) -> bool:
        return type(message) in _ABOUT_LENDING or getattr(message, "placement", None) is not None

    # Sending

    def send(self, message: msg.Message, payload: Sequence[Buffer] = ()) -> List[Buffer]:
        """The parts of a frame, to be sent in this order; payload parts are returned as they are, not copied.

        Args:
            message: what to say.
            payload: flat byte buffers, the data of the message's tensors in order.

        Raises:
            LocalProtocolError: not open, not ours to say, a bad field, or a payload of another length than
                announced.
        """
        n_bytes = sum(map(len, payload)) if payload else 0
        head, checksum = self._begin(message, n_bytes)
        if not n_bytes:
            return [head]
        parts: List[Buffer] = [head, *filter(len, payload)]
        if checksum is not None:
            for part in parts[1:]:
                checksum.update(part)
            parts.append(checksum.digest())
        return parts

    def send_head(self, message: msg.Message) -> Tuple[bytes, Optional[Checksum]]:
        """The beginning of a frame whose payload the caller sends himself, piece by piece.

        Returns:
            The first bytes of the frame, and the running checksum or None: the caller updates it with each
            piece of the payload while it is in the cache, and sends its `digest` last.

        Raises:
            LocalProtocolError: see `send`.
        """
        return self._begin(message, None)

    def goodbye(self, code: str, message: str) -> List[Buffer]:
        """The last frame before closing, telling the peer why; empty when nothing sensible can be said."""
        if self._has_keys:
            kind, varying_bytes, header, _ = msg.encode(msg.Goodbye(code, message[:4096]))
            return [self._tagged(kind, varying_bytes, header, 0)]
        return []

    def _begin(self, message: msg.Message, given: Optional[int]) -> Tuple[bytes, Optional[Checksum]]:
        if self.state is not State.OPEN:
            raise LocalProtocolError("the connection is not open")
        if type(message) not in self._sends:
            raise LocalProtocolError("a {} does not send {}".format(self.role, type(message).__name__))
        if not self._may_lend and self._lends(message):
            raise LocalProtocolError("{}: lending was not agreed".format(type(message).__name__))
        kind, varying_bytes, header, n_bytes = msg.encode(message, self.limits.header_bytes)
        if given is not None and given != n_bytes:
            raise LocalProtocolError(
                "{}: its tensors have {} bytes but {} were given".format(
                    type(message).__name__, n_bytes, given
                )
            )
        head = self._tagged(kind, varying_bytes, header, n_bytes)
        return head, self._new_checksum() if n_bytes and self._trailer_bytes else None

    def _tagged(self, kind: int, varying_bytes: int, header: bytes, payload_bytes: int) -> bytes:
        prefix = pack_prefix(kind, len(header), payload_bytes, varying_bytes)
        return b"".join((prefix, self._send_tags.next_tag(prefix, header), header))

    def _shake_hands(self, frame: Frame) -> bool:
        """Take a frame of the handshake; whether the connection is open now."""
        raise NotImplementedError


class Tagger:
    """Makes the tags of one direction of one connection, in the order of its frames."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._sequence = 0

    def next_tag(self, prefix: Buffer, header: Buffer) -> bytes:
        """The tag of the next frame: its sequence number is part of it."""
        mac = self._keyed.copy()
        mac.update(b"".join((self._sequence.to_bytes(8, "big"), prefix, header)))
        self._sequence += 1
        return mac.digest()


def _too_long(header_bytes: int, payload_bytes: int, limits: Limits) -> RemoteProtocolError:
    what, n_bytes, most = "header", header_bytes, limits.header_bytes
    if n_bytes <= most:
        what, n_bytes, most = "payload", payload_bytes, limits.payload_bytes
    return RemoteProtocolError("a {} of {} bytes, at most {} allowed".format(what, n_bytes, most))


def _check_trailer(trailer: memoryview, checksum: Checksum) -> None:
    if trailer != checksum.digest():
        raise RemoteProtocolError("the checksum of a payload does not match: damaged on the way")


def _check_magic(begin: bytes) -> None:
    if not _MAGIC.startswith(begin):
        raise RemoteProtocolError("the peer does not speak this protocol (no frame begins with these bytes)")
