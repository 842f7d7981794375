"""The secrets the master was given, and those it gives to containers: through YARN's credentials alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from yarn_accel.adapters.hadoop_rpc import AM_RM_KIND, Token, TokenFile, read_token_file, write_token_file
from yarn_accel.adapters.hadoop_rpc.framing import Identity, User
from yarn_accel.adapters.hadoop_rpc.tokens import RM_DELEGATION_KIND, under_names
from yarn_accel.adapters.signed_http import sender_key
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, TOKEN_FILE_VARIABLE
from yarn_accel.errors import AuthenticationError, StartupError
from yarn_accel.wire.credential import SECRET_ALIAS, encode, issue

#: Secret that the keys of control verbs are derived from, and those of agents without one of their own.
CONTROL_ALIAS = "yarn-accel.control"
#: Secret that the keys of agents are derived from where the site runs them itself.
AGENTS_ALIAS = "yarn-accel.agents"
#: The pipeline servers' master secret, under the same name in our credentials and in theirs.
SERVER_ALIAS = "yarn_accel.master"
#: The key of a node's agent, or worker, in its credentials.
NODE_KEY_ALIAS = "yarn-accel.node"
#: The role of workers' containers; those of further sizes are called ``worker-SIZE``.
WORKER_ROLE = "worker"
_AGENT, _WORKER = "agent:", "worker:"
#: As long as a worker's container may live with it.
_WORKER_CREDENTIAL_S = 30 * 24 * 3600


def worker_name(role: str, node: str) -> str:
    """The name of the worker in a role's container on a node; no host name has an underscore.

    >>> worker_name("worker", "n1"), worker_name("worker-large", "n1")
    ('n1', 'n1_large')
    """
    size = role.removeprefix(WORKER_ROLE).removeprefix("-")
    return f"{node}_{size}" if size else node


@dataclass(slots=True)
class MasterCredentials:
    """The content of the master's own token file; its tokens may be replaced by newer ones.

    Attributes:
        am_rm: the token of this attempt.
        control: see `CONTROL_ALIAS`.
        server: see `SERVER_ALIAS`; empty: the servers have theirs from elsewhere.
        delegation: acts for our user where logins are not simple.
        agents: see `AGENTS_ALIAS`; empty: `control` serves for them, too.
        tenant: of the credential that workers get for the pipeline servers; empty: they get none.
        hdfs: the application's HDFS tokens by their aliases, where the cluster has Kerberos: without one
            YARN cannot bring a container its files.
        hdfs_names: ``host:port`` of URIs, by which our containers look for a token -> its service.
    """

    am_rm: Token = field(repr=False)
    control: bytes = field(repr=False)
    server: bytes = field(default=b"", repr=False)
    delegation: Token | None = field(default=None, repr=False)
    agents: bytes = field(default=b"", repr=False)
    tenant: str = ""
    hdfs: Mapping[str, Token] = field(default_factory=dict, repr=False)
    hdfs_names: Mapping[str, str] = field(default_factory=dict)

    def identity(self, user: str) -> Identity:
        """The identity for calls to the ResourceManager outside the masters' protocol."""
        return self.delegation if self.delegation is not None else User(user)

    def key_of(self, sender: str) -> bytes:
        """The key that a sender's messages are signed with.

        Raises:
            AuthenticationError: its name is not a possible one.
        """
        is_agent = sender.startswith(_AGENT)
        return sender_key(self.agents if is_agent and self.agents else self.control, sender)

    def take(self, tokens: Mapping[str, Token], names: Mapping[str, str]) -> None:
        """Give containers these tokens from now on, under these names, too."""
        self.hdfs_names = names
        self.hdfs = {alias: each for alias, each in tokens.items() if each.kind == HDFS_DELEGATION_KIND}
        self.delegation = _delegation(TokenFile(tokens))

    def of_container(self, role: str, node: str) -> bytes:
        """The token file of a container: the secrets and tokens of its role, and the HDFS tokens."""
        secrets, tokens = {}, under_names(self.hdfs, self.hdfs_names)
        is_worker = role.partition("-")[0] == WORKER_ROLE
        if self.delegation is not None and (role == "agent" or is_worker):
            tokens[RM_DELEGATION_KIND] = self.delegation  # they ask YARN where the master is
        if role == "agent":
            secrets[NODE_KEY_ALIAS] = self.key_of(_AGENT + node)
        elif is_worker:
            secrets[NODE_KEY_ALIAS] = self.key_of(_WORKER + worker_name(role, node))
            if self.server and self.tenant:
                expires_s = int(time.time()) + _WORKER_CREDENTIAL_S
                with contextlib.suppress(AuthenticationError):  # the user's name is no name of a tenant
                    secrets[SECRET_ALIAS] = encode(issue(self.server, self.tenant, expires_s, token_hex(8)))
        elif self.server:
            secrets[SERVER_ALIAS] = self.server
        return write_token_file(TokenFile(tokens, secrets))


def read_credentials(environ: Mapping[str, str]) -> MasterCredentials:
    """Read the token file that YARN names in the environment.

    Raises:
        StartupError: there is none, or it lacks the control secret.
        AuthenticationError: it lacks the token for the ResourceManager.
        RemoteProtocolError: it is damaged.
    """
    place = environ.get(TOKEN_FILE_VARIABLE, "")
    if not place:
        raise StartupError(
            f"{TOKEN_FILE_VARIABLE} is not set", cure="only YARN starts a master: `yarn-accel start`"
        )
    try:
        files = read_token_file(Path(place).read_bytes())
    except OSError as error:
        raise StartupError(f"{place}: {error.strerror}") from None
    control = files.secrets.get(CONTROL_ALIAS, b"")
    if not control:
        raise StartupError(f"{place} has no secret {CONTROL_ALIAS}")
    return MasterCredentials(
        files.of_kind(AM_RM_KIND),
        control,
        files.secrets.get(SERVER_ALIAS, b""),
        _delegation(files),
        files.secrets.get(AGENTS_ALIAS, b""),
        hdfs={alias: each for alias, each in files.tokens.items() if each.kind == HDFS_DELEGATION_KIND},
    )


def _delegation(files: TokenFile) -> Token | None:
    try:
        return files.of_kind(RM_DELEGATION_KIND)
    except AuthenticationError:
        return None
