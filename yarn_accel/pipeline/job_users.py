"""Sessions whose requests run as the user of a job: whom a client may act for, and until when.

Under Kerberos a client hands the HDFS tokens of its job over (`UserTokens`).  `UserStorage` proves them at
the NameNode and names their owner with its realm.  The owner counts when its short name, by the rules of
``hadoop.security.auth_to_local``, is the tenant of the credential that the session has proved.  From then on
the session's identity is the principal: keys, shares, answers and statistics are its own, and requests use
the storage that this session opened, by paths of the site's own file system alone.

A session ends with its job: when the application that the client named has ended, as the master learns and
the node's agent writes into a file (`core.ended_applications`), and when its tokens are found cancelled or
over.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.hadoop_rpc import read_token_file
from yarn_accel.adapters.hadoop_rpc.kerberos import Security
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, TOKEN_FILE_VARIABLE
from yarn_accel.core.ended_applications import MAX_APPLICATIONS, MAX_ENDED_BYTES, parse_ended
from yarn_accel.core.requests.records import Failure
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, RemoteProtocolError, StartupError
from yarn_accel.pipeline.own_filesystem import site_properties
from yarn_accel.pipeline.plans import failure_of
from yarn_accel.users import shares_uid

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.connections import Session
    from yarn_accel.pipeline.storage import Storage
    from yarn_accel.pipeline.user_storage import UserStorage
    from yarn_accel.wire import UserTokens

logger = logging.getLogger(__name__)

#: How often it is asked whether the tokens of open sessions still count.
TOKEN_CHECK_S = 30.0
#: Threads that prove tokens: a NameNode that is away must not keep others from reading. One more thread looks
#: whether proved tokens still count.
LOGINS = 4
#: How often the file of ended applications is looked at.
ENDED_LOOK_S = 0.5
#: So many of the applications that ended last are remembered.
_MAX_ENDED = 4096
_ENDED_CURE = "the tokens of a job end with it: submit the job again"


# Short names of principals

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:\[(?P<n>\d*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<to>[^/]*)/(?P<all>g)?)?)/?(?P<lower>L)?"
)
_PRINCIPAL = re.compile(r"([^/@\s]+)(?:/([^/@\s]+))?@([^/@\s]+)")


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule of ``auth_to_local``, as Hadoop's ``KerberosName`` applies it.

    Attributes:
        n_parts: of principals that it is for; 0: it is ``DEFAULT``.
        form: makes the text that is matched of ``$0`` (realm), ``$1`` and ``$2``.
        match: the whole text must match it; None: any does.
        pattern, to, is_global: what is replaced by what; None: nothing.
    """

    n_parts: int = 0
    form: str = ""
    match: re.Pattern[str] | None = None
    pattern: re.Pattern[str] | None = None
    to: str = ""
    is_global: bool = False
    is_lower: bool = False

    def apply(self, parts: Sequence[str], default_realm: str) -> str | None:
        """The short name; None: the rule is not for this principal.  The realm is the first part."""
        if not self.n_parts:
            return parts[1] if parts[0] == default_realm else None
        if len(parts) - 1 != self.n_parts:
            return None
        base = re.sub(r"\$([0-9])", lambda found: _part(parts, int(found[1])), self.form)
        if self.match is not None and self.match.fullmatch(base) is None:
            return None
        if self.pattern is not None:
            base = self.pattern.sub(self.to, base, count=0 if self.is_global else 1)
        return base.lower() if self.is_lower else base


def _part(parts: Sequence[str], number: int) -> str:
    return parts[number] if number < len(parts) else ""


class AuthToLocal:
    """The short names of principals, as the site's Hadoop finds them.

    Args:
        rules: the value of ``hadoop.security.auth_to_local``; empty: ``DEFAULT``.
        default_realm: the realm that ``DEFAULT`` is for.

    Raises:
        ConfigError: a rule cannot be read.
    """

    def __init__(self, rules: str, default_realm: str) -> None:
        self._default_realm = default_realm
        self._rules: list[_Rule] = []
        left = rules.strip() or "DEFAULT"
        while left:
            found = _RULE.match(left)
            if found is None:
                raise ConfigError(f"hadoop.security.auth_to_local: {left[:80]!r} is no rule")
            self._rules.append(_rule_of(found))
            left = left[found.end() :].strip()

    @classmethod
    def of(cls, site: Mapping[str, str]) -> AuthToLocal:
        """The rules of a site; its own realm is that of its NameNode."""
        realm = site.get("dfs.namenode.kerberos.principal", "").rpartition("@")[2]
        return cls(site.get("hadoop.security.auth_to_local", ""), realm)

    def short_name(self, principal: str) -> str:
        """The user that a principal counts as; empty: none, by any rule."""
        found = _PRINCIPAL.fullmatch(principal)
        if found is None:
            return ""
        parts = [found[3], *[part for part in found.groups()[:2] if part]]
        for rule in self._rules:
            name = rule.apply(parts, self._default_realm)
            if name is not None:
                return "" if "/" in name or "@" in name else name
        return ""


