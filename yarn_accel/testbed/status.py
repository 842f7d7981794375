"""What a cluster's daemons are doing, as values for programs and tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from yarn_accel.testbed.backend import Backend
from yarn_accel.testbed.daemons import running, web_address
from yarn_accel.testbed.health import ask
from yarn_accel.testbed.plan import ClusterPlan, DaemonRole, NodePlan
from yarn_accel.testbed.processes import Memory, memory_of, snapshot
from yarn_accel.testbed.state import ClusterPaths


@dataclass(frozen=True)
class DaemonStatus:
    """One daemon.

    Attributes:
        pid: 0 when it does not run.
        health: ``healthy``, ``starting``, ``safe mode``, ``unhealthy: why``, ``cut off``, ``paused`` or
            ``stopped``.
        rss_bytes: resident memory.
        pss_bytes: resident memory with shared pages divided among their users.
        peak_bytes: the largest resident memory since it started.
        web: address of its web page, or of its TCP service.
    """

    node: str
    role: str
    pid: int
    health: str
    rss_bytes: int
    pss_bytes: int
    peak_bytes: int
    web: str


@dataclass(frozen=True)
class ClusterStatus:
    """A whole cluster, daemons in the order of the plan."""

    name: str
    mode: str
    conf_dir: str
    daemons: tuple[DaemonStatus, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether every daemon is."""
        return all(daemon.health == "healthy" for daemon in self.daemons)

    @property
    def rss_bytes(self) -> int:
        """Resident memory of all daemons; pages that several share count each time."""
        return sum(daemon.rss_bytes for daemon in self.daemons)

    @property
    def pss_bytes(self) -> int:
        """Memory of all daemons; shared pages count once."""
        return sum(daemon.pss_bytes for daemon in self.daemons)

    @property
    def peak_bytes(self) -> int:
        """Sum of the daemons' largest resident sizes: an upper bound of the peak."""
        return sum(daemon.peak_bytes for daemon in self.daemons)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-able value with the totals."""
        totals = {"rss_bytes": self.rss_bytes, "pss_bytes": self.pss_bytes, "peak_bytes": self.peak_bytes}
        return {**asdict(self), "is_healthy": self.is_healthy, **totals}


def read_status(backend: Backend, plan: ClusterPlan, paths: ClusterPaths) -> ClusterStatus:
    """Look at every daemon now; takes as long as the slowest answer (at most some seconds)."""
    table = snapshot()
    alive = running(paths, plan.daemons(), table)
    conditions = {node.name: backend.condition(node, table) for node in plan.nodes}

    def look(daemon: tuple[NodePlan, DaemonRole]) -> DaemonStatus:
        node, role = daemon
        process = alive.get((node.name, role))
        memory = memory_of(process.pid) if process else Memory(0, 0, 0)
        health = (conditions[node.name] or ask(plan, paths, node, role)) if process else "stopped"
        return DaemonStatus(
            node=node.name,
            role=role.value,
            pid=process.pid if process else 0,
            health=health,
            rss_bytes=memory.rss_bytes,
            pss_bytes=memory.pss_bytes,
            peak_bytes=memory.peak_bytes,
            web=web_address(plan, node, role),
        )

    with ThreadPoolExecutor(max_workers=16) as pool:
        daemons = tuple(pool.map(look, plan.daemons()))
    return ClusterStatus(paths.name, plan.mode.value, str(paths.client_conf_dir), daemons)
