"""The two ends of a connection: what the client and the server do in the handshake."""

import dataclasses
from typing import Callable, Optional, Sequence, Tuple

from yarn_accel.errors import (
    AccelError,
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    UnavailableError,
)
from yarn_accel.wire import handshake as hs
from yarn_accel.wire.checksums import available_checksums
from yarn_accel.wire.connection import Connection
from yarn_accel.wire.credential import Credential, derive_key, parse_identifier
from yarn_accel.wire.events import State
from yarn_accel.wire.frames import Limits


class ClientConnection(Connection):
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
        self.welcome: Optional[hs.Welcome] = None
        self._key = credential.key
        self._checksums = _computable(checksums)
        self._capabilities = tuple(capabilities)
        identifier = credential.identifier().decode("ascii")
        hello = hs.Hello((hs.VERSION,), self._checksums, identifier, nonce.hex(), self._capabilities)
        self._hello = self._say(hello)
        self._transcript = b""

    def _advance(self, message: hs.HandshakeMessage, header: bytes) -> None:
        if isinstance(message, hs.Refused):
            raise _refusal(message)
        if isinstance(message, hs.Challenge):
            self._prove(message)
        elif isinstance(message, hs.Welcome):
            self.welcome = message
            self._open(message.capabilities, self._capabilities)

    def _prove(self, challenge: hs.Challenge) -> None:
        self._transcript = hs.transcript_of(self._hello, challenge)
        if not hs.proves(challenge.proof, "server", self._key, self._transcript):
            raise AuthenticationError(
                "server {!r} does not know the secret behind this credential".format(challenge.server),
                cure="issue the credential from the master secret of this server",
            )
        if challenge.version != hs.VERSION or challenge.checksum not in self._checksums:
            raise RemoteProtocolError("the server chose a version or checksum that was not offered")
        self.server = challenge.server
        self.checksum = challenge.checksum
        self._say(hs.Proof(hs.proof_of("client", self._key, self._transcript)))
        self._use_keys(self._key, self._transcript)
        self.state = State.AWAIT_WELCOME


class ServerConnection(Connection):
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
        self._welcome = hs.Welcome(
            server, max_request_bytes, max_in_flight, max_lent_bytes, tuple(capabilities)
        )
        self._packable = tuple([name for name in packable if len(name) <= 64][: hs.MAX_PACKABLE])
        self._offered: Sequence[str] = ()
        self._is_revoked = is_revoked
        self._shown: Optional[Credential] = None
        self._key = b""
        self._transcript = b""

    def refuse(self, code: str, message: str, retry_after_s: int = 0) -> None:
        """End the handshake from the owner's side (too many connections, draining); see `data_to_send`."""
        self._say(hs.Refused(code, message, retry_after_s))
        self.state = State.CLOSED

    def _advance(self, message: hs.HandshakeMessage, header: bytes) -> None:
        if isinstance(message, hs.Hello):
            self._challenge(message, header)
        elif isinstance(message, hs.Proof):
            self._judge(message)

    def _challenge(self, hello: hs.Hello, header: bytes) -> None:
        if hs.VERSION not in hello.versions:
            self._deny(
                "version",
                "server {} uses protocol version {}, the client {}".format(
                    self._server, hs.VERSION, ", ".join(map(str, hello.versions)) or "none"
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
        blank = hs.Challenge(hs.VERSION, self.checksum, self._server, self._nonce.hex(), "")
        self._transcript = hs.transcript_of(header, blank)
        proof = hs.proof_of("server", self._key, self._transcript)
        self._say(hs.Challenge(blank.version, blank.checksum, blank.server, blank.nonce, proof))
        self.state = State.AWAIT_PROOF

    def _judge(self, proof: hs.Proof) -> None:
        if not hs.proves(proof.proof, "client", self._key, self._transcript):
            self._deny(
                "wrong-proof", "the credential was not issued from the secret of server " + self._server
            )
        assert self._shown is not None
        if self._is_revoked(self._shown):
            text = "the credential of tenant {} was revoked".format(self._shown.tenant)
            self._deny("credential-revoked", text)
        self.credential = self._shown
        self._use_keys(self._key, self._transcript)
        if hs.PACKING in self._offered:
            self._welcome = dataclasses.replace(self._welcome, packable=self._packable)
        kind, header = hs.encode_handshake(self._welcome)
        self._outbox.append(self._tagged(kind, 0, header, 0))
        self._open(self._offered, self._welcome.capabilities)

    def _deny(self, code: str, message: str) -> None:
        self._say(hs.Refused(code, message[:1024]))
        if code in ("version", "checksum"):
            raise RemoteProtocolError(message)
        raise AuthenticationError(message)


def _refusal(refused: hs.Refused) -> AccelError:
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
    if len(nonce) != hs.NONCE_BYTES:
        raise LocalProtocolError("a nonce has {} bytes".format(hs.NONCE_BYTES))


def _computable(checksums: Optional[Sequence[str]]) -> Tuple[str, ...]:
    """What was asked for as far as this interpreter can compute it; None: everything it can, but not none."""
    available = available_checksums()
    if checksums is None:
        return available
    return tuple(name for name in checksums if name in available or name == "none")
