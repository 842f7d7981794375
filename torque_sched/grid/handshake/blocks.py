"""Blocks of a grid job: the messages between its home and the sites that run them, and who may run one.

::

    home -> site     Submit    Go    Look          (and Release of the handshake: drop it)
    site -> home     BlockReport                   (and Released: the block and its process are gone)

Everything is level-triggered: home repeats a request until the site reports it done; a site does each thing
once per token and answers with the present state. `Admission` denies all that no rule allows, and never lets
a block run as root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from torque_sched.errors import ModelError
from torque_sched.grid.handshake.holder import Grant
from torque_sched.grid.handshake.messages import (
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
    TokenMessage,
    checked_text,
)

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


SiteMessage = Ready | NotReady | Committed | Gone | Released | BlockReport

SITE_WIRE = Codec(
    (
        *(Token, Piece, Claim, Confirm, Commit, Release, Submit, Go, Look),
        *(Ready, NotReady, Committed, Gone, Released, BlockReport),
    )
)
"""All messages between sites as plain data."""


@dataclass(frozen=True, slots=True)
class PeerRules:
    """What one peer may do here; caps count what it holds or runs at a time."""

    users: Mapping[str, str] = field(default_factory=dict)
    """Its user -> the user here. Who is not named is denied."""
    slots_cap: int = 0
    length_cap_s: float = 0.0
    blocks_cap: int = 0
    refuse: bool = False
    """Refuse all new work of this peer; what runs goes on."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why not, as the peer may read it."""

    why: str


def _slots(claim: Claim) -> int:
    return sum(piece.slots * piece.count for piece in claim.pieces)


class Admission:
    """The rules of one site.

    Args:
        site: this site; its own users are themselves and have no caps.
        peers: rules of each peer; a peer without rules is denied.
        root_names: every user name here that has uid 0.
    """

    def __init__(
        self,
        site: SiteId,
        peers: Mapping[SiteId, PeerRules],
        root_names: Iterable[str] = ("root",),
    ) -> None:
        self._site = site
        self._peers = dict(peers)
        self._root = frozenset(root_names) | {"root", "0"}
        for peer, rules in self._peers.items():
            for theirs, ours in rules.users.items():
                if ours in self._root or not ours:
                    raise ModelError(
                        f"peer {peer}: user {theirs} is mapped to {ours or 'nobody'}",
                        cure="map it to an ordinary user; foreign work never runs as root",
                    )

    def admit(
        self, peer: SiteId, token: Token, user: str, claim: Claim, grants: Iterable[Grant]
    ) -> str | Denial:
        """The user here as whom this claim's block would run, or why it is denied.

        Args:
            peer: who asks.
            token: of the claim; a grant for this job does not count against the caps.
            user: the owner at home.
            claim: what is asked for.
            grants: what this site keeps for others now.
        """
        if peer == self._site:
            return user if user and user not in self._root else Denial("no grid jobs for root")
        rules = self._peers.get(peer)
        if rules is None or rules.refuse:
            return Denial(f"site {self._site} takes no work from {peer}")
        local = rules.users.get(user)
        if not local or local in self._root:
            # Also where a mapping makes names up and the check at the start could not see them all.
            return Denial(f"user {user or '(none)'} of {peer} is not known at {self._site}")
        others = [g for g in grants if g.token.home == peer and g.token.job != token.job]
        slots = sum(_slots(grant.claim) for grant in others) + _slots(claim)
        if slots > rules.slots_cap:
            return Denial(f"{peer} would have {slots} slots at {self._site}, of {rules.slots_cap} allowed")
        if claim.length_s > rules.length_cap_s:
            return Denial(f"{claim.length_s:.0f} s is longer than {rules.length_cap_s:.0f} s allowed")
        if len(others) >= rules.blocks_cap:
            return Denial(f"{peer} has {len(others)} blocks at {self._site}, as many as allowed")
        return local
