"""Gives users of the master's node their own credentials, over a Unix socket; `credential_grant` decides.

The client's side is `adapters.credentials.request_credential`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import pwd
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.adapters.credentials import CREDENTIAL_SOCKET, RevocationList
from yarn_accel.core.credential_grant import (
    CredentialRefusal,
    GrantedCredential,
    GrantRules,
    Requester,
    decide,
)
from yarn_accel.errors import AccelError, AuthenticationError
from yarn_accel.master.config import MasterConfig
from yarn_accel.node.local_endpoint import LocalEndpoint, overflow_uid
from yarn_accel.node.paths import default_run_dir, filled, make_run_dir, remove_abandoned
from yarn_accel.pipeline.counters import OPERATOR
from yarn_accel.wire.credential import encode, issue

logger = logging.getLogger(__name__)

#: As `credential_socket`: there is none.
OFF = "off"
_MODE = 0o666


def socket_path(config: MasterConfig, node: str, application: str) -> Path:
    """Where the master of an application listens on this node."""
    given = filled(config.credential_socket, node, application)
    return Path(given or f"{default_run_dir(node, application)}/{CREDENTIAL_SOCKET}")


def grant_rules(config: MasterConfig) -> GrantRules:
    """The rules on this node.

    The master's own user always counts as shared: it is that of all containers, unless these run under their
    users' names, and then it is who started the application, and can read the secret anyway.
    """
    shared = {os.geteuid(), overflow_uid()}
    for name in config.shared_users:
        try:
            shared.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            logger.info("shared_users: this node has no user %r", name)
    return GrantRules(frozenset(shared), frozenset({OPERATOR}), config.credential_hours * 3600)


class CredentialEndpoint:
    """The socket; a master without it goes on, and `problem` says why it has none.

    Args:
        secret: the pipeline servers' master secret.
        path: of the socket.
        rules: who gets what.
        revoked_file: see `PipelineConfig.revoked_file`.
        clock: Unix seconds.
    """

    def __init__(
        self,
        secret: bytes,
        path: Path,
        rules: GrantRules,
        revoked_file: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.problem = ""
        self._secret = secret
        self._path = path
        self._rules = rules
        self._revoked_file = revoked_file
        self._revoked: RevocationList | None = None
        self._clock = clock
        self._endpoint = LocalEndpoint(path, _MODE, frozenset(), {"credential": self._credential})
        # User databases may be far away; what waits for them must not stop the master.
        self._lookups = concurrent.futures.ThreadPoolExecutor(2, "users")

    async def open(self) -> None:
        """Listen."""
        try:
            self._revoked = RevocationList(self._revoked_file)
            make_run_dir(self._path.parent)
            await self._endpoint.open()
        except AccelError as error:
            self.problem = str(error)
            logger.warning("users get no credentials here: %s", error)

    async def close(self) -> None:
        """Stop listening."""
        await self._endpoint.close()
        remove_abandoned(self._path.parent, 0.0)
        self._lookups.shutdown(wait=False, cancel_futures=True)

    async def _credential(self, user: int, question: Mapping[str, Any]) -> dict[str, Any]:
        tenant, lifetime_s = question.get("tenant", ""), question.get("lifetime_s", 0)
        is_number = isinstance(lifetime_s, int | float) and not isinstance(lifetime_s, bool)
        if not isinstance(tenant, str) or not is_number:
            return _refused(
                CredentialRefusal("bad-request", "tenant is no text, or lifetime_s no number", "")
            )
        requester = await asyncio.get_running_loop().run_in_executor(self._lookups, _requester, user)
        assert self._revoked is not None, "open() comes first"
        now_s = self._clock()
        decision = decide(requester, tenant, lifetime_s, self._rules, self._revoked.now(), now_s)
        if isinstance(decision, CredentialRefusal):
            logger.warning("no credential for uid %d: %s", user, decision.message)
            return _refused(decision)
        return self._issued(decision)

    def _issued(self, grant: GrantedCredential) -> dict[str, Any]:
        try:
            credential = issue(self._secret, grant.tenant, grant.expires_s, secrets.token_hex(8))
        except AuthenticationError as error:
            return _refused(
                CredentialRefusal("bad-name", error.message, "ask the administrator for another tenant")
            )
        logger.info("tenant %s got credential %s", credential.tenant, credential.key_id)
        return {"v": 1, "credential": encode(credential).decode("ascii")}


def _refused(refusal: CredentialRefusal) -> dict[str, Any]:
    return {
        "v": 1,
        "refused": {"code": refusal.code, "message": refusal.message[:1000], "cure": refusal.cure},
    }


def _requester(uid: int) -> Requester:
    try:
        name = pwd.getpwuid(uid).pw_name
        return Requester(uid, name, pwd.getpwnam(name).pw_uid)
    except KeyError:
        return Requester(uid, "", -1)
