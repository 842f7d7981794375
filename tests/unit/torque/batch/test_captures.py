"""Golden tests: what real servers printed is understood in full and printed again byte for byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import pytest

from tests.fixtures.torque_printing import (
    format_accounting,
    format_pbsnodes_text,
    format_qmgr,
    format_qstat_text,
    format_xml,
    record_from_job,
    record_from_node,
    record_from_queue,
)
from tests.unit.torque.emulation.transcript import FOLDER, State, read_transcript
from torque_sched.batch.system import OrderKind
from torque_sched.batch.torque.parse.accounting import job_from_accounting, parse_accounting
from torque_sched.batch.torque.parse.jobs import job_from_record
from torque_sched.batch.torque.parse.pbsnodes import node_from_record, parse_pbsnodes
from torque_sched.batch.torque.parse.qmgr import parse_qmgr
from torque_sched.batch.torque.parse.qrun import classify_qrun
from torque_sched.batch.torque.parse.qstat import parse_jobs, parse_queues, parse_server, queue_from_record
from torque_sched.batch.torque.parse.records import Record
from torque_sched.batch.torque.parse.text import read_text
from torque_sched.batch.torque.parse.xml import read_xml
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.settings import Settings
from torque_sched.learn.figures import amounts_of
from torque_sched.model.cluster import GpuSlot, HostSlots, Job, JobSlots, Node, Queue, QueueName, Server
from torque_sched.model.decisions import Start
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import HoldType, JobState, NodeState

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "torque"
NODES = {
    "baseline-pbsnodes-a": 4, "down-pbsnodes-a": 4, "gpu-1job-pbsnodes": 1, "gpu-idle-pbsnodes-x": 1,
    "gpu-idle-pbsnodes": 1, "healthcheck-pbsnodes": 1, "idle-pbsnodes-a": 4, "idle-pbsnodes-one": 1,
    "idle-pbsnodes-x": 4, "running-pbsnodes-a": 4, "running-pbsnodes-x": 4, "v42-pbsnodes-a": 2,
    "varattr-pbsnodes": 1,
}  # fmt: skip
JOBS = {
    "baseline2-qstat-f": 12, "completed-qstat-f-x": 1, "completed-qstat-f": 1, "idle-qstat-f-x": 0,
    "idle-qstat-f": 0, "interactive-qstat-f": 1, "running-qstat-f-1": 9, "running-qstat-f-as-user": 5,
    "running-qstat-f-t-x": 12, "running-qstat-f-t": 12, "running-qstat-f-x": 9, "running-qstat-f": 9,
    "v42-qstat-f-t": 6,
}  # fmt: skip
QUEUES = ("idle-qstat-Q-f-1", "idle-qstat-Q-f", "running-qstat-Q-f-1", "running-qstat-Q-f-x")
SERVERS = ("idle-qstat-B-f", "running-qstat-B-f-x", "v42-qstat-B-f")
QMGR = ("qmgr-print-node", "qmgr-print-server", "qmgr-print-server-alice", "v42-qmgr-print-server")
KINDS: dict[str, Collection[str]] = {"Node": NODES, "Job": JOBS, "Queue": QUEUES, "Server": SERVERS}
PARSED = re.compile(
    r"(?<!serverdown-)pbsnodes(-a|-x|-one)?$|qstat-(Q-|B-)?f\b|qmgr-print|qrun.*\.stderr$|accounting"
)
"""Captures of forms that are parsed; of the others the emulation's tests are the users."""
QRUN = {
    "err-qrun-already-running": OrderKind.ALREADY_RUNNING, "err-qrun-array-parent": OrderKind.ARRAY_PARENT,
    "err-qrun-array-slot-limit": OrderKind.ARRAY_LIMIT, "err-qrun-async-not-enough": OrderKind.NOT_NOW,
    "err-qrun-bad-spec": OrderKind.NEVER, "err-qrun-down-node": OrderKind.NOT_NOW,
    "err-qrun-gpus-missing": OrderKind.NEVER, "err-qrun-malformed-id": OrderKind.BAD_ID,
    "err-qrun-never-fits": OrderKind.NEVER, "err-qrun-no-args": OrderKind.USAGE,
    "err-qrun-not-enough-slots-now": OrderKind.NOT_NOW, "err-qrun-offline-node": OrderKind.NOT_NOW,
    "err-qrun-procs-without-H": OrderKind.NO_REQUEST, "err-qrun-property-as-host": OrderKind.NEVER,
    "err-qrun-queue-stopped": OrderKind.QUEUE_STOPPED, "err-qrun-unauthorised": OrderKind.UNAUTHORISED,
    "err-qrun-unknown-job": OrderKind.UNKNOWN_JOB, "err-qrun-unknown-node": OrderKind.NEVER,
    "err-qrun-unknown-second-node": OrderKind.NEVER, "err-qrun-waiting": OrderKind.WRONG_STATE,
    "gpu-3rd-shared-qrun": OrderKind.NOT_NOW, "gpu-4th-excl-qrun": OrderKind.NOT_NOW,
    "serverdown-qrun": OrderKind.SERVER_GONE, "v42-err-qrun-busy": OrderKind.NOT_NOW,
    "v42-err-qrun-unknown-job": OrderKind.UNKNOWN_JOB, "v42-err-qrun-unknown-node": OrderKind.NEVER,
    "v42-err-qrun-user": OrderKind.UNAUTHORISED,
}  # fmt: skip