def _rule_of(found: re.Match[str]) -> _Rule:
    if found["default"]:
        return _Rule()
    try:
        match = re.compile(found["match"]) if found["match"] is not None else None
        pattern = re.compile(found["pattern"]) if found["pattern"] is not None else None
    except re.error as error:
        raise ConfigError(f"hadoop.security.auth_to_local: {found[0].strip()!r}: {error}") from None
    to = re.sub(r"\$([0-9])", r"\\g<\1>", (found["to"] or "").replace("\\", "\\\\"))
    n_parts = int(found["n"] or 0)
    if not 1 <= n_parts <= 2:
        raise ConfigError(f"hadoop.security.auth_to_local: {found[0].strip()!r}: 1 or 2 components")
    return _Rule(n_parts, found["format"], match, pattern, to, bool(found["all"]), bool(found["lower"]))


# Whether this server takes users' tokens


def storage_of_users(config: PipelineConfig, environ: Mapping[str, str]) -> UserStorage | None:
    """The storage of jobs' users; None: this server takes no tokens of theirs.

    It is made before the process has threads, see `UserStorage.of`.

    Args:
        environ: of this process, which YARN has made where it is a container.

    Raises:
        ConfigError: a setting of Hadoop cannot be read, or names no HDFS.
        StartupError: this process has a Kerberos identity, or does not see the site's settings.
    """
    if config.user_tokens == "off":
        return None
    if not Security.from_properties(site_properties(config)).is_kerberos:
        if _has_hdfs_token(environ):
            raise StartupError(
                "this container has an HDFS token, so the site has Kerberos, but no settings that say so",
                cure="let yarn.nodemanager.env-whitelist pass HADOOP_CONF_DIR on, or set hdfs_conf_dir; with "
                "user_tokens: off requests run as who started the server",
            )
        return None
    if config.user_tokens == "per-user-containers" and shares_uid(environ):
        logger.warning(
            "requests run as this server's user: containers of all users run as one here "
            "(DefaultContainerExecutor), and could read each other's tokens; user_tokens: shared-uid takes "
            "them all the same"
        )
        return None
    from yarn_accel.pipeline.user_storage import UserStorage

    return UserStorage.of(config)


def _has_hdfs_token(environ: Mapping[str, str]) -> bool:
    """Whether YARN gave this container a token for HDFS, as it does with Kerberos alone."""
    try:
        content = read_token_file(Path(environ[TOKEN_FILE_VARIABLE]).read_bytes())
    except (KeyError, OSError, RemoteProtocolError):
        return False
    return any(each.kind == HDFS_DELEGATION_KIND for each in content.tokens.values())


# The sessions


