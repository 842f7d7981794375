"""The command over nodes: a log or a site's own files, under several settings at once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torque_sched.commands.simulate import simulate
from torque_sched.emulation import EmulatedOpenPbs
from torque_sched.simulate.site_files import read_limits, read_nodes

ROOT = Path(__file__).resolve().parents[4]
LOG = str(ROOT / "benchmarks" / "traces" / "ctc_1000.swf.gz")
CAPTURES = ROOT / "tests" / "golden" / "torque"
IDLE = str(CAPTURES / "idle-pbsnodes-a.txt")


def ask(*words: str) -> Result:
    return CliRunner().invoke(simulate, list(words))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The PBS home of the server whose output tests/golden/torque holds; one line of its nodes is damaged."""
    place = tmp_path / "torque"
    (place / "server_priv" / "accounting").mkdir(parents=True)
    (place / "sched_priv").mkdir()
    day = place / "server_priv" / "accounting" / "20261120"
    day.write_bytes((CAPTURES / "accounting-log.txt").read_bytes() + b"11/20/2026 20:00:00;E;900.head\n")
    nodes = "node1 np=2\nnode2 np=2\nnode3 np=two\nnode4 np=4 gpus=2 gpunode\n"
    (place / "server_priv" / "nodes").write_text(nodes)
    (place / "sched_priv" / "torque_sched.yaml").write_text("backfill: none\n")
    return place


def test_last_month_under_two_settings(home: Path, tmp_path: Path) -> None:
    for name in ("easy", "conservative"):
        (tmp_path / f"{name}.yaml").write_text(f"backfill: {name}\n")
    words = (
        "--home", str(home), "--qmgr", str(CAPTURES / "qmgr-print-server.txt"), "--settings",
        str(tmp_path / "easy.yaml"), "--settings", str(tmp_path / "conservative.yaml"), "--check",
        "--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html"),
    )  # fmt: skip
    result = ask(*words)
    assert result.exit_code == 0, result.output
    assert re.search(r"easy\s+┃\s+conservative", result.output)
    assert result.output.count("nodes: line 3 is no node (np is no number)") == 1
    assert result.output.count("900.head") == 1
    found = json.loads((tmp_path / "a.json").read_text())
    jobs = found["jobs"]
    assert jobs["in"] == jobs["simulated"] + sum(jobs["rejected"].values()) + jobs["ignored"]
    assert {"machine", "cores", "python", "version", "commit"} <= found["machine"].keys()
    for each in found["policies"].values():
        assert each["problems"] == []
        assert each["n_jobs"] + len(each["never_started"]) == jobs["simulated"]
        assert all("never started" in result.output for _ in each["never_started"])
    page = (tmp_path / "a.html").read_text()
    assert page.count("<img ") == 4
    assert "://" not in page
    assert ask(*words).exit_code == 0
    again = json.loads((tmp_path / "a.json").read_text())
    assert {name: each["schedule_hash"] for name, each in again["policies"].items()} == {
        name: each["schedule_hash"] for name, each in found["policies"].items()
    }


def test_a_home_alone_is_simulated_under_its_own_settings(home: Path) -> None:
    result = ask("--home", str(home))
    assert result.exit_code == 0, result.output
    assert re.search(r"┃\s+none\s+┃", result.output)


def test_last_month_of_an_openpbs(tmp_path: Path) -> None:
    """The captured starts of a real server, each with the end that it would have written."""
    captures = ROOT / "tests" / "golden" / "openpbs"
    lines = (captures / "accounting-sample.txt").read_text().splitlines()
    starts = [line for line in lines if ";S;" in line]
    ends = []
    for at, line in enumerate(starts):
        start_s = int(re.findall(r" start=(\d+)", line)[0])
        ends.append(
            f"{line.replace(';S;', ';E;').rstrip()} session=7 end={start_s + 60 * (at + 1)} Exit_status=0 "
            f"resources_used.cpupct=0 resources_used.cput=00:00:01 resources_used.mem=2048kb "
            f"resources_used.ncpus=1 resources_used.walltime=00:{at + 1:02}:00 run_count=1"
        )
    folder = tmp_path / "accounting"
    folder.mkdir()
    damaged = "11/22/2026 16:00:00;E;900.head;user=eve resources_used.ncpus=1 Resource_List.select=1:ncpus=x"
    (folder / "20261122").write_text("\n".join([*lines, *ends, damaged]) + "\n")
    words = (
        "--accounting", str(folder), "--nodes", str(captures / "snapshot-pbsnodes-av.txt"),
        "--qmgr", str(captures / "qmgr-print-server.txt"), "--compare", "easy,conservative", "--check",
        "--json", str(tmp_path / "a.json"),
    )  # fmt: skip
    result = ask(*words)
    assert result.exit_code == 0, result.output
    assert "is no create or set command" not in result.output
    found = json.loads((tmp_path / "a.json").read_text())
    jobs = found["jobs"]
    assert jobs["in"] == len(ends) + 1 == jobs["simulated"] + sum(jobs["rejected"].values()) + jobs["ignored"]
    # Of the real records three are of jobs that were forced while they were held; two more are whole arrays,
    # whose members count. An `exec_vnode` without its last parenthesis is read.
    assert jobs["rejected"] == {"damaged": 4, "never_ran": 2}
    assert jobs["simulated"] == 17
    assert found["policies"].keys() == {"easy", "conservative"}
    for each in found["policies"].values():
        assert each["problems"] == []
        assert each["n_jobs"] + len(each["never_started"]) == jobs["simulated"]


