"""The protocol object: one end of one connection, without a socket.

Theory of operation.  The owner of the socket repeats four steps::

    n_bytes = sock.recv_into(connection.wanted()); connection.received(n_bytes)     # or receive_data(data)
    for part in connection.data_to_send(): sock.sendall(part)                       # handshake answers
    event = connection.next_event()                                                 # until it is NEED_DATA
    sock.sendmsg(connection.send(message, payload))

A message with a payload (``connection.payload_left`` is not 0 after it) must be followed by `take_payload` or
`skip_payload`; `PayloadComplete` says when the owner's buffers are filled.  One thread may receive while
another
sends: the two directions share nothing after the handshake, but each direction belongs to one thread at a
    time.

States and the frames each end accepts in them are data, in `_ACCEPTED` below.  A frame that is not accepted,
a field that breaks its rule, a length above its limit, a wrong tag or checksum raise `RemoteProtocolError`;
the connection is then closed for good, and `goodbye` makes the last frame that tells the peer why.
"""

import enum
from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple, Type, Union

from yarn_accel.errors import (
    AccelError,
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    UnavailableError,
)
from yarn_accel.wire import handshake as hs
from yarn_accel.wire import messages as msg
from yarn_accel.wire.credential import Credential, derive_key, parse_identifier
from yarn_accel.wire.frames import (
    TAG_BYTES,
    Buffer,
    Frame,
    FrameReceiver,
    Limits,
    pack_prefix,
    payload_trailer,
)

__all__ = [
    "NEED_DATA",
    "ClientConnection",
    "Closed",
    "Connection",
    "Event",
    "NeedData",
    "Opened",
    "PayloadComplete",
    "ServerConnection",
    "State",
]


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
    """Where a connection stands; the first three belong to the handshake."""

    AWAIT_HELLO = "await-hello"
    AWAIT_CHALLENGE = "await-challenge"
    AWAIT_PROOF = "await-proof"
    AWAIT_WELCOME = "await-welcome"
    OPEN = "open"
    CLOSED = "closed"


_FROM_CLIENT = frozenset({msg.Request, msg.Cancel, msg.Ping, msg.Pong, msg.StatsRequest, msg.Goodbye})
_FROM_SERVER = frozenset(
    {
        msg.Result,
        msg.Failed,
        msg.Busy,
        msg.Progress,
        msg.Cancelled,
        msg.Ping,
        msg.Pong,
        msg.Drain,
        msg.Stats,
        msg.Goodbye,
    }
)
#: (whose end, state) -> message classes accepted there.
_ACCEPTED: Dict[Tuple[str, State], FrozenSet[Type[object]]] = {
    ("server", State.AWAIT_HELLO): frozenset({hs.Hello}),
    ("server", State.AWAIT_PROOF): frozenset({hs.Proof}),
    ("server", State.OPEN): _FROM_CLIENT,
    ("client", State.AWAIT_CHALLENGE): frozenset({hs.Challenge, hs.Refused}),
    ("client", State.AWAIT_WELCOME): frozenset({hs.Welcome, hs.Refused}),
    ("client", State.OPEN): _FROM_SERVER,
}
_NO_TAG = bytes(TAG_BYTES)
_WELCOME_KIND = 4


