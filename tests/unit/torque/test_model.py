"""The Torque model: states follow each other as the server lets them, impossible values are refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from torque_sched.cli import main
from torque_sched.core.model import Job, JobId, JobState, Node, NodeName, QueueName
from torque_sched.errors import ConfigError, ModelError, StartupError, TorqueSchedError


def job(**changes: object) -> Job:
    values: dict[str, object] = {
        "id": JobId("7.server"),
        "owner": "alice",
        "queue": QueueName("batch"),
        "state": JobState.QUEUED,
        "queued_s": 0.0,
    }
    return Job(**{**values, **changes})  # type: ignore[arg-type]


def test_only_completed_is_final_and_it_has_no_successor() -> None:
    final = [state for state in JobState if state.is_final]
    assert final == [JobState.COMPLETED]
    assert all(bool(state.may_become) != state.is_final for state in JobState)


def test_every_state_can_reach_the_end() -> None:
    reaching = {JobState.COMPLETED}
    for _ in JobState:
        reaching |= {state for state in JobState if state.may_become & reaching}
    assert reaching == set(JobState)


def test_letters_are_those_of_qstat() -> None:
    assert {state.value for state in JobState} == set("TQHWRSEC")


def test_procs_counts_all_nodes() -> None:
    assert job(n_nodes=3, ppn=4).procs == 12


@pytest.mark.parametrize("changes", [{"n_nodes": 0}, {"ppn": 0}, {"gpus": -1}, {"walltime_s": -1.0}])
def test_impossible_jobs_are_refused_by_name(changes: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"7\.server"):
        job(**changes)


def test_impossible_nodes_are_refused() -> None:
    with pytest.raises(ModelError, match="n0"):
        Node(NodeName("n0"), np=-1)
    with pytest.raises(ModelError, match="nodes file"):
        Node(NodeName(""), np=1)


def test_errors_carry_exit_codes_and_cures() -> None:
    assert (TorqueSchedError.exit_code, ConfigError.exit_code, StartupError.exit_code) == (1, 2, 3)
    assert str(StartupError("no qstat", cure="install torque-client")) == "no qstat: install torque-client"


def test_the_command_says_what_this_release_lacks() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    assert "no `serve` yet" in result.output
