"""What the zipapp runs on a node: find the servers and the credential, then run one verb.

Start-up failures are diagnosed in one line, the first on stderr, because that line is all a Hadoop user sees
of a failed attempt. Exit codes: 0 fine, 1 failed, 2 usage, 3 could not start. Standard library only, Python
3.8.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, Mapping, Optional, Sequence, TextIO

from jobs.verbs import TaskContext, parse_verb, run_verb
from yarn_accel.client.binding import Binding, choose, parse_binding
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.client.discovery import ServerWatch
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.client.dispatch_events import ServersFound
from yarn_accel.client.fallback import LocalExecutor
from yarn_accel.client.liveness import LOST_AFTER_S
from yarn_accel.client.reporter import Reporter
from yarn_accel.client.token_file import read_secrets
from yarn_accel.client.webhdfs import WebHdfs
from yarn_accel.errors import AccelError, ConfigError, StartupError, StorageError
from yarn_accel.wire.credential import SECRET_ALIAS, Credential, decode

__all__ = [
    "BINDING_FILE",
    "NO_CREDENTIAL",
    "TOKEN_VARIABLE",
    "load_binding",
    "load_credential",
    "main",
    "read_uri",
]

BINDING_FILE = "binding.json"
TOKEN_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
#: Seconds without an acknowledgement after which a server's node is lost to this task.
LOST_AFTER_VARIABLE = "ACCEL_LOST_AFTER_S"
NO_CREDENTIAL = Credential("nobody", 1, "none", b"")
"""For a dispatcher that has no server to show a credential to."""


def main(
    argv: Sequence[str],
    environ: Optional[Mapping[str, str]] = None,
    stdin: Optional[BinaryIO] = None,
    stdout: Optional[BinaryIO] = None,
    stderr: Optional[TextIO] = None,
    parse: Callable[[Sequence[str]], argparse.Namespace] = parse_verb,
    run: Callable[[argparse.Namespace, TaskContext], None] = run_verb,
) -> int:
    """Run one verb; every expected failure becomes one line on stderr and an exit code.

    Args:
        parse, run: another table of verbs than that of `jobs.verbs`.
    """
    errors = sys.stderr if stderr is None else stderr
    try:
        options = parse(argv)
        context = _context(
            options,
            os.environ if environ is None else environ,
            sys.stdin.buffer if stdin is None else stdin,
            sys.stdout.buffer if stdout is None else stdout,
            errors,
        )
        with context.reporter.keep_alive(lambda: _progress(context.reporter)):
            run(options, context)
    except AccelError as error:
        errors.write("accel-job: {}\n".format(" ".join(str(error).split())))
        errors.flush()
        return error.exit_code
    return 0


def load_binding(folder: Path) -> Binding:
    """Read the binding that travelled with the job.

    Raises:
        StartupError: there is no such file.
        ConfigError: it is not a binding.
    """
    path = folder / BINDING_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartupError(
            "no readable {} in the working directory ({})".format(BINDING_FILE, error.strerror),
            cure="ship it with -files, as `python -m jobs` does",
        ) from None
    return parse_binding(text)


class _Servers:
    """The servers of this task: of the binding that travelled with the job, else of whoever knows now.

    Attributes:
        first: those to begin with, best first.
        reason: why there is none.
        may_come: one may be found later.
    """

    def __init__(self, environ: Mapping[str, str], attempt: CurrentAttempt) -> None:
        self._partition = attempt.partition
        self._watch: Optional[ServerWatch] = None
        if (Path.cwd() / BINDING_FILE).exists():
            binding = load_binding(Path.cwd())
            self.first = choose(binding, attempt.node, attempt.partition)
            self.reason = "" if self.first else "the binding names no server"
            self.may_come = False
        else:
            self._watch = ServerWatch(environ)
            found = self._watch.now()
            self.first = found.endpoints(attempt.partition)
            self.reason = found.reason or "this node is bound to no server"
            self.may_come = found.may_come

    def credential(self, environ: Mapping[str, str]) -> Optional[Credential]:
        """What the servers want to see; None when there is none to show it to, now or later.

        Without a credential the servers are of no use: `first` becomes empty and `reason` says why. Where
        there is none at the moment, one may be found while the mapper runs.

        Raises:
            StartupError: as `load_credential`, where the binding travelled with the job.
        """
        if not self.first and self._watch is None:
            return None
        try:
            return load_credential(environ, time.time())
        except StartupError as error:
            if self._watch is None:
                raise
            if self.first:
                self.first, self.reason = (), str(error)
            return None

    def now(self, is_urgent: bool) -> ServersFound:
        """For `Dispatcher`: the servers of the binding, or those that the node's agent names now."""
        if self._watch is None:
            return ServersFound(tuple(self.first))
        found = self._watch.now(is_urgent)
        endpoints = found.endpoints(self._partition)
        return ServersFound(endpoints, found.routing_hints, found.reason or self.reason, found.may_come)


