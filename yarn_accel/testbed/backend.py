"""What a back end does: it makes the nodes of a plan on this machine, and runs and disturbs them there.

The plan says what there shall be, a back end how. There is one per mode, see `yarn_accel.testbed.backends`.
Whatever it starts carries the cluster's mark and shows up in this machine's /proc, so looking at processes,
signals and memory are the same for all (`yarn_accel.testbed.processes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from yarn_accel.adapters.commands import CompletedCommand
from yarn_accel.hadoop.java import HadoopInstall
from yarn_accel.testbed.plan import NodePlan
from yarn_accel.testbed.processes import Process


@dataclass(frozen=True)
class Software:
    """What the daemons run from.

    Attributes:
        install: the jars and the Java program.
        archive: the class data archive; None runs without.
    """

    install: HadoopInstall
    archive: Path | None


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
