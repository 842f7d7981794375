"""OpenPBS by its commands: what a real server printed is read, decided upon, and ordered chunk by chunk."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.openpbs_outputs import (
    GOLDEN,
    NOW_S,
    Server,
    as_text,
    golden,
    job,
    outputs_of,
    snapshot_outputs,
    text_of,
    vnode,
)
from torque_sched.batch.accounting import job_of_record
from torque_sched.batch.connect import ServerSettings, snapshot_in
from torque_sched.batch.openpbs.parse.cluster import kinds_of, parse_vnodes
from torque_sched.batch.openpbs.parse.jobs import parse_jobs
from torque_sched.batch.openpbs.parse.select import Kinds, parse_exec_vnode, parse_place, parse_select
from torque_sched.batch.openpbs.parse.text import read_blocks
from torque_sched.batch.openpbs.pbs import (
    QUERIES,
    OpenPbs,
    ReadBefore,
    classify,
    not_supported,
    read_parts,
    read_snapshot,
)
from torque_sched.batch.system import Look, OrderKind, OrderResult
from torque_sched.batch.torque.parse.accounting import parse_accounting
from torque_sched.batch.torque.parse.sched_config import parse_sched_config
from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.rules import NodeRules
from torque_sched.decide.settings import Settings, new_backfill
from torque_sched.errors import DocumentError, RecordError, SnapshotError
from torque_sched.model.cluster import JobId, NodeName
from torque_sched.model.decisions import Decision, Hold, NodeShare, Reserve, Start
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, NodeState

PLAIN = Settings(nodes=NodeRules(cores_per_idle_gpu=0))


def snapshot(outputs: Mapping[str, bytes]) -> Snapshot:
    found, problems = read_snapshot(outputs, NOW_S)
    assert not problems
    return found


def decisions(outputs: Mapping[str, bytes]) -> dict[str, Decision]:
    return {each.job: each for each in decide(snapshot(outputs), PLAIN, Context())}


def hosts(decision: Decision) -> list[str]:
    assert isinstance(decision, Start), decision
    return sorted(f"{share.node}:{share.slots}" for share in decision.allocation)


def act(
    outputs: Mapping[str, bytes], *answers: tuple[int, bytes]
) -> tuple[list[tuple[str, ...]], dict[str, OrderResult]]:
    """One cycle by hand: look, decide, order every start at the same time."""

    async def cycle() -> tuple[list[tuple[str, ...]], dict[str, OrderResult]]:
        commands = Server(outputs, *answers)
        server = OpenPbs(commands, lambda: NOW_S)
        look = await server.look()
        starts = [each for each in decide(look.snapshot, PLAIN, Context()) if isinstance(each, Start)]
        results = await asyncio.gather(
            *(server.start(look.snapshot.job_by_id[each.job], each.allocation) for each in starts)
        )
        return commands.orders, {each.job: result for each, result in zip(starts, results, strict=True)}

    return asyncio.run(cycle())


# -- reading


def test_a_moment_of_a_real_server_is_read_in_full() -> None:
    found = snapshot(snapshot_outputs())
    assert {node.name: (node.slots, node.slots_free, node.gpus) for node in found.nodes} == {
        "node1": (2, 0, 0), "node2": (4, 0, 0), "node3": (8, 1, 2),
    }  # fmt: skip
    assert found.node_by_name[NodeName("node3")].mem_assigned_bytes == 3584 * 2**20
    assert len(found.running) == 9
    assert found.job_by_id[JobId("1019.head")].slots_by_node() == {"node2": 1, "node3": 1, "node1": 2}
    assert found.job_by_id[JobId("1020.head")].gpus_by_node() == {"node3": 1}
    # Six members of an array with %2 run: qrun did not refuse, and parents are no jobs to start.
    assert {each.array_slot_limit for each in found.jobs if each.array == 1022} == {2}
    assert JobId("1022[].head") not in {each.id for each in (*found.queued, *found.running)}
    assert (found.server.scheduling, found.server.version) == (True, "23.06.06")
    answers = {each.job: each for each in decide(found, PLAIN, Context())}
    assert hosts(answers[JobId("1025.head")]) == ["node3:1"]
    assert {
        each.job: each.reason for each in answers.values() if isinstance(each, Hold)
    } == {
        "1021.head": Reason.NO_FREE_SLOTS, "1024.head": Reason.NO_FREE_SLOTS, "1026.head": Reason.NEVER_FITS,
        "1027.head": Reason.QUEUE_NOT_STARTED, "1028.head": Reason.NO_FREE_SLOTS,
        "1029.head": Reason.NO_FREE_SLOTS,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["json-broken-nan", "json-broken-backslash"])
def test_a_variable_of_a_user_breaks_the_json_that_is_not_read(name: str) -> None:
    """``qsub -v A=nan``, or a backslash: one user would stop a scheduler that reads ``-F json``."""
    with pytest.raises(ValueError):  # noqa: PT011 -- of whatever kind
        json.loads(golden(name).replace(b"nan", b"NOT"))
    (same,) = parse_jobs(golden("text-odd-values"), Kinds()).items
    assert (same.name, same.user, same.request.n_procs) == ("nan2", "bob", 1)
    text = text_of("Jobs", [job(1, Variable_List={"A": "nan", "B": "back\\slash"}), job(2)])
    assert [each.id for each in parse_jobs(text, Kinds()).items] == ["1.head", "2.head"]


def test_a_limit_has_a_line_for_each_entry() -> None:
    gpuq = snapshot(snapshot_outputs()).queue_by_name
    found = {(each.kind, each.name, each.resource): each.most for each in gpuq["gpuq"].run_limits}  # type: ignore[index]
    assert found == {
        ("", "", ""): 10,
        ("user", "", ""): 2,
        ("user", "alice", ""): 3,
        ("user", "", "ncpus"): 8,
    }


def test_outputs_that_are_cut_off_are_no_look() -> None:
    whole = snapshot_outputs()
    for part in QUERIES:
        with pytest.raises(SnapshotError):
            read_snapshot(whole | {part: whole[part][:-40]}, NOW_S)
    with pytest.raises(DocumentError):
        read_blocks(b"qstat: cannot connect\n\n", "Job", "qstat")
    assert read_blocks(b"", "Job", "qstat") == []


def test_a_damaged_record_costs_itself_alone() -> None:
    records = [
        job(1),
        job(2, job_state="?"),
        job(3, exec_vnode="(n1:ncpus=1))", job_state="R"),
        job(4, "many"),
    ]
    found, problems = read_snapshot(outputs_of(records, [vnode("n1")]), NOW_S)
    assert [each.id for each in found.jobs] == ["1.head", "4.head"]
    assert len(problems) == 2
    assert "not understood" in found.jobs[1].request.trouble


def test_a_second_line_of_what_decides_is_damage() -> None:
    text = text_of("Jobs", [job(1)]).replace(b"\n\n", b"\n    euser = root\n\n")
    parsed = parse_jobs(text, Kinds())
    assert (parsed.items, len(parsed.problems)) == ((), 1)


def test_what_did_not_change_is_the_same_object() -> None:
    memory = ReadBefore()
    before = read_parts(snapshot_outputs(), memory).parts.jobs.items
    again = read_parts(snapshot_outputs(), memory).parts.jobs.items
    assert all(one is other for one, other in zip(before, again, strict=True))
    # Another resource is counted: the same text means something else.
    other = read_parts(
        snapshot_outputs()
        | {"resources": b"set resource feature type = long\nset resource feature flag = hn\n"},
        memory,
    )
    assert other.kinds.counted >= {"feature"}


def test_a_failed_start_leaves_nothing_of_a_run_on_the_job() -> None:
    (fallen,) = parse_jobs(as_text("chunks-3-as-1-qstat", "Jobs"), Kinds()).items
    assert (fallen.state, fallen.start_count, fallen.start_s, fallen.allocated_slots) == (
        JobState.QUEUED,
        1,
        None,
        (),
    )
    assert fallen.exit_status == -3


def test_a_suspended_job_gave_its_processors_and_gpus_back() -> None:
    outputs = outputs_of([], []) | {
        "jobs": as_text("suspended-qstat-f-json", "Jobs"),
        "nodes": as_text("suspended-pbsnodes-av-json", "nodes"),
    }  # fmt: skip
    found = snapshot(outputs)
    (node,) = found.nodes
    assert (len(found.suspended), found.running, node.slots_free) == (1, (), 7)
    assert not found.suspended[0].allocated_gpus


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("offline-pbsnodes-av-json", {"node2": {NodeState.OFFLINE}}),
        ("stale-pbsnodes-av-json", {}),
        ("oversub-pbsnodes-av-json", {}),
        ("leaked-pbsnodes-av-json", {}),
        ("resv-pbsnodes-av-json", {}),
    ],
)
def test_nodes_of_other_situations(name: str, closed: dict[str, set[NodeState]]) -> None:
    nodes = snapshot(outputs_of([], []) | {"nodes": as_text(name, "nodes")}).nodes
    assert {node.name: node.states for node in nodes if not node.is_up} == closed
    assert all(node.slots_free >= 0 for node in nodes)


def test_a_host_is_the_sum_of_its_vnodes() -> None:
    outputs = outputs_of([], []) | {
        "nodes": as_text("vnodes-pbsnodes-av-json", "nodes"), "jobs": as_text("vnodes-qstat-f-json", "Jobs"),
    }  # fmt: skip
    found = snapshot(outputs)
    node = found.node_by_name[NodeName("node1")]
    assert (node.slots, node.mem_bytes, node.is_exclusive) == (4, 8 * 2**30, False)
    assert [(part.name, part.has["ncpus"], part.sharing.value) for part in node.parts] == [
        ("node1", 2, "default_shared"), ("node1[0]", 1, "default_shared"), ("node1[1]", 1, "default_excl"),
    ]  # fmt: skip
    assert found.jobs[0].slots_by_node() == {"node1": 2}
    stale = snapshot(outputs | {"nodes": as_text("stale-pbsnodes-av-json", "nodes")})
    assert stale.node_by_name[NodeName("node1")].slots == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2:ncpus",
        "ncpus=1:",
        "1:ncpus=1+",
        "0:ncpus=1",
        "9999999:ncpus=1",
        "1:ncpus=1;x=2",
        "2x:ncpus=1",
        '1:a="b',
    ],
)
def test_a_select_that_is_not_understood(text: str) -> None:
    with pytest.raises(RecordError):
        parse_select(text)


def test_words_of_a_select() -> None:
    (one, two) = parse_select('2:ncpus=4:host="n+1:a"+mem=1gb')
    assert (one.count, dict(one.words)) == (2, {"ncpus": "4", "host": "n+1:a"})
    assert (two.count, dict(two.words)) == (1, {"mem": "1gb"})
    assert parse_place("pack:exclhost:group=rack").group == "rack"
    with pytest.raises(RecordError):
        parse_place("pack:exclusive")
    assert [len(each) for each in parse_exec_vnode("(a:ncpus=1+b:ncpus=1)+(c:ncpus=2)+d")] == [2, 1, 1]
    assert parse_exec_vnode("(a:ncpus=1") == parse_exec_vnode("(a:ncpus=1)")
    for text in ("(a:ncpus=1))", "a)+(b", "()", "((a)"):
        with pytest.raises(RecordError):
            parse_exec_vnode(text)


def test_resources_by_their_definitions_and_by_their_values() -> None:
    blocks = read_blocks(
        text_of("nodes", [vnode("n1", resources_available__scratch="10gb", resources_available__rack="7")]),
        "Vnode",
        "pbsnodes",
    )
    assert kinds_of(blocks, None).counted >= {"scratch", "rack"}
    defined = Kinds(frozenset({"scratch"}))
    (found,) = parse_vnodes(blocks, kinds_of(blocks, defined)).items
    assert (found.available["scratch"], "rack=7" in found.properties) == (10 * 2**30, True)


# -- decisions


THREE = [vnode("n1"), vnode("n2"), vnode("n3", resources_available__ngpus=2)]


@pytest.mark.parametrize(
    ("select", "place", "allocation"),
    [
        ("2:ncpus=2", "free", ["n1:4"]),
        ("2:ncpus=2", "pack", ["n1:4"]),
        ("2:ncpus=2", "scatter", ["n1:2", "n2:2"]),
        ("2:ncpus=2", "vscatter", ["n1:2", "n2:2"]),
        ("3:ncpus=4", "free", ["n1:4", "n2:4", "n3:4"]),
        ("3:ncpus=2", "pack", Reason.NEVER_FITS),
        ("2:ncpus=1+1:ncpus=3", "free", ["n1:2", "n2:3"]),
        ("1:ncpus=1+1:ncpus=1+1:ncpus=1", "scatter", ["n1:1", "n2:1", "n3:1"]),
        ("1:ncpus=1+3:ncpus=1", "scatter", Reason.NEVER_FITS),
        ("1:ncpus=1:ngpus=1+1:ncpus=2", "pack", ["n3:3"]),
        ("1:ncpus=1:ngpus=3", "free", Reason.NEVER_FITS),
        ("1:ncpus=1:host=n2", "free", ["n2:1"]),
        ("1:ncpus=1:vnode=n2+1:ncpus=1:vnode=n3", "free", ["n2:1", "n3:1"]),
        ("1:ncpus=1:mem=20gb", "free", Reason.NEVER_FITS),
        ("2:ncpus=1:mem=10gb", "free", ["n1:1", "n2:1"]),
        ("1:ncpus=1:aoe=rhel", "free", Reason.BAD_REQUEST),
    ],
)
def test_arrangements(select: str, place: str, allocation: list[str] | Reason) -> None:
    decision = decisions(outputs_of([job(1, select, place)], THREE))["1.head"]
    if isinstance(allocation, Reason):
        assert isinstance(decision, Hold)
        assert decision.reason is allocation
    else:
        assert hosts(decision) == allocation


def test_chunks_of_several_kinds_may_share_a_host() -> None:
    found = decisions(
        outputs_of([job(1, "2:ncpus=1+1:ncpus=2"), job(2, "1:ncpus=1+1:ncpus=4")], [vnode("n1")])
    )
    assert hosts(found["1.head"]) == ["n1:4"]
    assert isinstance(found["2.head"], Hold)
    assert found["2.head"].reason is Reason.NEVER_FITS


def test_a_group_has_one_value() -> None:
    vnodes = [vnode(f"n{i}", resources_available__switch=f"s{i % 2}") for i in range(4)]
    asked = [job(1, "2:ncpus=3", "scatter:group=switch"), job(2, "3:ncpus=4", "scatter:group=switch")]
    found = decisions(outputs_of(asked, vnodes))
    assert hosts(found["1.head"]) in (["n0:3", "n2:3"], ["n1:3", "n3:3"])
    assert isinstance(found["2.head"], Hold)
    assert found["2.head"].reason is Reason.NEVER_FITS


@pytest.mark.parametrize("place", ["free:excl", "free:exclhost"])
def test_who_wants_a_host_alone_waits_for_an_empty_one_and_keeps_others_out(place: str) -> None:
    running = job(
        9,
        job_state="R",
        exec_vnode="(n1:ncpus=1)",
        exec_host="n1/0",
        substate=42,
        stime="Sun Nov 22 14:45:00 2026",
    )
    vnodes = [vnode("n1", used=1, jobs="9.head/0"), vnode("n2")]
    found = decisions(outputs_of([running, job(1, "1:ncpus=1", place), job(2, "1:ncpus=4")], vnodes))
    assert hosts(found["1.head"]) == ["n2:1"]
    assert not isinstance(found["2.head"], Start)


def host(name: str, *used: int, n_vnodes: int = 2, **more: Any) -> list[tuple[str, Any]]:
    """A host of vnodes with two processors each, of which so many are used by job 9."""
    return [
        vnode(f"{name}[{i}]", 2, n, host=name, **({"jobs": "9.head/0"} if n else {}), **more)
        for i, n in enumerate((*used, *[0] * (n_vnodes - len(used))))
    ]  # fmt: skip


RUNS = job(
    9,
    place="shared",
    job_state="R",
    exec_vnode="(h[0]:ncpus=1)",
    substate=42,
    stime="Sun Nov 22 14:45:00 2026",
)


@pytest.mark.parametrize(
    ("select", "place", "vnodes", "elements"),
    [
        # One chunk for each vnode, two on a host of two.
        ("2:ncpus=1", "vscatter", host("h"), "(h[0]:ncpus=1)+(h[1]:ncpus=1)"),
        ("2:ncpus=1", "free", host("h"), "(h[0]:ncpus=1)+(h[0]:ncpus=1)"),
        ("3:ncpus=1", "vscatter", [*host("h"), *host("k")], "(h[0]:ncpus=1)+(h[1]:ncpus=1)+(k[0]:ncpus=1)"),
        ("1:ncpus=1+1:ncpus=2", "vscatter", host("h"), "(h[0]:ncpus=1)+(h[1]:ncpus=2)"),
        ("2:ncpus=2", "vscatter", [*host("h", 1), *host("k")], "(k[0]:ncpus=2)+(k[1]:ncpus=2)"),
        ("3:ncpus=1", "vscatter", host("h"), Reason.NEVER_FITS),
        ("1:ncpus=3", "vscatter", host("h"), Reason.NEVER_FITS),
        ("1:ncpus=3", "free", host("h"), "(h[0]:ncpus=2+h[1]:ncpus=1)"),
        # Alone on its vnodes, and others on those beside them.
        ("1:ncpus=1", "excl", host("h", 1), "(h[1]:ncpus=1)"),
        ("1:ncpus=1", "exclhost", host("h", 1), Reason.NO_EMPTY_NODES),
        ("1:ncpus=1", "exclhost", [*host("h", 1), *host("k")], "(k[0]:ncpus=1)"),
        ("1:ncpus=3", "excl", host("h", 1), None),
        ("2:ncpus=1", "pack:excl", host("h", 1), "(h[1]:ncpus=1)+(h[1]:ncpus=1)"),
        ("2:ncpus=1", "scatter:excl", [*host("h", 1), *host("k", 1)], "(h[1]:ncpus=1)+(k[1]:ncpus=1)"),
        # What the administrator says of a vnode, and what of it the job may change.
        ("1:ncpus=1", "free", host("h", 1, sharing="default_excl"), "(h[1]:ncpus=1)"),
        ("1:ncpus=2", "shared", host("h", 1, sharing="force_excl"), "(h[1]:ncpus=2)"),
        ("1:ncpus=1", "shared", host("h", 1, n_vnodes=1, sharing="default_excl"), "(h[0]:ncpus=1)"),
        ("1:ncpus=1", "free", host("h", 1, sharing="default_exclhost"), Reason.NO_EMPTY_NODES),
        ("1:ncpus=1", "excl", host("h", 1, sharing="ignore_excl"), "(h[0]:ncpus=1)"),
        # What a chunk asks for is on one vnode, not on the host's vnodes together.
        ("1:ncpus=2:feature=fast", "free",
         [vnode("h[0]", 1, host="h", resources_available__feature="fast"), vnode("h[1]", 4, host="h")],
         Reason.NEVER_FITS),
    ],
)  # fmt: skip
def test_vnodes_of_a_host_are_taken_one_by_one(
    select: str, place: str, vnodes: list[Any], elements: str | Reason | None
) -> None:
    outputs = outputs_of([RUNS, job(1, select, place)], vnodes)
    if elements is None:
        assert isinstance(decisions(outputs)["1.head"], Reserve)
        return
    if isinstance(elements, Reason):
        (found,) = decisions(outputs).values()
        assert isinstance(found, Hold)
        assert found.reason is elements, found
        return
    orders, results = act(outputs)
    assert orders == [("qrun", "-a", "-H", elements, "1.head")]
    assert results["1.head"].kind is OrderKind.STARTED


@pytest.mark.parametrize("backfill", ["aged", "conservative"])
@pytest.mark.parametrize(
    ("place", "started"), [("excl", ["1", "2"]), ("exclhost", ["1"]), ("vscatter", ["1", "2", "3", "4"])]
)
def test_jobs_of_one_cycle_see_each_others_vnodes(place: str, started: list[str], backfill: str) -> None:
    outputs = outputs_of([job(n, "1:ncpus=1", place) for n in (1, 2, 3, 4)], host("h"))
    settings = replace(PLAIN, backfill=new_backfill(backfill))
    found = {each.job: each for each in decide(snapshot(outputs), settings, Context())}
    assert [n for n in ("1", "2", "3", "4") if isinstance(found[JobId(f"{n}.head")], Start)] == started


def test_sharing_of_the_vnode_itself() -> None:
    vnodes = [vnode("n1", sharing="default_excl")]
    found = decisions(outputs_of([job(1), job(2)], vnodes))
    assert hosts(found["1.head"]) == ["n1:1"]
    assert not isinstance(found["2.head"], Start)
    later = [
        job(1, job_state="R", exec_vnode="(n1:ncpus=1)", substate=42, stime="Sun Nov 22 14:45:00 2026"),
        job(2),
    ]
    taken = [vnode("n1", used=1, state="job-exclusive", jobs="1.head/0", sharing="default_excl")]
    (second,) = decisions(outputs_of(later, taken)).values()
    # Promised for when the first one ends, an hour after its start, and no sooner.
    assert isinstance(second, Hold | Reserve)


def test_amounts_of_the_site_are_counted() -> None:
    vnodes = [vnode("n1", resources_available__scratch="10gb", resources_assigned__scratch="2gb")]
    asked = [
        job(1, "1:ncpus=1:scratch=6gb"),
        job(2, "1:ncpus=1:scratch=6gb"),
        job(3, "1:ncpus=1:scratch=11gb"),
    ]
    found = decisions(outputs_of(asked, vnodes))
    assert hosts(found["1.head"]) == ["n1:1"]
    assert not isinstance(found["2.head"], Start)
    assert isinstance(found["3.head"], Hold)
    assert found["3.head"].reason is Reason.NEVER_FITS


def test_memory_is_what_the_server_assigned() -> None:
    """A job that asked for none may hold some; what it asked for is not counted twice."""
    vnodes = [vnode("n1", resources_assigned__mem="10gb")]
    found = decisions(outputs_of([job(1, "1:ncpus=1:mem=6gb"), job(2, "1:ncpus=1:mem=1kb")], vnodes))
    assert hosts(found["1.head"]) == ["n1:1"]
    assert not isinstance(found["2.head"], Start)


LIMITS: list[tuple[dict[str, Any], list[str]]] = [
    ({"max_run": "[o:PBS_ALL=2]"}, ["1", "2"]),
    ({"max_run": "[u:PBS_GENERIC=1]"}, ["1", "3"]),
    ({"max_run": "[u:PBS_GENERIC=1],[u:alice=2]"}, ["1", "2", "3"]),
    ({"max_run": "[g:alice=0]"}, ["3", "4"]),
    ({"max_run": "[p:_pbs_project_default=3]"}, ["1", "2", "3"]),
    ({"max_run_res.ncpus": "[u:PBS_GENERIC=2]"}, ["1", "3"]),
    ({"max_run_res.mem": "[o:PBS_ALL=2gb]"}, ["1", "2"]),
    ({"max_user_run": "1"}, ["1", "3"]),
    ({"max_user_res.ncpus": "2"}, ["1", "3"]),
]


@pytest.mark.parametrize(("limit", "started"), LIMITS)
@pytest.mark.parametrize("of_server", [False, True])
def test_limits_are_ours_to_keep(limit: dict[str, Any], started: list[str], of_server: bool) -> None:
    users = {"1": "alice", "2": "alice", "3": "bob", "4": "bob"}
    asked = [job(n, "1:ncpus=2:mem=1gb", euser=user, egroup=user) for n, user in users.items()]
    outputs = outputs_of(asked, [vnode("n1", 32)], **{"server" if of_server else "queue": limit})
    found = decisions(outputs)
    assert [n for n in users if isinstance(found[f"{n}.head"], Start)] == started
    wrong = outputs_of(asked, [vnode("n1", 32)], queue={"max_run": "two"})
    assert read_snapshot(wrong, NOW_S)[1]


def test_the_limit_of_an_array_is_ours_to_keep() -> None:
    parent = job("7[]", array="True", max_run_subjobs=2, job_state="B", stime="Sun Nov 22 14:12:28 2026")
    members = [job(f"7[{i}]", stime="Sun Nov 22 14:12:28 2026") for i in range(4)]
    found = decisions(outputs_of([parent, *members], [vnode("n1")]))
    assert [job_id for job_id, each in found.items() if isinstance(each, Start)] == ["7[0].head", "7[1].head"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job_state": "H", "Hold_Types": "u"}, None),
        ({"Hold_Types": "o"}, Reason.JOB_HELD),
        ({"job_state": "W", "Execution_Time": "Sun Nov 22 15:12:28 2026"}, None),
        ({"depend": "afterok:2.head@head"}, Reason.DEPENDENCY),
        ({"job_state": "S", "exec_vnode": "(n1:ncpus=1)"}, None),
        ({"queue": "stopped"}, Reason.QUEUE_NOT_STARTED),
    ],
)
def test_what_the_server_would_start_and_must_not_run(changes: dict[str, Any], reason: Reason | None) -> None:
    outputs = outputs_of([job(1, **changes), job(2, "1:ncpus=4")], [vnode("n1")])
    outputs["queues"] += text_of(
        "Queue", [("stopped", {"queue_type": "Execution", "enabled": "True", "started": "False"})]
    )
    found = decisions(outputs)
    assert "1.head" not in found if reason is None else getattr(found["1.head"], "reason", None) is reason


@pytest.mark.parametrize(
    "state",
    [
        "offline",
        "down",
        "Stale",
        "state-unknown,down",
        "offline_by_mom",
        "maintenance",
        "job-exclusive",
        "sleep",
        "odd",
    ],
)
def test_vnodes_that_take_no_job(state: str) -> None:
    (found,) = decisions(outputs_of([job(1)], [vnode("n1", state=state)])).values()
    assert not isinstance(found, Start)


@pytest.mark.parametrize("state", ["offline", "down", "Stale", "state-unknown,down"])
def test_a_host_that_is_out_of_use_is_waited_for(state: str) -> None:
    """As all are for seconds after the server's restart: a job that needs it is none that can never run."""
    asked = [job(1, "2:ncpus=4", "scatter"), job(2, "1:ncpus=4:host=n2:mem=9gb:ngpus=1"), job(3, "1:ncpus=9")]
    gpus = {"resources_available__ngpus": 1}
    away = [vnode("n2[0]", 2, host="n2", state=state), vnode("n2[1]", 2, host="n2", state=state, **gpus)]
    found = decisions(outputs_of(asked, [vnode("n1"), *away]))
    assert {name: getattr(each, "reason", None) for name, each in found.items()} == {
        "1.head": Reason.NODES_UNUSABLE, "2.head": Reason.NODES_UNUSABLE, "3.head": Reason.NEVER_FITS,
    }  # fmt: skip


