"""What a policy may answer for a queued job: Start, Reserve or Hold, exactly one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torque_sched.errors import ModelError
from torque_sched.model.cluster import JobId, NodeName
from torque_sched.model.reasons import Broken, Reason, comment_for


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one job gets of one node."""

    node: NodeName
    slots: int
    gpus: int = 0

    def __post_init__(self) -> None:
        if not self.node or self.slots < 1 or self.gpus < 0:
            raise ModelError(f"a share of {self.node or 'no node'} needs slots >= 1 and gpus >= 0")


@dataclass(frozen=True, slots=True)
class GuaranteedStart:
    """A start a waiting job was promised; carried from cycle to cycle, it can only become sooner.

    Attributes:
        start_s: when it starts at the latest.
        allocation: the nodes kept for it; others are as good, as long as the start is not later.
        length_s: for how long they are kept.
        made_s: when this very start was promised.
        first_s: the start it was promised first; `first_made_s`: when that was.
        n_broken: how often a promise to this job could not be kept.
        why_broken: why, the last time; empty: never.
    """

    job: JobId
    start_s: float
    allocation: tuple[NodeShare, ...]
    length_s: float
    made_s: float
    first_s: float
    first_made_s: float
    n_broken: int = 0
    why_broken: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Run the job now on these nodes."""

    job: JobId
    allocation: tuple[NodeShare, ...]
    score: float = 0.0
    """The policy's own figure for this placement; only compared within one policy."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """The job waits, and these nodes are kept for it from ``start_s`` on."""

    job: JobId
    start_s: float
    allocation: tuple[NodeShare, ...]
    """Empty where the start is only estimated by counting slots: then the start is not guaranteed."""
    reason: Reason = Reason.RESERVED
    details: Mapping[str, str] = field(default_factory=dict)
    promise: GuaranteedStart | None = None
    """What is to be carried to the next cycle (`Context.promises`); None: no start is guaranteed."""
    broken: Broken | None = None
    """Why the start is later than the one guaranteed before; ``details["broken"]`` says it in words."""

    @property
    def comment(self) -> str:
        """The sentence its owner sees."""
        return comment_for(self.reason, self.details)


@dataclass(frozen=True, slots=True)
class Hold:
    """The job stays queued; ``reason`` becomes the comment its owner sees."""

    job: JobId
    reason: Reason
    details: Mapping[str, str] = field(default_factory=dict)
    """What the reason's sentence names, by the words in its braces; others go to ``explain`` only."""

    @property
    def comment(self) -> str:
        """The sentence its owner sees."""
        return comment_for(self.reason, self.details)


Decision = Start | Reserve | Hold
