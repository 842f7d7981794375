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
import ssl
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
from yarn_accel.testbed import kerberos
from yarn_accel.testbed.backends import Backend
from yarn_accel.testbed.plan import (
    DATANODE_HTTPS_PORT,
    KDC_PORT,
    NAMENODE_HTTPS_PORT,
    ZOOKEEPER_PORT,
    ClusterPlan,
    DaemonRole,
    NodePlan,
)
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
ZKFC_PORT = 8019
ZK_FORMATTED_BEFORE = 2
"""Exit status of ``zkfc -formatZK`` where the place in ZooKeeper is there already."""
LOG_TAIL_BYTES = 256 * 1024
#: A line of a Java stack trace that names what was thrown.
_THROWN = re.compile(r"(Caused by: )?[\w.$]+(Exception|Error)\b")
# Variables that would change what a daemon does; the rest of the caller's environment is passed on.
_DROPPED = re.compile(
    r"HADOOP_.*|YARN_(?!ACCEL).*|HDFS_.*|MAPRED_.*|KRB5.*|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|CLASSPATH"
)


def node_environ(
    plan: ClusterPlan,
    paths: ClusterPaths,
    node: NodePlan,
    java_home: Path | None,
    environ: Mapping[str, str] | None = None,
    role: DaemonRole | None = None,
) -> dict[str, str]:
    """Return the environment of daemons and commands on a node.

    Args:
        plan: the cluster.
        paths: its files.
        node: the node.
        java_home: where Java is; the caller's JAVA_HOME stays when None.
        environ: what to start from (default: the caller's).
        role: of the daemon; None for a command.
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
    if plan.options.secure:
        kept.update(kerberos.environ(paths, node, role))
    if java_home is not None:
        kept["JAVA_HOME"] = str(java_home)
    return kept


def signature(paths: ClusterPaths, node: NodePlan, role: DaemonRole) -> str:
    """Return the last argument of a daemon, by which it is recognized when it runs."""
    if role is DaemonRole.PIPELINE:
        return str(paths.pipeline_config(node.name))
    own = {DaemonRole.KDC: kerberos.kdc_signature(paths), DaemonRole.ZOOKEEPER: str(paths.zookeeper_config)}
    return own.get(role) or MAIN_CLASSES[role.value]


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
    if role is DaemonRole.KDC:
        return kerberos.kdc_argv(paths)
    arguments = [signature(paths, node, role)] if role is DaemonRole.ZOOKEEPER else []
    return _java(plan, paths, node, role, software, *arguments)


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
    env = node_environ(plan, paths, node, software.install.java_home, role=role)
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
    shutil.rmtree(paths.shared_edits_dir, ignore_errors=True)
    argv = _java(
        plan, paths, node, DaemonRole.NAMENODE, software, "-format", "-nonInteractive", data_dir=draft
    )
    env = node_environ(plan, paths, node, software.install.java_home)
    done = backend.run(node, argv, FORMAT_TIMEOUT_S, cwd=folder, env=env)
    log = paths.log_file(node.name, "format")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(done.stdout + done.stderr)
    if not done.ok:
        raise ClusterError(f"namenode of {node.name} could not format HDFS: {describe_log(log)}")
    for second in plan.masters[1:]:
        # What `-bootstrapStandby` would fetch from the first one, which does not run yet.
        standby = paths.node_dir(second.name) / paths.namenode_dir.name
        shutil.rmtree(standby, ignore_errors=True)
        shutil.copytree(draft / paths.namenode_dir.name, standby)
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
    """Return the address of a daemon's web page, for this machine; of its TCP port where it has no page."""
    ports = {
        DaemonRole.NAMENODE: plan.ports.namenode_http,
        DaemonRole.RESOURCEMANAGER: plan.ports.rm_http,
        DaemonRole.HISTORYSERVER: plan.ports.history_http,
        DaemonRole.DATANODE: node.ports.datanode_http,
        DaemonRole.NODEMANAGER: node.ports.nodemanager_http,
    }
    tls_ports = {DaemonRole.NAMENODE: NAMENODE_HTTPS_PORT, DaemonRole.DATANODE: DATANODE_HTTPS_PORT}
    tcp_ports = {
        DaemonRole.PIPELINE: node.ports.pipeline,
        DaemonRole.KDC: KDC_PORT,
        DaemonRole.ZOOKEEPER: ZOOKEEPER_PORT,
        DaemonRole.ZKFC: ZKFC_PORT,
    }
    if role in tcp_ports:
        return f"tcp://{node.address}:{tcp_ports[role]}"
    if plan.options.secure and role in tls_ports:
        return f"https://{node.address}:{tls_ports[role]}"
    return f"http://{node.address}:{ports[role]}"