def capture(name: str) -> bytes:
    return (GOLDEN / f"{name}.txt").read_bytes()


def nodes(name: str) -> dict[str, Node]:
    return {node.name: node for node in parse_pbsnodes(capture(name)).items}


def jobs(name: str) -> dict[str, Job]:
    return {job.id: job for job in parse_jobs(capture(name)).items}


def test_no_capture_is_left_untested() -> None:
    named = {*NODES, *JOBS, *QUEUES, *SERVERS, *QMGR, "accounting-log"} | {f"{name}.stderr" for name in QRUN}
    assert named <= {path.stem for path in GOLDEN.glob("*.txt")}
    left = {path.stem for path in GOLDEN.glob("*.txt") if PARSED.search(path.stem)} - named
    assert left == set()


@pytest.mark.parametrize("name", NODES)
def test_every_node_is_understood(name: str) -> None:
    parsed = parse_pbsnodes(capture(name))
    assert (len(parsed.items), parsed.problems) == (NODES[name], ())
    assert all(node.status is not None and node.status.physmem_bytes for node in parsed.items)
    for node in parsed.items:
        assert node_from_record(record_from_node(node)) == node
        assert node_from_record(record_from_node(node, dialect=4)).jobs == node.jobs


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_understood(name: str) -> None:
    parsed = parse_jobs(capture(name))
    assert (len(parsed.items), parsed.problems) == (JOBS[name], ())
    for job in parsed.items:
        assert not job.request.trouble
        assert [job_from_record(record_from_job(job, dialect=each)) for each in (6, 4)] == [job, job]


@pytest.mark.parametrize("name", [*NODES, *JOBS, *QUEUES, *SERVERS])
def test_records_are_printed_again_byte_for_byte(name: str) -> None:
    text = capture(name).decode()
    kind = next(kind for kind, names in KINDS.items() if name in names)
    if text.lstrip().startswith("<"):
        assert format_xml(read_xml(text, kind, name).items, header=kind == "Job") == text
    elif kind == "Node":
        assert format_pbsnodes_text(read_text(text, kind, name).items) == text
    else:
        assert format_qstat_text(read_text(text, kind, name).items, fold=not name.endswith("-1")) == text


