"""The eight messages of the confirm handshake (facts of the grid paper, "ready" asked a second time).

::

    coordinator -> site     Confirm    Commit            Release
    site -> coordinator     Ready      Committed         Released
                            NotReady   Gone

Every message may be lost, doubled, late or out of order. ``sent_s`` is the sender's wall clock: each side
refuses what is more than ``SKEW_CAP_S`` off its own, so a claim means the same time on both sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from torque_sched.core.handshake.tokens import Claim, SiteId, Token, checked_text
from torque_sched.errors import ModelError

VERSION = 1
SKEW_CAP_S = 1.0
_LEASE_CAP_S = 3600.0
_DETAIL_CAP = 300


class Refusal(Enum):
    """Why a site said no, or why what it kept is gone."""

    BUSY = "busy"
    """A node of the claim is not free for the whole time."""
    SKEW = "skew"
    """The clocks of the two sites differ by more than a second, or the message was that late."""
    SUPERSEDED = "superseded"
    """A later attempt of the same job came first."""
    EXPIRED = "expired"
    """The hold's lease ran out before the commit."""
    RELEASED = "released"
    """The coordinator released it."""
    RESTARTED = "restarted"
    """The machine was booted again: leases of the former boot count as run out."""
    OVER = "over"
    """The claim's time has passed, or its block has ended."""
    UNKNOWN = "unknown"
    """A commit for a token that was never confirmed here."""
    CONFLICT = "conflict"
    """The token is in use here for another claim."""
    NOT_YOURS = "not yours"
    """The token belongs to another home site than the one that sent it."""
    WRONG_SITE = "wrong site"
    """The message was meant for another site."""
    VERSION = "version"
    """The sender speaks another version of the handshake."""
    LIMIT = "limit"
    """The site keeps as many claims for others as it allows."""
    BAD_TIME = "bad time"
    """The claim lies in the past, or too far ahead, or is too long."""
    DENIED = "denied"
    """The site's rules do not let this user or this peer in."""


@dataclass(frozen=True, slots=True)
class TokenMessage:
    """Base of all messages."""

    token: Token
    site: SiteId
    """The site asked, in both directions."""
    sent_s: float
    """The sender's wall clock, seconds since the epoch."""
    version: int = field(default=VERSION, kw_only=True)

    def __post_init__(self) -> None:
        checked_text("site", self.site)
        if not math.isfinite(self.sent_s):
            raise ModelError(f"a message sent at {self.sent_s} has no time")


@dataclass(frozen=True, slots=True)
class Confirm(TokenMessage):
    """Is all of this still ready? Then hold it for me."""

    claim: Claim
    user: str = ""
    """The job's owner at home; the site's own rules say who that is here."""

    def __post_init__(self) -> None:
        TokenMessage.__post_init__(self)
        if self.user:
            checked_text("user", self.user)


@dataclass(frozen=True, slots=True)
class Commit(TokenMessage):
    """All sites are ready: what you hold is taken."""


@dataclass(frozen=True, slots=True)
class Release(TokenMessage):
    """Drop this attempt and all earlier ones of its job, held or committed."""


@dataclass(frozen=True, slots=True)
class Ready(TokenMessage):
    """Held for ``lease_s`` more seconds from now."""

    lease_s: float

    def __post_init__(self) -> None:
        # Not super(): a slotted dataclass is a second class, and the zero-argument form looks for the first.
        TokenMessage.__post_init__(self)
        if not 0 <= self.lease_s <= _LEASE_CAP_S:
            raise ModelError(f"a lease of {self.lease_s} s is not within 0..{_LEASE_CAP_S:g}")


@dataclass(frozen=True, slots=True)
class NotReady(TokenMessage):
    """Not held, and why."""

    reason: Refusal
    detail: str = ""
    """For people; at most 300 characters."""

    def __post_init__(self) -> None:
        TokenMessage.__post_init__(self)
        if len(self.detail) > _DETAIL_CAP:
            raise ModelError(f"a detail of {len(self.detail)} characters")


@dataclass(frozen=True, slots=True)
class Committed(TokenMessage):
    """Taken, until it is released or over."""


@dataclass(frozen=True, slots=True)
class Gone(TokenMessage):
    """There is nothing to commit, and why."""

    reason: Refusal


@dataclass(frozen=True, slots=True)
class Released(TokenMessage):
    """Nothing of this attempt is left here."""


Query = Confirm | Commit | Release
Reply = Ready | NotReady | Committed | Gone | Released
Message = Query | Reply


@dataclass(frozen=True, slots=True)
class From:
    """Event: this message came from this peer, whose identity the link has proved."""

    peer: SiteId
    message: TokenMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: look at the clock."""
