"""Blocks of a grid job, and what home and the sites of its blocks say to each other about them.

::

    home -> site     Submit    Go    Look          (and Release of the handshake: drop it)
    site -> home     BlockReport                   (and Released: it is gone, and so is its process)

Everything is level-triggered: home repeats what it wants until the site reports it, a site does each
thing once per token and answers with what is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torque_sched.core.handshake import (
    Claim,
    Codec,
    Commit,
    Committed,
    Confirm,
    Gone,
    NotReady,
    Piece,
    Ready,
    Release,
    Released,
    SiteId,
    Token,
)
from torque_sched.core.handshake.messages import TokenMessage
from torque_sched.core.handshake.tokens import checked_text
from torque_sched.errors import ModelError

BLOCKS_CAP = 64
"""Blocks of one job."""
SCRIPT_CAP = 256 * 1024
"""Characters of a job's script."""
_HOSTS_CAP = 20_000
_WHY_CAP = 300


class BlockState(Enum):
    """Where one block of a job is, in the order in which it goes on."""

    UNKNOWN = "unknown"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    READY = "ready"
    """It has its nodes and stands at the start barrier."""
    RUNNING = "running"
    STAGING = "staging"
    """Its batch job is over and its nodes are free; what it left is on its way home."""
    CANCELLING = "cancelling"
    ENDED = "ended"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        """Whether there is, or may be, something of it at the site: a batch job, or files to bring home."""
        return self not in (BlockState.UNKNOWN, BlockState.ENDED, BlockState.CANCELLED)

    @property
    def rank(self) -> int:
        """A block only moves to higher ranks."""
        return list(BlockState).index(self)


@dataclass(frozen=True, slots=True)
class Submit(TokenMessage):
    """Put this block into your batch system; it waits at its barrier for `Go`."""

    index: int
    count: int
    user: str
    """The owner at home."""
    name: str
    walltime_s: int
    script: str

    def __post_init__(self) -> None:
        TokenMessage.__post_init__(self)
        checked_text("user", self.user)
        checked_text("job name", self.name)
        if not 0 <= self.index < self.count <= BLOCKS_CAP:
            raise ModelError(f"block {self.index} of {self.count} is not within {BLOCKS_CAP} blocks")
        if self.walltime_s < 1 or len(self.script) > SCRIPT_CAP:
            raise ModelError(f"a block of {self.walltime_s} s with {len(self.script)} characters of script")


@dataclass(frozen=True, slots=True)
class Go(TokenMessage):
    """All blocks have arrived: let the body run. `sites` and `hosts` are in the order of the blocks."""

    sites: tuple[SiteId, ...]
    hosts: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        TokenMessage.__post_init__(self)
        if len(self.sites) != len(self.hosts) or not 1 <= len(self.sites) <= BLOCKS_CAP:
            raise ModelError(f"{len(self.sites)} sites with hosts of {len(self.hosts)}")
        for site in self.sites:
            checked_text("site", site)
        for hosts in self.hosts:
            _checked_hosts(hosts)


@dataclass(frozen=True, slots=True)
class Look(TokenMessage):
    """How is this block?"""


@dataclass(frozen=True, slots=True)
class BlockReport(TokenMessage):
    """The block as it is at ``sent_s``."""

    state: BlockState
    hosts: tuple[str, ...] = ()
    exit_status: int | None = None
    why: str = ""

    def __post_init__(self) -> None:
        TokenMessage.__post_init__(self)
        _checked_hosts(self.hosts)
        if len(self.why) > _WHY_CAP:
            raise ModelError(f"a reason of {len(self.why)} characters")


def _checked_hosts(hosts: tuple[str, ...]) -> None:
    if len(hosts) > _HOSTS_CAP:
        raise ModelError(f"{len(hosts)} hosts in one block")
    for host in hosts:
        checked_text("host", host)


HomeMessage = Confirm | Commit | Release | Submit | Go | Look
SiteMessage = Ready | NotReady | Committed | Gone | Released | BlockReport

SITE_WIRE = Codec(
    (
        *(Token, Piece, Claim, Confirm, Commit, Release, Submit, Go, Look),
        *(Ready, NotReady, Committed, Gone, Released, BlockReport),
    )
)
"""All messages between sites as plain data."""