def test_a_reservation_keeps_its_amounts_for_its_queue() -> None:
    """The captured one: four of the eight processors of node3 from 14:56 on; its queue is not started yet."""
    outputs = snapshot_outputs() | {
        "nodes": golden("idle-pbsnodes-av").replace(b"     sharing", b"     resv = R457.head\n     sharing"),
        "jobs": text_of(
            "Jobs",
            [
                job(2, "1:ncpus=2", queue="R457"), job(3, "1:ncpus=3:big=True"), job(4, "1:ncpus=2:big=True"),
                job(5, "1:ncpus=4:big=True", Resource_List__walltime="00:05:00"),
                job(6, "1:ncpus=8", euser="bob"),
            ],
        ),
        "queues": as_text("resv-qstat-Qf-json", "Queue"),
        "reservations": golden("rstat-f"),
        "server": text_of("Server", [("head", {"scheduling": "True"})]),
    }  # fmt: skip
    found = snapshot(outputs)
    (kept,) = found.reservations
    assert (kept.held, kept.end_s - kept.start_s) == ((("node3", (("ncpus", 4),)),), 600.0)
    for backfill in ("aged", "conservative"):
        settings = replace(PLAIN, backfill=new_backfill(backfill))
        answers = {
            each.job: each for each in decide(found, settings, Context(reservations=found.reservations))
        }
        # On what is left of node3, or before the reservation, they run; not for an hour on all of it.
        assert not isinstance(answers[JobId("6.head")], Start)
        assert getattr(answers[JobId("2.head")], "reason", None) is Reason.QUEUE_NOT_STARTED
        assert hosts(answers[JobId("3.head")]) == ["node3:3"]
        assert not isinstance(answers[JobId("4.head")], Start)
        assert hosts(answers[JobId("5.head")]) == ["node3:4"]


