"""An application is taken as it was made, and what is wrong in it is one error with the place."""

import json
from dataclasses import replace

import pytest

from yarn_accel.core.dags.model import DagTerms, PriorityClass
from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition, check_definition
from yarn_accel.core.tasks.attempt_orders import FunctionCall, TaskFolder, attempt_id
from yarn_accel.core.tasks.service.definition_values import task_row
from yarn_accel.core.tasks.service.orders import attempt_order
from yarn_accel.core.tasks.service.runnable import check_runnable
from yarn_accel.core.tasks.service.settings import ServiceSettings
from yarn_accel.core.tasks.service.submission import app_document, check_orders, parse_app
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, TaskId
from yarn_accel.errors import ConfigError

FOLDER = "hdfs://nn/out/d"
CALL = FormProgram(function="pkg.mod:work", arguments='{"n": 1}', archives=("code.zip",))


def task(name, *predecessors, **more):
    return TaskDefinition(TaskId(f"d/{name}"), tuple(TaskId(f"d/{each}") for each in predecessors), **more)


def dag(*tasks, **more):
    spec = AppSpec(AppId("d"), "d", 0, len(tasks), {Form.CPU: FormDemand()})
    values = {
        "programs": {Form.CPU: FormProgram()},
        "output": FOLDER,
        "files": (("code.zip", "hdfs://nn/code.zip"),),
        "environment": (("A", "1"), ("B", "2")),
        "dag": DagTerms(PriorityClass.HIGH, may_interrupt=True),
        **more,
    }
    return AppDefinition(spec, tasks=tasks, **values)


def example():
    first = task("a", program=FormProgram(("make",)), outputs=("x", "y"), kind="make", runtime_s=2.5)
    second = task(
        "b",
        "a",
        program=CALL,
        inputs=(("in", f"{FOLDER}/a/x"), ("outside", "hdfs://nn/other/file")),
        predecessor_bytes=(1e6,),
        environment=(("B", "3"),),
        time_limit_s=7.0,
        python_environment="science",
    )
    return dag(first, second)


def test_what_is_taken_is_what_was_made():
    document = json.loads(json.dumps(app_document(example())))
    assert parse_app(document) == example()
    check_orders(parse_app(document))


def test_a_plain_task_is_four_values():
    assert task_row(task("a", output="o"), 2) == ["a", [], None, "o"]


def test_an_order_has_what_the_task_has():
    app = example()
    first, second = (
        attempt_order(app, each, Form.CPU, attempt_id(1, 1, number, 0), {"science": "/opt/s/bin/python"})
        for number, each in enumerate(app.tasks)
    )
    assert (first.argv, first.output_folder) == (("make",), TaskFolder(FOLDER, "a", ("x", "y")))
    assert second.function == FunctionCall("pkg.mod:work", '{"n": 1}', ("code.zip",))
    assert second.inputs[0] == ("in", f"{FOLDER}/a/x")
    assert dict(second.environment) == {"A": "1", "B": "3"}
    assert (first.time_limit_s, second.time_limit_s) == (0.0, 7.0)
    assert (first.python, second.python) == ("", "/opt/s/bin/python")


def test_what_a_service_does_not_have_is_one_error():
    settings = ServiceSettings(takes_dags=True, policy="mps", max_dag_tasks=2)
    with pytest.raises(ConfigError, match=r"d/b: python_environment science: .*known: none") as refused:
        check_runnable(example(), settings, 0)
    assert "tasks.environments" in str(refused.value.cure)
    check_runnable(example(), replace(settings, environments={"science": "/opt/s/bin/python"}), 0)
    with pytest.raises(ConfigError, match=r"it has 3 tasks, and .* has at most 2") as refused:
        check_runnable(dag(task("a"), task("b"), task("c")), settings, 0)
    assert "max_dag_tasks" in str(refused.value.cure)


