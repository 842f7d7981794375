"""Runs the daemons of one node in the foreground: what each container of ``docker/compose.yaml`` does.

The containers share one folder. The master writes the cluster's specification and settings there, formats
HDFS once and starts its daemons; a worker waits until NameNode and ResourceManager answer, and reads them. So
there is one place where a cluster is configured, `yarn_accel.testbed.settings`, whoever starts it.

A daemon that ends by itself ends the node: the container's state tells of it. Output goes where ours does.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.daemons import (
    Pages,
    ask,
    daemon_argv,
    format_namenode,
    is_listening,
    node_environ,
)
from yarn_accel.testbed.host_nodes import LoopbackNodes
from yarn_accel.testbed.plan import MASTER, ClusterPlan, DaemonRole, NetworkMode, NodePlan, UpOptions
from yarn_accel.testbed.settings import write_settings
from yarn_accel.testbed.software import Software, ensure_software
from yarn_accel.testbed.state import ClusterPaths, ClusterSpec, Report, load, save
from yarn_accel.users import user_name

#: How long a worker waits for the master; its container may be made first, and format HDFS.
MASTER_PATIENCE_S = 900.0
#: Less than the ten seconds after which an engine kills a container that it stops.
END_GRACE_S = 8.0
_POLL_S = 0.25
#: How often a node asks its daemons how they are: until all are healthy, and from then on.
ASK_INTERVALS_S = (1.0, 5.0)
#: How long a healthy node may answer otherwise or not at all until it is called unhealthy. A busy machine
#: keeps a daemon from answering in time; one that ends ends the node at once, so only what hangs is meant.
UNHEALTHY_AFTER_S = 120.0
#: Host name of containers of clients; a JVM that submits a job looks its own name up.
CLIENT_HOST = "client"
_WEBHDFS_TIMEOUT_S = 5.0


def plan_as_master(paths: ClusterPaths, options: UpOptions, subnet: int, software: Software) -> ClusterPlan:
    """Lay the cluster out, write all settings, and then the specification that workers read.

    Args:
        paths: the shared folder.
        options: what the cluster shall be.
        subnet: K of the containers' network 10.231.K.0/24.
        software: what daemons and tasks run from.

    Raises:
        ConfigError: the options make no cluster.
    """
    spec = ClusterSpec(options, NetworkMode.DOCKER, subnet, 0, time.time())
    plan = spec.plan(paths)
    write_settings(plan, paths, software.install, software.archive)
    write_atomic(paths.hosts_file, f"{paths.hosts_file.read_text()}127.0.0.1 {CLIENT_HOST}\n")
    save(paths, spec)
    return plan


def plan_as_worker(
    paths: ClusterPaths, report: Report, stop: threading.Event, deadline_s: float = MASTER_PATIENCE_S
) -> ClusterPlan | None:
    """Wait for the master's NameNode and ResourceManager, and read its specification; None: `stop` was set.

    Raises:
        ClusterError: the master does not answer within `deadline_s`.
    """
    deadline = time.monotonic() + deadline_s
    report(f"waiting for the NameNode and the ResourceManager of {MASTER}")
    while not stop.wait(_POLL_S):
        spec = load(paths)
        if spec is not None:
            ports = spec.plan(paths).ports
            if is_listening(MASTER, ports.namenode) and is_listening(MASTER, ports.rm_tracker):
                return spec.plan(paths)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{MASTER} has not answered for {deadline_s:.0f} s", cure=f"see: docker compose logs {MASTER}"
            )
    return None


class ContainerNode:
    """The daemons of one node as children of this process.

    Args:
        plan: the cluster.
        paths: its shared folder.
        name: the node that this container is.
        software: what the daemons run from.
        report: gets a line per step.
        health_file: exists while all daemons of the node are healthy.
        stop: set when the node shall end.

    Raises:
        ConfigError: the cluster has no such node.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        paths: ClusterPaths,
        name: str,
        software: Software,
        report: Report,
        health_file: Path,
        stop: threading.Event,
    ) -> None:
        self._plan = plan
        self._paths = paths
        self._node: NodePlan = plan.node(name)
        self._software = software
        self._report = report
        self._health_file = health_file
        self._stop = stop
        self._daemons: dict[DaemonRole, subprocess.Popen[bytes]] = {}
        self._next_question_s = 0.0
        self._last_healthy_s = 0.0

    def run(self) -> None:
        """Start the daemons and watch them until `stop` is set; ends all of them whatever happens.

        Raises:
            ClusterError: a daemon ended by itself, or HDFS could not be formatted.
        """
        self._health_file.unlink(missing_ok=True)
        try:
            waiting = self._start_first()
            while not self._stop.wait(_POLL_S):
                self._check_alive()
                for role in [role for role, is_ready in waiting.items() if is_ready()]:
                    del waiting[role]
                    self._start(role)
                if not waiting:
                    self._note_health()
        finally:
            self._health_file.unlink(missing_ok=True)
            self._end_all()

    def _start_first(self) -> dict[DaemonRole, Callable[[], bool]]:
        """Start what can start now; returns the others and what each waits for."""
        if not self._node.is_master:
            for role in self._plan.roles(self._node):
                self._start(role)
            return {}
        self._start(DaemonRole.RESOURCEMANAGER)
        here = LoopbackNodes(self._plan, self._paths)
        if format_namenode(here, self._plan, self._paths, self._software):
            self._report("formatted HDFS")
        self._start(DaemonRole.NAMENODE)
        return {DaemonRole.HISTORYSERVER: self._is_hdfs_ready}

    def _is_hdfs_ready(self) -> bool:
        if not Pages(self._plan, self._paths).is_out_of_safe_mode():
            return False
        with contextlib.suppress(OSError):
            self._make_home()
        return True

    def _make_home(self) -> None:
        """Make the user's home in HDFS, where relative paths lead; a JVM would take seconds for it."""
        user, ports = user_name(), self._plan.ports
        base = f"http://{self._node.address}:{ports.namenode_http}/webhdfs/v1/user/{user}"
        request = urllib.request.Request(f"{base}?op=MKDIRS&user.name={user}", method="PUT")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(request, timeout=_WEBHDFS_TIMEOUT_S).close()

    def _start(self, role: DaemonRole) -> None:
        self._report(f"starting {role.value}")
        folder = self._paths.node_dir(self._node.name)
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        if role is DaemonRole.PIPELINE:
            self._paths.pipeline_state(self._node.name).unlink(missing_ok=True)
        env: Mapping[str, str] = node_environ(
            self._plan, self._paths, self._node, self._software.install.java_home
        )
        argv = daemon_argv(self._plan, self._paths, self._node, role, self._software)
        self._daemons[role] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, cwd=folder, env=dict(env))

    def _check_alive(self) -> None:
        for role, daemon in self._daemons.items():
            status = daemon.poll()
            if status is not None:
                raise ClusterError(
                    f"{role.value} of node {self._node.name} ended with status {status}",
                    cure="see its log above",
                )

    def _note_health(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_question_s:
            return
        was_healthy = self._health_file.exists()
        is_healthy = self._are_all_healthy()
        if is_healthy:
            self._last_healthy_s = now_s
        if is_healthy and not was_healthy:
            self._health_file.touch()
            self._report(f"node {self._node.name} is healthy")
        elif was_healthy and now_s - self._last_healthy_s > UNHEALTHY_AFTER_S:
            self._health_file.unlink(missing_ok=True)
            self._report(f"node {self._node.name} is not healthy any more")
        self._next_question_s = now_s + ASK_INTERVALS_S[is_healthy]

    def _are_all_healthy(self) -> bool:
        if not all(ask(self._plan, self._paths, self._node, role) == "healthy" for role in self._daemons):
            return False
        return (
            self._node.is_master or self._node.host in Pages(self._plan, self._paths).running_nodemanagers()
        )

    def _end_all(self) -> None:
        for daemon in self._daemons.values():
            daemon.terminate()
        deadline = time.monotonic() + END_GRACE_S
        for daemon in self._daemons.values():
            try:
                daemon.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def run_node(
    paths: ClusterPaths, name: str, options: UpOptions, subnet: int, health_file: Path, report: Report
) -> None:
    """Be the node `name` until SIGTERM or SIGINT.

    Args:
        paths: the folder that all containers of the cluster share.
        name: ``master`` or a worker.
        options: what the cluster shall be; read by the master alone.
        subnet: likewise, K of 10.231.K.0/24.
        health_file: exists while all daemons of the node are healthy.
        report: gets a line per step.

    Raises:
        ConfigError: the options make no cluster, or it has no such node.
        StartupError: Java or Hadoop's jars are missing.
        ClusterError: the master does not answer, or a daemon ended by itself.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    software = ensure_software(report)
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{paths.root} cannot be made: {error.strerror}",
            cure="mount a volume that this user may write to",
        ) from error
    is_master = name == MASTER
    plan = (
        plan_as_master(paths, options, subnet, software) if is_master else plan_as_worker(paths, report, stop)
    )
    if plan is not None:
        ContainerNode(plan, paths, name, software, report, health_file, stop).run()
