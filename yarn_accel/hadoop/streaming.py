"""Hadoop Streaming jobs: the argument list, the run, and its result.

`StreamingJob.argv` makes the arguments of our own jobs.  `complete` takes those of ``mapred streaming`` as a
user writes them, and adds what a mapper of pipeline servers needs.  Generic options (``-D``, ``-files`` and
their like) come first, as Hadoop wants them, wherever the user wrote them; what the user says wins over what
is added. `complete` only looks whether files are there.

`run_streaming` starts Hadoop's own Java client, turns the client's log into progress, and asks the history
server for counters and attempts: with Kerberos by the caller's ticket, as the ResourceManager by RPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yarn_accel.adapters.commands import CompletedCommand, stream
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, FinalStatus
from yarn_accel.errors import AccelError, ConfigError, JobError, StartupError
from yarn_accel.hadoop.history import (
    Counters,
    HistoryClient,
    TaskAttempt,
    client_error,
    failed_attempt_diagnosis,
)
from yarn_accel.hadoop.java import java_argv
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.hadoop.site import HadoopSite, SiteSettings

LOG_SETTINGS = Path(__file__).with_name("log4j.properties")
"""How Hadoop's programs log: to standard error, in the form that this module reads."""
NLINE_INPUT_FORMAT = "org.apache.hadoop.mapred.lib.NLineInputFormat"
SEQUENCE_INPUT_FORMAT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
SEQUENCE_OUTPUT_FORMAT = "org.apache.hadoop.mapred.SequenceFileOutputFormat"
_HISTORY_PATIENCE_S = 30.0
_FAILED_PATIENCE_S = 10.0
_CONNECT_TIMEOUT_S = 3.0
_JOB_ID = re.compile(r"\b(job_\d+_\d+)\b")
_PROGRESS = re.compile(r"\bmap (\d+)% reduce (\d+)%")


