"""Runs a job by `yarn-accel streaming` on the cluster that HADOOP_CONF_DIR names. It starts no daemon."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from types import TracebackType

from jobs.commands import run_command
from jobs.runners.step import Report, Step, StepResult, TaskRecord
from jobs.zipapp import ARCHIVE_NAME, build_zipapp
from yarn_accel.client import COUNTER_GROUP
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.streaming import SiteSettings, site_user

_MAPRED = "org.apache.hadoop.mapred"


class HadoopRunner:
    """Submits steps to a site's ResourceManager and reads the outcome from its history.

    Args:
        site: the cluster.
        python: the interpreter on the nodes.
        credential_hours: life of the credential each job gets.
        binding_file: overrides the site's own.
        scratch: where temporary files go; the system's own place when None.
        credential_file: token file from the site's administrator; None: derived from the site's secret.
    """

    def __init__(
        self,
        site: SiteSettings,
        python: str = "python3",
        credential_hours: float = 24.0,
        binding_file: Path | None = None,
        scratch: Path | None = None,
        credential_file: Path | None = None,
    ) -> None:
        self.site = site
        self._python = python
        self._credential_hours = credential_hours
        self._binding_file = binding_file
        self._scratch = scratch
        self._credential_file = credential_file
        stamp = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 1_000_000:06d}"
        self._home = f"{_file_system(site)}/user/{site_user(site)}/cluster-accel/{stamp}"

    def __enter__(self) -> HadoopRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def home(self, name: str) -> str:
        """URI of a folder in the user's HDFS home."""
        return f"{self._home}/{name}"

    def run(self, step: Step, report: Report) -> StepResult:
        """Submit a step and wait; raises JobError with the first failed attempt's first line on stderr."""
        with tempfile.TemporaryDirectory(prefix="accel-job-", dir=self._scratch) as name:
            archive = self.build_archive(Path(name, ARCHIVE_NAME))
            result_file = Path(name, "result.json")
            words = ["streaming", "--result", str(result_file), *self._options()]
            words += streaming_arguments(step, self._python, archive)
            run_command(words, report, {"HADOOP_CONF_DIR": str(self.site.conf_dir), "TMPDIR": name})
            found = json.loads(result_file.read_text())
        parts = sorted(uri for uri in Store(self.site.conf_dir).list(step.output_uri) if "/part-" in uri)
        counters = found["counters"].get(COUNTER_GROUP, {})
        tasks = tuple(TaskRecord(**task) for task in found["tasks"])
        return StepResult(tuple(parts), counters, tasks, found["seconds"], found["job_id"])

    def build_archive(self, target: Path) -> Path:
        """Build the archive that the tasks run."""
        return build_zipapp(target)

    def _options(self) -> list[str]:
        """The command's own options."""
        files = {"--credential": self._credential_file, "--binding": self._binding_file}
        given = [word for name, file in files.items() if file is not None for word in (name, str(file))]
        return ["--credential-hours", str(self._credential_hours), *given]


def streaming_arguments(step: Step, python: str, archive: Path) -> list[str]:
    """The arguments of `mapred streaming` that run `step`; pure."""
    properties = {"mapreduce.job.name": step.name, **step.properties}
    properties["mapreduce.job.reduces"] = str(step.n_reduces if step.reducer else 0)
    options = {"-output": step.output_uri, "-mapper": f"{python} {archive.name} {' '.join(step.mapper)}"}
    if step.reducer:
        options["-reducer"] = f"{python} {archive.name} {' '.join(step.reducer)}"
    if step.io == "text" and step.lines_per_map:
        properties["mapreduce.input.lineinputformat.linespermap"] = str(step.lines_per_map)
        properties["stream.map.input.ignoreKey"] = "true"
        options["-inputformat"] = f"{_MAPRED}.lib.NLineInputFormat"
    else:
        properties["mapreduce.input.fileinputformat.split.minsize"] = str(1 << 50)
    if step.io != "text":
        options.update({"-io": step.io, "-inputformat": f"{_MAPRED}.SequenceFileInputFormat"})
    if step.output_kind == "sequence":
        options["-outputformat"] = f"{_MAPRED}.SequenceFileOutputFormat"
    if step.is_strict:
        properties["mapreduce.map.maxattempts"] = "1"
        properties["mapreduce.reduce.maxattempts"] = "1"
    words = [word for name, value in properties.items() for word in ("-D", f"{name}={value}")]
    words += ["-files", ",".join(map(str, (archive, *step.files)))]
    words += [word for uri in step.inputs for word in ("-input", uri)]
    return [*words, *(word for option in options.items() for word in option)]


def _file_system(site: SiteSettings) -> str:
    found = site.properties.get("fs.defaultFS", "").rstrip("/")
    if not found:
        raise ConfigError(f"{site.conf_dir}: core-site.xml does not set fs.defaultFS")
    return found
