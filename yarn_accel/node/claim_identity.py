"""The user of a claim: that of the job's credential, else the one that the kernel names.

A mapper shows the public part of its job's credential and a token that only the holder of its key can make,
for this node alone. The agent checks it against a verifier that the master sends with its next answer: no
secret leaves the master, and nobody can make a token from the verifier. The agent asks for a verifier again
after some time, so that a revoked credential no longer counts; while the master is away the last one counts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import math
import pwd
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.late_binding_reports import MAX_IDENTIFIERS
from yarn_accel.errors import AuthenticationError, UnavailableError
from yarn_accel.wire.credential import claim_verifier, parse_identifier

_RENEW_S = 60.0
_PATIENCE_S = 3.0
#: However many credentials are shown, no more heartbeats are sent for them.
_WAKE_EVERY_S = 0.5
_MOST_KNOWN = 1000
_MOST_CHARACTERS = 512
_MOST_WANTED = 256


@dataclass(frozen=True, slots=True)
class _KnownVerifier:
    """The master's answer about a credential: a verifier, a refusal, or neither if it cannot check it."""

    verifier: str
    refusal: str
    at_s: float


class ClaimIdentities:
    """Finds the users of claims; used from one event loop.

    Args:
        shared: user ids under whom mappers of several people run.
        wake: has the next heartbeat sent now.
        patience_s: how long to wait for the master.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        shared: frozenset[int],
        wake: Callable[[], None],
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._wake_now = wake
        self._woke_s = -math.inf
        self._patience_s = patience_s
        self._clock = clock
        self._known: dict[str, _KnownVerifier] = {}
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._names: dict[int, str] = {}
        # User databases may be far away; what waits for them must not stop the agent.
        self._lookups = concurrent.futures.ThreadPoolExecutor(2, "users")

    def close(self) -> None:
        """Stop looking users up."""
        self._lookups.shutdown(wait=False, cancel_futures=True)

    async def user(self, uid: int, credential: Any) -> str:
        """The user of a process.

        Args:
            uid: as the kernel says.
            credential: ``identifier`` and ``token`` that it shows; None: none.

        Raises:
            AuthenticationError: the credential is not its own, revoked, expired or none at all.
            UnavailableError: the master, which alone knows, does not answer.
        """
        if isinstance(credential, Mapping):
            tenant = await self._tenant(str(credential.get("identifier")), str(credential.get("token")))
            if tenant:
                return tenant
        if uid in self._shared:
            return f"(uid {uid})"
        if uid not in self._names:
            if len(self._names) >= _MOST_KNOWN:
                self._names.clear()
            loop = asyncio.get_running_loop()
            self._names[uid] = await loop.run_in_executor(self._lookups, _name_of, uid)
        return self._names[uid]

    async def _tenant(self, identifier: str, token: str) -> str:
        """The tenant; empty where the master cannot check credentials."""
        if len(identifier) > _MOST_CHARACTERS:
            raise AuthenticationError("the identifier of the credential is too long")
        shown = parse_identifier(identifier.encode("utf-8", "replace"))
        if shown.expires_s <= time.time():
            raise AuthenticationError(f"the credential of tenant {shown.tenant} has expired")
        known = self._known.get(identifier)
        if known is None or self._clock() - known.at_s > _RENEW_S:
            known = await self._asked(identifier, known)
        if not (known.verifier or known.refusal):
            return ""
        if known.refusal:
            raise AuthenticationError(f"the credential of tenant {shown.tenant}: {known.refusal}")
        if not hmac.compare_digest(claim_verifier(token), known.verifier):
            raise AuthenticationError(f"the token is not one of the credential of tenant {shown.tenant}")
        return shown.tenant

    async def _asked(self, identifier: str, known: _KnownVerifier | None) -> _KnownVerifier:
        """The master's verifier; a known one is used at once, and renewed behind."""
        waiting = self._wanted.get(identifier)
        if waiting is None:
            if len(self._wanted) >= _MOST_WANTED:
                raise UnavailableError("too many new credentials are being checked")
            waiting = self._wanted[identifier] = asyncio.get_running_loop().create_future()
        self._wake()
        if known is not None:
            return known
        await asyncio.wait([waiting], timeout=self._patience_s)
        found = self._known.get(identifier)
        if found is None:
            self._wanted.pop(identifier, None)
            raise UnavailableError(f"the master did not check the credential in {self._patience_s:g} s")
        return found

    def _wake(self) -> None:
        now_s = self._clock()
        if now_s - self._woke_s >= _WAKE_EVERY_S:
            self._woke_s = now_s
            self._wake_now()

    def wanted(self) -> list[str]:
        """Identifiers whose verifiers the next heartbeat asks for."""
        return list(self._wanted)[:MAX_IDENTIFIERS]

    def answered(self, verifiers: Any) -> None:
        """Apply the master's answer: ``sha256`` or ``refused`` for each; neither where it has no secret."""
        for identifier, value in verifiers.items() if isinstance(verifiers, Mapping) else ():
            waiting = self._wanted.pop(identifier, None)
            if waiting is None or not isinstance(value, Mapping):
                continue
            self._known.pop(identifier, None)
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            verifier, refusal = str(value.get("sha256", "")), str(value.get("refused", ""))[:200]
            self._known[identifier] = _KnownVerifier(verifier, refusal, self._clock())
            if not waiting.done():
                waiting.set_result(None)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"(uid {uid})"
