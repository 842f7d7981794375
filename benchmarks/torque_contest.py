"""The Torque scheduler beside a stand-in for the C pbs_sched: 500 short jobs, some wide, on 24 slots.

All schedule the same jobs on the same EMULATED server, one after the other in each round, by its batch
protocol. Requests take what a real server takes for them, a mom takes 0.2 s to start a job, and two events
are at least 0.3 s apart. What happened is read in the server's journal. The stand-in's rules: `torque_c`.
"""

from __future__ import annotations

import bisect
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from benchmarks import ROOT
from benchmarks.result import Report, Row, measured, ratio
from benchmarks.torque import p95
from benchmarks.torque_cluster import Daemon, Say, cluster, cycles, free_port, until
from torque_sched.emulation import EmulatedTorque

N_JOBS, WIDE_SLOTS = 500, 8
_SHAPE, _MOM_START_S = "3xnp=8", 0.2
Runs = Callable[[EmulatedTorque, int], AbstractContextManager[None]]


def jobs(n_jobs: int = N_JOBS, seed: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """Slots and submission of each: 80 % 1 slot for 1 s, 15 % 2 to 4 for 2 s, 5 % 8 slots for 2 s."""
    chance = random.Random(seed)
    for _ in range(n_jobs):
        kind = chance.random()
        slots, runtime_s = (1, 1.0) if kind < 0.8 else (chance.choice((2, 3, 4)), 2.0)
        if kind >= 0.95:
            slots = WIDE_SLOTS
        words = ["-l", f"nodes=1:ppn={slots},walltime=00:01:00"]
        yield slots, {"arguments": words, "user": f"user{chance.randint(1, 4)}", "runtime_s": runtime_s}


@dataclass
class Seen:
    """What the server's journal says of jobs; seconds since the epoch.

    Attributes:
        on_s: when scheduling was switched on, with all jobs queued.
        slots: of each job.
        start_s: of each job.
        end_s: of each job.
    """

    on_s: float
    slots: Mapping[str, int]
    start_s: dict[str, float] = field(default_factory=dict)
    end_s: dict[str, float] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """One line of the journal."""
        record = json.loads(line)
        for job, changed in record.get("job", {}).items():
            if changed is not None and changed["state"] == "R":
                self.start_s.setdefault(job, record["now_s"])
            elif changed is not None and changed["state"] == "C":
                self.end_s.setdefault(job, record["now_s"])

    @property
    def makespan_s(self) -> float:
        """Until the last job has ended."""
        return max(self.end_s.values()) - self.on_s

    def wait_s(self, slots: int = 0) -> float:
        """The mean of all jobs, or of those that wide."""
        return mean(
            at_s - self.on_s for job, at_s in self.start_s.items() if not slots or self.slots[job] == slots
        )

    @property
    def gaps_s(self) -> list[float]:
        """From each end of a job to the next start of any, while jobs wait."""
        starts = sorted(self.start_s.values())
        found = ((bisect.bisect_right(starts, end_s), end_s) for end_s in self.end_s.values())
        return [starts[at] - end_s for at, end_s in found if at < len(starts)]


def ours(**settings: object) -> Runs:
    """The daemon with these settings."""

    @contextmanager
    def runs(torque: EmulatedTorque, port: int) -> Iterator[None]:
        with Daemon(torque, port, {"transport": "native", **settings}):
            until(lambda: bool(cycles(torque)))
            yield

    return runs


@contextmanager
def stand_in(torque: EmulatedTorque, port: int) -> Iterator[None]:
    """The stand-in for the C daemon."""
    argv = [sys.executable, "-m", "benchmarks.torque_c", str(torque.trqauthd), str(port)]
    process = subprocess.Popen(argv, cwd=ROOT, env=torque.env)
    try:
        yield
    finally:
        process.kill()
        process.wait(60)


def contest(scheduler: Runs) -> Seen:
    """All jobs of the mix, until the last has ended."""
    return _seen(scheduler, list(jobs()), lambda n_ended: n_ended == N_JOBS)


def refill(scheduler: Runs, n_ends: int) -> Seen:
    """Jobs of one slot that end one by one, while hundreds wait for the slot."""
    chance = random.Random(2)
    narrow = [
        (1, {"arguments": ["-l", "nodes=1,walltime=00:05:00"], "runtime_s": chance.uniform(5.0, 35.0)})
        for _ in range(N_JOBS + n_ends)
    ]
    return _seen(scheduler, narrow, lambda n_ended: n_ended >= n_ends)


def _seen(
    scheduler: Runs, submitted: list[tuple[int, dict[str, Any]]], is_over: Callable[[int], bool]
) -> Seen:
    """What happens from the moment when scheduling is switched on until so many jobs have ended."""
    port = free_port()
    with cluster(
        shape=_SHAPE,
        event_target=f"127.0.0.1:{port}",
        server={"scheduling": "False"},
        mom_start_s=_MOM_START_S,
    ) as torque:
        ids = torque.submit_many(each for _, each in submitted)
        with scheduler(torque, port):
            time.sleep(2.0)
            seen = Seen(time.time(), {job: slots for job, (slots, _) in zip(ids, submitted, strict=True)})
            torque.run("qmgr", "-c", "set server scheduling = True")
            until(lambda: is_over(sum(";E;" in line for line in torque.accounting())))
        with next(torque.home.glob("journal.*.jsonl")).open(encoding="utf-8") as journal:
            for line in journal:
                seen.take(line)
    return seen


_C = "stand-in for C"
_JUDGED = ("ours", "ours, easy")
SCHEDULERS: Mapping[str, Runs] = {
    "ours": ours(),
    "ours, easy": ours(backfill="easy"),
    _C: stand_in,
    "ours, conservative": ours(backfill="conservative"),
}
_GOALS = {"makespan": "<= 79", "mean wait": "<= 36", "mean wait of 8-slot jobs": "<= 38"}


def _figures(seen: Seen) -> dict[str, float]:
    return {
        "makespan": seen.makespan_s,
        "mean wait": seen.wait_s(),
        "mean wait of 8-slot jobs": seen.wait_s(WIDE_SLOTS),
        "end of a job to the next start, median": median(seen.gaps_s),
        "end of a job to the next start, p95": p95(seen.gaps_s),
    }


def _rounds(names: Sequence[str], n_rounds: int, say: Say) -> Iterator[Row]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    loads: dict[str, list[float]] = {name: [] for name in names}
    for number in range(n_rounds):
        for name in list(names)[:: 1 if number % 2 == 0 else -1]:
            say(f"{N_JOBS} jobs on 24 slots, {name}")
            found[name].append(_figures(contest(SCHEDULERS[name])))
            loads[name].append(os.getloadavg()[0])
    for name, runs in found.items():
        note = f"emulated; load average {', '.join(f'{load:.1f}' for load in loads[name])}"
        for what in runs[0]:
            goal = _GOALS.get(what, "") if name in _JUDGED else ""
            yield measured(f"{name}: {what}", [run[what] for run in runs], "s", goal=goal, note=note)
    for name in _JUDGED if _C in found else ():
        for what in ("mean wait", "mean wait of 8-slot jobs"):
            mine, theirs = ([run[what] for run in found[each]] for each in (name, _C))
            yield ratio(f"{what}: {name} over the {_C}", mine, theirs, goal="<= 1")


def _beside_c(quick: bool, say: Say) -> Iterator[Row]:
    return _rounds((*_JUDGED, _C), 1 if quick else 3, say)


def _end_to_start(quick: bool, say: Say) -> Iterator[Row]:
    for name in _JUDGED[:1] if quick else (*_JUDGED, _C):
        say(f"jobs that end one by one while {N_JOBS} wait, {name}")
        gaps = refill(SCHEDULERS[name], 40 if quick else 120).gaps_s
        note = f"emulated, 24 slots, {N_JOBS} waiting; load average {os.getloadavg()[0]:.1f}"
        goal = "<= 0.15" if name in _JUDGED else ""
        yield measured(f"{name}: end of a job to the next start", gaps, "s", goal=goal, note=note)
        yield measured("... p95", [p95(gaps)], "s")


def _backfills(quick: bool, say: Say) -> Iterator[Row]:
    return _rounds([name for name in SCHEDULERS if name != _C], 1 if quick else 3, say)


SECTIONS: Mapping[str, Callable[[bool, Say], Iterator[Row]]] = {
    "beside-c": _beside_c,
    "end-to-start": _end_to_start,
    "backfills": _backfills,
}


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = ()) -> None:
    """Run the sections asked for, all of them by default."""
    for name, section in SECTIONS.items():
        if not only or name in only:
            report.add(section(quick, say))
