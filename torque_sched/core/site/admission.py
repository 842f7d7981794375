"""Who may run what here for another site: denied unless a rule says otherwise, and never as root."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torque_sched.core.handshake import Claim, Grant, SiteId, Token
from torque_sched.errors import ModelError


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
