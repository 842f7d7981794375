"""How two ends prove the credential to each other before anything else is said.

::

    client                                                           server
      Hello(versions, checksums, capabilities, credential, nonce) ->
                                                                  <- Challenge(version, checksum, server,
                                                                               nonce, proof)
      Proof(proof)                                                ->
                                                                  <- Welcome(limits, capabilities)

Instead of any of its messages the server may send Refused(code, message).

Both proofs are HMAC-SHA256 with the credential's key over the *transcript*: the bytes of the Hello as they
were sent and the Challenge without its proof.  So both nonces, the version, the checksum, the client's
capabilities and the credential identifier are covered; who changes one of them on the way (a downgrade, a
forged tenant) makes the proofs fail, and a recorded handshake is worthless because the other end's nonce is
new.  From the same key and transcript come two session keys, one per direction, with which every later frame
header is tagged, that of the Welcome first.
"""

import dataclasses
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Optional, Sequence, Tuple, Type, Union

from yarn_accel.errors import (
    AccelError,
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    UnavailableError,
)
from yarn_accel.wire.checksums import CHECKSUMS, available_checksums
from yarn_accel.wire.connection import (
    ABOUT_USERS,
    TAG_BYTES,
    Connection,
    Frame,
    Limits,
    State,
    Tagger,
    pack_prefix,
)
from yarn_accel.wire.credential import Credential, derive_key, parse_identifier
from yarn_accel.wire.schema import (
    Field,
    dump_header,
    integer,
    list_of,
    load_header,
    pattern,
    read_fields,
    text,
)

#: The one protocol version this code uses.
VERSION = 2
#: The capability to lend shared memory by descriptor.
MEMFD = "memfd"
#: The capability to report every unanswered request once per `PROGRESS_INTERVAL_S`.
PROGRESS = "progress"
#: The capability to say which operations take several small calls as one request.
PACKING = "packing"
#: The capability to take packs of `LARGE_PACK_BYTES`, from which a GPU gains.
LARGE_PACKS = "large-packs"
#: Most inputs of a pack for servers with that capability, and for others.
LARGE_PACK_BYTES, PACK_BYTES = 8 << 20, 512 << 10
#: The capability to have requests run as the user whose HDFS tokens the client hands over.
USER_TOKENS = "user-tokens"
PROGRESS_INTERVAL_S = 1.0
NONCE_BYTES = 32
#: Most operations that a Welcome names.
MAX_PACKABLE = 64


@dataclass(frozen=True)
class Hello:
    """The client's offer: versions, checksums (best first), credential identifier, nonce (hex), what else it
    can do."""

    versions: Tuple[int, ...]
    checksums: Tuple[str, ...]
    credential: str
    nonce: str
    capabilities: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Challenge:
    """The server's choice, its nonce, and its proof (hex)."""

    version: int
    checksum: str
    server: str
    nonce: str
    proof: str


@dataclass(frozen=True)
class Proof:
    """The client's proof (hex)."""

    proof: str


@dataclass(frozen=True)
class Welcome:
    """The connection is open; what the server will take, and what else it can do.

    Attributes:
        max_request_bytes: largest inputs of one request.
        max_in_flight: requests under way on this connection.
        max_lent_bytes: shared memory granted to this connection.
        packable: operations that take a stack of problems as one request; empty: nothing is said of it.
    """

    server: str
    max_request_bytes: int
    max_in_flight: int
    max_lent_bytes: int = 0
    capabilities: Tuple[str, ...] = ()
    packable: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """There will be no connection; `code` says why in one word, `message` in a sentence."""

    code: str
    message: str
    retry_after_s: int = 0


HandshakeMessage = Union[Hello, Challenge, Proof, Welcome, Refused]

