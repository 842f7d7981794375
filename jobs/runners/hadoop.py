"""Runs a job as Hadoop Streaming jobs on the cluster that HADOOP_CONF_DIR names. It starts no daemon."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from types import TracebackType

from jobs.credentials import token_file
from jobs.runners.step import Report, Step, StepResult, TaskRecord
from jobs.zipapp import ARCHIVE_NAME, build_zipapp
from yarn_accel.client import COUNTER_GROUP, Binding, format_binding, parse_binding
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.streaming import (
    APPLICATION_TYPE,
    BINDING_FILE,
    NLINE_INPUT_FORMAT,
    SEQUENCE_INPUT_FORMAT,
    SEQUENCE_OUTPUT_FORMAT,
    SLOT_RESOURCE,
    HadoopSite,
    JobResult,
    StreamingJob,
    run_streaming,
    tracking_pages,
    user_name,
)

__all__ = ["HadoopRunner", "streaming_job"]


class HadoopRunner:
    """Submits steps to a site's ResourceManager and reads the outcome from its history.

    Args:
        site: the cluster.
        python: the interpreter on the nodes.
        credential_hours: life of the credential each job gets.
        binding_file: overrides the site's own; the job is given a copy.
        credential_file: token file from the site's administrator; None: derived from the site's secret.
        scratch: where temporary files go; the system's own place when None.
    """

    name = "hadoop"

    def __init__(
        self,
        site: HadoopSite,
        python: str = "python3",
        credential_hours: float = 24.0,
        binding_file: Path | None = None,
        scratch: Path | None = None,
        credential_file: Path | None = None,
    ) -> None:
        self.site = site
        self._python = python
        self._credential_hours = credential_hours
        self._binding_file = binding_file or site.binding_file
        self._scratch = scratch
        self._credential_file = credential_file
        stamp = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 1_000_000:06d}"
        self._home = f"{_file_system(site)}/user/{user_name()}/cluster-accel/{stamp}"

    def __enter__(self) -> HadoopRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def home(self, name: str) -> str:
        """URI of a folder in the user's HDFS home."""
        return f"{self._home}/{name}"

    def binding(self) -> Binding:
        """The binding jobs get now; without a file it names no server, and tasks ask their nodes' agents."""
        if self._binding_file is None:
            return Binding()
        try:
            return parse_binding(self._binding_file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"binding_file {self._binding_file} cannot be read: {error.strerror}"
            ) from error

    def run(self, step: Step, report: Report) -> StepResult:
        """Submit a step and wait; raises JobError with the first failed attempt's first line on stderr."""
        binding = self.binding()
        with contextlib.ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="accel-job-", dir=self._scratch)
            folder = Path(stack.enter_context(temporary))
            build_zipapp(folder / ARCHIVE_NAME)
            files = (folder / ARCHIVE_NAME, *step.files)
            is_wanted = bool(binding.servers)
            if self._binding_file is None:
                is_wanted = self._has_credentials
            else:
                (folder / BINDING_FILE).write_text(format_binding(binding))
                files = (*files, folder / BINDING_FILE)
            credentials = stack.enter_context(self._credentials()) if is_wanted else None
            # Where agents and mappers are of different users, mappers cannot know where the agents listen.
            masters = (
                tracking_pages(self.site, APPLICATION_TYPE)
                if is_wanted and self._binding_file is None
                else ()
            )
            job = streaming_job(step, self._python, files, credentials, self.site.has_slots(), masters)
            result = run_streaming(self.site, job, report).check()
        parts = sorted(uri for uri in Store(self.site.conf_dir).list(step.output_uri) if "/part-" in uri)
        return StepResult(tuple(parts), _counters(result), _tasks(result), result.wall_s, result.job_id)

    @property
    def _has_credentials(self) -> bool:
        return self._credential_file is not None or self.site.master_secret_file is not None

    def _credentials(self) -> contextlib.AbstractContextManager[Path]:
        """The token file the job gets: the one the user was given, else one from the site's secret."""
        if self._credential_file is not None:
            return contextlib.nullcontext(self._credential_file)
        if self.site.master_secret_file is None:
            raise ConfigError(
                "the site has servers, but there is no credential for them",
                cure="ask the administrator for one (yarn-accel credential issue), give it with --credential",
            )
        return token_file(self.site.master_secret_file, self._credential_hours * 3600, self._scratch)


def streaming_job(
    step: Step,
    python: str,
    files: tuple[Path, ...],
    credentials: Path | None,
    has_slots: bool,
    masters: tuple[str, ...] = (),
) -> StreamingJob:
    """The submission that runs `step`; pure.

    Args:
        has_slots: every mapper asks for one slot.
        masters: whom mappers ask for servers when no agent answers.
    """
    properties = dict(step.properties)
    if has_slots:
        properties.setdefault(f"mapreduce.map.resource.{SLOT_RESOURCE}", "1")
    if step.io == "text" and step.lines_per_map:
        properties["mapreduce.input.lineinputformat.linespermap"] = str(step.lines_per_map)
        properties["stream.map.input.ignoreKey"] = "true"
    else:
        properties["mapreduce.input.fileinputformat.split.minsize"] = str(1 << 50)
    if step.is_strict:
        properties["mapreduce.map.maxattempts"] = "1"
        properties["mapreduce.reduce.maxattempts"] = "1"
    is_lines = step.io == "text"
    return StreamingJob(
        name=step.name,
        mapper=" ".join([python, ARCHIVE_NAME, *step.mapper]),
        reducer=" ".join([python, ARCHIVE_NAME, *step.reducer]) if step.reducer else "",
        inputs=step.inputs,
        output=step.output_uri,
        files=[str(path) for path in files],
        properties=properties,
        input_format=(NLINE_INPUT_FORMAT if step.lines_per_map else "")
        if is_lines
        else SEQUENCE_INPUT_FORMAT,
        output_format=SEQUENCE_OUTPUT_FORMAT if step.output_kind == "sequence" else "",
        io="" if is_lines else "typedbytes",
        n_reduces=step.n_reduces if step.reducer else 0,
        credentials_file=credentials,
        environment={"ACCEL_MASTER": ",".join(masters)} if masters else {},
    )


def _file_system(site: HadoopSite) -> str:
    found = site.properties.get("fs.defaultFS", "").rstrip("/")
    if not found:
        raise ConfigError(f"{site.conf_dir}: core-site.xml does not set fs.defaultFS")
    return found


def _counters(result: JobResult) -> dict[str, int]:
    return dict(result.counters.get(COUNTER_GROUP, {}))


def _tasks(result: JobResult) -> tuple[TaskRecord, ...]:
    return tuple(
        TaskRecord(task.attempt, task.kind.lower(), task.node, task.state, task.start_s, task.finish_s)
        for task in result.tasks
    )
