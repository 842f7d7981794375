"""Is the server's memory flat?  Half an hour at about 80 % load, 64 clients come and go (quick: 1 minute).

Every 5 seconds (quick: 1) the memory of server and workers, the pool, descriptors and threads are noted.  The
first third is warm-up.  A series is flat when the straight line through the rest grows over that time by less
than a fiftieth of its mean, or than `_NOISE`.  The pool grows towards its ceiling as clients come with
payloads of other sizes, and must not pass it; what leaks shows in the memory outside of it.  A minute is too
short for a verdict.  The series are part of the JSON, which grows while the soak runs; a picture is drawn
beside it.
"""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pipeline.setting import OwnServer
from benchmarks.result import Report, Row, observed
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError
from yarn_accel.testbed.processes import memory_of
from yarn_accel.wire import ClientConnection, Request, TensorSpec
from yarn_accel.wire.credential import Credential, issue

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


#: Tenant and its weight.
TENANTS = {"alice": 1.0, "bob": 2.0, "carol": 4.0}
_SETTINGS: Mapping[str, Any] = {
    "name": "soak",
    "checksums": ["xxh3", "crc32c", "crc32"],
    "extra_operations": [],
    "pool_bytes": _POOL_BYTES,
    "queue_bytes": _POOL_BYTES // 2,
    "max_request_bytes": 64 * _MIB,
    "max_shared_memory_bytes": 32 * _MIB,
    "calibrate": True,
    "log_level": "ERROR",
    "tenants": {name: {"weight": weight} for name, weight in TENANTS.items()},
}
"""Of the server; but for the sizes those of a site."""


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
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        OwnServer(Path(folder), **_SETTINGS) as server,
    ):
        address = server.address
        master = bytes.fromhex(Path(address["secret"]).read_text(encoding="utf-8"))
        endpoint = Endpoint("soak", "127.0.0.1", address["port"], address["unix"], "here")
        crowd = Crowd(endpoint, master, _N_CLIENTS, pace := Pace(_FIRST_CALLS_PER_S))
        last: dict[str, Any] = {}
        try:
            with Client(endpoint, issue(master, "operator", int(time.time()) + 7200, "soak")) as client:
                crowd.start()
                for stats in _Watch(server.process.pid, client, pace).over(duration_s, every_s, series):
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
    peak_mib = last["pool"]["peak_bytes"] / _MIB
    return [
        observed("requests received by the server", last["requests"], "requests", note=note),
        observed("busy share of the workers, mean after warm-up", statistics.fmean(load), "share"),
        observed("wrong answers", counts.get("wrong answers", 0), "answers", goal="<= 0"),
        observed("clients that came", counts.get("clients that came", 0), "clients"),
        observed("of them died mid-frame", counts.get("clients that died mid-frame", 0), "clients"),
        *(_judged(name, series) for name in _TEXT),
        observed("pool, most ever", peak_mib, "MiB", goal=f"<= {_POOL_BYTES // _MIB}"),
        *(observed(name, n, "times") for name, n in sorted(counts.items()) if ":" in name),
    ]


def _judged(name: str, series: Series) -> Row:
    at_s, values = series.after_warm_up(name)
    scale, unit = (_MIB, "MiB") if name.endswith("_bytes") else (1, "")
    allowed = max(_NOISE[name], statistics.fmean(values) / 50)
    is_short = at_s[-1] < _LEAST_S
    is_flat_now = "flat" if is_flat(at_s, values, _NOISE[name]) else "NOT flat"
    verdict = "too short to judge" if is_short else is_flat_now
    goal = "" if is_short else f"<= {allowed / scale:.1f}"
    note = f"{verdict}; {min(values) / scale:.0f} .. {max(values) / scale:.0f} {unit}".strip()
    what = f"{_TEXT[name]}: growth after warm-up"
    return observed(what, growth(at_s, values) / scale, unit, goal=goal, note=note)


def draw(report: Report, stem: str) -> list[str]:
    """Draw the series of a report; returns the file."""
    at_s, found = report.series.get("at_s"), report.series.get("values")
    if not at_s or not found:
        return []
    from yarn_accel.report.figures import drawing

    file = f"{stem}-memory.png"
    with drawing(file, (9, 6), rows=2, sharex=True) as (_, table):
        above, below = table[:, 0]
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
    return [file]


# ---- the load: clients that come, ask for this and that at a steady pace, and go; some die

_CREDENTIAL_S = 7200
_MEAN_LIFE_S = 8.0
_DIES_MID_FRAME = 0.15
_ECHO_BYTES = (64, 4096, 65536, 1 << 20, 4 << 20)
_ORDERS = (16, 48, 100, 200, 400)
_CHECKED_ORDER = 100
_LOCAL_SHARE = 0.6


class Pace:
    """How many calls a second all clients together begin; adjusted to the load that is wanted."""

    def __init__(self, calls_per_s: float) -> None:
        self.calls_per_s = calls_per_s
        self._lock = threading.Lock()
        self._next_s = time.monotonic()

    def wait(self, stop: threading.Event) -> None:
        """Wait for this caller's turn."""
        with self._lock:
            now_s = time.monotonic()
            # What was missed is not caught up: a late crowd would arrive all at once.
            self._next_s = max(self._next_s, now_s - 0.05) + 1.0 / self.calls_per_s
            wait_s = self._next_s - now_s
        if wait_s > 0:
            stop.wait(wait_s)

    def adjust(self, load: float, wanted: float) -> None:
        """Change the pace a little, having seen `load`; what was in the queue is felt for a while yet."""
        self.calls_per_s *= min(1.2, max(0.8, (wanted / max(load, 0.01)) ** 0.3))


