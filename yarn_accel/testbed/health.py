"""Questions to running daemons over HTTP (REST and JMX) and TCP, with short time limits and no retries."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from yarn_accel.testbed.daemons import web_address
from yarn_accel.testbed.plan import ClusterPlan, DaemonRole, NodePlan
from yarn_accel.testbed.state import ClusterPaths

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
