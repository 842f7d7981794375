"""What real servers showed of jobs and nodes after each of 901 recorded commands, read and decided about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.unit.torque.emulation.transcript import FOLDER, State, read_transcript
from torque_sched.core.decisions import Start
from torque_sched.core.model import Queue, QueueName, Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.learning.figures import amounts_of
from torque_sched.parse.pbsnodes import parse_pbsnodes
from torque_sched.parse.qstat import parse_jobs
from torque_sched.parse.records import Record
from torque_sched.parse.xml import format_xml
from torque_sched.policies.context import Context
from torque_sched.policies.decide import decide
from torque_sched.policies.settings import Settings

VERSIONS = ("6.1.3", "4.2.10")
NOW_S = 1_795_000_100
NODES = {
    "node1": {"np": "2", "properties": "slow"},
    "node2": {"np": "4"},
    "node3": {"np": "8", "properties": "big"},
    "node4": {"np": "4", "properties": "gpunode", "gpus": "2"},
}
PLAIN = {"queue": "batch", "Hold_Types": "n", "substate": "10", "euser": "alice", "egroup": "hpc"}
"""What the transcripts leave out."""
WAITING = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING})


@dataclass(frozen=True)
class Moment:
    """What the server had after a step."""

    name: str
    state: State

    def snapshot(self, numbered: dict[str, str]) -> Snapshot:
        """As the daemon would see it; it must be read without a problem."""
        jobs = [_record("Job", key, PLAIN | each) for key, each in self.state.items() if key[0].isdigit()]
        nodes = [_record("Node", key, each) for key, each in self.state.items() if not key[0].isdigit()]
        # With -t the whole array is not listed.
        listed = [job for job in jobs if "[]" not in job.name]
        parsed = parse_jobs(format_xml(listed, header=numbered["version"] == "6.1.3"))
        hosts = parse_pbsnodes(format_xml(nodes))
        assert parsed.problems == hosts.problems == (), self.name
        queues = {job.queue: Queue(name=job.queue) for job in parsed.items}
        queues.setdefault(QueueName("batch"), Queue(name=QueueName("batch")))
        return Snapshot(NOW_S, Server(name="head"), tuple(queues.values()), hosts.items, parsed.items)


def _record(kind: str, name: str, attributes: dict[str, str]) -> Record:
    shown = {key: _number(key) if value == "*" else value for key, value in attributes.items()}
    return Record(kind, name, {"state": "free", **shown} if kind == "Node" else shown)


def _number(name: str) -> str:
    """A figure for one that was blanked out."""
    return "5.5" if name in {"total_runtime", "Walltime.Remaining"} else str(NOW_S - 100)


_PART = re.compile(r"(?:^|; )(?:-([A-Za-z_][\w.]*)(?=;|$)|([A-Za-z_][\w.]*)=)")


def changed(before: dict[str, str], text: str) -> dict[str, str]:
    """An object's attributes after ``name=value; -gone``."""
    after = dict(before)
    marks = list(_PART.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        gone, name = mark.groups()
        if gone:
            after.pop(gone, None)
        else:
            after[name] = text[mark.end() : following.start() if following else len(text)]
    return after


def moments(version: str) -> Iterator[Moment]:
    """Every step of every scenario."""
    for scenario, entries in read_transcript((FOLDER / f"{version}.txt").read_text("utf-8")).items():
        state: State = {name: dict(each) for name, each in NODES.items()}
        for number, entry in enumerate(entries):
            for line in entry.lines:
                mark, _, rest = line.partition(" ")
                key, _, text = rest.partition(" ")
                if mark == "-":
                    state.pop(key, None)
                elif mark in {"+", "~"}:
                    state[key] = changed(state.get(key, {}) if mark == "~" else {}, text)
            if any(line[:1] in "+~-" for line in entry.lines):
                yield Moment(
                    f"{scenario}, step {number}: {entry.step}", {k: dict(v) for k, v in state.items()}
                )


@pytest.fixture(params=VERSIONS, scope="module")
def seen(request: pytest.FixtureRequest) -> list[tuple[str, Snapshot]]:
    version = request.param
    found = [(each.name, each.snapshot({"version": version})) for each in moments(version)]
    assert len(found) > 300
    return found


def test_a_job_holds_something_just_while_it_runs(seen: list[tuple[str, Snapshot]]) -> None:
    """What qrerun, a refused qrun and a deletion leave on a job is no use of anything."""
    for name, snapshot in seen:
        for job in snapshot.jobs:
            if job.state in WAITING:
                left = (job.exec_host, job.exec_gpus, job.start_s, job.exit_status, job.comp_s)
                assert left == ((), (), None, None, None), (name, job.id)
            if job.state is JobState.RUNNING:
                assert job.exec_host, (name, job.id)
                assert job.start_s is not None, (name, job.id)
                assert job.exit_status is None, (name, job.id)


def test_just_the_jobs_that_ran_to_an_end_teach_something(seen: list[tuple[str, Snapshot]]) -> None:
    for name, snapshot in seen:
        for job in snapshot.jobs:
            if job.state is JobState.COMPLETED:
                assert (amounts_of(job) is not None) == (job.comp_s is not None), (name, job.id)


def test_nothing_is_given_away_twice(seen: list[tuple[str, Snapshot]]) -> None:
    """Slots and GPUs of what runs or is suspended, and of all that would start, fit every node."""
    n_starts = 0
    for name, snapshot in seen:
        slots, gpus, starts = used_after(snapshot)
        n_starts += len(starts)
        for node in snapshot.nodes:
            before = used(snapshot, node.name)
            # Some scenarios take slots away from a node that has jobs.
            assert slots[node.name] <= max(node.np, before[0]), (name, node.name)
            assert gpus[node.name] <= max(node.gpus, before[1]), (name, node.name)
        states = {job.id: job.state for job in snapshot.jobs}
        assert {states[each.job] for each in starts} <= {JobState.QUEUED}, name
    assert n_starts > 300


def used(snapshot: Snapshot, node: str) -> tuple[int, int]:
    slots, gpus = _held(snapshot)
    return slots[node], gpus[node]


def _held(snapshot: Snapshot) -> tuple[Counter[str], Counter[str]]:
    slots: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for job in (*snapshot.running, *snapshot.suspended):
        slots.update(job.slots_by_node())
        gpus.update(job.gpus_by_node())
    return slots, gpus


def used_after(snapshot: Snapshot) -> tuple[Counter[str], Counter[str], list[Start]]:
    slots, gpus = _held(snapshot)
    starts = [each for each in decide(snapshot, Settings(), Context()) if isinstance(each, Start)]
    for start in starts:
        for share in start.allocation:
            slots[share.node] += share.ppn
            gpus[share.node] += share.gpus
    return slots, gpus, starts


def test_the_same_slot_twice_is_two_jobs_on_it() -> None:
    """A job that was resumed onto a slot given away meanwhile, in the order of their starts."""
    [node] = parse_pbsnodes(
        format_xml([_record("Node", "node1", {"np": "4", "jobs": "0/1001.head,0-1/1000.head"})])
    ).items
    assert (node.slots_used, node.slots_free) == (3, 1)


def test_a_job_deleted_while_it_waited_to_run_again_did_not_end_a_run() -> None:
    """What qrerun left on it is there again once it is gone; a real end has a comp_time."""
    left = {"start_time": str(NOW_S - 500), "exit_status": "0", "exec_host": "node3/0", "start_count": "1"}
    both = [
        _record("Job", "1.head", PLAIN | left | {"job_state": "C", "substate": "59"}),
        _record(
            "Job", "2.head", PLAIN | left | {"job_state": "C", "substate": "59", "comp_time": str(NOW_S)}
        ),
    ]
    deleted, ended = parse_jobs(format_xml(both)).items
    assert (deleted.exec_host, deleted.start_s, amounts_of(deleted)) == ((), None, None)
    assert amounts_of(ended) is not None
