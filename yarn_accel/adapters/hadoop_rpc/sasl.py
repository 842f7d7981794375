"""The login of a connection, without the socket: DIGEST-MD5 (RFC 2831) with a Hadoop token.

The server's offer names the methods and mechanisms it takes, and already holds the first challenge.  The user
is the token's identifier, the password the token's password, both in base64.  The server must prove that it
knows the password too (``rspauth``).  `framing` carries the messages of a `Login` and applies its `Layer`;
the other login is in `kerberos`.

``hadoop.rpc.protection`` above authentication protects all that follows the login: each message carries a
keyed sum and a number (integrity), and is encrypted with RC4 as well (privacy), which every Hadoop offers.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from yarn_accel.adapters.hadoop_rpc.protobuf import binary, enum, message, string, uint32
from yarn_accel.adapters.hadoop_rpc.rpc_errors import UnsupportedLoginError
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import AuthenticationError, ConfigError, RemoteProtocolError


class Protection(IntEnum):
    """The protection of messages after the login (``hadoop.rpc.protection``), as the bits of RFC 4752."""

    AUTHENTICATION = 1
    INTEGRITY = 2
    PRIVACY = 4


#: RFC 2831's names.
_QOPS = {Protection.AUTHENTICATION: "auth", Protection.INTEGRITY: "auth-int", Protection.PRIVACY: "auth-conf"}
PROTECTION_KEY = "hadoop.rpc.protection"


def read_protections(text: str) -> tuple[Protection, ...]:
    """The protections that ``hadoop.rpc.protection`` names, the preferred one first; none: nothing is named.

    Raises:
        ConfigError: a word that Hadoop does not know.
    """
    words = [word.strip().upper() for word in text.split(",") if word.strip()]
    try:
        return tuple(Protection[word] for word in words)
    except KeyError as error:
        known = ", ".join(each.name.lower() for each in Protection)
        raise ConfigError(f"{PROTECTION_KEY}: {str(error)[1:-1].lower()!r}; known: {known}") from None


def choose_protection(wanted: Sequence[Protection], offered: Collection[Protection]) -> Protection:
    """The protection of a connection: the first wanted one that is offered, else a stronger one.

    Args:
        wanted: the site's, the preferred one first; empty: the weakest that the server takes.

    Raises:
        UnsupportedLoginError: the server offers less than each wanted one, so nothing is sent to it.
    """
    for each in wanted:
        if each in offered:
            return each
    enough = [each for each in sorted(offered) if not wanted or each > min(wanted)]
    if enough:
        return enough[0]
    raise UnsupportedLoginError(
        f"the server offers {_named(offered)}, and this side wants {_named(wanted)}",
        cure=f"give {PROTECTION_KEY} the same value on both sides",
    )


def _named(protections: Collection[Protection]) -> str:
    return " or ".join(each.name.lower() for each in sorted(protections)) or "no protection that is known"


class Layer(Protocol):
    """The protection of the messages of one connection; each side's messages in their order.

    Attributes:
        plain_bytes: the most that one message may hold.
    """

    plain_bytes: int

    def wrap(self, data: bytes) -> bytes:
        """One message, protected."""

    def unwrap(self, token: bytes) -> bytes:
        """The content of the server's next message.

        Raises:
            RemoteProtocolError: it was changed, repeated or left out on its way.
        """


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


class Login(Protocol):
    """The login of one connection: negotiate, answer, verify. Give it messages, send what it returns.

    Attributes:
        layer: the protection of what follows the login; None: there is none.
        is_blocking: `receive` may wait for a KDC.
    """

    layer: Layer | None
    is_blocking: bool

    def begin(self) -> SaslMessage:
        """The first message."""

    def receive(self, message: SaslMessage) -> SaslMessage | None:
        """Take the server's message; the answer to it, or None when the login is complete.

        Raises:
            AuthenticationError: no common way to log in, or the server could not prove itself.
            RemoteProtocolError: a message out of turn.
        """


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
        wanted: see `choose_protection`.
    """

    def __init__(
        self, user: str, password: str, digest_uri: str, cnonce: str, wanted: Sequence[Protection] = ()
    ) -> None:
        self._user, self._password, self._uri = user, password, digest_uri
        self._cnonce = cnonce
        self._wanted = wanted
        self._expected: bytes | None = None
        self._protection = Protection.AUTHENTICATION
        self._session = b""
        self._server_max_bytes = _MAX_BUFFER_BYTES

    def respond(self, challenge: bytes) -> bytes:
        """Answer the server's challenge.

        Raises:
            RemoteProtocolError: the challenge is no DIGEST-MD5 challenge.
            UnsupportedLoginError: it offers no protection that is wanted and known.
        """
        offer = _directives(challenge)
        nonce = offer.get("nonce", "")
        if not nonce or offer.get("algorithm") != "md5-sess":
            raise RemoteProtocolError("login: the challenge has no nonce or is not for md5-sess")
        self._protection = choose_protection(self._wanted, _offered(offer))
        self._server_max_bytes = _buffer_bytes(offer.get("maxbuf", str(_MAX_BUFFER_BYTES)))
        realm = offer.get("realm", "")
        secret = _md5(f"{self._user}:{realm}:{self._password}".encode())
        self._session = _md5(secret + f":{nonce}:{self._cnonce}".encode())
        self._expected = self._proof(nonce, "")
        fields = {
            "charset": "utf-8",
            "username": _quoted(self._user),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "nc": "00000001",
            "cnonce": _quoted(self._cnonce),
            "digest-uri": _quoted(self._uri),
            "maxbuf": str(_MAX_BUFFER_BYTES),
            "response": self._proof(nonce, "AUTHENTICATE").decode("ascii"),
            "qop": _QOPS[self._protection],
        }
        if self._protection is Protection.PRIVACY:
            fields["cipher"] = _quoted(_CIPHER)
        return ",".join(f"{name}={value}" for name, value in fields.items()).encode("utf-8")

    def verify(self, final: bytes) -> None:
        """Check the server's own proof.

        Raises:
            AuthenticationError: it is missing or wrong, or comes before a challenge.
        """
        given = _directives(final).get("rspauth", "").encode("utf-8")
        if self._expected is None or not hmac.compare_digest(given, self._expected):
            raise AuthenticationError("the server could not prove that it knows the token's password")

    def layer(self) -> Layer | None:
        """The protection of what follows a login that `verify` has found good; None: there is none."""
        if self._protection is Protection.AUTHENTICATION:
            return None
        is_private = self._protection is Protection.PRIVACY
        return DigestLayer(self._session, self._server_max_bytes, is_private=is_private)

    def _proof(self, nonce: str, verb: str) -> bytes:
        ending = "" if self._protection is Protection.AUTHENTICATION else f":{'0' * 32}"
        target = _hex(_md5(f"{verb}:{self._uri}{ending}".encode()))
        qop = _QOPS[self._protection].encode()
        parts = (_hex(self._session), nonce.encode(), b"00000001", self._cnonce.encode(), qop, target)
        return _hex(_md5(b":".join(parts)))


