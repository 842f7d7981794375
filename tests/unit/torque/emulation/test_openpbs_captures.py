"""The emulated OpenPBS beside the captures of a real one, command by command, and the share that is equal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.torque.emulation.openpbs_replay import CAPTURES, Compared, Session, orders, play
from torque_sched.emulation import EmulatedOpenPbs

_DIFFERENCES = {
    "idle-qstat-Bf-json.txt": "server_state is Active with scheduling off until something changes",
    "oversub-pbsnodes-av-json.txt": "a failed start of an excl job leaves its vnode job-exclusive",
    "history-qstat-x-f-json.txt": "an array deleted in one second; obittime of a job its parent's end ends",
}
"""Answer -> in what the emulation differs."""
_NOT_PLAYED = {
    "down-pbsnodes": "below, as no server runs then",
    "down-qrun": "below, as no server runs then",
    "qrun-plain-own-scheduler": "no scheduler can be connected",
    "vnodes-qrun": "vnode definitions of a MoM are not emulated; vnodes are given at init",
    "err-qrun-stale": "see vnodes-qrun",
}
"""Captured orders that are no part of the session."""


@pytest.fixture(scope="module", name="compared")
def _compared(tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    return list(play(Session(tmp_path_factory.mktemp("openpbs") / "cluster")))


def test_answers_are_those_of_the_real_one(compared: list[Compared]) -> None:
    """Prints the share of equal answers (pytest -s); every other one is named above."""
    equal = sum(each.is_equal for each in compared)
    print(f"\nemulated OpenPBS: {equal} of {len(compared)} answers equal ({equal / len(compared):.0%})")
    for name, why in _DIFFERENCES.items():
        print(f"differs: {name}: {why}")
    found = {each.name: each for each in compared if not each.is_equal}
    assert found.keys() == _DIFFERENCES.keys(), "\n".join(
        f"{each.name}\n{each.real}\n--- emulated:\n{each.mine}" for each in found.values()
    )


def test_every_captured_order_is_played(compared: list[Compared]) -> None:
    assert orders().keys() - {each.name for each in compared} == _NOT_PLAYED.keys()


@pytest.fixture(name="stopped")
def _stopped(tmp_path: Path) -> EmulatedOpenPbs:
    return EmulatedOpenPbs.create(tmp_path / "cluster", shape="1xnp=2", admins=("root", "sched"))


@pytest.mark.parametrize(
    ("name", "argv"),
    [("down-pbsnodes", ("pbsnodes", "-av")), ("down-qrun", ("qrun", "-H", "(node1:ncpus=1)", "1.head"))],
)
def test_without_a_server_commands_fail_as_real_ones(
    stopped: EmulatedOpenPbs, name: str, argv: tuple[str, ...]
) -> None:
    row = orders()[name]
    done = stopped.run(*argv)
    assert (str(done.returncode), done.stderr.rstrip("\n")) == (
        row["exit"],
        row["stderr"].replace("\\n", "\n"),
    )


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> Iterator[EmulatedOpenPbs]:
    """Started, with a clock that stands."""
    made = EmulatedOpenPbs.create(tmp_path / "cluster", shape="2xnp=4+1xnp=8,gpus=2", clock="manual")
    with made:
        yield made
    shutil.rmtree(made.directory)


def test_a_killed_server_goes_on_where_it_was(cluster: EmulatedOpenPbs) -> None:
    first = cluster.submit("-l", "select=2:ncpus=1", runtime_s=50)
    array = cluster.submit("-J", "0-3%2", runtime_s=50)
    assert cluster.run("qrun", "-a", "-H", "(node1:ncpus=1)+(node2:ncpus=1)", first).returncode == 0
    assert cluster.run("qrun", "-a", "-H", "(node3:ncpus=1)", array.replace("[]", "[1]")).returncode == 0
    before = cluster.jobs()
    nodes = cluster.nodes()
    cluster.kill()
    cluster.start()
    assert cluster.jobs() == before
    # As with real ones, the MoMs have to call first.
    assert {node["state"] for node in cluster.nodes().values()} == {"state-unknown,down"}
    cluster.clock.advance(5)
    assert cluster.nodes() == nodes
    cluster.clock.advance(46)
    states = {name: job["job_state"] for name, job in cluster.jobs("-x").items()}
    assert states[first] == "F"
    assert states[array] == "B"
    assert states[array.replace("[]", "[1]")] == "X"


def test_one_order_starts_many_jobs_on_one_spec(cluster: EmulatedOpenPbs) -> None:
    ids = [cluster.submit("-l", "ncpus=1", runtime_s=60) for _ in range(3)]
    assert cluster.run("qrun", "-a", "-H", "(node3:ncpus=1)", *ids).returncode == 0
    assert {cluster.jobs()[each]["exec_vnode"] for each in ids} == {"(node3:ncpus=1)"}


def test_one_option_may_have_several_resources(cluster: EmulatedOpenPbs) -> None:
    """As the client's own parser has it: a comma separates unless it is quoted."""
    nodes = cluster.submit("-l", "nodes=2:ppn=2,walltime=600")
    select = cluster.submit("-l", "select=1:ncpus=2,place=scatter:excl,walltime=00:01:00")
    jobs = cluster.jobs()
    assert jobs[nodes]["Resource_List.select"] == "2:ncpus=2:mpiprocs=2"
    assert jobs[nodes]["Resource_List.walltime"] == "00:10:00"
    assert jobs[select]["Resource_List.place"] == "scatter:excl"
    assert jobs[select]["Resource_List.walltime"] == "00:01:00"


