"""The daemons of a cluster: how each is started, recognized and asked, and the order in which all start.

A daemon is a detached process of its own session whose output goes to a log file; who started it may leave.
Daemons are asked over HTTP (REST and JMX) and TCP, with short time limits and no retries.

`BringUp` starts the daemons that are missing and waits until every daemon of the cluster is healthy. NameNode
and ResourceManager start first, workers when both answer, and the JobHistoryServer when HDFS accepts writes:
two cores start no more at once. Each wait has a deadline, and each failure names the node, the role and the
last error in the log.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yarn_accel
from yarn_accel.errors import AccelError, ClusterError
from yarn_accel.hadoop.java import MAIN_CLASSES, java_argv
from yarn_accel.testbed.backends import Backend
from yarn_accel.testbed.plan import ClusterPlan, DaemonRole, NodePlan
from yarn_accel.testbed.processes import (
    NODE_VARIABLE,
    Process,
    find_daemon,
    mark_of,
    marked_environ,
    snapshot,
)
from yarn_accel.testbed.settings import jvm_options, node_properties
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths, Report

FORMAT_TIMEOUT_S = 600.0
LOG_TAIL_BYTES = 256 * 1024
#: A line of a Java stack trace that names what was thrown.
_THROWN = re.compile(r"(Caused by: )?[\w.$]+(Exception|Error)\b")
# Variables that would change what a daemon does; the rest of the caller's environment is passed on.
_DROPPED = re.compile(
    r"HADOOP_.*|YARN_(?!ACCEL).*|HDFS_.*|MAPRED_.*|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|CLASSPATH"
)


def node_environ(
    paths: ClusterPaths, node: NodePlan, java_home: Path | None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of daemons and commands on a node.

    Args:
        paths: the cluster.
        node: the node.
        java_home: where Java is; the caller's JAVA_HOME stays when None.
        environ: what to start from (default: the caller's).
    """
    kept = {
        key: value for key, value in marked_environ(paths, environ).items() if not _DROPPED.fullmatch(key)
    }
    package_parent = str(Path(yarn_accel.__file__).resolve().parents[1])
    roots = [package_parent, *(path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path)]
    kept.update(
        {
            NODE_VARIABLE: node.name,
            "HADOOP_CONF_DIR": str(paths.conf_dir),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(roots)),
        }
    )
    if java_home is not None:
        kept["JAVA_HOME"] = str(java_home)
    return kept


def signature(paths: ClusterPaths, node: NodePlan, role: DaemonRole) -> str:
    """Return the last argument of a daemon, by which it is recognized when it runs."""
    return str(paths.pipeline_config(node.name)) if role is DaemonRole.PIPELINE else MAIN_CLASSES[role.value]


def running(
    paths: ClusterPaths, daemons: Iterable[tuple[NodePlan, DaemonRole]], table: Iterable[Process]
) -> dict[tuple[str, DaemonRole], Process]:
    """Return the running ones of `daemons`, by node name and role."""
    mark = mark_of(paths.name, paths.tag)
    processes = [process for process in table if process.mark == mark]
    found = {}
    for node, role in daemons:
        process = find_daemon(mark, node.name, signature(paths, node, role), processes)
        if process is not None:
            found[node.name, role] = process
    return found


def daemon_argv(
    plan: ClusterPlan, paths: ClusterPaths, node: NodePlan, role: DaemonRole, software: Software
) -> list[str]:
    """Return the command of a daemon, without what makes it run on its node."""
    if role is DaemonRole.PIPELINE:
        return [
            sys.executable,
            "-m",
            "yarn_accel",
            "pipeline",
            "serve",
            "--config",
            signature(paths, node, role),
        ]
    return _java(plan, paths, node, role, software)


def _java(
    plan: ClusterPlan,
    paths: ClusterPaths,
    node: NodePlan,
    role: DaemonRole,
    software: Software,
    *arguments: str,
    data_dir: Path | None = None,
) -> list[str]:
    """Return a Java command; its data lie in the node's directory unless `data_dir` says otherwise."""
    own = {"accel.node.dir": str(data_dir)} if data_dir else {}
    extra = [] if node.is_master else [paths.node_dir(node.name) / "conf"]
    return java_argv(
        software.install,
        role.value,
        paths.conf_dir,
        properties={**node_properties(plan, paths, node), **own},
        archive=software.archive,
        extra_class_path=extra,
        jvm_options=jvm_options(plan, paths),
        arguments=arguments,
    )


