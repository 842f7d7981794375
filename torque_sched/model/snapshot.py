"""The whole cluster at one moment: all a policy may know."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torque_sched.model.cluster import Job, JobId, Node, NodeName, Queue, QueueName, Server
from torque_sched.model.states import JobState

ReservedAmounts: TypeAlias = tuple[tuple[NodeName, tuple[tuple[str, int], ...]], ...]
"""By node the amounts of ``ncpus``, ``ngpus``, ``mem`` in bytes and of what the site counts besides."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept from ``start_s`` to ``end_s`` for some users; for nobody: maintenance.

    One of the batch system's own keeps only these amounts (``held``): its jobs have nodes of their own there.
    """

    name: str
    nodes: frozenset[NodeName]
    start_s: float
    end_s: float
    users: frozenset[str] = frozenset()
    held: ReservedAmounts = ()

    @property
    def shown_name(self) -> str:
        """The name that owners of jobs read; a hold of the grid has none of use to them."""
        return "another site" if self.name.startswith("grid:") else self.name


@dataclass(frozen=True)
class Snapshot:
    """One complete look at server, queues, nodes and jobs; frozen, so a decision can be replayed.

    Nodes are in the server's order (that of its nodes file), jobs in the order in which it lists them.
    ``problems`` counts records that were damaged and left out; their text is in the log. For ``silent_s`` no
    node that is up has reported anything new, by the monotonic clock of who looks.
    """

    now_s: float
    server: Server
    queues: tuple[Queue, ...]
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    problems: int = 0
    silent_s: float = 0.0
    reservations: tuple[Reservation, ...] = ()

    def report_age_s(self, at_s: float) -> float:
        """How old a report is that the server stamped ``at_s``, whatever this host's clock says."""
        return self._newest_report_s - at_s + self.silent_s

    @functools.cached_property
    def _newest_report_s(self) -> float:
        return max(
            (n.status.rectime_s for n in self.nodes if n.is_up and n.status and n.status.rectime_s),
            default=self.now_s,
        )

    @functools.cached_property
    def queue_by_name(self) -> Mapping[QueueName, Queue]:
        """Queues by name."""
        return {queue.name: queue for queue in self.queues}

    @functools.cached_property
    def node_by_name(self) -> Mapping[NodeName, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @functools.cached_property
    def job_by_id(self) -> Mapping[JobId, Job]:
        """Jobs by id."""
        return {job.id: job for job in self.jobs}

    @functools.cached_property
    def queued(self) -> tuple[Job, ...]:
        """Jobs that need a decision: state Q, whole arrays left out; in order of submission."""
        waiting = (j for j in self.jobs if j.state is JobState.QUEUED and not j.is_array_parent)
        return tuple(sorted(waiting, key=lambda job: job.key))

    @functools.cached_property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold slots (R, and E until the server lets go); suspended ones are not here."""
        return tuple(j for j in self.jobs if j.state in _HOLDING and not j.is_array_parent)

    @functools.cached_property
    def has_gpu_work(self) -> bool:
        """Whether a job with GPUs waits or runs on a cluster that has some."""
        if not any(node.gpus for node in self.nodes):
            return False
        return any(job.request.n_gpus for job in (*self.queued, *self.running))

    @functools.cached_property
    def suspended(self) -> tuple[Job, ...]:
        """Suspended jobs: their slots look free in the nodes' report, their memory does not."""
        return tuple(j for j in self.jobs if j.state is JobState.SUSPENDED and not j.is_array_parent)


_HOLDING = frozenset({JobState.RUNNING, JobState.EXITING})
