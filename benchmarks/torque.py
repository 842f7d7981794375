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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.result import Report, Row, measured, observed, ratio
from benchmarks.torque_cluster import (
    AT_ONCE,
    Daemon,
    Say,
    cluster,
    cycles,
    free_port,
    log_of,
    look_ms,
    note,
    one_slot,
    requests,
    run_sections,
    start_all,
    until,
)
from torque_sched.adapters.commands import Commands
from torque_sched.batch.documents import hosts_text
from torque_sched.batch.system import BatchSystem, Look
from torque_sched.batch.torque.batch_client import BatchClient, ServerPlace
from torque_sched.batch.torque.native import NativePbs
from torque_sched.batch.torque.pbs import Pbs
from torque_sched.daemon.comments import CommentPlan
from torque_sched.daemon.cycle import comment_of_start
from torque_sched.emulation import EmulatedCluster, EmulatedTorque
from torque_sched.model.decisions import Start

# ---- Torque by its own batch protocol beside Torque by its commands, in one run against the EMULATED server.
#
# Starts, looks and bursts of the two ways alternate. The server is a Python process on the same machine, so a
# start costs it more than it costs a real one; what happened in a burst is read in its journal, by its clock.

BURST_AGAINST = "BURST_AGAINST"
"""Variable: the folder of another checkout with its `.venv`, whose daemon is measured in turn with ours."""

_WAYS = ("native", "commands")
_N_JOBS = 10_000
_N_BURST = 2_000
_LONGEST_S = 120.0
_REST_S = 3.0
"""Until the server may be looked at again after the daemon's first look."""
Figures = dict[str, list[float]]


def transport(quick: bool, say: Say) -> Iterator[Row]:
    """Every figure by both ways."""
    yield from _starts_both_ways(quick, say)
    yield from _looks(quick, say)
    yield from _bursts(1 if quick else 5, say, {way: (way, ROOT) for way in _WAYS})
    yield from _start_ups(quick, say)
    yield from _idle(quick, say)


def _figures() -> Figures:
    return {way: [] for way in _WAYS}


def _in_turn(number: int) -> tuple[str, ...]:
    """The ways, the other one first in each second round."""
    return _WAYS if number % 2 == 0 else _WAYS[::-1]


def _servers(torque: EmulatedTorque) -> dict[str, BatchSystem]:
    by_commands = Pbs(Commands(torque.env), time.time)
    client = BatchClient(ServerPlace(torque.trqauthd))
    return {"native": NativePbs(client, by_commands, time.time), "commands": by_commands}


# -- starts


def _starts_both_ways(quick: bool, say: Say) -> Iterator[Row]:
    rounds, n_starts = (3, 400) if quick else (7, 800)
    say(f"starts by both ways, {rounds} rounds of {n_starts}")
    with cluster(shape=f"{2 * rounds * n_starts // 8}xnp=8") as torque:
        rates = asyncio.run(_start_rates(torque, rounds, n_starts))
    yield measured("acknowledged starts per second, native", rates["native"], "1/s", note=note())
    yield measured("... commands, 4 at once", rates["commands"], "1/s")
    yield ratio("... native over commands", rates["native"], rates["commands"], goal=">= 3")


async def _start_rates(torque: EmulatedTorque, rounds: int, n_starts: int) -> Figures:
    n_jobs = len(_WAYS) * rounds * n_starts
    ids = torque.submit_many({"arguments": ["-l", "nodes=1"], "runtime_s": 9e5} for _ in range(n_jobs))
    names = list(torque.nodes())
    starts = [one_slot(job, names[n % len(names)]) for n, job in enumerate(ids)]
    ways, rates = _servers(torque), _figures()
    for number in range(rounds):
        for way in _in_turn(number):
            mine, starts = starts[:n_starts], starts[n_starts:]
            rates[way].append(n_starts / await start_all(ways[way], mine))
    await ways["native"].close()
    return rates


# -- looks


def _looks(quick: bool, say: Say) -> Iterator[Row]:
    rounds = 3 if quick else 9
    say(f"looks at {_N_JOBS} jobs by both ways, {rounds} rounds")
    with cluster(shape="100xnp=8,gpus=1") as torque:
        torque.submit_many(requests(_N_JOBS))
        cold, warm = asyncio.run(_look_costs(torque, rounds))
    what = f"CPU of ours for a look at {_N_JOBS} jobs, 1 % changed"
    yield measured(f"{what}, native", warm["native"], "ms", goal="<= 60", note=note())
    yield measured("... commands, and their own", warm["commands"], "ms")
    yield measured("... every job read anew, native", cold["native"], "ms")
    yield measured("... every job read anew, commands, and their own", cold["commands"], "ms")


