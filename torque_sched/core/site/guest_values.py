"""What a site's side of the grid knows, hears and orders: the values around `Guest`."""

from __future__ import annotations

from dataclasses import dataclass, field

from torque_sched.core.handshake import (
    Freed,
    From,
    Granted,
    HolderLimits,
    HolderState,
    Persist,
    Send,
    SiteId,
    Taken,
    Tick,
    Token,
)
from torque_sched.core.site.blocks import BlockState


@dataclass(frozen=True, slots=True)
class GuestLimits:
    """What a site allows; all times in seconds."""

    holder: HolderLimits = field(default_factory=HolderLimits)
    start_s: float = 180.0
    """How long after its start a block may wait for `Go`; more than home waits for the blocks."""
    keep_s: float = 900.0
    """How long a committed claim whose block does not run yet is kept without a word from its home."""
    kill_s: float = 10.0
    """How often a kill that has shown no effect is repeated."""
    forget_s: float = 7 * 86400.0
    """How long the end of a block is remembered for a home that never asks."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block that runs, ran or was to run here."""

    token: Token
    index: int
    count: int
    state: BlockState
    start_by_s: float
    """Wall clock: cancelled when it has not heard `Go` by then."""
    end_s: float
    """Wall clock: the end of its claim."""
    job_id: str | None = None
    hosts: tuple[str, ...] = ()
    sites: tuple[SiteId, ...] = ()
    all_hosts: tuple[tuple[str, ...], ...] = ()
    """Of all blocks, from `Go`."""
    exit_status: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A committed claim whose block does not run yet: it needs a word from home by then."""

    token: Token
    until_s: float
    """On this boot's monotonic clock."""


@dataclass(frozen=True, slots=True)
class GuestState:
    """All that a site knows of blocks and claims; saved by the shell at every `Persist`."""

    holder: HolderState
    blocks: tuple[Block, ...] = ()
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockSubmitted:
    """Event: the block is a batch job now."""

    token: Token
    job_id: str


@dataclass(frozen=True, slots=True)
class BlockFailed:
    """Event: there is no batch job of this block (it could not be submitted, or it is not there)."""

    token: Token
    why: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """Event: a batch job of this block runs on these hosts and waits at the barrier."""

    token: Token
    job_id: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobOver:
    """Event: the block's batch job is over, and what it left is being brought home; `BlockEnded` follows."""

    token: Token
    exit_status: int | None


@dataclass(frozen=True, slots=True)
class StageTrouble:
    """Event: what the block left could not be brought home; it is tried again."""

    token: Token
    why: str


@dataclass(frozen=True, slots=True)
class BlockEnded:
    """Event: the block's batch job is over, and nothing more is done for it here."""

    token: Token
    exit_status: int | None
    why: str = ""
    """What its owner has to know, when not all went well."""


GuestEvent = From | Tick | BlockSubmitted | BlockFailed | Arrived | JobOver | StageTrouble | BlockEnded


@dataclass(frozen=True, slots=True)
class RunBlock:
    """Command: submit the block as this user on the pieces of its grant."""

    token: Token
    index: int
    count: int
    local_user: str
    name: str
    start_s: float
    """Wall clock: not before; its grant begins then."""
    walltime_s: int
    script: str


@dataclass(frozen=True, slots=True)
class KillBlock:
    """Command: make the block's batch job end; the answer is `BlockEnded` or `BlockFailed`."""

    token: Token
    job_id: str | None
    why: str


@dataclass(frozen=True, slots=True)
class OpenBarrier:
    """Command: let the block's body run; it may know all sites and hosts in the order of the blocks."""

    token: Token
    job_id: str
    sites: tuple[SiteId, ...]
    hosts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Command: this batch job is none of ours (a second one of its token, or one too late): end it."""

    token: Token
    job_id: str


@dataclass(frozen=True, slots=True)
class FindBlock:
    """Command: look for the block's batch job by its token and tell what there is."""

    token: Token


GuestCommand = (
    Persist | Send | Granted | Taken | Freed | RunBlock | KillBlock | OpenBarrier | TurnAway | FindBlock
)
