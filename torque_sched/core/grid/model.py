"""Values of the grid model (grid paper, section 2.1): blocks of a job on clusters of sites.

Clusters are space-shared: a processor runs one job at a time, nothing is preempted, a job's width is fixed
when it is submitted, and a job may be split into blocks on several clusters. All blocks start and end
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


class Table(Protocol):
    """What can be had in one place over future time."""

    def bottleneck(self, start_s: float, end_s: float, /) -> tuple[int, float]:
        """Return the fewest free in a window, and until when a later one has no more."""
        ...


class FreeTable(Table, Protocol):
    """The free processors of one cluster over future time: `core.availability.Availability`."""

    capacity: int

    def earliest(self, n: int, length_s: float, not_before_s: float, no_later_s: float = ..., /) -> float:
        """First start of ``n`` processors free for ``length_s``; inf where none is by ``no_later_s``."""
        ...

    def free_at(self, at_s: float, /) -> int:
        """Free processors at an instant."""
        ...

    def advance(self, now_s: float, /) -> None:
        """Forget what lies before."""
        ...

    def take(self, n: int, start_s: float, end_s: float, /) -> None:
        """Book processors; more than are free is an error."""
        ...


class Mode(Enum):
    """The three cases of the paper's experiment (section 4)."""

    HOME = "home"
    """(a) each job runs at the site it was submitted to, split over that site's clusters at most."""
    SEARCH = "search"
    """(b) the whole grid is searched, one site runs the job."""
    COALLOCATE = "coallocate"
    """(c) as (b), and a job may be split over sites, now or by reservation."""


class Way(Enum):
    """The four ways to run a job (paper, section 3), in the order in which they are tried."""

    SINGLE_NOW = 1
    MULTI_NOW = 2
    SINGLE_QUEUED = 3
    MULTI_RESERVED = 4


class Block(NamedTuple):
    """Processors of one job on one cluster."""

    site: int
    cluster: int
    procs: int


@dataclass(frozen=True, slots=True)
class Request:
    """A job as the sites are asked for it.

    Attributes:
        procs: its width, fixed.
        whole_s: T, its run time in one block.
        not_before_s: the earliest start, normally now.
        max_blocks: the cap on f for this job (`ways.block_cap`).
    """

    procs: int
    whole_s: float
    not_before_s: float
    max_blocks: int


class Plan(NamedTuple):
    """Where and when a job would run; all blocks have this start and length."""

    score_s: float
    """What is compared (`SplitCost.score_s`): smaller is better."""
    start_s: float
    length_s: float
    blocks: tuple[Block, ...]

    @property
    def end_s(self) -> float:
        """When all blocks end."""
        return self.start_s + self.length_s

    @property
    def sites(self) -> tuple[int, ...]:
        """The sites of its blocks, ascending: the order in which they are asked to confirm."""
        return tuple(sorted({block.site for block in self.blocks}))