async def _look_costs(torque: EmulatedTorque, rounds: int) -> tuple[Figures, Figures]:
    ways, cold, warm = _servers(torque), _figures(), _figures()
    jobs = [job.id for job in (await ways["native"].look()).snapshot.queued]
    chance = random.Random(1)
    for number in range(rounds):
        for way in _in_turn(number):
            ways[way].forget()
            cold[way].append((await look_ms(ways[way], _N_JOBS))[1])
        await ways["native"].comment(chance.sample(jobs, len(jobs) // 100), f"round {number}")
        for way in _in_turn(number):
            warm[way].append((await look_ms(ways[way], _N_JOBS))[1])
    await ways["native"].close()
    return cold, warm


# -- a burst of jobs


@dataclass
class Burst:
    """What the emulated server's journal says of jobs that were queued before scheduling was switched on.

    Attributes:
        on_s: when it was switched on; all seconds since the epoch.
        first_start_s: when the first job started.
        explained_s: when each job first got a comment.
        started: jobs that were started.
    """

    on_s: float = 0.0
    first_start_s: float = 0.0
    explained_s: dict[str, float] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)

    def take(self, line: str) -> None:
        """One line of the journal: what a command or request changed."""
        record: dict[str, Any] = json.loads(line)
        at_s = record["now_s"]
        server = record.get("server")
        if server and server["attributes"].get("scheduling") == "True" and not self.on_s:
            self.on_s = at_s
        for job, changed in record.get("job", {}).items():
            if changed is not None and changed["state"] == "R":
                self.first_start_s = self.first_start_s or at_s
                self.started.add(job)
            if changed is not None and "comment" in changed["attributes"]:
                self.explained_s.setdefault(job, at_s)
        for job, attributes in record.get("attributes", {}).items():
            if "comment" in attributes:
                self.explained_s.setdefault(job, at_s)

    @property
    def waiting_explained_s(self) -> dict[str, float]:
        """Of the jobs that were not started."""
        return {job: at_s for job, at_s in self.explained_s.items() if job not in self.started}


def burst(quick: bool, say: Say) -> Iterator[Row]:
    """A burst by the protocol; in turn with the daemon of the checkout that `BURST_AGAINST` names."""
    other = os.environ.get(BURST_AGAINST)
    roots = {"native": ROOT, **({"native, before": Path(other)} if other else {})}
    yield from _bursts(1 if quick else 5, say, {name: ("native", root) for name, root in roots.items()})


def _bursts(rounds: int, say: Say, ways: Mapping[str, tuple[str, Path]]) -> Iterator[Row]:
    """Bursts in turn; ways: setting and checkout of the daemon by its name."""
    first, longest, explained = ({name: [] for name in ways} for _ in range(3))  # type: ignore[var-annotated]
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            say(f"a burst of {_N_BURST} jobs, {name}")
            seen, longest_s = _one_burst(*ways[name])
            first[name].append(seen.first_start_s - seen.on_s)
            explained[name].append(max(seen.waiting_explained_s.values()) - seen.on_s)
            longest[name].append(longest_s)
    for name in ways:
        goals = ("<= 0.5", "<= 1", "<= 3") if name == "native" else ("", "", "")
        what = f"burst of {_N_BURST} jobs, {name}"
        yield measured(f"{what}: first start", first[name], "s", goal=goals[0], note=note("128 slots"))
        yield measured("... longest cycle", longest[name], "s", goal=goals[1])
        yield measured("... every waiting job has its reason", explained[name], "s", goal=goals[2])


def _one_burst(way: str, root: Path) -> tuple[Burst, float]:
    """What the server saw, and the daemon's longest cycle in seconds."""
    port = free_port()
    with cluster(
        shape="16xnp=8,gpus=1", event_target=f"127.0.0.1:{port}", server={"scheduling": "False"}
    ) as torque:
        torque.submit_many(requests(_N_BURST))
        with _daemon(torque, port, way, root):
            time.sleep(_REST_S)
            n_before = len(cycles(torque))
            torque.run("qmgr", "-c", "set server scheduling = True")
            seen = Burst()
            lines = journal_lines(torque)
            until(lambda: is_explained(seen, lines, _N_BURST))
            until(lambda: len(cycles(torque)) > n_before)
            return seen, max(each[3] for each in cycles(torque)[n_before:]) / 1000


def is_explained(burst: Burst, lines: Iterator[str], n_jobs: int) -> bool:
    """Whether by the journal's lines so far all jobs of a burst have started, or a reason to wait."""
    for line in lines:
        if not line:
            break
        burst.take(line)
    return len(burst.explained_s.keys() | burst.started) >= n_jobs


def journal_lines(torque: EmulatedCluster) -> Iterator[str]:
    """The journal's lines; an empty one where there is no further one now."""
    path = next(torque.home.glob("journal.*.jsonl"))
    with path.open(encoding="utf-8") as journal:
        while True:
            at = journal.tell()
            line = journal.readline()
            if not line.endswith("\n"):
                journal.seek(at)
                line = ""
            yield line


@contextmanager
def _daemon(torque: EmulatedTorque, port: int, way: str, root: Path = ROOT) -> Iterator[Daemon]:
    """The daemon beside a cluster, from its first cycle to its end."""
    with Daemon(torque, port, {"transport": way}, root=root) as daemon:
        until(lambda: bool(cycles(torque)))
        yield daemon


# -- start-up


def _start_ups(quick: bool, say: Say) -> Iterator[Row]:
    """Until the daemon listens; its modules have been compiled, as those of an installed one are."""
    n_starts = 3 if quick else 7
    say(f"{n_starts} starts of the daemon")
    took_s = []
    with cluster(shape="16xnp=8,gpus=1", server={"scheduling": "False"}) as torque:
        torque.submit_many(requests(_N_BURST))
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(torque.directory / "compiled")}
        daemon = Daemon(torque, free_port(), {"transport": "native"}, compiled)
        for number in range(1 + n_starts):
            began_s = time.monotonic()
            daemon.start()
            until(lambda: log_of(torque).count("pbs_sched startup pid") > number, 0.002)  # noqa: B023
            took_s.append(time.monotonic() - began_s)
            until(lambda: len(cycles(torque)) > number)  # noqa: B023
            daemon.end()
    what = f"start-up of the daemon beside {_N_BURST} jobs"
    yield measured(what, took_s[1:], "s", goal="<= 0.6", note=note("until it listens"))