RUN = FormProgram(("run",))


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (dag(task("a")), "expected a command, an operation or a function"),
        (dag(task("a", program=replace(RUN, function="m:f"))), "one of them"),
        (dag(task("a", program=replace(RUN, arguments="[]"))), "are a function's"),
        (dag(task("a", program=replace(CALL, function="m.f"))), "expected MODULE:NAME"),
        (dag(task("a", program=replace(CALL, function="os; x:f"))), "expected MODULE:NAME"),
        (dag(task("a", program=replace(CALL, arguments="[1"))), "no JSON object"),
        (dag(task("a", program=replace(CALL, arguments="1"))), "no JSON object"),
        (dag(task("a", program=replace(CALL, arguments='["' + "x" * 40_000 + '"]'))), "32768 are taken"),
        (dag(task("a", program=replace(CALL, archives=("other.zip",)))), "none of the files"),
        (dag(task("a", program=CALL, output="o")), "no standard input or output"),
        (dag(task("a", program=RUN, output="o", outputs=("x",))), "has output and outputs"),
        (dag(task("a", program=RUN, outputs=("x/y",))), "no name of a file"),
        (dag(task("a", program=RUN, outputs=("tmp",))), "two files in its working folder are called tmp"),
        (dag(task("a", program=RUN, inputs=(("code.zip", "u"),))), "called code.zip"),
        (dag(task("a:b", program=RUN, outputs=("x",))), "no name of a file in the output folder"),
        (dag(task("a", program=RUN, outputs=("x",)), output=""), "no name of a file in the output folder"),
        (dag(task("a", program=RUN, outputs=("o",)), task("b", program=RUN, output="a")), "also writes a"),
        (dag(task("a", program=RUN, inputs=(("i", f"{FOLDER}/z/x"),))), "which no predecessor of it makes"),
        (
            dag(
                task("a", program=RUN, outputs=("x",)),
                task("b", program=RUN, inputs=(("i", f"{FOLDER}/a/x"),)),
            ),
            "which no predecessor of it makes",
        ),
        (
            dag(
                task("a", program=RUN, outputs=("x",)),
                task("b", "a", program=RUN, inputs=(("i", f"{FOLDER}/a/z"),)),
            ),
            "which no predecessor of it makes",
        ),
        (dag(task("a", program=RUN, runtime_s=-1.0)), "seconds and bytes from 0"),
        (dag(task("a", program=RUN, time_limit_s=float("inf"))), "seconds and bytes from 0"),
        (
            dag(task("a", program=RUN), task("b", "a", program=RUN, predecessor_bytes=(1.0, 2.0))),
            "bytes of each",
        ),
        (dag(task("a", program=RUN, kind="two words")), "kind 'two words'"),
        (dag(task("a", program=FormProgram(operation="lu"))), "is no operation"),
    ],
)
def test_one_error_names_the_place(app, words):
    with pytest.raises(ConfigError, match="d") as raised:
        check_definition(app)
    assert words in str(raised.value)


def test_what_an_earlier_run_left_is_read_by_a_submission_that_resumes():
    app = dag(task("a", program=RUN, inputs=(("i", f"{FOLDER}/z/x"),)), is_resumed=True)
    document = json.loads(json.dumps(app_document(app)))
    assert parse_app(document) == app
    document["definition"]["is_resumed"] = 1
    with pytest.raises(ConfigError, match="is_resumed"):
        parse_app(document)
    del document["definition"]["is_resumed"]
    with pytest.raises(ConfigError, match="which no predecessor of it makes"):
        parse_app(document)


def test_a_dag_takes_one_core_of_the_form_cpu():
    app = dag(task("a", program=RUN))
    wide = replace(app, spec=replace(app.spec, demands={Form.CPU: FormDemand(cores=2)}))
    with pytest.raises(ConfigError, match="one core"):
        check_definition(wide)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"program": [["x"], "", {}]}, "not a list of 6"),
        ({"inputs": [["a"]]}, "not a list of 2"),
        ({"inputs": [["a", "u"]] * 600}, "at most 512"),
        ({"outputs": "x"}, "is no list"),
        ({"runtime_s": True}, "is True"),
        ({"predecessor_bytes": [1, "2"]}, "no number"),
        ({"kind": "x" * 300}, "at most 200"),
        ({"time_limit_s": -1}, "is -1"),
        ({"colour": 1}, "is unknown; known: program, inputs"),
        ([], "is no object"),
    ],
)
def test_a_row_that_somebody_forged_is_refused(more, words):
    document = app_document(dag(task("a", program=RUN)))
    document["tasks"][0][4] = more
    with pytest.raises(ConfigError) as raised:
        parse_app(document)
    assert words in str(raised.value)


@pytest.mark.parametrize("terms", [["urgent", False, False], ["high", 1, False], ["high"], "high"])
def test_terms_that_somebody_forged_are_refused(terms):
    document = app_document(dag(task("a", program=RUN)))
    document["definition"]["dag"] = terms
    with pytest.raises(ConfigError, match="dag"):
        parse_app(document)
