"""The holder: one per site, guards its nodes against two owners.

Theory of operation. A `Confirm` whose every piece is free (the site's own work, asked of `Inventory`, and
all other grants here) becomes a grant with a lease on this machine's monotonic clock; a `Commit` within
the lease makes it the coordinator's; the lease running out or a `Release` frees it. A token is granted at
most once in its life: whatever frees a grant closes the token, so a late copy of a message never brings
it back. A later attempt of a job closes all earlier ones.

A lease is never renewed: a copy of a confirm gets the time that is left. So nothing that keeps asking can
keep a node, and a hold ends at the latest `lease_s` after it was made, also when this process is killed
(the monotonic clock goes on) or the machine is booted again (then all leases count as run out).

The shell performs the commands in order: `Persist` (save `state`) always comes before the answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from torque_sched.grid.handshake.messages import (
    SKEW_CAP_S,
    VERSION,
    Claim,
    Commit,
    Committed,
    Confirm,
    From,
    Gone,
    Instant,
    NotReady,
    Piece,
    Query,
    Ready,
    Refusal,
    Released,
    Reply,
    SiteId,
    Tick,
    Token,
    TokenMessage,
)


@dataclass(frozen=True, slots=True)
class HolderLimits:
    """What a site allows; all times in seconds."""

    lease_s: float = 30.0
    ahead_s: float = 30 * 86400.0
    """How far ahead a claim may start."""
    length_s: float = 30 * 86400.0
    """How long a claim may be."""
    per_home: int = 256
    """Grants one home site may have here at a time."""
    forget_s: float = 3600.0
    """How long a closed token is remembered. Later copies are refused by their `sent_s`."""


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """What the site's own work leaves free of one node during a whole interval."""

    slots: int
    gpus: int = 0


class Inventory(Protocol):
    """The site's own table: running jobs, promises, reservations; without the holder's grants."""

    def spare(self, node: str, start_s: float, end_s: float) -> FreeCapacity:
        """What stays free of the node during all of ``[start_s, end_s)``; nothing for an unknown node."""
        ...

    def nodes(self, claim: Claim) -> Iterable[str]:
        """The nodes this claim may get where it names none, in the order of the site's preference."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim this site keeps for a coordinator: held until its lease ends, or committed."""

    token: Token
    claim: Claim
    """As it was asked."""
    pieces: tuple[Piece, ...]
    """What it gets: every piece has a node."""
    lease_end_s: float
    """On this boot's monotonic clock; of no meaning once committed."""
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """Attempts of one job up to this one will never be granted here again."""

    home: SiteId
    job: str
    attempt: int
    reason: Refusal
    at_s: float
    """Monotonic."""