RESERVED = """Resv ID: R1.head
reserve_state = {state}
reserve_start = {start}
reserve_end = {end}
queue = R1
Resource_List.place = {place}
resv_nodes = {nodes}
Authorized_Users = alice@head
{more}
"""


def reserved(
    nodes: str = "(n1:ncpus=2:mem=2gb)",
    *,
    state: str = "RESV_RUNNING",
    start: str = "Sun Nov 22 14:40:00 2026",
    end: str = "Sun Nov 22 18:40:00 2026",
    place: str = "free",
    more: str = "server = head",
) -> dict[str, bytes]:
    """What a look shows of a reservation R1, whose queue is started while it runs."""
    started = str(state == "RESV_RUNNING")
    queues = [
        ("workq", {"queue_type": "Execution", "enabled": "True", "started": "True"}),
        ("R1", {"queue_type": "Execution", "enabled": "True", "started": started}),
    ]
    text = RESERVED.format(state=state, start=start, end=end, place=place, nodes=nodes, more=more)
    return {"queues": text_of("Queue", queues), "reservations": text.encode() + b"\n"}


def answers_of(outputs: Mapping[str, bytes], backfill: str = "aged") -> dict[str, Decision]:
    found = snapshot(outputs)
    settings = replace(PLAIN, backfill=new_backfill(backfill))
    return {each.job: each for each in decide(found, settings, Context(reservations=found.reservations))}


