"""The pseudo-cluster itself: how fast it starts, what it costs idle, what a job costs that does nothing.

One cluster (4 nodes, 2 racks, no pipeline servers) is started ``n`` times; the last serves the other rows.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import ROOT
from benchmarks.result import Report, Row, measured, observed
from yarn_accel.adapters import commands
from yarn_accel.errors import JobError
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.hadoop.streaming import NLINE_INPUT_FORMAT, JobResult, StreamingJob, run_streaming
from yarn_accel.storage import Store
from yarn_accel.testbed import Cluster, ClusterStatus, UpOptions, take_down
from yarn_accel.testbed.software import ensure_archive, ensure_hadoop

NAME = "bench-hadoop"
N_MAPPERS = 8
MIB = 1024 * 1024
GIB = 1024 * MIB
Say = Callable[[str], None]
_MAPPER = Path(__file__).with_name("first_line.py")


class _Peak:
    """Samples the cluster's resident memory in the background and remembers the largest sum."""

    def __init__(self, cluster: Cluster, period_s: float = 0.5) -> None:
        self._cluster, self._period_s = cluster, period_s
        self._stop = threading.Event()
        self.rss_bytes = 0

    def __enter__(self) -> _Peak:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(self._period_s):
            self.rss_bytes = max(self.rss_bytes, self._cluster.status().rss_bytes)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    started_s = time.monotonic()
    yield
    into.append(time.monotonic() - started_s)


def _starts(n: int, mode: str, report: Say) -> tuple[Cluster, list[float], list[float]]:
    """Start the cluster ``n`` times and stop it ``n - 1`` times."""
    options = UpOptions(name=NAME, nodes=4, racks=2, accel_nodes=2, pipeline=False, mode=mode)
    up_s: list[float] = []
    down_s: list[float] = []
    ensure_archive(ensure_hadoop(report), report)  # cold costs are not what this figure is about
    for at in range(n - 1):
        report(f"cluster start {at + 1} of {n}")
        with _timed(up_s):
            cluster = Cluster.up(options, report)
        with _timed(down_s):
            cluster.down(report)
    report(f"cluster start {n} of {n}")
    with _timed(up_s):
        cluster = Cluster.up(options, report)
    return cluster, up_s, down_s


def _settled(cluster: Cluster) -> ClusterStatus:
    """The status after ten quiet seconds: what "idle" means here."""
    time.sleep(10)
    return cluster.status()


def _job(cluster: Cluster, store: Store, at: int, report: Say) -> tuple[JobResult, list[float]]:
    """Run eight mappers of one line each; also the seconds from each attempt's start to its first line."""
    lines = "".join(f"line-{number}\n" for number in range(N_MAPPERS))
    manifest, output = f"hdfs:///bench/lines-{at}.txt", f"/bench/out-{at}"
    store.write_atomic(manifest, [lines.encode()])
    job = StreamingJob(
        name=f"bench-{at}",
        mapper=f"python3 {_MAPPER.name}",
        inputs=[manifest],
        output=output,
        files=[str(_MAPPER)],
        properties={"mapreduce.input.lineinputformat.linespermap": "1"},
        input_format=NLINE_INPUT_FORMAT,
    )
    site = HadoopSite.load({"HADOOP_CONF_DIR": str(cluster.conf_dir)})
    result = run_streaming(site, job, report).check()
    first_s = {}
    for uri in store.list(f"hdfs://{output}"):
        for line in store.read_bytes(uri, MIB).decode().splitlines():
            attempt, read_s = line.split("\t")
            first_s[attempt] = float(read_s)
    return result, [first_s[task.attempt] - task.start_s for task in result.tasks if task.attempt in first_s]


