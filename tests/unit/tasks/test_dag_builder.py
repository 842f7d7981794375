"""The client in Python builds DAGs, runs them here, and submits them to a service that is played here."""

from __future__ import annotations

import asyncio
import functools
import json
import zipfile
from pathlib import Path

import pytest

from tests.fixtures import dag_functions
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.tasks.service.submission import parse_app
from yarn_accel.errors import ConfigError, JobError, RejectedError, UnavailableError
from yarn_accel.storage import Store
from yarn_accel.tasks import DagBuilder
from yarn_accel.tasks.dag_builder import function_name


class PlayedService:
    """Takes submissions as the master does, and plays what the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.apps = {}
        self.rows = {}
        self.asked = []
        self.results = {}
        self.archives = {}

    def store(self) -> Store:
        return Store()

    def run(self, work, *, is_waiting=False):
        return asyncio.run(work(self._ask))

    async def _ask(self, verb, document):
        self.asked.append((verb, document))
        if verb == "tasks-submit":
            app = parse_app(json.loads(Store().read_bytes(document["uri"], 1 << 20)))
            self.apps[app.spec.app] = app
            for name, uri in app.files:
                with zipfile.ZipFile(uri.removeprefix("file://")) as archive:
                    self.archives[name] = archive.namelist()
        if verb == "tasks-result":
            return {"result": self.results[document["task"]]}
        if verb == "tasks-explain":
            return {"text": f"{document['task']} waits"}
        ended = {app: each[0] for app, each in self.rows.items() if len(each) == 1}
        running = {app: each.pop(0) for app, each in self.rows.items() if len(each) > 1}
        return {"submit_to": f"file://{self.folder}/submitted", "apps": running, "ended": ended}


@pytest.fixture
def service(tmp_path):
    return PlayedService(tmp_path)


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines").write_text("one\ntwo\n")
    return f"file://{tmp_path}/lines"


def sums(output, uri):
    """Counts two files, and adds both up."""
    dag = DagBuilder("sums", output=output, packages=["tests.fixtures"], environment={"MORE": "10"})
    dag.give("lines", uri, 8)
    dag.call("write", dag_functions.write, ["more", "1\n2\n3\n"], outputs=["more"])
    dag.call("a", dag_functions.count, {"file": "lines", "into": "n-a"}, inputs=["lines"], outputs=["n-a"])
    dag.call("b", dag_functions.count, {"file": "more", "into": "n-b"}, inputs=["more"], outputs={"n-b": 2})
    dag.call("add", dag_functions.add, {"files": ["n-a", "n-b"]}, inputs=["n-a", "n-b"], runtime_s=1)
    dag.run("list", ["ls"], after=["add"])
    return dag


def test_a_dag_runs_in_this_process(tmp_path, lines):
    here = Path.cwd()
    results = sums(f"file://{tmp_path}/out", lines).run_inline()
    assert results == {"write": None, "a": 2, "b": 3, "add": 15}
    assert (tmp_path / "out" / "b" / "n-b").read_text() == "3\n"
    assert json.loads((tmp_path / "out" / "b" / "_result.json").read_text()) == 3
    assert Path.cwd() == here


def test_a_task_that_fails_in_this_process():
    dag = DagBuilder("d")
    dag.call("bad", dag_functions.fail, ["no milk"])
    with pytest.raises(JobError, match="d/bad: ValueError: no milk"):
        dag.run_inline()


def test_a_file_that_a_task_does_not_leave(tmp_path):
    dag = DagBuilder("d", output=f"file://{tmp_path}/out")
    dag.run("bad", ["true"], outputs=["x"])
    with pytest.raises(JobError, match="d/bad: has left no file x"):
        dag.run_inline()


def test_a_dag_is_submitted_with_its_packages(tmp_path, lines, service):
    handle = sums(f"file://{tmp_path}/out", lines).submit(priority_class="preemptive", link=service)
    app = service.apps[handle.dag_id]
    assert handle.dag_id.startswith("sums-")
    assert app.dag.priority_class is PriorityClass.PREEMPTIVE
    assert [each.own_name for each in app.tasks] == ["write", "a", "b", "add", "list"]
    assert app.tasks[3].predecessors == (f"{handle.dag_id}/a", f"{handle.dag_id}/b")
    assert app.tasks[3].program.archives == ("packages.zip",)
    assert "tests/fixtures/dag_functions.py" in service.archives["packages.zip"]
    assert not list((tmp_path / "submitted").glob("*")), "the document is deleted"


def test_a_handle_waits_for_the_end(tmp_path, lines, service):
    handle = sums(f"file://{tmp_path}/out", lines).submit(link=service)
    running = {"state": "running", "tasks": {"done": 1, "running": 1}, "error": ""}
    service.rows[handle.dag_id] = [
        running,
        {**running, "state": "done", "tasks": {"done": 5}, "ended_at": 1.0},
    ]
    seen = []
    handle.wait(seen.append)
    assert seen == [{"done": 1, "running": 1}, {"done": 5}]
    assert handle.status()["state"] == "done"


def test_a_handle_reports_a_failure(tmp_path, lines, service):
    handle = sums(f"file://{tmp_path}/out", lines).submit(link=service)
    service.rows[handle.dag_id] = [{"state": "failed", "tasks": {}, "error": "a: boom", "ended_at": 1.0}]
    with pytest.raises(JobError, match="failed: a: boom"):
        handle.wait()


def test_a_handle_does_not_wait_for_ever(tmp_path, lines, service):
    handle = sums(f"file://{tmp_path}/out", lines).submit(link=service)
    service.rows[handle.dag_id] = [{"state": "running", "tasks": {}, "error": ""}] * 5
    with pytest.raises(JobError, match="has not ended after 0 s"):
        handle.wait(timeout_s=0)


def test_a_dag_that_the_service_has_forgotten(tmp_path, lines, service):
    handle = sums(f"file://{tmp_path}/out", lines).submit(link=service)
    with pytest.raises(UnavailableError, match="knows nothing of it"):
        handle.wait()


def test_results_come_from_the_output_and_from_the_service(tmp_path, lines, service):
    handle = sums(f"file://{tmp_path}/out", lines).submit(link=service)
    with pytest.raises(JobError, match="a: has not ended"):
        handle.result("a")
    (tmp_path / "out" / "a").mkdir(parents=True)
    assert handle.result("a") is None
    (tmp_path / "out" / "a" / "_result.json").write_text("2")
    assert handle.result("a") == 2
    service.results[f"{handle.dag_id}/add"] = "15"
    assert handle.result("add") == 15
    for task, message in (("list", "is a command"), ("none", "has no task")):
        with pytest.raises(ConfigError, match=message):
            handle.result(task)


def test_a_handle_asks_and_ends(tmp_path, lines, service):
    handle = sums(f"file://{tmp_path}/out", lines).submit(dag_id="mine", link=service)
    assert handle.explain("a") == "mine/a waits"
    handle.pause()
    handle.resume()
    handle.cancel()
    assert service.asked[-3:] == [
        ("tasks-pause", {"app": "mine", "is_paused": True}),
        ("tasks-pause", {"app": "mine", "is_paused": False}),
        ("tasks-cancel", {"app": "mine"}),
    ]


def test_a_service_that_refuses(tmp_path, lines, service, monkeypatch):
    async def refuse(verb, document):
        raise RejectedError("bad-application", "no")

    monkeypatch.setattr(service, "_ask", refuse)
    with pytest.raises(RejectedError):
        sums(f"file://{tmp_path}/out", lines).submit(link=service)


def inner():
    def closure():
        pass

    return closure


class Holder:
    def method(self):
        pass


def from_main():
    pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1, "is a lambda"),
        (inner(), "is a closure"),
        (Holder.method, "is a method"),
        (functools.partial(print), "is no function of a module"),
        ("print", "expected MODULE:NAME"),
        ("os:path:join", "expected MODULE:NAME"),
        (functools.wraps(dag_functions.count)(lambda: 1), "is another object"),
    ],
)
def test_functions_that_nobody_else_could_import(function, message):
    with pytest.raises(ConfigError, match=message):
        function_name(function)


def test_functions_of_the_program_itself(monkeypatch):
    monkeypatch.setattr(from_main, "__module__", "__main__")
    with pytest.raises(ConfigError, match="of the program itself, which workers do not have: move it"):
        function_name(from_main)


@pytest.mark.parametrize("arguments", [[object()], {"x": float("nan")}, [{1, 2}]])
def test_arguments_that_json_does_not_have(arguments):
    with pytest.raises(ConfigError, match="task t: arguments"):
        DagBuilder("d").call("t", dag_functions.add, arguments)


def test_keys_and_classes_are_checked():
    dag = DagBuilder("d", speed=3)
    dag.run("t", ["ls"])
    with pytest.raises(ConfigError, match="speed: unknown key"):
        dag.plan(Store())
    dag = DagBuilder("d")
    dag.run("t", ["ls"], colour=3)
    with pytest.raises(ConfigError, match="colour: unknown key"):
        dag.plan(Store())
    with pytest.raises(ConfigError, match="no class is called 'low': give one of preemptive, high, basic"):
        dag.plan(Store(), "low")
