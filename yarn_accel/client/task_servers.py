"""The way of a task to its servers: a binding or an agent to find them by, a token file to prove itself.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Optional, Tuple, Union

from yarn_accel.client.binding import Binding, Endpoint, choose, parse_binding
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.client.discovery import ServerWatch
from yarn_accel.client.dispatch_state import ServersFound
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.token_file import TOKEN_FILE_VARIABLE, read_secrets
from yarn_accel.errors import AccelError, StartupError
from yarn_accel.wire.credential import SECRET_ALIAS, Credential, decode

#: In a task's working directory: the binding that travelled with the job.
BINDING_FILE = "binding.json"
NO_CREDENTIAL = Credential("nobody", 1, "none", b"")
"""For a dispatcher that has no server to show a credential to."""

_NO_SERVER = "start a pipeline server, or `yarn-accel start`"
_SUBMIT = (
    "submit with `yarn-accel streaming`, with mapreduce.job.credentials.binary, or with "
    "HADOOP_TOKEN_FILE_LOCATION set for spark-submit"
)


class TaskServers:
    """The servers of this task: of the binding that travelled with the job, else of whoever knows now.

    Args:
        environ: the task's environment; see `discovery`.
        attempt: for the task's node, and its number among those of its job.
        binding: a binding or the file that has one; None: `BINDING_FILE` where it is, else nobody's.

    Attributes:
        first: those to begin with, best first.
        reason: why there is none.
        may_come: one may be found later.

    Raises:
        ConfigError: the binding is none.
        StartupError: its file cannot be read.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        attempt: CurrentAttempt,
        binding: Union[str, os.PathLike[str], Binding, None] = None,
    ) -> None:
        self._partition = attempt.partition
        self._watch: Optional[ServerWatch] = None
        if binding is None and Path(BINDING_FILE).exists():
            binding = BINDING_FILE
        if binding is not None:
            known = binding if isinstance(binding, Binding) else load_binding(Path(binding))
            self.first: Tuple[Endpoint, ...] = choose(known, attempt.node, attempt.partition)
            self.reason = "" if self.first else "the binding names no server"
            self.may_come = False
        else:
            self._watch = ServerWatch(environ)
            found = self._watch.now()
            self.first = found.endpoints(attempt.partition)
            self.reason = found.reason or "this node is bound to no server"
            self.may_come = found.may_come

    @property
    def is_fixed(self) -> bool:
        """Whether a binding names the servers, which then stay the same."""
        return self._watch is None

    def give_up(self, reason: str) -> None:
        """Those that were found are of no use, now or later."""
        self.first, self.reason, self.may_come = (), reason, False

    def now(self, is_urgent: bool) -> ServersFound:
        """For `Dispatcher`: the servers of the binding, or those that the node's agent names now."""
        if self._watch is None:
            return ServersFound(tuple(self.first))
        found = self._watch.now(is_urgent)
        endpoints = found.endpoints(self._partition)
        reason, until_s = found.reason or self.reason, self._watch.until_s
        return ServersFound(endpoints, found.routing_hints, reason, found.may_come, until_s)


def task_credential(
    servers: TaskServers,
    environ: Mapping[str, str],
    now_s: float,
    given: Union[str, os.PathLike[str], Credential, None] = None,
) -> Optional[Credential]:
    """The credential for a task's servers; None when there is none to show it to, now or later.

    Without a credential the servers are of no use: `TaskServers.give_up`.

    Args:
        given: a credential, or another token file than Hadoop's.

    Raises:
        StartupError: as `load_credential`, where a binding names servers, or a credential was given.
    """
    if isinstance(given, Credential):
        return given
    if not servers.first and servers.is_fixed:
        return None
    try:
        return load_credential(environ, now_s, given)
    except StartupError as error:
        if servers.is_fixed or given is not None:
            raise
        servers.give_up(str(error) if servers.first else servers.reason)
        return None


def load_binding(path: Path) -> Binding:
    """Read a binding.

    Raises:
        StartupError: there is no such file.
        ConfigError: it is not a binding.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reraise_from_signal(error)
        raise StartupError(
            "the binding {} cannot be read: {}".format(path, error.strerror),
            cure="ship it with -files, or leave it out: the node's agent knows the servers",
        ) from None
    return parse_binding(text)


def load_credential(
    environ: Mapping[str, str], now_s: float, given: Union[str, os.PathLike[str], None] = None
) -> Credential:
    """Take this job's credential from the token file that Hadoop wrote for the task.

    Args:
        given: another token file.

    Raises:
        StartupError: no token file, an unreadable one, no credential in it, or an expired one.
    """
    path = os.fspath(given) if given is not None else environ.get(TOKEN_FILE_VARIABLE, "")
    if not path:
        raise StartupError("no credential: {} is not set".format(TOKEN_FILE_VARIABLE), cure=_SUBMIT)
    try:
        secrets = read_secrets(Path(path).read_bytes())
        credential = decode(secrets[SECRET_ALIAS])
    except OSError as error:
        reraise_from_signal(error)
        raise StartupError("the token file {} cannot be read: {}".format(path, error.strerror)) from None
    except KeyError:
        what = "the token file has no secret {!r}".format(SECRET_ALIAS)
        raise StartupError(what, cure=_SUBMIT) from None
    except (AccelError, ValueError) as error:
        raise StartupError("the token file {} is not valid: {}".format(path, error), cure=_SUBMIT) from None
    if credential.expires_s <= now_s:
        raise StartupError(
            "the credential expired {:.0f} s ago".format(now_s - credential.expires_s),
            cure="submit again, or ask for a longer life with --credential-hours",
        )
    return credential