def load_credential(environ: Mapping[str, str], now_s: float) -> Credential:
    """Take this job's credential from the token file that Hadoop wrote for the task.

    Raises:
        StartupError: no token file, an unreadable one, no credential in it, or an expired one.
    """
    path = environ.get(TOKEN_VARIABLE, "")
    cure = "submit with mapreduce.job.credentials.binary, as `python -m jobs` does"
    if not path:
        raise StartupError("no credential: {} is not set".format(TOKEN_VARIABLE), cure=cure)
    try:
        secrets = read_secrets(Path(path).read_bytes())
        credential = decode(secrets[SECRET_ALIAS])
    except OSError as error:
        raise StartupError("the token file {} cannot be read: {}".format(path, error.strerror)) from None
    except KeyError:
        what = "the token file has no secret {!r}".format(SECRET_ALIAS)
        raise StartupError(what, cure=cure) from None
    except (AccelError, ValueError) as error:
        raise StartupError("the token file {} is not valid: {}".format(path, error), cure=cure) from None
    if credential.expires_s <= now_s:
        raise StartupError(
            "the credential expired {:.0f} s ago".format(now_s - credential.expires_s),
            cure="submit again, or ask for a longer life with --credential-hours",
        )
    return credential


def read_uri(uri: str, environ: Mapping[str, str]) -> bytes:
    """Read a ``file:`` or ``hdfs:`` URI (the latter over WebHDFS) into memory.

    Raises:
        StorageError: it cannot be read.
    """
    if not uri.startswith("file:"):
        return WebHdfs(environ=environ).open(uri)
    path = uri[len("file://") :] if uri.startswith("file://") else uri[len("file:") :]
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StorageError("{} cannot be read: {}".format(uri, error.strerror)) from None


def _progress(reporter: Reporter) -> str:
    """The status that keeps Hadoop from killing a task while a server works for it."""
    names = ("records_in", "sent", "done", "rejected")
    return ", ".join("{} {}".format(name.replace("_", " "), reporter.total(name)) for name in names)


def _lost_after_s(environ: Mapping[str, str]) -> float:
    given = environ.get(LOST_AFTER_VARIABLE, "")
    try:
        seconds = float(given) if given else LOST_AFTER_S
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 3600.0:
        raise ConfigError("{} is {!r}: seconds from 1 to 3600 expected".format(LOST_AFTER_VARIABLE, given))
    return seconds


def _counted(dispatcher: Dispatcher, reporter: Reporter) -> Callable[..., Iterator[Any]]:
    """`Dispatcher.map`, with what became of requests on their way among the job's counters."""

    def map_calls(*arguments: Any, **options: Any) -> Iterator[Any]:
        reported = dict(dispatcher.counts)
        for answer in dispatcher.map(*arguments, **options):
            if dispatcher.counts != reported:
                reported = _report(dispatcher.counts, reported, reporter)
            yield answer
        _report(dispatcher.counts, reported, reporter)

    return map_calls


def _report(counts: Mapping[str, int], reported: Mapping[str, int], reporter: Reporter) -> Dict[str, int]:
    for name, amount in counts.items():
        reporter.count(name, amount - reported[name])
    return dict(counts)


def _context(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    stdin: BinaryIO,
    stdout: BinaryIO,
    stderr: TextIO,
) -> TaskContext:
    attempt = CurrentAttempt.from_environ(environ)
    reporter = Reporter(stderr)
    servers = _Servers(environ, attempt)
    credential = servers.credential(environ)
    if not servers.first and options.no_fallback and not (servers.may_come and credential is not None):
        raise ConfigError(
            "no pipeline server and --no-fallback is set: {}".format(servers.reason),
            cure="start a pipeline server, or `yarn-accel start`",
        )
    if not servers.first and not (servers.may_come and credential is not None):
        reporter.status("computing on this node's CPU: {}".format(servers.reason))
    dispatcher = Dispatcher(
        servers.first,
        credential or NO_CREDENTIAL,
        fallback=None if options.no_fallback else LocalExecutor(),
        on_wait=reporter.status,
        patience_s=options.patience_s,
        node=attempt.node,
        find_servers=servers.now if credential is not None else None,
        lost_after_s=_lost_after_s(environ),
    )
    return TaskContext(
        attempt=attempt,
        map_calls=_counted(dispatcher, reporter),
        read_bytes=lambda uri: read_uri(uri, environ),
        reporter=reporter,
        stdin=stdin,
        stdout=stdout,
        folder=Path.cwd(),
    )
