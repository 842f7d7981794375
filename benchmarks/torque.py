"""The Torque scheduler against its emulation: a cycle's cost, starts, events, comments, and SIGKILL.

Everything runs on this one machine: the emulated server (a Python process that answers C clients), the
clients and the scheduler share its cores.  Real Torque servers answer slower and on another machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.result import Report, Row, measured, observed
from benchmarks.torque_cluster import AT_ONCE, Daemon, Say, cluster, free_port, requests, start_all
from benchmarks.torque_transport import burst, transport
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.pbs import Look, Pbs
from torque_sched.core.model import JobId
from torque_sched.daemon.comments import CommentPlan
from torque_sched.daemon.cycle import comment_of_start
from torque_sched.emulation import EmulatedTorque

_SHAPE = "990xnp=8,physmem=64gb+10xnp=8,gpus=4,has_nvml,physmem=128gb"
_N_STUB = 400


def _cycle(quick: bool, say: Say) -> Iterator[Row]:
    """Parse and decide with 1,000 nodes; in processes of their own, so that memory is theirs alone."""
    rounds = 3 if quick else 9
    medians: dict[int, float] = {}
    for n_jobs in (1000, 2000, 5000, 10000):
        say(f"{n_jobs} jobs")
        with cluster(shape=_SHAPE) as torque:
            torque.submit_many(requests(n_jobs))
            asyncio.run(_fill(torque, n_jobs // 3))
            figures = _in_child("cycle", torque, str(rounds))
        goal = "<= 1.0" if n_jobs == 10000 else ""
        cold = measured(
            f"cycle: parse + decide, {n_jobs} jobs, 1,000 nodes", figures["cold_s"], "s", goal=goal,
            note=f"every job read anew; decide {figures['decide_s']:.3f} s, started {figures['n_started']}",
        )  # fmt: skip
        medians[n_jobs] = cold.value
        yield cold
        yield measured(
            f"... jobs unchanged since the cycle before, {n_jobs}", figures["warm_s"], "s", goal=goal
        )
        bound = "<= 400" if n_jobs == 10000 else ""
        yield observed(f"... peak memory, {n_jobs} jobs", figures["peak_bytes"] / 2**20, "MiB", goal=bound)
    growth = (medians[10000] - medians[5000]) / (medians[5000] - medians[1000]) * 4 / 5
    yield observed(
        "cycle: cost of a job from 5,000 to 10,000 over that from 1,000 to 5,000", growth, "x", goal="<= 1.5"
    )


def _backfill(quick: bool, say: Say) -> Iterator[Row]:
    """Conservative backfilling on the nodes of a busy cluster; parsing is not in it (see `cycle`)."""
    rounds = 2 if quick else 5
    n_jobs = 10_000
    say(f"{n_jobs} jobs, conservative backfilling")
    with cluster(shape=_SHAPE) as torque:
        torque.submit_many(requests(n_jobs + n_jobs // 3))
        asyncio.run(_fill(torque, n_jobs // 3))
        figures = _in_child("backfill", torque, str(rounds))
    what = "live decision, 10,000 queued jobs, 1,000 nodes, conservative, default limits"
    told = f"{figures['n_promises']} promised nodes, started {figures['n_started']}; the rest delays none"
    yield measured(f"{what}: nothing promised yet", figures["first_s"], "s", goal="<= 2", note=told)
    yield measured(f"{what}: all promises carried", figures["carried_s"], "s", goal="<= 2")


async def _fill(torque: EmulatedTorque, n_jobs: int) -> None:
    """Start jobs by our own decisions, so that nodes and limits look like those of a busy cluster."""
    from torque_sched.core.decisions import Start
    from torque_sched.policies.context import Context
    from torque_sched.policies.decide import decide
    from torque_sched.policies.settings import Settings

    pbs = Pbs(Commands(torque.env), time.time)
    snapshot = (await pbs.look()).snapshot
    decisions = decide(snapshot, Settings(max_starts=n_jobs), Context())
    await start_all(pbs, [(each.job, each.hosts) for each in decisions if isinstance(each, Start)])


def _in_child(what: str, torque: EmulatedTorque, *words: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "benchmarks.torque_child", what, *words]
    done = subprocess.run(argv, cwd=ROOT, env=torque.env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the measured process failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _starts(quick: bool, say: Say) -> Iterator[Row]:
    rounds = 2 if quick else 5
    say("starts through a stub that takes 10 ms")
    with tempfile.TemporaryDirectory(prefix="torque-bench-") as folder:
        stub = Path(folder) / "qrun"
        stub.write_text("#!/bin/sh\nexec sleep 0.01\n", encoding="utf-8")
        stub.chmod(0o755)
        pbs = Pbs(Commands({**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"}), time.time)
        jobs = [(JobId(f"{n}.head"), f"node{n}:ppn=1") for n in range(_N_STUB)]
        rates = [len(jobs) / asyncio.run(start_all(pbs, jobs)) for _ in range(rounds)]
    yield measured(
        "starts per second, stub of 10 ms in sh, 4 at once",
        rates,
        "1/s",
        goal=">= 150",
        note="the most is 400",
    )
    say("starts through the emulation, beside xargs")
    ours, bare = [], []
    with cluster(shape="100xnp=64") as torque:
        for _ in range(rounds):
            ids = torque.submit_many({"arguments": ["-l", "nodes=1"], "runtime_s": 9e5} for _ in range(800))
            starts = [(JobId(job), f"node{n % 100 + 1:03d}:ppn=1") for n, job in enumerate(ids)]
            names = list(torque.nodes())
            starts = [(job, f"{names[n % 100]}:ppn=1") for n, (job, _) in enumerate(starts)]
            pbs = Pbs(Commands(torque.env), time.time)
            ours.append(len(starts[::2]) / asyncio.run(start_all(pbs, starts[::2])))
            bare.append(len(starts[1::2]) / _by_xargs(torque, starts[1::2]))
    yield measured("starts per second, emulation, 4 at once", ours, "1/s")
    yield measured("... bare: xargs -P 4 qrun", bare, "1/s")
    shares = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    yield measured("starts: ours over bare", shares, "x", goal=">= 0.8")


def _by_xargs(torque: EmulatedTorque, starts: Sequence[tuple[JobId, str]]) -> float:
    words = "".join(f"{hosts} {job}\n" for job, hosts in starts)
    began_s = time.perf_counter()
    argv = ["xargs", "-P", str(AT_ONCE), "-n", "2", "qrun", "-a", "-H"]
    subprocess.run(argv, input=words, text=True, env=torque.env, check=True)
    return time.perf_counter() - began_s


def _event(quick: bool, say: Say) -> Iterator[Row]:
    n_jobs = 20 if quick else 100
    say(f"{n_jobs} jobs to an idle cluster, one after the other")
    port = free_port()
    waits: list[float] = []
    with cluster(shape="16xnp=8", event_target=f"127.0.0.1:{port}") as torque:
        daemon = Daemon(torque, port, {"timer_s": 600})
        daemon.start()
        try:
            time.sleep(3.0)
            for _ in range(n_jobs):
                began_s = time.time()
                job = torque.submit("-l", "nodes=1", runtime_s=9e5)
                waits.append(_started_s(torque, job) - began_s)
                time.sleep(random.uniform(0.3, 1.0))  # longer than the server's gap between two events
        finally:
            daemon.end(signal.SIGTERM)
    waits.sort()
    p95 = waits[int(0.95 * len(waits))]
    yield observed(
        "event to qrun, idle cluster, p95", p95, "s", goal="<= 0.5", note=f"qsub to R, n = {n_jobs}"
    )
    yield measured("... all", waits, "s")


def _started_s(torque: EmulatedTorque, job: str) -> float:
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        if torque.jobs()[job]["job_state"] == "R":
            return time.time()
        time.sleep(0.005)
    raise RuntimeError(f"{job} was not started")


def _comments(quick: bool, say: Say) -> Iterator[Row]:
    say("comments of 10,000 waiting jobs")
    with cluster(shape="100xnp=8,gpus=1") as torque:
        torque.submit_many(requests(10000))
        pbs = Pbs(Commands(torque.env), time.time)
        times = [asyncio.run(_comment_all(pbs, turn)) for turn in range(2 if quick else 5)]
    yield measured("comments of 10,000 waiting jobs, 12 texts", times, "s", goal="<= 2")


async def _comment_all(pbs: Pbs, turn: int) -> float:
    from torque_sched.core.decisions import Hold
    from torque_sched.core.reasons import Reason

    look: Look = await pbs.look()
    reasons = list(Reason)[turn * 5 : turn * 5 + 12]
    holds = [Hold(job.id, reasons[n % len(reasons)]) for n, job in enumerate(look.snapshot.queued)]
    plan = CommentPlan()
    began_s = time.perf_counter()
    for call in plan.plan(look.snapshot, holds, {}, lambda job: "", comment_of_start):
        await pbs.comment(call.jobs, call.text)
    return time.perf_counter() - began_s


def _kill(quick: bool, say: Say) -> Iterator[Row]:
    n_kills = 20 if quick else 200
    chance = random.Random(11)
    port = free_port()
    say(f"kill -9 at {n_kills} random points of a run with 300 jobs")
    with cluster(
        shape="8xnp=4", event_target=f"127.0.0.1:{port}", server={"keep_completed": "3600"}
    ) as torque:
        daemon = Daemon(torque, port, {"timer_s": 1.0, "journal": {"file_bytes": 1 << 20}})
        ids = torque.submit_many(
            {"arguments": ["-l", "nodes=1"], "runtime_s": chance.uniform(0.5, 30.0)} for _ in range(300)
        )
        try:
            for number in range(n_kills):
                daemon.start()
                time.sleep(chance.uniform(0.3, 1.6))
                daemon.end(signal.SIGKILL)
                if number % 20 == 19:
                    say(f"{number + 1} kills, {sum(_counts(torque).values())} jobs started")
            daemon.start()
            deadline_s = time.monotonic() + 300.0
            while len(_counts(torque)) < len(ids) and time.monotonic() < deadline_s:
                time.sleep(0.2)
            time.sleep(1.0)
        finally:
            daemon.end(signal.SIGTERM)
        counts = _counts(torque)
        readable = is_readable(torque.home / "sched_priv")
    twice = sum(number > 1 for number in counts.values())
    yield observed(
        "kill -9: jobs started twice", twice, "jobs", goal="<= 0", note=f"{n_kills} kills, 300 jobs"
    )
    yield observed("kill -9: jobs forgotten", len(set(ids) - counts.keys()), "jobs", goal="<= 0")
    yield observed(
        "kill -9: history and journal readable afterwards", float(readable), "yes = 1", goal=">= 1"
    )


def _counts(torque: EmulatedTorque) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in torque.accounting():
        kind, job = line.split(";")[1:3]
        if kind == "S":
            counts[job] = counts.get(job, 0) + 1
    return counts


def is_readable(folder: Path) -> bool:
    """Whether history and journal of a `sched_priv` are whole, and the journal says something."""
    import sqlite3

    from torque_sched.daemon.journal_form import read_journal

    store = sqlite3.connect(folder / "history.sqlite")
    try:
        is_well = store.execute("pragma integrity_check").fetchone() == ("ok",)
    finally:
        store.close()
    return is_well and sum(1 for _ in read_journal(folder / "journal")) > 0


SECTIONS: dict[str, Callable[[bool, Say], Iterator[Row]]] = {
    "cycle": _cycle,
    "backfill": _backfill,
    "starts": _starts,
    "event": _event,
    "comments": _comments,
    "kill": _kill,
    "transport": transport,
    "burst": burst,
}


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = ()) -> None:
    """Run the sections asked for, all of them by default."""
    loads: dict[str, object] = {}
    report.setting["load_average"] = loads
    for name, section in SECTIONS.items():
        if not only or name in only:
            before = os.getloadavg()
            for row in section(quick, say):
                loads[name] = {"before": before, "after": os.getloadavg()}
                report.add([row])
