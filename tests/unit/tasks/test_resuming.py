"""Which tasks of a DAG run again after a failure or a change: those whose program or inputs are others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import yaml

from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.tasks.applications import check_definition
from yarn_accel.errors import ConfigError, JobError, RejectedError
from yarn_accel.storage import Store
from yarn_accel.tasks import load_dag_file, plan_dag
from yarn_accel.tasks.submission import resume_definition, submit_definition


def task(name, *after, **more):
    command = ["sh", "step.sh", name]
    return {"id": name, "command": command, "inputs": list(after), "outputs": {f"{name}.txt": 1}, **more}


TASKS = [task("a", "raw"), task("b", "raw"), task("c", "a.txt", "b.txt"), task("d", "c.txt", outputs={})]
DAG = {"inputs": {"raw": {"uri": "raw.txt"}}, "output": "out", "files": ["step.sh"], "tasks": TASKS}


class Site:
    """A folder with a DAG's files, and a service that runs what is submitted but for some tasks."""

    def __init__(self, folder):
        self.folder = folder
        self.store = Store()
        self.running = {}
        self.n_runs = 0
        (folder / "raw.txt").write_text("1")
        (folder / "step.sh").write_text("true")

    def plan(self, document, *, is_resumed=True):
        path = self.folder / "flow.yaml"
        path.write_text(yaml.safe_dump(document))
        self.n_runs += 1
        file = load_dag_file(path)
        return plan_dag(file, PriorityClass.BASIC, self.store, f"run{self.n_runs}", is_resumed=is_resumed)

    async def ask(self, verb, document):
        return {"submit_to": f"file://{self.folder}/submitted", "apps": self.running}

    def run(self, definition, failing=()):
        """Leave the files of all tasks but those, as workers do."""
        if definition.tasks:
            check_definition(definition)
        for each in definition.tasks:
            if each.outputs and each.own_name not in failing:
                place = self.folder / "out" / each.own_name
                place.mkdir(parents=True)
                for name in each.outputs:
                    (place / name).write_text(each.own_name)

    def submit(self, document=DAG, failing=()):
        definition = self.plan(document, is_resumed=False)
        asyncio.run(submit_definition(self.ask, self.store, definition))
        self.run(definition, failing)

    def resume(self, document=DAG, failing=(), **more):
        """The names of what is submitted."""
        left = asyncio.run(resume_definition(self.ask, self.store, self.plan(document), **more))
        if not more:
            self.run(left, failing)
        return [each.own_name for each in left.tasks]


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_what_failed_and_what_waits_for_it_runs_again(site):
    site.submit(failing=("b", "c", "d"))
    assert site.resume(is_dry=True) == ["b", "c", "d"]
    assert site.resume() == ["b", "c", "d"]
    assert site.resume() == ["d"], "it leaves nothing by which it could be known"


def test_a_task_that_is_done_is_waited_for_no_more(site):
    site.submit(failing=("c",))
    left = asyncio.run(resume_definition(site.ask, site.store, site.plan(DAG)))
    (c, d) = left.tasks
    assert c.predecessors == ()
    assert dict(c.inputs)["a.txt"] == f"file://{site.folder}/out/a/a.txt"
    assert d.predecessors == (c.task,)
    assert left.spec.n_tasks == 2


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda site: None, ["d"]),
        (lambda site: (site.folder / "raw.txt").write_text("2"), ["a", "b", "c", "d"]),
        (lambda site: (site.folder / "step.sh").write_text("false"), ["a", "b", "c", "d"]),
        (lambda site: {**DAG, "environment": {"A": "1"}}, ["a", "b", "c", "d"]),
        (lambda site: {**DAG, "tasks": [*TASKS[:2], task("c", "a.txt", "b.txt", command=["x"])]}, ["c"]),
        (lambda site: {**DAG, "tasks": [*TASKS, task("e", "b.txt")]}, ["d", "e"]),
        (
            lambda site: {**DAG, "tasks": [task("a", "raw", command=["sh", "step.sh", "A"]), *TASKS[1:]]},
            [*"acd"],
        ),
        (lambda site: {**DAG, "tasks": [*TASKS[:2]]}, []),
        (lambda site: {**DAG, "tasks": [task("a", "raw", runtime_s=3, after=["b"]), *TASKS[1:]]}, [*"acd"]),
        (lambda site: {**DAG, "tasks": [task("a", "raw", runtime_s=3), *TASKS[1:]]}, ["d"]),
    ],
)
def test_what_changed_and_what_waits_for_it_runs_again(site, monkeypatch, change, again):
    monkeypatch.setattr("yarn_accel.tasks.dag_planning.check_program", lambda *_: None)
    site.submit()
    changed = change(site)
    assert sorted(site.resume(changed if isinstance(changed, dict) else DAG)) == again
    assert not (site.folder / "out" / "_SUCCESS").exists()


def test_of_a_large_input_length_and_time_count(site):
    raw = site.folder / "raw.txt"
    raw.write_bytes(bytes((1 << 20) + 1))
    site.submit()
    raw.write_bytes(bytes((1 << 20) + 2))
    assert site.resume() == ["a", "b", "c", "d"]


def test_files_of_a_task_that_runs_again_are_deleted_first(site):
    site.submit()
    (site.folder / "raw.txt").write_text("2")
    left = asyncio.run(resume_definition(site.ask, site.store, site.plan(DAG)))
    assert len(left.tasks) == 4
    assert [each.name for each in (site.folder / "out").iterdir()] == ["_workflow.json"]


def test_a_submission_that_fails_leaves_no_files_beside_the_keys_of_another_program(site, monkeypatch):
    site.submit()
    changed = {**DAG, "environment": {"A": "1"}}

    async def refuse(verb, document):
        if verb == "tasks-submit":
            raise RejectedError("full", "no place")
        return await Site.ask(site, verb, document)

    monkeypatch.setattr(site, "ask", refuse)
    with pytest.raises(RejectedError):
        site.resume(changed)
    monkeypatch.undo()
    assert site.resume(changed, is_dry=True) == [*"abcd"]
    assert site.resume() == [*"abcd"]


def test_the_first_run_may_be_resumed_too(site):
    assert site.resume() == ["a", "b", "c", "d"]


def test_a_run_that_is_not_over_is_not_resumed(site):
    site.submit()
    site.running = {"run1": {}}
    with pytest.raises(JobError, match="run1, its last run, is not over"):
        site.resume()


@pytest.mark.parametrize(
    "content", [None, "{}", '{"version": 2}', '{"version": 1, "run": "x", "keys": {"a": 1}}']
)
def test_another_folder_is_left_alone(site, content):
    (site.folder / "out" / "a").mkdir(parents=True)
    if content is not None:
        (site.folder / "out" / "_workflow.json").write_text(content)
    with pytest.raises(ConfigError, match=r"output: .*out"):
        site.resume()
    assert (site.folder / "out" / "a").is_dir()


def test_without_a_folder_there_is_nothing_to_go_on_from(site):
    definition = replace(site.plan(DAG), output="")
    with pytest.raises(ConfigError, match="--resume: the DAG has no `output`"):
        asyncio.run(resume_definition(site.ask, site.store, definition))
