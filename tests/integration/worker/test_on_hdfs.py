"""The worker beside the real Hadoop Streaming: the same mapper, the same splits, the same lines."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.conftest import WorkerSite
from tests.integration.worker.test_attempts import pid_in, until_gone
from tests.integration.worker.test_functions import ROOT
from yarn_accel.core.tasks.attempt_orders import (
    AttemptId,
    AttemptOrder,
    FunctionCall,
    InputSplit,
    OutputFile,
    TaskFolder,
    attempt_id,
)
from yarn_accel.core.tasks.worker_messages import AttemptOutcome
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.hadoop.streaming import StreamingJob, run_streaming
from yarn_accel.storage import Store
from yarn_accel.testbed import Cluster

pytestmark = pytest.mark.hadoop

#: Prints what it is given so that nothing of it is a tab, or a line end.
MAPPER = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps({name: value for name, value in os.environ.items() if "map" in name}))
for line in sys.stdin.buffer:
    print(json.dumps(line.decode("latin-1")))
"""
#: What differs from run to run.
_OWN = ("id", "output", "work", "name")


@pytest.fixture(scope="module")
def root(hadoop_environ: dict[str, str]) -> str:
    return HadoopSite.load(hadoop_environ).properties["fs.defaultFS"] + "/worker"


@pytest.fixture(scope="module")
def store(hadoop_cluster: Cluster) -> Store:
    return Store(hadoop_cluster.conf_dir)


@pytest.fixture(scope="module")
def h1(site: WorkerSite, hadoop_environ: dict[str, str]) -> Any:
    return site.start("h1", hadoop_environ)


def odd_text(n_lines: int) -> bytes:
    """Lines of all lengths, with every line end that there is; the last has none."""
    chance = random.Random(7)
    ends = (b"\n", b"\r\n", b"\r", b"\n\r", b"\n\n", b"\r\n\r\n")
    lines = (b"x\t\xff" * chance.randrange(9) + chance.choice(ends) for _ in range(n_lines))
    return b"\xef\xbb\xbf" + b"".join(lines) + b"last"


def attempt_of(site: WorkerSite, store: Store, root: str, *argv: str, **more: Any) -> AttemptOrder:
    order = site.task(*argv, output=False, **more)
    output = OutputFile(f"{root}/out-{order.app}", "part-m-00003")
    store.mkdirs(f"{output.folder}/_temporary")
    return replace(order, output=output)


def output_of(store: Store, order: AttemptOrder) -> list[str]:
    assert order.output is not None
    uri = f"{order.output.folder}/{order.output.name}"
    return store.read_bytes(uri, 1 << 24).decode().splitlines()


@pytest.mark.usefixtures("h1")
def test_a_mapper_sees_what_streaming_shows_it(
    site: WorkerSite, hadoop_environ: dict[str, str], store: Store, root: str, tmp_path: Path
) -> None:
    script = tmp_path / "show.py"
    script.write_text(MAPPER)
    store.write_atomic(f"{root}/odd.txt", [odd_text(300)])
    job = StreamingJob(
        name="odd",
        mapper="python3 show.py",
        inputs=["/worker/odd.txt"],
        output="/worker/streaming",
        files=[str(script)],
        properties={"mapreduce.job.maps": "2", "stream.map.input.ignoreKey": "false"},
    )
    run_streaming(HadoopSite.load(hadoop_environ), job, lambda _: None).check()
    parts = [uri for uri in store.list(f"{root}/streaming") if "/part-" in uri]
    assert len(parts) >= 2
    for uri in parts:
        first, *lines = (line.rstrip("\t") for line in store.read_bytes(uri, 1 << 24).decode().splitlines())
        theirs = json.loads(first)
        start, length = (int(theirs[f"mapreduce_map_input_{name}"]) for name in ("start", "length"))
        split = InputSplit(f"{root}/odd.txt", start, length, with_keys=True)
        order = attempt_of(site, store, root, sys.executable, str(script), input=split)
        job_number = int(order.attempt.split("_")[2])
        named = attempt_id(1, job_number, int(theirs["mapreduce_task_partition"]), 0)
        end = site.master.run(replace(order, attempt=named))
        assert end.outcome is AttemptOutcome.DONE, end
        head, *ours = output_of(store, order)
        assert ours == lines
        environment = json.loads(head)
        assert environment.keys() <= theirs.keys()
        for name, value in environment.items():
            assert value == theirs[name] or any(part in name for part in _OWN), name


