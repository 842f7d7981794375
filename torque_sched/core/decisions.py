"""What a policy may answer for a queued job: Start, Reserve or Hold, exactly one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torque_sched.core.model import JobId, NodeName
from torque_sched.core.reasons import Broken, Reason, comment_for
from torque_sched.errors import ModelError


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one job gets of one node."""

    node: NodeName
    ppn: int
    gpus: int = 0

    def __post_init__(self) -> None:
        if not self.node or self.ppn < 1 or self.gpus < 0:
            raise ModelError(f"a share of {self.node or 'no node'} needs ppn >= 1 and gpus >= 0")


def hosts_argument(allocation: Iterable[NodeShare], gpu_words: Iterable[str] = ()) -> str:
    """The ``-H`` argument of qrun; the first node becomes mother superior.

    qrun replaces the job's whole node request by it, so ppn and gpus are always written out.

    Args:
        allocation: what the job gets of each node.
        gpu_words: `Request.gpu_words` of the job.

    >>> hosts_argument([NodeShare(NodeName("n1"), 2, 1), NodeShare(NodeName("n2"), 2)], ["reseterr"])
    'n1:ppn=2:gpus=1:reseterr+n2:ppn=2'
    """
    words = "".join(f":{word}" for word in gpu_words)
    return "+".join(
        f"{share.node}:ppn={share.ppn}" + (f":gpus={share.gpus}{words}" if share.gpus else "")
        for share in allocation
    )


@dataclass(frozen=True, slots=True)
class Promise:
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

    @property
    def hosts(self) -> str:
        """The ``-H`` argument of qrun."""
        return hosts_argument(self.allocation)


@dataclass(frozen=True, slots=True)
class Reserve:
    """The job waits, and these nodes are kept for it from ``start_s`` on."""

    job: JobId
    start_s: float
    allocation: tuple[NodeShare, ...]
    """Empty where the start is only estimated by counting slots: then the start is not guaranteed."""
    reason: Reason = Reason.RESERVED
    details: Mapping[str, str] = field(default_factory=dict)
    promise: Promise | None = None
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
