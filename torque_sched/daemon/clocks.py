"""Clocks that differ: the server's reports then look old, and no node gets a job though all are up."""

from __future__ import annotations

from torque_sched.core.snapshot import Snapshot

__all__ = ["silence_of_all"]


def silence_of_all(snapshot: Snapshot, dead_after_s: float) -> str:
    """What is said when the server calls nodes up and every report of theirs is too old for us; else empty.

    Args:
        snapshot: times of reports are the server's, `Snapshot.now_s` is this host's.
        dead_after_s: a node that is silent for so long gets no job; 0: the server is trusted.
    """
    up = [node.status.rectime_s for node in snapshot.nodes if node.is_up and node.status]
    ages_s = [snapshot.now_s - at_s for at_s in up if at_s]
    if not dead_after_s or not ages_s or min(ages_s) <= dead_after_s:
        return ""
    return f"the newest is {min(ages_s):.0f} s old though nodes are up: none of them gets a job"