class JobUsers:
    """The sessions that run as users of jobs; it belongs to the loop.

    Args:
        users: opens the storage of users, in threads.
        ended_file: where this node's agent names the applications that have ended; None: nowhere.
        accounts: finds short names.
        storage: has the threads.
    """

    def __init__(
        self, users: UserStorage, accounts: AuthToLocal, storage: Storage, ended_file: Path | None = None
    ) -> None:
        self._users = users
        self._ended_file = ended_file
        self._ended_stamp: tuple[int, int] | None = None
        self._accounts = accounts
        self._storage = storage
        self._sessions: dict[Session, str] = {}
        self._ended: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._is_looking = False
        self._logins: dict[str, collections.deque[tuple[Session, UserTokens]]] = {}
        self._busy: set[str] = set()

    def take(self, session: Session, message: UserTokens) -> None:
        """A client has handed its tokens over."""
        if message.application in self._ended:
            session.refuse_user(message.id, _has_ended(message.application))
            return
        self._logins.setdefault(session.tenant, collections.deque()).append((session, message))
        self._log_in_next()

    def _log_in_next(self) -> None:
        """Have the tokens proved that came first, of one tenant after the other.

        Each tenant has a thread at most: who sends many, or some that take long, keeps no other waiting.
        """
        for tenant in [each for each in self._logins if each not in self._busy][: LOGINS - len(self._busy)]:
            waiting = self._logins.pop(tenant)
            session, message = waiting.popleft()
            if waiting:
                self._logins[tenant] = waiting  # behind the others
            self._busy.add(tenant)
            then = functools.partial(self._opened, session, message.id, message.application, tenant)
            self._storage.log_in(functools.partial(self._users.open, message.tokens), then)

    def _opened(
        self, session: Session, request_id: int, application: str, tenant: str, found: Any, took_s: float
    ) -> None:
        self._busy.discard(tenant)
        self._log_in_next()
        if isinstance(found, Exception):
            if not isinstance(found, AccelError):
                logger.error("tokens of a user could not be used: %s", type(found).__name__)
            session.refuse_user(request_id, _failure_of(found))
            return
        failure = self._unfit(session, application, found.principal)
        if session.is_over or failure is not None:
            self._users.close(found)
            if failure is not None:
                session.refuse_user(request_id, failure)
            return
        self._sessions[session] = application
        session.run_as(request_id, found, self._accounts.short_name(found.principal))

    def _unfit(self, session: Session, application: str, principal: str) -> Failure | None:
        """Why these tokens do not count for this session."""
        if application in self._ended:
            return _has_ended(application)
        account = self._accounts.short_name(principal)
        if not account or account != session.tenant:
            text = (
                f"the tokens are those of {principal}, who is {account or 'nobody'} here, "
                f"and the credential is for {session.tenant}"
            )
            cure = "give the job its own user's credential; hadoop.security.auth_to_local says who a name is"
            return Failure("rejected", "other-user", text, cure)
        return None

    def closed(self, session: Session) -> None:
        """A session is over."""
        if self._sessions.pop(session, None) is not None and session.user is not None:
            self._users.close(session.user)

    @property
    def applications(self) -> list[str]:
        """Those that sessions belong to, as their clients say."""
        return sorted(set(filter(None, self._sessions.values())))[:MAX_APPLICATIONS]

    def read_ended(self) -> None:
        """Look whether the agent has named more applications that have ended."""
        if self._ended_file is None:
            return
        try:
            found = self._ended_file.lstat()
            stamp = found.st_ino, found.st_mtime_ns
            if stamp == self._ended_stamp or found.st_uid not in (0, os.geteuid()):
                return
            with self._ended_file.open("rb") as file:
                text = file.read(MAX_ENDED_BYTES).decode("utf-8", "replace")
        except OSError:
            return
        self._ended_stamp = stamp
        self.end_applications(parse_ended(text))

    def end_applications(self, applications: Iterable[str]) -> None:
        """The ResourceManager says that these have ended: so do the sessions that belong to them."""
        ended = {each for each in applications if each}
        self._ended.update(dict.fromkeys(ended))
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        for session, application in list(self._sessions.items()):
            if application in ended:
                session.disconnect("job-ended", f"{application} has ended, and its tokens with it")

    def look(self) -> None:
        """Find the sessions whose tokens count no more, and the server's own new ones; one look at a time."""
        if not self._is_looking:
            self._is_looking = True
            self._storage.log_in(self._users.find_ended, self._looked)

    def _looked(self, found: Any, took_s: float) -> None:
        self._is_looking = False
        if isinstance(found, Exception):
            logger.warning("whether users' tokens still count is not known: %s", type(found).__name__)
            return
        over = set(found)
        for session in list(self._sessions):
            if session.user in over:
                session.disconnect("job-ended", "the tokens of this job were cancelled, or have expired")

    def close(self) -> None:
        """The server ends: nobody's storage stays open."""
        self._sessions.clear()
        self._users.close_all()


def _has_ended(application: str) -> Failure:
    return Failure("rejected", "bad-token", f"{application} has ended, and its tokens with it", _ENDED_CURE)


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, AuthenticationError):
        return Failure("rejected", "bad-token", error.message, error.cure)
    if isinstance(error, AccelError):
        return failure_of(error)
    # Its text could have something of the tokens in it.
    return Failure("internal", "internal-error", f"the server broke: {type(error).__name__}")
