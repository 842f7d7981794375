"""How each daemon is started, recognized and read.

A daemon is a detached process of its own session whose output goes to a log file; who started it may leave.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path

import yarn_accel
from yarn_accel.errors import ClusterError
from yarn_accel.hadoop.java import MAIN_CLASSES, java_argv
from yarn_accel.testbed.backend import Backend, Software
from yarn_accel.testbed.plan import ClusterPlan, DaemonRole, NodePlan
from yarn_accel.testbed.processes import (
    NODE_VARIABLE,
    Process,
    find_daemon,
    mark_of,
    marked_environ,
)
from yarn_accel.testbed.settings import jvm_options, node_properties
from yarn_accel.testbed.state import ClusterPaths

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
