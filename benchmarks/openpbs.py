"""The scheduler on the emulated OpenPBS: starts a second, what a look costs, and a burst of jobs.

The emulated server (a Python process that answers C clients), the clients and the scheduler share a machine.
Its ``qrun`` takes the server as long as a real one took, measured on 23.06.06 (docs/openpbs.md).
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.result import Report, Row, measured
from benchmarks.torque import Burst, is_explained, journal_lines
from benchmarks.torque_cluster import AT_ONCE, Daemon, Say, free_port, look_ms, note, run_sections, until
from torque_sched.adapters.commands import Commands
from torque_sched.batch.openpbs.hook import GREETING
from torque_sched.batch.openpbs.pbs import OpenPbs
from torque_sched.batch.system import OrderKind
from torque_sched.daemon.journal_form import read_journal
from torque_sched.emulation import EmulatedOpenPbs
from torque_sched.model.cluster import Job
from torque_sched.model.decisions import NodeShare

_N_BURST = 2_000
_N_LOOK = 1_000
_BACKFILLS = ("none", "aged")
Cost = tuple[float, float]
"""Of ours, and of ours and of the commands."""


@contextmanager
def _cluster(**settings: Any) -> Iterator[EmulatedOpenPbs]:
    with (
        tempfile.TemporaryDirectory(prefix="openpbs-bench-") as folder,
        EmulatedOpenPbs.create(Path(folder) / "cluster", **settings) as cluster,
    ):
        yield cluster


def _requests(n_jobs: int) -> list[dict[str, Any]]:
    """Jobs of eight users and a few selects, as a busy site has them."""
    selects = ("1:ncpus=1", "1:ncpus=2:mem=1gb", "1:ncpus=4", "2:ncpus=4:mem=2gb", "1:ncpus=1:ngpus=1")
    return [
        {
            "arguments": ["-l", f"select={selects[n % 5]}", "-l", f"walltime={1 + n % 48}:00:00"],
            "user": f"user{1 + n % 8}", "runtime_s": 100000,
        }
        for n in range(n_jobs)
    ]  # fmt: skip


def _starts(quick: bool, say: Say) -> Iterator[Row]:
    rounds, n_starts = (2, 100) if quick else (5, 400)
    say(f"starts, {rounds} rounds of {n_starts}")
    with _cluster(shape=f"{rounds * n_starts // 8}xnp=8") as cluster:
        jobs = [{"arguments": ["-l", "select=1:ncpus=1"], "runtime_s": 9e5}] * (rounds * n_starts)
        cluster.submit_many(jobs)
        rates = asyncio.run(_start_rates(cluster, rounds, n_starts))
    yield measured("acknowledged starts per second, 4 at once", rates, "1/s", note=note())


async def _start_rates(cluster: EmulatedOpenPbs, rounds: int, n_starts: int) -> list[float]:
    pbs = OpenPbs(Commands(cluster.env), time.time)
    snapshot = (await pbs.look()).snapshot
    free = [node.name for node in snapshot.nodes for _ in range(8)]
    pairs = iter(zip(snapshot.queued, free, strict=False))
    rates = []
    for _ in range(rounds):
        mine = [next(pairs) for _ in range(n_starts)]
        began_s = time.perf_counter()
        left = iter(mine)

        async def work(left: Iterator[tuple[Job, Any]] = left) -> None:
            for job, node in left:
                result = await pbs.start(job, (NodeShare(node, 1),))
                if result.kind is not OrderKind.STARTED:
                    raise RuntimeError(f"start of {job.id}: {result.text}")

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        rates.append(n_starts / (time.perf_counter() - began_s))
    return rates


def _looks(quick: bool, say: Say) -> Iterator[Row]:
    rounds = 3 if quick else 9
    say(f"looks at {_N_LOOK} jobs, {rounds} rounds")
    with _cluster(shape="100xnp=8,gpus=1") as cluster:
        cluster.submit_many(_requests(_N_LOOK))
        cold, warm = asyncio.run(_look_costs(cluster, rounds))
    what = f"CPU of ours for a look at {_N_LOOK} jobs, every job read anew"
    yield measured(what, [own for own, _ in cold], "ms", goal="<= 400", note=note())
    yield measured("... with that of the commands", [both for _, both in cold], "ms", goal="<= 400")
    yield measured("... 1 % changed", [own for own, _ in warm], "ms")
    yield measured("... 1 % changed, with that of the commands", [both for _, both in warm], "ms")


async def _look_costs(cluster: EmulatedOpenPbs, rounds: int) -> tuple[list[Cost], list[Cost]]:
    pbs, cold, warm = OpenPbs(Commands(cluster.env), time.time), [], []
    jobs = [job.id for job in (await pbs.look()).snapshot.queued]
    for number in range(rounds):
        pbs.forget()
        cold.append(await look_ms(pbs, _N_LOOK))
        await pbs.comment(jobs[number::100], f"round {number}")
        warm.append(await look_ms(pbs, _N_LOOK))
    return cold, warm


def _bursts(quick: bool, say: Say) -> Iterator[Row]:
    """Jobs that are queued while scheduling is off; it is switched on, and the scheduler is woken."""
    for backfill in _BACKFILLS:
        found = []
        for _ in range(1 if quick else 5):
            say(f"a burst of {_N_BURST} jobs, backfill {backfill}")
            found.append(_one_burst(backfill))
        what = f"burst of {_N_BURST} jobs, backfill {backfill}"
        first, looks, explained = zip(*found, strict=True)
        yield measured(f"{what}: first start after the look", first, "s", goal="<= 1", note=note("128 cores"))
        yield measured("... the look itself", looks, "s")
        yield measured("... every waiting job has its reason, after the look", explained, "s")


def _one_burst(backfill: str) -> tuple[float, float, float]:
    """Seconds after the look to the first start, of the look, and to the last reason."""
    port = free_port()
    server = {"scheduling": "False"}
    with _cluster(shape="16xnp=8,gpus=1", server=server) as cluster:
        cluster.submit_many(_requests(_N_BURST))
        with Daemon(cluster, port, {"backfill": backfill, "timer_s": 600.0}):
            until(lambda: bool(_looks_of(cluster)))
            lines, seen = journal_lines(cluster), Burst()
            n_before = len(_looks_of(cluster))
            cluster.run("qmgr", "-c", "set server scheduling = True")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as knock:
                knock.sendto(GREETING + b"movejob", ("127.0.0.1", port))
            until(lambda: is_explained(seen, lines, _N_BURST))
            until(lambda: len(_looks_of(cluster)) > n_before)
            began_s, look_s = _looks_of(cluster)[n_before]
    looked_s = began_s + look_s
    last_s = max(seen.waiting_explained_s.values(), default=looked_s)
    return seen.first_start_s - looked_s, look_s, last_s - looked_s


def _looks_of(cluster: EmulatedOpenPbs) -> list[tuple[float, float]]:
    """When each look of the daemon began, and how long it took: from its journal."""
    folder = cluster.home / "sched_priv" / "journal"
    if not folder.exists():
        return []
    lines = (entry.line for entry in read_journal(folder))
    return [(float(line["now_s"]), float(line["wall_s"]["query"])) for line in lines]


SECTIONS: dict[str, Callable[[bool, Say], Iterator[Row]]] = {
    "starts": _starts, "looks": _looks, "burst": _bursts,
}  # fmt: skip


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = ()) -> None:
    """Run the sections asked for, all of them by default."""
    run_sections(SECTIONS, quick, say, report, only)