ASK_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
# The addresses are this machine's own: a proxy of the environment must not see them.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_json(
    url: str,
    timeout_s: float = ASK_TIMEOUT_S,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Any:
    """Return a decoded JSON answer; None when nobody answers properly (yet)."""
    request = urllib.request.Request(url, headers=dict(headers or {}), method=method)
    opener = _OPENER
    if context is not None:
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return json.loads(answer.read(MAX_ANSWER_BYTES) or b"null")
    except (OSError, ValueError, http.client.HTTPException, urllib.error.URLError):
        return None


def is_listening(address: str, port: int, timeout_s: float = ASK_TIMEOUT_S) -> bool:
    """Tell whether somebody accepts connections at a TCP address."""
    try:
        socket.create_connection((address, port), timeout_s).close()
    except OSError:
        return False
    return True


class Pages:
    """The web pages of a cluster's daemons, as the launcher reads them.

    Args:
        plan: the cluster.
        paths: its files; with Kerberos they hold what the launcher logs in by.
    """

    def __init__(self, plan: ClusterPlan, paths: ClusterPaths) -> None:
        self._plan = plan
        self._paths = paths

    def get(
        self,
        node: NodePlan,
        role: DaemonRole,
        path: str,
        *,
        method: str = "GET",
        user: str = kerberos.SUPERUSER,
    ) -> Any:
        """Return the JSON at a path of a daemon's pages, asked as `user`; None: no proper answer (yet)."""
        url = web_address(self._plan, node, role) + path
        if not self._plan.options.secure:
            return get_json(url, method=method)
        try:
            login = kerberos.WebLogin.of(self._paths)
        except OSError:
            return None
        return get_json(url, method=method, headers=login.headers(user, role), context=login.context)

    def _bean(self, node: NodePlan, role: DaemonRole, query: str) -> dict[str, Any]:
        answer = self.get(node, role, f"/jmx?qry={query}")
        beans = answer.get("beans") if isinstance(answer, dict) else None
        return dict(beans[0]) if beans else {}

    def is_out_of_safe_mode(self) -> bool:
        """Tell whether HDFS may be written to."""
        active = self.active_namenode()
        return active is not None and self.namenode(active) == "healthy"

    def active_namenode(self) -> NodePlan | None:
        """Return the node of the NameNode that answers clients; None while there is none."""
        query = "Hadoop:service=NameNode,name=NameNodeStatus"
        for node in self._plan.masters:
            if self._bean(node, DaemonRole.NAMENODE, query).get("State") == "active":
                return node
        return None

    def active_resourcemanager(self) -> NodePlan | None:
        """Return the node of the ResourceManager that answers clients; None while there is none."""
        for node in self._plan.masters:
            answer = self.get(node, DaemonRole.RESOURCEMANAGER, "/ws/v1/cluster/info")
            if ((answer or {}).get("clusterInfo") or {}).get("haState") == "ACTIVE":
                return node
        return None

    def n_live_datanodes(self) -> int:
        """Return how many DataNodes the NameNode holds for alive."""
        query = "Hadoop:service=NameNode,name=FSNamesystemState"
        node = self.active_namenode()
        return int(self._bean(node, DaemonRole.NAMENODE, query).get("NumLiveDataNodes", 0)) if node else 0

    def running_nodemanagers(self) -> set[str]:
        """Return the hosts whose NodeManagers the ResourceManager holds for usable."""
        path = "/ws/v1/cluster/nodes?states=RUNNING"
        node = self.active_resourcemanager()
        answer = self.get(node, DaemonRole.RESOURCEMANAGER, path) if node else None
        nodes = ((answer or {}).get("nodes") or {}).get("node") or []
        return {str(node["nodeHostName"]) for node in nodes}

    def namenode(self, node: NodePlan) -> str:
        """Return the health of a NameNode; empty where it does not answer. So do the others."""
        info = self._bean(node, DaemonRole.NAMENODE, "Hadoop:service=NameNode,name=NameNodeInfo")
        if "Safemode" not in info:
            return ""
        return "healthy" if info["Safemode"] == "" else "safe mode"

    def resourcemanager(self, node: NodePlan) -> str:
        """Return the health of a ResourceManager."""
        answer = self.get(node, DaemonRole.RESOURCEMANAGER, "/ws/v1/cluster/info")
        state = str(((answer or {}).get("clusterInfo") or {}).get("state", ""))
        return "healthy" if state == "STARTED" else state.lower()

    def historyserver(self, node: NodePlan) -> str:
        """Return the health of a JobHistoryServer."""
        return "healthy" if self.get(node, DaemonRole.HISTORYSERVER, "/ws/v1/history/info") else ""

    def datanode(self, node: NodePlan) -> str:
        """Return the health of a DataNode; it has no cluster's id until the NameNode has accepted it."""
        info = self._bean(node, DaemonRole.DATANODE, "Hadoop:service=DataNode,name=DataNodeInfo")
        return "healthy" if info.get("ClusterId") else ""

    def nodemanager(self, node: NodePlan) -> str:
        """Return the health of a NodeManager."""
        answer = self.get(node, DaemonRole.NODEMANAGER, "/ws/v1/node/info")
        info = (answer or {}).get("nodeInfo")
        if not info:
            return ""
        return (
            "healthy" if info.get("nodeHealthy") else f"unhealthy: {info.get('healthReport', '')}".strip(": ")
        )

    def make_folders(self) -> None:
        """Make the folders of HDFS that only its superuser may make; those that are there stay as they are.

        Raises:
            ClusterError: HDFS refused.
        """
        for path, owner, group, mode in kerberos.HDFS_FOLDERS:
            if self._owner(path) == owner:
                continue
            orders = (
                "MKDIRS",
                f"SETOWNER&owner={owner}&group={group}",
                f"SETPERMISSION&permission={mode}",
            )
            for order in orders:
                self._webhdfs(path, order, method="PUT")
            if self._owner(path) != owner:
                raise ClusterError(f"{path} could not be made in HDFS for {owner}")

    def _owner(self, path: str) -> str:
        answer = self._webhdfs(path, "GETFILESTATUS")
        return str(((answer or {}).get("FileStatus") or {}).get("owner", ""))

    def _webhdfs(self, path: str, order: str, method: str = "GET") -> Any:
        where = f"/webhdfs/v1{path}?op={order}"
        return self.get(
            self.active_namenode() or self._plan.master, DaemonRole.NAMENODE, where, method=method
        )


