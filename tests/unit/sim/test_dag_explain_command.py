"""`yarn-accel dag explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fixtures.dag_worlds import paper_world
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.errors import ConfigError
from yarn_accel.sim.dag_explain import dag_explain
from yarn_accel.sim.dag_inputs import InputArrival, inputs_of, with_inputs
from yarn_accel.sim.dag_simulator import simulate_dags


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's Figure 3(b)."""
    path = tmp_path_factory.mktemp("explain") / "out.json"
    path.write_text(json.dumps(simulate_dags(paper_world(), make_dag_policy("mps", 1.0)).as_json()))
    return path


def explain(path: Path, name: str) -> list[str]:
    result = CliRunner().invoke(dag_explain, [str(path), name], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines: list[str] = result.output.splitlines()
    return lines


def test_a_task_that_waited_for_a_machine(out) -> None:
    assert explain(out, "B/B3") == [
        "B/B3: on M1 from 13 to 31 s",
        "why there: rank 31; class basic; SD -1.154; finish by machine: M1 31, M2 38, M3 44; "
        "taken back from M3",
        "input: from B1 on M1, which ended at 4 s; here at 4 s",
        "waited: 9 s, from 4 s on; M1 ran B/B2 (4 to 13 s)",
    ]


def test_a_task_that_waited_for_its_inputs(out) -> None:
    lines = explain(out, "A/A10")
    assert lines[2] == "input: from A8 on M1, which ended at 75 s; here at 86 s"
    assert lines[-1] == "waited: for no machine: it started when all it needs was there"


def test_a_task_without_parents(out) -> None:
    assert explain(out, "B/B1")[2] == "inputs: from no other task; its DAG arrived at 0 s"


def test_the_parts_of_a_dags_longest_path_are_its_makespan(out) -> None:
    lines = explain(out, "A")
    assert lines[:3] == [
        "A: arrived at 0 s, ended at 93 s",
        "makespan 93 s, alone 80 s, SD 0.860",
        "its longest path as it ran: 4 tasks, 37 s of running, 16 s of waiting for machines, "
        "40 s of transfers",
    ]
    assert [line.split(":")[0].strip() for line in lines[3:]] == ["A1", "A6", "A8", "A10"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("B3", "no DAG or task is called 'B3': the nearest: B/B3"),
        ("A/B3", "DAG A has no task 'B3': the nearest: B/B3"),
        ("B/B33", "DAG B has no task 'B33': the nearest: B/B3, "),
        ("C", "no DAG or task is called 'C': the nearest: "),
    ],
)
def test_an_unknown_name_is_one_error_with_the_nearest(out, name, message) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(out, name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: []", "is no JSON of a simulation of DAGs: Expecting value"),
        ('{"tasks": []}', "is no JSON of a simulation of DAGs: dags is missing"),
        (
            '{"dags": {}, "tasks": [{"dag": "A"}]}',
            "DAGs: tasks[0].dag is 'A', which is not among its dags",
        ),
    ],
)
def test_another_file_is_one_error(tmp_path, text, message) -> None:
    path = tmp_path / "out.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        explain(path, "A")
    assert message in str(caught.value)
    assert str(caught.value).endswith("name what `yarn-accel dag simulate --json` wrote")


def test_a_file_that_is_not_there_is_one_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        explain(tmp_path / "none.json", "A")


def test_tasks_of_a_dag_that_is_missing_are_one_error(out, tmp_path) -> None:
    document = json.loads(out.read_text())
    del document["dags"]["B"]
    path = tmp_path / "out.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="dag is 'B', which is not among its dags"):
        explain(path, "A")


def test_inputs_are_read_as_they_were_written() -> None:
    many = [InputArrival(f"t {n}", f"m.{n}", n / 7 + 1e-7) for n in range(9)]
    ours, inputs = inputs_of(with_inputs("rank 1", many))
    assert ours == "rank 1"
    assert inputs == many[:2:-1]
    assert inputs_of(with_inputs("rank 1", many[:1])) == ("rank 1", many[:1])
    assert inputs_of(with_inputs("rank 1", [])) == ("rank 1", [])


@pytest.mark.parametrize("reason", ["", "because", "a; inputs: b", "a; inputs: b from c at e", "; inputs: "])
def test_reasons_of_others_have_no_inputs(reason) -> None:
    assert inputs_of(reason)[1] == []
