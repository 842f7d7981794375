"""Hadoop's tokens, and the files that hold them beside secrets.

Hadoop hands a container its credentials in the file named by ``HADOOP_TOKEN_FILE_LOCATION``, and takes those
of a container in the same form in its launch context.  `client.token_file` knows both formats of these files.
No value ever appears in an error message or in `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc.protobuf import binary, string
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, StoredToken, read_stored, write_stored
from yarn_accel.client.writable import decode_number, n_bytes_after
from yarn_accel.errors import AuthenticationError, RemoteProtocolError
from yarn_accel.local_filesystem import LocalFiles, write_whole


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


AM_RM_KIND = "YARN_AM_RM_TOKEN"
RM_DELEGATION_KIND = "RM_DELEGATION_TOKEN"
#: The year 5000 or so.
_MAX_MS = 10**14
_MAX_IDENTIFIER_BYTES = 4096
#: Begins the name of a token for a name service, which every client looks for by that.
_NAME_SERVICE = "ha-hdfs:"
#: One less than the largest number of 32 bits, which the native HDFS client does not take.
_MAX_SEQUENCE = (1 << 31) - 2
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


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


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The owner and the longest life of an HDFS delegation token, from its identifier.

    Attributes:
        principal: whom it acts for.
        renewer: who may prolong it, again and again until `ends_s`.
        issued_s: when it was given, in seconds since the epoch.
        ends_s: when it ends for good.
        real_user: who asked for it where that was another principal, a proxy; else empty.
        sequence: its number at the NameNode that gave it.
    """

    principal: str
    renewer: str
    issued_s: float
    ends_s: float
    real_user: str = ""
    sequence: int = 0


def owner_of(token: Token) -> TokenOwner:
    """Read the identifier of an HDFS delegation token, as `read_identifier`."""
    if token.kind != HDFS_DELEGATION_KIND:
        raise RemoteProtocolError(f"token: {token.kind[:80]!r} is no {HDFS_DELEGATION_KIND}")
    return read_identifier(token.identifier)


def read_identifier(identifier: bytes) -> TokenOwner:
    """Read the identifier of an HDFS delegation token; whoever shows it may have made it up.

    The native HDFS client ends the thread that reads a damaged one, so nothing is overlooked here.

    Raises:
        RemoteProtocolError: it is none, or damaged.
    """
    if len(identifier) > _MAX_IDENTIFIER_BYTES:
        raise RemoteProtocolError(
            f"token: an identifier of {len(identifier)} bytes, the limit is {_MAX_IDENTIFIER_BYTES}"
        )
    if identifier[:1] != b"\0":
        raise RemoteProtocolError("token: its identifier has no version 0")
    cursor = _Cursor(identifier, 1)
    owner, renewer, real_user = cursor.name(), cursor.name(), cursor.name()
    issued_ms, ends_ms = cursor.count(_MAX_MS), cursor.count(_MAX_MS)
    sequence, _key = cursor.count(_MAX_SEQUENCE), cursor.count(_MAX_SEQUENCE)
    cursor.end()
    return TokenOwner(owner, renewer, issued_ms / 1000, ends_ms / 1000, real_user, sequence)


def read_token_file(data: bytes) -> TokenFile:
    """The content of a token file.

    Raises:
        RemoteProtocolError: not such a file, or damaged; names the byte offset, never a value.
    """
    tokens, secrets = read_stored(data)
    return TokenFile({alias: Token(*token) for alias, token in tokens.items()}, secrets)


def write_token_file(content: TokenFile) -> bytes:
    """A token file in format 0, the one that every Hadoop reads; aliases sorted.

    Raises:
        LocalProtocolError: a value that `read_token_file` would not take back.
    """
    tokens = {
        alias: StoredToken(each.identifier, each.password, each.kind, each.service)
        for alias, each in content.tokens.items()
    }
    return write_stored(tokens, content.secrets)