def test_endings_of_an_openpbs_are_its_own(tmp_path: Path) -> None:
    """Ended well, failed, over its limit, deleted, never run, failed at the start, requeued; an array."""
    pbs = EmulatedOpenPbs.create(tmp_path / "pbs", shape="2xnp=4,physmem=16gb+1xnp=8,gpus=2", clock="manual")

    def submit(select: str, runtime_s: float, *words: str, exit_status: int = 0) -> str:
        asked = ("-l", f"select={select}", "-l", "walltime=00:10:00", *words)
        return pbs.submit(*asked, runtime_s=runtime_s, exit_status=exit_status)

    def run(job: str, place: str) -> None:
        assert pbs.run("qrun", "-H", place, job, user="root").returncode == 0

    with pbs:
        well = submit("2:ncpus=2:mem=1gb", 60, "-l", "place=scatter")
        failed, over = submit("1:ncpus=1", 30, exit_status=3), submit("1:ncpus=1", 9999)
        deleted, never = submit("1:ncpus=2:ngpus=1", 300), submit("1:ncpus=1", 300)
        again, requeued = submit("3:ncpus=1", 40), submit("1:ncpus=1", 50)
        array = submit("1:ncpus=1", 20, "-J", "0-1")
        run(well, "(node1:ncpus=2:mem=1gb)+(node2:ncpus=2:mem=1gb)")
        for job in (failed, over):
            run(job, "(node1:ncpus=1)")
        run(deleted, "(node3:ncpus=2:ngpus=1)")
        run(again, "(node3:ncpus=3)")  # fewer elements than chunks: back in the queue after two seconds
        run(requeued, "(node3:ncpus=1)")
        pbs.run("qdel", never, user="root")
        pbs.clock.advance(10)
        pbs.run("qrerun", requeued, user="root")
        run(again, "(node3:ncpus=1)+(node3:ncpus=1)+(node3:ncpus=1)")
        run(requeued, "(node3:ncpus=1)")
        for at in (0, 1):
            run(array.replace("[]", f"[{at}]"), "(node2:ncpus=1)")
        pbs.clock.advance(100)
        pbs.run("qdel", deleted, user="root")
        pbs.clock.advance(600)
        assert not pbs.jobs()
        for name, words in (("nodes", ("pbsnodes", "-av")), ("qmgr", ("qmgr", "-c", "print server"))):
            (tmp_path / name).write_text(pbs.run(*words, user="root").stdout)
    result = ask(
        "--accounting", str(pbs.home / "server_priv" / "accounting"), "--nodes", str(tmp_path / "nodes"),
        "--qmgr", str(tmp_path / "qmgr"), "--compare", "none,easy", "--check",
        "--json", str(tmp_path / "a.json"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "a.json").read_text())
    # The record of the whole array counts as none that ran; the job that was deleted in the queue has none.
    assert found["jobs"]["rejected"] == {"never_ran": 1}
    assert (found["jobs"]["in"], found["jobs"]["simulated"]) == (9, 8)
    # On an idle cluster each response is the run time of its last start.
    mean_s = (60 + 30 + 601 + 110 + 40 + 50 + 20 + 20) / 8
    for each in found["policies"].values():
        assert (each["n_jobs"], len(each["never_started"]), each["problems"]) == (8, 0, [])
        assert each["mean_response_s"] == pytest.approx(mean_s, abs=1.0)


