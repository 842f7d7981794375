"""Refusals: the words and the exit codes of real servers, in the situations in which they were captured."""

from __future__ import annotations

import shlex

import pytest

from tests.unit.torque.emulation.in_memory import Bench, capture, running_bench


@pytest.fixture(scope="module")
def bench() -> Bench:
    return running_bench()


CASES = [
    # capture, exit code, user, command
    ("err-qrun-unknown-job", 2, "root", "qrun -H node3 99999"),
    ("err-qrun-malformed-id", 1, "root", "qrun -H node3 abc"),
    ("err-qrun-already-running", 2, "root", "qrun -H node3 44"),
    ("err-qrun-not-enough-slots-now", 2, "root", "qrun -H node2:ppn=2 51"),
    ("err-qrun-never-fits", 2, "root", "qrun -H node1:ppn=3 51"),
    ("err-qrun-unknown-node", 2, "root", "qrun -H nosuch 51"),
    ("err-qrun-unknown-second-node", 2, "root", "qrun -H node1+nosuch 51"),
    ("err-qrun-property-as-host", 2, "root", "qrun -H big:ppn=2 51"),
    ("err-qrun-gpus-missing", 2, "root", "qrun -H node3:ppn=2:gpus=1 51"),
    ("err-qrun-unauthorised", 2, "alice", "qrun -H node3 51"),
    ("err-qrun-waiting", 2, "root", "qrun -H node3 50"),
    ("err-qrun-array-parent", 2, "root", "qrun -H node3 47[].head"),
    ("err-qrun-array-slot-limit", 2, "root", "qrun -H node3 47[2].head"),
    ("err-qrun-procs-without-H", 2, "root", "qrun 52"),
    ("err-qrun-no-args", 1, "root", "qrun"),
    ("err-qrun-bad-spec", 2, "root", "qrun -H node3:ppn=x 51"),
    ("err-qrun-async-not-enough", 2, "root", "qrun -a -H node2:ppn=2 51"),
    ("err-qdel-unknown", 153, "root", "qdel 99999"),
    ("err-qalter-comment-as-user", 159, "alice", "qalter -W comment=hello 51"),
    ("err-qsub-too-big", 190, "alice", "qsub -l nodes=1:ppn=64"),
    ("err-qsub-too-many-nodes", 190, "alice", "qsub -l nodes=9"),
    ("err-qsub-walltime-over-max", 190, "alice", "qsub -q gpuq -l walltime=09:00:00"),
    ("err-qsub-unknown-res", 189, "alice", "qsub -l foo=1"),
    ("err-qsub-L-conflict", 55, "alice", "qsub -L tasks=1"),
    ("err-qsub-root", 1, "root", "qsub -l nodes=1"),
    ("running-qstat-unknown", 153, "root", "qstat -f 99999"),
    ("pbsnodes-unknown-node", 1, "root", "pbsnodes nosuch"),
    ("qmgr-set-as-user", 2, "alice", "qmgr -c 'set server scheduling=true'"),
]


@pytest.mark.parametrize(("name", "code", "user", "command"), CASES, ids=[case[0] for case in CASES])
def test_refusals(bench: Bench, name: str, code: int, user: str, command: str) -> None:
    answer = bench.ask(*shlex.split(command), user=user, stdin="sleep 1\n")
    assert (answer.out, answer.err, answer.code) == ("", capture(f"{name}.stderr.txt"), code)


@pytest.mark.parametrize(
    ("name", "before", "node"),
    [
        ("queue-stopped", "qstop batch", "node3"),
        ("down-node", "emulated node node1 mom=stopped", "node1"),
        ("offline-node", "pbsnodes -o node2", "node2"),
    ],
)
def test_what_cannot_be_used(name: str, before: str, node: str) -> None:
    bench = running_bench()
    bench.good(*before.split())
    bench.advance(200)
    answer = bench.ask("qrun", "-H", node, "51")
    assert (answer.err, answer.code) == (capture(f"err-qrun-{name}.stderr.txt"), 2)


@pytest.mark.parametrize(
    ("name", "user", "command"),
    [
        ("v42-err-qrun-busy", "root", "qrun -H node1:ppn=2 23.head"),
        ("v42-err-qrun-user", "alice", "qrun -H node1 23.head"),
        ("v42-err-qrun-unknown-job", "root", "qrun -H node1 9999"),
        ("v42-err-qrun-unknown-node", "root", "qrun -H nosuch 23.head"),
    ],
)
def test_old_dialect(name: str, user: str, command: str) -> None:
    bench = Bench("node1 np=2\nnode2 np=4\n", version="4.2.10", next_job=22)
    bench.submit("-l", "nodes=1")
    bench.submit("-l", "nodes=1")
    bench.good("qrun", "-H", "node1", "22")
    answer = bench.ask(*command.split(), user=user)
    assert (answer.err, answer.code) == (capture(f"{name}.stderr.txt"), 2)


def test_gpus_taken() -> None:
    bench = Bench(next_job=60)
    for _ in range(3):
        bench.submit("-l", "nodes=1:ppn=1:gpus=1:shared")
    bench.good("qrun", "-H", "node4:ppn=1:gpus=1", "60")
    bench.good("qrun", "61.head")
    answer = bench.ask("qrun", "62.head")
    assert (answer.err, answer.code) == (capture("gpu-3rd-shared-qrun.stderr.txt"), 2)
    assert bench.world.job("60").attributes["gpu_flags"] == "0"