def _job_rows(cluster: Cluster, store: Store, n: int, note: str, report: Say) -> list[Row]:
    walls_s: list[float] = []
    waits_s: list[float] = []
    spread = set()
    with _Peak(cluster) as peak:
        for at in range(n):
            result, first_s = _job(cluster, store, at, report)
            walls_s.append(result.wall_s)
            waits_s += first_s
            spread |= {task.node for task in result.tasks if task.kind == "MAP"}
    wall_note, nodes = note or "client wall time", f"over {len(spread)} nodes"
    return [
        measured("8-mapper streaming job, overhead", walls_s, "s", goal="<= 18", note=wall_note),
        measured("container start: attempt to its first line", waits_s, "s", note=nodes),
        observed("peak resident memory of the daemons, while jobs ran", peak.rss_bytes / GIB, "GiB"),
    ]


def _rate(sizes: Sequence[tuple[int, int]], once: Callable[[str, int], float], what: str) -> list[Row]:
    rows = []
    for n_bytes, n in sizes:
        rates = [n_bytes / 1e6 / once(f"{what}-{n_bytes}-{at}".replace(" ", "-"), n_bytes) for at in range(n)]
        note = "replication 2, one client"
        rows.append(measured(f"HDFS {what} {n_bytes // MIB} MiB", rates, "MB/s", note=note))
    return rows


def _hdfs_rows(cluster: Cluster, store: Store, quick: bool) -> list[Row]:
    """The two ways from Python, on the same files in the same run."""
    sizes = [(MIB, 3), (50 * MIB, 3)] if quick else [(MIB, 7), (50 * MIB, 7), (200 * MIB, 3)]
    address = f"{cluster.plan.master.address}:{cluster.plan.ports.namenode_http}"
    content = {n_bytes: bytes(n_bytes) for n_bytes, _ in sizes}

    def timed(action: Callable[[], object]) -> float:
        took: list[float] = []
        with _timed(took):
            action()
        return took[0]

    def native_write(name: str, n_bytes: int) -> float:
        return timed(lambda: store.write_atomic(f"hdfs:///bench/{name}", [content[n_bytes]]))

    def native_read(name: str, n_bytes: int) -> float:
        source, target = f"hdfs:///bench/{name.replace('read', 'write')}", memoryview(bytearray(n_bytes))
        return timed(lambda: store.read_into(source, target))

    def web_read(name: str, n_bytes: int) -> float:
        source = f"hdfs:///bench/{name.replace('WebHDFS-read', 'native-write')}"
        program = [sys.executable, "-m", "benchmarks.webhdfs_read", address, source, str(n_bytes)]
        done = commands.run(cluster.exec_argv(cluster.plan.workers[0].name, program), timeout_s=60, cwd=ROOT)
        if not done.ok:
            raise JobError(f"the WebHDFS read failed: {done.last_line()}")
        return float(done.stdout)

    return [
        *_rate(sizes, native_write, "native write"),
        *_rate(sizes, native_read, "native read"),
        *_rate(sizes, web_read, "WebHDFS read"),
    ]


def run(quick: bool, report: Say, record: Report, mode: str = "auto") -> None:
    """Measure; the cluster is taken down whatever happens."""
    n = 1 if quick else 3
    note = "quick: once" if quick else ""
    try:
        cluster, up_s, down_s = _starts(n, mode, report)
        status = _settled(cluster)
        store = Store(cluster.conf_dir)
        idle = [
            measured("cluster start, warm (NN, RM, JHS, 4 NM, 4 DN)", up_s, "s", goal="<= 20", note=note),
            observed("resident memory idle, 11 daemons", status.rss_bytes / GIB, "GiB", goal="<= 2.5"),
            observed("proportional memory idle, 11 daemons", status.pss_bytes / GIB, "GiB"),
            observed("peak resident memory, sum over daemons", status.peak_bytes / GIB, "GiB", note="VmHWM"),
        ]
        record.add(idle)
        record.add(_job_rows(cluster, store, n, note, report))
        record.add(_hdfs_rows(cluster, store, quick))
        with _timed(down_s):
            cluster.down(report)
        record.add([measured("cluster stop", down_s, "s", note=note)])
    finally:
        take_down(NAME, report)