def test_scripts_are_in_the_database_and_root_alone_reads_them(cluster: EmulatedOpenPbs) -> None:
    job = cluster.submit(script="#!/bin/sh\necho 'a '\n")
    cluster.kill()
    cluster.start()
    done = cluster.run("printjob", "-s", job, user="root")
    assert done.stdout.split("\n")[1:] == [
        f"Jobscript for jobid:{job}", "-" * 51, "#!/bin/sh", "echo 'a '", " ", "",
    ]  # fmt: skip
    assert cluster.run("printjob", "-s", job, user="alice").returncode == 1
    assert cluster.run("printjob", "-s", "99", user="root").stderr == "Job 99.head not found\n"
    assert not list(cluster.home.glob("server_priv/jobs/*"))


def test_a_comment_in_quotes_is_kept_without_them(cluster: EmulatedOpenPbs) -> None:
    job = cluster.submit()
    assert cluster.run("qalter", "-W", 'comment="select=1: wait"', job, user="root").returncode == 0
    assert cluster.jobs()[job]["comment"].rstrip() == "select=1: wait"


def test_hook_hears_of_jobs_and_nodes(cluster: EmulatedOpenPbs, tmp_path: Path) -> None:
    told, source = tmp_path / "told", tmp_path / "hook.py"
    source.write_text(
        "import pbs\n"
        "from pathlib import Path\n"
        f"with Path({str(told)!r}).open('a') as file:\n"
        "    file.write(str(pbs.event().type == pbs.POSTQUEUEJOB) + '\\n')\n"
        "pbs.event().accept()\n",
        encoding="utf-8",
    )
    before = cluster.run("qmgr", "-c", "print server").stdout, cluster.run("qmgr", "-c", "print hook").stdout
    for line in (
        "create hook tell",
        'set hook tell event = "postqueuejob,modifyvnode"',
        f"import hook tell application/x-python default {source}",
    ):
        assert cluster.run("qmgr", "-c", line).returncode == 0
    cluster.submit()
    cluster.run("pbsnodes", "-o", "node1")
    assert told.read_text(encoding="utf-8").split() == ["True", "False"]
    assert "set hook tell" in cluster.run("qmgr", "-c", "print hook").stdout
    assert cluster.run("qmgr", "-c", "delete hook tell").returncode == 0
    after = cluster.run("qmgr", "-c", "print server").stdout, cluster.run("qmgr", "-c", "print hook").stdout
    assert after == before


def test_hook_that_takes_too_long_is_ended_and_refuses(cluster: EmulatedOpenPbs, tmp_path: Path) -> None:
    source = tmp_path / "hook.py"
    source.write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    for line in (
        "create hook slow",
        "set hook slow event = queuejob",
        "set hook slow alarm = 1",
        f"import hook slow application/x-python default {source}",
    ):
        assert cluster.run("qmgr", "-c", line).returncode == 0
    done = cluster.run("qsub", user="alice", stdin="sleep 1\n")
    assert (done.returncode, "filter hook 'slow'" in done.stderr) == (32, True)


def test_captures_are_small() -> None:
    assert sum(path.stat().st_size for path in CAPTURES.iterdir()) < 1 << 19
