"""Hadoop's tokens, and the files that hold them beside secrets.

Hadoop hands a container its credentials in the file named by ``HADOOP_TOKEN_FILE_LOCATION``, and takes those
of a container in the same form in its launch context.  Both formats are read, and format 0 is written.
Format 0 is ``Writable``: counts and lengths as variable-length numbers, a token being alias, identifier,
password, kind and service.  Format 1 is one delimited `StoredCredentials` message.  No value ever appears in
an error message or in `repr`.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from yarn_accel.adapters.hadoop_rpc.protobuf import (
    binary,
    decode_delimited,
    message,
    string,
)
from yarn_accel.client.writable import decode_number, encode_number, n_bytes_after
from yarn_accel.errors import AuthenticationError, LocalProtocolError, RemoteProtocolError


@dataclass(frozen=True, slots=True)
class Token:
    """A right that a server gave: whoever shows it and proves to know its password may act as its owner.

    Attributes:
        identifier: describes the right; only the server reads it.
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


AM_RM_KIND = "YARN_AM_RM_TOKEN"
_MAGIC = b"HDTS"
_WRITABLE, _PROTOBUF = 0, 1
_MAX_FILE_BYTES = 16 << 20
_MAX_ENTRIES = 10_000
_MAX_FIELD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The content of a token file: tokens and secrets, each by its alias."""

    tokens: Mapping[str, Token] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"TokenFile(tokens={sorted(self.tokens)}, secrets={sorted(self.secrets)})"

    def of_kind(self, kind: str) -> Token:
        """The only token of a kind, such as `AM_RM_KIND`.

        Raises:
            AuthenticationError: there is none.
        """
        for token in self.tokens.values():
            if token.kind == kind:
                return token
        kinds = ", ".join(sorted({token.kind for token in self.tokens.values()})) or "none"
        raise AuthenticationError(f"the token file has no {kind} (kinds there: {kinds})")


def read_token_file(data: bytes) -> TokenFile:
    """The content of a token file.

    Raises:
        RemoteProtocolError: not such a file, or damaged; names the byte offset, never a value.
    """
    if len(data) > _MAX_FILE_BYTES:
        raise RemoteProtocolError(f"token file: {len(data)} bytes, the limit is {_MAX_FILE_BYTES}")
    if data[:4] != _MAGIC or len(data) < 5:
        raise RemoteProtocolError(f"token file: does not begin with {_MAGIC.decode()!r}")
    if data[4] == _WRITABLE:
        return _read_writable(_Cursor(data, 5))
    if data[4] == _PROTOBUF:
        credentials, _ = decode_delimited(StoredCredentials, data, 5)
        tokens = {each.alias: each.token for each in credentials.tokens if each.token is not None}
        secrets = {each.alias: each.secret for each in credentials.secrets if each.secret is not None}
        return TokenFile(tokens, secrets)
    raise RemoteProtocolError(f"token file: unknown format {data[4]} at offset 4; known: 0, 1")


def write_token_file(content: TokenFile) -> bytes:
    """A token file in format 0, the one that every Hadoop reads; aliases sorted.

    Raises:
        LocalProtocolError: a name or value that `read_token_file` would not take back.
    """
    parts = [_MAGIC, bytes((_WRITABLE,)), encode_number(len(content.tokens))]
    for alias, token in sorted(content.tokens.items()):
        parts.append(_field(alias.encode()))
        parts += [_field(token.identifier), _field(token.password)]
        parts += [_field(token.kind.encode()), _field(token.service.encode())]
    parts.append(encode_number(len(content.secrets)))
    for alias, value in sorted(content.secrets.items()):
        parts += [_field(alias.encode()), _field(value)]
    return b"".join(parts)


def _field(raw: bytes) -> bytes:
    if len(raw) > _MAX_FIELD_BYTES:
        raise LocalProtocolError(f"token file: a field of {len(raw)} bytes, the limit is {_MAX_FIELD_BYTES}")
    return encode_number(len(raw)) + raw


class _Cursor:
    """A position in a byte string that cannot leave it."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def count(self, limit: int) -> int:
        at = self._at
        first = self._take(1)
        value = decode_number(first + self._take(n_bytes_after(first[0])))
        if not 0 <= value <= limit:
            raise RemoteProtocolError(f"token file: number at offset {at} is outside 0..{limit}")
        return value

    def field(self) -> bytes:
        return self._take(self.count(_MAX_FIELD_BYTES))

    def text(self) -> str:
        return self.field().decode("utf-8", "replace")

    def _take(self, n_bytes: int) -> bytes:
        left = len(self._data) - self._at
        if n_bytes > left:
            raise RemoteProtocolError(
                f"token file: cut short at offset {self._at}: {n_bytes} bytes expected, {left} left"
            )
        start, self._at = self._at, self._at + n_bytes
        return self._data[start : self._at]


def _read_writable(cursor: _Cursor) -> TokenFile:
    tokens: dict[str, Token] = {}
    for _ in range(cursor.count(_MAX_ENTRIES)):
        alias = cursor.text()
        tokens[alias] = Token(cursor.field(), cursor.field(), cursor.text(), cursor.text())
    secrets: dict[str, bytes] = {}
    for _ in range(cursor.count(_MAX_ENTRIES)):
        alias = cursor.text()
        secrets[alias] = cursor.field()
    return TokenFile(tokens, secrets)
