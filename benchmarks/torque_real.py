"""The Torque scheduler on a real Torque, where one is installed: events, starts, hundreds of jobs, kill -9.

pbs_server, trqauthd, four moms and the scheduler share this machine's cores, in namespaces of their own (see
`tests.fixtures.torque_site`). Times are those of the server's own log, in milliseconds.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from benchmarks.result import Report, Row, measured, not_measured, observed
from benchmarks.torque import event_rows, is_readable, kill_rows, p95
from tests.fixtures.torque_site import NODES, Absent, Binaries, Daemon, TorqueSite, found, torque_up
from tests.fixtures.waiting import until

Say = Callable[[str], None]
_WIDE = "".join(f"node{number} np=100\n" for number in range(1, 5))
_N_STARTS = 300
_QUEUED, _RUN = "enqueuing into", "Job Run at request"


def _moments(site: TorqueSite, ids: Iterable[str], words: str) -> dict[str, float]:
    """When the server first wrote something of each job into its log, seconds since the epoch."""
    wanted = set(ids)
    moments: dict[str, float] = {}
    for path in sorted((site.home / "server_logs").iterdir()):
        for line in path.read_text(errors="replace").splitlines():
            parts = line.split(";", 5)
            if len(parts) == 6 and parts[4] in wanted and parts[5].startswith(words):
                at_s = datetime.strptime(parts[0], "%m/%d/%Y %H:%M:%S.%f").astimezone().timestamp()
                moments.setdefault(parts[4], at_s)
    return moments


@contextmanager
def _c_scheduler(site: TorqueSite) -> Iterator[None]:
    """The C pbs_sched; it takes one job after the other in the order of submission."""
    folder = site.home / "sched_priv"
    (folder / "accounting").mkdir(exist_ok=True)
    (folder / "sched_config").write_text("sort_by: no_sort ALL\nhelp_starving_jobs: false ALL\n")
    site.must("pbs_sched", "-d", str(site.torque.home))
    until(lambda: (folder / "sched.lock").exists(), "pbs_sched is up")
    time.sleep(1.0)
    try:
        yield
    finally:
        pid = (folder / "sched.lock").read_text(encoding="ascii").strip("\n\0")
        site.must("sh", "-c", f"kill {pid}")
        until(lambda: site.run("sh", "-c", f"kill -0 {pid}").returncode != 0, "pbs_sched ends")
        site.forget_scheduler()


@contextmanager
def _our_scheduler(site: TorqueSite, **settings: Any) -> Iterator[Daemon]:
    daemon = Daemon(site, **settings)
    daemon.start()
    time.sleep(1.0)
    try:
        yield daemon
    finally:
        daemon.end()
        site.forget_scheduler()


def _one_by_one(site: TorqueSite, n_jobs: int) -> list[float]:
    """Seconds from queued to run, the cluster idle each time."""
    ids = []
    for _ in range(n_jobs):
        ids.append(site.submit("-l", "nodes=1", script="sleep 0.1"))
        until(lambda: site.state(ids[-1]) != "Q", "it runs", 30)
        time.sleep(0.7)  # longer than the server's gap between two events
    queued, run = _moments(site, ids, _QUEUED), _moments(site, ids, _RUN)
    return sorted(run[each] - queued[each] for each in ids)


def _event(torque: Binaries, quick: bool, say: Say) -> Iterator[Row]:
    n_jobs = 15 if quick else 100
    say(f"{n_jobs} jobs to an idle cluster, one after the other")
    with torque_up(torque, NODES) as site:
        with _our_scheduler(site, timer_s=600):
            waits = _one_by_one(site, n_jobs)
        yield from event_rows(waits, f"queued to run by the server's log, n = {n_jobs}")
        if torque.pbs_sched is not None:
            say("the same with the C pbs_sched")
            with _c_scheduler(site):
                waits = _one_by_one(site, n_jobs)
            yield observed("... C pbs_sched: p95", p95(waits), "s")
            yield measured("... C pbs_sched: all", waits, "s")


def _starts(torque: Binaries, quick: bool, say: Say) -> Iterator[Row]:
    ours: list[float] = []
    bare: list[float] = []
    theirs: list[float] = []
    for turn in range(1 if quick else 3):
        say(f"{_N_STARTS} starts at once, round {turn + 1}")
        with torque_up(torque, _WIDE) as site, _our_scheduler(site, timer_s=600):
            ours.append(_rate(site, _let))
        with torque_up(torque, _WIDE) as site:
            bare.append(_rate(site, _by_xargs))
        if torque.pbs_sched is not None:
            with torque_up(torque, _WIDE) as site, _c_scheduler(site):
                theirs.append(_rate(site, _let))
    what = f"starts per second, {_N_STARTS} jobs that wait, 400 free slots"
    yield measured(what, ours, "1/s", note="first to last qrun by the server's log")
    yield measured("... bare: xargs -P 4 qrun -a -H", bare, "1/s")
    shares = [mine / other for mine, other in zip(ours, bare, strict=True)]
    yield measured("... ours over bare", shares, "x")
    if theirs:
        yield measured("... C pbs_sched", theirs, "1/s")


def _let(site: TorqueSite, _: Sequence[str]) -> None:
    site.qmgr("set server scheduling = True")


def _rate(site: TorqueSite, begin: Callable[[TorqueSite, list[str]], None]) -> float:
    """Starts per second of jobs that waited for a signal; the cluster is of no use afterwards."""
    site.qmgr("set server scheduling = False")
    ids = site.submit_many(_N_STARTS, 3600, "-l", "nodes=1")
    begin(site, ids)
    until(lambda: all(job["job_state"] == "R" for job in _of(site, ids)), "all run", 300)
    moments = _moments(site, ids, _RUN).values()
    return (len(ids) - 1) / (max(moments) - min(moments))


def _of(site: TorqueSite, ids: Iterable[str]) -> list[dict[str, str]]:
    jobs = site.jobs()
    return [jobs[each] for each in ids]


def _by_xargs(site: TorqueSite, ids: Sequence[str]) -> None:
    words = "".join(f"node{number % 4 + 1}:ppn=1 {job}\n" for number, job in enumerate(ids))
    site.must("xargs", "-P", "4", "-n", "2", "qrun", "-a", "-H", text=words)


def _jobs(torque: Binaries, quick: bool, say: Say) -> Iterator[Row]:
    n_jobs = 100 if quick else 300
    say(f"{n_jobs} jobs of a second on 18 slots")
    with torque_up(torque, NODES) as site, _our_scheduler(site):
        began_s = time.monotonic()
        ids = site.submit_many(n_jobs, 1, "-l", "nodes=1")
        _all_ended(site, ids)
        took_s = time.monotonic() - began_s
        counts, jobs = site.starts(), _of(site, ids)
    well = sum(job.get("exit_status") == "0" and counts[job["Job_Id"]] == 1 for job in jobs)
    yield observed(
        f"{n_jobs} jobs of a second: ended well after one start", well, "jobs", goal=f">= {n_jobs}"
    )
    yield observed("... from the first qsub to the last end", took_s, "s", note="18 slots")


def _all_ended(site: TorqueSite, ids: Sequence[str]) -> None:
    until(lambda: all(job["job_state"] == "C" for job in _of(site, ids)), "all ended", 600)


def _kill(torque: Binaries, quick: bool, say: Say) -> Iterator[Row]:
    n_kills = 10 if quick else 100
    n_jobs = 100 if quick else 300
    chance = random.Random(11)
    say(f"kill -9 at {n_kills} random points of a run with {n_jobs} jobs")
    with torque_up(torque, NODES) as site:
        site.qmgr("set server keep_completed = 3600")
        ids = site.submit_many(n_jobs, 3, "-l", "nodes=1")
        daemon = Daemon(site, timer_s=1.0, journal={"file_bytes": 1 << 20})
        for number in range(n_kills):
            daemon.start()
            time.sleep(chance.uniform(0.0, 1.2))
            daemon.end(signal.SIGKILL)
            if number % 20 == 19:
                say(f"{number + 1} kills, {len(site.starts())} jobs started")
        daemon.start()
        _all_ended(site, ids)
        daemon.end()
        yield from kill_rows(ids, site.starts(), f"{n_kills} kills, {n_jobs} jobs")
        readable = is_readable(site.home / "sched_priv")
    yield observed("kill -9: history and journal readable", float(readable), "yes = 1", goal=">= 1")


SECTIONS: dict[str, Callable[[Binaries, bool, Say], Iterator[Row]]] = {
    "event": _event,
    "starts": _starts,
    "jobs": _jobs,
    "kill": _kill,
}


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = ()) -> None:
    """Run the sections asked for, all of them by default; without a Torque there is one row that says so."""
    try:
        torque = found()
    except Absent as error:
        report.add([not_measured("a real Torque", str(error))])
        return
    report.setting["torque"] = torque.version
    for name, section in SECTIONS.items():
        if not only or name in only:
            report.add(section(torque, quick, say))
