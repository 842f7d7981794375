"""How much of the copies to and from a GPU happens while it computes, from begin and end of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Span = tuple[float, float]
"""Begin and end, in any unit."""
STAGES = ("h2d", "kernel", "d2h")


@dataclass(frozen=True)
class Overlap:
    """What a trace shows; in the unit of its spans.

    Attributes:
        copies: time in which anything was copied, either way.
        hidden: of that, while a kernel of any request ran.
        both_ways: time in which something was copied in and something out.
        all_three: of that, while a kernel ran.
        wall: from the first begin to the last end.
    """

    copies: float
    hidden: float
    kernels: float
    both_ways: float
    all_three: float
    wall: float

    @property
    def hidden_share(self) -> float:
        """Part of the copies' time that a kernel hides; 0 without copies."""
        return self.hidden / self.copies if self.copies else 0.0


def overlap_of(requests: Iterable[Mapping[str, Sequence[Span]]]) -> Overlap:
    """From the spans of each request by stage, all on one clock."""
    stages: dict[str, list[Span]] = {stage: [] for stage in STAGES}
    for request in requests:
        for stage in STAGES:
            stages[stage] += request.get(stage, ())
    copied_in, computed, copied_out = (union(stages[stage]) for stage in STAGES)
    copies = union([*copied_in, *copied_out])
    both_ways = common(copied_in, copied_out)
    everything = union([*copies, *computed])
    return Overlap(
        copies=length(copies),
        hidden=length(common(copies, computed)),
        kernels=length(computed),
        both_ways=length(both_ways),
        all_three=length(common(both_ways, computed)),
        wall=everything[-1][1] - everything[0][0] if everything else 0.0,
    )


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as spans in order that do not touch."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def common(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The time that is in both; each as `union` returns it."""
    found: list[Span] = []
    i = j = 0
    while i < len(some) and j < len(others):
        begin, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if begin < end:
            found.append((begin, end))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(spans: Iterable[Span]) -> float:
    """All of it together; spans that do not overlap."""
    return sum(end - begin for begin, end in spans)
