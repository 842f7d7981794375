"""States of jobs and nodes, with the letters and words that batch systems of the PBS family print."""

from __future__ import annotations

import enum


class JobState(enum.Enum):
    """Where a job is in its life, with the letter that the batch system prints for it.

    ``is_final`` is true when nothing more will happen.
    """

    TRANSIT = "T"
    QUEUED = "Q"
    HELD = "H"
    WAITING = "W"
    RUNNING = "R"
    SUSPENDED = "S"
    EXITING = "E"
    COMPLETED = "C"

    @property
    def is_final(self) -> bool:
        """Whether this is the end."""
        return self is JobState.COMPLETED


class StartProgress(enum.Enum):
    """How far the last start of a job has come, as far as its state does not say it."""

    NONE = enum.auto()
    """Not asked for, or the job's node may still refuse it."""
    BEGUN = enum.auto()
    """The node reported that the job runs."""
    LEFT = enum.auto()
    """Accepted and never begun; seen on queued array members beyond the limit of their array."""


class HoldType(enum.Enum):
    """Why a job is held, with its letter in ``Hold_Types`` (``n`` means none of these)."""

    USER = "u"
    OPERATOR = "o"
    SYSTEM = "s"
    """Also set by the server while a dependency is unmet."""
    ARRAY_SLOT_LIMIT = "l"


class NodeState(enum.Enum):
    """One word of a node's ``state``; a node has a set of them, and an empty set means free."""

    DOWN = "down"
    OFFLINE = "offline"
    BUSY = "busy"
    """The node's load is at or above its own limit; the server still accepts jobs."""
    JOB_EXCLUSIVE = "job-exclusive"
    """All slots are in use."""
    JOB_SHARING = "job-sharing"
    RESERVE = "reserve"
    UNKNOWN = "state-unknown"
    NOT_SETTLED = "MOM-list-not-sent"
    DELETED = "deleted"
    OTHER = "other"
    """A word of another server version; kept so that the node is not taken for free."""


def format_states(states: frozenset[NodeState]) -> str:
    """The ``state`` of a node: ``free`` alone, or its words from the worst to the mildest."""
    return ",".join(state.value for state in _STATE_ORDER if state in states) or "free"


_STATE_ORDER = (
    NodeState.DOWN, NodeState.OFFLINE, NodeState.RESERVE, NodeState.JOB_EXCLUSIVE, NodeState.JOB_SHARING,
    NodeState.BUSY, NodeState.UNKNOWN, NodeState.DELETED, NodeState.NOT_SETTLED, NodeState.OTHER,
)  # fmt: skip