#: RFC 2831's value where a side names none.
_MAX_BUFFER_BYTES = 65536
_LEAST_BUFFER_BYTES = 256
_CIPHER = "rc4"
_SUM_BYTES = 10
_TYPE = b"\x00\x01"
_TRAILER_BYTES = _SUM_BYTES + len(_TYPE) + 4
_SIGNING = "Digest session key to {}-to-{} signing key magic constant"
_SEALING = "Digest H(A1) to {}-to-{} sealing key magic constant"
_WAYS = (("client", "server"), ("server", "client"))


class DigestLayer:
    """RFC 2831's protection: content, the first bytes of a keyed sum, a type, and the message's number.

    Args:
        session: the hash that both sides know from the login, H(A1).
        server_max_bytes: the longest message that the server takes.
        is_private: encrypt, too.
    """

    plain_bytes: int

    def __init__(self, session: bytes, server_max_bytes: int, *, is_private: bool) -> None:
        self.plain_bytes = server_max_bytes - _TRAILER_BYTES
        self._keys = [_md5(session + _SIGNING.format(*way).encode()) for way in _WAYS]
        self._encrypt: _Rc4 | None = None
        self._decrypt: _Rc4 | None = None
        if is_private:
            self._encrypt, self._decrypt = (
                _Rc4(_md5(session + _SEALING.format(*way).encode())) for way in _WAYS
            )
        self._n_sent = self._n_received = 0

    def wrap(self, data: bytes) -> bytes:
        """One message, protected."""
        number = self._n_sent.to_bytes(4, "big")
        content = data + self._sum(self._keys[0], number, data)
        self._n_sent = (self._n_sent + 1) & _MASK32
        return (self._encrypt.apply(content) if self._encrypt else content) + _TYPE + number

    def unwrap(self, token: bytes) -> bytes:
        """The content of the server's next message.

        Raises:
            RemoteProtocolError: it was changed, repeated or left out on its way.
        """
        number = self._n_received.to_bytes(4, "big")
        if len(token) < _TRAILER_BYTES or token[-6:] != _TYPE + number:
            raise RemoteProtocolError("a protected message is out of turn or cut short")
        content = token[:-6]
        if self._decrypt:
            content = self._decrypt.apply(content)
        data, given = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
        if not hmac.compare_digest(given, self._sum(self._keys[1], number, data)):
            raise RemoteProtocolError("a protected message was changed on its way")
        self._n_received = (self._n_received + 1) & _MASK32
        return data

    @staticmethod
    def _sum(key: bytes, number: bytes, data: bytes) -> bytes:
        return hmac.new(key, number + data, _MD5).digest()[:_SUM_BYTES]


