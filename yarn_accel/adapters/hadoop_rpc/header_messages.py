"""The messages around every Hadoop call: headers, login, connection context, tokens."""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from yarn_accel.adapters.hadoop_rpc.protobuf import binary, enum, message, sint32, string, uint32, uint64


class RpcKind(IntEnum):
    """How a request is serialized."""

    BUILTIN = 0
    WRITABLE = 1
    PROTOCOL_BUFFER = 2


class RpcOperation(IntEnum):
    """What a frame of a client is."""

    FINAL_PACKET = 0
    CONTINUATION_PACKET = 1
    CLOSE_CONNECTION = 2


class RpcStatus(IntEnum):
    """Outcome of a call; after FATAL the server closes the connection."""

    SUCCESS = 0
    ERROR = 1
    FATAL = 2


class RpcErrorCode(IntEnum):
    """At which level a call failed."""

    ERROR_APPLICATION = 1
    ERROR_NO_SUCH_METHOD = 2
    ERROR_NO_SUCH_PROTOCOL = 3
    ERROR_RPC_SERVER = 4
    ERROR_SERIALIZING_RESPONSE = 5
    ERROR_RPC_VERSION_MISMATCH = 6
    FATAL_UNKNOWN = 10
    FATAL_UNSUPPORTED_SERIALIZATION = 11
    FATAL_INVALID_RPC_HEADER = 12
    FATAL_DESERIALIZING_REQUEST = 13
    FATAL_VERSION_MISMATCH = 14
    FATAL_UNAUTHORIZED = 15


class SaslState(IntEnum):
    """Steps of the login."""

    SUCCESS = 0
    NEGOTIATE = 1
    INITIATE = 2
    CHALLENGE = 3
    RESPONSE = 4
    WRAP = 5


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
    error_code: RpcErrorCode | None = enum(6, RpcErrorCode, name="errorDetail")
    client_id: bytes | None = binary(7, name="clientId")
    retry_count: int | None = sint32(8, name="retryCount")


@dataclass(frozen=True, slots=True)
class SaslAuth:
    """One way to log in that the server offers."""

    method: str = string(1, "", required=True)
    mechanism: str = string(2, "", required=True)
    protocol: str | None = string(3)
    server_id: str | None = string(4, name="serverId")
    challenge: bytes | None = binary(5)


@dataclass(frozen=True, slots=True)
class SaslMessage:
    """One step of the login."""

    version: int | None = uint32(1)
    state: SaslState = enum(2, SaslState, SaslState.WRAP, required=True)
    token: bytes | None = binary(3)
    auths: tuple[SaslAuth, ...] = message(4, SaslAuth, repeated=True)


@dataclass(frozen=True, slots=True)
class UserInformation:
    """Who a connection acts for; empty where a token says it."""

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


@dataclass(frozen=True, slots=True)
class Token:
    """A right that a server once gave: who shows it, and knows its password, may act as its owner.

    Attributes:
        identifier: what the right is, for the server only.
        password: never shown by `repr`.
        kind: such as ``YARN_AM_RM_TOKEN`` or ``NMToken``.
        service: whom it is for, ``address:port`` or a name; may be empty.
    """

    identifier: bytes = binary(1, b"", required=True)
    password: bytes = binary(2, b"", required=True)
    kind: str = string(3, "", required=True)
    service: str = string(4, "", required=True)

    def __repr__(self) -> str:
        return f"Token(kind={self.kind!r}, service={self.service!r}, {len(self.identifier)} bytes)"


@dataclass(frozen=True, slots=True)
class CredentialsEntry:
    """A named token or secret in a token file."""

    alias: str = string(1, "", required=True)
    token: Token | None = message(2, Token)
    secret: bytes | None = binary(3)

    def __repr__(self) -> str:
        return f"CredentialsEntry({self.alias!r})"


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """The content of a token file in format 1."""

    tokens: tuple[CredentialsEntry, ...] = message(1, CredentialsEntry, repeated=True)
    secrets: tuple[CredentialsEntry, ...] = message(2, CredentialsEntry, repeated=True)
