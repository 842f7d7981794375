"""Checks whether nodes can run a packed environment, as far as YARN tells before a submission.

A NodeManager does not report its node's Python or C library.  Nodes that publish them as node attributes are
checked before the submission.  Any other node checks itself when its first container starts, and ends that
container with an exit code which the ApplicationMaster reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from yarn_accel.launch import bootstrap
from yarn_accel.launch.device_lock import EXIT_DEVICES
from yarn_accel.launch.packing import Requirement

#: Node attribute (any prefix) -> the fact it tells.
ATTRIBUTES = {
    "accel-python": "python",
    "accel-glibc": "glibc",
    "accel-machine": "machine",
}

#: What the exit codes of our containers mean when they end before their command began.
EXIT_REASONS: Mapping[int, str] = {
    bootstrap.EXIT_PYTHON: "the node's python3 has another minor version than the packed environment",
    bootstrap.EXIT_GLIBC: "the node's glibc is older than the packed environment needs",
    bootstrap.EXIT_PLATFORM: "the node is another platform than the environment was packed on",
    bootstrap.EXIT_DISK: "the node has no disk space or no folder to unpack the environment",
    bootstrap.EXIT_DAMAGED: "the environment that came to the node is damaged",
    EXIT_DEVICES: "another process holds the node's accelerators",
    126: "the node's interpreter (`python:` in the launch settings) cannot be run",
    127: "the node has no interpreter of the name set with `python:` in the launch settings",
}
#: Codes that a retry on the same node does not change before its administrator acts.
_LASTING = frozenset({bootstrap.EXIT_PYTHON, bootstrap.EXIT_GLIBC, bootstrap.EXIT_PLATFORM, 126, 127})


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """What is known of the nodes before a submission.

    Attributes:
        incompatible: node -> why it cannot run the environment, with the cure.
        unknown: nodes without attributes; each checks itself.
    """

    incompatible: Mapping[str, str]
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{node}: {why}" for node, why in sorted(self.incompatible.items())]
        if self.unknown:
            lines.append(f"{len(self.unknown)} nodes tell neither Python nor glibc: each checks itself")
        return "\n".join(lines)


def check_nodes(requirement: Requirement, facts: Mapping[str, Mapping[str, str]]) -> CompatibilityReport:
    """Check every node by what is known of it.

    Args:
        requirement: of the packed environment.
        facts: node -> its facts by the names of `Requirement`, as far as known (see `attribute_facts`).
    """
    incompatible, unknown = {}, []
    need = asdict(requirement)
    for node, have in facts.items():
        if not have:
            unknown.append(node)
        try:
            bootstrap.check_node(need, dict(have))
        except bootstrap.StartRefused as error:
            incompatible[node] = str(error)
    return CompatibilityReport(incompatible, tuple(sorted(unknown)))


def attribute_facts(attributes: Mapping[str, str]) -> dict[str, str]:
    """The facts on Python and C library in a node's attributes (name, with or without prefix, -> value)."""
    names = {name.rpartition("/")[2]: value for name, value in attributes.items()}
    return {fact: names[name] for name, fact in ATTRIBUTES.items() if names.get(name)}


def explain_exit(exit_code: int) -> tuple[str, bool] | None:
    """The reason that an exit code gives and whether it lasts; None: the code is the command's own."""
    reason = EXIT_REASONS.get(exit_code)
    return None if reason is None else (reason, exit_code in _LASTING)
