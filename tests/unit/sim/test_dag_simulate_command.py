"""`yarn-accel dag simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.fixtures.dag_worlds import check_outcome, paper_world
from yarn_accel.core.dags.policies.registry import DAG_POLICIES, make_dag_policy
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.sim.cli import dag_simulate, world_of_files
from yarn_accel.sim.dag_checkpoints import run_with_checkpoints
from yarn_accel.sim.dag_simulator import simulate_dags

WORKFLOWS = Path(__file__).parents[2] / "workflows"
REPORT_FILES = {"outcome.json", "index.html", "gantt.png", "slowdowns.png"}


@pytest.fixture
def machines(tmp_path) -> str:
    path = tmp_path / "m.yaml"
    entries = [{"name": f"m{n}", "speed": 1 + n / 2} for n in range(3)]
    path.write_text(yaml.safe_dump({"bandwidth_bytes_per_s": 1e6, "machines": entries}))
    return str(path)


def test_it_prints_a_table_and_writes_all(tmp_path, machines) -> None:
    montage = str(WORKFLOWS / "Montage_25.xml")
    files = [montage, f"{montage}@5:preemptive", f"{WORKFLOWS / 'srasearch-chameleon-10a-001.json'}@2:high"]
    out, folder = tmp_path / "out.json", tmp_path / "report"
    options = ["--machines", machines, "--json", str(out), "--report", str(folder)]
    result = CliRunner().invoke(dag_simulate, [*files, *options])
    assert result.exit_code == 0, result.output
    assert "policy mps" in result.stdout
    outcome = json.loads(out.read_text())
    assert list(outcome) == [
        "makespan",
        "unfairness",
        "relative_deviation",
        "utilisation",
        "moved",
        "dags",
        "tasks",
    ]
    assert list(outcome["dags"]) == ["Montage_25", "Montage_25-2", "srasearch-chameleon-10a-001"]
    assert set(outcome["dags"]["Montage_25-2"]) == {"arrival", "end", "makespan", "own_makespan", "sd"}
    assert outcome["dags"]["Montage_25-2"]["arrival"] == 5
    assert len(outcome["tasks"]) == 72
    assert set(outcome["tasks"][0]) == {"dag", "task", "machine", "start", "end", "reason"}
    assert {path.name for path in folder.iterdir()} == REPORT_FILES
    assert (folder / "gantt.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((folder / "outcome.json").read_text())
    assert {key: report[key] for key in outcome} == outcome
    assert list(report["slowdowns"]) == list(outcome["dags"])


@pytest.mark.parametrize("policy", sorted(DAG_POLICIES))
def test_real_workflows_under_every_policy(machines, policy) -> None:
    words = ("preemptive", "high", "basic")
    files = [f"{path}@{3 * n}:{words[n % 3]}" for n, path in enumerate(sorted(WORKFLOWS.glob("*[0-9].*")))]
    world = world_of_files(files, Path(machines))
    check_outcome(world, simulate_dags(world, make_dag_policy(policy, world.bandwidth_bytes_per_s)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "--policy: no policy is called 'best'; known: mps, "),
        (["none.xml"], "none.xml: No such file"),
        (["--machines", "none.yaml"], "none.yaml: No such file"),
    ],
)
def test_what_is_wrong_is_one_error(machines, arguments, message) -> None:
    given = [str(WORKFLOWS / "HEFT_paper.xml"), "--machines", machines, *arguments]
    result = CliRunner().invoke(dag_simulate, given)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_a_task_without_a_time_on_a_machine_is_one_error(tmp_path, machines) -> None:
    path = tmp_path / "dag.yaml"
    path.write_text("tasks: [{id: a, times_s: {m0: 1, m1: 2}}]")
    with pytest.raises(ConfigError, match="task a: has no time for machine m2"):
        world_of_files([str(path)], Path(machines))


def test_machines_that_all_leave_are_one_error(tmp_path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("bandwidth_bytes_per_s: 1\nmachines: [{name: a, leaves_s: 3}]")
    world = world_of_files([str(WORKFLOWS / "HEFT_paper.xml")], path)
    with pytest.raises(AccelError, match="10 tasks are left, and no machine will ever run them"):
        simulate_dags(world, make_dag_policy("mps", 1.0))


def test_a_run_goes_on_from_its_checkpoints(tmp_path) -> None:
    world, file = paper_world(), tmp_path / "run.checkpoint"
    whole = simulate_dags(world, make_dag_policy("mps", 1.0))

    class StoppedError(Exception):
        pass

    def stop(n_ended: int) -> None:
        raise StoppedError

    # Each attempt writes a checkpoint per step; the first is stopped while it writes the last line.
    with pytest.raises(StoppedError):
        run_with_checkpoints(world, make_dag_policy("mps", 1.0), file, stop, every_s=0.0)
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) > 10
    file.write_text("".join(lines[:8]) + lines[8][:40])
    outcome = run_with_checkpoints(world, make_dag_policy("mps", 1.0), file, every_s=0.0)
    assert [(t.task, t.node, t.start_s) for t in outcome.tasks] == [
        (t.task, t.node, t.start_s) for t in whole.tasks
    ]
    assert outcome.slowdowns == whole.slowdowns
    assert not file.exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path) -> None:
    file = tmp_path / "run.checkpoint"
    file.write_text('{"simulation": "another"}\n')
    with pytest.raises(ConfigError, match="is of another simulation"):
        run_with_checkpoints(paper_world(), make_dag_policy("mps", 1.0), file)