@dataclass
class Tally:
    """What the crowd saw; counts by name."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str) -> None:
        """Count one."""
        with self.lock:
            self.counts[name] += 1


class Crowd:
    """Clients coming and going, `n_clients` at a time.

    Args:
        endpoint: the server.
        master: the site's master secret, to issue credentials.
        n_clients: how many at a time.
        pace: what they keep to, together.
    """

    def __init__(self, endpoint: Endpoint, master: bytes, n_clients: int, pace: Pace) -> None:
        self.tally = Tally()
        self._endpoint = endpoint
        self._pace = pace
        self._stop = threading.Event()
        self._credentials = [
            issue(master, tenant, int(time.time()) + _CREDENTIAL_S, "soak") for tenant in TENANTS
        ]
        self._threads = [
            threading.Thread(target=self._place, args=(number,), name=f"soak-{number}", daemon=True)
            for number in range(n_clients)
        ]

    def start(self) -> None:
        """Let them come."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let them finish and go."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60.0)

    def _place(self, number: int) -> None:
        """One place in the crowd: a client, then the next one."""
        rng = random.Random(number)
        while not self._stop.is_set():
            credential = rng.choice(self._credentials)
            try:
                self._one_life(rng, credential)
            except (AccelError, OSError) as error:  # the latter: nobody listens any more
                self.tally.add(f"connection: {type(error).__name__}")
                self._stop.wait(0.2)

    def _one_life(self, rng: random.Random, credential: Credential) -> None:
        is_local = rng.random() < _LOCAL_SHARE
        until_s = time.monotonic() + rng.expovariate(1 / _MEAN_LIFE_S)
        self.tally.add("clients that came")
        with Client(self._endpoint, credential, node=None if is_local else "elsewhere") as client:
            while time.monotonic() < until_s and not self._stop.is_set():
                self._pace.wait(self._stop)
                call, check = _some_call(rng)
                try:
                    reply = client.call(call)
                except AccelError as error:
                    self.tally.add(f"answer: {type(error).__name__}")
                    continue
                self.tally.add("answers")
                if not check(reply):
                    self.tally.add("wrong answers")
            if rng.random() < _DIES_MID_FRAME:
                self._die_mid_frame(rng, credential)

    def _die_mid_frame(self, rng: random.Random, credential: Credential) -> None:
        """What is seen of a client killed while it sends: part of a frame, then the end of the connection."""
        with socket.create_connection((self._endpoint.host, self._endpoint.port), 10) as sock:
            sock.settimeout(10)
            connection = ClientConnection(credential, rng.randbytes(32), ("crc32",))
            with contextlib.suppress(OSError):
                while connection.welcome is None:
                    for part in connection.data_to_send():
                        sock.sendall(part)
                    connection.receive_data(sock.recv(65536))
                    connection.next_event()
                request = Request(
                    1, f"dead-{rng.getrandbits(64)}", "echo", {}, (TensorSpec("|u1", (1 << 20,)),)
                )
                frame = b"".join(bytes(part) for part in connection.send(request, [bytes(1 << 20)]))
                sock.sendall(frame[: rng.randrange(1, len(frame))])
        self.tally.add("clients that died mid-frame")


def _some_call(rng: random.Random) -> tuple[Call, Any]:
    """A call, and what tells whether its reply is right."""
    key = f"{rng.getrandbits(64):x}"
    operation = rng.choice(("echo", "echo", "lu", "qr", "cholesky", "gemm", "kmeans"))
    numbers = np.random.default_rng(rng.getrandbits(32))
    if operation == "echo":
        data = np.frombuffer(rng.randbytes(4096) * -(-rng.choice(_ECHO_BYTES) // 4096), "u1")
        return _asked(key, "echo", {}, data), lambda reply: bool(np.array_equal(_first(reply), data))
    if operation == "kmeans":
        points = numbers.standard_normal((500, 8))
        return _asked(key, "kmeans", {"k": 4, "seed": 1}, points), lambda reply: bool(reply.tensors)
    n = rng.choice(_ORDERS)
    a = np.asfortranarray(numbers.standard_normal((n, n)))
    if operation == "cholesky":
        a = np.asfortranarray(a @ a.T + n * np.eye(n))
    if operation == "gemm":
        return _asked(key, "gemm", {}, a, a), lambda reply: _near(_first(reply), a @ a, n)
    return _asked(key, operation, {}, a), lambda reply: _is_factored(operation, reply, a, n)


def _asked(key: str, operation: str, params: Mapping[str, Any], *arrays: Any) -> Call:
    return Call(key, operation, params, tuple(map(Tensor.of, arrays)))


def _is_factored(operation: str, reply: Reply, a: Any, n: int) -> bool:
    if n > _CHECKED_ORDER or operation == "lu":
        return bool(reply.tensors)
    if operation == "qr":
        return _near(reply.tensors["q"].array() @ reply.tensors["r"].array(), a, n)
    lower = np.tril(_first(reply))
    return _near(lower @ lower.T, a, n)


def _first(reply: Reply) -> Any:
    return next(iter(reply.tensors.values())).array()


def _near(found: Any, expected: Any, n: int) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-10 * n * max(1.0, np.abs(expected).max()))