class Connection:
    """What both ends have in common; use `ClientConnection` or `ServerConnection`."""

    role = ""

    def __init__(self, limits: Limits, state: State) -> None:
        self.state = state
        #: The checksum of payloads in both directions, once negotiated.
        self.checksum = "none"
        self._limits = limits
        self._frames = FrameReceiver(Limits(hs.HANDSHAKE_LIMIT_BYTES, 0))
        self._outbox: List[bytes] = []
        self._receive_key = b""
        self._send_key = b""
        self._n_received = 0
        self._n_sent = 0
        self._in_payload = False
        self._ended = False

    # Receiving

    def wanted(self) -> memoryview:
        """A view of the memory where the next bytes from the peer belong."""
        return self._frames.wanted()

    def received(self, n_bytes: int) -> None:
        """Say how many bytes were read into `wanted`; 0 means that the peer closed its side."""
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

    def skip_payload(self) -> None:
        """Let the payload of the message just returned pass by without keeping it."""
        self._frames.skip_payload()
        self._in_payload = True

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
            return PayloadComplete()
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
        self._check_tag(frame)
        accepted = _ACCEPTED[self.role, State.OPEN]
        if msg.KINDS.get(frame.kind) not in accepted:
            raise RemoteProtocolError("frame kind {} is not accepted by the {}".format(frame.kind, self.role))
        message = msg.decode(frame.kind, frame.header)
        told = msg.payload_bytes(message)
        if told != frame.payload_bytes:
            raise RemoteProtocolError(
                "{}: its tensors have {} bytes but its payload has {}".format(
                    type(message).__name__, told, frame.payload_bytes
                )
            )
        return message

    def _check_tag(self, frame: Frame) -> None:
        expected = hs.header_tag(self._receive_key, self._n_received, frame.prefix, frame.header)
        if not hs.same(expected, frame.tag):
            raise RemoteProtocolError("the tag of a frame header is wrong: changed, replayed or out of order")
        self._n_received += 1

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
        if self.state is not State.OPEN:
            raise LocalProtocolError("the connection is not open")
        peer = "client" if self.role == "server" else "server"
        if type(message) not in _ACCEPTED[peer, State.OPEN]:
            raise LocalProtocolError("a {} does not send {}".format(self.role, type(message).__name__))
        kind, header = msg.encode(message)
        if len(header) > self._limits.header_bytes:
            raise LocalProtocolError("{}: a header of {} bytes".format(type(message).__name__, len(header)))
        n_bytes = sum(memoryview(part).nbytes for part in payload)
        if n_bytes != msg.payload_bytes(message):
            raise LocalProtocolError(
                "{}: its tensors have {} bytes but {} were given".format(
                    type(message).__name__, msg.payload_bytes(message), n_bytes
                )
            )
        parts: List[Buffer] = [self._head(kind, header, n_bytes), *(part for part in payload if len(part))]
        trailer = payload_trailer(self.checksum, parts[1:])
        return [*parts, trailer] if trailer else parts

    def goodbye(self, code: str, message: str) -> List[Buffer]:
        """The last frame before closing, telling the peer why; empty when nothing sensible can be said."""
        if self._send_key:
            kind, header = msg.encode(msg.Goodbye(code, message[:4096]))
            return [self._head(kind, header, 0)]
        return []

    def _head(self, kind: int, header: bytes, payload_bytes: int) -> bytes:
        prefix = pack_prefix(kind, len(header), payload_bytes)
        tag = hs.header_tag(self._send_key, self._n_sent, prefix, header)
        self._n_sent += 1
        return prefix + tag + header

    # Handshake

    def _shake_hands(self, frame: Frame) -> bool:
        message = hs.decode_handshake(frame.kind, frame.header)
        if type(message) not in _ACCEPTED[self.role, self.state]:
            raise RemoteProtocolError(
                "{} is not accepted by a {} in state {}".format(
                    type(message).__name__, self.role, self.state.value
                )
            )
        if frame.kind == _WELCOME_KIND:
            self._check_tag(frame)
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
        if self.role == "client":
            self._send_key, self._receive_key = keys.from_client, keys.from_server
        else:
            self._send_key, self._receive_key = keys.from_server, keys.from_client

    def _open(self) -> None:
        self.state = State.OPEN
        self._frames.limits = self._limits
        self._frames.checksum = self.checksum


class ClientConnection(Connection):
    """The client's end; its Hello is ready in `data_to_send` at once.

    Args:
        credential: what it proves itself with.
        nonce: 32 fresh random bytes.
        checksums: what it accepts as payload checksum, best first.
    """

    role = "client"

    def __init__(
        self,
        credential: Credential,
        nonce: bytes,
        checksums: Sequence[str] = ("crc32",),
        limits: Optional[Limits] = None,
    ) -> None:
        super().__init__(limits or Limits(), State.AWAIT_CHALLENGE)
        _check_nonce(nonce)
        self.server = ""
        self.welcome: Optional[hs.Welcome] = None
        self._key = credential.key
        self._checksums = tuple(checksums)
        identifier = credential.identifier().decode("ascii")
        self._hello = self._say(hs.Hello((hs.VERSION,), self._checksums, identifier, nonce.hex()))
        self._transcript = b""

    def _advance(self, message: hs.HandshakeMessage, header: bytes) -> None:
        if isinstance(message, hs.Refused):
            raise _refusal(message)
        if isinstance(message, hs.Challenge):
            self._prove(message)
        elif isinstance(message, hs.Welcome):
            self.welcome = message
            self._open()

    def _prove(self, challenge: hs.Challenge) -> None:
        self._transcript = hs.transcript_of(self._hello, challenge)
        if not hs.same(hs.proof_of("server", self._key, self._transcript), challenge.proof):
            raise AuthenticationError(
                "server {!r} does not know the secret behind this credential".format(challenge.server),
                cure="issue the credential from the master secret of this server",
            )
        if challenge.version != hs.VERSION or challenge.checksum not in self._checksums:
            raise RemoteProtocolError("the server chose a version or checksum that was not offered")
        self.server = challenge.server
        self.checksum = challenge.checksum
        self._say(hs.Proof(hs.proof_of("client", self._key, self._transcript)))
        self._use_keys(self._key, self._transcript)
        self.state = State.AWAIT_WELCOME


