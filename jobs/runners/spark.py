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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.runners import spark_program
from jobs.runners.hadoop import HadoopRunner
from jobs.runners.step import Report, Step, StepResult
from jobs.zipapp import build_zipapp
from yarn_accel.client import format_binding
from yarn_accel.errors import ConfigError, JobError, StartupError
from yarn_accel.storage import Store
from yarn_accel.streaming import APPLICATION_TYPE, BINDING_FILE, tracking_pages

__all__ = ["SparkRunner", "find_spark_submit"]

TOKEN_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
PY_FILES = "accel-job.zip"
_FAILURE = re.compile(r"JobError: (.*)")
_N_LINES = 8


class SparkRunner(HadoopRunner):
    """Submits map steps to Spark in client mode; arguments as for `HadoopRunner`."""

    name = "spark"

    def run(self, step: Step, report: Report) -> StepResult:
        """Submit a step and wait.

        Raises:
            ConfigError: the step has a reducer, or passes typed bytes: only text is mapped.
            StartupError: there is no Spark.
            JobError: a task failed; the message is the first line that it wrote.
        """
        if step.reducer or step.io != "text" or step.files:
            raise ConfigError(
                f"the runner spark maps lines of text, and {step.name} is another kind of step",
                cure="use --runner hadoop",
            )
        began_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="accel-job-", dir=self._scratch)
            folder = Path(stack.enter_context(temporary))
            argv, environ = self._submission(step, folder, stack)
            report(f"{step.name}: submitted to Spark")
            found = _submit(argv, environ, folder)
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
        is_wanted = self._has_credentials
        if self._binding_file is not None:
            binding = self.binding()
            is_wanted = bool(binding.servers)
            (folder / BINDING_FILE).write_text(format_binding(binding))
            argv += ["--files", str(folder / BINDING_FILE)]
        elif is_wanted and (masters := tracking_pages(self.site, APPLICATION_TYPE)):
            argv.append(f"--conf=spark.executorEnv.ACCEL_MASTER={','.join(masters)}")
        if is_wanted:
            environ[TOKEN_VARIABLE] = str(stack.enter_context(self._credentials()))
        argv += [str(Path(str(spark_program.__file__))), "--inputs", *step.inputs]
        argv += ["--output", step.output_uri, "--result", str(folder / "result.json")]
        argv += ["--lines", str(step.lines_per_map), "--", *step.mapper]
        return argv, environ


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
            cure='set SPARK_HOME, or pip install "cluster-accel[spark]"',
        )
    return found


def _submit(argv: list[str], environ: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run ``spark-submit`` to its end: what the program wrote."""
    log = folder / "spark-submit.log"
    with log.open("wb") as out:
        done = subprocess.run(argv, env=dict(environ), stdout=out, stderr=out, check=False)
    if done.returncode != 0:
        raise JobError(_diagnosis(log.read_text(errors="replace"), done.returncode))
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def _diagnosis(log: str, code: int) -> str:
    """What a failed submission failed of: the task's own line, else the end of the log."""
    named = _FAILURE.search(log)
    if named is not None:
        return named.group(1).strip()
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"spark-submit ended with {code}: {' | '.join(lines[-_N_LINES:]) or 'it wrote nothing'}"
