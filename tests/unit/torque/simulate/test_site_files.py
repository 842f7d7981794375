"""A site's own files: what is read, and that a damaged record costs itself alone and is named once."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.unit.torque.simulate.worlds import rules
from torque_sched.errors import ConfigError, DocumentError
from torque_sched.model.cluster import Node, NodeName
from torque_sched.model.states import JobState
from torque_sched.simulate.live import run_live
from torque_sched.simulate.site_files import (
    read_accounting,
    read_limits,
    read_nodes,
    read_outages,
    site_of_files,
)
from torque_sched.simulate.workload import Rejected

CAPTURES = Path(__file__).resolve().parents[3] / "golden" / "torque"
BEGIN_S = 1_795_200_000


def ended(number: int, *, came: int = 0, start: int = 10, end: int = 110, queue: str = "batch") -> str:
    """The E record of a job; times in seconds from the begin."""
    at = [BEGIN_S + each for each in (came, start, end)]
    return (
        f"11/20/2026 19:00:00;E;{number}.head;user=ann group=hpc account=lab jobname=sim queue={queue} "
        f"ctime={at[0]} qtime={at[0]} etime={at[0]} start_count=1 start={at[1]} owner=ann@head "
        "exec_host=n1/0-1 Resource_List.nodes=1:ppn=2 Resource_List.walltime=00:10:00 session=5 "
        f"total_execution_slots=2 unique_node_count=1 end={at[2]} Exit_status=0 resources_used.cput=150 "
        "resources_used.mem=2048kb resources_used.walltime=00:01:40"
    )


def folder(tmp_path: Path, *lines: str, name: str = "20261120") -> Path:
    (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def test_a_job_waits_as_it_did_and_runs_as_long(tmp_path: Path) -> None:
    found = read_accounting(folder(tmp_path, ended(7)))
    nodes, _ = read_nodes(_file(tmp_path, "n1 np=2"))
    (job,) = site_of_files("here", found, nodes).jobs
    assert job.job.state is JobState.QUEUED
    assert (job.submit_s, job.run_s, job.cput_s, job.mem_bytes) == (BEGIN_S, 100, 150, 2 << 20)
    assert (job.job.user, job.job.group, job.job.account, job.job.queue) == ("ann", "hpc", "lab", "batch")
    assert (job.job.request.n_procs, job.job.walltime_s) == (2, 600)
    assert not job.job.allocated_slots
    assert job.job.start_s is None


def test_what_cannot_be_used_is_named_once_and_the_counts_add_up(tmp_path: Path) -> None:
    found = read_accounting(
        folder(
            tmp_path,
            ended(1),
            ended(2, end=5),  # ended before it started
            ended(3)[:28],
            "11/20/2026 19:00:00;E;4.head;state=F reason=of another version",
            "no record at all",
            ended(5, start=5, end=9),
            ended(5, start=20, end=90),  # repeated: its last run counts
            "11/20/2026 19:00:00;Q;6.head;queue=batch",
        )
    )
    assert [job.id for job in found.jobs] == ["1.head", "5.head"]
    assert found.jobs[1].start_s == BEGIN_S + 20
    assert found.rejected == {Rejected.NEVER_RAN: 1, Rejected.DAMAGED: 3}
    assert found.n_repeated == 1
    assert found.n_records == len(found.jobs) + sum(found.rejected.values()) + found.n_repeated
    assert len(found.problems) == 3
    assert all("20261120" in problem for problem in found.problems)


def test_days_are_read_compressed_too_and_chosen_by_time(tmp_path: Path) -> None:
    folder(tmp_path, ended(1), ended(2, came=5000, start=5000, end=5001))
    with gzip.open(tmp_path / "20261121.gz", "wt", encoding="utf-8") as day:
        day.write(ended(3, came=90_000, start=90_000, end=90_001) + "\n")
    (tmp_path / "notes").write_text("no day\n", encoding="utf-8")
    (tmp_path / "20261122.gz").write_bytes(b"no archive")
    found = read_accounting(tmp_path, BEGIN_S + 1, BEGIN_S + 90_000)
    assert [job.id for job in found.jobs] == ["2.head"]
    assert found.rejected == {Rejected.OTHER_TIME: 2, Rejected.DAMAGED: 1}
    with pytest.raises(DocumentError, match="holds no job that ended"):
        read_accounting(tmp_path, BEGIN_S + 10**6)
    with pytest.raises(DocumentError, match="No such file"):
        read_accounting(tmp_path / "none")


def test_the_records_of_a_real_server_are_simulated(tmp_path: Path) -> None:
    """The accounting of a Torque 6.1.3 with four nodes (tests/golden/torque)."""
    (tmp_path / "20261120").write_bytes((CAPTURES / "accounting-log.txt").read_bytes())
    found = read_accounting(tmp_path)
    assert found.n_records == len(found.jobs) + sum(found.rejected.values()) + found.n_repeated
    nodes, problems = read_nodes(CAPTURES / "idle-pbsnodes-a.txt")
    limits, more = read_limits(CAPTURES / "qmgr-print-server.txt")
    assert (problems, more) == ((), ())
    world = site_of_files("real", found, nodes, limits)
    schedule = run_live(world, rules())
    assert len(schedule.starts) + len(schedule.never) == len(found.jobs)
    assert len(schedule.never) <= 1
    assert run_live(world, rules()).digest == schedule.digest


def _file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "nodes.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def shown(nodes: tuple[Node, ...]) -> list[tuple[str, int, int, tuple[str, ...]]]:
    return [(node.name, node.slots, node.gpus, node.properties) for node in nodes]


def test_a_line_of_the_nodes_file_that_cannot_be_read_costs_that_node(tmp_path: Path) -> None:
    path = _file(
        tmp_path, "# all of them", "n1 np=4 gpus=2 fast big num_node_boards=1 # first", "", "n2:ts",
        "n3 np=many", "n4 np=2 -x", "/etc np=2", "n1 np=8", "n5 np=999999999",
    )  # fmt: skip
    nodes, problems = read_nodes(path, mem_bytes=1 << 30)
    assert shown(nodes) == [("n1", 4, 2, ("fast", "big")), ("n2", 1, 0, ())]
    assert {node.mem_bytes for node in nodes} == {1 << 30}
    places = [problem.split(" is ")[0].removeprefix("nodes.txt: ") for problem in problems]
    assert places == ["line 5", "line 6", "line 7", "line 9", "node n1"]
    with pytest.raises(ConfigError, match="names no node"):
        read_nodes(_file(tmp_path, "n1 np=x"))


def test_nodes_printed_by_pbsnodes_have_memory_and_are_idle() -> None:
    nodes, _ = read_nodes(CAPTURES / "running-pbsnodes-a.txt")
    assert all(node.mem_bytes > 0 and node.slots_free == node.slots and node.is_up for node in nodes)


@pytest.mark.parametrize("form", ["a", "x"])
def test_of_cut_output_of_pbsnodes_the_whole_nodes_are_read(tmp_path: Path, form: str) -> None:
    whole = (CAPTURES / f"idle-pbsnodes-{form}.txt").read_text(encoding="utf-8")
    all_nodes, _ = read_nodes(CAPTURES / f"idle-pbsnodes-{form}.txt")
    last = whole.index(all_nodes[-1].name, whole.index(all_nodes[-2].name))
    path = tmp_path / "cut.txt"
    behind = len(whole.rstrip().removesuffix("</Data>").rstrip())
    for end in range(last + 3, behind - 1, 7):
        path.write_text(whole[:end], encoding="utf-8")
        nodes, problems = read_nodes(path)
        assert nodes == all_nodes[:-1]
        assert len(problems) == 1
        assert "cut off" in problems[0]


def test_outages_of_a_node_that_meet_are_one(tmp_path: Path) -> None:
    nodes = [Node(NodeName("n1"), 2)]
    path = _file(
        tmp_path, "n1 100 200", "n1 150 300 # longer", "n1 400 500", "n9 1 2", "n1 5", "n1 9 8", "n1 a b"
    )
    outages, problems = read_outages(path, nodes)
    assert [(each.start_s, each.end_s) for each in outages] == [(100, 300), (400, 500)]
    assert len(problems) == 4


def test_a_limit_that_is_garbled_costs_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "server.txt"
    path.write_text(
        "create queue a\nset queue a started = True\nset queue a max_running = 3\n"
        "create queue b\nset queue b max_running = lots\nset server max_user_run = 2\nnonsense\n",
        encoding="utf-8",
    )
    (server, queues), problems = read_limits(path)
    assert [(queue.name, queue.max_running) for queue in queues] == [("a", 3)]
    assert server.max_user_run == 2
    assert len(problems) == 2


def test_a_damaged_archive_counts_up_to_the_damage(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f"{ended(number)}\n" for number in range(1, 400)).encode())
    (tmp_path / "20261120.gz").write_bytes(packed[: len(packed) // 2])
    folder(tmp_path, ended(1000), name="20261121")
    found = read_accounting(tmp_path)
    n_whole = len(found.jobs) - 1
    assert 50 < n_whole < 399
    assert [job.id for job in found.jobs] == [
        *(f"{number}.head" for number in range(1, n_whole + 1)),
        "1000.head",
    ]
    assert len(found.problems) == 1
    assert found.rejected == {Rejected.DAMAGED: 1}
    (tmp_path / "20261120.gz").write_bytes(packed[:40] + b"\xff" * 40 + packed[80:])
    assert "1000.head" in {job.id for job in read_accounting(tmp_path).jobs}


def test_a_byte_order_mark_costs_no_node(tmp_path: Path) -> None:
    nodes, problems = read_nodes(_file(tmp_path, "\ufeffn1 np=8\nn2 np=4\n"))
    assert [node.slots for node in nodes] == [8, 4]
    assert not problems
    outages, problems = read_outages(_file(tmp_path, "\ufeffn1 100 200\n"), nodes)
    assert len(outages) == 1
    assert not problems