@pytest.mark.parametrize("backfill", ["aged", "conservative"])
def test_jobs_of_a_running_reservation_have_what_it_keeps_and_all_others_the_rest(backfill: str) -> None:
    running = job(
        9, "1:ncpus=1", queue="R1", job_state="R", exec_vnode="(n1:ncpus=1)", substate=42,
        stime="Sun Nov 22 14:45:00 2026",
    )  # fmt: skip
    asked = [
        running, job(1, "1:ncpus=1", queue="R1"), job(2, "1:ncpus=1", queue="R1"),
        job(3, "1:ncpus=3"), job(4, "1:ncpus=2"), job(5, "1:ncpus=1"),
    ]  # fmt: skip
    # Whether the server counts the reservation, its jobs, or both as assigned is not relied upon.
    for assigned in (1, 2, 3):
        vnodes = [vnode("n1", used=assigned, jobs="9.head/0", resv="R1.head")]
        found = answers_of(outputs_of(asked, vnodes) | reserved(), backfill)
        assert hosts(found["1.head"]) == ["R1.head:n1:1"]
        assert hosts(found["4.head"]) == ["n1:2"]
        assert [n for n in "235" if isinstance(found[f"{n}.head"], Start)] == []


def test_an_order_in_a_reservation_names_the_vnode() -> None:
    vnodes = [vnode("n1", resv="R1.head"), vnode("n2")]
    asked = [
        job(1, "2:ncpus=1", "pack", queue="R1"), job(2, "1:ncpus=2:vnode=n1"), job(3, "1:ncpus=1:vnode=n1"),
    ]  # fmt: skip
    outputs = outputs_of(asked, vnodes) | reserved()

    async def cycle() -> tuple[list[tuple[str, ...]], list[OrderKind]]:
        commands = Server(outputs)
        server = OpenPbs(commands, lambda: NOW_S)
        jobs = (await server.look()).snapshot.job_by_id
        shares = [NodeShare(NodeName(name), 2) for name in ("R1.head:n1", "n1", "n1")]
        kinds = [
            (await server.start(jobs[JobId(f"{n}.head")], (share,))).kind for n, share in enumerate(shares, 1)
        ]
        return commands.orders, kinds

    orders, kinds = asyncio.run(cycle())
    assert [each[3] for each in orders] == ["(n1:ncpus=1)+(n1:ncpus=1)", "(n1:ncpus=2)"]
    assert kinds == [OrderKind.STARTED, OrderKind.STARTED, OrderKind.NOT_NOW]


