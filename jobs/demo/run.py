"""The demo from nothing to a record: cluster up, input in, both jobs, counters read, cluster down always.

The input is matrices, real photographs cut into patches, and some records spoilt on purpose.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from jobs.demo.cluster import ClusterOptions, cluster_down, cluster_status, cluster_up, read_servers
from jobs.demo.record import ClusterFacts, DemoRecord, ServerFacts
from jobs.factorize.job import FactorizeJob, factors_of, good_entries, run_factorize
from jobs.factorize.manifest import Done, key_of
from jobs.factorize.matrices import (
    GARBAGE_LINE,
    Check,
    Matrix,
    balance,
    drawn,
    make_bytes,
    manifest_of,
    plan_flawed,
    plan_matrices,
    verify,
)
from jobs.images.job import ImagesJob, ImagesOutcome, run_images
from jobs.images.make_input import DEFAULT_CLUSTERS, PatchPlan, patches, purity
from jobs.runners.hadoop import HadoopRunner
from jobs.runners.step import Outcome, Report
from yarn_accel.client import SequenceFileWriter
from yarn_accel.errors import AccelError
from yarn_accel.storage import Store
from yarn_accel.streaming import HadoopSite

MAX_FILE_BYTES = 1 << 30
LOADERS = 2
Images = dict[str, bytes]
"""Key of a patch -> its encoded image."""


@dataclass(frozen=True, slots=True)
class InputSize:
    """How much input."""

    n_matrices: int = 60
    n_min: int = 256
    n_max: int = 1500
    n_images: int = 2000
    n_broken_images: int = 2
    n_image_files: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The demo as the user asked for it.

    Args:
        n_tasks: map tasks of the factorize job.
        n_verified: so many matrices are checked independently afterwards.
        is_kept: leave the cluster up.
        logs_dir: where the daemons' logs go when it fails.
    """

    up: ClusterOptions = field(default_factory=ClusterOptions)
    size: InputSize = field(default_factory=InputSize)
    n_tasks: int = 8
    n_verified: int = 12
    is_kept: bool = False
    logs_dir: Path = Path("out/demo/logs")


class Phases:
    """Measures how long each phase takes."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block under `name` and say when it is done."""
        started_s = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started_s
        self._report(f"{name}: {self.seconds[name]:.1f} s")


@contextlib.contextmanager
def demo_cluster(options: DemoOptions, report: Report) -> Iterator[None]:
    """Start from no cluster of that name, and leave none behind whatever happens (SIGTERM and Ctrl-C too)."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        cluster_down(options.up.name, _silent)
        yield
    except AccelError:
        if not options.is_kept:
            _keep_logs(options, report)
        raise
    finally:
        try:
            if not options.is_kept:
                report("taking the cluster down")
                cluster_down(options.up.name, _silent)
        finally:
            signal.signal(signal.SIGTERM, before)


def _keep_logs(options: DemoOptions, report: Report) -> None:
    """Copy what the error may name before it goes with the cluster."""
    with contextlib.suppress(OSError):
        shutil.rmtree(options.logs_dir, ignore_errors=True)
        status = cluster_status(options.up.name)
        if status is not None:
            shutil.copytree(status["logs_dir"], options.logs_dir)
            report(f"the daemons' logs are kept in {options.logs_dir}")


def _silent(_: str) -> None:
    """Report nothing."""


def run_demo(options: DemoOptions, phases: Phases, report: Report) -> tuple[DemoRecord, Images]:
    """Run everything inside `demo_cluster`; returns the record and the images (for the mosaic).

    Raises:
        StartupError: the machine lacks something.
        AccelError: a part of it failed.
    """
    started_at = time.strftime("%Y-%m-%d %H:%M:%S")
    data = plan_input(options.size, options.n_tasks)
    with ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(make_images, data.plan)
        with phases.phase("start the cluster, cut the photographs"):
            cluster = cluster_up(options.up, report)
            images = cutting.result()
    conf_dir = Path(cluster["conf_dir"])
    steps = DemoSteps(options, conf_dir, data, phases, report)
    n_bytes, image_uris = steps.load(images)
    factorized, clustered = steps.factorize(), steps.cluster_images(image_uris, len(images))
    checks, servers = steps.look(factorized, cluster["pipeline_config_files"])
    record = DemoRecord(
        started_at=started_at,
        machine=_machine(),
        cluster=_cluster_facts(cluster, cluster_status(options.up.name) or cluster, steps.site),
        phases=phases.seconds,
        hdfs_bytes=n_bytes,
        spoilt=data.spoilt(),
        factorize=factorized,
        verified=checks,
        images=clustered,
        purity=purity(clustered.clustering.index),
        servers=servers,
    )
    return record, images


class DemoSteps:
    """The work between the cluster's start and its end, phase by phase."""

    def __init__(
        self, options: DemoOptions, conf_dir: Path, data: DemoInput, phases: Phases, report: Report
    ) -> None:
        self.site = HadoopSite.load({**os.environ, "HADOOP_CONF_DIR": str(conf_dir)})
        # In the cluster's own folder, so that taking it down also removes what a killed demo left.
        self.runner = HadoopRunner(self.site, scratch=conf_dir.parent)
        self._options = options
        self._data = data
        self._phases = phases
        self._report = report
        self._store = Store(conf_dir)
        self._manifest = data.manifest(self.runner.home("matrices"), self.runner.home("factors"))

    def load(self, images: Images) -> tuple[int, tuple[str, ...]]:
        """Put the input into HDFS; returns its bytes, and the URIs of the files of images."""
        with self._phases.phase("load the input into HDFS"):
            home = self.runner.home
            n_bytes = load_matrices(self._store, home("matrices"), self._data.matrices, self._report)
            n_files = self._options.size.n_image_files
            uris, n_image_bytes = load_images(self._store, home("photographs"), images, n_files, self._report)
        return n_bytes + n_image_bytes, uris

    def factorize(self) -> Outcome[Done]:
        """The first job."""
        with self._phases.phase("factorize"):
            job = FactorizeJob(self._options.n_tasks, residual="all")
            return run_factorize(self.runner, self._store, self._manifest, job, self._report)

    def cluster_images(self, uris: tuple[str, ...], n_images: int) -> ImagesOutcome:
        """The second job."""
        with self._phases.phase("cluster the images"):
            job = ImagesJob(k=DEFAULT_CLUSTERS)
            return run_images(self.runner, self._store, uris, n_images, job, self._report)

    def look(
        self, factorized: Outcome[Done], config_files: Sequence[str]
    ) -> tuple[tuple[Check, ...], tuple[ServerFacts, ...]]:
        """Check some factors here, and ask the servers what they did."""
        with self._phases.phase("check the factors, read the counters"):
            self._report("checking factors read back from HDFS")
            done = {row.key for row in factorized.results}
            entries = [entry for entry in good_entries(self._manifest) if entry.key in done]
            checks = verify(self._read, factors_of(self._store, drawn(entries, self._options.n_verified)))
            servers = read_servers(config_files)
        return checks, servers

    def _read(self, uri: str) -> bytes:
        return self._store.read_bytes(uri, MAX_FILE_BYTES)


