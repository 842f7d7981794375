"""A real cluster with the task service: two nodes hold HDFS, four have a worker of one core each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mps_live.driver import Answers, Asker, DagDriver
from benchmarks.mps_live.setting import BANDWIDTH_BYTES_PER_S, N_MACHINES, WORKER_MIB
from benchmarks.mps_live.simulated import POLICY
from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
from yarn_accel.hadoop.control import Control, RetainedApplication
from yarn_accel.storage import Store

Say = Callable[[str], None]
_NAME = "mps-live"
_N_STORAGE = 2
_POLL_S = 0.2
_ROOT = "hdfs:///live"


@dataclass(frozen=True)
class LiveCluster:
    """A cluster whose workers wait for DAGs.

    Attributes:
        conf_dir: of its Hadoop.
    """

    conf_dir: Path
    driver: DagDriver


@contextmanager
def cluster_up(folder: Path, say: Say) -> Iterator[LiveCluster]:
    """A cluster with the task service for as long as the block lasts.

    Args:
        folder: for settings and the notes of tasks; all nodes see it, as they are of this machine.
    """
    options = SiteOptions(
        _NAME,
        workers=_N_STORAGE + N_MACHINES,
        storage_nodes=_N_STORAGE,
        accelerators=0,
        sections={
            "worker": {"enabled": True, "memory_mib": WORKER_MIB, "vcores": 1},
            "tasks": {
                "policy": POLICY,
                "min_workers": N_MACHINES,
                "max_workers": N_MACHINES,
                "figures_uri": f"{_ROOT}/figures.json",
                "bandwidth_bytes_per_s": BANDWIDTH_BYTES_PER_S,
            },
        },
    )
    with site_up(options, folder, say) as site:
        began_s = time.monotonic()
        site.run("tasks", "start", "--config", str(site.settings))
        site.until("all workers wait", lambda: _n_workers(site) == N_MACHINES, _POLL_S)
        say(f"{N_MACHINES} workers wait after {time.monotonic() - began_s:.1f} s")
        conf_dir = site.cluster.conf_dir
        driver = DagDriver(lambda work: _connected(site, work), Store(conf_dir), _ROOT, folder)
        yield LiveCluster(conf_dir, driver)


def _n_workers(site: Site) -> int:
    workers = site.control("tasks-status", patience_s=60.0)["workers"]
    return sum(not worker["is_expected"] for worker in workers.values())


def _connected(site: Site, work: Callable[[Asker], Awaitable[Answers]]) -> Answers:
    application = site.application
    secret = RetainedApplication.of(str(application), site.environ).secret()

    async def asked(manager: ResourceManager) -> Answers:
        async with Control(site.rm_client, manager, application, secret, 30.0) as control:
            return await work(control)

    return site.ask(asked)
