"""LU by hdfs:// in and out on the 4-node cluster (replication 2), against hdfs-native and the slowest stage.

A stage alone is what the server itself would do for it, without the other two: `Store` reads with the
server's number of read threads and writes with its number of write threads; the operation runs in a process
of its own. The bare rates are hdfs-native's own calls, one file at a time: the best of its ways to read,
and ``write(bytes)``.

The DataNodes compute, too, and here they do it on the cores of everything else: where those are busy all the
time, no overlap makes the wall time shorter. So the CPU seconds of all that takes part are noted, and the
share that could be reached at most with them. hdfs-native sleeps half a second when it closes a file before
the NameNode has heard of its last block. Under this load that happens to every sixth file. Other write
threads go on meanwhile, if there are enough of them: with 6 all of them slept now and then (.88 of what the
cores allow, 96 files of 8 MB), with 16 they did not (.92). A round has enough files that the one close which
nobody can hide, that of its last files, does not decide it: with 24 files it took up to .4 s of 1.9.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.pipeline.fleet import Child, bare_lapack
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.setting import OwnServer, Setting, replies
from benchmarks.result import Row, measured
from yarn_accel.client.calls import Call, Reference
from yarn_accel.storage import Store
from yarn_accel.testbed import Cluster, UpOptions, take_down
from yarn_accel.wire import TensorSpec

NAME = "bench-pipeline"
MB = 1_000_000
_FOLDER = "hdfs:///bench"
_N_READERS, _N_WRITERS = 2, 16
_WINDOW = 16
_N_FILES = {8: 96, 50: 32}
"""By megabytes."""


def hdfs_rows(setting: Setting) -> Iterator[list[Row]]:
    """Both sizes; the cluster is taken down whatever happens."""
    try:
        cluster = Cluster.up(
            UpOptions(name=NAME, nodes=4, racks=2, accel_nodes=2, pipeline=False), setting.report
        )
        prefixes = {"read_prefixes": ["hdfs://"], "write_prefixes": ["hdfs://"]}
        settings = {"read_threads": _N_READERS, "write_threads": _N_WRITERS, "tenants": {"*": prefixes}}
        with (
            bare_lapack(setting.folder) as lapack,
            setting.server("hdfs", workers=1, hdfs_conf_dir=str(cluster.conf_dir), **settings) as server,
        ):
            for size_mb in (8,) if setting.quick else (8, 50):
                yield _Size(setting, cluster, server, lapack, size_mb).rows()
    finally:
        take_down(NAME, setting.report)


def _pids(cluster: Cluster, server: OwnServer) -> dict[str, list[int]]:
    """All that takes part."""
    daemons: dict[str, list[int]] = {}
    for daemon in cluster.status().daemons:
        daemons.setdefault(daemon.role, []).append(daemon.pid)
    workers = [int(worker["pid"]) for worker in server.stats()["workers"] if worker.get("pid")]
    return {**daemons, "server": [server.process.pid], "workers": workers, "client": [os.getpid()]}


class _Size:
    """Everything at one size; reads and writes are measured in turns with the runs of the server."""

    def __init__(
        self, setting: Setting, cluster: Cluster, server: OwnServer, lapack: Child, size_mb: int
    ) -> None:
        import hdfs_native

        self._setting, self._server, self._lapack = setting, server, lapack
        self._store = Store(cluster.conf_dir)
        self._native = hdfs_native.Client(config_dir=str(cluster.conf_dir))
        self._n = order_of(size_mb * MB)
        self._content = matrix("lu", self._n).tobytes("F")
        self._what = f"hdfs, {size_mb} MB"
        self._n_files = _N_FILES[size_mb] // (4 if setting.quick else 1)
        self._accounts = Accounts(_pids(cluster, server))
        self._uris = [f"{_FOLDER}/in-{size_mb}-{at}" for at in range(self._n_files)]
        self._n_written = 0

    def rows(self) -> list[Row]:
        """Measure."""
        for uri in self._uris:
            self._store.write_atomic(uri, [self._content])
        order = {"act": "alone", "operation": "repeat_lu", "params": {"times": 1}, "n": self._n, "n_times": 3}
        compute_s = [median(self._lapack.ask(order)["seconds"])]
        walls_s, reads_s, writes_s = [], [], []
        rates: dict[str, list[float]] = {}
        used = []
        self._wall_s()  # warms connections and workers
        for turn in range(1 if self._setting.quick else 4):
            self._setting.report(f"{self._what}, round {turn + 1}")
            reads_s.append(self._per_file_s(self._read_by_store, _N_READERS))
            writes_s.append(self._per_file_s(self._write_by_store, _N_WRITERS))
            with self._accounts.noted() as usage:
                walls_s.append(self._wall_s())
            used.append(usage)
            compute_s.append(median(self._lapack.ask(order)["seconds"]))
            for name, action in self._single().items():
                rates.setdefault(name, []).append(self._rate(action))
            rates.setdefault("server reads", []).extend(self._server_rates("read"))
            rates.setdefault("server writes", []).extend(self._server_rates("write"))
        alone_s = {"read": median(reads_s), "compute": median(compute_s), "write": median(writes_s)}
        return [
            *self._overlap(walls_s, alone_s),
            *self._bound(used, max(alone_s.values())),
            *self._rate_rows(rates),
        ]

    def _bound(self, used: Sequence[Usage], slowest_s: float) -> list[Row]:
        """How busy the cores were, and what could be reached on them."""
        n_cores = len(os.sched_getaffinity(0))
        n = self._n_files * len(used)
        note = ", ".join(
            f"{who} {sum(usage.cpu_s[who] for usage in used) / n * 1e3:.0f}" for who in used[0].cpu_s
        )
        waiting_s = sum(usage.waiting_s for usage in used)
        busy = [sum(usage.cpu_s.values()) / (n_cores * usage.wall_s) for usage in used]
        shares = [self._n_files * slowest_s / usage.wall_s for usage in used]
        most = [share / busy_share for share, busy_share in zip(shares, busy, strict=True)]
        return [
            measured(
                f"{self._what}: CPU seconds of the machine / ({n_cores} cores x wall)",
                busy,
                "share",
                note=f"CPU ms of a file: {note}; idle for the disk {waiting_s / n * 1e3:.0f}",
            ),
            measured(
                f"{self._what}: slowest stage alone / wall, at most here",
                most,
                "share",
                note=f"if {n_cores} cores were never idle; above 1 they are no bound",
            ),
            measured(
                f"{self._what}: reached of what is possible here",
                [share / min(1.0, bound) for share, bound in zip(shares, most, strict=True)],
                "share",
                goal=">= 0.9",
                note="of the smaller of 1 and the row above",
            ),
        ]

    def _overlap(self, walls_s: Sequence[float], alone_s: dict[str, float]) -> list[Row]:
        slowest_s = max(alone_s.values())
        note = ", ".join(f"{name} {value * 1e3:.0f} ms" for name, value in alone_s.items())
        shares = [self._n_files * slowest_s / wall for wall in walls_s]
        what = f"{self._what}, LU in and out: slowest stage alone / wall"
        return [measured(what, shares, "share", goal=">= 0.85", note=f"N = {self._n_files}; alone: {note}")]

    def _rate_rows(self, rates: dict[str, list[float]]) -> list[Row]:
        rows = [measured(f"{self._what}: {name}", values, "MB/s") for name, values in rates.items()]
        bare_read = max((rates[name] for name in ("read", "read_range", "read_range_stream")), key=median)
        for what, ours, bare in (
            ("server reads / best bare read", rates["server reads"], bare_read),
            ("server writes / bare write(bytes)", rates["server writes"], rates["write(bytes)"]),
        ):
            ratio = median(ours) / median(bare)
            rows.append(measured(f"{self._what}: {what}", [ratio], "share", goal=">= 0.8", note="of medians"))
        return rows

    # ---- the server

    def _calls(self, n: int) -> Iterator[Call]:
        spec = TensorSpec("<f8", (self._n, self._n), "F")
        for at in range(n):
            self._n_written += 1
            out = f"{_FOLDER}/out-{self._n}-{self._n_written}.npz"
            yield Call(f"{out}-{time.time_ns()}", "lu", {}, (Reference(self._uris[at], spec),), out)

    def _wall_s(self) -> float:
        with self._server.client() as client:
            start_s = time.perf_counter()
            for _ in replies(client, self._calls(self._n_files), _WINDOW):
                pass
            return time.perf_counter() - start_s

    def _server_rates(self, stage: str) -> list[float]:
        """One request at a time: what the server itself says that reading or writing took."""
        with self._server.client() as client:
            found = list(replies(client, self._calls(2), 1))
        return [len(self._content) / reply.seconds[stage] / MB for reply in found]

    # ---- without the server

    def _read_by_store(self, at: int) -> None:
        self._store.read_into(self._uris[at], memoryview(bytearray(len(self._content))))

    def _write_by_store(self, at: int) -> None:
        self._store.write_atomic(f"{_FOLDER}/alone-{self._n}-{at}", [self._content])

    def _per_file_s(self, action: Callable[[int], None], n_threads: int) -> float:
        with ThreadPoolExecutor(n_threads) as pool:
            start_s = time.perf_counter()
            list(pool.map(action, range(self._n_files)))
            return (time.perf_counter() - start_s) / self._n_files

    def _single(self) -> dict[str, Callable[[], object]]:
        """hdfs-native's own calls."""
        path = self._uris[0].removeprefix("hdfs://")
        target = memoryview(bytearray(len(self._content)))

        def write() -> None:
            import hdfs_native

            self._n_written += 1
            options = hdfs_native.WriteOptions(create_parent=True)
            with self._native.create(f"/bench/bare-{self._n_written}", options) as file:
                file.write(self._content)

        def stream() -> None:
            at = 0
            for part in self._native.read(path).read_range_stream(0, len(target)):
                target[at : at + len(part)] = part
                at += len(part)

        return {
            "read": lambda: self._native.read(path).read(),
            "read_range": lambda: self._native.read(path).read_range(0, len(self._content)),
            "read_range_stream": stream,
            "write(bytes)": write,
        }

    def _rate(self, action: Callable[[], object]) -> float:
        start_s = time.perf_counter()
        action()
        return len(self._content) / (time.perf_counter() - start_s) / MB