SHOWN: dict[tuple[str, str], dict[str, object]] = {
    ("running-pbsnodes-x", "node2"): {
        "states": {NodeState.JOB_EXCLUSIVE},
        "jobs": (JobSlots("46.head", 0, 1), JobSlots("47[0].head", 2, 2), JobSlots("47[1].head", 3, 3)),
    },
    ("running-pbsnodes-x", "node4"): {
        "slots": 4, "gpus": 2, "slots_free": 2, "properties": ("gpunode",), "status.ncpus": 2,
        "status.loadave": 2.21, "status.rectime_s": 1795195736.0, "mem_bytes": 24684092 * 1024,
        "extra": {"mom_service_port": "15002", "mom_manager_port": "15003"},
    },
    ("down-pbsnodes-a", "node1"): {"states": {NodeState.DOWN}},
    ("down-pbsnodes-a", "node2"): {
        "states": {NodeState.OFFLINE, NodeState.JOB_EXCLUSIVE}, "note": "fan broken, ticket 42 <&>",
        "is_up": False,
    },
    ("v42-pbsnodes-a", "node2"): {  # slots one by one, and the status backwards
        "jobs": (JobSlots("19.head", 0, 1), JobSlots("20[1].head", 2, 2)), "power_saving": "", "is_up": True,
        "status.jobs": ("19.head", "20[1].head"),
    },
    ("healthcheck-pbsnodes", "node1"): {
        "status.varattr": {"gputype": "a100+a40", "rack": "r12"}, "status.gres": {"matlab_lic": "4"},
        "status.message": "ERROR /scratch not mounted",
    },
    ("varattr-pbsnodes", "node1"): {"states": {NodeState.BUSY}},
    ("running-qstat-f-t-x", "45.head"): {
        "allocated_gpus": (GpuSlot("node4", 0),), "request.n_procs": 2, "request.n_gpus": 1,
        "walltime_s": 1800.0, "request.mem_bytes": 2**31, "request.pmem_bytes": 2**30,
        "used.mem_bytes": 8156 * 1024,
    },
    ("running-qstat-f-t-x", "46.head"): {
        "allocated_slots": (HostSlots("node2", 0, 1), HostSlots("node3", 2, 3)), "user": "bob",
        "group": "hpc", "owner": "bob@head",
    },
    ("running-qstat-f-t-x", "47[2].head"): {
        "array": 47, "array_index": 2, "array_slot_limit": 2, "hold_types": {HoldType.ARRAY_SLOT_LIMIT},
    },
    ("running-qstat-f-x", "47[].head"): {"is_array_parent": True, "array_slot_limit": 2},
    ("running-qstat-f-t-x", "48.head"): {"hold_types": {HoldType.USER}},
    ("running-qstat-f-t-x", "50.head"): {"state": JobState.WAITING, "execution_time_s": 1798761540.0},
    ("running-qstat-f-t-x", "52.head"): {"request.procs": 3},
    ("completed-qstat-f-x", "64.head"): {
        "state": JobState.COMPLETED, "exit_status": 3, "total_runtime_s": 8.314668, "comp_s": 1795196041.0,
        "used.walltime_s": 8.0, "used.cput_s": 3.0,
    },
}  # fmt: skip
"""Of a capture's node or job: attribute -> value."""


@pytest.mark.parametrize(("capture_name", "name"), SHOWN)
def test_values_of_nodes_and_jobs(capture_name: str, name: str) -> None:
    found = (jobs if "qstat" in capture_name else nodes)(capture_name)[name]
    wanted = SHOWN[capture_name, name]
    assert {path: attrgetter(path)(found) for path in wanted} == wanted


def test_gpus_are_in_order_with_their_readings() -> None:
    report = nodes("gpu-1job-pbsnodes")["node4"].gpu_report
    assert report is not None
    assert (report.driver, report.timestamp) == ("535.104.05", "Fri Nov 20 17:33:00 2026")
    first, second = report.devices
    assert (first.index, first.utilization, first.memory_used_bytes) == (0, 0.37, 5120 * 1024**2)
    assert (first.mode, first.state, first.temperature_c) == ("Exclusive_Process", "Exclusive", 48.0)
    assert (second.index, second.state, second.memory_total_bytes) == (1, "Unallocated", 40960 * 1024**2)