@pytest.mark.usefixtures("h1")
def test_of_two_attempts_one_commits_in_hdfs(
    site: WorkerSite, store: Store, root: str, tmp_path: Path
) -> None:
    first = attempt_of(site, store, root, "sh")
    pids = site.run_two_attempts(first, tmp_path)
    (line,) = output_of(store, first)
    assert line in pids
    assert store.list(f"{first.output.folder}/_temporary") == []
    assert [uri.rpartition("/")[2] for uri in store.list(first.output.folder)] == [
        "_temporary",
        "part-m-00003",
    ]


@pytest.mark.usefixtures("h1")
def test_the_files_of_a_task_are_committed_in_hdfs_by_one_rename(
    site: WorkerSite, store: Store, root: str, tmp_path: Path
) -> None:
    store.mkdirs(f"{root}/dag/_temporary")
    first_target = TaskFolder(f"{root}/dag", "first", ("out", "more"))
    barrier = f"touch {tmp_path}/$$; while [ $(ls {tmp_path} | wc -l) -lt 2 ]; do sleep 0.01; done"
    script = f"{barrier}; echo $$ > out; echo $$ > more"
    first = site.task("sh", "-c", script, output=False, output_folder=first_target)
    second = replace(first, attempt=AttemptId(first.attempt[:-1] + "1"))
    site.master.list(first, second)
    ends = [site.master.end_of(each.attempt) for each in (first, second)]
    assert [each.outcome for each in ends] == [AttemptOutcome.DONE] * 2, ends
    assert sorted(each.was_done_before for each in ends) == [False, True]
    files = store.list(f"{root}/dag/first")
    assert [uri.rpartition("/")[2] for uri in files] == ["more", "out"]
    assert len({store.read_bytes(uri, 100) for uri in files}) == 1
    assert store.list(f"{root}/dag/_temporary") == []
    taken = (("in1", files[0]), ("in2", f"{root}/odd.txt"))
    store.write_atomic(f"{root}/odd.txt", [odd_text(10)])
    target = TaskFolder(f"{root}/dag", "second", ("out",))
    call = FunctionCall("tests.integration.worker.task_functions:concatenate")
    order = site.task(
        output=False,
        inputs=taken,
        output_folder=target,
        function=call,
        environment=(("PYTHONPATH", str(ROOT)),),
    )
    end = site.master.run(order)
    assert (end.outcome, end.result) == (AttemptOutcome.DONE, "2"), end
    # The first one was left on this worker, so only the other one was read.
    assert end.measured is not None
    assert end.measured.read_bytes == len(odd_text(10))
    joined = store.read_bytes(files[0], 100) + odd_text(10)
    assert store.read_bytes(f"{root}/dag/second/out", 1 << 20) == joined


def test_kill_9_leaves_no_output_in_hdfs(
    site: WorkerSite, hadoop_environ: dict[str, str], store: Store, root: str, tmp_path: Path
) -> None:
    worker = site.start("killed", hadoop_environ)
    order = attempt_of(site, store, root, "sh", "-c", f"echo output; echo $$ > {tmp_path}/pid; sleep 600")
    site.master.list(order)
    pid = pid_in(tmp_path / "pid")
    worker.kill()
    worker.wait()
    until_gone(pid)
    site.master.drop(order.attempt)
    assert [uri.rpartition("/")[2] for uri in store.list(order.output.folder)] == ["_temporary"]
