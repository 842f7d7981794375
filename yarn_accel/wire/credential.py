"""Job credentials: who may talk to a pipeline server, for how long, and with which key.

The scheme is the one of Hadoop's token secret managers.  A site has one master secret, which only the servers
and the person who submits jobs can read.  A job gets a credential derived from it: a public *identifier*
(tenant, expiry, key id) and a secret *key* = HMAC-SHA256(master secret, identifier).  A server needs no table
of jobs: from the identifier that a client shows it computes the key again.  A client that changes its tenant
or expiry changes the identifier, so its key is no longer the right one.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict

from yarn_accel.errors import AuthenticationError

#: The name of the credential among the secrets of a Hadoop credentials file.
SECRET_ALIAS = "yarn-accel.pipeline"
KEY_BYTES = 32
_MAX_CREDENTIAL_BYTES = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/+-]{0,127}\Z")
_MAX_EXPIRES_S = 2**53


@dataclass(frozen=True)
class Credential:
    """A job's proof: the tenant it acts for, until when (Unix seconds), and the key."""

    tenant: str
    expires_s: int
    key_id: str
    key: bytes = field(repr=False)

    def identifier(self) -> bytes:
        """The public part, as canonical JSON; it goes over the wire in the clear."""
        return _identifier(self.tenant, self.expires_s, self.key_id)


def issue(master: bytes, tenant: str, expires_s: int, key_id: str) -> Credential:
    """Derive the credential of a tenant from the master secret.

    Raises:
        AuthenticationError: a name has forbidden characters, or the master secret is too short to protect
            anything.
    """
    if len(master) < 16:
        raise AuthenticationError(
            "the master secret has {} bytes, at least 16 are needed".format(len(master))
        )
    identifier = _identifier(tenant, expires_s, key_id)
    parse_identifier(identifier)
    return Credential(tenant, expires_s, key_id, derive_key(master, identifier))


def derive_key(master: bytes, identifier: bytes) -> bytes:
    """The key that belongs to an identifier: 32 bytes."""
    return hmac.new(master, identifier, hashlib.sha256).digest()


def claim_token(credential: Credential, node: str) -> str:
    """A mapper's token for its node's agent, in hex: it proves the credential there and nowhere else."""
    context = b"yarn-accel late binding at " + node.encode("utf-8")
    return hmac.new(credential.key, context, hashlib.sha256).hexdigest()


def claim_verifier(token: str) -> str:
    """The hash that an agent checks a token against, in hex; nobody gets a token from it."""
    return hashlib.sha256(token.encode("utf-8")).hexdigest()


def parse_identifier(identifier: bytes) -> Credential:
    """The identifier a client has shown, as a credential without a key.

    Only the canonical form is accepted, so that two different byte strings never name the same tenant.

    Raises:
        AuthenticationError: it is not a canonical identifier.
    """
    record = _load(identifier, "credential identifier")
    if set(record) != {"tenant", "expires_s", "key_id"}:
        raise AuthenticationError("credential identifier: needs exactly tenant, expires_s and key_id")
    tenant, expires_s, key_id = record["tenant"], record["expires_s"], record["key_id"]
    for place, name in (("tenant", tenant), ("key_id", key_id)):
        if not isinstance(name, str) or not _NAME.match(name):
            raise AuthenticationError("credential identifier: {} is not a plain name".format(place))
    if isinstance(expires_s, bool) or not isinstance(expires_s, int) or not 0 < expires_s < _MAX_EXPIRES_S:
        raise AuthenticationError("credential identifier: expires_s is not a time in Unix seconds")
    if _identifier(tenant, expires_s, key_id) != identifier:
        raise AuthenticationError("credential identifier: not in canonical form")
    return Credential(tenant, expires_s, key_id, b"")


def encode(credential: Credential) -> bytes:
    """The credential with its key, as it is stored under `SECRET_ALIAS` in a Hadoop credentials file."""
    return _canonical(
        {
            "tenant": credential.tenant,
            "expires_s": credential.expires_s,
            "key_id": credential.key_id,
            "key": base64.b64encode(credential.key).decode("ascii"),
        }
    )


def decode(data: bytes) -> Credential:
    """The inverse of `encode`.

    Raises:
        AuthenticationError: the bytes are no credential; the message never repeats them.
    """
    record = _load(data, "credential")
    try:
        key = base64.b64decode(str(record.pop("key", "")), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise AuthenticationError("credential: the key is not {} bytes in base64".format(KEY_BYTES))
    shown = parse_identifier(_canonical(record))
    return Credential(shown.tenant, shown.expires_s, shown.key_id, key)


def _load(data: bytes, what: str) -> Dict[str, Any]:
    if len(data) > _MAX_CREDENTIAL_BYTES:
        raise AuthenticationError("{}: longer than {} bytes".format(what, _MAX_CREDENTIAL_BYTES))
    try:
        record = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise AuthenticationError("{}: not a JSON object".format(what))
    return record


def _identifier(tenant: str, expires_s: int, key_id: str) -> bytes:
    return _canonical({"tenant": tenant, "expires_s": expires_s, "key_id": key_id})


def _canonical(record: Dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")