LATER = {"state": "RESV_CONFIRMED", "start": "Sun Nov 22 16:00:00 2026", "end": "Sun Nov 22 17:00:00 2026"}


def test_a_standing_reservation_comes_again() -> None:
    pytest.importorskip("dateutil")
    rule = "reserve_rrule = FREQ=DAILY;COUNT=5\nreserve_count = 5\nreserve_index = 3"
    asked = [job(1, "1:ncpus=3", Resource_List__walltime="20:00:00"), job(2, "1:ncpus=3")]
    outputs = outputs_of(asked, [vnode("n1")])
    found = snapshot(outputs | reserved(more=rule, **LATER))
    first, *others = found.reservations
    assert [each.start_s - first.start_s for each in others] == [86_400.0, 2 * 86_400.0]
    settings = replace(PLAIN, backfill=new_backfill("conservative"))
    (long, short) = decide(found, settings, Context(reservations=found.reservations))
    # The long one waits until this day's is over, the hour before it is for the short one.
    assert isinstance(long, Reserve)
    assert long.start_s == first.end_s
    assert hosts(short) == ["n1:3"]
    odd = read_parts(outputs | reserved(more="reserve_rrule = FREQ=NEVER", **LATER), ReadBefore())
    assert len(odd.parts.reservations) == 1
    assert "R1.head comes again" in " / ".join(not_supported(odd, ""))


def test_an_exclusive_reservation_keeps_its_vnodes_whole() -> None:
    vnodes = [*host("h"), vnode("n2", 2)]
    asked = [job(n, "1:ncpus=2", Resource_List__walltime="02:00:00") for n in (1, 2, 3)]
    for place, free in (("excl", ["h:2", "n2:2"]), ("exclhost", ["n2:2"])):
        found = answers_of(outputs_of(asked, vnodes) | reserved("(h[0]:ncpus=1)", place=place, **LATER))
        assert sorted(each for one in found.values() if isinstance(one, Start) for each in hosts(one)) == free


