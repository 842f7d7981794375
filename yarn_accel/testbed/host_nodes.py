"""Nodes whose processes this machine starts itself: in loopback mode, and in network namespaces."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from yarn_accel.adapters.commands import CompletedCommand, run
from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.testbed import netns
from yarn_accel.testbed.backend import Software
from yarn_accel.testbed.plan import ClusterPlan, NodePlan, namespace_prefix
from yarn_accel.testbed.preflight import check_subnet
from yarn_accel.testbed.processes import Process, mark_of, marked_environ, members, send, snapshot, stop_all
from yarn_accel.testbed.state import ClusterPaths, machine_lock

STOP_DEADLINE_S = 30.0
_SIGNAL_DEADLINE_S = 5.0


class LoopbackNodes:
    """All nodes on one network stack: they differ by address and ports alone."""

    def __init__(self, plan: ClusterPlan, paths: ClusterPaths) -> None:
        self._plan = plan
        self._paths = paths
        self._mark = mark_of(paths.name, paths.tag)

    def ensure(self, software: Software, *, is_new: bool) -> list[str]:
        """See `Backend`: only paused nodes are not as planned."""
        table = snapshot()
        paused = [node for node in self._plan.nodes if self.condition(node, table) == "paused"]
        for node in paused:
            self.resume(node)
        return [f"paused {node.name}" for node in paused]

    def exec_argv(self, node: NodePlan, argv: Sequence[str]) -> list[str]:
        """See `Backend`."""
        return list(argv)

    def run(
        self, node: NodePlan, argv: Sequence[str], timeout_s: float, *, cwd: Path, env: Mapping[str, str]
    ) -> CompletedCommand:
        """See `Backend`."""
        return run(self.exec_argv(node, argv), timeout_s, cwd=cwd, env=env)

    def start(
        self, node: NodePlan, argv: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str]
    ) -> bool:
        """See `Backend`. ``setsid --fork`` makes it a child of init, so nobody here has to wait for it."""
        with log.open("ab") as output:
            done = subprocess.run(
                ["setsid", "--fork", *self.exec_argv(node, argv)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=dict(env),
                check=False,
            )
        return done.returncode == 0

    def set_link(self, node: NodePlan, *, is_up: bool) -> None:
        """See `Backend`; nodes have no links here.

        Raises:
            ConfigError: always.
        """
        raise _no_links()

    def shape(self, node: NodePlan, link: str) -> None:
        """See `Backend`; nodes have no links here.

        Raises:
            ConfigError: always.
        """
        raise _no_links()

    def pause(self, node: NodePlan) -> None:
        """See `Backend`: SIGSTOP to every process of the node, also to those that start meanwhile."""
        self._signal_all(node, signal.SIGSTOP, are_stopped=True)

    def resume(self, node: NodePlan) -> None:
        """See `Backend`: SIGCONT."""
        self._signal_all(node, signal.SIGCONT, are_stopped=False)

    def condition(self, node: NodePlan, table: Iterable[Process]) -> str:
        """See `Backend`."""
        own = self._members(node, table)
        return "paused" if own and all(process.is_stopped for process in own) else ""

    def _members(self, node: NodePlan, table: Iterable[Process] | None = None) -> list[Process]:
        marked = members(self._mark, (), table)
        return [process for process in marked if process.node == node.name]

    def _signal_all(self, node: NodePlan, signum: int, *, are_stopped: bool) -> None:
        deadline = time.monotonic() + _SIGNAL_DEADLINE_S
        while differing := [each for each in self._members(node) if each.is_stopped is not are_stopped]:
            if time.monotonic() > deadline:
                pids = ", ".join(str(process.pid) for process in differing)
                raise ClusterError(f"processes of node {node.name} do not obey signal {signum}: {pids}")
            for process in differing:
                send(process, signum)
            time.sleep(0.02)


def _no_links() -> ConfigError:
    return ConfigError(
        "in loopback mode nodes have no links of their own", cure="use --mode netns (as root) or docker"
    )


class NamespaceNodes(LoopbackNodes):
    """Each node a network namespace with its own address, link and host name, see `netns`. Needs root."""

    def __init__(self, plan: ClusterPlan, paths: ClusterPaths) -> None:
        super().__init__(plan, paths)
        self._env = marked_environ(paths)

    def ensure(self, software: Software, *, is_new: bool) -> list[str]:
        """See `Backend`; a new namespace ends what still runs in a nameless one that it replaces."""
        plan = self._plan
        with machine_lock("subnet"):
            check_subnet(plan, plan.subnet, netns.used_subnets(self._env))
            made = netns.ensure(plan, self._paths, self._env)
        if not is_new and made:
            self._stop_strays()
        netns.shape(plan, self._env)
        if made:
            netns.check_reach(plan)
        return made + super().ensure(software, is_new=is_new)

    def exec_argv(self, node: NodePlan, argv: Sequence[str]) -> list[str]:
        """See `Backend`."""
        return [*netns.enter_argv(node, self._paths), *argv]

    def set_link(self, node: NodePlan, *, is_up: bool) -> None:
        """See `Backend`."""
        netns.set_link(node, "up" if is_up else "down", self._env)

    def shape(self, node: NodePlan, link: str) -> None:
        """See `Backend`.

        Raises:
            StartupError: the kernel cannot do it.
        """
        netns.check_shaping(link, "", self._env)
        netns.shape_node(node, link, self._plan.options.delay, self._env)

    def condition(self, node: NodePlan, table: Iterable[Process]) -> str:
        """See `Backend`."""
        return "cut off" if netns.is_cut(node) else super().condition(node, table)

    def _stop_strays(self) -> None:
        inodes = netns.namespaces(namespace_prefix(self._paths.name, self._plan.tag))
        own = {node.name: inodes.get(node.namespace, 0) for node in self._plan.nodes}

        def find() -> list[Process]:
            marked = (process for process in members(self._mark, ()) if process.node in own)
            return [process for process in marked if process.namespace != own[process.node]]

        stop_all(find, grace_s=2.0, deadline_s=STOP_DEADLINE_S)
