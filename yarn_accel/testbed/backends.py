"""The one table of back ends: which makes the nodes of a mode, what it needs, what it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable

from yarn_accel.extras import require
from yarn_accel.testbed import docker_nodes, netns, preflight
from yarn_accel.testbed.backend import Backend
from yarn_accel.testbed.host_nodes import LoopbackNodes, NamespaceNodes
from yarn_accel.testbed.plan import ClusterPlan, NetworkMode, UpOptions
from yarn_accel.testbed.processes import marked_environ
from yarn_accel.testbed.state import ClusterPaths, ClusterSpec, Report

_BACKENDS: dict[NetworkMode, Callable[[ClusterPlan, ClusterPaths], Backend]] = {
    NetworkMode.LOOPBACK: LoopbackNodes,
    NetworkMode.NETNS: NamespaceNodes,
    NetworkMode.DOCKER: docker_nodes.DockerNodes,
}


def open_backend(plan: ClusterPlan, paths: ClusterPaths) -> Backend:
    """Return the nodes of a cluster; makes nothing and asks nothing."""
    return _BACKENDS[plan.mode](plan, paths)


def check_machine(mode: NetworkMode, options: UpOptions, paths: ClusterPaths, report: Report) -> None:
    """Make sure, before anything is made, that this machine has what the mode needs.

    Raises:
        StartupError: it lacks something; the message is one line with the cure.
    """
    if mode is not NetworkMode.DOCKER and options.accel_nodes:
        require("numpy", "scipy")  # the servers run in this environment
    if mode is NetworkMode.LOOPBACK:
        hint = "" if options.mode == "loopback" else " (for those run it as root)"
        report(f"loopback mode: nodes share one network, so no rack locality and no partitions{hint}")
    elif mode is NetworkMode.NETNS:
        preflight.check_commands()
        netns.check_shaping(options.link, options.delay, marked_environ(paths))
    else:
        preflight.check_commands(commands=preflight.DOCKER_COMMANDS)
        docker_nodes.check_engine(options)
        if os.geteuid() == 0:  # others learn it when a node is made
            netns.check_shaping(options.link, options.delay, marked_environ(paths))


def thaw_nodes(paths: ClusterPaths, spec: ClusterSpec | None) -> None:
    """Let paused nodes go on, so that their processes can end."""
    if _may_have_containers(spec):
        docker_nodes.thaw(paths, is_certain=spec is not None)


def remove_nodes(paths: ClusterPaths, spec: ClusterSpec | None) -> list[str]:
    """Take away all that back ends have made for a cluster, found by its names and labels alone.

    Args:
        paths: the cluster.
        spec: its specification; None when there is none that can be read: then all back ends look.

    Returns:
        One phrase for each thing taken away.
    """
    gone = []
    if _may_have_containers(spec):
        gone += docker_nodes.remove(paths, is_certain=spec is not None)
    if os.geteuid() == 0:
        gone += netns.remove(paths, marked_environ(paths), spec.owned if spec else ())
    return gone


def _may_have_containers(spec: ClusterSpec | None) -> bool:
    return spec is None or spec.mode is NetworkMode.DOCKER
