"""Hadoop's RPC (version 9) as an object without a socket: bytes in, events out, bytes to send.

::

    client: "hrpc" 9 class auth          frame = 4 bytes of length, then messages, each after its own length
            [SASL frames, call id -33]   request = RequestHeader | MethodHeader | arguments
            context frame, call id -3    answer  = ResponseHeader | result            (nothing after an error)
            request frames

A user's name alone skips the login, and the context has it.  Where the login ends with a protection, all
frames after it are a stream of bytes that travels, in any pieces, inside SASL frames (state WRAP).  Calls may
be open at the same time; answers come in any order.  A frame's length is checked before its bytes are kept.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

from yarn_accel.adapters.hadoop_rpc.kerberos import Kerberos, KerberosLogin, Security
from yarn_accel.adapters.hadoop_rpc.protobuf import (
    binary,
    decode_delimited,
    delimited,
    encode,
    enum,
    message,
    sint32,
    string,
    uint32,
    uint64,
)
from yarn_accel.adapters.hadoop_rpc.rpc_errors import remote_error
from yarn_accel.adapters.hadoop_rpc.sasl import Layer, Login, SaslMessage, SaslState, TokenLogin
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import AccelError, AuthenticationError, LocalProtocolError, RemoteProtocolError


class RpcKind(IntEnum):
    """How a request is serialized."""

    BUILTIN = 0
    WRITABLE = 1
    PROTOCOL_BUFFER = 2


class RpcOperation(IntEnum):
    """The kind of a client's frame."""

    FINAL_PACKET = 0
    CONTINUATION_PACKET = 1
    CLOSE_CONNECTION = 2


class RpcStatus(IntEnum):
    """Outcome of a call; after FATAL the server closes the connection."""

    SUCCESS = 0
    ERROR = 1
    FATAL = 2


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Before every frame of a client; negative call ids are the login's and the context's."""

    rpc_kind: RpcKind | None = enum(1, RpcKind, name="rpcKind")
    rpc_op: RpcOperation | None = enum(2, RpcOperation, name="rpcOp")
    call_id: int = sint32(3, 0, required=True, name="callId")
    client_id: bytes = binary(4, b"", required=True, name="clientId")
    retry_count: int | None = sint32(5, name="retryCount")


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """Before every frame of a server."""

    call_id: int = uint32(1, 0, required=True, name="callId")
    status: RpcStatus = enum(2, RpcStatus, RpcStatus.FATAL, required=True)
    server_ipc_version: int | None = uint32(3, name="serverIpcVersionNum")
    exception_class: str = string(4, "", name="exceptionClassName")
    error_message: str = string(5, "", name="errorMsg")


@dataclass(frozen=True, slots=True)
class UserInformation:
    """The user that a connection acts for; empty where a token says it."""

    effective_user: str | None = string(1, name="effectiveUser")
    real_user: str | None = string(2, name="realUser")


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """First frame after the login."""

    user: UserInformation | None = message(2, UserInformation, name="userInfo")
    protocol: str | None = string(3)


@dataclass(frozen=True, slots=True)
class MethodHeader:
    """Before the arguments of a call: which method of which protocol."""

    method: str = string(1, "", required=True, name="methodName")
    protocol: str = string(2, "", required=True, name="declaringClassProtocolName")
    version: int = uint64(3, 0, required=True, name="clientProtocolVersion")


MAX_FRAME_BYTES = 64 << 20
_MAX_LOGIN_FRAME_BYTES = 1 << 20
#: How much longer a protected frame may be than its content.
_PROTECTION_BYTES = 1 << 12
_VERSION = 9
_AUTH_SIMPLE, _AUTH_SASL = 0x00, 0xDF
_CALL_CONTEXT, _CALL_SASL = -3, -33
_NO_RETRY = -1
_MAX_CALL_ID = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class User:
    """The name of the caller, on a cluster that believes it (``hadoop.security.authentication`` simple)."""

    name: str


Identity = User | Token | Kerberos


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The login is complete; calls may be made."""


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The result of a call, as the bytes of its delimited message."""

    call_id: int
    content: bytes


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call that the server refused."""

    call_id: int
    error: AccelError


RpcEvent = LoggedIn | CallAnswered | CallFailed


class _State(Enum):
    NEW = "new"
    LOGIN = "login"
    OPEN = "open"
    CLOSED = "closed"