def start(
    backend: Backend,
    plan: ClusterPlan,
    paths: ClusterPaths,
    node: NodePlan,
    role: DaemonRole,
    software: Software,
) -> None:
    """Start a daemon and return at once; its log is `ClusterPaths.log_file`, appended to."""
    log = paths.log_file(node.name, role.value)
    log.parent.mkdir(parents=True, exist_ok=True)
    folder = paths.node_dir(node.name)
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    if role is DaemonRole.PIPELINE:
        paths.pipeline_state(node.name).unlink(missing_ok=True)
    argv = daemon_argv(plan, paths, node, role, software)
    env = node_environ(paths, node, software.install.java_home)
    if not backend.start(node, argv, log, cwd=folder, env=env):
        raise ClusterError(f"{role.value} of {node.name} could not be started: {describe_log(log)}")


def format_namenode(backend: Backend, plan: ClusterPlan, paths: ClusterPaths, software: Software) -> bool:
    """Format HDFS unless that was done before; tell whether it had to be done.

    It is done in a folder of its own that is renamed when complete: what a killed launcher was formatting is
    never used, and may even go on.

    Raises:
        ClusterError: the NameNode refused.
    """
    if paths.namenode_dir.exists():
        return False
    node = plan.master
    folder = paths.node_dir(node.name)
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="format-", dir=folder))
    argv = _java(
        plan, paths, node, DaemonRole.NAMENODE, software, "-format", "-nonInteractive", data_dir=draft
    )
    env = node_environ(paths, node, software.install.java_home)
    done = backend.run(node, argv, FORMAT_TIMEOUT_S, cwd=folder, env=env)
    log = paths.log_file(node.name, "format")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(done.stdout + done.stderr)
    if not done.ok:
        raise ClusterError(f"namenode of {node.name} could not format HDFS: {describe_log(log)}")
    (draft / paths.namenode_dir.name).rename(paths.namenode_dir)
    shutil.rmtree(draft)
    return True