def test_what_is_not_supported_is_said() -> None:
    outputs = outputs_of(
        [],
        [
            vnode("n1", queue="special"), vnode("n2", resources_available__aoe="rhel"),
            vnode("n3", partition="p2"),
        ],
        queue={"partition": "p2", "max_run_soft": "[u:PBS_GENERIC=1]"}, server={"job_sort_formula": "ncpus"},
    )  # fmt: skip
    words = " / ".join(not_supported(read_parts(outputs, ReadBefore()), ""))
    for part in (
        "job_sort_formula",
        "soft limits",
        "queue workq is of partition p2",
        "vnodes of partition p2",
        "bound to queue special",
        "provisioning",
        "job_history",
    ):
        assert part in words
    found = snapshot(outputs)
    assert [node.name for node in found.nodes] == ["n1", "n2"]
    assert not found.queues[0].is_started
    ours = snapshot(outputs | {"settings": b"p2\nheed_scheduling"})
    assert ([node.name for node in ours.nodes], ours.queues[0].is_started) == (["n3"], True)


def test_what_the_native_schedulers_file_asks_for_and_is_not_supported_is_said() -> None:
    """Its ``sched_config`` is read as pbs_sched's is; peer servers and provisioning are set there."""
    read = parse_sched_config(
        'by_queue: True prime\npeer_queue: "workq workq@other"\nprovision_policy: "avoid_provision"\n'
    )
    words = " / ".join(read.warnings)
    assert "peer servers are not supported" in words
    assert "provisioning is not supported" in words


def test_scheduling_false_is_a_pause_unless_it_is_the_native_schedulers() -> None:
    outputs = outputs_of([job(1)], [vnode("n1")], server={"scheduling": "False"})
    (paused,) = decisions(outputs).values()
    assert isinstance(paused, Hold)
    assert paused.reason is Reason.SCHEDULING_OFF
    assert hosts(*decisions(outputs | {"settings": b"\n"}).values()) == ["n1:1"]


# -- orders


@pytest.mark.parametrize(
    ("select", "place", "vnodes", "elements"),
    [
        ("1:ncpus=2:mem=1gb", "free", THREE, "(n1:ncpus=2:mem=1gb)"),
        ("2:ncpus=1:mem=512mb+1:ncpus=2", "pack", THREE,
         "(n1:ncpus=1:mem=512mb)+(n1:ncpus=1:mem=512mb)+(n1:ncpus=2)"),
        ("1:ncpus=1+1:ncpus=2:ngpus=1", "scatter", THREE, "(n1:ncpus=1)+(n3:ncpus=2:ngpus=1)"),
        ("1:ncpus=1:host=n2:mpiprocs=1", "free", THREE, "(n2:ncpus=1)"),
        ("1:ncpus=2:mem=6gb", "free",
         [vnode("h[0]", 1, host="h", mem="4gb"), vnode("h[1]", 1, host="h", mem="4gb")],
         "(h[0]:ncpus=1:mem=4194304kb+h[1]:ncpus=1:mem=2097152kb)"),
        ("2:ncpus=1", "free", [vnode("h[0]", 1, host="h"), vnode("h[1]", 1, host="h")],
         "(h[0]:ncpus=1)+(h[1]:ncpus=1)"),
        ("1:ncpus=1:vnode=h[1]", "free", [vnode("h[0]", 2, host="h"), vnode("h[1]", 2, host="h")],
         "(h[1]:ncpus=1)"),
        ("1:ncpus=1:ngpus=1", "free",
         [vnode("h[0]", 2, host="h"), vnode("h[1]", 2, host="h", resources_available__ngpus=2)],
         "(h[1]:ncpus=1:ngpus=1)"),
        ("1:ncpus=1:scratch=3gb", "free", [vnode("n1", resources_available__scratch="4gb")],
         "(n1:ncpus=1:scratch=3gb)"),
    ],
)  # fmt: skip
def test_an_order_has_an_element_for_each_chunk(
    select: str, place: str, vnodes: list[Any], elements: str
) -> None:
    orders, results = act(outputs_of([job(1, select, place)], vnodes))
    assert orders == [("qrun", "-a", "-H", elements, "1.head")]
    assert results["1.head"].kind is OrderKind.STARTED


def test_equal_starts_are_one_order_and_each_has_its_own_answer() -> None:
    members = [job(f"7[{i}]") for i in range(3)]
    refused = b"qrun: Unknown Job Id 7[1].head\n"
    orders, results = act(outputs_of([*members, job(8, "1:ncpus=5")], [vnode("n1", 8)]), (2, refused))
    assert orders == [
        ("qrun", "-a", "-H", "(n1:ncpus=1)", "7[0].head", "7[1].head", "7[2].head"),
        ("qrun", "-a", "-H", "(n1:ncpus=5)", "8.head"),
    ]
    assert [each.kind for each in results.values()] == [
        OrderKind.STARTED, OrderKind.UNKNOWN_JOB, OrderKind.STARTED, OrderKind.STARTED,
    ]  # fmt: skip


def order(
    outputs: Mapping[str, bytes], job_id: str, *shares: NodeShare
) -> tuple[list[tuple[str, ...]], OrderResult]:
    """An order that nobody should give: whatever was decided, the last guard has to refuse it."""

    async def give() -> tuple[list[tuple[str, ...]], OrderResult]:
        commands = Server(outputs)
        server = OpenPbs(commands, lambda: NOW_S)
        look = await server.look()
        return commands.orders, await server.start(look.snapshot.job_by_id[JobId(job_id)], shares)

    return asyncio.run(give())