_HEX_32 = pattern(r"[0-9a-f]{64}", "32 bytes in hex")
_CHECKSUM = text(16, 1)
# Of a later release or of the site: a name that the other end does not know means nothing to it.
_CAPABILITIES = list_of(pattern(r"[a-z0-9-]{1,32}", "a name in lower case"), 16)
_TABLE: Tuple[Tuple[int, Type[Any], Tuple[Field, ...]], ...] = (
    (
        1,
        Hello,
        (
            Field("versions", list_of(integer(0, 65535), 16)),
            Field("checksums", list_of(_CHECKSUM, 16)),
            Field("credential", text(2048, 1)),
            Field("nonce", _HEX_32),
            Field("capabilities", _CAPABILITIES, ()),
        ),
    ),
    (
        2,
        Challenge,
        (
            Field("version", integer(0, 65535)),
            Field("checksum", pattern("|".join(CHECKSUMS), "a checksum")),
            Field("server", text(256)),
            Field("nonce", _HEX_32),
            Field("proof", _HEX_32),
        ),
    ),
    (3, Proof, (Field("proof", _HEX_32),)),
    (
        4,
        Welcome,
        (
            Field("server", text(256)),
            Field("max_request_bytes", integer(0, 2**53)),
            Field("max_in_flight", integer(1, 2**31)),
            Field("max_lent_bytes", integer(0, 2**53)),
            Field("capabilities", _CAPABILITIES),
            Field("packable", list_of(text(64, 1), MAX_PACKABLE), ()),
        ),
    ),
    (
        5,
        Refused,
        (
            Field("code", pattern(r"[a-z0-9-]{1,64}", "a code in lower case")),
            Field("message", text(1024)),
            Field("retry_after_s", integer(0, 86400), 0),
        ),
    ),
)
_BY_KIND = {kind: (make, header_fields) for kind, make, header_fields in _TABLE}
_KIND_OF = {make: kind for kind, make, _ in _TABLE}


def encode_handshake(message: HandshakeMessage) -> Tuple[int, bytes]:
    """The frame kind and header of a handshake message."""
    return _KIND_OF[type(message)], dump_header(_header(message), type(message).__name__)


def decode_handshake(kind: int, header: bytes) -> HandshakeMessage:
    """The handshake message of a frame; a Hello may carry fields that only a newer version knows.

    Raises:
        RemoteProtocolError: not a handshake frame, or a field breaks its rule.
    """
    if kind not in _BY_KIND:
        raise RemoteProtocolError("frame kind {} does not belong to the handshake".format(kind))
    make, header_fields = _BY_KIND[kind]
    place = make.__name__
    values = read_fields(load_header(header, place), header_fields, place, ignore_unknown=make is Hello)
    message: HandshakeMessage = make(**values)
    return message


def transcript_of(hello_header: bytes, challenge: Challenge) -> bytes:
    """The digest both ends prove the key over: 32 bytes."""
    chosen = _header(challenge)
    del chosen["proof"]
    digest = hashlib.sha256(b"yarn-accel handshake\0")
    digest.update(len(hello_header).to_bytes(8, "big"))
    digest.update(hello_header)
    digest.update(dump_header(chosen, "Challenge"))
    return digest.digest()


def proof_of(role: str, key: bytes, transcript: bytes) -> str:
    """The proof of the ``client`` or the ``server``, in hex; neither can be shown as the other's."""
    return hmac.new(key, role.encode("ascii") + b" proof\0" + transcript, hashlib.sha256).hexdigest()


def proves(proof: str, role: str, key: bytes, transcript: bytes) -> bool:
    """Whether this is the proof of that role, in a time that does not depend on where it differs."""
    return hmac.compare_digest(proof_of(role, key, transcript), proof)


def _header(message: HandshakeMessage) -> Dict[str, Any]:
    header = {
        name: list(value) if isinstance(value, tuple) else value for name, value in vars(message).items()
    }
    if not header.get("packable", True):
        del header["packable"]  # A client that did not ask for it does not know it.
    return header


# The two ends

_NO_TAG = bytes(TAG_BYTES)
_EXPECTED: Dict[State, FrozenSet[Type[object]]] = {
    State.AWAIT_HELLO: frozenset({Hello}),
    State.AWAIT_PROOF: frozenset({Proof}),
    State.AWAIT_CHALLENGE: frozenset({Challenge, Refused}),
    State.AWAIT_WELCOME: frozenset({Welcome, Refused}),
}


