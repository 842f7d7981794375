"""How a connection becomes a user's: one line to trqauthd's local socket, one line back.

The client connects to the server first, then tells trqauthd the port it did that from. trqauthd checks by the
socket's credentials that user and process are the caller's, and vouches for the connection. A length that is
wrong by one byte ends trqauthd 6.1, so this is the only place where such a line is made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torque_sched.errors import ProtocolError

MOST_LINE_BYTES = 4096
ACTIVE_SERVER_QUESTION = b"2|"
"""Asks trqauthd for the active server; the answer's text is its name, ``0|4|head|15001|``."""

_WORD = re.compile(r"[^|\s\x00-\x1f\x7f]{1,255}")
_NUMBER = re.compile(rb"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Authorisation:
    """The connection of process ``pid`` of ``user`` from ``client_port`` to ``server``."""

    server: str
    server_port: int
    user: str
    pid: int
    client_port: int


@dataclass(frozen=True, slots=True)
class AuthorisationAnswer:
    """What trqauthd answers: code 0, or an error number with its words.

    ``port`` is the server's, in the answer to `ACTIVE_SERVER_QUESTION`, whose text is the server's name.
    """

    code: int
    text: str = ""
    port: int | None = None


def encode_authorisation(asked: Authorisation) -> bytes:
    """The line to trqauthd; lengths are of bytes.

    >>> encode_authorisation(Authorisation("head", 15001, "torquesched", 150, 45826))
    b'1|4|head|15001|1|11|torquesched|150|45826|'

    Raises:
        ProtocolError: a name is empty, too long or has a separator; a number is out of range.
    """
    for name in (asked.server, asked.user):
        if _WORD.fullmatch(name) is None:
            raise ProtocolError(f"{name[:60]!r} is no name that trqauthd takes")
    for port in (asked.server_port, asked.client_port):
        if not 0 < port < 65536:
            raise ProtocolError(f"{port} is no port")
    if not 0 < asked.pid < 1 << 31:
        raise ProtocolError(f"{asked.pid} is no process id")
    server, user = asked.server.encode(), asked.user.encode()
    return b"1|%d|%s|%d|1|%d|%s|%d|%d|" % (
        len(server), server, asked.server_port, len(user), user, asked.pid, asked.client_port,
    )  # fmt: skip


def decode_authorisation(line: bytes) -> Authorisation | None:
    """What a line asks trqauthd; None: it goes on.

    Raises:
        ProtocolError: it is no such line, or a length is not that of its name.
    """
    fields = _Fields(line)
    try:
        fields.exactly(b"1")
        server, server_port = fields.counted(), fields.number()
        fields.exactly(b"1")
        user, pid, client_port = fields.counted(), fields.number(), fields.number()
    except _ShortError:
        return None
    return Authorisation(server, server_port, user, pid, client_port)


def encode_answer(answer: AuthorisationAnswer) -> bytes:
    """The bytes trqauthd answers.

    >>> encode_answer(AuthorisationAnswer(0)), encode_answer(AuthorisationAnswer(0, "head", 15001))
    (b'0|0||', b'0|4|head|15001|')
    """
    text = answer.text.encode()
    port = b"" if answer.port is None else b"%d|" % answer.port
    return b"%d|%d|%s|%s" % (answer.code, len(text), text, port)


def decode_answer(data: bytes, *, has_port: bool = False) -> AuthorisationAnswer | None:
    """What trqauthd answered; None: the answer goes on.

    Args:
        data: all that came so far.
        has_port: whether it answers `ACTIVE_SERVER_QUESTION`; a refusal has no port either way.

    Raises:
        ProtocolError: it is no such answer.
    """
    fields = _Fields(data)
    try:
        code = fields.number()
        text = fields.counted()
        return AuthorisationAnswer(code, text, fields.number() if has_port and not code else None)
    except _ShortError:
        return None


class _ShortError(Exception):
    """The line goes on."""


class _Fields:
    """Takes field after field, each with the bar behind it."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MOST_LINE_BYTES:
            raise ProtocolError(f"a line of trqauthd's with {len(data)} bytes, more than {MOST_LINE_BYTES}")
        self._data = data
        self._at = 0

    def _until_bar(self) -> bytes:
        end = self._data.find(b"|", self._at)
        field = self._data[self._at : end if end >= 0 else None]
        if end < 0 and len(field) <= 10:
            raise _ShortError
        self._at = end + 1
        return field

    def number(self) -> int:
        field = self._until_bar()
        if _NUMBER.fullmatch(field) is None:
            raise ProtocolError(f"{field[:20]!r} where trqauthd's number belongs")
        return int(field)

    def exactly(self, expected: bytes) -> None:
        field = self._until_bar()
        if field != expected:
            raise ProtocolError(f"{field[:20]!r} where {expected!r} belongs")

    def counted(self) -> str:
        length = self.number()
        end = self._at + length
        if length > MOST_LINE_BYTES:
            raise ProtocolError(f"a text of {length} bytes, more than {MOST_LINE_BYTES}")
        if len(self._data) <= end:
            raise _ShortError
        text = self._data[self._at : end]
        if self._data[end : end + 1] != b"|":
            raise ProtocolError(f"a text of {length} bytes that does not end there")
        self._at = end + 1
        return text.decode("utf-8", "replace")