@dataclass(frozen=True, slots=True)
class StreamingJob:
    """One Hadoop Streaming job.

    Attributes:
        name: shown in lists of jobs.
        mapper: command line of the mapper; split on spaces, no shell.
        inputs: input paths or URIs.
        output: output directory, which must not exist.
        reducer: command line of the reducer; empty: a job without reducers.
        files: local files to ship into each task's directory, ``path`` or ``path#name``.
        properties: job properties (``-D``).
        input_format: class name; empty: text lines.
        output_format: class name; empty: text lines.
        io: ``typedbytes``, ``text``, ``rawbytes``, or empty for text.
        n_reduces: number of reducers; None: 1 with a reducer, else 0.
    """

    name: str
    mapper: str
    inputs: Sequence[str]
    output: str
    reducer: str = ""
    files: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    input_format: str = ""
    output_format: str = ""
    io: str = ""
    n_reduces: int | None = None

    def argv(self) -> list[str]:
        """Arguments for Hadoop Streaming: the generic options must come first. Pure.

        Raises:
            ConfigError: no input, or a file name that Hadoop would split.
        """
        if not self.inputs:
            raise ConfigError(f"job {self.name} has no input")
        properties = {"mapreduce.job.name": self.name, **self.properties}
        n_reduces = (1 if self.reducer else 0) if self.n_reduces is None else self.n_reduces
        properties["mapreduce.job.reduces"] = str(n_reduces)
        if self.input_format == NLINE_INPUT_FORMAT:
            # Otherwise each line comes with its byte offset as key.
            properties.setdefault("stream.map.input.ignoreKey", "true")
        argv = [part for name, value in properties.items() for part in ("-D", f"{name}={value}")]
        if self.files:
            argv += ["-files", ",".join(_checked(name) for name in self.files)]
        for path in self.inputs:
            argv += ["-input", path]
        argv += ["-output", self.output, "-mapper", self.mapper]
        for option, value in (
            ("-reducer", self.reducer),
            ("-inputformat", self.input_format),
            ("-outputformat", self.output_format),
            ("-io", self.io),
        ):
            argv += [option, value] if value else []
        return argv


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job.

    Attributes:
        job_id: Hadoop's id.
        state: ``SUCCEEDED``, ``FAILED`` or ``KILLED``.
        counters: group -> name -> total.
        tasks: every attempt of every task.
        wall_s: seconds from the start of the client to its end.
        diagnostics: empty for a job that succeeded; else the first line of standard error of the first
            attempt that failed, or Hadoop's own text.
        tracking_url: the job's page.
    """

    job_id: str
    state: str
    counters: Counters = field(repr=False)
    tasks: list[TaskAttempt] = field(repr=False)
    wall_s: float
    diagnostics: str = ""
    tracking_url: str = ""

    @property
    def ok(self) -> bool:
        """Whether the job succeeded."""
        return self.state == "SUCCEEDED"

    def facts(self) -> dict[str, Any]:
        """All of it in a form for JSON; times are Unix seconds."""
        return {
            "job_id": self.job_id,
            "application_id": self.job_id.replace("job_", "application_"),
            "state": self.state,
            "diagnostics": self.diagnostics,
            "tracking_url": self.tracking_url,
            "seconds": self.wall_s,
            "counters": self.counters,
            "tasks": [
                {
                    "attempt": task.attempt,
                    "kind": task.kind.lower(),
                    "node": task.node,
                    "state": task.state,
                    "start_s": task.start_s,
                    "finish_s": task.finish_s,
                }
                for task in self.tasks
            ],
        }

    def check(self) -> JobResult:
        """This result, when the job succeeded.

        Raises:
            JobError: it did not; the message has the diagnosis.
        """
        if not self.ok:
            raise JobError(f"{self.job_id} {self.state.lower()}: {self.diagnostics}")
        return self


def client_argv(site: HadoopSite, job: StreamingJob, jvm_options: Sequence[str] = ()) -> list[str]:
    """The argument list of the Java client that submits ``job`` and waits for it. Pure."""
    return java_argv(
        site.install,
        "streaming",
        site.conf_dir,
        jvm_options=(f"-Dlog4j.configuration=file:{LOG_SETTINGS}", *site.client_jvm_options, *jvm_options),
        arguments=job.argv(),
    )


def run_streaming(
    site: HadoopSite, job: StreamingJob, report: Callable[[str], None], *, jvm_options: Sequence[str] = ()
) -> JobResult:
    """Submit a job, wait for its end, and collect counters and attempts.

    When this function is interrupted (Ctrl-C) the job is killed on the cluster too.

    Args:
        site: the cluster.
        job: what to run.
        report: gets a line whenever the job's progress changes.
        jvm_options: further options for the client's JVM.

    Returns:
        The result, also of a job that failed; see :meth:`JobResult.check`.

    Raises:
        StartupError: no ResourceManager answers, or Java does not start.
        JobError: the cluster did not take the job (no input, output exists, ...).
        ConfigError: the job is not well-formed.
    """
    _check_files(job)
    environ = {**os.environ, "HADOOP_CONF_DIR": str(site.conf_dir)}
    return watch_client(site, client_argv(site, job, jvm_options), environ, report, job.name)


def watch_client(
    site: SiteSettings,
    argv: Sequence[str],
    environ: Mapping[str, str],
    report: Callable[[str], None],
    name: str,
) -> JobResult:
    """Run a program that submits one job and waits for it, as `run_streaming` does.

    Args:
        argv: such as ``mapred streaming ...``, with its `environ`; it logs to its standard error.
        name: of the job, in what is reported.
    """
    history = HistoryClient(site.history_web(), site.web_access())
    _check_resourcemanager(site)
    watch = _Watch(name, report)
    try:
        done = stream(argv, watch.line, env=environ)
    except BaseException:
        _kill(site, watch.job_id)
        raise
    if not watch.job_id and done.ok:
        raise JobError(
            f"{argv[0]} did not say which job it ran",
            cure="let it log to the console: unset HADOOP_ROOT_LOGGER and HADOOP_LOGLEVEL",
        )
    if not watch.job_id:
        raise JobError(f"job {name} was not accepted: {client_error(done.stderr.splitlines())}")
    return _collect(site, history, watch.job_id, done)


class _Watch:
    """Reads the client's log: finds the job id, and reports progress when it changes."""

    def __init__(self, name: str, report: Callable[[str], None]) -> None:
        self._name = name
        self._report = report
        self._last = ""
        self.job_id = ""

    def line(self, text: str) -> None:
        if not self.job_id:
            found = _JOB_ID.search(text) if "Running job" in text else None
            if found:
                self.job_id = found[1]
                self._report(f"{self._name}: {self.job_id} submitted")
        progress = _PROGRESS.search(text)
        if progress:
            shown = f"{self._name}: map {progress[1]} %, reduce {progress[2]} %"
            if shown != self._last:
                self._last = shown
                self._report(shown)


