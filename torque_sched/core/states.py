"""States of jobs and nodes, with the letters and words Torque prints for them."""

from __future__ import annotations

import enum


class JobState(enum.Enum):
    """Where a job is in its life, with the letter ``qstat`` prints for it.

    ``is_final`` is true when nothing more will happen; ``may_become`` lists the legal next states.
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

    @property
    def may_become(self) -> frozenset[JobState]:
        """The states the server may show next."""
        return _SUCCESSORS[self]


_SUCCESSORS: dict[JobState, frozenset[JobState]] = {
    JobState.TRANSIT: frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING}),
    JobState.QUEUED: frozenset(
        {JobState.RUNNING, JobState.HELD, JobState.WAITING, JobState.TRANSIT, JobState.COMPLETED}
    ),
    JobState.HELD: frozenset({JobState.QUEUED, JobState.WAITING, JobState.COMPLETED}),
    JobState.WAITING: frozenset({JobState.QUEUED, JobState.HELD, JobState.COMPLETED}),
    # A node that dies puts a rerunnable job back into the queue.
    JobState.RUNNING: frozenset(
        {JobState.SUSPENDED, JobState.EXITING, JobState.QUEUED, JobState.HELD, JobState.COMPLETED}
    ),
    JobState.SUSPENDED: frozenset({JobState.RUNNING, JobState.EXITING, JobState.QUEUED, JobState.COMPLETED}),
    JobState.EXITING: frozenset({JobState.COMPLETED, JobState.QUEUED}),
    JobState.COMPLETED: frozenset(),
}


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
