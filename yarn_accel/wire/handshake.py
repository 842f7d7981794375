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

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Dict, Tuple, Type, Union

from yarn_accel.errors import RemoteProtocolError
from yarn_accel.wire.checksums import CHECKSUMS
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
PROGRESS_INTERVAL_S = 1.0
NONCE_BYTES = 32
#: No frame of a handshake has a larger header.
HANDSHAKE_LIMIT_BYTES = 8192
#: Most operations that a Welcome names.
MAX_PACKABLE = 64


@dataclass(frozen=True)
class Hello:
    """What the client offers: versions, checksums (best first), credential identifier, nonce (hex), what else
    it can do."""

    versions: Tuple[int, ...]
    checksums: Tuple[str, ...]
    credential: str
    nonce: str
    capabilities: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Challenge:
    """What the server chose, its nonce, and its proof (hex)."""

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


@dataclass(frozen=True)
class SessionKeys:
    """The key that tags frame headers, one per direction."""

    from_client: bytes
    from_server: bytes


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


def session_keys(key: bytes, transcript: bytes) -> SessionKeys:
    """The two keys of this connection."""
    return SessionKeys(
        from_client=hmac.new(key, b"from client\0" + transcript, hashlib.sha256).digest(),
        from_server=hmac.new(key, b"from server\0" + transcript, hashlib.sha256).digest(),
    )


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