def _collect(site: SiteSettings, history: HistoryClient, job_id: str, done: CompletedCommand) -> JobResult:
    page = f"{site.history_web()}/jobhistory/job/{job_id}"
    try:
        summary = history.wait_for_job(job_id, _HISTORY_PATIENCE_S if done.ok else _FAILED_PATIENCE_S)
        counters, attempts = history.counters(job_id), history.attempts(job_id)
    except AccelError as error:
        state, diagnostics = _application(site, job_id)
        if state in ("FAILED", "KILLED"):
            return JobResult(job_id, state, {}, [], done.wall_s, diagnostics or done.last_line(), page)
        raise JobError(
            f"{job_id} is {state or 'lost'} (client status {done.exit_code}), no history of it: {error}",
            cure="see that the JobHistoryServer runs",
        ) from error
    state = str(summary.get("state", ""))
    diagnostics = ""
    if state != "SUCCEEDED":
        diagnostics = failed_attempt_diagnosis(history, attempts)
        diagnostics = (
            diagnostics or " ".join(str(summary.get("diagnostics") or "").split()) or done.last_line()
        )
    return JobResult(job_id, state, counters, attempts, done.wall_s, diagnostics, page)


def _application(site: SiteSettings, job_id: str) -> tuple[str, str]:
    """State and diagnostics of a job's application, which the ResourceManager knows without a history."""

    async def ask() -> ApplicationReport:
        async with RmClient.of(site).manager() as manager:
            return await manager.report(_application_id(job_id))

    try:
        report = asyncio.run(ask())
    except AccelError:
        return "", ""
    is_over = report.final_status not in (None, FinalStatus.UNDEFINED)
    state = report.final_status if is_over else report.state
    return state.name if state is not None else "", " ".join(report.diagnostics.split())


def _application_id(job_id: str) -> ApplicationId:
    return ApplicationId.parse(job_id.replace("job_", "application_"))


def _check_files(job: StreamingJob) -> None:
    for name in job.files:
        path = name.split("#")[0]
        if "://" not in path and not Path(path).exists():
            raise JobError(f"job {job.name} ships {path}, which does not exist")


def _checked(name: str) -> str:
    if "," in name or " " in name:
        raise ConfigError(f"{name!r} cannot be shipped: Hadoop splits names at commas and spaces")
    return name