@dataclass(frozen=True, slots=True)
class HolderState:
    """All a holder knows; saved by the shell before it answers."""

    boot: str
    grants: tuple[Grant, ...] = ()
    closed: tuple[Closed, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Event: the block of this token is over here; what is left of its claim is free."""

    token: Token


HolderEvent = From | Tick | Ended


@dataclass(frozen=True, slots=True)
class Persist:
    """Command: save the machine's `state` durably before performing what follows."""


@dataclass(frozen=True, slots=True)
class Send:
    """Command: send the message to the site."""

    to: SiteId
    message: TokenMessage


@dataclass(frozen=True, slots=True)
class Granted:
    """Command: keep the site's own scheduler off these pieces for now."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Taken:
    """Command: the grant is committed; its block may be submitted."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Freed:
    """Command: the grant is gone; if it was committed, its block must go too."""

    grant: Grant
    reason: Refusal


HolderCommand = Persist | Send | Granted | Taken | Freed
_Key = tuple[SiteId, str]


def _key(token: Token) -> _Key:
    return token.home, token.job


_Edge = tuple[float, int, int]
"""At this instant so many slots and GPUs more (or less) are in use."""


def _edges(claim: Claim, others: Iterable[Grant]) -> dict[str, list[_Edge]]:
    """What other grants use of each node, as changes over the time of the claim."""
    edges: dict[str, list[_Edge]] = defaultdict(list)
    for other in others:
        if other.claim.start_s >= claim.end_s or claim.start_s >= other.claim.end_s:
            continue
        for used in other.pieces:
            edges[used.node].append((other.claim.start_s, used.slots, used.gpus))
            edges[used.node].append((other.claim.end_s, -used.slots, -used.gpus))
    return edges


def _most(edges: list[_Edge], start_s: float) -> tuple[int, int]:
    """Most slots and most GPUs in use at one instant from `start_s` on."""
    slots = gpus = most_slots = most_gpus = 0
    # What began before counts from start_s on; what ends at an instant is free at it, so ends come first.
    for _, more_slots, more_gpus in sorted((max(edge[0], start_s), edge[1], edge[2]) for edge in edges):
        slots, gpus = slots + more_slots, gpus + more_gpus
        most_slots, most_gpus = max(most_slots, slots), max(most_gpus, gpus)
    return most_slots, most_gpus


class Holder:
    """Guards the nodes of one site; see the module's theory of operation."""

    def __init__(
        self,
        site: SiteId,
        books: Inventory,
        state: HolderState,
        limits: HolderLimits = HolderLimits(),
    ) -> None:
        self.site = site
        self._books = books
        self._limits = limits
        self._boot = state.boot
        self._grants = {grant.token: grant for grant in state.grants}
        self._closed = {(closed.home, closed.job): closed for closed in state.closed}
        self._dirty = False

    @property
    def state(self) -> HolderState:
        """Everything, as one frozen value; `Holder(site, books, state)` gives the same machine again."""
        return HolderState(
            self._boot,
            tuple(self._grants[token] for token in sorted(self._grants)),
            tuple(self._closed[key] for key in sorted(self._closed)),
        )

    def restart(self, boot: str, now: Instant) -> tuple[HolderCommand, ...]:
        """Call once after building from a saved state; another boot id ends all leases."""
        effects: list[HolderCommand] = []
        if boot != self._boot:
            self._boot, self._dirty = boot, True
            self._closed = {key: replace(old, at_s=now.monotonic_s) for key, old in self._closed.items()}
            for grant in [g for g in self._grants.values() if not g.committed]:
                effects += self._free(grant, Refusal.RESTARTED, now)
        effects += self._run_out(now)
        return self._ordered(effects, [])

    def grants(self, now: Instant) -> tuple[Grant, ...]:
        """What the site must keep off now: live holds and committed claims, by token."""
        return tuple(grant for grant in self.state.grants if self._over(grant, now) is None)

    def wake_s(self, now: Instant) -> float | None:
        """When to send a `Tick`, on the monotonic clock; None when nothing can run out."""
        wakes = [
            now.monotonic_s + (grant.claim.end_s - now.wall_s) if grant.committed else grant.lease_end_s
            for grant in self._grants.values()
        ]
        return min(wakes, default=None)

    def apply(self, event: HolderEvent, now: Instant) -> tuple[HolderCommand, ...]:
        """Take one event in; commands come in the order in which to perform them."""
        effects = self._run_out(now)
        answers: list[HolderCommand] = []
        if isinstance(event, Ended):
            grant = self._grants.get(event.token)
            if grant is not None:
                effects += self._free(grant, Refusal.OVER, now)
        elif isinstance(event, From) and isinstance(event.message, Query):
            more, reply = self._answer(event.peer, event.message, now)
            effects += more
            answers.append(Send(event.peer, reply))
        return self._ordered(effects, answers)

    def _ordered(
        self, effects: list[HolderCommand], answers: list[HolderCommand]
    ) -> tuple[HolderCommand, ...]:
        first: list[HolderCommand] = [Persist()] if self._dirty else []
        self._dirty = False
        return (*first, *effects, *answers)

    def _over(self, grant: Grant, now: Instant) -> Refusal | None:
        if grant.committed:
            return Refusal.OVER if now.wall_s >= grant.claim.end_s else None
        return Refusal.EXPIRED if now.monotonic_s >= grant.lease_end_s else None

    def _run_out(self, now: Instant) -> list[HolderCommand]:
        effects: list[HolderCommand] = []
        for grant in list(self._grants.values()):
            reason = self._over(grant, now)
            if reason is not None:
                effects += self._free(grant, reason, now)
        forget_before_s = now.monotonic_s - self._limits.forget_s
        for key in [key for key, closed in self._closed.items() if closed.at_s < forget_before_s]:
            del self._closed[key]
        return effects

    def _free(self, grant: Grant, reason: Refusal, now: Instant) -> list[HolderCommand]:
        del self._grants[grant.token]
        self._dirty = True
        self._close(grant.token, grant.token.attempt, reason, now)
        return [Freed(grant, reason)]

    def _close(self, token: Token, attempt: int, reason: Refusal, now: Instant) -> None:
        old = self._closed.get(_key(token))
        if attempt >= 1 and (old is None or old.attempt < attempt):
            self._closed[_key(token)] = Closed(token.home, token.job, attempt, reason, now.monotonic_s)

    def _free_up_to(self, token: Token, attempt: int, reason: Refusal, now: Instant) -> list[HolderCommand]:
        """Free and close this job's attempts up to one; closing survives a crash only with a grant."""
        effects: list[HolderCommand] = []
        for grant in [g for t, g in self._grants.items() if _key(t) == _key(token) and t.attempt <= attempt]:
            effects += self._free(grant, reason, now)
        self._close(token, attempt, reason, now)
        return effects

    def _why_closed(self, token: Token) -> Refusal | None:
        closed = self._closed.get(_key(token))
        if closed is None or closed.attempt < token.attempt:
            return None
        return closed.reason if closed.attempt == token.attempt else Refusal.SUPERSEDED

    def _answer(self, peer: SiteId, query: Query, now: Instant) -> tuple[list[HolderCommand], Reply]:
        token, wall_s = query.token, now.wall_s
        wrong = self._wrong(peer, query)
        if wrong is not None:
            if isinstance(query, Confirm):
                return [], NotReady(token, self.site, wall_s, wrong)
            return [], Gone(token, self.site, wall_s, wrong)
        if isinstance(query, Confirm):
            return self._confirm(query, now)
        if isinstance(query, Commit):
            return self._commit(query, now)
        effects = self._free_up_to(token, token.attempt, Refusal.RELEASED, now)
        return effects, Released(token, self.site, wall_s)

    def _wrong(self, peer: SiteId, query: Query) -> Refusal | None:
        if query.version != VERSION:
            return Refusal.VERSION
        if query.site != self.site:
            return Refusal.WRONG_SITE
        return None if query.token.home == peer else Refusal.NOT_YOURS

    def _confirm(self, query: Confirm, now: Instant) -> tuple[list[HolderCommand], Reply]:
        token = query.token
        known = self._grants.get(token)
        if known is not None:
            if known.claim != query.claim:
                return [], NotReady(token, self.site, now.wall_s, Refusal.CONFLICT)
            return [], self._ready(known, now)
        closed = self._why_closed(token)
        if closed is not None:
            return [], NotReady(token, self.site, now.wall_s, closed)
        if abs(now.wall_s - query.sent_s) > SKEW_CAP_S:
            # Nothing is closed: the next copy, sent afresh, may come in time.
            return [], NotReady(token, self.site, now.wall_s, Refusal.SKEW)
        effects = self._free_up_to(token, token.attempt - 1, Refusal.SUPERSEDED, now)
        pieces = self._pieces(query, now)
        if isinstance(pieces, Refusal):
            self._close(token, token.attempt, pieces, now)
            return effects, NotReady(token, self.site, now.wall_s, pieces)
        grant = Grant(token, query.claim, pieces, now.monotonic_s + self._limits.lease_s)
        self._grants[token] = grant
        self._dirty = True
        return [*effects, Granted(grant)], self._ready(grant, now)

    def _ready(self, grant: Grant, now: Instant) -> Ready:
        left_s = self._limits.lease_s if grant.committed else grant.lease_end_s - now.monotonic_s
        return Ready(grant.token, self.site, now.wall_s, left_s)

    def _pieces(self, query: Confirm, now: Instant) -> tuple[Piece, ...] | Refusal:
        """What a confirm that is new here gets, or why it is refused."""
        claim, limits = query.claim, self._limits
        ahead_s = claim.start_s - now.wall_s
        # An immediate claim starts when its coordinator looked, a little before it gets here.
        if not -limits.lease_s <= ahead_s <= limits.ahead_s or claim.length_s > limits.length_s:
            return Refusal.BAD_TIME
        if claim.end_s <= now.wall_s:
            return Refusal.BAD_TIME
        if sum(t.home == query.token.home for t in self._grants) >= limits.per_home:
            return Refusal.LIMIT
        edges = _edges(claim, self._grants.values())
        got: dict[str, Piece] = {}
        # Pieces that name their node first: the others take what is left.
        for piece in sorted(claim.pieces, key=lambda piece: not piece.node):
            names = iter([piece.node] if piece.node else self._books.nodes(claim))
            for _ in range(piece.count):
                fits = (n for n in names if n not in got and self._fits(piece, n, claim, edges))
                node = next(fits, None)
                if node is None:
                    return Refusal.BUSY
                got[node] = Piece(node, piece.slots, piece.gpus)
        return tuple(got.values())

    def _fits(self, piece: Piece, node: str, claim: Claim, edges: dict[str, list[_Edge]]) -> bool:
        spare = self._books.spare(node, claim.start_s, claim.end_s)
        slots, gpus = _most(edges.get(node, []), claim.start_s)
        return piece.slots <= spare.slots - slots and piece.gpus <= spare.gpus - gpus

    def _commit(self, query: Commit, now: Instant) -> tuple[list[HolderCommand], Reply]:
        token = query.token
        grant = self._grants.get(token)
        if grant is None:
            reason = self._why_closed(token)
            if reason is None:
                reason = Refusal.UNKNOWN
                self._close(token, token.attempt, reason, now)
            return [], Gone(token, self.site, now.wall_s, reason)
        if grant.committed:
            return [], Committed(token, self.site, now.wall_s)
        taken = replace(grant, committed=True)
        self._grants[token] = taken
        self._dirty = True
        return [Taken(taken)], Committed(token, self.site, now.wall_s)
