"""Is the server's memory flat?  Half an hour at about 80 % load, 64 clients come and go (quick: 1 minute).

Every 5 seconds (quick: 1) the memory of server and workers, the pool, descriptors and threads are noted.  The
first third is warm-up.  A series is flat when the straight line through the rest grows over that time by less
than a fiftieth of its mean, or than `_NOISE`.  The pool grows towards its ceiling as clients come with
payloads of other sizes, and must not pass it; what leaks shows in the memory outside of it.  A minute is too
short for a verdict.  The series are part of the JSON, which grows while the soak runs; a picture is drawn
beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result import Report, Row, observed
from benchmarks.soak_load import TENANTS, Crowd, Pace
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.client import Client
from yarn_accel.errors import JobError
from yarn_accel.testbed.processes import memory_of
from yarn_accel.wire.credential import issue

_ROOT = Path(__file__).resolve().parent.parent
_MIB = 1024 * 1024
_POOL_BYTES = 512 * _MIB
_N_CLIENTS = 64
_WANTED_LOAD = 0.8
_FIRST_CALLS_PER_S = 30.0
_TELL_EVERY = 12
_LEAST_S = 1200.0
"""What is shorter has no verdict."""
#: Growth that is no news whatever the mean: allocators and caches breathe.
_NOISE = {
    "own_bytes": 16 * _MIB,
    "rss_bytes": 32 * _MIB,
    "pss_bytes": 32 * _MIB,
    "pool_bytes": 64 * _MIB,
    "fds": 100,
    "threads": 40,
}
_TEXT = {
    "own_bytes": "memory of server and workers outside of the pool",
    "rss_bytes": "resident memory of server and workers",
    "pss_bytes": "proportional memory of server and workers",
    "pool_bytes": "pool",
    "fds": "descriptors of the server",
    "threads": "threads of the server",
}


#: How long the processes of the server may take to be there.
_SETTLING_S = 120.0


@dataclass(frozen=True)
class Series:
    """What was noted over time; all lists are equally long.

    Attributes:
        at_s: when, seconds since the start.
        values: by name: those of `_TEXT` and ``load`` (busy share of the workers), ``requests``.
    """

    at_s: list[float]
    values: dict[str, list[float]]

    def after_warm_up(self, name: str) -> tuple[list[float], list[float]]:
        """Times and values of the last two thirds; an interruption may have come before the last value."""
        values = self.values[name]
        first = len(values) // 3
        return self.at_s[first : len(values)], values[first:]


def growth(at_s: Sequence[float], values: Sequence[float]) -> float:
    """By how much the straight line through the values rises from the first to the last."""
    if len(at_s) < 2 or at_s[0] == at_s[-1]:
        return 0.0
    slope = statistics.linear_regression(at_s, values).slope
    return slope * (at_s[-1] - at_s[0])


def is_flat(at_s: Sequence[float], values: Sequence[float], noise: float) -> bool:
    """Whether the values do not grow, apart from noise."""
    return growth(at_s, values) <= max(noise, statistics.fmean(values) / 50)


def run(quick: bool, say: Callable[[str], None], report: Report) -> None:
    """Run the soak; the server is stopped whatever happens."""
    duration_s, every_s = (60.0, 1.0) if quick else (1800.0, 5.0)
    series = Series([], {name: [] for name in (*_TEXT, "load", "requests")})
    report.series = {"at_s": series.at_s, "values": series.values}  # the lists themselves: they will grow
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, _server(Path(folder)) as (server, master):
        endpoint = _endpoint(Path(folder))
        crowd = Crowd(endpoint, master, _N_CLIENTS, pace := Pace(_FIRST_CALLS_PER_S))
        last: dict[str, Any] = {}
        try:
            with Client(endpoint, issue(master, "operator", int(time.time()) + 7200, "soak")) as client:
                _settle(client)
                crowd.start()
                for stats in _Watch(server.pid, client, pace).over(duration_s, every_s, series):
                    last.update(stats)
                    if len(series.at_s) % _TELL_EVERY == 0:
                        say(_line(series))
                        report.save()
        finally:
            crowd.stop()
            if len(series.at_s) > _TELL_EVERY:
                growths = {name: growth(*series.after_warm_up(name)) for name in _TEXT}
                report.series["growth_after_warm_up"] = growths
                report.add(_rows(series, last, crowd.tally.counts))


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], bytes]]:
    """A server process of its own, ready."""
    master = os.urandom(32)
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text(master.hex())
    settings: dict[str, Any] = {
        "name": "soak",
        "master_secret_file": str(secret),
        "state_file": str(folder / "state.json"),
        "unix_path": str(folder / "socket"),
        "pool_bytes": _POOL_BYTES,
        "queue_bytes": _POOL_BYTES // 2,
        "max_request_bytes": 64 * _MIB,
        "max_shared_memory_bytes": 32 * _MIB,
        "calibration_file": str(folder / "weights.json"),
        "log_level": "ERROR",
        "tenants": {name: {"weight": weight} for name, weight in TENANTS.items()},
    }
    (folder / "config.json").write_text(json.dumps(settings))  # JSON is YAML
    argv = [sys.executable, "-m", "yarn_accel", "pipeline", "serve", "--config", str(folder / "config.json")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        if "ready" not in process.stdout.readline():
            raise JobError(f"the server did not start: {(folder / 'log').read_text()[-500:]}")
        yield process, master
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _endpoint(folder: Path) -> Endpoint:
    state = json.loads((folder / "state.json").read_text())
    return Endpoint("soak", state["host"], state["port"], str(folder / "socket"), "here")


def _settle(client: Client) -> None:
    """Wait for the standby: it is counted from when it is ready, and under load that takes it minutes."""
    until_s = time.monotonic() + _SETTLING_S
    while not any(worker["state"] == "standby" for worker in client.stats()["workers"]):
        if time.monotonic() > until_s:
            raise JobError(f"no standby worker was ready within {_SETTLING_S:.0f} s")
        time.sleep(0.1)


class _Watch:
    """Notes what the server uses, and keeps the pace at the wanted load."""

    def __init__(self, pid: int, client: Client, pace: Pace) -> None:
        self._pid = pid
        self._client = client
        self._pace = pace
        self._busy_s: dict[int, float] = {}

    def over(self, duration_s: float, every_s: float, series: Series) -> Iterator[Mapping[str, Any]]:
        """Watch for so long; adds to the series, and gives the server's statistics each time."""
        started_s = noted_s = time.monotonic()
        self._load(self._client.stats(), every_s)
        while noted_s - started_s < duration_s:
            time.sleep(every_s)
            now_s = time.monotonic()
            stats = self._client.stats()
            sample = self._sample(stats, now_s - noted_s)
            noted_s = now_s
            series.at_s.append(now_s - started_s)
            for name, value in sample.items():
                series.values[name].append(value)
            self._pace.adjust(sample["load"], _WANTED_LOAD)
            yield stats

    def _sample(self, stats: Mapping[str, Any], window_s: float) -> dict[str, float]:
        pids = [self._pid, *(int(worker["pid"]) for worker in stats["workers"] if worker.get("pid"))]
        memory = [memory_of(pid) for pid in pids]
        return {
            "own_bytes": sum(map(_own_bytes, pids)),
            "rss_bytes": sum(each.rss_bytes for each in memory),
            "pss_bytes": sum(each.pss_bytes for each in memory),
            "pool_bytes": stats["pool"]["bytes"],
            "fds": _n_entries(f"/proc/{self._pid}/fd"),
            "threads": _n_entries(f"/proc/{self._pid}/task"),
            "load": self._load(stats, window_s),
            "requests": stats["requests"],
        }

    def _load(self, stats: Mapping[str, Any], window_s: float) -> float:
        """Mean share of the time in which a worker was busy."""
        workers = {
            int(each["pid"]): float(each["busy_s"]) for each in stats["workers"] if each["worker"] >= 0
        }
        busy_s = sum(value - self._busy_s.get(pid, value) for pid, value in workers.items())
        self._busy_s = workers
        return busy_s / window_s / max(1, len(workers))


