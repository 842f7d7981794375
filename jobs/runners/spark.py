"""Runs a job's map steps in PySpark, on the cluster that HADOOP_CONF_DIR names; it starts no daemon.

Spark is the user's: ``SPARK_HOME``, ``spark-submit`` on the PATH, or this interpreter's ``pyspark``, with
``SPARK_CONF_DIR`` and ``PYSPARK_PYTHON`` as everywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs.runners import spark_program
from jobs.runners.hadoop import HadoopRunner
from jobs.runners.step import Report, Step, StepResult
from jobs.zipapp import build_zipapp
from yarn_accel.client import Binding, format_binding, parse_binding
from yarn_accel.errors import ConfigError, JobError, StartupError
from yarn_accel.extras import install_command
from yarn_accel.storage import Store
from yarn_accel.streaming import BINDING_FILE, issue_job_credential, mapper_environment
from yarn_accel.uris import hdfs_roots

TOKEN_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
PY_FILES = "accel-job.zip"
_TASK_FAILURE = re.compile(r"JobError: (.*)")
#: The last line of a traceback of Python, in an executor or the driver; where Java failed its reason follows.
_FAILURE = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n|\n)*(\S.*)(?:\n: (\S.*))?")
#: Stage 0 reads the manifest.
_TASKS_DONE = re.compile(r"Finished task \S+ in stage [1-9]\S* .*\((\d+/\d+)\)")
_ACCEPTED = re.compile(r"Submitted application (application_\d+_\d+)")
_N_LINES = 8
_PAUSE_S = 0.5


class SparkRunner(HadoopRunner):
    """Submits map steps to Spark in client mode; arguments as for `HadoopRunner`."""

    def __enter__(self) -> SparkRunner:
        """Look for Spark, before anything is written.

        Raises:
            StartupError: there is none.
        """
        find_spark_submit(os.environ)
        return self

    def run(self, step: Step, report: Report) -> StepResult:
        """Submit a step and wait.

        Raises:
            ConfigError: the step has a reducer, passes typed bytes, or its tasks hand over files.
            StartupError: there is no Spark.
            JobError: a task failed; the message is the first line that it wrote.
        """
        if step.reducer or step.io != "text" or step.files or step.has_task_files:
            what = "has tasks that hand over files" if step.has_task_files else "is another kind of step"
            raise ConfigError(
                f"the runner spark maps lines of text to lines of text, and {step.name} {what}",
                cure="use --runner hadoop" + (", or --output npz" if step.has_task_files else ""),
            )
        began_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="accel-job-", dir=self._scratch)
            folder = Path(stack.enter_context(temporary))
            argv, environ = self._submission(step, folder, stack)
            report(f"{step.name}: submitted to Spark")
            found = _submit(argv, environ, folder, lambda text: report(f"{step.name}: {text}"))
        parts = sorted(uri for uri in Store(self.site.conf_dir).list(step.output_uri) if "/part-" in uri)
        return StepResult(
            tuple(parts), found["counters"], (), time.monotonic() - began_s, found["application"]
        )

    def _submission(
        self, step: Step, folder: Path, stack: contextlib.ExitStack
    ) -> tuple[list[str], dict[str, str]]:
        """The command, and its environment."""
        environ = {**os.environ, "HADOOP_CONF_DIR": str(self.site.conf_dir)}
        environ.setdefault("YARN_CONF_DIR", str(self.site.conf_dir))
        environ.setdefault("PYSPARK_PYTHON", self._python)
        argv = [find_spark_submit(environ), "--master=yarn", "--deploy-mode=client", f"--name={step.name}"]
        argv += ["--py-files", str(build_zipapp(folder / PY_FILES))]
        if step.is_strict:
            argv.append("--conf=spark.task.maxFailures=1")
        if self.site.security().is_kerberos and (servers := hdfs_roots([*step.inputs, *step.mapper])):
            argv.append(f"--conf=spark.kerberos.access.hadoopFileSystems={','.join(servers)}")
        is_wanted = self._credential_file is not None or self.site.master_secret_file is not None
        binding_file = self._binding_file or self.site.binding_file
        if binding_file is not None:
            binding = _read_binding(binding_file)
            is_wanted = bool(binding.servers)
            (folder / BINDING_FILE).write_text(format_binding(binding))
            argv += ["--files", str(folder / BINDING_FILE)]
        elif is_wanted:
            found = mapper_environment(self.site)
            argv += [f"--conf=spark.executorEnv.{name}={value}" for name, value in found.items()]
        if is_wanted:
            environ[TOKEN_VARIABLE] = str(stack.enter_context(self._credentials()))
        argv += [str(Path(str(spark_program.__file__))), "--inputs", *step.inputs]
        argv += ["--output", step.output_uri, "--result", str(folder / "result.json")]
        argv += ["--lines", str(step.lines_per_map), "--", *step.mapper]
        return argv, environ

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


@contextlib.contextmanager
def token_file(master_secret_file: Path, lifetime_s: float, scratch: Path | None = None) -> Iterator[Path]:
    """A token file in a private temporary folder (inside `scratch`); gone at the end of the block.

    Raises:
        ConfigError: the site's secret cannot be read by this user.
    """
    with tempfile.TemporaryDirectory(prefix="accel-token-", dir=scratch) as folder:
        yield issue_job_credential(Path(folder) / "credentials", master_secret_file, lifetime_s)


def _read_binding(file: Path) -> Binding:
    try:
        return parse_binding(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"binding_file {file} cannot be read: {error.strerror}") from error


def find_spark_submit(environ: Mapping[str, str]) -> str:
    """The ``spark-submit`` of a user.

    Raises:
        StartupError: there is none.
    """
    homes = [environ["SPARK_HOME"]] if environ.get("SPARK_HOME") else []
    for home in homes:
        command = Path(home) / "bin" / "spark-submit"
        if command.exists():
            return str(command)
    found = shutil.which("spark-submit", path=environ.get("PATH"))
    spec = None if found else importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin:
        found = str(Path(spec.origin).parent / "bin" / "spark-submit")
    if not found:
        raise StartupError(
            "there is no spark-submit: SPARK_HOME is not set, and PATH has none",
            cure=f"set SPARK_HOME, or {install_command('pyspark')}",
        )
    return found


def _submit(argv: list[str], environ: Mapping[str, str], folder: Path, report: Report) -> dict[str, Any]:
    """Run ``spark-submit`` to its end: what the program wrote."""
    log = folder / "spark-submit.log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=dict(environ), stdout=out, stderr=out)
    try:
        while process.poll() is None:
            _report_progress(log.read_text(errors="replace"), report)
            time.sleep(_PAUSE_S)
    finally:
        process.terminate()
        process.wait()
    if process.returncode != 0:
        raise JobError(_diagnosis(log.read_text(errors="replace"), process.returncode))
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def _report_progress(log: str, report: Report) -> None:
    """Say how far it is, where the log says so: that is for the user's log4j to decide."""
    for pattern, words in ((_TASKS_DONE, "{} tasks done"), (_ACCEPTED, "{} submitted")):
        found = pattern.findall(log)
        if found:
            report(words.format(found[-1]))
            return


def _diagnosis(log: str, code: int) -> str:
    """Why a submission failed: the task's own line, else the first error, else the log's end."""
    task = _TASK_FAILURE.search(log)
    if task is not None:
        return task.group(1).strip()
    failure = _FAILURE.search(log)
    if failure is not None:
        return f"spark-submit ended with {code}: {failure.group(2) or failure.group(1)}"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"spark-submit ended with {code}: {' | '.join(lines[-_N_LINES:]) or 'it wrote nothing'}"