# -- nothing to do


def _idle(quick: bool, say: Say) -> Iterator[Row]:
    windows, window_s = (3, 5.0) if quick else (3, 60.0)
    say(f"idle daemons, {windows} times {window_s:.0f} s")
    with ExitStack() as stack:
        pids = {way: _idle_daemon(stack, way) for way in _WAYS}
        time.sleep(2.0 if quick else 10.0)
        used = _figures()
        for _ in range(windows):
            before = {way: _cpu_of_s(pid) for way, pid in pids.items()}
            time.sleep(window_s)
            for way, pid in pids.items():
                used[way].append((_cpu_of_s(pid) - before[way]) * 60 / window_s)
    text = f"the daemon itself, windows of {window_s:.0f} s, a cycle every 30 s"
    yield measured("CPU of an idle daemon per minute, native", used["native"], "s", goal="<= 0.05",
                   note=note(text))  # fmt: skip
    yield measured("... commands", used["commands"], "s")


def _idle_daemon(stack: ExitStack, way: str) -> int:
    """The number of the process."""
    port = free_port()
    torque = stack.enter_context(cluster(shape="16xnp=8,gpus=1", event_target=f"127.0.0.1:{port}"))
    torque.submit_many(requests(20))  # which run on, and of which nothing is to be said
    return stack.enter_context(_daemon(torque, port, way)).process.pid


