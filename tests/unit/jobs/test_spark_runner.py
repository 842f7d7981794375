"""The runner `spark` without Spark: what it submits, what its tasks do, how a failure is reported."""

from __future__ import annotations

import json
import os
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

from jobs.factorize.manifest import Reject, parse_row
from jobs.factorize.matrices import GARBAGE_LINE, make_bytes, manifest_of, plan_flawed, plan_matrices
from jobs.runners.spark import SparkRunner, _report_progress
from jobs.runners.spark_program import run_task, split_lines
from jobs.runners.step import Step
from yarn_accel.errors import ConfigError, JobError, StartupError
from yarn_accel.hadoop.site import HadoopSite

STEP = Step("f", ("factorize-map", "--by", "value"), ("hdfs://nn/m",), "hdfs://nn/out", lines_per_map=3)
SUBMIT = """#!{python}
import json, os, sys
found = {{"argv": sys.argv[1:], "environ": dict(os.environ)}}
open({seen!r}, "w").write(json.dumps(found))
print({words!r}, file=sys.stderr)
if {code}:
    sys.exit({code})
place = sys.argv[sys.argv.index("--result") + 1]
open(place, "w").write(json.dumps({{"application": "application_1_0001", "counters": {{"done": 3}}}}))
"""


class SparkHome:
    """A Spark whose ``spark-submit`` notes what it was given, and ends as is said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)

    def ends(self, words: str = "", code: int = 0) -> None:
        script = self.folder / "bin" / "spark-submit"
        script.write_text(
            SUBMIT.format(python=sys.executable, seen=str(self.folder / "seen"), words=words, code=code)
        )
        script.chmod(0o755)

    def seen(self) -> dict:
        return json.loads((self.folder / "seen").read_text())


@pytest.fixture
def spark(tmp_path, monkeypatch):
    home = SparkHome(tmp_path / "spark")
    home.ends()
    monkeypatch.setenv("SPARK_HOME", str(home.folder))
    return home


@pytest.fixture
def runner(tmp_path, monkeypatch):
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn</value></property></configuration>"
    )
    token = tmp_path / "token"
    token.write_bytes(b"")
    monkeypatch.setattr(
        "jobs.runners.spark.Store", lambda conf: types.SimpleNamespace(list=lambda uri: [f"{uri}/part-00000"])
    )
    site = HadoopSite.load({"PATH": os.environ["PATH"], "HADOOP_CONF_DIR": str(conf)})
    return SparkRunner(site, "python3.9", credential_file=token, scratch=tmp_path)


def silent(_: str) -> None:
    """Report nothing."""


def test_a_step_is_submitted_with_the_zip_and_the_credential(spark, runner, tmp_path):
    result = runner.run(STEP, silent)
    assert (result.job_id, result.counters["done"]) == ("application_1_0001", 3)
    assert result.parts == ("hdfs://nn/out/part-00000",)
    argv, environ = spark.seen()["argv"], spark.seen()["environ"]
    assert argv[:3] == ["--master=yarn", "--deploy-mode=client", "--name=f"]
    assert argv[argv.index("--") + 1 :] == ["factorize-map", "--by", "value"]
    assert argv[argv.index("--py-files") + 1].endswith(".zip")
    assert environ["HADOOP_TOKEN_FILE_LOCATION"] == str(tmp_path / "token")
    assert environ["PYSPARK_PYTHON"] == "python3.9"
    assert "--conf=spark.task.maxFailures=1" not in argv


def test_a_strict_step_is_tried_once(spark, runner):
    runner.run(Step(STEP.name, STEP.mapper, STEP.inputs, STEP.output_uri, is_strict=True), silent)
    assert "--conf=spark.task.maxFailures=1" in spark.seen()["argv"]


@pytest.mark.parametrize(
    "more", [{"reducer": ("images-reduce",)}, {"io": "typedbytes"}, {"has_task_files": True}]
)
def test_other_steps_are_refused_before_anything_starts(runner, more):
    with pytest.raises(ConfigError, match="--runner hadoop"):
        runner.run(Step("i", ("images-map",), ("hdfs://nn/a",), "hdfs://nn/out", **more), silent)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("x\n  yarn_accel.errors.JobError: accel-job: record A1 (not-finite): no\nat org.x", "record A1"),
        ("one\ntwo", r"ended with 3: one \| two"),
        ("", "it wrote nothing"),
        (
            "Traceback (most recent call last):\n  File x\npyspark.errors.E: [PYTHON_VERSION]\n x",
            r"ended with 3: pyspark\.errors\.E: \[PYTHON_VERSION\]$",
        ),
        (
            "Traceback (most recent call last):\n  x\npy4j.P: An error.\n: java.net.E: refused\n\tat",
            r"ended with 3: java\.net\.E: refused$",
        ),
        (
            "Lost task: E: Traceback (most recent call last):\n  x\n\n  y\np.E: wrong Python\nPlease",
            r"ended with 3: p\.E: wrong Python$",
        ),
    ],
)
def test_a_failure_is_one_line(spark, runner, words, message):
    spark.ends(words, code=3)
    with pytest.raises(JobError, match=message) as raised:
        runner.run(STEP, silent)
    assert "\n" not in str(raised.value)


def test_progress_is_what_sparks_log_says():
    reported = []
    log = "INFO Submitted application application_1_0001\n"
    _report_progress("starting", reported.append)
    _report_progress(log, reported.append)
    log += "INFO Finished task 0.0 in stage 0.0 (TID 0) in 9 ms on w1 (executor 1) (1/1)\n"
    _report_progress(log, reported.append)
    log += "INFO Finished task 0.0 in stage 1.0 (TID 1) in 9 ms on w1 (executor 1) (1/4)\n"
    _report_progress(log, reported.append)
    submitted = "application_1_0001 submitted"
    assert reported == [submitted, submitted, "1/4 tasks done"]


def test_without_spark_it_says_what_to_install(runner, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(StartupError, match="SPARK_HOME"), runner:
        pass


def test_lines_become_the_inputs_of_tasks():
    text = b"# none\na\n\nb\xff\n  # none either\nc\n"
    assert split_lines(text, 2) == [b"a\nb\xff\n", b"c\n"]
    assert split_lines(text, 0) == [b"a\nb\xff\nc\n"]
    assert split_lines(b"", 2) == []


@pytest.fixture
def task(monkeypatch):
    """This process runs a task of Spark."""
    numbers = {"stageId": 2, "partitionId": 5, "attemptNumber": 1}
    context = types.SimpleNamespace(**{name: lambda n=n: n for name, n in numbers.items()})
    module = types.ModuleType("pyspark")
    module.TaskContext = types.SimpleNamespace(get=lambda: context)
    monkeypatch.setitem(sys.modules, "pyspark", module)


class Counted(Counter):
    """Stands in for `SparkCounters`."""

    def add(self, amounts):
        self.update(amounts)


def manifest(folder: Path) -> bytes:
    matrices = [*plan_matrices(3, 8, 16), *plan_flawed(8)]
    for matrix in matrices:
        if matrix.flaw != "missing":
            (folder / f"{matrix.key}.bin").write_bytes(make_bytes(matrix))
    text = manifest_of(matrices, f"file://{folder}", f"file://{folder}/out") + GARBAGE_LINE + "\n"
    return text.encode("utf-8", "surrogateescape")


def test_a_task_does_what_a_task_of_streaming_does(task, tmp_path):
    (tmp_path / "out").mkdir()
    counters = Counted()
    lines = list(run_task(["factorize-map"], counters, "application_9_0001", [manifest(tmp_path)]))
    rows = [parse_row(line) for line in lines]
    assert len(rows) == 8 == counters["records_in"]
    assert counters["done"] == 3
    assert sum(isinstance(row, Reject) for row in rows) == 5 == counters["rejected"]
    assert {row.attempt for row in rows} == {"attempt_9_0001_2_m_000005_1"}


def test_a_task_that_fails_says_why(task, tmp_path):
    with pytest.raises(JobError, match=r"accel-job: record .*\(manifest\)"):
        list(run_task(["factorize-map", "--strict"], Counted(), "application_9_0001", [b"no manifest\n"]))
