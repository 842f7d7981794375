"""Jobs by ticket on a cluster with Kerberos: streaming, a job of `jobs`, PySpark, tasks, a DAG.

Map tasks alone: Hadoop's jars from Maven lack the native library that a reducer's shuffle needs there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.programs import ran
from tests.fixtures.secure_cluster import Application, application
from tests.fixtures.yarn_site import ROOT
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.root]
PYTHON = os.environ.get("SPARK_TEST_PYTHON", "")
"""An interpreter with PySpark, as of ``make test-spark``."""
Run = Callable[..., subprocess.CompletedProcess[str]]
WORKER = {
    "worker": [{"enabled": True, "memory_mib": 512, "vcores": 1}],
    "tasks": {"max_workers": 1},
}
#: Writes the files that it is given, or prints what they hold.
STORE = """
import os, sys
from yarn_accel.storage import Store
store, (act, *words) = Store(os.environ["HADOOP_CONF_DIR"]), sys.argv[1:]
for word in words:
    uri, _, text = word.partition("=")
    if act == "write":
        store.write_atomic(uri, [text.encode()])
    elif act == "cat":
        print(store.read_bytes(uri).decode(), end="")
    else:
        parts = [each for each in store.list(uri) if "/part-" in each]
        print(*(store.read_bytes(each).decode() for each in parts), sep="", end="")
"""
#: A request through the server of its node, and files by WebHDFS with the job's token, as without a server.
MAPPER = """
import sys
from yarn_accel.client import connect
from yarn_accel.client.webhdfs import WebHdfs
hdfs = WebHdfs()
with connect("hadoop", fallback=False) as accel:
    for line in sys.stdin:
        reply = accel.call("echo", b"x")
        hdfs.create("hdfs:///user/alice/from-a-mapper", line.strip().encode())
        print(reply.device, hdfs.open("hdfs:///user/alice/from-a-mapper").decode())