class _End(Connection):
    """The handshake as far as both ends do the same."""

    def _shake_hands(self, frame: Frame) -> bool:
        message = decode_handshake(frame.kind, frame.header)
        if type(message) not in _EXPECTED[self.state]:
            raise RemoteProtocolError(
                "{} is not accepted by a {} in state {}".format(
                    type(message).__name__, self.role, self.state.value
                )
            )
        if isinstance(message, Welcome):
            self._check_tag(frame)
        elif frame.tag != _NO_TAG:
            raise RemoteProtocolError("a frame of the handshake has a tag")
        if frame.varying_bytes:
            raise RemoteProtocolError("a frame of the handshake has a varying part")
        self._advance(message, frame.header)
        return self.state is State.OPEN

    def _advance(self, message: HandshakeMessage, header: bytes) -> None:
        raise NotImplementedError

    def _say(self, message: HandshakeMessage) -> bytes:
        """Put a handshake message, untagged, into the outbox; returns its header."""
        kind, header = encode_handshake(message)
        self._outbox.append(pack_prefix(kind, len(header), 0) + _NO_TAG + header)
        return header

    def _use_keys(self, key: bytes, transcript: bytes) -> None:
        """Tag the frames of each direction with a session key of its own from now on."""
        from_client, from_server = (
            Tagger(hmac.new(key, label + transcript, hashlib.sha256).digest())
            for label in (b"from client\0", b"from server\0")
        )
        is_client = self.role == "client"
        self._send_tags, self._receive_tags = (
            (from_client, from_server) if is_client else (from_server, from_client)
        )
        self._has_keys = True

    def _open(self, offered: Sequence[str], own: Sequence[str]) -> None:
        self.state = State.OPEN
        self.capabilities = frozenset(offered) & frozenset(own)
        self._may_lend = MEMFD in self.capabilities
        if USER_TOKENS not in self.capabilities:
            self._receives, self._sends = self._receives - ABOUT_USERS, self._sends - ABOUT_USERS
        self.limits = self._limits
        self.use_checksum(self.checksum)


class ClientConnection(_End):
    """The client's end; its Hello is ready in `data_to_send` at once.

    Args:
        credential: what it proves itself with.
        nonce: 32 fresh random bytes.
        checksums: what it accepts as payload checksum, best first; what it cannot compute is left
            out.  Default: all it can compute, without ``none``.
        capabilities: what else it can do on this carrier (`MEMFD`).
    """

    role = "client"

    def __init__(
        self,
        credential: Credential,
        nonce: bytes,
        checksums: Optional[Sequence[str]] = None,
        limits: Optional[Limits] = None,
        capabilities: Sequence[str] = (),
    ) -> None:
        super().__init__(limits or Limits(), State.AWAIT_CHALLENGE)
        _check_nonce(nonce)
        self.server = ""
        self.welcome: Optional[Welcome] = None
        self._key = credential.key
        self._checksums = _computable(checksums)
        self._capabilities = tuple(capabilities)
        identifier = credential.identifier().decode("ascii")
        hello = Hello((VERSION,), self._checksums, identifier, nonce.hex(), self._capabilities)
        self._hello = self._say(hello)
        self._transcript = b""

    def _advance(self, message: HandshakeMessage, header: bytes) -> None:
        if isinstance(message, Refused):
            raise _refusal(message)
        if isinstance(message, Challenge):
            self._prove(message)
        elif isinstance(message, Welcome):
            self.welcome = message
            self._open(message.capabilities, self._capabilities)

    def _prove(self, challenge: Challenge) -> None:
        self._transcript = transcript_of(self._hello, challenge)
        if not proves(challenge.proof, "server", self._key, self._transcript):
            raise AuthenticationError(
                "server {!r} does not know the secret behind this credential".format(challenge.server),
                cure="issue the credential from the master secret of this server",
            )
        if challenge.version != VERSION or challenge.checksum not in self._checksums:
            raise RemoteProtocolError("the server chose a version or checksum that was not offered")
        self.server = challenge.server
        self.checksum = challenge.checksum
        self._say(Proof(proof_of("client", self._key, self._transcript)))
        self._use_keys(self._key, self._transcript)
        self.state = State.AWAIT_WELCOME


