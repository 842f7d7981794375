"""`connect`: where an `Accelerator` comes from, on a cluster, on one machine, or within this process.

Each setting is the argument's, else the environment's, else its default. Standard library only, Python 3.8;
what a runner needs is imported when it is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Tuple, Union

from yarn_accel.client.dispatch import PATIENCE_S, Dispatcher
from yarn_accel.client.transport import LOST_AFTER_S
from yarn_accel.errors import AuthenticationError, ConfigError

if TYPE_CHECKING:
    from yarn_accel.client.accelerator import Accelerator
    from yarn_accel.client.binding import Binding, Endpoint
    from yarn_accel.client.reporter import Reporter
    from yarn_accel.wire.credential import Credential

RUNNERS = ("hadoop", "local", "inline")
_LONGEST_S = 30 * 24 * 3600.0
_NUMBERS = itertools.count(1)


def connect(
    runner: str = "",
    *,
    fallback: Optional[bool] = None,
    window: Optional[int] = None,
    pack: Union[int, str, None] = None,
    patience_s: Optional[float] = None,
    lost_after_s: Optional[float] = None,
    binding: Union[str, os.PathLike[str], Binding, None] = None,
    credential: Union[str, os.PathLike[str], Credential, None] = None,
    tenant: str = "",
    key_prefix: str = "",
    count_calls: bool = True,
    reporter: Optional[Reporter] = None,
    on_wait: Optional[Callable[[str], None]] = None,
    environ: Optional[Mapping[str, str]] = None,
    server_settings: Optional[Mapping[str, Any]] = None,
    **dispatch_options: Any,
) -> Accelerator:
    """Find the pipeline servers of this task; the same code on a cluster, a laptop, and in a test.

    >>> from yarn_accel.client import connect
    >>> with connect("inline") as accel:
    ...     accel.cholesky([[4.0]]).l.tolist()
    [[2.0]]

    Args:
        runner: ``hadoop`` (default): the servers that a binding, the node's agent or the master names, with
            the job's credential; ``local``: a server of its own on this machine, which ends with this
            process; ``inline``: no server, this process computes. Where it is not given, ``ACCEL_RUNNER``
            says it, so the same file runs everywhere.
        fallback: whether to compute in this process where no server answers (``ACCEL_FALLBACK``, true);
            without it such a call fails with `UnavailableError`.
        window: calls under way at once (``ACCEL_WINDOW``, 4).
        pack: how many small calls may travel as one request, or "auto" (``ACCEL_PACK``, 1).
        patience_s: how long to look for a server, bear with a busy one, and wait for storage
            (``ACCEL_PATIENCE_S``, 60).
        lost_after_s: after so long without an acknowledgement a server's node is lost
            (``ACCEL_LOST_AFTER_S``).
        binding: the servers, or the file that names them; else ``binding.json`` in the working directory,
            where it is, else whom the node's agent (``ACCEL_AGENT``) or the master (``ACCEL_MASTER``) names.
        credential: a credential, or a token file; else the file that Hadoop names in
            ``HADOOP_TOKEN_FILE_LOCATION``.
        tenant: whom the credential must be for; with ``local``, whom it is made for.
        key_prefix: of the keys of calls that have none; else the id of the Streaming task, else a random one.
        count_calls: whether every call is a record to Hadoop's counters; without it the mapper counts.
        reporter: where counters and status go; else standard error within Hadoop Streaming, else nowhere.
        on_wait: called with a sentence that says what is being waited for; else the task's status.
        environ: in place of the process's environment.
        server_settings: with ``local``, settings of the server, as in its configuration file.
        dispatch_options: more of `Dispatcher`: ``timeout_s``, ``silent_after_s``, ``max_attempts``,
            ``client_options``.

    Raises:
        ConfigError: a setting is wrong; or no server is known, none may come, and there is no fallback.
        StartupError: a binding names servers and there is no credential, or a local server does not start.
        AuthenticationError: the credential is another tenant's.
    """
    names = ("runner", "fallback", "window", "pack", "patience_s", "lost_after_s")
    given = locals()
    environ = os.environ if environ is None else environ
    settings = ConnectSettings.resolve(environ, **{name: given[name] for name in names})
    with contextlib.ExitStack() as stack:
        opening = _Opening(settings, environ, dispatch_options, stack)
        opening.report_to(reporter, on_wait)
        if settings.runner == "inline":
            new_dispatcher = opening.inline()
        elif settings.runner == "local":
            new_dispatcher = opening.local(tenant, server_settings or {})
        else:
            new_dispatcher = opening.hadoop(binding, credential, tenant)
        return opening.accelerator(new_dispatcher, key_prefix, count_calls)


class _Opening:
    """The parts that `connect` puts together, step by step."""

    def __init__(
        self,
        settings: ConnectSettings,
        environ: Mapping[str, str],
        dispatch_options: Mapping[str, Any],
        resources: contextlib.ExitStack,
    ) -> None:
        from yarn_accel.client.current_attempt import CurrentAttempt

        self._settings = settings
        self._environ = environ
        self._resources = resources
        self._attempt = CurrentAttempt.from_environ(environ)
        self._options = {
            "patience_s": settings.patience_s,
            "lost_after_s": settings.lost_after_s,
            **dispatch_options,
        }

    def report_to(self, reporter: Optional[Reporter], on_wait: Optional[Callable[[str], None]]) -> None:
        """Where counters and status go; a task of Hadoop Streaming shows that it is alive, too."""
        from yarn_accel.client.reporter import Reporter, WaitReporter

        is_streaming = self._attempt.is_streaming
        own = self.reporter = reporter or Reporter(is_silent=not is_streaming)
        self._options["on_wait"] = on_wait or own.status
        self._waits = self._options["waits"] = WaitReporter(own.waiting)
        self._resources.callback(self._waits.close)
        if is_streaming and reporter is None:
            waits = self._waits
            self._resources.enter_context(own.keep_alive(lambda: waits.sentence() or own.progress()))

    def inline(self) -> Callable[[], Dispatcher]:
        """No server at all."""
        from yarn_accel.client.task_servers import NO_CREDENTIAL

        return self._dispatchers((), NO_CREDENTIAL, fallback=True)

    def local(self, tenant: str, server_settings: Mapping[str, Any]) -> Callable[[], Dispatcher]:
        """A server on this machine that ends with this process."""
        from yarn_accel.client.local_server import LocalServer

        with self._waits.during("the local pipeline server to start"):
            server = self._resources.enter_context(LocalServer(server_settings, tenant))
        endpoints = (server.endpoint,)
        return self._dispatchers(endpoints, server.credential, fallback=self._settings.fallback)

    def hadoop(
        self,
        binding: Union[str, os.PathLike[str], Binding, None],
        credential: Union[str, os.PathLike[str], Credential, None],
        tenant: str,
    ) -> Callable[[], Dispatcher]:
        """Whatever this task finds."""
        from yarn_accel.client import task_servers as tasks
        from yarn_accel.client.job_user import JobUser

        with self._waits.during("the node's agent or the master to name the servers"):
            servers = tasks.TaskServers(self._environ, self._attempt, binding)
        found = tasks.task_credential(servers, self._environ, time.time(), credential)
        if tenant and found is not None and found.tenant != tenant:
            raise AuthenticationError(
                "the credential is for tenant {!r}, expected {!r}".format(found.tenant, tenant)
            )
        if not servers.first and not (servers.may_come and found is not None):
            if not self._settings.fallback:
                raise ConfigError(
                    "no pipeline server and no fallback: {}".format(servers.reason),
                    cure="start a pipeline server, or `yarn-accel start`",
                )
            self._options["on_wait"]("computing on this node's CPU: {}".format(servers.reason))
        self._options["node"] = self._attempt.node
        given = dict(self._options.get("client_options") or {})
        self._options["client_options"] = {"job_user": JobUser.of(self._environ), **given}
        if found is not None and not servers.is_fixed:
            self._options["find_servers"] = servers.now
        shown = found or tasks.NO_CREDENTIAL
        return self._dispatchers(servers.first, shown, fallback=self._settings.fallback)

    def accelerator(
        self, new_dispatcher: Callable[[], Dispatcher], key_prefix: str, count_calls: bool
    ) -> Accelerator:
        """The object, which from now on holds what was opened."""
        from yarn_accel.client.accelerator import Accelerator, CallKeys

        resources = self._resources.pop_all()
        accel = Accelerator(
            new_dispatcher,
            CallKeys(key_prefix or self._key_prefix()),
            window=self._settings.window,
            pack=self._settings.pack,
            reporter=self.reporter,
            counts_calls=count_calls,
            resources=resources,
        )
        if self._attempt.is_streaming:
            # A mapper that does not close it must not lose what was counted.
            atexit.register(accel.flush_counters)
            resources.callback(atexit.unregister, accel.flush_counters)
        return accel

    def _key_prefix(self) -> str:
        """The task's id, with a number for the second accelerator of this process and those after it."""
        number = next(_NUMBERS)
        if not self._attempt.is_streaming:
            return "local-" + os.urandom(8).hex()
        return self._attempt.task_id + (".{}".format(number) if number > 1 else "")

    def _dispatchers(
        self, endpoints: Tuple[Endpoint, ...], credential: Credential, fallback: bool
    ) -> Callable[[], Dispatcher]:
        from yarn_accel.client.fallback import LocalExecutor

        executor = LocalExecutor() if fallback else None
        options = self._options
        return lambda: Dispatcher(endpoints, credential, fallback=executor, **options)