# ---- who used how many CPU seconds: what a wall time is bound by where everything shares a few cores

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


REST = "rest of the machine"


@dataclass
class Usage:
    """What was used.

    Attributes:
        wall_s: how long it took.
        cpu_s: CPU seconds by who used them; `REST` are all other processes, and the kernel's own threads.
        waiting_s: seconds of all cores together in which one was idle while a process waited for the disk.
    """

    wall_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    waiting_s: float = 0.0


class Accounts:
    """CPU seconds of processes by group, threads that have ended included, and of the whole machine.

    Args:
        pids: the processes of each group, by its name.
    """

    def __init__(self, pids: Mapping[str, list[int]]) -> None:
        self._pids = pids

    @contextmanager
    def noted(self) -> Iterator[Usage]:
        """Fills in what is used inside, when it is left."""
        usage = Usage()
        before, (busy_s, waiting_s), start_s = self._read(), _machine_s(), time.perf_counter()
        yield usage
        usage.wall_s = time.perf_counter() - start_s
        usage.cpu_s = {who: seconds - before[who] for who, seconds in self._read().items()}
        busy_after_s, waiting_after_s = _machine_s()
        usage.cpu_s[REST] = max(0.0, busy_after_s - busy_s - sum(usage.cpu_s.values()))
        usage.waiting_s = waiting_after_s - waiting_s

    def _read(self) -> dict[str, float]:
        return {who: sum(map(_cpu_s, pids)) for who, pids in self._pids.items()}


def _machine_s() -> tuple[float, float]:
    """Seconds that all cores together have worked so far, and have been idle for the disk's sake."""
    user, nice, system, _, waiting, *others = (
        int(field) / _TICKS_PER_S for field in Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]
    )
    return user + nice + system + sum(others), waiting


def _cpu_s(pid: int) -> float:
    """User and system time so far; 0 of a process that is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0
