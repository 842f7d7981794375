"""What is said where this host's clock is not the server's, or where no node reports any more."""

from __future__ import annotations

from collections.abc import Iterator

from torque_sched.adapters.pbs import Look


def clock_text(ahead_s: float) -> str:
    """How far this host's clock is off, in words; empty: not so far that it matters."""
    if not ahead_s:
        return ""
    how = "ahead of" if ahead_s > 0 else "behind"
    return f"this host's clock is {abs(ahead_s):.0f} s {how} the server's, whose time counts"


def clock_troubles(look: Look, dead_after_s: float) -> Iterator[str]:
    """What `status` shows and the log says once.

    Args:
        look: the last one.
        dead_after_s: while nothing new comes from any node for so long, none gets a job; 0: never mind.
    """
    if text := clock_text(look.clock_ahead_s):
        yield f"clock: {text} (run chrony or ntpd on both)"
    silent_s = look.snapshot.silent_s
    if dead_after_s and silent_s > dead_after_s:
        yield f"reports of nodes: nothing new for {silent_s:.0f} s: no node gets a job (see the moms' logs)"
