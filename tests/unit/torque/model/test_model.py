"""The Torque model: states follow each other as the server lets them, impossible values are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from torque_sched.batch.documents import hosts_text
from torque_sched.batch.torque.parse.jobs import job_number
from torque_sched.errors import ModelError, UnitError
from torque_sched.model import units
from torque_sched.model.cluster import (
    GpuSlot,
    HostSlots,
    Job,
    JobId,
    Node,
    NodeName,
    Queue,
    QueueName,
    Resources,
    Server,
)
from torque_sched.model.decisions import Hold, NodeShare, Reserve, Start
from torque_sched.model.reasons import COMMENT_LIMIT, Reason, comment_for, log_text_for
from torque_sched.model.request import Chunk, GenericResource, Request
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, NodeState


def job(number: str = "7.server", **changes: object) -> Job:
    sequence, index = job_number(number)
    values: dict[str, object] = {"id": JobId(number), "state": JobState.QUEUED, **changes}
    return Job(queue=QueueName("batch"), sequence=sequence, array_index=index, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "abc", "[3].head", "47[.head", "4 7.head", "-1.head"])
def test_what_is_no_job_id_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="no job id"):
        job_number(text)


def test_array_members_sort_by_index_as_numbers() -> None:
    jobs = [job(name) for name in ("48.h", "47[10].h", "47[2].h", "47.h", "47[].h")]
    in_order = [j.id for j in sorted(jobs, key=lambda j: j.key)]
    assert in_order == ["47.h", "47[].h", "47[2].h", "47[10].h", "48.h"]


def test_slots_and_gpus_are_counted_by_node_first_node_first() -> None:
    a, b = NodeName("a"), NodeName("b")
    slots = (HostSlots(b, 0, 3), HostSlots(a, 1, 1), HostSlots(b, 6, 6))
    held = job(allocated_slots=slots, allocated_gpus=(GpuSlot(a, 1), GpuSlot(a, 0)))
    assert list(held.slots_by_node().items()) == [("b", 5), ("a", 1)]
    assert held.gpus_by_node() == {"a": 2}


def test_a_job_waits_since_it_could_run() -> None:
    assert job(etime_s=30.0, qtime_s=20.0, ctime_s=10.0).queued_s == 30.0
    assert job(qtime_s=20.0, ctime_s=10.0).queued_s == 20.0
    assert job().queued_s == 0.0


def test_impossible_values_are_refused() -> None:
    for make, words in (
        (lambda: Node(NodeName("n0"), slots=-1), "n0"),
        (lambda: Node(NodeName(""), slots=1), "nodes file"),
        (lambda: Chunk(count=0), "count"),
        (lambda: job(id=JobId("")), "without an id"),
        (lambda: NodeShare(NodeName("n"), 0, 0), ""),
        (lambda: NodeShare(NodeName(""), 1, 0), ""),
        (lambda: NodeShare(NodeName("n"), 1, -1), ""),
    ):
        with pytest.raises(ModelError) as refused:
            make()
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("states", "power", "is_up"),
    [
        ((), "", True),
        ((NodeState.BUSY,), "", True),
        ((NodeState.JOB_EXCLUSIVE,), "", True),
        ((NodeState.OFFLINE, NodeState.JOB_EXCLUSIVE), "", False),
        ((NodeState.OTHER,), "", False),
        ((), "Standby", False),
    ],
)
def test_a_node_is_up_when_the_server_would_start_a_job_on_it(
    states: tuple[NodeState, ...], power: str, is_up: bool
) -> None:
    assert Node(NodeName("n"), slots=1, states=frozenset(states), power_saving=power).is_up is is_up


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


def test_limits_are_numbers_in_their_own_unit_and_unreadable_ones_are_none() -> None:
    limits = Resources({"mem": "2gb", "walltime": "01:00:00", "nodect": "4", "ncpus": "many"})
    found = [limits.amount(name) for name in ("mem", "walltime", "nodect", "ncpus", "gone")]
    assert found == [2 * 1024**3, 3600.0, 4, None, None]


def test_a_snapshot_sorts_jobs_into_those_to_decide_and_those_that_hold_slots() -> None:
    listed = "9.h=Q 8[].h=Q 8[1].h=Q 3.h=R 4.h=E 5.h=S 6.h=H 7.h=C"
    states = (words.split("=") for words in listed.split())
    jobs = tuple(job(name, state=JobState(letter)) for name, letter in states)
    snapshot = Snapshot(0.0, Server(name="h"), (Queue(name=QueueName("batch")),), (), jobs)
    assert [j.id for j in snapshot.queued] == ["8[1].h", "9.h"]
    assert [j.id for j in snapshot.running] == ["3.h", "4.h"]
    assert [j.id for j in snapshot.suspended] == ["5.h"]
    assert snapshot.job_by_id[JobId("7.h")].state is JobState.COMPLETED


# PBS text to numbers.

VALUES: dict[Callable[[str], object], dict[str, object]] = {
    units.size_bytes: {
        "2gb": 2**31, "1kb": 1024, "512": 512, "7b": 7, "1KB": 1024, "3mw": 3 * 2**23, "1tb": 2**40,
    },
    units.duration_s: {
        "01:00:00": 3600, "100:00:00": 360000, "90": 90, "02:30": 150, "2:00:00:00": 172800, "1.5": 1.5,
    },
    units.boolean: {
        "True": True, "t": True, "Y": True, "1": True, "False": False, "n": False, "0": False,
    },
    units.count: {"0": 0, "-11": -11, "+3": 3, " 4 ": 4},
    partial(units.amount, "mem"): {"100": 100},
    partial(units.amount, "walltime"): {"100": 100.0},
    partial(units.amount, "scratch"): {"10gb": 10 * 2**30},
    partial(units.amount, "lease"): {"01:00": 60.0},
}  # fmt: skip
NONSENSE: dict[Callable[[str], object], list[str]] = {
    units.size_bytes: ["", "gb", "-1kb", "1.5gb", "2 gb", "2xb", "9" * 60, "١kb"],
    units.duration_s: ["", "1:", ":1", "1:2:3:4:5", "-1", "1h"],
    units.boolean: ["maybe", ""],
    units.count: ["", "-", "1.0", "٣", "1_0", "9" * 50],
}


def test_texts_of_pbs_are_numbers_in_the_resources_own_unit() -> None:
    for read, values in VALUES.items():
        assert {text: read(text) for text in values} == values


@pytest.mark.parametrize(
    ("read", "text"), [(read, text) for read, texts in NONSENSE.items() for text in texts]
)
def test_what_is_no_number_of_its_kind_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(UnitError):
        read(text)


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


def test_details_fill_the_sentence_and_cannot_break_it() -> None:
    hold = Hold(JobId("1.h"), Reason.NEVER_FITS, {"why": "no node has 9 slots\nand {braces}"})
    assert hold.comment == "Not Running: Job can never run here: no node has 9 slots and {braces}"
    assert len(comment_for(Reason.NEVER_FITS, {"why": "x" * 9999})) == COMMENT_LIMIT


def test_a_start_names_slots_and_gpus_of_every_node() -> None:
    start = Start(JobId("1.h"), (NodeShare(NodeName("n4"), 2, 1), NodeShare(NodeName("n1"), 1)))
    assert hosts_text(start.allocation) == "n4:ppn=2:gpus=1+n1:ppn=1"
    assert "estimated start" in Reserve(JobId("1.h"), 5.0, start.allocation).comment