def _check_resourcemanager(site: SiteSettings) -> None:
    """Hadoop's client would try a dead address for a quarter of an hour."""
    failures = []
    for address in site.resourcemanagers().client:
        try:
            at = (site.resolve(address.host), address.port)
            socket.create_connection(at, timeout=_CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            failures.append(f"{address} ({error.strerror or error})")
    raise StartupError(
        f"no ResourceManager answers at {', '.join(failures)}",
        cure=f"start the cluster, or see yarn.resourcemanager.address in {site.conf_dir}",
    )


def _kill(site: SiteSettings, job_id: str) -> None:
    async def kill() -> None:
        async with RmClient.of(site).manager() as manager:
            await manager.kill(_application_id(job_id))

    if job_id:
        with contextlib.suppress(AccelError):
            asyncio.run(kill())


# ---- the arguments of `mapred streaming`

CREDENTIAL_PROPERTY = "mapreduce.job.credentials.binary"
_GENERIC = ("-D", "-files", "-archives", "-libjars", "-conf", "-fs", "-jt", "-tokenCacheFile")
_COMMANDS = ("-mapper", "-reducer", "-combiner")
_REQUIRED = ("-input", "-output", "-mapper")
#: Streaming's options without a value.
_FLAGS = ("-debug", "-verbose", "-lazyOutput", "-background", "-info", "-help")
#: Its options with a value, also the deprecated ones, besides the generic ones.
_OPTIONS = (
    *(*_COMMANDS, "-input", "-output", "-file", "-cmdenv", "-inputformat", "-outputformat", "-partitioner"),
    *("-numReduceTasks", "-inputreader", "-io", "-mapdebug", "-reducedebug", "-jobconf", "-dfs"),
    *("-cacheFile", "-cacheArchive", "-additionalconfspec"),
)


@dataclass(frozen=True, slots=True)
class StreamingAdditions:
    """Additions to a job.

    Attributes:
        python: the interpreter of the nodes, for scripts named without one.
        properties: job properties, unless the user sets them.
        files: files that travel with the job, unless one of that name does already.
        environment: variables of the tasks; those of `PYTHONPATH` stand before the user's.
    """

    python: str = "python3"
    properties: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def is_request_for_help(arguments: Sequence[str]) -> bool:
    """Whether no job is to run."""
    return any(flag in arguments for flag in ("-help", "-info"))


def job_name(arguments: Sequence[str]) -> str:
    """The name that the user gives the job; empty: none."""
    properties = dict(value.partition("=")[::2] for option, value in _split(arguments)[0] if option == "-D")
    return properties.get("mapreduce.job.name", "")


def complete(arguments: Sequence[str], additions: StreamingAdditions) -> list[str]:
    """The arguments that run the job.

    Raises:
        ConfigError: no input, output or mapper; an option without its value; or a file name that Hadoop would
            split.
    """
    generic, rest = _split(arguments)
    missing = [name for name in _REQUIRED if name not in [option for option, _ in rest]]
    if missing:
        raise ConfigError(
            f"no {missing[0]} is given",
            cure="-input IN -output OUT -mapper my_mapper.py, as in mapred streaming",
        )
    files: list[str] = [name for option, value in generic if option == "-files" for name in value.split(",")]
    shipped = {_name_of(name) for name in files}
    shipped |= {_name_of(value or "") for option, value in rest if option == "-file"}
    options: list[tuple[str, str | None]] = []
    scripts: list[Path] = []
    for option, value in rest:
        if option in _COMMANDS and value is not None:
            options.append((option, _portable(value, additions.python, scripts)))
        elif option != "-cmdenv" or (value or "").partition("=")[0] not in additions.environment:
            options.append((option, value))
    files += [_checked(str(path)) for path in (*scripts, *additions.files) if path.name not in shipped]
    given = dict((value or "").partition("=")[::2] for option, value in rest if option == "-cmdenv")
    options += [("-cmdenv", text) for text in _environment(additions.environment, given)]
    known = {value.partition("=")[0] for option, value in generic if option == "-D"}
    first = [("-D", f"{name}={value}") for name, value in additions.properties.items() if name not in known]
    first += [(option, value) for option, value in generic if option != "-files"]
    first += [("-files", ",".join(dict.fromkeys(files)))] if files else []
    return [part for pair in (*first, *options) for part in pair if part is not None]


def _split(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str | None]]]:
    """Generic options, and all others, each with its value."""
    generic: list[tuple[str, str]] = []
    rest: list[tuple[str, str | None]] = []
    words = iter(arguments)
    before = ""
    for option in words:
        if option.startswith("-D") and "=" in option:
            generic.append(("-D", option[len("-D") :]))
        elif option in _FLAGS:
            rest.append((option, None))
        else:
            _check_option(option, before)
            value = next(words, None)
            if value is None or value in (*_OPTIONS, *_GENERIC, *_FLAGS):
                raise ConfigError(f"{option} has no value" + (f": {value} follows" if value else ""))
            if option in _GENERIC:
                generic.append((option, value))
            else:
                rest.append((option, value))
            before = f" after {option} {value}"
    return generic, rest


def _check_option(word: str, before: str) -> None:
    if word in _OPTIONS or word in _GENERIC:
        return
    if word.startswith("-"):
        known = ", ".join((*_OPTIONS, *_GENERIC, *_FLAGS))
        raise ConfigError(f"unknown option {word}{before}", cure=f"known: {known}")
    raise ConfigError(
        f"the word {word!r}{before} belongs to no option",
        cure="quote a value that has spaces, such as -mapper 'my_mapper.py --fast'; remove it otherwise",
    )


def _portable(command: str, python: str, scripts: list[Path]) -> str:
    """A command as the nodes run it: Python files of this machine by their names alone, which are noted."""
    words = command.split(" ")
    for place, word in enumerate(words):
        if word.endswith(".py") and Path(word).is_file():
            scripts.append(Path(word).absolute())
            words[place] = Path(word).name
            if not place:
                words[0] = f"{python} {words[0]}"
    return " ".join(words)


def _environment(added: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    texts = []
    for name, value in added.items():
        own = given.get(name, "")
        joined = f"{value}:{own}" if own and name == "PYTHONPATH" else own or value
        texts.append(f"{name}={joined}")
    return texts


def _name_of(name: str) -> str:
    path, _, link = name.partition("#")
    return link or Path(path).name
