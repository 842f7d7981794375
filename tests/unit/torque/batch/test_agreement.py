"""Torque's protocol compared with its commands: held against recordings of an idle and a busy server."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torque_sched.batch.torque.agreement import COMPARED, differences, in_words
from torque_sched.batch.torque.parse.qstat import queue_from_record, server_from_record
from torque_sched.batch.torque.parse.records import Record
from torque_sched.batch.torque.parse.text import read_text
from torque_sched.batch.torque.parse.xml import read_xml
from torque_sched.batch.torque.pbs import read_snapshot
from torque_sched.emulation import EmulatedTorque
from torque_sched.model.cluster import GpuDevice, Job, JobId, Node, NodeStatus, Queue, QueueName, Server
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, NodeState, StartProgress

ROOT = Path(__file__).resolve().parents[4]
GOLDEN = ROOT / "tests" / "golden" / "torque"
MOVED = {
    "server": {
        "net_counter", "next_job_number", "resources_assigned.mem", "resources_assigned.nodect",
        "state_count", "total_jobs",
    },
    "queue": {"resources_assigned.mem", "resources_assigned.nodect", "state_count", "total_jobs"},
    "node": {
        "jobs", "state", "status.availmem", "status.idletime", "status.jobs", "status.netload",
        "status.nsessions", "status.nusers", "status.rectime", "status.sessions",
    },
}  # fmt: skip
"""What differs between the recordings of an idle and of a busy Torque 6.1.3."""
COUNTS = {"net_counter", "next_job_number", "state_count", "total_jobs"}
"""Of these no decision depends on any."""


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.txt").read_bytes()


def read(text: bytes, kind: str) -> dict[str, dict[str, str]]:
    found = read_xml(text, kind, "x") if text.lstrip()[:1] == b"<" else read_text(text, kind, "x")
    return {record.name: record.attributes for record in found.items}


def recorded(name: str, kind: str) -> dict[str, dict[str, str]]:
    return read(golden(name), kind)


def parts(attributes: dict[str, str]) -> dict[str, str]:
    """The attributes, each value of ``status`` by itself."""
    status = (word.partition("=") for word in attributes.get("status", "").split(",") if word)
    others = {name: text for name, text in attributes.items() if name != "status"}
    return others | {f"status.{name}": text for name, _, text in status}


def moved(ones: dict[str, dict[str, str]], others: dict[str, dict[str, str]]) -> set[str]:
    found = set()
    for name in ones.keys() & others.keys():
        one, other = parts(ones[name]), parts(others[name])
        found |= {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    return found


def look(state: str, jobs: str = "running-qstat-f-t-x") -> Snapshot:
    """What a real server showed when it was idle, or busy."""
    server = golden("idle-qstat-B-f" if state == "idle" else "running-qstat-B-f-x")
    outputs = {
        "nodes": golden(f"{state}-pbsnodes-x"),
        "jobs": golden(jobs),
        "queues": golden(f"{state}-qstat-Q-f-1"),
        "server": server,
    }
    return read_snapshot(outputs, 1.0)[0]


BUSY = look("running")

# -- what the recordings show


def test_what_moves_on_a_real_server_is_known() -> None:
    pairs = {
        "server": ("idle-qstat-B-f", "running-qstat-B-f-x", "Server"),
        "queue": ("idle-qstat-Q-f-1", "running-qstat-Q-f-1", "Queue"),
        "node": ("idle-pbsnodes-a", "running-pbsnodes-a", "Node"),
    }
    for kind, (idle, busy, records) in pairs.items():
        assert moved(recorded(idle, records), recorded(busy, records)) == MOVED[kind]


def changed(snapshot: Snapshot, kind: str, name: str) -> Snapshot:
    """The same with another value of one attribute of the server, or of each queue."""
    records = recorded("running-qstat-B-f-x" if kind == "server" else "running-qstat-Q-f-1", kind.title())
    build: Callable[[Record], Any] = server_from_record if kind == "server" else queue_from_record
    texts = {"net_counter": "99 9 9", "state_count": "Queued:99 ", "resources_assigned.mem": "99gb"}
    made = [
        build(Record(kind.title(), key, {**each, name: texts.get(name, "99")}))
        for key, each in records.items()
    ]
    return replace(snapshot, server=made[0]) if kind == "server" else replace(snapshot, queues=tuple(made))


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("server", "queue") for n in sorted(MOVED[k])])
def test_a_counter_is_no_disagreement_and_what_a_limit_reads_is_one(kind: str, name: str) -> None:
    other = changed(BUSY, kind, name)
    assert other != BUSY
    found = differences(BUSY, other, BUSY)
    assert bool(found) == (name not in COUNTS), found
    assert not differences(BUSY, other, other), "it has moved before the commands looked"
    assert not differences(BUSY, BUSY, other), "it has moved since"


# -- jobs between two looks


def with_jobs(*jobs: Job) -> Snapshot:
    return replace(BUSY, jobs=jobs)


def job(number: int, state: JobState = JobState.QUEUED, **fields: Any) -> Job:
    return Job(JobId(f"{number}.head"), state, QueueName("batch"), sequence=number, **fields)


def test_a_job_may_come_start_and_end_between_the_looks() -> None:
    old, new = job(1), job(2)
    running = replace(old, state=JobState.RUNNING, progress=StartProgress.BEGUN, start_s=5.0)
    for before, commands, after in (
        ((old,), (old, new), (old, new)),
        ((old,), (old,), (old, new)),
        ((old,), (), ()),
        ((old,), (old,), ()),
        ((old,), (replace(old, state=JobState.RUNNING),), (running,)),
        ((old,), (old, new), (old,)),  # the new one is gone again
    ):
        assert not differences(with_jobs(*before), with_jobs(*commands), with_jobs(*after))


def test_a_job_that_came_and_went_may_have_filled_a_node_meanwhile() -> None:
    def all_nodes(*states: NodeState, jobs: tuple[Job, ...] = (job(1),)) -> Snapshot:
        return replace(BUSY, jobs=jobs, nodes=tuple(replace(n, states=frozenset(states)) for n in BUSY.nodes))

    free, both = all_nodes(), (job(1), job(2))
    assert not differences(free, all_nodes(NodeState.JOB_EXCLUSIVE, jobs=both), free)
    for commands in (all_nodes(NodeState.JOB_EXCLUSIVE), all_nodes(NodeState.DOWN, jobs=both)):
        assert {field for _, _, field in differences(free, commands, free)} == {"states"}


def test_a_job_that_one_way_lacks_or_shows_otherwise_is_a_disagreement() -> None:
    old, other = job(1), job(2)
    cases: Iterable[tuple[tuple[Job, ...], str]] = (
        ((other,), "job 1.head: there (protocol True, commands False)"),
        ((old, other, job(0)), "job 0.head: there (protocol False, commands True)"),
        ((replace(old, priority=7), other), "job 1.head: priority (protocol 0, commands 7)"),
    )
    for commands, words in cases:
        both = with_jobs(old, other)
        assert in_words(differences(both, with_jobs(*commands), both), with_values=True) == words


# -- what decisions read

PASSING = {"used", "walltime_remaining_s"}
NAMES_OF_OTHERS = {
    "server": {"state"},
    "status": {"state", "version", "jobs", "values"},
    "gpu_report": {"fields"},
}
"""Fields whose names other classes have as well, and that no decision reads of these."""


def test_everything_that_decisions_read_is_compared() -> None:
    read = set()
    for path in sorted((ROOT / "torque_sched" / "decide").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    made = {"server": Server, "queue": Queue, "node": Node, "status": NodeStatus, "gpu_report": GpuDevice,
            "job": Job}  # fmt: skip
    for kind, made_of in made.items():
        fields = {field.name for field in dataclasses.fields(made_of)}
        assert set(COMPARED[kind]) <= fields, kind
        lacking = (fields & read) - set(COMPARED[kind]) - PASSING - NAMES_OF_OTHERS.get(kind, set())
        assert not lacking, kind
        assert not COUNTS & set(COMPARED[kind])


# -- the emulation moves what a real server moves


def shown(torque: EmulatedTorque) -> dict[str, dict[str, dict[str, str]]]:
    commands = {"server": ("qstat", "-B", "-f"), "queue": ("qstat", "-Q", "-f"), "node": ("pbsnodes", "-a")}
    return {kind: read(torque.run(*argv).stdout.encode(), kind.title()) for kind, argv in commands.items()}


def test_the_emulated_server_moves_the_attributes_that_a_real_one_moves(tmp_path: Path) -> None:
    nodes = "node1 np=2\nnode2 np=2\n"
    with EmulatedTorque.create(tmp_path / "c", clock="manual", nodes=nodes, listeners=()) as torque:
        torque.submit("-l", "nodes=1,mem=1gb", runtime_s=5)
        torque.run("qrun", "1")
        torque.clock.advance(400)
        idle = shown(torque)
        for _ in range(3):
            torque.run("qstat")
        again = shown(torque)
        assert moved(idle["server"], again["server"]) == {"net_counter"}
        assert (idle["queue"], idle["node"]) == (again["queue"], again["node"])
        for _ in range(2):
            torque.submit("-l", "nodes=1:ppn=2,mem=1gb", runtime_s=500)
        torque.run("qrun", "2")
        torque.clock.advance(60)
        busy = shown(torque)
        for kind, names in MOVED.items():
            found = moved(idle[kind], busy[kind])
            assert names - found <= {"status.sessions", "status.nusers", "status.nsessions"}, kind
            assert found - names <= {"status.loadave"}, kind
