"""A DAG.yaml becomes what a service takes; what is wrong with it is one error with place and cure."""

from __future__ import annotations

import zipfile

import pytest
import yaml

from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.tasks.service.submission import app_document, check_orders, parse_app
from yarn_accel.dags.own_file import read_own_file
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.tasks import load_dag_file, plan_dag


def document(**more):
    """A DAG of two tasks with a file between them."""
    return {
        "inputs": {"raw": {"uri": "raw.txt", "bytes": 6}},
        "output": "out",
        "files": ["filter.sh"],
        "tasks": [
            {
                "id": "a",
                "command": ["./filter.sh", "raw"],
                "inputs": ["raw"],
                "outputs": {"x": 10},
                "runtime_s": 2,
            },
            {
                "id": "b",
                "function": "tests.fixtures.dag_functions:count",
                "arguments": {"file": "x"},
                "inputs": ["x"],
                "outputs": {"y": 1},
                "after": {"a": 5},
                "time_limit_s": 9,
                "environment": {"B": "2"},
            },
        ],
        **more,
    }


@pytest.fixture
def plan(tmp_path):
    """Plans a document in a folder that has its files."""
    (tmp_path / "raw.txt").write_bytes(b"1\n2\n3\n")
    (tmp_path / "filter.sh").write_bytes(b"#!/bin/sh\ncat $1 > x\n")
    (tmp_path / "filter.sh").chmod(0o755)

    def plan(values):
        path = tmp_path / "flow.yaml"
        path.write_text(yaml.safe_dump(values))
        return plan_dag(load_dag_file(path), PriorityClass.HIGH, Store(), "flow-1")

    return plan


def with_task(number, **more):
    """The document with one task changed; None takes a key away."""
    values = document()
    task = {**values["tasks"][number], **more}
    values["tasks"][number] = {key: value for key, value in task.items() if value is not None}
    return values


def test_all_of_a_dag_reaches_the_service(plan, tmp_path):
    definition = plan(document(may_interrupt=True, max_attempts=2, environment={"A": "1"}, memory_mib=64))
    first, second = definition.tasks
    assert first.inputs == (("raw", f"file://{tmp_path}/raw.txt"),)
    assert first.program.command == ("./filter.sh", "raw")
    assert first.runtime_s == 2
    assert second.predecessors == ("flow-1/a",)
    assert second.predecessor_bytes == (15.0,)
    assert second.inputs == (("x", f"file://{tmp_path}/out/a/x"),)
    assert second.outputs == ("y",)
    assert second.program.arguments == '{"file":"x"}'
    assert second.kind == second.program.function == "tests.fixtures.dag_functions:count"
    assert (second.time_limit_s, second.environment) == (9, (("B", "2"),))
    assert definition.files == (("filter.sh", f"file://{tmp_path}/filter.sh"),)
    assert definition.spec.name == "flow"
    assert definition.dag.priority_class is PriorityClass.HIGH
    assert definition.dag.may_interrupt
    assert (definition.max_attempts, definition.environment) == (2, (("A", "1"),))
    assert parse_app(app_document(definition)) == definition
    check_orders(definition)


def test_simulations_leave_out_what_only_a_service_needs(tmp_path):
    values = document()
    values["tasks"][1]["runtime_s"] = 1
    path = tmp_path / "flow.yaml"
    path.write_text(yaml.safe_dump(values))
    dag = read_own_file(path)
    assert [(edge.parent, edge.child, edge.n_bytes) for edge in dag.edges] == [("a", "b", 15.0)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (with_task(0, command=None), "task a: has neither a command nor a function"),
        (with_task(1, command=["wc"]), "give either a command or a function"),
        (with_task(0, arguments=[1]), "arguments belong to a function"),
        (with_task(0, command=["./other"]), "./other is not among `files`: add it"),
        (with_task(0, command=["no-such-program"]), "there is no program no-such-program on this machine"),
        (with_task(1, function="no_such_module:f"), "there is no module 'no_such_module'"),
        (with_task(1, function="tests"), "expected MODULE:NAME"),
        (with_task(0, after=["b"]), "its tasks wait for each other"),
        (with_task(0, after=["c"]), "task a: names c, which is no task of this DAG"),
        (with_task(1, id="a"), "task a is given twice"),
        (with_task(1, inputs=["z"]), "task b: reads z, which nobody makes"),
        (with_task(1, outputs={"x": 1}), "task b: another task also makes x"),
        (with_task(0, outputs={"/x": 1}, inputs=["raw"]), "'/x' is absolute or has `..`"),
        (with_task(0, outputs={"../x": 1}), "'../x' is absolute or has `..`"),
        (with_task(1, id="../b"), "'../b' is no name of a file"),
        (document(inputs={"raw": 6}), "task a: reads raw, of which nothing says where it lies: give it in"),
        (document(inputs={"raw": {"uri": "gone"}}), "gone: there is no such file or folder"),
        (document(inputs={"raw": {"uri": "../raw.txt"}}), "inputs.raw.uri"),
        (document(output=""), "task a: makes x, and there is no folder for it: give `output`"),
        (document(files=[]), "./filter.sh is not among `files`"),
        (document(files=["filter.sh", "gone"]), "gone: there is no such file"),
        (document(files=["filter.sh", "a/b#filter.sh"]), "two files are called filter.sh"),
        (document(files=["filter.sh#../x"]), "'../x' is no name of a file"),
        (document(archives=["raw.txt"]), "no zip file"),
        (document(environment={"1": ""}), "environment: '1' is no name of a variable"),
        (document(speed=1), "speed: unknown key; known: archives"),
    ],
)
def test_mistakes(plan, values, message):
    with pytest.raises(ConfigError) as caught:
        plan(values)
    assert message in str(caught.value)


def test_an_output_folder_that_is_there(plan, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        plan(document())


def test_modules_are_looked_for_in_archives(plan, tmp_path):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("mine/steps.py", "def count(file): pass\n")
    definition = plan({**with_task(1, function="mine.steps:count"), "archives": ["mine.zip"]})
    assert definition.tasks[1].program.archives == ("mine.zip",)
    assert definition.tasks[0].program.archives == ()
    assert dict(definition.files)["mine.zip"] == f"file://{tmp_path}/mine.zip"


def test_forms_without_commands_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"only a DAG\.yaml can run"):
        load_dag_file(tmp_path / "flow.json")


def test_an_environment_is_the_dags_or_a_tasks_own(plan):
    """Only the service knows its environments, and only the nodes what is in them."""
    values = document(python_environment="science")
    values["tasks"][0] |= {"command": ["no-such-program", "raw"], "python_environment": "plain"}
    values["tasks"][1]["function"] = "no_such_module:count"
    first, second = plan(values).tasks
    assert (first.python_environment, second.python_environment) == ("plain", "science")