def tail(log: Path, n_lines: int) -> list[str]:
    """Return the last lines of a log (of its last 256 KiB); none when there is no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-n_lines:] if n_lines > 0 else []


def describe_log(log: Path) -> str:
    """Return a log's path and its last line of level ERROR or FATAL with its cause in Java.

    Where there is no such line, it is the last line with text.
    """
    lines = [line.strip() for line in tail(log, 100_000) if line.strip()]
    bad = [index for index, line in enumerate(lines) if re.search(r"\b(ERROR|FATAL)\b", line)]
    if not bad:
        return f"see {log}: {lines[-1] if lines else 'it is empty'}"
    trace = takewhile(lambda line: not line[0].isdigit(), lines[bad[-1] + 1 :])
    causes = [line for line in trace if _THROWN.match(line)]
    return f"see {log}: {': '.join([lines[bad[-1]], *causes[-1:]])}"


def web_address(plan: ClusterPlan, node: NodePlan, role: DaemonRole) -> str:
    """Return the address of a daemon's web page, or of a pipeline server's TCP port, for this machine."""
    ports = {
        DaemonRole.NAMENODE: plan.ports.namenode_http,
        DaemonRole.RESOURCEMANAGER: plan.ports.rm_http,
        DaemonRole.HISTORYSERVER: plan.ports.history_http,
        DaemonRole.DATANODE: node.ports.datanode_http,
        DaemonRole.NODEMANAGER: node.ports.nodemanager_http,
    }
    if role is DaemonRole.PIPELINE:
        return f"tcp://{node.address}:{node.ports.pipeline}"
    return f"http://{node.address}:{ports[role]}"


ASK_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
# The addresses are this machine's own: a proxy of the environment must not see them.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_json(url: str, timeout_s: float = ASK_TIMEOUT_S) -> Any:
    """Return a decoded JSON answer; None when nobody answers properly (yet)."""
    try:
        with _OPENER.open(url, timeout=timeout_s) as answer:
            return json.loads(answer.read(MAX_ANSWER_BYTES))
    except (OSError, ValueError, http.client.HTTPException, urllib.error.URLError):
        return None


def is_listening(address: str, port: int, timeout_s: float = ASK_TIMEOUT_S) -> bool:
    """Tell whether somebody accepts connections at a TCP address."""
    try:
        socket.create_connection((address, port), timeout_s).close()
    except OSError:
        return False
    return True


def _bean(base: str, query: str) -> dict[str, Any]:
    answer = get_json(f"{base}/jmx?qry={query}")
    beans = answer.get("beans") if isinstance(answer, dict) else None
    return dict(beans[0]) if beans else {}


def is_out_of_safe_mode(plan: ClusterPlan) -> bool:
    """Tell whether HDFS may be written to."""
    base = web_address(plan, plan.master, DaemonRole.NAMENODE)
    return _bean(base, "Hadoop:service=NameNode,name=NameNodeInfo").get("Safemode") == ""


def n_live_datanodes(plan: ClusterPlan) -> int:
    """Return how many DataNodes the NameNode holds for alive."""
    base = web_address(plan, plan.master, DaemonRole.NAMENODE)
    return int(_bean(base, "Hadoop:service=NameNode,name=FSNamesystemState").get("NumLiveDataNodes", 0))


def running_nodemanagers(plan: ClusterPlan) -> set[str]:
    """Return the hosts whose NodeManagers the ResourceManager holds for usable."""
    base = web_address(plan, plan.master, DaemonRole.RESOURCEMANAGER)
    answer = get_json(f"{base}/ws/v1/cluster/nodes?states=RUNNING")
    nodes = ((answer or {}).get("nodes") or {}).get("node") or []
    return {str(node["nodeHostName"]) for node in nodes}


def _ask_namenode(plan: ClusterPlan, node: NodePlan) -> str:
    info = _bean(web_address(plan, node, DaemonRole.NAMENODE), "Hadoop:service=NameNode,name=NameNodeInfo")
    if "Safemode" not in info:
        return ""
    return "healthy" if info["Safemode"] == "" else "safe mode"


def _ask_resourcemanager(plan: ClusterPlan, node: NodePlan) -> str:
    answer = get_json(web_address(plan, node, DaemonRole.RESOURCEMANAGER) + "/ws/v1/cluster/info")
    state = str(((answer or {}).get("clusterInfo") or {}).get("state", ""))
    return "healthy" if state == "STARTED" else state.lower()


def _ask_historyserver(plan: ClusterPlan, node: NodePlan) -> str:
    answer = get_json(web_address(plan, node, DaemonRole.HISTORYSERVER) + "/ws/v1/history/info")
    return "healthy" if answer else ""


def _ask_datanode(plan: ClusterPlan, node: NodePlan) -> str:
    info = _bean(web_address(plan, node, DaemonRole.DATANODE), "Hadoop:service=DataNode,name=DataNodeInfo")
    # Empty until the NameNode has accepted it.
    return "healthy" if info.get("ClusterId") else ""


def _ask_nodemanager(plan: ClusterPlan, node: NodePlan) -> str:
    answer = get_json(web_address(plan, node, DaemonRole.NODEMANAGER) + "/ws/v1/node/info")
    info = (answer or {}).get("nodeInfo")
    if not info:
        return ""
    return "healthy" if info.get("nodeHealthy") else f"unhealthy: {info.get('healthReport', '')}".strip(": ")


def _ask_pipeline(paths: ClusterPaths, node: NodePlan) -> str:
    """Look for the file that the server writes when it is ready; a connection would show in its counters.

    Whoever starts a server removes the file of the one before.
    """
    return "healthy" if paths.pipeline_state(node.name).exists() else ""


_QUESTIONS: dict[DaemonRole, Callable[[ClusterPlan, NodePlan], str]] = {
    DaemonRole.NAMENODE: _ask_namenode,
    DaemonRole.RESOURCEMANAGER: _ask_resourcemanager,
    DaemonRole.HISTORYSERVER: _ask_historyserver,
    DaemonRole.DATANODE: _ask_datanode,
    DaemonRole.NODEMANAGER: _ask_nodemanager,
}


def ask(plan: ClusterPlan, paths: ClusterPaths, node: NodePlan, role: DaemonRole) -> str:
    """Return how a running daemon is: ``healthy``, what is wrong, or ``starting`` when it does not answer."""
    answer = _ask_pipeline(paths, node) if role is DaemonRole.PIPELINE else _QUESTIONS[role](plan, node)
    return answer or "starting"


Daemon = tuple[NodePlan, DaemonRole]
POLL_S = 0.15
MASTER_DEADLINE_S = 120.0
WORKER_DEADLINE_S = 180.0
# A daemon that was just started may not be in the process table under its own name yet.
_APPEARS_WITHIN_S = 1.5
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
            is_new = now - self._started_s.get((node.name, role), 0.0) < _APPEARS_WITHIN_S
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