@pytest.mark.parametrize(
    ("select", "changes", "of_vnode", "kind"),
    [
        ("1:ncpus=2", {}, {"used": 3}, OrderKind.NOT_NOW),
        ("1:ncpus=1:mem=900gb", {}, {}, OrderKind.NOT_NOW),
        ("1:ncpus=1:ngpus=1", {}, {}, OrderKind.NOT_NOW),
        ("1:ncpus=1:feature=fast", {}, {}, OrderKind.NOT_NOW),
        ("1:ncpus=1", {}, {"state": "offline"}, OrderKind.NOT_NOW),
        ("1:ncpus=1", {}, {"state": "Stale"}, OrderKind.NOT_NOW),
        ("1:ncpus=1", {}, {"state": "down"}, OrderKind.NOT_NOW),
        ("1:ncpus=1", {}, {"state": "job-exclusive", "used": 1}, OrderKind.NOT_NOW),
        ("1:ncpus=1", {"job_state": "H", "Hold_Types": "u"}, {}, OrderKind.WRONG_STATE),
        (
            "1:ncpus=1",
            {"job_state": "H", "Hold_Types": "s", "depend": "afterok:2.head@head"},
            {},
            OrderKind.WRONG_STATE,
        ),
        ("1:ncpus=1", {"job_state": "W"}, {}, OrderKind.WRONG_STATE),
        ("1:ncpus=1", {"job_state": "S"}, {}, OrderKind.WRONG_STATE),
        ("1:ncpus=1:aoe=x", {}, {}, OrderKind.NEVER),
        ("3:ncpus=1", {}, {"used": 2}, OrderKind.NOT_NOW),
        ("1:ncpus=1:scratch=3gb", {}, {"resources_available__scratch": "2gb"}, OrderKind.NOT_NOW),
        (
            "1:ncpus=1:scratch=3gb",
            {},
            {"resources_available__scratch": "10gb", "resources_assigned__scratch": "8gb"},
            OrderKind.NOT_NOW,
        ),
        ("2:ncpus=1:lic=2", {}, {"resources_available__lic": "3"}, OrderKind.NOT_NOW),
        ("1:ncpus=1:lic=3", {}, {"resources_available__lic": "2.5"}, OrderKind.NOT_NOW),
    ],
)
def test_what_the_server_would_not_verify_is_refused_before_it_is_ordered(
    select: str, changes: dict[str, Any], of_vnode: dict[str, Any], kind: OrderKind
) -> None:
    outputs = outputs_of([job(1, select, **changes)], [vnode("n1", **of_vnode)])
    orders, result = order(outputs, "1.head", NodeShare(NodeName("n1"), 4, 1))
    assert (orders, result.kind) == ([], kind)
    assert result.text


def test_what_was_ordered_counts_until_a_look_shows_it() -> None:
    async def play() -> list[OrderKind]:
        outputs = outputs_of([job(1, "1:ncpus=3"), job(2, "1:ncpus=3")], [vnode("n1")])
        server = OpenPbs(Server(outputs), lambda: NOW_S)
        share = (NodeShare(NodeName("n1"), 3),)
        kinds = []
        for job_id in ("1.head", "2.head"):
            jobs = (await server.look()).snapshot.job_by_id
            kinds.append((await server.start(jobs[JobId(job_id)], share)).kind)
        return kinds

    assert asyncio.run(play()) == [OrderKind.STARTED, OrderKind.NOT_NOW]


LICENCES = b"create resource lic\nset resource lic type = long\nset resource lic flag = q\n"


@pytest.mark.parametrize(
    ("of_server", "of_queue", "of_vnode", "select", "of_job"),
    [
        # A vnode's, asked for by chunk; the server's, the queue's, asked for by the whole job.
        ({}, {}, {"resources_available__lic": "5", "resources_assigned__lic": "2"}, "1:ncpus=1:lic=2", None),
        ({"resources_available.lic": "5", "resources_assigned.lic": "2"}, {}, {}, "1:ncpus=1", "2"),
        ({}, {"resources_available.lic": "5", "resources_assigned.lic": "2"}, {}, "1:ncpus=1", "2"),
        # The server does not add up what runs: the job 9 holds two.
        ({"resources_available.lic": "5"}, {}, {}, "1:ncpus=1", "2"),
    ],
)
def test_the_sites_own_resources_are_not_over_committed_whatever_was_decided(
    of_server: dict[str, Any],
    of_queue: dict[str, Any],
    of_vnode: dict[str, Any],
    select: str,
    of_job: str | None,
) -> None:
    asked = {"Resource_List__lic": of_job} if of_job else {}
    running = job(
        9, select, job_state="R", substate=42, exec_vnode="(n1:ncpus=1)", stime="Sun Nov 22 14:45:00 2026",
        **asked,
    )  # fmt: skip
    vnodes = [vnode("n1", used=1, jobs="9.head/0", **of_vnode)]

    async def play(*answers: tuple[int, bytes]) -> list[OrderKind]:
        outputs = outputs_of(
            [running, *(job(n, select, **asked) for n in (1, 2))],
            vnodes, queue=of_queue, server=of_server, resources=LICENCES,
        )  # fmt: skip
        commands = Server(outputs, *answers)
        server = OpenPbs(commands, lambda: NOW_S)
        share = (NodeShare(NodeName("n1"), 1),)
        kinds = []
        for number in (1, 2, 2):
            # A second look does not show the start yet.
            jobs = (await server.look()).snapshot.job_by_id
            kinds.append((await server.start(jobs[JobId(f"{number}.head")], share)).kind)
        assert len(commands.orders) == len(answers) + 1
        return kinds

    assert asyncio.run(play()) == [OrderKind.STARTED, OrderKind.NOT_NOW, OrderKind.NOT_NOW]
    refused = (2, b"qrun: Unknown Job Id 1.head")
    assert asyncio.run(play(refused))[:2] == [OrderKind.UNKNOWN_JOB, OrderKind.STARTED]


def test_a_refused_order_holds_nothing() -> None:
    async def play() -> list[OrderKind]:
        outputs = outputs_of([job(1, "1:ncpus=3"), job(2, "1:ncpus=3")], [vnode("n1")])
        server = OpenPbs(Server(outputs, (2, b"qrun: Unknown Job Id 1.head")), lambda: NOW_S)
        jobs = (await server.look()).snapshot.job_by_id
        share = (NodeShare(NodeName("n1"), 3),)
        return [(await server.start(jobs[JobId(each)], share)).kind for each in ("1.head", "2.head")]

    assert asyncio.run(play()) == [OrderKind.UNKNOWN_JOB, OrderKind.STARTED]


ANSWERS = {
    "qrun-one": OrderKind.STARTED, "qrun-as-user": OrderKind.UNAUTHORISED,
    "err-qrun-array-parent": OrderKind.ARRAY_PARENT, "err-qrun-already-running": OrderKind.WRONG_STATE,
    "err-qrun-array-already": OrderKind.WRONG_STATE, "err-qrun-unknown-job": OrderKind.UNKNOWN_JOB,
    "err-qrun-bad-id": OrderKind.BAD_ID, "err-qrun-unknown-node": OrderKind.NEVER,
    "err-qrun-unknown-resource": OrderKind.NEVER, "err-qrun-wrong-vnode": OrderKind.NOT_NOW,
    "err-qrun-no-args": OrderKind.USAGE, "err-qrun-empty-H": OrderKind.USAGE,
    "down-qrun": OrderKind.SERVER_GONE,
    "err-qrun-down": OrderKind.NOT_NOW, "err-qrun-down-a": OrderKind.STARTED,
    "qrun-plain-no-scheduler": OrderKind.USAGE, "qalter-comment-op": OrderKind.STARTED,
    "qhold-s-op": OrderKind.UNAUTHORISED, "excl-occupied-qrun": OrderKind.NOT_NOW,
}  # fmt: skip


def test_answers_of_a_real_server_have_their_kinds() -> None:
    with (GOLDEN / "orders.tsv").open(encoding="utf-8", newline="") as opened:
        rows = {row["name"]: row for row in csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE)}
    assert {
        name: classify(int(rows[name]["exit"]), rows[name]["stderr"].replace("\\n", "\n").encode()).kind
        for name in ANSWERS
    } == ANSWERS