def _ask_pipeline(paths: ClusterPaths, node: NodePlan) -> str:
    """Look for the file that the server writes when it is ready; a connection would show in its counters.

    Whoever starts a server removes the file of the one before.
    """
    return "healthy" if paths.pipeline_state(node.name).exists() else ""


_QUESTIONS: dict[DaemonRole, Callable[[Pages, NodePlan], str]] = {
    DaemonRole.NAMENODE: Pages.namenode,
    DaemonRole.RESOURCEMANAGER: Pages.resourcemanager,
    DaemonRole.HISTORYSERVER: Pages.historyserver,
    DaemonRole.DATANODE: Pages.datanode,
    DaemonRole.NODEMANAGER: Pages.nodemanager,
}


def ask(plan: ClusterPlan, paths: ClusterPaths, node: NodePlan, role: DaemonRole) -> str:
    """Return how a running daemon is: ``healthy``, what is wrong, or ``starting`` when it does not answer."""
    if role is DaemonRole.PIPELINE:
        answer = _ask_pipeline(paths, node)
    elif role is DaemonRole.KDC:
        answer = "healthy" if is_listening(node.address, KDC_PORT) else ""
    elif role is DaemonRole.ZOOKEEPER:
        answer = "healthy" if is_listening(node.address, ZOOKEEPER_PORT) else ""
    elif role is DaemonRole.ZKFC:
        answer = "healthy" if is_listening(node.address, ZKFC_PORT) else ""
    else:
        answer = _QUESTIONS[role](Pages(plan, paths), node)
    return answer or "starting"