# Settings


class ConnectSettings(NamedTuple):
    """Settings that `connect` decides by itself unless a user decides them.

    Attributes:
        runner: one of `RUNNERS`; ``ACCEL_RUNNER``.
        fallback: compute in this process where no server answers; ``ACCEL_FALLBACK``, true or false.
        window: calls under way at once; ``ACCEL_WINDOW``.
        pack: how many small calls of the same form travel as one request, or "auto"; ``ACCEL_PACK``.
        patience_s: how long to look for a server, bear with a busy one, and wait for storage;
            ``ACCEL_PATIENCE_S``.
        lost_after_s: after so long without an acknowledgement a server's node is lost;
            ``ACCEL_LOST_AFTER_S``.
    """

    runner: str
    fallback: bool
    window: int
    pack: Union[int, str]
    patience_s: float
    lost_after_s: float

    @classmethod
    def resolve(cls, environ: Mapping[str, str], **given: Any) -> ConnectSettings:
        """The settings, given arguments first; None and the empty text leave one to the environment.

        Raises:
            ConfigError: names the argument or variable, and what was expected there.
        """
        values = {}
        for name, (parse, default) in _FIELDS.items():
            value, place = given.get(name), "argument " + name
            if value is None or value == "":
                place = "ACCEL_" + name.upper()
                value = environ.get(place, "")
            values[name] = default if value == "" else parse(place, value)
        return cls(**values)