class ServerConnection(Connection):
    """The server's end.

    Args:
        master: the master secret of the site.
        nonce: 32 fresh random bytes.
        now_s: Unix seconds, to judge the expiry of credentials.
        server: the name it introduces itself with.
        checksums: what it allows as payload checksum on this carrier.
        max_request_bytes: announced to the client; the limits of what is received at all are `limits`.
    """

    role = "server"

    def __init__(
        self,
        master: bytes,
        nonce: bytes,
        now_s: float,
        server: str,
        checksums: Sequence[str] = ("crc32",),
        max_request_bytes: int = 1 << 30,
        max_in_flight: int = 64,
        limits: Optional[Limits] = None,
    ) -> None:
        super().__init__(limits or Limits(), State.AWAIT_HELLO)
        _check_nonce(nonce)
        #: Who the client is, once open: from the credential it proved, never from a request.
        self.credential: Optional[Credential] = None
        self._master = master
        self._nonce = nonce
        self._now_s = now_s
        self._server = server
        self._checksums = tuple(checksums)
        self._welcome = hs.Welcome(server, max_request_bytes, max_in_flight)
        self._shown: Optional[Credential] = None
        self._key = b""
        self._transcript = b""

    def refuse(self, code: str, message: str, retry_after_s: int = 0) -> None:
        """End the handshake from the owner's side (too many connections, draining); see `data_to_send`."""
        self._say(hs.Refused(code, message, retry_after_s))
        self.state = State.CLOSED

    def _advance(self, message: hs.HandshakeMessage, header: bytes) -> None:
        if isinstance(message, hs.Hello):
            self._challenge(message, header)
        elif isinstance(message, hs.Proof):
            self._judge(message)

    def _challenge(self, hello: hs.Hello, header: bytes) -> None:
        if hs.VERSION not in hello.versions:
            self._deny(
                "version",
                "server {} speaks protocol version {}, the client {}".format(
                    self._server, hs.VERSION, ", ".join(map(str, hello.versions)) or "none"
                ),
            )
        identifier = hello.credential.encode("utf-8")
        try:
            shown = parse_identifier(identifier)
        except AuthenticationError as error:
            self._deny("credential", error.message)
            raise
        if shown.expires_s <= self._now_s:
            self._deny("credential-expired", "the credential of tenant {} has expired".format(shown.tenant))
        chosen = [name for name in hello.checksums if name in self._checksums]
        if not chosen:
            self._deny(
                "checksum", "no checksum in common; the server allows {}".format(", ".join(self._checksums))
            )
        self._shown = shown
        self._key = derive_key(self._master, identifier)
        self.checksum = chosen[0]
        blank = hs.Challenge(hs.VERSION, self.checksum, self._server, self._nonce.hex(), "")
        self._transcript = hs.transcript_of(header, blank)
        proof = hs.proof_of("server", self._key, self._transcript)
        self._say(hs.Challenge(blank.version, blank.checksum, blank.server, blank.nonce, proof))
        self.state = State.AWAIT_PROOF

    def _judge(self, proof: hs.Proof) -> None:
        if not hs.same(hs.proof_of("client", self._key, self._transcript), proof.proof):
            self._deny(
                "wrong-proof", "the credential was not issued from the secret of server " + self._server
            )
        self.credential = self._shown
        self._use_keys(self._key, self._transcript)
        kind, header = hs.encode_handshake(self._welcome)
        self._outbox.append(self._head(kind, header, 0))
        self._open()

    def _deny(self, code: str, message: str) -> None:
        self._say(hs.Refused(code, message[:1024]))
        if code in ("version", "checksum"):
            raise RemoteProtocolError(message)
        raise AuthenticationError(message)


def _refusal(refused: hs.Refused) -> AccelError:
    if refused.code == "version":
        return RemoteProtocolError(refused.message, cure="install the same release on both sides")
    if refused.code in ("credential", "credential-expired", "wrong-proof"):
        return AuthenticationError(refused.message, cure="issue a new credential for this site")
    if refused.code == "checksum":
        return RemoteProtocolError(refused.message)
    return UnavailableError(refused.message, retry_after_s=float(refused.retry_after_s))


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != hs.NONCE_BYTES:
        raise LocalProtocolError("a nonce has {} bytes".format(hs.NONCE_BYTES))