Daemon = tuple[NodePlan, DaemonRole]
POLL_S = 0.15
MASTER_DEADLINE_S = 120.0
WORKER_DEADLINE_S = 180.0
# A daemon that was just started may not be in the process table under its own name yet.
_APPEARS_WITHIN_S = 1.5
_MASTERS_FIRST = (DaemonRole.NAMENODE, DaemonRole.RESOURCEMANAGER)
_FOUNDATIONS = {DaemonRole.KDC: KDC_PORT, DaemonRole.ZOOKEEPER: ZOOKEEPER_PORT}
_IN_TURN = (*_FOUNDATIONS, DaemonRole.ZKFC, *_MASTERS_FIRST, DaemonRole.HISTORYSERVER)
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
        self._pages = Pages(plan, paths)
        self._started_s: dict[tuple[str, DaemonRole], float] = {}

    def run(self, missing: Iterable[Daemon]) -> None:
        """Start `missing` in order and wait until every daemon of the cluster is healthy.

        Raises:
            ClusterError: a daemon ended, or did not become ready in time.
        """
        wanted = list(missing)
        self._start_foundations([daemon for daemon in wanted if daemon[1] in _FOUNDATIONS])
        self._start_masters([daemon for daemon in wanted if daemon[1] in _MASTERS_FIRST])
        self._start_controllers([daemon for daemon in wanted if daemon[1] is DaemonRole.ZKFC])
        self._start_all([daemon for daemon in wanted if daemon[1] not in _IN_TURN])
        self._wait(
            self._pages.is_out_of_safe_mode,
            "HDFS to be writable",
            [(node, DaemonRole.NAMENODE) for node in self._plan.masters],
            WORKER_DEADLINE_S,
        )
        if self._plan.options.secure and wanted:
            self._pages.make_folders()
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

    def _start_foundations(self, daemons: list[Daemon]) -> None:
        """Start KDC and ZooKeeper, without which no other daemon starts."""
        self._start_all(daemons)
        for node, role in daemons:
            self._wait(
                lambda node=node, port=_FOUNDATIONS[role]: is_listening(node.address, port),  # type: ignore[misc]
                f"{role.value} to answer at {node.address}:{_FOUNDATIONS[role]}",
                daemons,
                MASTER_DEADLINE_S,
            )

    def _start_controllers(self, daemons: list[Daemon]) -> None:
        """Start the failover controllers of the NameNodes, after making their place in ZooKeeper once."""
        if not daemons:
            return
        made = self._paths.root / "zookeeper-formatted"
        if not made.exists():
            node, role = daemons[0]
            words = ("-formatZK", "-nonInteractive")
            argv = _java(self._plan, self._paths, node, role, self._software, *words)
            env = node_environ(self._plan, self._paths, node, self._software.install.java_home)
            folder = self._paths.node_dir(node.name)
            done = self._backend.run(node, argv, FORMAT_TIMEOUT_S, cwd=folder, env=env)
            if done.exit_code not in (0, ZK_FORMATTED_BEFORE):
                raise ClusterError(
                    f"{role.value} of node {node.name} has no place in ZooKeeper: {done.last_line()}"
                )
            made.touch()
        self._start_all(daemons)

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
        plan = self._plan
        for role, port in (
            (DaemonRole.NAMENODE, plan.ports.namenode),
            (DaemonRole.RESOURCEMANAGER, plan.ports.rm_tracker),
        ):
            # A standby ResourceManager keeps that port closed.
            self._wait(
                lambda port=port: any(is_listening(node.address, port) for node in plan.masters),  # type: ignore[misc]
                f"{role.value} to answer at {plan.master.address}:{port}",
                [(node, role) for node in plan.masters],
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
            n_live = self._pages.n_live_datanodes()
            return n_live >= len(plan.data_nodes) and self._pages.running_nodemanagers() >= hosts

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
