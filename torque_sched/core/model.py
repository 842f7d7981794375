"""What a Torque server has, as frozen values: jobs, nodes, queues.

Times are seconds since the epoch (``*_s``), memory is bytes. The names are Torque's own: ``np``
processors of a node, ``ppn`` processors a job asks of each node.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

from torque_sched.errors import ModelError

__all__ = ["Job", "JobId", "JobState", "Node", "NodeName", "Queue", "QueueName"]

JobId = NewType("JobId", str)
NodeName = NewType("NodeName", str)
QueueName = NewType("QueueName", str)


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


@dataclass(frozen=True, slots=True)
class Node:
    """One execution host as the server sees it."""

    name: NodeName
    np: int
    """Processors."""
    gpus: int = 0
    mem_bytes: int = 0
    """Physical memory; 0 when the node has not reported it yet."""
    properties: frozenset[str] = frozenset()
    is_up: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise ModelError(
                "a node without a name", cure="look for an empty entry in the server's nodes file"
            )
        if self.np < 0 or self.gpus < 0 or self.mem_bytes < 0:
            raise ModelError(f"node {self.name}: np, gpus and mem_bytes must not be negative")


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue; ``is_started`` is false when its jobs must not run."""

    name: QueueName
    is_enabled: bool = True
    is_started: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the server sees it."""

    id: JobId
    owner: str
    queue: QueueName
    state: JobState
    queued_s: float
    n_nodes: int = 1
    ppn: int = 1
    gpus: int = 0
    """GPUs asked of each node."""
    walltime_s: float | None = None
    """The requested limit; None when neither the job nor its queue sets one."""

    def __post_init__(self) -> None:
        if self.n_nodes < 1 or self.ppn < 1:
            raise ModelError(f"job {self.id}: n_nodes and ppn must be at least 1")
        if self.gpus < 0 or (self.walltime_s is not None and self.walltime_s < 0):
            raise ModelError(f"job {self.id}: gpus and walltime_s must not be negative")

    @property
    def procs(self) -> int:
        """Processors of all nodes together."""
        return self.n_nodes * self.ppn