class ServerConnection(_End):
    """The server's end.

    Args:
        master: the master secret of the site.
        nonce: 32 fresh random bytes.
        now_s: Unix seconds, to judge the expiry of credentials.
        server: the name it introduces itself with.
        checksums: what it allows as payload checksum on this carrier; the rest as for the client.
        max_request_bytes, max_in_flight, max_lent_bytes: announced to the client; the limits of what is
            received at all are `limits`.
        capabilities: what else it can do on this carrier (`MEMFD`).
        packable: operations that take stacks, for clients that ask (`PACKING`); only so many are named as a
            Welcome holds.
        is_revoked: whether a credential that was proved counts no longer.
    """

    role = "server"

    def __init__(
        self,
        master: bytes,
        nonce: bytes,
        now_s: float,
        server: str,
        checksums: Optional[Sequence[str]] = None,
        max_request_bytes: int = 1 << 30,
        max_in_flight: int = 64,
        limits: Optional[Limits] = None,
        max_lent_bytes: int = 0,
        capabilities: Sequence[str] = (),
        packable: Sequence[str] = (),
        is_revoked: Callable[[Credential], bool] = lambda _: False,
    ) -> None:
        super().__init__(limits or Limits(), State.AWAIT_HELLO)
        _check_nonce(nonce)
        #: Who the client is, once open: from the credential it proved, never from a request.
        self.credential: Optional[Credential] = None
        self._master = master
        self._nonce = nonce
        self._now_s = now_s
        self._server = server
        self._checksums = _computable(checksums)
        self._welcome = Welcome(server, max_request_bytes, max_in_flight, max_lent_bytes, tuple(capabilities))
        self._packable = tuple([name for name in packable if len(name) <= 64][:MAX_PACKABLE])
        self._offered: Sequence[str] = ()
        self._is_revoked = is_revoked
        self._shown: Optional[Credential] = None
        self._key = b""
        self._transcript = b""

    def refuse(self, code: str, message: str, retry_after_s: int = 0) -> None:
        """End the handshake from the owner's side (too many connections, draining); see `data_to_send`."""
        self._say(Refused(code, message, retry_after_s))
        self.state = State.CLOSED

    def _advance(self, message: HandshakeMessage, header: bytes) -> None:
        if isinstance(message, Hello):
            self._challenge(message, header)
        elif isinstance(message, Proof):
            self._judge(message)

    def _challenge(self, hello: Hello, header: bytes) -> None:
        if VERSION not in hello.versions:
            self._deny(
                "version",
                "server {} uses protocol version {}, the client {}".format(
                    self._server, VERSION, ", ".join(map(str, hello.versions)) or "none"
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
        self._offered = hello.capabilities
        self._key = derive_key(self._master, identifier)
        self.checksum = chosen[0]
        blank = Challenge(VERSION, self.checksum, self._server, self._nonce.hex(), "")
        self._transcript = transcript_of(header, blank)
        proof = proof_of("server", self._key, self._transcript)
        self._say(Challenge(blank.version, blank.checksum, blank.server, blank.nonce, proof))
        self.state = State.AWAIT_PROOF

    def _judge(self, proof: Proof) -> None:
        if not proves(proof.proof, "client", self._key, self._transcript):
            self._deny(
                "wrong-proof", "the credential was not issued from the secret of server " + self._server
            )
        assert self._shown is not None
        if self._is_revoked(self._shown):
            text = "the credential of tenant {} was revoked".format(self._shown.tenant)
            self._deny("credential-revoked", text)
        self.credential = self._shown
        self._use_keys(self._key, self._transcript)
        if PACKING in self._offered:
            self._welcome = dataclasses.replace(self._welcome, packable=self._packable)
        kind, header = encode_handshake(self._welcome)
        self._outbox.append(self._tagged(kind, 0, header, 0))
        self._open(self._offered, self._welcome.capabilities)

    def _deny(self, code: str, message: str) -> None:
        self._say(Refused(code, message[:1024]))
        if code in ("version", "checksum"):
            raise RemoteProtocolError(message)
        raise AuthenticationError(message)


def _refusal(refused: Refused) -> AccelError:
    if refused.code == "version":
        return RemoteProtocolError(refused.message, cure="install the same release on both sides")
    if refused.code == "credential-revoked":
        return AuthenticationError(refused.message, cure="ask the administrator of this site why")
    if refused.code in ("credential", "credential-expired", "wrong-proof"):
        return AuthenticationError(refused.message, cure="issue a new credential for this site")
    if refused.code == "checksum":
        return RemoteProtocolError(refused.message)
    return UnavailableError(refused.message, retry_after_s=float(refused.retry_after_s))


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise LocalProtocolError("a nonce has {} bytes".format(NONCE_BYTES))


def _computable(checksums: Optional[Sequence[str]]) -> Tuple[str, ...]:
    """The asked checksums that this interpreter can compute; None: all it can, but not none."""
    available = available_checksums()
    if checksums is None:
        return available
    return tuple(name for name in checksums if name in available or name == "none")