def _runner(place: str, value: Any) -> str:
    if value not in RUNNERS:
        raise ConfigError("{}: expected one of {}, found {!r}".format(place, ", ".join(RUNNERS), value))
    return str(value)


def _truth(place: str, value: Any) -> bool:
    known = {True: True, False: False, "true": True, "false": False}
    found = known.get(value.lower() if isinstance(value, str) else value)
    if found is None:
        raise ConfigError("{}: expected true or false, found {!r}".format(place, value))
    return found


def _pack(place: str, value: Any) -> Union[int, str]:
    return "auto" if value == "auto" else _count(1 << 20)(place, value)


def _count(most: int) -> Callable[[str, Any], int]:
    def parse(place: str, value: Any) -> int:
        found = _number(value)
        if found is None or found != int(found) or not 1 <= found <= most:
            raise ConfigError("{}: expected a number from 1 to {}, found {!r}".format(place, most, value))
        return int(found)

    return parse


def _seconds(least: float, most: float) -> Callable[[str, Any], float]:
    def parse(place: str, value: Any) -> float:
        found = _number(value)
        if found is None or not least <= found <= most:
            raise ConfigError(
                "{} is {!r}: seconds from {:g} to {:g} expected".format(place, value, least, most)
            )
        return found

    return parse


def _number(value: Any) -> Optional[float]:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) and not isinstance(value, bool) else None


_FIELDS: Mapping[str, Any] = {
    "runner": (_runner, "hadoop"),
    "fallback": (_truth, True),
    "window": (_count(4096), 4),
    "pack": (_pack, 1),
    "patience_s": (_seconds(0.0, _LONGEST_S), PATIENCE_S),
    "lost_after_s": (_seconds(1.0, 3600.0), LOST_AFTER_S),
}
