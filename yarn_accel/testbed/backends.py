"""Back ends: how the nodes of a plan are made on this machine, run, disturbed, and taken down.

The plan says what there shall be, a back end makes it. There is one per mode, in the table below. Whatever it
starts carries the cluster's mark and shows up in this machine's /proc, so looking at processes, signals and
memory are the same for all (`yarn_accel.testbed.processes`). A cluster is taken down by its names and marks
alone, so also one whose launcher was killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from yarn_accel.adapters.commands import CompletedCommand
from yarn_accel.errors import ClusterError
from yarn_accel.extras import require
from yarn_accel.testbed import docker_nodes, host_nodes, preflight
from yarn_accel.testbed.host_nodes import STOP_DEADLINE_S, LoopbackNodes, NamespaceNodes
from yarn_accel.testbed.plan import ClusterPlan, NetworkMode, NodePlan, UpOptions, namespace_prefix
from yarn_accel.testbed.processes import Process, mark_of, marked_environ, members, stop_all
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import (
    ClusterPaths,
    ClusterSpec,
    Report,
    known_names,
    load,
    locked,
    remove_lock,
    silent,
)


class Backend(Protocol):
    """The nodes of one cluster on this machine. Every method raises ClusterError where a command fails."""

    def ensure(self, software: Software, *, is_new: bool) -> list[str]:
        """Make whatever is missing of the nodes and their network, and shape the links as planned.

        Args:
            software: what the nodes must be able to read.
            is_new: the cluster is made for the first time.

        Returns:
            One phrase for each thing that had to be made.
        """

    def exec_argv(self, node: NodePlan, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` on a node from here; terminal and exit code are its own."""

    def run(
        self, node: NodePlan, argv: Sequence[str], timeout_s: float, *, cwd: Path, env: Mapping[str, str]
    ) -> CompletedCommand:
        """Run a command on a node to its end."""

    def start(
        self, node: NodePlan, argv: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str]
    ) -> bool:
        """Start a process that outlives its starter, its output added to `log`; False: it failed."""

    def set_link(self, node: NodePlan, *, is_up: bool) -> None:
        """Switch a node's link on or off; its processes go on."""

    def shape(self, node: NodePlan, link: str) -> None:
        """Limit a node's link in both directions; empty frees it."""

    def pause(self, node: NodePlan) -> None:
        """Freeze every process of a node."""

    def resume(self, node: NodePlan) -> None:
        """Have the frozen processes of a node go on."""

    def condition(self, node: NodePlan, table: Iterable[Process]) -> str:
        """Return ``cut off``, ``paused``, or empty when a node is neither.

        Args:
            node: the node.
            table: the processes of this machine.
        """


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
        if options.secure:
            preflight.check_kerberos()
        host_nodes.check_shaping(options.link, options.delay, marked_environ(paths))
    else:
        preflight.check_commands(commands=preflight.DOCKER_COMMANDS)
        docker_nodes.check_engine(options)
        if os.geteuid() == 0:  # others learn it when a node is made
            host_nodes.check_shaping(options.link, options.delay, marked_environ(paths))


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
        gone += host_nodes.remove_network(paths, marked_environ(paths), spec.owned if spec else ())
    return gone


def _may_have_containers(spec: ClusterSpec | None) -> bool:
    return spec is None or spec.mode is NetworkMode.DOCKER


# Application masters would try for half a minute to unregister from a ResourceManager that has gone.
DOWN_GRACE_S = 3.0


def take_down(name: str, report: Report = silent) -> bool:
    """Take away everything that bears a cluster's name or mark; harmless when there is nothing.

    Returns:
        Whether there was anything.

    Raises:
        ConfigError: the name is not usable.
        ClusterError: something could not be taken away; the message lists it.
    """
    paths = ClusterPaths.of(name)
    with locked(paths, report):
        had_state = paths.root.exists()
        spec = None
        with contextlib.suppress(ClusterError):
            spec = load(paths)
        started_s = time.monotonic()
        thaw_nodes(paths, spec)
        n_stopped = _stop_members(paths)
        gone = remove_nodes(paths, spec)
        _remove_tree(paths.root)
        remove_lock(paths)
    if not (had_state or n_stopped or gone):
        report(f"there is no cluster {name}; nothing to do")
        return False
    report(
        f"cluster {name} is down after {time.monotonic() - started_s:.1f} s:"
        f" {n_stopped} processes stopped, {len(gone)} objects removed"
    )
    return True


def take_down_all(report: Report = silent) -> list[str]:
    """Take down every cluster of this user and return their names."""
    names = known_names()
    if not names:
        report("there is no cluster; nothing to do")
    return [name for name in names if take_down(name, report)]


def _stop_members(paths: ClusterPaths) -> int:
    mark = mark_of(paths.name, paths.tag)
    prefix = namespace_prefix(paths.name, paths.tag)
    seen: set[int] = set()

    def find() -> list[Process]:
        found = members(mark, host_nodes.namespaces(prefix).values())
        seen.update(process.pid for process in found)
        return found

    left = stop_all(find, grace_s=DOWN_GRACE_S, deadline_s=STOP_DEADLINE_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(
            f"processes of cluster {paths.name} do not end: {pids}", cure="see them: ps -fp PID"
        )
    return len(seen)


def _remove_tree(root: Path) -> None:
    for _ in range(5):
        if not root.exists():
            return
        shutil.rmtree(root, ignore_errors=True)
    if root.exists():
        raise ClusterError(f"{root} cannot be removed", cure="see who owns the files in it, then remove it")