def _cluster_facts(idle: Mapping[str, Any], now: Mapping[str, Any], site: HadoopSite) -> ClusterFacts:
    workers = idle["workers"]
    return ClusterFacts(
        mode=idle["mode"],
        nodes={node["name"]: node["rack"] for node in workers},
        node_hosts=tuple(node["host"] for node in workers),
        accelerated=tuple(node["host"] for node in workers if node["is_accelerated"]),
        n_daemons=len(now["daemons"]),
        hadoop_version=site.install.version,
        n_jars=site.install.n_jars,
        jar_bytes=site.install.n_bytes,
        rss_bytes=idle["rss_bytes"],
        peak_bytes=now["peak_bytes"],
    )


def _machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.machine()}"


# ---- the input


@dataclass(frozen=True, slots=True)
class DemoInput:
    """The planned input: the matrices in manifest order, bad ones among them, and the patches."""

    matrices: tuple[Matrix, ...]
    plan: PatchPlan

    def manifest(self, input_uri: str, output_uri: str) -> str:
        """The manifest: every matrix, and one line of garbage."""
        return manifest_of(self.matrices, input_uri, output_uri) + GARBAGE_LINE + "\n"

    def spoilt(self) -> tuple[str, ...]:
        """Keys of the records that must be rejected."""
        keys = [matrix.key for matrix in self.matrices if matrix.flaw]
        broken = range(self.plan.n_images, self.plan.n_images + self.plan.n_broken)
        return (*keys, key_of(GARBAGE_LINE), *(f"broken/{number:06d}" for number in broken))


def plan_input(size: InputSize, n_tasks: int) -> DemoInput:
    """Plan the input for `n_tasks` map tasks of about equal work."""
    good = plan_matrices(size.n_matrices, size.n_min, size.n_max, size.seed)
    matrices = balance((*good, *plan_flawed(min(256, size.n_max), size.seed)), n_tasks)
    return DemoInput(matrices, PatchPlan(size.n_images, n_broken=size.n_broken_images, seed=size.seed))


def make_images(plan: PatchPlan) -> Images:
    """Cut every patch (about 15 KB each) into memory."""
    return dict(patches(plan))


def load_matrices(store: Store, folder_uri: str, matrices: Sequence[Matrix], report: Report) -> int:
    """Make the matrix files and write them into HDFS; returns their bytes."""
    present = [matrix for matrix in matrices if matrix.flaw != "missing"]

    def load(matrix: Matrix) -> int:
        return store.write_atomic(f"{folder_uri}/{matrix.key}.bin", [make_bytes(matrix)])

    n_bytes = 0
    with ThreadPoolExecutor(LOADERS) as pool:
        for number, future in enumerate(
            as_completed([pool.submit(load, matrix) for matrix in present]), start=1
        ):
            n_bytes += future.result()
            report(f"loading matrices into HDFS: {number} of {len(present)}, {n_bytes / 1e6:.0f} MB")
    return n_bytes


def load_images(
    store: Store, folder_uri: str, images: Images, n_files: int, report: Report
) -> tuple[tuple[str, ...], int]:
    """Pack the images into SequenceFiles in HDFS; returns the files' URIs and their bytes."""
    items = list(images.items())
    uris, n_bytes = [], 0
    for number in range(n_files):
        with closing(io.BytesIO()) as buffer:
            writer = SequenceFileWriter(buffer)
            for key, content in items[number * len(items) // n_files : (number + 1) * len(items) // n_files]:
                writer.append(key, content)
            uris.append(f"{folder_uri}/part-{number:03d}.seq")
            n_bytes += store.write_atomic(uris[-1], [buffer.getvalue()])
        report(f"loading images into HDFS: file {number + 1} of {n_files}, {n_bytes / 1e6:.0f} MB")
    return tuple(uris), n_bytes