def test_other_orders() -> None:
    async def give() -> list[tuple[str, ...]]:
        commands = Server(outputs_of([job(1)], [vnode("h[0]", host="h"), vnode("h[1]", host="h")]))
        server = OpenPbs(commands, lambda: NOW_S)
        await server.look()
        await server.comment([JobId("1.head"), JobId("2.head")], "Not Running: needs mem=1gb" + "x" * 300)
        await server.delete(JobId("1.head"), "never")
        await server.set_offline(NodeName("h"), "swallows jobs")
        return commands.orders

    comment, delete, offline = asyncio.run(give())
    assert comment[:2] == ("qalter", "-W")
    assert comment[2].startswith('comment="Not Running: needs mem=1gbx')
    assert (len(comment[2]), comment[3:]) == (len('comment=""') + 255, ("1.head", "2.head"))
    assert delete == ("qdel", "1.head")
    assert offline == ("pbsnodes", "-o", "-C", "swallows jobs", "h")


# -- looks


def test_a_restart_of_the_server_is_no_failure_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guaranteed starts would break: there is no look until MoMs have called, or for 30 s."""
    at_s = [1000.0]
    monkeypatch.setattr("torque_sched.batch.openpbs.pbs.time.monotonic", lambda: at_s[0])
    runs = job(7, job_state="R", substate=42, exec_vnode="(n1:ncpus=1)", stime="Sun Nov 22 14:12:28 2026")
    known = vnode("n1", used=1, jobs="7.head/0")
    unknown = vnode("n1", used=1, jobs="7.head/0", state="state-unknown,down")
    idle = vnode("n2", state="state-unknown,down")

    async def play() -> list[frozenset[NodeState]]:
        commands = Server(outputs_of([runs], [known, idle]))
        server = OpenPbs(commands, lambda: NOW_S)
        states = [(await server.look()).snapshot.node_by_name[NodeName("n1")].states]
        for after_s in (0.0, 29.0):
            at_s[0] = 1000.0 + after_s
            commands.outputs |= outputs_of([runs], [unknown, idle])
            with pytest.raises(SnapshotError, match="restarted"):
                await server.look()
        at_s[0] = 1031.0
        states.append((await server.look()).snapshot.node_by_name[NodeName("n1")].states)
        return states

    before, after = asyncio.run(play())
    assert before == frozenset()
    assert NodeState.UNKNOWN in after


def test_how_a_job_ended_is_asked_once_it_is_shown_no_more() -> None:
    async def play() -> tuple[Look, Look, list[tuple[str, ...]]]:
        kept = {"job_history_enable": "True"}
        commands = Server(outputs_of([job(493), job(7)], [vnode("n1")], server=kept))
        server = OpenPbs(commands, lambda: NOW_S)
        await server.look()
        commands.outputs |= outputs_of([job(7)], [vnode("n1")], server=kept)
        commands.outputs["ended"] = as_text("history-qstat-x-f-json2", "Jobs")
        await server.look()
        second = await server.look()
        return second, await server.look(), commands.orders

    second, third, orders = asyncio.run(play())
    assert orders == [("qstat", "-x", "-f", "-w", "493.head")]
    ended = second.snapshot.job_by_id[JobId("493.head")]
    assert (ended.state, ended.exit_status, ended.slots_by_node()) == (JobState.COMPLETED, -29, {"node3": 1})
    assert ended.comp_s is not None
    assert ended.total_runtime_s is not None
    assert JobId("493.head") not in third.snapshot.job_by_id


def test_a_look_is_decided_again_from_its_outputs() -> None:
    look = asyncio.run(OpenPbs(Server(snapshot_outputs()), lambda: NOW_S, partition="").look())
    assert snapshot_in(look.outputs, look.snapshot.now_s) == look.snapshot


def test_a_start_that_fails_again_and_again_rests_long_before_the_server_holds_it() -> None:
    """The server holds a job after more than 20 starts that its MoM refused."""
    orders, now_s, n_starts = PendingOrders(), NOW_S, 0
    settings = PLAIN
    while now_s < NOW_S + 3600.0:
        fallen = job(1, "1:ncpus=1", run_count=n_starts, Exit_status="-3") if n_starts else job(1)
        vnodes = [vnode(f"n{i}") for i in range(30)]
        found = replace(read_snapshot(outputs_of([fallen], vnodes), now_s)[0], now_s=now_s)
        orders.observe(found)
        for each in decide(found, settings, Context(pending=orders.pending, back_off=orders.back_off(now_s))):
            if isinstance(each, Start):
                n_starts += 1
                orders.asked(each.job, each.allocation, now_s)
                orders.answered(each.job, OrderResult(OrderKind.STARTED), now_s)
        now_s += 5.0
    assert 3 <= n_starts <= 12


@pytest.mark.parametrize(
    ("answer", "dialect"),
    [("pbs_version = 23.06.06", "openpbs"), ("Version: 6.1.3", "torque"), ("", "torque")],
)
def test_the_version_says_which_commands_these_are(answer: str, dialect: str, tmp_path: Path) -> None:
    qstat = tmp_path / "qstat"
    qstat.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="ascii")
    qstat.chmod(0o755)
    settings = ServerSettings(tmp_path, "auto", "", str(tmp_path), 10.0, 10.0)
    assert settings.dialect() == dialect
    assert replace(settings, batch_system="torque").dialect() == "torque"


def test_accounting_has_what_a_job_held_and_asked() -> None:
    records = parse_accounting(golden("accounting-sample")).items
    jobs = {each.job: job_of_record(each) for each in records if each.type == "S" and each.job[0] in "24"}
    multi = jobs["2.head"]
    assert multi.slots_by_node() == {"node3": 1, "node2": 1, "node1": 2}
    assert (multi.user, multi.group, multi.name, multi.request.n_procs) == ("bob", "bob", "multi", 4)
    assert jobs["4.head"].request.n_gpus == len(jobs["4.head"].allocated_gpus) == 1
    ended = (
        b"11/22/2026 14:20:00;E;2.head;user=bob group=bob project=p jobname=m queue=workq ctime=1795356748 "
        b"qtime=1795356748 etime=1795356748 start=1795356778 exec_host=n1/0*2 exec_vnode=(n1:ncpus=2) "
        b"Resource_List.ncpus=2 Resource_List.select=2:ncpus=1:feature=fast Resource_List.walltime=01:00:00 "
        b"session=5 end=1795357200 Exit_status=0 resources_used.cput=00:02:30 "
        b"resources_used.walltime=00:07:02 run_count=1\n"
    )
    (record,) = parse_accounting(ended).items
    over = job_of_record(record)
    assert (over.state, over.start_s, over.comp_s, over.exit_status) == (
        JobState.COMPLETED, 1795356778.0, 1795357200.0, 0,
    )  # fmt: skip
    assert (over.slots_by_node(), over.walltime_s, over.request.n_procs) == ({"n1": 2}, 3600.0, 2)
    assert (over.used.walltime_s, over.used.cput_s) == (422.0, 150.0)
