"""Every capture of a real OpenPBS is read, and where its own scheduler decided, ours decides alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.fixtures.openpbs_outputs import GOLDEN, as_text, golden, text_of
from torque_sched.batch.openpbs.parse.cluster import (
    by_host,
    kinds_of,
    node_of,
    parse_definitions,
    parse_queues,
    parse_server,
    parse_vnodes,
)
from torque_sched.batch.openpbs.parse.jobs import parse_jobs
from torque_sched.batch.openpbs.parse.reservations import parse_reservations
from torque_sched.batch.openpbs.parse.select import Kinds
from torque_sched.batch.openpbs.parse.text import read_blocks
from torque_sched.batch.openpbs.pbs import read_snapshot
from torque_sched.batch.torque.parse.accounting import parse_accounting
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.rules import NodeRules
from torque_sched.decide.settings import Settings, new_backfill
from torque_sched.model.decisions import Decision, Hold, Reserve
from torque_sched.model.reasons import Reason

NOT_READ = {
    "README": "says where they are from", "down-qstat": "cut off, as the server was down",
    "down-qstat.stderr": "an error", "dsv-odd-values": "a form that no look asks for",
    "json-broken-nan-dsv": "a form that no look asks for",
    "idle-pbsnodes-av-dsv": "a form that no look asks for",
    "json-broken-backslash": "no JSON", "json-broken-nan": "no JSON", "json-broken-node-comment": "no JSON",
    "json-latin1": "no JSON of ours: its text is not UTF-8", "pbsnodes-unknown-node": "an error",
    "idle-pbsnodes-avS": "a table for people", "idle-pbsnodes-l": "a table for people",
    "newnode-pbsnodes-l": "a table for people", "offline-pbsnodes-l": "a table for people",
    "oversub-pbsnodes-aSj": "a table for people", "running-pbsnodes-aSj": "a table for people",
    "history-qstat-xt": "a table for people", "native-qstat-T": "a table for people",
    "torque-sched-cycle-qstat-ans1": "a table for people", "torque-sched-cycle": "our own output",
    "queued-qstat-f": "folded lines: looks ask with -w", "qmgr-list-hook": "for install, read there",
    "qmgr-list-sched": "for doctor, read there", "qmgr-list-sched-two": "for doctor, read there",
    "qstat-version": "for the choice of the batch system, read there", "hook-events": "datagrams",
    "register-events": "of a scheduler that registers itself: not built",
    "register-second-scheduler-events": "of a scheduler that registers itself: not built",
    "orders": "answers to orders: test_openpbs.py and the emulation's",
}  # fmt: skip
"""Capture -> why no reader of a look takes it."""


def _vnodes(data: bytes) -> int:
    blocks = read_blocks(data, "Vnode", "pbsnodes")
    read = parse_vnodes(blocks, kinds_of(blocks, None))
    assert not read.problems
    assert all(node_of(name, members).slots >= 0 for name, members in by_host(read.items).items())
    return len(read.items)


def _jobs(data: bytes) -> int:
    read = parse_jobs(data, Kinds())
    assert not read.problems
    return len(read.items)


def _queues(data: bytes) -> int:
    read = parse_queues(data)
    assert not read.problems
    return len(read.items)


def _reservations(data: bytes) -> int:
    read = parse_reservations(data, ())
    assert not read.problems
    return len(read.items)


READERS: tuple[tuple[str, str, Callable[[bytes], int]], ...] = (
    ("pbsnodes-", "nodes", _vnodes), ("vnodes-a", "nodes", _vnodes), ("qstat-Qf", "Queue", _queues),
    ("qstat-Bf", "Server", lambda data: len([parse_server(data)])), ("qstat", "Jobs", _jobs),
    ("text-odd-values", "Jobs", _jobs), ("rstat", "", _reservations),
    ("accounting", "", lambda data: len(parse_accounting(data).items)),
    ("qmgr-print-server", "", lambda data: int(parse_definitions(data.decode()) is not None)),
)  # fmt: skip
"""A part of a capture's name, the member of its JSON, the reader; the first that fits."""
CAPTURES = sorted(path.stem for path in GOLDEN.iterdir())
EMPTY = {"idle-qstat-f-json"}


def test_what_no_reader_takes_is_named() -> None:
    assert NOT_READ.keys() <= set(CAPTURES)


@pytest.mark.parametrize("name", [each for each in CAPTURES if each not in NOT_READ])
def test_a_capture_is_read_in_full(name: str) -> None:
    member, reader = next(
        (member, reader) for part, member, reader in READERS if part in name
    )  # fmt: skip
    data = golden(name)
    n_records = -1
    if name.endswith(("json", "json2", "json-bob")) or data.startswith(b"{"):
        member = "Server" if member == "Server" and b'"Server"' in data else member
        n_records = len(dict(json.loads(data, object_pairs_hook=list)).get(member, []))
        data = as_text(name, member)
    n_read = reader(data)
    assert n_read == n_records or (n_records < 0 and n_read > 0)
    assert (n_read == 0) == (name in EMPTY)


