"""States of jobs and nodes, with the letters and words Torque prints for them."""

from __future__ import annotations

import enum


class JobState(enum.Enum):
    """Where a job is in its life, with the letter ``qstat`` prints for it.

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
    """The mom's load is at or above its ``$max_load``; the server still accepts jobs."""
    JOB_EXCLUSIVE = "job-exclusive"
    """All slots are in use."""
    JOB_SHARING = "job-sharing"
    RESERVE = "reserve"
    UNKNOWN = "state-unknown"
    NO_MOM_LIST = "MOM-list-not-sent"
    DELETED = "deleted"
    OTHER = "other"
    """A word of another server version; kept so that the node is not taken for free."""