class RpcClientProtocol:
    """The client's end of one connection.

    Args:
        protocol: full Java name of the protocol, which every call names again.
        identity: a user's name, or a token or a Kerberos principal to log in with.
        address: ``host:port`` that was dialled; for messages, and for the name of a Kerberos server.
        max_frame_bytes: a longer answer closes the connection.
        random_bytes: makes the client's id and the nonce of the login; tests give recorded ones.
        security: of the site.
        login: in place of the identity's own; tests give recorded ones.

    Raises:
        AuthenticationError: a name alone, where the site has Kerberos.
    """

    def __init__(
        self,
        protocol: str,
        identity: Identity,
        address: str = "server",
        max_frame_bytes: int = MAX_FRAME_BYTES,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        security: Security | None = None,
        login: Login | None = None,
    ) -> None:
        security = Security() if security is None else security
        if isinstance(identity, User) and security.is_kerberos:
            raise AuthenticationError(
                f"{address}: the site has Kerberos, so {identity.name!r} alone is believed by nobody",
                cure="log in by a ticket (kinit), a keytab or a token",
            )
        self._protocol = protocol
        self._identity = identity
        self._address = address
        self._max_frame_bytes = max_frame_bytes
        self._client_id = random_bytes(16)
        self._login = login
        if login is None and isinstance(identity, Token):
            self._login = TokenLogin(identity, random_bytes, security.protections)
        elif login is None and isinstance(identity, Kerberos):
            self._login = KerberosLogin(identity, security, protocol, address)
        self._layer: Layer | None = None
        self._state = _State.NEW
        self._received = bytearray()
        self._unwrapped = bytearray()
        self._outgoing: list[bytes] = []
        self._next_call = 0
        self._open_calls: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Calls may be made."""
        return self._state is _State.OPEN

    @property
    def is_blocking(self) -> bool:
        """`next_event` may wait for a KDC or a resolver: run it in a thread."""
        return self._state is _State.LOGIN and self._login is not None and self._login.is_blocking

    def begin(self) -> list[RpcEvent]:
        """Make the first bytes to send; `LoggedIn` at once when no login is needed.

        Raises:
            LocalProtocolError: called twice.
        """
        if self._state is not _State.NEW:
            raise LocalProtocolError(f"begin() in state {self._state.value}")
        auth = _AUTH_SIMPLE if self._login is None else _AUTH_SASL
        self._outgoing.append(b"hrpc" + bytes((_VERSION, 0, auth)))
        if self._login is None:
            return [self._enter()]
        self._state = _State.LOGIN
        self._send_sasl(self._login.begin())
        return []

    def call(self, method: str, arguments: bytes) -> int:
        """Make a request's bytes and return its call id.

        Raises:
            LocalProtocolError: the connection is not open.
        """
        if self._state is not _State.OPEN:
            raise LocalProtocolError(f"call of {method} in state {self._state.value}")
        call_id = self._next_call
        self._next_call = (call_id + 1) & _MAX_CALL_ID
        self._open_calls.add(call_id)
        header = encode(MethodHeader(method, self._protocol, 1))
        self._send(self._header(call_id, self._client_id, 0), header, arguments)
        return call_id

    def data_to_send(self) -> bytes:
        """Everything that waits to be sent; empties it."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def receive_data(self, data: bytes) -> None:
        """Keep bytes from the server; `next_event` says what they mean.

        Raises:
            LocalProtocolError: the connection is closed.
        """
        if self._state is _State.CLOSED:
            raise LocalProtocolError("data for a closed connection")
        self._received += data

    def next_event(self) -> RpcEvent | None:
        """The next event, or None until more bytes come.

        Raises:
            RemoteProtocolError: the bytes break the protocol; the connection is closed.
            AccelError: the server refused the login, or closes the connection with a reason.
        """
        try:
            while self._state is not _State.CLOSED and (frame := self._next_frame()) is not None:
                event = self._take(frame)
                if event is not None:
                    return event
        except AccelError:
            self._state = _State.CLOSED
            raise
        return None

    def _next_frame(self) -> bytes | None:
        if self._layer is None:
            is_login = self._state is _State.LOGIN
            return self._cut(self._received, _MAX_LOGIN_FRAME_BYTES if is_login else self._max_frame_bytes)
        while (frame := self._cut(self._unwrapped, self._max_frame_bytes)) is None:
            outer = self._cut(self._received, self._max_frame_bytes + _PROTECTION_BYTES)
            if outer is None:
                return None
            self._unwrapped += self._content_of(outer, self._layer)
        return frame

    def _cut(self, stream: bytearray, max_bytes: int) -> bytes | None:
        """Take the first frame out of a stream, if all of it is there."""
        if len(stream) < 4:
            return None
        length = int.from_bytes(stream[:4], "big")
        if length > max_bytes:
            raise RemoteProtocolError(
                f"{self._address} announces a frame of {length} bytes, the limit is {max_bytes}",
                cure="check that this is the port of a Hadoop RPC service",
            )
        if len(stream) < 4 + length:
            return None
        frame = bytes(memoryview(stream)[4 : 4 + length])
        del stream[: 4 + length]
        return frame

    def _content_of(self, frame: bytes, layer: Layer) -> bytes:
        """The content of a protected frame; nothing unprotected is believed, not even an error."""
        header, at = decode_delimited(ResponseHeader, frame)
        if header.status is not RpcStatus.SUCCESS or _signed(header.call_id) != _CALL_SASL:
            raise RemoteProtocolError(f"{self._address} sends a message without the protection agreed on")
        message = self._sasl_message(frame, at)
        if message.state is not SaslState.WRAP or message.token is None:
            raise RemoteProtocolError(f"{self._address} sends {message.state.name} after the login")
        return layer.unwrap(message.token)

    def _sasl_message(self, frame: bytes, at: int) -> SaslMessage:
        message, end = decode_delimited(SaslMessage, frame, at)
        if end != len(frame):
            raise RemoteProtocolError(f"{self._address}: something follows a message of the login")
        return message

    def _take(self, frame: bytes) -> RpcEvent | None:
        header, at = decode_delimited(ResponseHeader, frame)
        call_id = _signed(header.call_id)
        if header.status is not RpcStatus.SUCCESS:
            is_fatal = header.status is RpcStatus.FATAL
            error = remote_error(
                header.exception_class, header.error_message, self._address, is_fatal=is_fatal
            )
            if is_fatal or call_id not in self._open_calls:
                raise error
            self._open_calls.remove(call_id)
            return CallFailed(call_id, error)
        if self._state is _State.LOGIN:
            return self._take_login(call_id, frame, at)
        if call_id not in self._open_calls:
            raise RemoteProtocolError(f"{self._address} answers call {call_id}, which was not made")
        self._open_calls.remove(call_id)
        return CallAnswered(call_id, frame[at:])

    def _take_login(self, call_id: int, frame: bytes, at: int) -> RpcEvent | None:
        if call_id != _CALL_SASL or self._login is None:
            raise RemoteProtocolError(f"{self._address} sends call {call_id} during the login")
        answer = self._login.receive(self._sasl_message(frame, at))
        if answer is None:
            self._layer = self._login.layer
            return self._enter()
        self._send_sasl(answer)
        return None

    def _enter(self) -> LoggedIn:
        user = UserInformation(self._identity.name) if isinstance(self._identity, User) else None
        context = encode(ConnectionContext(user, self._protocol))
        self._send(self._header(_CALL_CONTEXT, self._client_id, _NO_RETRY), context)
        self._state = _State.OPEN
        return LoggedIn()

    def _send_sasl(self, message: SaslMessage) -> None:
        header = self._header(_CALL_SASL, b"", _NO_RETRY)
        self._outgoing.append(_framed(header, encode(message)))

    def _header(self, call_id: int, client_id: bytes, retry_count: int) -> bytes:
        kind, operation = RpcKind.PROTOCOL_BUFFER, RpcOperation.FINAL_PACKET
        return encode(RequestHeader(kind, operation, call_id, client_id, retry_count))

    def _send(self, *parts: bytes) -> None:
        frame = _framed(*parts)
        if self._layer is None:
            self._outgoing.append(frame)
            return
        for at in range(0, len(frame), self._layer.plain_bytes):
            token = self._layer.wrap(frame[at : at + self._layer.plain_bytes])
            self._send_sasl(SaslMessage(state=SaslState.WRAP, token=token))


def _framed(*parts: bytes) -> bytes:
    content = b"".join(delimited(part) for part in parts)
    return len(content).to_bytes(4, "big") + content


def _signed(call_id: int) -> int:
    return call_id - (1 << 32) if call_id >> 31 else call_id