# -- the native scheduler


@dataclass(frozen=True)
class Native:
    """What the native scheduler made of a waiting job.

    Attributes:
        comment: that it wrote.
        start_s: it estimates, from the look on.
        vnodes: it estimates, by name.
    """

    comment: str
    start_s: float | None
    vnodes: frozenset[str]


CAUSES = (
    ("Can Never Run: Insufficient amount of resource", {Reason.NEVER_FITS}),
    ("Not Running: Insufficient amount of resource", {Reason.GUARANTEED, Reason.RESERVED}),
    ("Not Running: Not enough free nodes available", {Reason.GUARANTEED, Reason.RESERVED}),
    ("Not Running: User has reached queue gpuq running job limit", {Reason.HARD_LIMIT}),
    ("Not Running: Queue not started", {Reason.QUEUE_NOT_STARTED}),
    # Of members that wait for the array's limit of one it says nothing.
    ("Job Array Began at", {Reason.ARRAY_SLOT_LIMIT}),
)
"""How its comment begins, and our reasons for the same."""
STARTS_THAT_DIFFER = {
    "453.head": "it plans beyond max_run of the user; we promise nothing that a limit holds back",
    "454.head": "as 453.head",
}
"""Job -> why it has an estimated start there and none here."""
_LATER_S = 180.0
"""Ours is the later one by at most so much: whole minutes, and a minute for an end and a start that lag."""


def _native() -> tuple[float, dict[str, Native]]:
    document = json.loads(golden("native-qstat-f-t-json"))
    jobs = parse_jobs(as_text("native-qstat-f-t-json", "Jobs"), Kinds()).items
    found = {}
    for job in jobs:
        given = document["Jobs"][job.id]
        if given["job_state"] != "Q":
            continue
        estimated = given.get("estimated", {})
        vnodes = {each.partition(":")[0].strip("(") for each in estimated.get("exec_vnode", "").split("+")}
        start_s = None
        if "start_time" in estimated:
            # The job's own times are read by the same rules.
            text = text_of("Jobs", [(job.id, {**given, "ctime": estimated["start_time"]})])
            start_s = parse_jobs(text, Kinds()).items[0].ctime_s
        found[str(job.id)] = Native(given["comment"], start_s, frozenset(vnodes - {""}))
    return float(document["timestamp"]), found


def _ours(now_s: float) -> dict[str, Decision]:
    outputs = {
        "nodes": as_text("native-pbsnodes-av-json", "nodes"),
        "jobs": as_text("native-qstat-f-t-json", "Jobs"),
        "queues": as_text("resv-qstat-Qf-json", "Queue"),
        "server": text_of("Server", [("head", {"scheduling": "True"})]),
        "resources": golden("qmgr-print-server"), "settings": b"\nheed_scheduling",
    }  # fmt: skip
    snapshot, problems = read_snapshot(outputs, now_s)
    assert not problems
    # Strictly in order, with depth: what it was set to, as near as ours has it.
    settings = Settings(nodes=NodeRules(cores_per_idle_gpu=0), backfill=new_backfill("conservative"))
    return {str(each.job): each for each in decide(snapshot, settings, Context())}


def test_where_the_native_scheduler_decided_ours_decides_alike() -> None:
    """Prints the share that is equal (pytest -s); docs/openpbs.md names the differences."""
    now_s, native = _native()
    ours = _ours(now_s)
    assert ours.keys() == native.keys()
    equal = 0
    differs = set()
    for name, theirs in native.items():
        mine = ours[name]
        assert isinstance(mine, Hold | Reserve), (name, mine)
        reasons = next(reasons for words, reasons in CAUSES if theirs.comment.startswith(words))
        assert mine.reason in reasons, (name, mine, theirs)
        if theirs.start_s is None or not isinstance(mine, Reserve):
            is_equal = theirs.start_s is None and isinstance(mine, Hold)
        else:
            is_equal = 0 <= mine.start_s - theirs.start_s <= _LATER_S and theirs.vnodes == {
                str(share.node) for share in mine.allocation
            }
        equal += is_equal
        differs |= set() if is_equal else {name}
    print(f"\nnative scheduler: {equal} of {len(native)} decisions equal ({equal / len(native):.0%})")
    for name, why in STARTS_THAT_DIFFER.items():
        print(f"differs: {name}: {why}")
    assert differs == STARTS_THAT_DIFFER.keys()
