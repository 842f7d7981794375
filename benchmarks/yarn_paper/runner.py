"""The top runner of `jobs`, with this benchmark's zipapp and properties: jobs are real streaming jobs."""

from __future__ import annotations

import getpass
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from benchmarks.yarn_paper.shipped import emulation
from jobs.credentials import token_file
from jobs.runners.hadoop import streaming_job
from jobs.runners.step import Report, Step, StepResult, TaskRecord
from jobs.zipapp import ARCHIVE_NAME, build_zipapp
from yarn_accel.adapters.hdfs import Store
from yarn_accel.client.reporter import COUNTER_GROUP
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.hadoop.streaming import JobResult, run_streaming

__all__ = ["PaperRunner", "build_archive"]

_CREDENTIAL_S = 3600.0
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = (
    b"import sys\n\nfrom benchmarks.yarn_paper.shipped.entry import main\n\nsys.exit(main(sys.argv[1:]))\n"
)
_PACKAGE = "benchmarks/yarn_paper"


def build_archive(target: Path) -> Path:
    """The zipapp of `jobs` with our own modules in it and another beginning."""
    plain = build_zipapp(target.with_suffix(".jobs"))
    own = {f"{_PACKAGE}/shipped/{path.name}": path.read_bytes() for path in _own_modules()}
    # The packages around them import what stays at home.
    own |= {f"{name}/__init__.py": b'"""Shipped in part."""\n' for name in ("benchmarks", _PACKAGE)}
    own["__main__.py"] = _MAIN
    with zipfile.ZipFile(plain) as jobs, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        content = {name: jobs.read(name) for name in jobs.namelist()} | own
        for name in sorted(content):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content[name])
    plain.unlink()
    return target


def _own_modules() -> list[Path]:
    return sorted(Path(emulation.__file__).parent.glob("*.py"))


class PaperRunner:
    """Runs steps on a site; a `jobs.runners.step.Runner`.

    Args:
        site: the cluster.
        python: the interpreter on the nodes.
        scratch: for the archive and credentials.

    Attributes:
        properties: of every job from now on, such as where its mappers' agents listen.
        results: what Hadoop said of the jobs so far.
    """

    name = "cluster"

    def __init__(self, site: HadoopSite, python: str, scratch: Path) -> None:
        self.site = site
        self.properties: Mapping[str, str] = {}
        self.results: list[JobResult] = []
        self._python = python
        self._scratch = scratch
        self._store = Store(site.conf_dir)
        self._archive = build_archive(scratch / ARCHIVE_NAME)
        file_system = site.properties["fs.defaultFS"].rstrip("/")
        self._home = f"{file_system}/user/{getpass.getuser()}/yarn-paper/{time.time_ns()}"

    def __enter__(self) -> PaperRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def store(self) -> Store:
        """Where inputs and outputs lie."""
        return self._store

    def home(self, name: str) -> str:
        """URI of a folder of this run."""
        return f"{self._home}/{name}"

    def run(self, step: Step, report: Report) -> StepResult:
        """Submit a step and wait.

        Raises:
            JobError: it failed.
        """
        step = replace(step, properties={**self.properties, **step.properties})
        secret = self.site.master_secret_file
        assert secret is not None, "the launcher's site names the secret"
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            credentials = token_file(secret, _CREDENTIAL_S, Path(folder))
            with credentials as path:
                # A mapper asks for an `acct/slot`, of which each node has one.
                job = streaming_job(step, self._python, (self._archive,), path, has_slots=True)
                result = run_streaming(self.site, job, report).check()
        self.results.append(result)
        parts = sorted(uri for uri in self._store.list(step.output_uri) if "/part-" in uri)
        tasks = tuple(
            TaskRecord(t.attempt, t.kind.lower(), t.node, t.state, t.start_s, t.finish_s)
            for t in result.tasks
        )
        counters = dict(result.counters.get(COUNTER_GROUP, {}))
        return StepResult(tuple(parts), counters, tasks, result.wall_s, result.job_id)