"""


@dataclass(frozen=True)
class Alice:
    """A user with a ticket, whose application has servers, and a worker for tasks.

    Attributes:
        environ: hers.
        folder: for her files.
        application: that she has started.
    """

    environ: dict[str, str]
    folder: Path
    application: Application
    run: Run

    def settings(self, **tasks: Any) -> Path:
        """Settings of an application whose task service has these."""
        chosen = yaml.safe_load(self.application.settings.read_text())
        chosen["tasks"].update(tasks)
        path = self.folder / "changed.yaml"
        path.write_text(yaml.safe_dump(chosen))
        return path

    def command(self, *words: str) -> str:
        """Run ``yarn-accel ...``, and return all that it says."""
        done = self.run(self.environ, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def store(self, *words: str) -> str:
        return ran([sys.executable, "-c", STORE, *words], env=self.environ, check=True).stdout


@pytest.fixture(scope="module")
def alice(
    secure: Cluster,
    command: Run,
    environment: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Alice]:
    folder = tmp_path_factory.mktemp("alice")
    conf = conf_without(secure.conf_dir, folder / "conf", "binding_file")
    environ = {**os.environ, **secure.client_environ, "KRB5CCNAME": f"FILE:{folder}/tickets"}
    environ |= {"HADOOP_CONF_DIR": str(conf), "XDG_STATE_HOME": str(folder / "state")}
    environ.pop("HADOOP_HOME", None)
    ran(["kinit", "-kt", str(secure.keytab("alice")), "alice"], env=environ, check=True)
    with application(secure, folder, sections={**environment, **WORKER}) as app:
        user = Alice(environ, folder, app, command)
        try:
            said = user.command("start", "--config", str(app.settings), "--wait", "--wait-s", "400")
            assert "takes no token" in said, "a start says what is left out"
            user.store("write", "hdfs:///user/alice/in/a=one\n")
            yield user
        finally:
            user.command("stop")


@pytest.mark.hadoop
def test_a_streaming_job_has_its_result_and_a_mapper_its_server_and_files(
    alice: Alice, tmp_path: Path
) -> None:
    (tmp_path / "mapper.py").write_text(MAPPER)
    words = ["-D", "mapreduce.job.reduces=0", "-D", "mapreduce.job.maps=1", "-input", "/user/alice/in"]
    words += ["-output", "/user/alice/streamed", "-mapper", str(tmp_path / "mapper.py")]
    alice.command("streaming", "--python", sys.executable, "--result", str(tmp_path / "result.json"), *words)
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["state"] == "SUCCEEDED"
    assert found["counters"]["org.apache.hadoop.mapreduce.TaskCounter"]["MAP_INPUT_RECORDS"] == 1
    assert {task["state"] for task in found["tasks"]} == {"SUCCEEDED"}
    assert alice.store("read", "hdfs:///user/alice/streamed") == "cpu one\t\n"


def factorize(alice: Alice, folder: Path, *words: str, **environ: str) -> list[str]:
    """The states of the records of a small job."""
    argv = [sys.executable, "-m", "jobs", "factorize", "--make", "2", "--n-min", "8", "--n-max", "16"]
    argv += ["--tasks", "1", "--no-fallback", "--out", str(folder), *words]
    done = ran(argv, env={**alice.environ, **environ}, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = (folder / "factorize" / "results.tsv").read_text().splitlines()
    return [row.split("\t")[1] for row in rows[1:]]


@pytest.mark.hadoop
@pytest.mark.slow
def test_a_job_of_this_repository_runs(alice: Alice, tmp_path: Path) -> None:
    assert factorize(alice, tmp_path, "--runner", "hadoop", "--python", sys.executable) == ["done", "done"]


@pytest.mark.spark
@pytest.mark.skipif(not PYTHON, reason="PySpark on a cluster: run `make test-spark` (870 MB)")
def test_a_job_runs_in_pyspark(alice: Alice, secure: Cluster, tmp_path: Path) -> None:
    """Spark logs in by the ticket, and fetches tokens for its executors itself."""
    settings = {
        "spark.driver.host": secure.plan.gateway,
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "384m",
        "spark.ui.enabled": "false",
        "spark.yarn.maxAppAttempts": "1",
    }
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
    environ = {
        "SPARK_HOME": str(next(Path(PYTHON).parents[1].glob("lib/python*/site-packages/pyspark"))),
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_PYTHON": PYTHON,
        "PYSPARK_DRIVER_PYTHON": PYTHON,
        "JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file={secure.hosts_file} "
        f"-Djava.security.krb5.conf={secure.client_environ['KRB5_CONFIG']}",
    }
    words = ["--runner", "spark", "--python", PYTHON]
    assert factorize(alice, tmp_path, *words, **environ) == ["done", "done"]


@pytest.mark.hadoop
def test_tasks_read_and_write_as_who_started_them(alice: Alice, tmp_path: Path) -> None:
    """A task has the tokens of HDFS, and no other secret of its worker."""
    counts = 'grep -c "" && grep -a -c HDFS_DELEGATION "$HADOOP_TOKEN_FILE_LOCATION"'
    document = {
        "name": "count",
        "input": "hdfs:///user/alice/in",
        "output": "hdfs:///user/alice/counted",
        "memory_mib": 64,
        "cpu": {"command": ["/bin/sh", "-c", counts]},
    }
    (tmp_path / "app.yaml").write_text(yaml.safe_dump(document))
    alice.command("tasks", "submit", str(tmp_path / "app.yaml"), "--name", "count-1", "--wait")
    assert alice.store("read", "hdfs:///user/alice/counted") == "1\n1\n"
    assert "count-1" in alice.command("tasks", "status")
    alice.command("tasks", "report", "count-1", "--out", str(tmp_path / "report"))
    assert (tmp_path / "report" / "outcome.json").exists()


@pytest.mark.hadoop
@pytest.mark.slow
def test_a_dag_runs_by_ticket(alice: Alice, tmp_path: Path) -> None:
    """Last: a service takes tasks or DAGs, so this one is another application."""
    alice.command("stop")
    alice.command("tasks", "start", "--config", str(alice.settings(policy="mps")))
    document = {
        "output": "hdfs:///user/alice/sorted",
        "inputs": {"in.txt": {"uri": "hdfs:///user/alice/in/a", "bytes": 4}},
        "tasks": [
            {"id": "copy", "command": ["cp", "in.txt", "a"], "inputs": ["in.txt"], "outputs": {"a": 4}},
            {"id": "again", "command": ["cp", "a", "b"], "inputs": ["a"], "outputs": {"b": 4}},
        ],
        "memory_mib": 64,
    }
    (tmp_path / "dag.yaml").write_text(yaml.safe_dump(document))
    alice.command("dag", "submit", str(tmp_path / "dag.yaml"), "--name", "dag-1", "--wait")
    assert "dag-1" in alice.command("dag", "status")
    assert alice.store("cat", "hdfs:///user/alice/sorted/again/b") == "one\n"