def with_newer_tokens(content: TokenFile, newer: TokenFile) -> TokenFile | None:
    """The content with newer delegation tokens of the same owner; None: they are not newer.

    A kind of token that the content does not have is left out, and so are secrets.

    Raises:
        AuthenticationError: one of both has no HDFS token, or they are of two owners.
        RemoteProtocolError: a token is damaged.
    """
    ours, theirs = (owner_of(each.of_kind(HDFS_DELEGATION_KIND)) for each in (content, newer))
    if theirs.principal != ours.principal:
        raise AuthenticationError(f"a token of {theirs.principal[:200]!r}, ours are of {ours.principal!r}")
    if theirs.issued_s <= ours.issued_s:
        return None
    had = {each.kind for each in content.tokens.values()}
    given = {
        alias: each
        for alias, each in newer.tokens.items()
        if each.kind in had and each.kind in (HDFS_DELEGATION_KIND, RM_DELEGATION_KIND)
    }
    kinds = {each.kind for each in given.values()}
    kept = {alias: each for alias, each in content.tokens.items() if each.kind not in kinds}
    return TokenFile({**kept, **given}, content.secrets)


def under_names(tokens: Mapping[str, Token], names: Mapping[str, str]) -> dict[str, Token]:
    """Tokens, those of HDFS also under the names by which URIs call their NameNodes.

    Hadoop names a token by the NameNode's IP address, and looks for it by that.  The native client looks for
    the host and port as its URI has them.

    Args:
        names: ``host:port`` of URIs -> the service that the token has.
    """
    named = dict(tokens)
    hdfs = {each.service: each for each in tokens.values() if each.kind == HDFS_DELEGATION_KIND}
    for name, service in names.items():
        if service in hdfs:
            named.setdefault(name, replace(hdfs[service], service=name))
    return named


def replace_tokens(path: Path, newer: TokenFile) -> bool:
    """Put newer delegation tokens into a token file by a rename; whether they are newer than its own.

    Who logs in reads either file whole.  The new file is readable by its owner alone.

    Raises:
        OSError: the file cannot be read or written.
        AuthenticationError: as `with_newer_tokens`.
        RemoteProtocolError: the file or a token is damaged.
    """
    content = with_newer_tokens(read_token_file(path.read_bytes()), newer)
    if content is not None:
        _put(path, content)
    return content is not None


def name_tokens(path: Path, names: Mapping[str, str]) -> None:
    """Put the HDFS tokens of a token file under other names, too, see `under_names`.

    Raises:
        OSError: the file cannot be read or written.
        RemoteProtocolError: the file is damaged.
    """
    content = read_token_file(path.read_bytes())
    named = under_names(content.tokens, names)
    if named != dict(content.tokens):
        _put(path, TokenFile(named, content.secrets))


def _put(path: Path, content: TokenFile) -> None:
    write_whole(LocalFiles(follow_symlinks=True, mode=0o600), str(path), [write_token_file(content)])


class _Cursor:
    """A position in an identifier that cannot leave it."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def count(self, limit: int) -> int:
        at = self._at
        first = self._take(1)
        value = decode_number(first + self._take(n_bytes_after(first[0])))
        if not 0 <= value <= limit:
            raise RemoteProtocolError(f"token: number at offset {at} is outside 0..{limit}")
        return value

    def name(self) -> str:
        """A text that is the name of somebody: it can be compared, and printed on one line."""
        at = self._at
        try:
            name = self._take(self.count(_MAX_IDENTIFIER_BYTES)).decode("utf-8")
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"token: the name at offset {at} is not UTF-8") from None
        if _CONTROL.search(name):
            raise RemoteProtocolError(f"token: the name at offset {at} has control characters")
        return name

    def end(self) -> None:
        """Refuse bytes that nothing has asked for."""
        left = len(self._data) - self._at
        if left:
            raise RemoteProtocolError(f"token: {left} bytes too many at offset {self._at}")

    def _take(self, n_bytes: int) -> bytes:
        left = len(self._data) - self._at
        if n_bytes > left:
            raise RemoteProtocolError(
                f"token: cut short at offset {self._at}: {n_bytes} bytes expected, {left} left"
            )
        start, self._at = self._at, self._at + n_bytes
        return self._data[start : self._at]
