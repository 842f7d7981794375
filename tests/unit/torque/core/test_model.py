"""The Torque model: states follow each other as the server lets them, impossible values are refused."""

from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from torque_sched.cli import main
from torque_sched.core import units
from torque_sched.core.decisions import Hold, NodeShare, Reserve, Start
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
from torque_sched.core.reasons import (
    COMMENT_LIMIT,
    Reason,
    comment_for,
    log_text_for,
    run_failure_comment,
    started_comment,
)
from torque_sched.core.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState, NodeState
from torque_sched.errors import ConfigError, ModelError, StartupError, TorqueSchedError, UnitError


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


def test_only_completed_is_final() -> None:
    assert [state for state in JobState if state.is_final] == [JobState.COMPLETED]


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


# PBS text to numbers and back.


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("2gb", 2**31),
        ("1kb", 1024),
        ("512", 512),
        ("7b", 7),
        ("1KB", 1024),
        ("3mw", 3 * 2**23),
        ("1tb", 2**40),
    ],
)
def test_sizes_count_in_powers_of_two(text: str, n_bytes: int) -> None:
    assert units.size_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "gb", "-1kb", "1.5gb", "2 gb", "2xb", "9" * 60, "١kb"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="no PBS size"):
        units.size_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01:00:00", 3600),
        ("100:00:00", 360000),
        ("90", 90),
        ("02:30", 150),
        ("2:00:00:00", 172800),
        ("1.5", 1.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "1:", ":1", "1:2:3:4:5", "-1", "1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="no PBS duration"):
        units.duration_s(text)


def test_booleans_and_counts() -> None:
    assert [units.boolean(text) for text in ("True", "t", "Y", "1", "False", "n", "0")] == [True] * 4 + [
        False
    ] * 3
    assert [units.count(text) for text in ("0", "-11", "+3", " 4 ")] == [0, -11, 3, 4]
    for text in ("maybe", ""):
        with pytest.raises(UnitError):
            units.boolean(text)
    for text in ("", "-", "1.0", "٣", "1_0", "9" * 50):
        with pytest.raises(UnitError):
            units.count(text)


def test_amount_follows_the_resource() -> None:
    assert units.amount("mem", "100") == 100
    assert units.amount("walltime", "100") == 100.0
    assert units.amount("scratch", "10gb") == 10 * 2**30
    assert units.amount("lease", "01:00") == 60.0


# Every reason has its words; decisions turn into comments and host lists.


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words_for_owner_and_log(reason: Reason) -> None:
    assert comment_for(reason).startswith("Not Running: ")
    assert log_text_for(reason)
    assert "{" not in comment_for(reason)


@pytest.mark.parametrize(
    ("reason", "comment"),
    [
        (Reason.QUEUE_NOT_STARTED, "Not Running: Queue not started."),
        (Reason.SERVER_USER_LIMIT, "Not Running: User has reached server running job limit."),
        (Reason.QUEUE_GROUP_LIMIT, "Not Running: Group has reached queue running limit."),
        (Reason.NOT_ENOUGH_NODES, "Not Running: Not enough of the right type of nodes are available"),
        (Reason.CROSSES_DEDICATED_TIME, "Not Running: Job would cross dedicated time boundry"),
        (Reason.DRAINING, "Not Running: Draining system to allow starving job to run"),
    ],
)
def test_comments_equal_those_of_the_c_daemon(reason: Reason, comment: str) -> None:
    assert comment_for(reason) == comment


def test_log_text_of_the_most_frequent_reason_equals_the_captured_one() -> None:
    assert log_text_for(Reason.NOT_ENOUGH_NODES) == "Not enough of the right type of nodes available"


def test_details_fill_the_sentence_and_cannot_break_it() -> None:
    hold = Hold(JobId("1.h"), Reason.NEVER_FITS, {"why": "no node has 9 slots\nand {braces}"})
    assert hold.comment == "Not Running: Job can never run here: no node has 9 slots and {braces}"
    assert len(comment_for(Reason.NEVER_FITS, {"why": "x" * 9999})) == COMMENT_LIMIT


def test_comments_around_a_start() -> None:
    assert started_comment("Fri", "Nov", 20, 17, 38) == "Job started on Fri Nov 20 at 17:38"
    assert run_failure_comment("Unknown node ") == "Not Running - PBS Error: Unknown node"


def test_a_start_names_slots_and_gpus_of_every_node() -> None:
    start = Start(JobId("1.h"), (NodeShare(NodeName("n4"), 2, 1), NodeShare(NodeName("n1"), 1)))
    assert start.hosts == "n4:ppn=2:gpus=1+n1:ppn=1"
    assert "estimated start" in Reserve(JobId("1.h"), 5.0, start.allocation).comment


def test_a_share_of_nothing_is_refused() -> None:
    for node, ppn, gpus in (("n", 0, 0), ("", 1, 0), ("n", 1, -1)):
        with pytest.raises(ModelError):
            NodeShare(NodeName(node), ppn, gpus)
