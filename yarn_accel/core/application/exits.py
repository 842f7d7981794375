"""What an exit status of YARN means for us."""

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
#: Nothing the container did, and trying again at once is right: YARN itself decides when there is room.
_EXCUSED = frozenset((-100, -102, -105, -106, -107, -108))
#: Our own programs' refusals (`launch`) whose cause stays until somebody mends the node: another Python,
#: glibc or platform, no room to unpack, a damaged environment. Not 116, devices that another process holds:
#: it may be a server of before that is about to end.
_LASTING = frozenset((111, 112, 113, 114, 115))


def is_lasting(exit_status: int) -> bool:
    """Whether trying again soon is of no use."""
    return exit_status in _LASTING


def is_excused(exit_status: int) -> bool:
    """Whether it ended for no fault of its own: asked for again at once, and not counted as failed."""
    return exit_status in _EXCUSED


def describe_exit(exit_status: int, diagnostics: str = "") -> str:
    """One line for people."""
    text = _WORDS.get(exit_status, f"exit status {exit_status}")
    lines = diagnostics.strip().splitlines()
    return f"{text}: {lines[0][:200]}" if lines and exit_status not in _WORDS else text
