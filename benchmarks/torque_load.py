"""What the Torque scheduler asks of a server with 50,000 queued jobs: time in looks, and comments written.

The daemon runs as a process beside the EMULATED server, with conservative backfilling. Each look takes as
long as a server would that needs `ATTRIBUTE_S` for an attribute, beside what the emulation takes itself. Jobs
end all the time, so starts move. Commands note when they begin and end; requests to alter a job are counted.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import Report, Row, observed
from benchmarks.torque_cluster import Daemon, Say, cluster, cycles, free_port
from torque_sched.emulation import EmulatedTorque, Fault

ATTRIBUTE_S = 0.5e-6
"""A look at 1,000 jobs cost a real server 14.5 ms of CPU, so 14.5 us for a job of some 30 attributes."""
_ATTRIBUTES = 30
_LOOKS = ("qstat", "pbsnodes")
_WAIT_S = 1800.0

_NOTER = """#!/bin/sh
began=$(date +%s.%N)
{real} "$@"
code=$?
echo "{name} $began $(date +%s.%N) $#" >> {notes}
exit $code
"""


def _requests(n_jobs: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Whole nodes, one to four; some 0.5 jobs end in a second where 2,000 nodes are full."""
    for _ in range(n_jobs):
        nodes = chance.choice((1, 1, 2, 4))
        yield {
            "arguments": [
                "-l", f"nodes={nodes}:ppn=8,walltime={chance.randint(2, 48)}:00:00",
                "-N", f"task{chance.randint(1, 200)}",
            ],
            "user": f"user{chance.randint(1, 20)}",
            "runtime_s": chance.uniform(60.0, 4000.0),
        }  # fmt: skip


def _note_calls(torque: EmulatedTorque) -> Path:
    """Put note-takers in front of the commands; returns the notes: name, begin, end, words."""
    notes = torque.directory / "notes"
    notes.touch()
    folder = torque.directory / "real"
    folder.mkdir()
    for name in (*_LOOKS, "qalter"):
        program = torque.path / name
        program.rename(folder / name)
        program.write_text(_NOTER.format(real=folder / name, name=name, notes=notes), encoding="utf-8")
        program.chmod(0o755)
    return notes


def within(notes: str, began_s: float, ended_s: float) -> list[tuple[str, float, float, int]]:
    """Calls that overlap with a time: name, begin and end cut to it, number of words."""
    found = []
    for line in notes.splitlines():
        name, begin, end, words = line.split()
        first_s, last_s = max(float(begin), began_s), min(float(end), ended_s)
        if first_s < last_s:
            found.append((name, first_s, last_s, int(words)))
    return found


def seconds_looked(calls: Sequence[tuple[str, float, float, int]]) -> float:
    """How long at least one of the looking commands ran."""
    total_s = until_s = 0.0
    for begin_s, end_s in sorted((begin, end) for name, begin, end, _ in calls if name in _LOOKS):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def _settings(**limits: float) -> dict[str, object]:
    """Of the daemon; its calls can be noted where it asks by commands."""
    return {
        **{"backfill": "conservative", "journal": {"enabled": False}, "query_timeout_s": 600},
        **{"limits": limits, "transport": "commands"},
    }


def _until_steady(torque: EmulatedTorque, daemon: Daemon, say: Say) -> None:
    """Until nodes are full and every waiting job has its comment.

    Raises:
        RuntimeError: that takes too long, or the daemon ended.
    """
    deadline_s = time.monotonic() + _WAIT_S
    n_seen = 0
    while time.monotonic() < deadline_s and daemon.process.poll() is None:
        seen = cycles(torque)
        if len(seen) > n_seen:
            n_seen = len(seen)
            n_jobs, n_started, n_commented, wall_ms = seen[-1]
            say(f"{n_jobs} jobs, {n_started} started, {n_commented} commented, {wall_ms / 1000:.1f} s")
            if n_seen > 2 and n_started < 100 and n_commented < n_jobs // 20:
                return
        time.sleep(0.5)
    raise RuntimeError("no steady state was reached")


def _measure(n_jobs: int, n_nodes: int, window_s: float, say: Say) -> Iterator[Row]:
    port = free_port()
    chance = random.Random(7)
    with cluster(shape=f"{n_nodes}xnp=8,physmem=64gb", event_target=f"127.0.0.1:{port}") as torque:
        say(f"{n_jobs} jobs are submitted")
        torque.submit_many(_requests(n_jobs + n_nodes // 2, chance))
        notes = _note_calls(torque)
        cost_s = n_jobs * _ATTRIBUTES * ATTRIBUTE_S
        torque.set_faults(Fault("qstat", "slow", seconds=cost_s, match="-t"))
        with Daemon(torque, port, _settings(comments_s=_WAIT_S, starts_s=600.0), words=("-a", "0")) as daemon:
            _until_steady(torque, daemon, say)
            daemon.set(_settings())
            daemon.process.send_signal(signal.SIGHUP)
            n_before = len(cycles(torque))
            began_s = time.time()
            say(f"steady: {window_s:.0f} s are watched")
            time.sleep(window_s)
            ended_s = time.time()
            watched = cycles(torque)[n_before:]
        calls = within(notes.read_text(encoding="utf-8"), began_s, ended_s)
    what = f"{n_jobs} queued jobs, {n_nodes} nodes, conservative"
    seconds = ended_s - began_s
    note = (
        f"emulated, {ATTRIBUTE_S * 1e6:g} us per attribute: {cost_s:.2f} s a look beside its own time; "
        f"{len(watched)} cycles, {sum(each[1] for each in watched)} starts in {seconds:.0f} s"
    )
    looked = seconds_looked(calls) / seconds
    yield observed(
        f"{what}: time in which the server is looked at", looked, "share", goal="<= 0.30", note=note
    )
    alters = [words - 2 for name, _, _, words in calls if name == "qalter"]
    yield observed("... jobs altered by qalter", sum(alters) / seconds, "1/s", goal="<= 5")
    yield observed("... calls of qalter", len(alters) / seconds, "1/s", goal="<= 5")


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = ()) -> None:
    """Run it; quick: a tenth of the jobs, for two minutes."""
    n_jobs, n_nodes, window_s = (5_000, 400, 120.0) if quick else (50_000, 2_000, 240.0)
    report.add(_measure(n_jobs, n_nodes, window_s, say))