def _own_bytes(pid: int) -> int:
    """Memory of a process that no file and no memfd stands for."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _n_entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _line(series: Series) -> str:
    latest = {name: values[-1] for name, values in series.values.items()}
    return (
        f"{series.at_s[-1]:.0f} s: load {latest['load']:.2f}, {latest['requests']:.0f} requests, "
        f"own {latest['own_bytes'] / _MIB:.0f} MiB, PSS {latest['pss_bytes'] / _MIB:.0f} MiB, "
        f"pool {latest['pool_bytes'] / _MIB:.0f} MiB, "
        f"{latest['fds']:.0f} fds, {latest['threads']:.0f} threads"
    )


def _rows(series: Series, last: Mapping[str, Any], counts: Mapping[str, int]) -> list[Row]:
    note = f"{_N_CLIENTS} clients, {series.at_s[-1] / 60:.1f} min"
    load = series.after_warm_up("load")[1]
    rows = [
        observed("requests received by the server", last["requests"], "requests", note=note),
        observed("busy share of the workers, mean after warm-up", statistics.fmean(load), "share"),
        observed("wrong answers", counts.get("wrong answers", 0), "answers", goal="<= 0"),
        observed("clients that came", counts.get("clients that came", 0), "clients"),
        observed("of them died mid-frame", counts.get("clients that died mid-frame", 0), "clients"),
    ]
    rows += [_judged(name, series) for name in _TEXT]
    rows.append(
        observed(
            "pool, most ever", last["pool"]["peak_bytes"] / _MIB, "MiB", goal=f"<= {_POOL_BYTES // _MIB}"
        )
    )
    others = {name: n for name, n in counts.items() if ":" in name}
    return rows + [observed(name, n, "times") for name, n in sorted(others.items())]


def _judged(name: str, series: Series) -> Row:
    at_s, values = series.after_warm_up(name)
    scale, unit = (_MIB, "MiB") if name.endswith("_bytes") else (1, "")
    allowed = max(_NOISE[name], statistics.fmean(values) / 50)
    is_short = at_s[-1] < _LEAST_S
    verdict = (
        "too short to judge" if is_short else "flat" if is_flat(at_s, values, _NOISE[name]) else "NOT flat"
    )
    return observed(
        f"{_TEXT[name]}: growth after warm-up",
        growth(at_s, values) / scale,
        unit,
        goal="" if is_short else f"<= {allowed / scale:.1f}",
        note=f"{verdict}; {min(values) / scale:.0f} .. {max(values) / scale:.0f} {unit}".strip(),
    )


def draw(report: Report, stem: str) -> list[str]:
    """Draw the series of a report; returns the file."""
    at_s, found = report.series.get("at_s"), report.series.get("values")
    if not at_s or not found:
        return []
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    minutes = [at / 60 for at in at_s]
    for name in ("own_bytes", "rss_bytes", "pss_bytes", "pool_bytes"):
        above.plot(minutes, [value / _MIB for value in found[name]], label=_TEXT[name])
    above.set_ylabel("MiB")
    for name in ("fds", "threads"):
        below.plot(minutes, found[name], label=_TEXT[name])
    below.plot(minutes, [100 * value for value in found["load"]], label="load, percent", alpha=0.5)
    below.set_xlabel("minutes")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right", fontsize="small")
        axes.grid(alpha=0.3)
    file = f"{stem}-memory.png"
    figure.savefig(file, dpi=120)
    return [file]