def test_words_of_a_request_are_properties_names_and_jobs() -> None:
    found = jobs("running-qstat-f-t-x")
    assert found["49.head"].depend[0].jobs == ("44.head",)
    assert found["51.head"].request.chunks[0].properties == ("big",)
    single = [job.request.chunks[0].name for job in jobs("baseline2-qstat-f").values() if job.request.chunks]
    assert [name for name in single if name] == ["gpunode", "gpunode"]


def test_xml_and_text_of_one_moment_say_the_same() -> None:
    assert nodes("running-pbsnodes-x") == nodes("running-pbsnodes-a")
    assert jobs("running-qstat-f-t-x") == jobs("running-qstat-f-t")
    assert jobs("running-qstat-f-x") == jobs("running-qstat-f") == jobs("running-qstat-f-1")


@pytest.mark.parametrize("name", QUEUES)
def test_queues(name: str) -> None:
    parsed = parse_queues(capture(name))
    assert parsed.problems == ()
    gpuq, batch = parsed.items
    assert (gpuq.name, gpuq.priority, gpuq.max_user_run, gpuq.is_started) == ("gpuq", 50, 2, True)
    assert gpuq.resources_max.amount("walltime") == 7200.0
    assert batch.max_running is None
    assert [queue_from_record(record_from_queue(queue)) for queue in parsed.items] == [gpuq, batch]


@pytest.mark.parametrize("name", SERVERS)
def test_servers(name: str) -> None:
    server = parse_server(capture(name))
    assert (server.name, server.scheduling, server.default_queue) == ("head", False, "batch")
    assert sum(server.state_count.values()) == server.total_jobs


@pytest.mark.parametrize("name", QMGR)
def test_qmgr_commands_are_read_and_printed_again(name: str) -> None:
    parsed = parse_qmgr(capture(name))
    assert parsed.problems == ()
    assert format_qmgr(parsed.items) == capture(name).decode()


@pytest.mark.parametrize("name", QRUN)
def test_refusals_of_qrun_are_told_apart(name: str) -> None:
    exit_code = 1 if QRUN[name] in {OrderKind.BAD_ID, OrderKind.USAGE} else 2
    result = classify_qrun(exit_code, capture(f"{name}.stderr"))
    assert result.kind is QRUN[name]
    assert result.text
    assert "\n" not in result.text


def test_the_accounting_file_is_read_whole_and_printed_again() -> None:
    text = capture("accounting-log").decode()
    parsed = parse_accounting(text)
    assert (len(parsed.items), parsed.problems) == (471, ())
    again = "".join(format_accounting(record) for record in parsed.items)
    assert [line.rstrip() for line in again.split("\n")] == [line.rstrip() for line in text.split("\n")]


def test_finished_jobs_of_the_accounting_file() -> None:
    records = [record for record in parse_accounting(capture("accounting-log")).items if record.type == "E"]
    finished = {job.id: job for job in map(job_from_accounting, records)}
    assert (len(records), len(finished)) == (119, 107)
    assert {job.exit_status for job in finished.values()} == {-11, 0, 3, 265, 271}
    job = finished["0.head"]  # type: ignore[index]
    assert (job.user, job.group) == ("alice", "hpc")
    assert (job.used.walltime_s, job.used.mem_bytes) == (190.0, 7908 * 1024)
    assert (job.start_s, job.comp_s, job.request.n_procs) == (1795195261.0, 1795195451.0, 2)
    task = finished["136.head"].request.tasks[0]  # type: ignore[index]
    assert (task.count, task.slots, task.mem_bytes) == (1, 2, 2**30)


# What real servers showed of jobs and nodes after each of 901 recorded commands, read and decided about.


