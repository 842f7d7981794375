"""The three small protocols of a scheduling cycle: who is next, where, and who may go ahead of whom.

`Order` says which job is considered next, `Placement` which of the nodes that fit suits it best, `Backfill`
which waiting jobs get nodes kept for them. Each is a frozen value holding its settings; what it needs to
remember during one cycle lives in the object its method returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from torque_sched.core.decisions import Reserve
from torque_sched.core.model import Job
from torque_sched.core.snapshot import Snapshot
from torque_sched.policies.context import Context

if TYPE_CHECKING:
    from torque_sched.policies.needs import Shape
    from torque_sched.policies.node_ledger import NodeLedger
    from torque_sched.policies.scoring import Scorer
    from torque_sched.policies.search import Search


class Turns(Protocol):
    """Jobs one after the other; what was started may change who is next."""

    def __iter__(self) -> Iterator[Job]:
        """Every job exactly once."""
        ...

    def started(self, job: Job) -> None:
        """The job just yielded is going to run."""
        ...


class Order(Protocol):
    """Who is considered next."""

    def turns(self, jobs: Sequence[Job], snapshot: Snapshot, context: Context) -> Turns:
        """The queued jobs in this order; `jobs` come in order of submission."""
        ...


class Placement(Protocol):
    """Where a job would run best."""

    def scorer(self, nodes: Sequence[NodeLedger], context: Context) -> Scorer:
        """The ranking for one cycle over these nodes."""
        ...


class Keeper(Protocol):
    """Keeps nodes for waiting jobs during one cycle."""

    def is_urgent(self, job: Job) -> bool:
        """Whether the job has waited so long that nodes may be kept for it."""
        ...

    @property
    def stops_others(self) -> bool:
        """Whether urgent jobs go before all others, because nothing starts while one of them waits."""
        ...

    def reserve(self, job: Job, shape: Shape) -> Reserve | None:
        """Asked when the job fits the cluster but not what is free now; books what it keeps."""
        ...

    @property
    def drains_for(self) -> Job | None:
        """The job for which nothing else may start at all."""
        ...


class Backfill(Protocol):
    """Which waiting jobs get nodes kept for them, so that smaller ones cannot starve them."""

    def keeper(self, search: Search, now_s: float) -> Keeper:
        """The keeper for one cycle; the search knows the nodes and their ledger."""
        ...
