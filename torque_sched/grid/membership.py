"""Which sites are reachable: gossip over a fixed list of authorised peers, as a state machine.

After SWIM (Das, Gupta, Motivala 2002): each member has an incarnation number that only it raises. A peer
that does not answer becomes suspected, hears so by gossip, and contradicts with a higher incarnation; a
suspicion that nobody contradicts in time makes it down. A peer that is down is still tried, so a healed
link is noticed.

Two rules bound what a peer that lies can do. Nobody enters the list by gossip: names that are not authorised
are left out. And what is heard about a third peer only makes it suspected; it becomes down by our own timer,
and an answer of its own always counts more than hearsay.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LARGEST_INCARNATION = 2**53 - 1
"""A claim beyond it is left out; one peer cannot force numbers that others cannot answer."""


class MemberState(enum.Enum):
    """How a peer stands; a later one of the same incarnation overrides an earlier one."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DOWN = "down"

    @property
    def rank(self) -> int:
        """Order of overriding within an incarnation."""
        return _RANK[self]


_RANK = {MemberState.ALIVE: 0, MemberState.SUSPECT: 1, MemberState.DOWN: 2}


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody says of a member."""

    name: str
    incarnation: int
    state: MemberState


@dataclass(frozen=True, slots=True)
class Member:
    """A peer as this site sees it.

    Attributes:
        since_s: when this state began.
        heard_s: when a message of its own last came; None: never.
    """

    name: str
    incarnation: int = 0
    state: MemberState = MemberState.SUSPECT
    since_s: float = 0.0
    heard_s: float | None = None


@dataclass(frozen=True, slots=True)
class MembershipRules:
    """Times of the gossip, in seconds.

    Attributes:
        period_s: every so often some peers are asked.
        fanout: so many of those that are not down are asked at a time.
        down_after_s: a suspicion so old makes a peer down.
        retry_down_s: a peer that is down is tried again after this.
    """

    period_s: float = 2.0
    fanout: int = 3
    down_after_s: float = 10.0
    retry_down_s: float = 10.0


class Membership:
    """The peers of one site; the clock is the caller's, and it only goes forward.

    Args:
        me: this site's name.
        peers: the authorised ones; no others are ever kept or asked.
        rules: times.
        now_s: seconds of a monotonic clock.
        incarnation: larger than that of an earlier life of this site.
    """

    def __init__(
        self,
        me: str,
        peers: Iterable[str],
        rules: MembershipRules | None = None,
        *,
        now_s: float = 0.0,
        incarnation: int = 1,
    ) -> None:
        self.me = me
        self.incarnation = incarnation
        self.n_strange_claims = 0
        """Claims about names that are not authorised, or with an impossible incarnation."""
        self._rules = rules or MembershipRules()
        self._members = {name: Member(name, since_s=now_s) for name in sorted(set(peers) - {me})}
        self._ring = list(self._members)
        self._next = 0
        self._tried_s: dict[str, float] = {}

    @property
    def members(self) -> Mapping[str, Member]:
        """Every authorised peer by name."""
        return dict(self._members)

    def is_reachable(self, name: str) -> bool:
        """Whether it is worth talking to."""
        member = self._members.get(name)
        return member is not None and member.state is not MemberState.DOWN

    def digest(self) -> tuple[Claim, ...]:
        """What to tell others: oneself, and every peer one knows something of."""
        mine = Claim(self.me, self.incarnation, MemberState.ALIVE)
        known = (m for m in self._members.values() if m.incarnation)
        return (mine, *(Claim(m.name, m.incarnation, m.state) for m in known))

    # -- what may happen

    def due(self, now_s: float) -> tuple[str, ...]:
        """Time passes: suspicions grow old; returns the peers to ask now, in turn."""
        for member in tuple(self._members.values()):
            is_old = now_s - member.since_s >= self._rules.down_after_s
            if member.state is MemberState.SUSPECT and is_old:
                self._set(member.name, member.incarnation, MemberState.DOWN, now_s)
        asked = [name for name in self._turn() if self._members[name].state is not MemberState.DOWN]
        chosen = asked[: self._rules.fanout]
        down = [name for name in self._ring if self._is_retry_due(name, now_s)]
        if chosen:
            self._next = (self._ring.index(chosen[-1]) + 1) % len(self._ring)
        chosen += [min(down, key=lambda name: self._tried_s.get(name, 0.0))] if down else []
        for name in chosen:
            self._tried_s[name] = now_s
        return tuple(chosen)

    def heard(self, peer: str, claims: Iterable[Claim], now_s: float) -> None:
        """A peer sent a message or an answer of its own, with what it knows of others."""
        if peer not in self._members:
            self.n_strange_claims += 1
            return
        own = self._members[peer].incarnation
        for claim in claims:
            if not self._is_sane(claim):
                self.n_strange_claims += 1
            elif claim.name == self.me:
                self._contradict(claim)
            elif claim.name == peer:
                own = max(own, claim.incarnation)
            else:
                self._hearsay(claim, now_s)
        self._set(peer, own, MemberState.ALIVE, now_s, heard_s=now_s)

    def silent(self, peer: str, now_s: float) -> None:
        """A peer did not answer, or not as agreed."""
        member = self._members.get(peer)
        if member is not None and member.state is MemberState.ALIVE:
            self._set(peer, member.incarnation, MemberState.SUSPECT, now_s)

    # -- inside

    def _turn(self) -> list[str]:
        return self._ring[self._next :] + self._ring[: self._next]

    def _is_retry_due(self, name: str, now_s: float) -> bool:
        is_down = self._members[name].state is MemberState.DOWN
        return (
            is_down and now_s - self._tried_s.get(name, -self._rules.retry_down_s) >= self._rules.retry_down_s
        )

    def _is_sane(self, claim: Claim) -> bool:
        is_known = claim.name == self.me or claim.name in self._members
        return is_known and 0 <= claim.incarnation < LARGEST_INCARNATION

    def _contradict(self, claim: Claim) -> None:
        if claim.incarnation > self.incarnation or claim.state is not MemberState.ALIVE:
            self.incarnation = max(self.incarnation, claim.incarnation + 1)

    def _hearsay(self, claim: Claim, now_s: float) -> None:
        member = self._members[claim.name]
        is_newer = claim.incarnation > member.incarnation
        overrides = is_newer or (
            claim.incarnation == member.incarnation and claim.state.rank > member.state.rank
        )
        if not overrides:
            return
        state = claim.state
        if state is MemberState.DOWN and member.state is not MemberState.DOWN:
            state = MemberState.SUSPECT
        if state is not member.state or is_newer:
            self._set(claim.name, claim.incarnation, state, now_s)

    def _set(
        self, name: str, incarnation: int, state: MemberState, now_s: float, heard_s: float | None = None
    ) -> None:
        was = self._members[name]
        since_s = was.since_s if was.state is state else now_s
        heard = was.heard_s if heard_s is None else heard_s
        self._members[name] = Member(name, incarnation, state, since_s, heard)