VERSIONS = ("6.1.3", "4.2.10")
NOW_S = 1_795_000_100
RECORDED_NODES = {
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
        state: State = {name: dict(each) for name, each in RECORDED_NODES.items()}
        for number, entry in enumerate(entries):
            for line in entry.lines:
                mark, _, rest = line.partition(" ")
                key, _, text = rest.partition(" ")
                if mark == "-":
                    state.pop(key, None)
                elif mark in {"+", "~"}:
                    state[key] = changed(state.get(key, {}) if mark == "~" else {}, text)
            if any(line[:1] in "+~-" for line in entry.lines):
                now = {key: dict(each) for key, each in state.items()}
                yield Moment(f"{scenario}, step {number}: {entry.step}", now)


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
                left = (job.allocated_slots, job.allocated_gpus, job.start_s, job.exit_status, job.comp_s)
                assert left == ((), (), None, None, None), (name, job.id)
            if job.state is JobState.RUNNING:
                assert job.allocated_slots, (name, job.id)
                assert job.start_s is not None, (name, job.id)
                assert job.exit_status is None, (name, job.id)


def test_just_the_jobs_that_ran_to_an_end_teach_something(seen: list[tuple[str, Snapshot]]) -> None:
    for name, snapshot in seen:
        for job in snapshot.jobs:
            if job.state is JobState.COMPLETED:
                assert (amounts_of(job) is not None) == (job.comp_s is not None), (name, job.id)


def held_of(snapshot: Snapshot) -> tuple[Counter[str], Counter[str]]:
    """Slots and GPUs by node of what runs or is suspended."""
    slots: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for job in (*snapshot.running, *snapshot.suspended):
        slots.update(job.slots_by_node())
        gpus.update(job.gpus_by_node())
    return slots, gpus


def test_nothing_is_given_away_twice(seen: list[tuple[str, Snapshot]]) -> None:
    """Slots and GPUs of what runs or is suspended, and of all that would start, fit every node."""
    n_starts = 0
    for name, snapshot in seen:
        held = slots, gpus = held_of(snapshot)
        starts = [each for each in decide(snapshot, Settings(), Context()) if isinstance(each, Start)]
        for share in (share for start in starts for share in start.allocation):
            slots, gpus = slots + Counter({share.node: share.slots}), gpus + Counter({share.node: share.gpus})
        n_starts += len(starts)
        for node in snapshot.nodes:
            # Some scenarios take slots away from a node that has jobs.
            assert slots[node.name] <= max(node.slots, held[0][node.name]), (name, node.name)
            assert gpus[node.name] <= max(node.gpus, held[1][node.name]), (name, node.name)
        states = {job.id: job.state for job in snapshot.jobs}
        assert {states[each.job] for each in starts} <= {JobState.QUEUED}, name
    assert n_starts > 300


def test_the_same_slot_twice_is_two_jobs_on_it() -> None:
    """A job that was resumed onto a slot given away meanwhile, in the order of their starts."""
    record = _record("Node", "node1", {"np": "4", "jobs": "0/1001.head,0-1/1000.head"})
    [node] = parse_pbsnodes(format_xml([record])).items
    assert (node.slots_used, node.slots_free) == (3, 1)


def test_a_job_deleted_while_it_waited_to_run_again_did_not_end_a_run() -> None:
    """What qrerun left on it is there again once it is gone; a real end has a comp_time."""
    left = PLAIN | {"start_time": str(NOW_S - 500), "exit_status": "0", "exec_host": "node3/0",
                    "start_count": "1", "job_state": "C", "substate": "59"}  # fmt: skip
    both = (_record("Job", "1.head", left), _record("Job", "2.head", left | {"comp_time": str(NOW_S)}))
    deleted, ended = parse_jobs(format_xml(both)).items
    assert (deleted.allocated_slots, deleted.start_s, amounts_of(deleted)) == ((), None, None)
    assert amounts_of(ended) is not None
