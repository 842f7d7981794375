"""DAGs from Python on a real service with two real workers, files on this machine: no Hadoop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import numpy as np
import pytest

from jobs.lu_blocks import tiles
from jobs.lu_blocks.dag import RESIDUAL_TASK, Tiling, lu_dag, made_matrix, store_tiles
from tests.fixtures import dag_functions
from tests.fixtures.served_tasks import SECRET, served_tasks
from yarn_accel.adapters.signed_http import sender_key
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.errors import JobError, RejectedError
from yarn_accel.launch.outcomes import ask_outcomes, live_dag_outcome
from yarn_accel.storage import Store
from yarn_accel.tasks import DagBuilder, load_dag_file, plan_dag
from yarn_accel.tasks.dag_handle import DagHandle
from yarn_accel.tasks.submission import resume_definition, submit_definition

LIMIT_S = 240.0


class Link:
    """Reaches the service from other threads than its own."""

    def __init__(self, site):
        self._site = site
        self._loop = asyncio.get_running_loop()

    def store(self):
        return Store()

    def run(self, work, *, is_waiting=False):
        return asyncio.run_coroutine_threadsafe(work(self.ask), self._loop).result(LIMIT_S)

    async def ask(self, verb, document=None):
        return await self._site.control(verb, document or {})


@contextlib.contextmanager
def workers(url, folder, n_workers):
    """So many workers, as processes of their own."""
    processes = []
    try:
        processes.extend(start_worker(url, folder / f"w{number}") for number in range(n_workers))
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def start_worker(url, place):
    place.mkdir()
    key = place / "key"
    key.write_text(sender_key(SECRET, f"worker:{place.name}").hex())
    key.chmod(0o600)
    places = {"key_file": str(key), "work_dir": str(place / "work"), "log_dir": str(place / "logs")}
    settings = {"node": place.name, "cores": 2, "memory_mib": 2048, "master_url": url, **places}
    (place / "worker.yaml").write_text(json.dumps(settings))
    argv = [sys.executable, "-m", "yarn_accel.worker", "--config", str(place / "worker.yaml")]
    with (place / "log").open("wb") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ)


def on_a_service(folder, work, **settings):
    """Do some work in a thread, with a link to a service that has two workers."""

    async def main():
        async with served_tasks(folder / "service", "mps", **settings) as site:
            with workers(site.url, folder, 2):
                return await asyncio.to_thread(work, Link(site))

    (folder / "service").mkdir()
    return asyncio.run(main())


def test_a_matrix_is_factorized_by_tiles_on_two_workers(tmp_path: Path) -> None:
    matrix, tiling, uri = made_matrix(96, 1), Tiling(96, 32), tmp_path.as_uri()
    store_tiles(Store(), f"{uri}/tiles", matrix, tiling)

    def work(link):
        run = lu_dag(tiling, f"{uri}/tiles", f"{uri}/factors").submit(priority_class="high", link=link)
        run.wait(timeout_s=LIMIT_S)
        answers = link.run(lambda ask: ask_outcomes(link, [run.dag_id]))
        return run.dag_id, run.result(RESIDUAL_TASK), live_dag_outcome(answers)

    name, found, outcome = on_a_service(tmp_path, work)
    assert found["n"] == 96
    assert found["residual"] < tiles.LIMIT
    last = np.load(tmp_path / "factors" / "gemm-2-2-1" / "a-2-2-2.npy")
    assert last.shape == (32, 32)
    assert not (tmp_path / "factors" / "_temporary").exists()
    assert len(outcome.tasks) == 12
    assert {each.node[:2] for each in outcome.tasks} <= {"w0", "w1"}
    assert outcome.slowdowns[name][-1] == (outcome.apps[name].end_s, outcome.apps[name].slowdown)


@pytest.mark.slow
def test_a_dag_that_failed_goes_on_from_what_is_done(tmp_path: Path) -> None:
    runs, path = tmp_path / "runs", tmp_path / "flow.yaml"
    first = f"echo first >> {runs}; echo 1 > x"

    def plan(second, name, **more):
        tasks = [
            {"id": "first", "command": ["sh", "-c", first], "outputs": {"x": 2}},
            {"id": "second", "command": ["sh", "-c", second], "inputs": ["x"], "outputs": {"y": 2}},
        ]
        path.write_text(json.dumps({"output": "out", "max_attempts": 1, "tasks": tasks}))
        return plan_dag(load_dag_file(path), PriorityClass.BASIC, Store(), name, **more)

    def work(link):
        failing = plan("cat x > y; exit 3", "run-1")
        link.run(lambda ask: submit_definition(ask, Store(), failing))
        with pytest.raises(JobError, match="3"):
            DagHandle(link, failing).wait(timeout_s=LIMIT_S)
        again = plan("cat x x > y", "run-2", is_resumed=True)
        left = link.run(lambda ask: resume_definition(ask, Store(), again))
        DagHandle(link, left).wait(timeout_s=LIMIT_S)
        return [each.own_name for each in left.tasks]

    assert on_a_service(tmp_path, work) == ["second"]
    assert (tmp_path / "out" / "second" / "y").read_text() == "1\n1\n"
    assert runs.read_text() == "first\n"


def test_results_come_back_and_a_failure_has_its_reason(tmp_path: Path) -> None:
    def work(link):
        dag = DagBuilder("sums", packages=["tests.fixtures"], environment={"MORE": "5"})
        dag.call("add", dag_functions.add, [[]])
        good = dag.submit(link=link)
        good.wait(timeout_s=LIMIT_S)
        bad = DagBuilder("bad", packages=["tests.fixtures"], max_attempts=1)
        bad.call("fail", dag_functions.fail, ["no milk"])
        run = bad.submit(link=link)
        with pytest.raises(JobError, match="ValueError: no milk"):
            run.wait(timeout_s=LIMIT_S)
        return good.result("add"), good.status(), run.status()

    result, good, bad = on_a_service(tmp_path, work)
    assert result == 5
    assert good["tasks"]["done"] == 1
    assert bad["state"] == "failed"


def test_functions_and_commands_run_in_a_named_environment(tmp_path: Path) -> None:
    """An interpreter of the node, and an archive that is unpacked there; what a task names, it gets."""
    made = tmp_path / "made"
    venv.create(made, with_pip=False, symlinks=True)
    [packages] = made.glob("lib/python3*/site-packages")
    (packages / "only_there.py").write_text("import sys\ndef where(): return sys.prefix\n")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(made, ".")
    environments = {
        "here": str(made / "bin" / "python"),
        "packed": (tmp_path / "packed.tar.gz").as_uri(),
        "gone": str(tmp_path / "gone" / "python"),
    }

    def work(link):
        dag = DagBuilder("named", python_environment="here", output=(tmp_path / "out").as_uri())
        dag.call("called", "only_there:where")
        dag.call("unpacked", "only_there:where", python_environment="packed")
        script = "import only_there; print(only_there.where(), file=open('place', 'w'))"
        dag.run("command", ["python", "-c", script], python_environment="packed", outputs=["place"])
        run = dag.submit(link=link)
        run.wait(timeout_s=LIMIT_S)
        lost = DagBuilder("lost", max_attempts=1)
        lost.call("task", "operator:add", [1, 2], python_environment="gone")
        failed = lost.submit(link=link)
        with pytest.raises(JobError, match="cannot be executed on this node"):
            failed.wait(timeout_s=LIMIT_S)
        wrong = DagBuilder("wrong", python_environment="nowhere")
        wrong.call("task", "operator:add", [1, 2])
        with pytest.raises(RejectedError, match="no environment of this name; known: gone, here, packed"):
            wrong.submit(link=link)
        return run.result("called"), run.result("unpacked")

    called, unpacked = on_a_service(tmp_path, work, environments=environments)
    assert called == str(made)
    assert unpacked.startswith((str(tmp_path / "w0"), str(tmp_path / "w1")))
    assert (tmp_path / "out" / "command" / "place").read_text().startswith(str(tmp_path / "w"))
