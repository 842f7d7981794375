"""Meaning of the exit statuses of YARN's containers."""

from __future__ import annotations

__all__ = ["describe_exit", "is_excused", "is_lasting"]

_WORDS = {
    -100: "released, or its node was lost",
    -101: "the disks of its node failed",
    -102: "preempted",
    -103: "over its limit of virtual memory",
    -104: "over its limit of memory",
    -105: "stopped by the application",
    -106: "killed by the resource manager",
    -107: "killed after the application ended",
    -108: "killed by the container scheduler of its node",
    -1000: "exit status unknown",
}
#: Not caused by the container, so it is requested again at once: YARN decides when resources are free.
_EXCUSED = frozenset((-100, -102, -105, -106, -107, -108))
#: Our own programs' refusals (`launch`) whose cause stays until somebody mends the node: another Python,
#: glibc or platform, no space to unpack, a damaged environment. Not 116, devices that another process holds:
#: it may be a server of before that is about to end.
_LASTING = frozenset((111, 112, 113, 114, 115))


def is_lasting(exit_status: int) -> bool:
    """Whether the cause persists until somebody repairs the node."""
    return exit_status in _LASTING


def is_excused(exit_status: int) -> bool:
    """Whether the container did not cause its end: it is requested again at once, and no failure."""
    return exit_status in _EXCUSED


def describe_exit(exit_status: int, diagnostics: str = "") -> str:
    """One line for people."""
    text = _WORDS.get(exit_status, f"exit status {exit_status}")
    lines = diagnostics.strip().splitlines()
    return f"{text}: {lines[0][:200]}" if lines and exit_status not in _WORDS else text