_MASK32 = (1 << 32) - 1


class _Rc4:
    """The RC4 stream of one direction; it runs on from message to message."""

    def __init__(self, key: bytes) -> None:
        state = list(range(256))
        j = 0
        for i in range(256):
            j = (j + state[i] + key[i % len(key)]) & 0xFF
            state[i], state[j] = state[j], state[i]
        self._state, self._i, self._j = state, 0, 0

    def apply(self, data: bytes) -> bytes:
        """The data encrypted, or decrypted."""
        state, i, j = self._state, self._i, self._j
        stream = bytearray(len(data))
        for at in range(len(data)):
            i = (i + 1) & 0xFF
            a = state[i]
            j = (j + a) & 0xFF
            b = state[j]
            state[i], state[j] = b, a
            stream[at] = state[(a + b) & 0xFF]
        self._i, self._j = i, j
        mixed = int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")
        return mixed.to_bytes(len(data), "little")


def _offered(offer: dict[str, str]) -> list[Protection]:
    """The protections that a challenge offers, of those that this side can do."""
    words = {each.strip() for each in offer.get("qop", "auth").split(",")}
    found = [protection for protection, word in _QOPS.items() if word in words]
    ciphers = {each.strip() for each in offer.get("cipher", "").split(",")}
    if Protection.PRIVACY in found and _CIPHER not in ciphers:
        found.remove(Protection.PRIVACY)
    return found


def _buffer_bytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) >= _LEAST_BUFFER_BYTES):
        raise RemoteProtocolError(f"login: messages of at most {text[:40]!r} bytes")
    return min(int(text), 1 << 24)


class TokenLogin:
    """The login with a Hadoop token.

    Args:
        wanted: see `choose_protection`.
    """

    layer: Layer | None = None
    is_blocking: bool = False

    def __init__(
        self,
        token: Token,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        wanted: Sequence[Protection] = (),
    ) -> None:
        self._token = token
        self._random_bytes = random_bytes
        self._wanted = wanted
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
            self.layer = self._digest.layer()
            return None
        raise RemoteProtocolError(f"login: {message.state.name} is out of turn")

    def _initiate(self, auths: tuple[SaslAuth, ...]) -> SaslMessage:
        auth = choose_login(auths, "TOKEN", DIGEST_MD5)
        user = base64.b64encode(self._token.identifier).decode("ascii")
        password = base64.b64encode(self._token.password).decode("ascii")
        uri = f"{auth.protocol or ''}/{auth.server_id or ''}"
        cnonce = base64.b64encode(self._random_bytes(24)).decode("ascii")
        self._digest = DigestMd5(user, password, uri, cnonce, self._wanted)
        chosen = SaslAuth(auth.method, auth.mechanism, auth.protocol, auth.server_id)
        answer = self._digest.respond(auth.challenge) if auth.challenge is not None else b""
        return SaslMessage(state=SaslState.INITIATE, token=answer, auths=(chosen,))


#: Such as the ResourceManager's service for operators.
_NO_TOKENS = "this service takes a Kerberos ticket, and no token"


def choose_login(auths: Sequence[SaslAuth], method: str, mechanism: str) -> SaslAuth:
    """The offer of this method and mechanism.

    Raises:
        UnsupportedLoginError: there is none, such as where the server falls back to SIMPLE.
    """
    for auth in auths:
        if auth.method == method and auth.mechanism == mechanism:
            return auth
    offered = (
        ", ".join(f"{auth.method} by {auth.mechanism or 'nothing'}"[:60] for auth in auths[:8]) or "nothing"
    )
    raise UnsupportedLoginError(
        f"the server offers {offered}; yarn-accel logs in by {method} with {mechanism}",
        cure=_NO_TOKENS
        if method == "TOKEN" and any(auth.method == "KERBEROS" for auth in auths)
        else "look at hadoop.security.authentication of the server; a weaker login is never taken",
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


#: RFC 2831 names MD5; a machine that forbids it for its own security need not refuse the protocol.
_MD5 = functools.partial(hashlib.md5, usedforsecurity=False)


def _md5(data: bytes) -> bytes:
    return _MD5(data).digest()


def _hex(digest: bytes) -> bytes:
    return digest.hex().encode("ascii")
