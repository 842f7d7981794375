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

States and the messages each end accepts in them are data, in `events`.  A frame that is not accepted, a field
that breaks its rule, a length above its limit, a wrong tag or checksum raise `RemoteProtocolError`; the
connection is then closed for good, and `goodbye` makes the last frame that tells the peer why.
"""

from typing import Callable, FrozenSet, List, Optional, Sequence, Tuple

from yarn_accel.errors import AccelError, LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import handshake as hs
from yarn_accel.wire import messages as msg
from yarn_accel.wire.checksums import Buffer, Checksum, checksum_maker
from yarn_accel.wire.codec import check_header_bytes, decode, encode
from yarn_accel.wire.events import ACCEPTED, NEED_DATA, Closed, Event, Opened, PayloadComplete, State
from yarn_accel.wire.frames import Frame, FrameReceiver, Limits, pack_prefix
from yarn_accel.wire.layouts import KINDS
from yarn_accel.wire.tags import TAG_BYTES, Tagger

_NO_TAG = bytes(TAG_BYTES)
_WELCOME_KIND = 4
_WRONG_TAG = "the tag of a frame header is wrong: changed, replayed or out of order"
_PAYLOAD_COMPLETE = PayloadComplete()
_ABOUT_LENDING = frozenset({msg.Lend, msg.Lent, msg.GiveBack})


class Connection:
    """What both ends have in common; use `ClientConnection` or `ServerConnection`."""

    role = ""

    def __init__(self, limits: Limits, state: State) -> None:
        self.state = state
        #: The checksum of payloads in both directions, once negotiated.
        self.checksum = "none"
        #: What both ends can do, once open.
        self.capabilities: FrozenSet[str] = frozenset()
        self._limits = limits
        self._frames = FrameReceiver(Limits(hs.HANDSHAKE_LIMIT_BYTES, 0))
        self._outbox: List[bytes] = []
        self._receive_tags = self._send_tags = Tagger(b"")
        self._has_keys = False
        self._new_checksum: Optional[Callable[[], Checksum]] = None
        self._receives = ACCEPTED[self.role, State.OPEN]
        self._sends = ACCEPTED["client" if self.role == "server" else "server", State.OPEN]
        self._may_lend = False
        self._in_payload = False
        self._ended = False

    # Receiving

    def wanted(self) -> memoryview:
        """A view of the memory where the next bytes from the peer belong."""
        return self._frames.wanted()

    def wanted_all(self) -> List[memoryview]:
        """Views for one ``sock.recvmsg_into``: the rest of a payload, and what may follow it."""
        return self._frames.wanted_all()

    def received(self, n_bytes: int) -> None:
        """Say how many bytes were read into `wanted` or `wanted_all`; 0: the peer closed its side."""
        if n_bytes == 0:
            self._ended = True
        else:
            self._frames.received(n_bytes)

    def receive_data(self, data: Buffer) -> None:
        """Take bytes the owner already holds; empty means that the peer closed its side."""
        if len(data) == 0:
            self._ended = True
        else:
            self._frames.receive_data(data)

    @property
    def payload_left(self) -> int:
        """Payload bytes of the current message still to come; not 0: `take_payload` or `skip_payload`."""
        return self._frames.payload_left

    @property
    def is_mid_frame(self) -> bool:
        """Whether the peer has begun a frame and not finished it."""
        return self._frames.is_mid_frame

    def take_payload(self, views: Sequence[memoryview]) -> None:
        """Receive the payload of the message just returned into these writable C-contiguous buffers."""
        self._frames.take_payload(views)
        self._in_payload = True

    def arrived_payload(self) -> Optional[memoryview]:
        """The payload of the message just returned, if all of it has arrived; else None, and `take_payload`.

        There is no `PayloadComplete` then.  The view is good until more bytes are received.

        Raises:
            RemoteProtocolError: the checksum does not match; the connection is closed.
        """
        try:
            return self._frames.arrived_payload()
        except RemoteProtocolError:
            self.state = State.CLOSED
            raise

    def skip_payload(self) -> None:
        """Let the payload of the message just returned pass by without keeping it."""
        self._frames.skip_payload()
        self._in_payload = True

    def rest(self) -> None:
        """Free the receive buffer of a connection that is silent; it comes back when it is wanted."""
        self._frames.rest()

    def next_event(self) -> Event:
        """What the received bytes mean, one event at a time.

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
        """What the handshake wants sent now; call it after `next_event` until the connection is open."""
        parts, self._outbox = self._outbox, []
        return parts

    def _next_event(self) -> Event:
        if self._in_payload:
            if not self._frames.payload_done():
                return self._need_data()
            self._in_payload = False
            return _PAYLOAD_COMPLETE
        while True:
            frame = self._frames.next_frame()
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
        if not self._receive_tags.is_next(frame.tag, frame.prefix, frame.header):
            raise RemoteProtocolError(_WRONG_TAG)
        if KINDS.get(frame.kind) not in self._receives:
            raise RemoteProtocolError("frame kind {} is not accepted by the {}".format(frame.kind, self.role))
        message, announced_bytes = decode(frame.kind, frame.varying_bytes, frame.header)
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
        if not self._receive_tags.is_next(frame.tag, frame.prefix, frame.header):
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
            kind, varying_bytes, header, _ = encode(msg.Goodbye(code, message[:4096]))
            return [self._tagged(kind, varying_bytes, header, 0)]
        return []

    def _begin(self, message: msg.Message, given: Optional[int]) -> Tuple[bytes, Optional[Checksum]]:
        if self.state is not State.OPEN:
            raise LocalProtocolError("the connection is not open")
        if type(message) not in self._sends:
            raise LocalProtocolError("a {} does not send {}".format(self.role, type(message).__name__))
        if not self._may_lend and self._lends(message):
            raise LocalProtocolError("{}: lending was not agreed".format(type(message).__name__))
        kind, varying_bytes, header, n_bytes = encode(message)
        check_header_bytes(message, header, self._limits.header_bytes)
        if given is not None and given != n_bytes:
            raise LocalProtocolError(
                "{}: its tensors have {} bytes but {} were given".format(
                    type(message).__name__, n_bytes, given
                )
            )
        head = self._tagged(kind, varying_bytes, header, n_bytes)
        return head, self._new_checksum() if n_bytes and self._new_checksum else None

    def _tagged(self, kind: int, varying_bytes: int, header: bytes, payload_bytes: int) -> bytes:
        prefix = pack_prefix(kind, len(header), payload_bytes, varying_bytes)
        return b"".join((prefix, self._send_tags.next_tag(prefix, header), header))

    # Handshake

    def _shake_hands(self, frame: Frame) -> bool:
        message = hs.decode_handshake(frame.kind, frame.header)
        if type(message) not in ACCEPTED[self.role, self.state]:
            raise RemoteProtocolError(
                "{} is not accepted by a {} in state {}".format(
                    type(message).__name__, self.role, self.state.value
                )
            )
        if frame.kind == _WELCOME_KIND:
            self._check_tag(frame)
        elif frame.tag != _NO_TAG:
            raise RemoteProtocolError("a frame of the handshake has a tag")
        if frame.varying_bytes:
            raise RemoteProtocolError("a frame of the handshake has a varying part")
        self._advance(message, frame.header)
        return self.state is State.OPEN

    def _advance(self, message: hs.HandshakeMessage, header: bytes) -> None:
        raise NotImplementedError

    def _say(self, message: hs.HandshakeMessage) -> bytes:
        """Put a handshake message, untagged, into the outbox; returns its header."""
        kind, header = hs.encode_handshake(message)
        self._outbox.append(pack_prefix(kind, len(header), 0) + _NO_TAG + header)
        return header

    def _use_keys(self, key: bytes, transcript: bytes) -> None:
        keys = hs.session_keys(key, transcript)
        from_client, from_server = Tagger(keys.from_client), Tagger(keys.from_server)
        if self.role == "client":
            self._send_tags, self._receive_tags = from_client, from_server
        else:
            self._send_tags, self._receive_tags = from_server, from_client
        self._has_keys = True

    def _open(self, offered: Sequence[str], own: Sequence[str]) -> None:
        self.state = State.OPEN
        self.capabilities = frozenset(offered) & frozenset(own)
        self._may_lend = hs.MEMFD in self.capabilities
        self._frames.limits = self._limits
        self._frames.use_checksum(self.checksum)
        self._new_checksum = None if self.checksum == "none" else checksum_maker(self.checksum)