def _cpu_of_s(pid: int) -> float:
    """CPU of a process and all its threads until now; the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | 2)


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
    from torque_sched.decide.context import Context
    from torque_sched.decide.decide import decide
    from torque_sched.decide.settings import Settings

    pbs = Pbs(Commands(torque.env), time.time)
    snapshot = (await pbs.look()).snapshot
    decisions = decide(snapshot, Settings(max_starts=n_jobs), Context())
    await start_all(pbs, [each for each in decisions if isinstance(each, Start)])


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
        jobs = [one_slot(f"{n}.head", f"node{n}") for n in range(_N_STUB)]
        rates = [len(jobs) / asyncio.run(start_all(pbs, jobs)) for _ in range(rounds)]
    what = "starts per second, stub of 10 ms in sh, 4 at once"
    yield measured(what, rates, "1/s", goal=">= 150", note="the most is 400")
    say("starts through the emulation, beside xargs")
    ours, bare = [], []
    with cluster(shape="100xnp=64") as torque:
        for _ in range(rounds):
            ids = torque.submit_many({"arguments": ["-l", "nodes=1"], "runtime_s": 9e5} for _ in range(800))
            names = list(torque.nodes())
            starts = [one_slot(job, names[n % 100]) for n, job in enumerate(ids)]
            pbs = Pbs(Commands(torque.env), time.time)
            ours.append(len(starts[::2]) / asyncio.run(start_all(pbs, starts[::2])))
            bare.append(len(starts[1::2]) / _by_xargs(torque, starts[1::2]))
    yield measured("starts per second, emulation, 4 at once", ours, "1/s")
    yield measured("... bare: xargs -P 4 qrun", bare, "1/s")
    shares = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    yield measured("starts: ours over bare", shares, "x", goal=">= 0.8")


def _by_xargs(torque: EmulatedTorque, starts: Sequence[Start]) -> float:
    words = "".join(f"{hosts_text(start.allocation)} {start.job}\n" for start in starts)
    began_s = time.perf_counter()
    argv = ["xargs", "-P", str(AT_ONCE), "-n", "2", "qrun", "-a", "-H"]
    subprocess.run(argv, input=words, text=True, env=torque.env, check=True)
    return time.perf_counter() - began_s


def _event(quick: bool, say: Say) -> Iterator[Row]:
    n_jobs = 20 if quick else 100
    say(f"{n_jobs} jobs to an idle cluster, one after the other")
    port = free_port()
    waits: list[float] = []
    with (
        cluster(shape="16xnp=8", event_target=f"127.0.0.1:{port}") as torque,
        Daemon(torque, port, {"timer_s": 600}),
    ):
        time.sleep(3.0)
        for _ in range(n_jobs):
            began_s = time.time()
            job = torque.submit("-l", "nodes=1", runtime_s=9e5)
            until(lambda: torque.jobs()[job]["job_state"] == "R", 0.005)  # noqa: B023
            waits.append(time.time() - began_s)
            time.sleep(random.uniform(0.3, 1.0))  # longer than the server's gap between two events
    yield from event_rows(waits, f"qsub to R, n = {n_jobs}")


def event_rows(waits_s: Sequence[float], note: str) -> Iterator[Row]:
    """From an event to the start of its job."""
    yield observed("event to qrun, idle cluster, p95", p95(waits_s), "s", goal="<= 0.5", note=note)
    yield measured("... all", waits_s, "s")


def p95(values: Sequence[float]) -> float:
    """The 95th percentile."""
    return sorted(values)[int(0.95 * len(values))]


def _comments(quick: bool, say: Say) -> Iterator[Row]:
    say("comments of 10,000 waiting jobs")
    with cluster(shape="100xnp=8,gpus=1") as torque:
        torque.submit_many(requests(10000))
        pbs = Pbs(Commands(torque.env), time.time)
        times = [asyncio.run(_comment_all(pbs, turn)) for turn in range(2 if quick else 5)]
    yield measured("comments of 10,000 waiting jobs, 12 texts", times, "s", goal="<= 2")


async def _comment_all(pbs: Pbs, turn: int) -> float:
    from torque_sched.model.decisions import Hold
    from torque_sched.model.reasons import Reason

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
            daemon.end()
        counts = _counts(torque)
        yield from kill_rows(ids, counts, f"{n_kills} kills, 300 jobs")
        readable = is_readable(torque.home / "sched_priv")
    yield observed(
        "kill -9: history and journal readable afterwards", float(readable), "yes = 1", goal=">= 1"
    )


def kill_rows(ids: Iterable[str], counts: Mapping[str, int], note: str) -> Iterator[Row]:
    """What kills did to jobs: none may start twice or never.

    Args:
        counts: how often each job was started.
    """
    twice = sum(number > 1 for number in counts.values())
    yield observed("kill -9: jobs started twice", twice, "jobs", goal="<= 0", note=note)
    yield observed("kill -9: jobs forgotten", len(set(ids) - counts.keys()), "jobs", goal="<= 0")


def _counts(torque: EmulatedTorque) -> Counter[str]:
    records = (line.split(";")[1:3] for line in torque.accounting())
    return Counter(job for kind, job in records if kind == "S")


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
    run_sections(SECTIONS, quick, say, report, only)
