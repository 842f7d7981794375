"""The commands people look with, beside a daemon's files, on the emulation; they only look."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_server import run_command
from torque_sched.emulation import EmulatedTorque, Fault

NODES = """
node1 np=2 slow
node2 np=4
node4 np=4 gpus=2 gpunode # has_nvml physmem=64gb
"""


class Cluster:
    def __init__(self, torque: EmulatedTorque) -> None:
        self.torque = torque

    def run(self, *arguments: str, code: int = 0, environment: dict[str, str] | None = None) -> str:
        env = {**self.torque.env, **(environment or {})}
        done = run_command("torque_sched", arguments, env=env)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout if code in {0, 1} else done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A site where some jobs ended, one holds a GPU it does not use, and a wide one waits."""
    torque = EmulatedTorque.create(tmp_path_factory.mktemp("site") / "emulation", nodes=NODES)
    with torque:
        small = {"runtime_s": 0.5, "cpu": 0.6, "mem": "1gb"}
        for number in range(4):
            torque.submit("-l", "nodes=1:ppn=2,walltime=100", "-N", f"relax-{number}", **small)
        site = Cluster(torque)
        torque.submit("-l", "nodes=1:ppn=1:gpus=1", "-N", "train", runtime_s=600, gpu=0)
        site.run("cycle")
        time.sleep(1.0)
        torque.submit("-l", "nodes=2:ppn=4,walltime=10:00", "-N", "wide[red]<b>")
        site.run("cycle")
        yield site


def test_explain_shows_every_node_and_the_evidence(cluster: Cluster) -> None:
    text = cluster.run("explain", "6")
    assert "wide[red]<b>" in text
    assert "free slots" in text
    for name, words in (("node1", "no: too small"), ("node2", "fits, but "), ("node4", "no: full")):
        assert any(line.startswith(name) and words in line for line in text.splitlines())
    assert "chain" in text
    assert "user" in text


def test_explain_a_node_names_its_gpus_and_jobs(cluster: Cluster) -> None:
    text = cluster.run("explain", "node4")
    assert "held by 5.head, 0 % busy" in text
    assert "not in it yet" in text
    assert "alice, train" in text
    assert "no job and no node" in cluster.run("explain", "node9", code=2)


def test_whatif_submits_nothing(cluster: Cluster) -> None:
    before = cluster.torque.jobs()
    text = cluster.run(
        "whatif", "--submit", "nodes=1:ppn=2:gpus=1,walltime=100", "--user", "alice", "--name", "relax-9"
    )
    assert "now: start on node4:ppn=2:gpus=1" in text
    assert "user, script" in text
    never = cluster.run("whatif", "--submit", "nodes=9:ppn=4")
    assert "can never run" in never
    assert "is not resource=value" in cluster.run("whatif", "--submit", "much", code=2)
    assert cluster.torque.jobs().keys() == before.keys()


def test_status_counts_and_finds_the_unused_gpu(cluster: Cluster) -> None:
    found = json.loads(cluster.run("status", "--json", code=1))
    assert found["nodes"] == {"all": 3, "up": 3}
    assert found["gpus"]["held_not_used"] == [["5.head", "node4", 0]]
    assert not found["daemon"]["alive"]
    text = cluster.run("top", "--once")
    assert "1 of 2 GPUs held, 1 of these not used" in text


def test_the_report_is_one_page(cluster: Cluster, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    cluster.run("report", "--html", str(target))
    text = target.read_text(encoding="utf-8")
    assert "4 jobs ended" in text
    words = cluster.run("report", "--days", "9999")
    assert re.search(r"^9999 days: 4 jobs, \d+ moments$", words, re.MULTILINE), words
    assert "waits: half of the jobs at most " in words
    assert "<svg" in text


def test_looking_runs_pbsnodes_and_qstat_only_and_changes_no_file(cluster: Cluster, tmp_path: Path) -> None:
    """Every other command on PATH is a trap that leaves a mark."""
    mark = tmp_path / "mark"
    for path in cluster.torque.path.iterdir():
        trap = tmp_path / "bin" / path.name
        trap.parent.mkdir(exist_ok=True)
        if path.name in {"pbsnodes", "qstat"}:
            trap.write_text(f'#!/bin/sh\nexec "{path}" "$@"\n', encoding="utf-8")
        else:
            trap.write_text(f'#!/bin/sh\necho "$0" >> "{mark}"\n', encoding="utf-8")
        trap.chmod(0o755)
    sched_priv = cluster.torque.home / "sched_priv"

    def contents() -> dict[str, bytes]:
        # SQLite's shared index beside the file is not ours to judge.
        files = (path for path in sched_priv.iterdir() if path.is_file() and path.suffix[-4:] != "-shm")
        return {path.name: path.read_bytes() for path in files}

    before = contents()
    path = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    cluster.run("explain", "6", environment=path)
    cluster.run("explain", "node4", environment=path)
    cluster.run("whatif", "--submit", "nodes=1", environment=path)
    cluster.run("status", code=1, environment=path)
    cluster.run("top", "--once", environment=path)
    assert not mark.exists()
    assert contents() == before
    # The trap itself works.
    trapped = subprocess.run([str(tmp_path / "bin" / "qrun"), "6"], check=False)
    assert trapped.returncode == 0
    assert mark.exists()


@pytest.mark.parametrize("words", [("status",), ("explain", "6"), ("cycle", "--dry-run"), ("doctor",)])
def test_who_waits_for_a_hanging_server_is_told(cluster: Cluster, words: tuple[str, ...]) -> None:
    """What is waited for and until when, once; at the end the error."""
    settings = cluster.torque.home / "sched_priv" / "torque_sched.yaml"
    settings.write_text("query_timeout_s: 5\n", encoding="utf-8")
    cluster.torque.set_faults(Fault("qstat", "hang", match="-B"))
    try:
        done = run_command("torque_sched", words, env=cluster.torque.env)
    finally:
        cluster.torque.set_faults()
        settings.unlink()
    assert done.returncode == 1, done.stdout
    notes = [line for line in done.stderr.splitlines() if "no answer yet" in line]
    assert len(notes) == 1, done.stderr
    # Where the machine is busy, others may not have answered by then either.
    assert re.search(r"no answer yet from (.*, )?qstat -B -f -1; waiting until \d\d:\d\d:\d\d ", notes[0])
    assert "qstat did not end within 5 s" in done.stdout + done.stderr
