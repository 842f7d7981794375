"""The Torque model: states follow each other as the server lets them, impossible values are refused."""

from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from torque_sched.cli import main
from torque_sched.core.model import (
    GpuSlot,
    HostSlots,
    Job,
    JobId,
    JobSlots,
    Node,
    NodeName,
    Queue,
    QueueName,
    Resources,
    Server,
    job_number,
)
from torque_sched.core.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState, NodeState
from torque_sched.errors import ConfigError, ModelError, StartupError, TorqueSchedError


def job(number: str = "7.server", **changes: object) -> Job:
    sequence, index = job_number(number)
    values: dict[str, object] = {
        "id": JobId(number),
        "queue": QueueName("batch"),
        "state": JobState.QUEUED,
        "sequence": sequence,
        "array_index": index,
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


@pytest.mark.parametrize("text", ["", "abc", "[3].head", "47[.head", "4 7.head", "-1.head"])
def test_what_is_no_job_id_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="no job id"):
        job_number(text)


def test_array_members_sort_by_index_as_numbers() -> None:
    jobs = [job(name) for name in ("48.h", "47[10].h", "47[2].h", "47.h", "47[].h")]
    in_order = [j.id for j in sorted(jobs, key=lambda j: j.key)]
    assert in_order == [
        "47.h",
        "47[].h",
        "47[2].h",
        "47[10].h",
        "48.h",
    ]


def test_slots_and_gpus_are_counted_by_node_first_node_first() -> None:
    held = job(
        exec_host=(
            HostSlots(NodeName("b"), 0, 3),
            HostSlots(NodeName("a"), 1, 1),
            HostSlots(NodeName("b"), 6, 6),
        ),
        exec_gpus=(GpuSlot(NodeName("a"), 1), GpuSlot(NodeName("a"), 0)),
    )
    assert list(held.slots_by_node().items()) == [("b", 5), ("a", 1)]
    assert held.gpus_by_node() == {"a": 2}


def test_a_job_waits_since_it_could_run() -> None:
    assert job(etime_s=30.0, qtime_s=20.0, ctime_s=10.0).queued_s == 30.0
    assert job(qtime_s=20.0, ctime_s=10.0).queued_s == 20.0
    assert job().queued_s == 0.0


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ModelError, match="n0"):
        Node(NodeName("n0"), np=-1)
    with pytest.raises(ModelError, match="nodes file"):
        Node(NodeName(""), np=1)
    with pytest.raises(ModelError, match="count"):
        Chunk(count=0)
    with pytest.raises(ModelError, match="without an id"):
        job(id=JobId(""))


@pytest.mark.parametrize(
    ("states", "power", "is_up"),
    [
        ((), "", True),
        ((NodeState.BUSY,), "Running", True),
        ((NodeState.JOB_EXCLUSIVE,), "Running", True),
        ((NodeState.OFFLINE, NodeState.JOB_EXCLUSIVE), "Running", False),
        ((NodeState.OTHER,), "Running", False),
        ((), "Standby", False),
    ],
)
def test_a_node_is_up_when_the_server_would_start_a_job_on_it(
    states: tuple[NodeState, ...], power: str, is_up: bool
) -> None:
    assert Node(NodeName("n"), np=1, states=frozenset(states), power_state=power).is_up is is_up


def test_free_slots_never_go_below_zero() -> None:
    node = Node(NodeName("n"), np=2, jobs=(JobSlots(JobId("1.h"), 0, 3),))
    assert (node.slots_used, node.slots_free, node.mem_bytes) == (4, 0, 0)


@pytest.mark.parametrize(
    ("request_", "pieces", "procs", "gpus"),
    [
        (Request(), 1, 1, 0),
        (Request(chunks=(Chunk(2, 4, 1), Chunk(name="big"))), 3, 9, 2),
        (Request(procs=5), 0, 5, 0),
        (Request(tasks=(Chunk(3, 2),)), 3, 6, 0),
        (Request(gres=(GenericResource("gpus", 2), GenericResource("matlab", 4))), 1, 1, 2),
    ],
)
def test_totals_of_a_request(request_: Request, pieces: int, procs: int, gpus: int) -> None:
    assert (request_.n_pieces, request_.n_procs, request_.n_gpus) == (pieces, procs, gpus)


def test_who_wants_empty_nodes() -> None:
    assert Request(node_exclusive=True).wants_empty_nodes
    assert Request(access=AccessPolicy.SINGLE_JOB).wants_empty_nodes
    assert not Request(access=AccessPolicy.SINGLE_USER).wants_empty_nodes


def test_limits_are_numbers_in_their_own_unit_and_unreadable_ones_are_none() -> None:
    limits = Resources({"mem": "2gb", "walltime": "01:00:00", "nodect": "4", "ncpus": "many"})
    assert [limits.amount(name) for name in ("mem", "walltime", "nodect", "ncpus", "gone")] == [
        2 * 1024**3,
        3600.0,
        4,
        None,
        None,
    ]


def test_a_snapshot_sorts_jobs_into_those_to_decide_and_those_that_hold_slots() -> None:
    states = {
        "9.h": "Q",
        "8[].h": "Q",
        "8[1].h": "Q",
        "3.h": "R",
        "4.h": "E",
        "5.h": "S",
        "6.h": "H",
        "7.h": "C",
    }
    jobs = tuple(job(name, state=JobState(letter)) for name, letter in states.items())
    snapshot = Snapshot(0.0, Server(name="h"), (Queue(name=QueueName("batch")),), (), jobs)
    assert [j.id for j in snapshot.queued] == ["8[1].h", "9.h"]
    assert [j.id for j in snapshot.running] == ["3.h", "4.h"]
    assert [j.id for j in snapshot.suspended] == ["5.h"]
    assert snapshot.job_by_id[JobId("7.h")].state is JobState.COMPLETED
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.now_s = 1.0  # type: ignore[misc]


def test_errors_carry_exit_codes_and_cures() -> None:
    assert (TorqueSchedError.exit_code, ConfigError.exit_code, StartupError.exit_code) == (1, 2, 3)
    assert str(StartupError("no qstat", cure="install torque-client")) == "no qstat: install torque-client"


def test_the_command_says_where_to_begin() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    assert "Begin with `doctor`" in result.output
