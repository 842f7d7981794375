"""Starts the daemons that are missing and waits until every daemon of the cluster is healthy.

NameNode and ResourceManager start first, workers when both answer, and the JobHistoryServer when HDFS accepts
writes: two cores start no more at once. Each wait has a deadline, and each failure names the node, the role
and the last error in the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from yarn_accel.errors import AccelError, ClusterError
from yarn_accel.testbed.backend import Backend, Software
from yarn_accel.testbed.daemons import describe_log, format_namenode, running, start
from yarn_accel.testbed.health import (
    ask,
    is_listening,
    is_out_of_safe_mode,
    n_live_datanodes,
    running_nodemanagers,
)
from yarn_accel.testbed.plan import ClusterPlan, DaemonRole, NodePlan
from yarn_accel.testbed.processes import snapshot
from yarn_accel.testbed.state import ClusterPaths, Report

Daemon = tuple[NodePlan, DaemonRole]
POLL_S = 0.15
MASTER_DEADLINE_S = 120.0
WORKER_DEADLINE_S = 180.0
# A daemon just started may not be in the process table under its own name yet.
SETTLE_S = 1.5
_MASTERS_FIRST = (DaemonRole.NAMENODE, DaemonRole.RESOURCEMANAGER)
#: Of which role others must run for a daemon to become healthy; a NameNode leaves safe mode for DataNodes.
_NEEDS = {
    DaemonRole.NAMENODE: DaemonRole.DATANODE,
    DaemonRole.HISTORYSERVER: DaemonRole.NAMENODE,
    DaemonRole.DATANODE: DaemonRole.NAMENODE,
    DaemonRole.NODEMANAGER: DaemonRole.RESOURCEMANAGER,
}
#: How long a daemon is given beside dead ones that it needs: where none of them runs, and where some do.
_NEEDED_WAIT_S = (5.0, 30.0)


class BringUp:
    """One run of starting what is missing.

    Args:
        backend: its nodes.
        plan: the cluster.
        paths: its files.
        software: what the daemons run from.
        report: gets a line per step.
    """

    def __init__(
        self, backend: Backend, plan: ClusterPlan, paths: ClusterPaths, software: Software, report: Report
    ) -> None:
        self._backend = backend
        self._plan = plan
        self._paths = paths
        self._software = software
        self._report = report
        self._started_s: dict[tuple[str, DaemonRole], float] = {}

    def run(self, missing: Iterable[Daemon]) -> None:
        """Start `missing` in order and wait until every daemon of the cluster is healthy.

        Raises:
            ClusterError: a daemon ended, or did not become ready in time.
        """
        wanted = list(missing)
        self._start_masters([daemon for daemon in wanted if daemon[1] in _MASTERS_FIRST])
        self._start_all(
            [daemon for daemon in wanted if daemon[1] not in (*_MASTERS_FIRST, DaemonRole.HISTORYSERVER)]
        )
        master = self._plan.master
        self._wait(
            lambda: is_out_of_safe_mode(self._plan),
            "HDFS to be writable",
            [(master, DaemonRole.NAMENODE)],
            WORKER_DEADLINE_S,
        )
        self._start_all([daemon for daemon in wanted if daemon[1] is DaemonRole.HISTORYSERVER])
        self._wait_for_health()

    def run_one(self, node: NodePlan, role: DaemonRole) -> None:
        """Start one daemon and wait until it is healthy.

        Raises:
            ClusterError: it ended, did not become ready in time, or waits for others that do not run.
        """
        self._start_all([(node, role)])
        name = f"{role.value} of node {node.name}"
        seen, since_s = "starting", time.monotonic()

        def is_healthy() -> bool:
            nonlocal seen, since_s
            health = ask(self._plan, self._paths, node, role)
            if health == "healthy":
                return True
            if health != seen:
                seen, since_s = health, time.monotonic()
                self._report(f"{name}: {health}")
            # Only in safe mode is it known that a NameNode needs DataNodes: an empty HDFS needs none.
            if health != "starting" or role is not DaemonRole.NAMENODE:
                self._check_needed_daemons(name, role, health, time.monotonic() - since_s)
            return False

        self._wait(is_healthy, f"{name} to be healthy", [(node, role)], WORKER_DEADLINE_S)

    def _check_needed_daemons(self, name: str, role: DaemonRole, health: str, waited_s: float) -> None:
        """Raise when the daemon has waited long enough for daemons that do not run."""
        needed = [each for each in self._plan.daemons() if each[1] is _NEEDS.get(role)]
        alive = running(self._paths, needed, snapshot())
        dead = [(node, other) for node, other in needed if (node.name, other) not in alive]
        if dead and waited_s > _NEEDED_WAIT_S[bool(alive)]:
            raise ClusterError(
                f"{name} runs, but is not healthy ({health}): it waits for {summary(dead)}, not running",
                cure="`yarn-accel cluster up` starts all that is missing",
            )

    def _start_all(self, daemons: list[Daemon]) -> None:
        if daemons:
            self._report("starting " + summary(daemons))
        for node, role in daemons:
            start(self._backend, self._plan, self._paths, node, role, self._software)
            self._started_s[node.name, role] = time.monotonic()

    def _start_masters(self, daemons: list[Daemon]) -> None:
        """Start NameNode (after formatting HDFS once) and ResourceManager, and wait for their ports."""
        failures: list[AccelError] = []

        def format_first() -> None:
            try:
                if format_namenode(self._backend, self._plan, self._paths, self._software):
                    self._report("formatted HDFS")
            except AccelError as error:
                failures.append(error)

        formatter = None
        if any(role is DaemonRole.NAMENODE for _, role in daemons):
            formatter = threading.Thread(target=format_first, name="format-namenode")
            formatter.start()
        self._start_all([daemon for daemon in daemons if daemon[1] is not DaemonRole.NAMENODE])
        if formatter is not None:
            formatter.join()
            if failures:
                raise failures[0]
            self._start_all([daemon for daemon in daemons if daemon[1] is DaemonRole.NAMENODE])
        plan, master = self._plan, self._plan.master
        for role, port in (
            (DaemonRole.NAMENODE, plan.ports.namenode),
            (DaemonRole.RESOURCEMANAGER, plan.ports.rm_tracker),
        ):
            self._wait(
                lambda port=port: is_listening(master.address, port),  # type: ignore[misc]
                f"{role.value} to answer at {master.address}:{port}",
                [(master, role)],
                MASTER_DEADLINE_S,
            )

    def _wait_for_health(self) -> None:
        plan = self._plan
        pending = list(plan.daemons())

        def all_well() -> bool:
            pending[:] = [
                (node, role) for node, role in pending if ask(plan, self._paths, node, role) != "healthy"
            ]
            if pending:
                return False
            hosts = {node.host for node, role in plan.daemons() if role is DaemonRole.NODEMANAGER}
            return n_live_datanodes(plan) >= len(plan.data_nodes) and running_nodemanagers(plan) >= hosts

        self._wait(all_well, "all daemons to be healthy", pending, WORKER_DEADLINE_S)

    def _wait(self, is_done: Callable[[], bool], what: str, daemons: list[Daemon], deadline_s: float) -> None:
        """Wait for `is_done`, watching `daemons` (a list that may shrink meanwhile)."""
        deadline = time.monotonic() + deadline_s
        while not is_done():
            self._check_alive(daemons)
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {deadline_s:.0f} s for {what}: {self._blame(daemons)}")
            time.sleep(POLL_S)

    def _check_alive(self, daemons: list[Daemon]) -> None:
        alive = running(self._paths, daemons, snapshot())
        now = time.monotonic()
        for node, role in daemons:
            is_new = now - self._started_s.get((node.name, role), 0.0) < SETTLE_S
            if (node.name, role) not in alive and not is_new:
                log = self._paths.log_file(node.name, role.value)
                raise ClusterError(f"{role.value} of node {node.name} ended: {describe_log(log)}")

    def _blame(self, daemons: list[Daemon]) -> str:
        if not daemons:
            return "not every worker is registered with namenode and resourcemanager"
        node, role = daemons[0]
        others = f" (and {len(daemons) - 1} more)" if len(daemons) > 1 else ""
        log = self._paths.log_file(node.name, role.value)
        return f"{role.value} of node {node.name}{others}, {describe_log(log)}"


def summary(daemons: list[Daemon]) -> str:
    """Daemons by role, such as ``datanode on w1, w2; nodemanager on w1``."""
    nodes: dict[str, list[str]] = {}
    for node, role in daemons:
        nodes.setdefault(role.value, []).append(node.name)
    return "; ".join(f"{role} on {', '.join(names)}" for role, names in nodes.items())
