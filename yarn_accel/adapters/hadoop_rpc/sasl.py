"""The login of a connection, without the socket: DIGEST-MD5 (RFC 2831) with a Hadoop token.

The server's offer names the methods and mechanisms it takes, and already holds the first challenge.  The user
is the token's identifier, the password the token's password, both in base64; integrity and privacy are not
asked for (``qop=auth``).  The server must prove that it knows the password too (``rspauth``).

`framing` carries the messages: it sends what `TokenLogin.begin` and `TokenLogin.receive` return, until
`receive` returns None.  Another mechanism is another class with these two methods.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from yarn_accel.adapters.hadoop_rpc.protobuf import binary, enum, message, string, uint32
from yarn_accel.adapters.hadoop_rpc.rpc_errors import LOGIN_CURE, UnsupportedLoginError
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import AuthenticationError, RemoteProtocolError


class SaslState(IntEnum):
    """Steps of the login."""

    SUCCESS = 0
    NEGOTIATE = 1
    INITIATE = 2
    CHALLENGE = 3
    RESPONSE = 4
    WRAP = 5


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


DIGEST_MD5 = "DIGEST-MD5"
MAX_CHALLENGE_BYTES = 4096
MAX_STEPS = 8
_DIRECTIVE = re.compile(r'\s*([A-Za-z0-9_-]{1,32})=(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|\Z)')


class DigestMd5:
    """The client's end of one DIGEST-MD5 exchange.

    Args:
        user: name to log in with; plain ASCII without quotes.
        password: never sent.
        digest_uri: ``protocol/server id`` of the server's offer.
        cnonce: a number of our own that is used only once, as text.
    """

    def __init__(self, user: str, password: str, digest_uri: str, cnonce: str) -> None:
        self._user, self._password, self._uri = user, password, digest_uri
        self._cnonce = cnonce
        self._expected: bytes | None = None

    def respond(self, challenge: bytes) -> bytes:
        """Answer the server's challenge.

        Raises:
            RemoteProtocolError: the challenge is no DIGEST-MD5 challenge.
            UnsupportedLoginError: the server insists on integrity or privacy.
        """
        offer = _directives(challenge)
        nonce = offer.get("nonce", "")
        if not nonce or offer.get("algorithm") != "md5-sess":
            raise RemoteProtocolError("login: the challenge has no nonce or is not for md5-sess")
        qops = [each.strip() for each in offer.get("qop", "auth").split(",")]
        if "auth" not in qops:
            raise UnsupportedLoginError(
                f"the server insists on hadoop.rpc.protection above authentication ({', '.join(qops)[:80]})",
                cure=LOGIN_CURE,
            )
        realm = offer.get("realm", "")
        proof = self._proof(realm, nonce, "AUTHENTICATE")
        self._expected = self._proof(realm, nonce, "")
        fields = {
            "charset": "utf-8",
            "username": _quoted(self._user),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "nc": "00000001",
            "cnonce": _quoted(self._cnonce),
            "digest-uri": _quoted(self._uri),
            "maxbuf": "65536",
            "response": proof.decode("ascii"),
            "qop": "auth",
        }
        return ",".join(f"{name}={value}" for name, value in fields.items()).encode("utf-8")

    def verify(self, final: bytes) -> None:
        """Check the server's own proof.

        Raises:
            AuthenticationError: it is missing or wrong, or comes before a challenge.
        """
        given = _directives(final).get("rspauth", "").encode("utf-8")
        if self._expected is None or not hmac.compare_digest(given, self._expected):
            raise AuthenticationError("the server could not prove that it knows the token's password")

    def _proof(self, realm: str, nonce: str, verb: str) -> bytes:
        secret = _md5(f"{self._user}:{realm}:{self._password}".encode())
        session = _hex(_md5(secret + f":{nonce}:{self._cnonce}".encode()))
        target = _hex(_md5(f"{verb}:{self._uri}".encode()))
        return _hex(
            _md5(b":".join((session, nonce.encode(), b"00000001", self._cnonce.encode(), b"auth", target)))
        )


class TokenLogin:
    """The login of one connection: negotiate, answer, verify. Give it messages, send what it returns."""

    def __init__(self, token: Token, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._token = token
        self._random_bytes = random_bytes
        self._digest: DigestMd5 | None = None
        self._n_steps = 0

    def begin(self) -> SaslMessage:
        """The first message: ask for an offer."""
        return SaslMessage(state=SaslState.NEGOTIATE)

    def receive(self, message: SaslMessage) -> SaslMessage | None:
        """Take the server's message; the answer to it, or None when the login is complete.

        Raises:
            AuthenticationError: no common way to log in, or the server could not prove itself.
            RemoteProtocolError: a message out of turn.
        """
        self._n_steps += 1
        if self._n_steps > MAX_STEPS:
            raise RemoteProtocolError(f"login: more than {MAX_STEPS} messages")
        if message.state is SaslState.NEGOTIATE and self._digest is None:
            return self._initiate(message.auths)
        if message.state is SaslState.CHALLENGE and self._digest is not None:
            return SaslMessage(state=SaslState.RESPONSE, token=self._digest.respond(message.token or b""))
        if message.state is SaslState.SUCCESS:
            if self._digest is None:
                raise AuthenticationError("the server asks for no proof of the token, and gives none")
            self._digest.verify(message.token or b"")
            return None
        raise RemoteProtocolError(f"login: {message.state.name} is out of turn")

    def _initiate(self, auths: tuple[SaslAuth, ...]) -> SaslMessage:
        auth = _choose(auths)
        user = base64.b64encode(self._token.identifier).decode("ascii")
        password = base64.b64encode(self._token.password).decode("ascii")
        uri = f"{auth.protocol or ''}/{auth.server_id or ''}"
        cnonce = base64.b64encode(self._random_bytes(24)).decode("ascii")
        self._digest = DigestMd5(user, password, uri, cnonce)
        chosen = SaslAuth(auth.method, auth.mechanism, auth.protocol, auth.server_id)
        answer = self._digest.respond(auth.challenge) if auth.challenge is not None else b""
        return SaslMessage(state=SaslState.INITIATE, token=answer, auths=(chosen,))


def _choose(auths: tuple[SaslAuth, ...]) -> SaslAuth:
    for auth in auths:
        if auth.method == "TOKEN" and auth.mechanism == DIGEST_MD5:
            return auth
    offered = (
        ", ".join(f"{auth.method} by {auth.mechanism or 'nothing'}"[:60] for auth in auths[:8]) or "nothing"
    )
    raise UnsupportedLoginError(
        f"the server offers {offered}; yarn-accel logs in by TOKEN with {DIGEST_MD5}",
        cure=LOGIN_CURE,
    )


def _directives(challenge: bytes) -> dict[str, str]:
    """``name=value`` and ``name="value"`` after each other, separated by commas."""
    if len(challenge) > MAX_CHALLENGE_BYTES:
        raise RemoteProtocolError(f"login: a challenge of {len(challenge)} bytes")
    text = challenge.decode("utf-8", "replace")
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None or match.end() == at:
            raise RemoteProtocolError(f"login: the challenge cannot be read at character {at}")
        name, quoted, plain = match.groups()
        if name in found:
            raise RemoteProtocolError(f"login: the challenge has {name} twice")
        found[name] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
        at = match.end()
    return found


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _hex(digest: bytes) -> bytes:
    return digest.hex().encode("ascii")