def test_limits_and_hosts_of_an_openpbs_are_simulated(tmp_path: Path) -> None:
    captures = ROOT / "tests" / "golden" / "openpbs"
    nodes, problems = read_nodes(captures / "snapshot-pbsnodes-av.txt")
    # Two of them were full when it was printed.
    assert (sorted((node.name, node.slots, node.gpus) for node in nodes), problems) == (
        [("node1", 2, 0), ("node2", 4, 0), ("node3", 8, 2)], (),
    )  # fmt: skip
    assert all(node.slots_free == node.slots for node in nodes)
    (_, queues), problems = read_limits(captures / "qmgr-print-server.txt")
    (gpuq,) = (queue for queue in queues if queue.name == "gpuq")
    assert problems == ()
    assert {(each.kind, each.name, each.resource): each.most for each in gpuq.run_limits} == {
        ("", "", ""): 10, ("user", "", ""): 2, ("user", "alice", ""): 3, ("user", "", "ncpus"): 8,
    }  # fmt: skip


def test_the_example_of_the_manual() -> None:
    manual = (ROOT / "docs" / "torque-simulate.md").read_text()
    words = "--trace benchmarks/traces/ctc_1000.swf.gz --max-jobs 100 --compare aged,easy"
    assert f"torque-sched simulate {words}" in manual
    result = ask("--trace", LOG, *words.split()[2:])
    assert result.exit_code == 0, result.output
    for line in result.output.splitlines():
        if line.startswith(("1,000 jobs in", "│ mean wait")):
            assert line in manual


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "best"), "no backfill 'best'"),
        ((), "one workload is needed"),
        (("--trace", LOG, "--home", "."), "one workload is needed"),
        (("--counts", "--trace", LOG, "--settings", "a.yaml"), "--counts is for counts of processors"),
        (("--order", "sjf", "--trace", LOG, "--slots-per-node", "4"), "--slots-per-node for nodes"),
        (("--counts",), "no log to simulate"),
        (("--accounting", ".", "--nodes", "none.txt"), "none.txt"),
        (("--accounting", str(CAPTURES), "--nodes", IDLE), "holds no job that ended"),
        (("--accounting", str(CAPTURES), "--nodes", IDLE, "--from", "May"), "'May' is no day"),
        (("--trace", LOG, "--node-memory", "lots"), "lots"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], message: str) -> None:
    if words[:1] == ("--policy",):
        words = (*words, "--trace", LOG)
    result = ask(*words)
    assert result.exit_code in {1, 2}
    assert message in result.output


def test_options_of_counts_mean_counts_and_say_so() -> None:
    result = ask("--trace", LOG, "--max-jobs", "50", "--policy", "easy", "--depth", "2")
    assert result.exit_code == 0, result.output
    assert "--depth is an option of --counts" in result.output
    assert "cycles" not in result.output


def test_who_may_take_over_a_reservation_is_told_apart(tmp_path: Path) -> None:
    """A job of a QoS of high priority comes last: by default it waits for the one that came before it."""
    begin_s = 1_795_200_000
    record = (
        "11/20/2026 19:00:00;E;{n}.head;user={user} group=hpc jobname=j queue=batch ctime={came} "
        "qtime={came} etime={came} start_count=1 start={start} owner={user}@head exec_host=n1/0-3 "
        "Resource_List.nodes=1:ppn=4 {qos}Resource_List.walltime=00:10:00 session=5 total_execution_slots=4 "
        "unique_node_count=1 end={end} Exit_status=0 resources_used.walltime=00:10:00\n"
    )
    (tmp_path / "server_priv" / "accounting").mkdir(parents=True)
    lines = [
        record.format(
            n=n, user=user, came=begin_s + 10 * n, start=begin_s + 600 * n, end=begin_s + 600 * (n + 1),
            qos="Resource_List.qos=urgent " if user == "eve" else "",
        )
        for n, user in enumerate(("bob", "ann", "eve"), 1)
    ]  # fmt: skip
    (tmp_path / "server_priv" / "accounting" / "20261120").write_text("".join(lines))
    (tmp_path / "server_priv" / "nodes").write_text("n1 np=4\n")
    words = ["--home", str(tmp_path), "--check", "--json", str(tmp_path / "a.json")]
    for outrank in ("never", "priority"):
        (tmp_path / f"{outrank}.yaml").write_text(
            f"backfill: {{name: conservative, outrank: {outrank}}}\n"
            "qos: {urgent: {users: [eve], priority: 1}}\n"
        )
        words += ["--settings", str(tmp_path / f"{outrank}.yaml")]
    result = ask(*words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "a.json").read_text())["policies"]
    assert [found[name]["problems"] for name in ("never", "priority")] == [[], []]
    assert [found[name]["reservations_broken"] for name in ("never", "priority")] == [0, 1]
    assert found["never"]["schedule_hash"] != found["priority"]["schedule_hash"]
