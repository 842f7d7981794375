"""The coordinator: places one grid job by asking its candidates' sites one after the other.

Theory of operation. Each candidate (a set of sites with a start and a length) is tried under an attempt
number of its own. Its sites are asked in ascending order of their ids, each only after the one before is
ready: of two coordinators that want the same sites, the one that is first at the smallest common site goes
on, the other is refused there at once and waits for nothing, so they cannot block each other. The first
refusal, or a site that does not answer in time, drops the attempt: everything asked is released and the
next candidate is tried. When all sites are ready within their leases, the decision is saved and then
committed everywhere. A site whose hold is gone by then fails the attempt, and all the others are released.

What is released is asked to be so until it says `Released`, or until it must have run out by itself, and
any later `Ready` or `Committed` for it is answered by a `Release`: nothing stays behind.

After a crash: an attempt that had not decided is dropped (its offers are old), one that had goes on
committing. Both are safe, for a committed claim starts nothing before the coordinator says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from torque_sched.errors import ModelError
from torque_sched.grid.handshake.holder import Persist, Send
from torque_sched.grid.handshake.messages import (
    SKEW_CAP_S,
    Claim,
    Commit,
    Committed,
    Confirm,
    From,
    Gone,
    Instant,
    NotReady,
    Piece,
    Ready,
    Refusal,
    Release,
    Released,
    Reply,
    SiteId,
    Tick,
    Token,
)


class Phase(Enum):
    """How far the job's placing is."""

    ASKING = "asking"
    COMMITTING = "committing"
    PLACED = "placed"
    GAVE_UP = "gave up"

    @property
    def decided(self) -> bool:
        """Whether nothing more is asked for."""
        return self in (Phase.PLACED, Phase.GAVE_UP)


class Failure(Enum):
    """Why an attempt was dropped, besides what a site answered."""

    NO_ANSWER = "no answer"
    LEASE_SHORT = "lease too short"
    """The first hold would run out before the last site was ready."""
    RESTARTED = "coordinator restarted"
    ABORTED = "aborted"
    NO_CANDIDATE = "no candidate"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a candidate wants of one site."""

    site: SiteId
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to place the job: all blocks together during ``[start_s, start_s + length_s)``."""

    asks: tuple[Ask, ...]
    """In ascending order of site, one per site."""
    start_s: float
    length_s: float

    def __post_init__(self) -> None:
        sites = [ask.site for ask in self.asks]
        if not sites or sites != sorted(set(sites)):
            raise ModelError(f"a candidate asks each site once, in ascending order, not {sites}")
        for ask in self.asks:
            Claim(ask.pieces, self.start_s, self.length_s)

    def claim(self, site: SiteId) -> Claim:
        """What the site is asked for."""
        pieces = next(ask.pieces for ask in self.asks if ask.site == site)
        return Claim(pieces, self.start_s, self.length_s)

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """In the order in which they are asked."""
        return tuple(ask.site for ask in self.asks)

    @property
    def end_s(self) -> float:
        """When every claim of this candidate is over, seconds since the epoch."""
        return self.start_s + self.length_s


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """Patience and bounds; all times in seconds."""

    resend_s: float = 1.0
    ask_s: float = 5.0
    """How long one site may take to answer a confirm."""
    commit_s: float = 30.0
    """How long all sites may take to acknowledge the commit before the attempt is dropped."""
    margin_s: float = 1.0
    """What must be left of every lease when the commit is sent."""
    candidates: int = 8
    lease_cap_s: float = 120.0
    """No site holds longer than this; releases are repeated until then."""
    grace_s: float = 30.0
    """How long after its claim's end a committed block must be gone even where nobody answers."""


@dataclass(frozen=True, slots=True)
class Setback:
    """Why one attempt failed, and at which site."""

    attempt: int
    site: SiteId | None
    why: Refusal | Failure
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """A dropped attempt: these sites have not yet said `Released`."""

    token: Token
    sites: tuple[SiteId, ...]
    until_s: float
    """Wall clock; by then every site has dropped it by itself."""


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """All a coordinator knows; saved by the shell at every `Persist`."""

    home: SiteId
    job: str
    candidates: tuple[Candidate, ...]
    index: int
    """The candidate under way."""
    attempt: int
    phase: Phase = Phase.ASKING
    answered: tuple[SiteId, ...] = ()
    """Asking: the sites that are ready. Committing: those that have committed."""
    drains: tuple[Drain, ...] = ()
    setbacks: tuple[Setback, ...] = ()
    user: str = ""
    """The job's owner at home."""
    skewed: bool = False
    """The site asked now has answered with a clock that is off."""
    asked_s: float = 0.0
    """Monotonic: when this site was asked first, or when the commit was sent first."""
    resend_s: float = 0.0
    """Monotonic: when to send again."""
    lease_end_s: float | None = None
    """Monotonic, a lower bound: when the first of the holds runs out."""

    @property
    def token(self) -> Token:
        """Of the attempt under way, or of the last."""
        return Token(self.home, self.job, self.attempt)

    @property
    def candidate(self) -> Candidate:
        """The candidate under way, or the last."""
        return self.candidates[self.index]


@dataclass(frozen=True, slots=True)
class Abort:
    """Event: the job is not wanted any more (cancelled, or its start failed)."""


CoordinatorEvent = From | Tick | Abort


@dataclass(frozen=True, slots=True)
class Placed:
    """Command: every site has committed its part of the candidate."""

    token: Token
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Command: no candidate could be had; what is left is released in the background."""

    setbacks: tuple[Setback, ...]
    next_attempt: int
    """The lowest number a later coordinator of the same job may begin with."""


CoordinatorCommand = Persist | Send | Placed | GaveUp
_Commands = list[CoordinatorCommand]
_HARD = Refusal | Failure


class Coordinator:
    """Places one grid job; see the module's theory of operation.

    `begin` makes a new one, `restore` one after a crash; the constructor rebuilds exactly what was.
    """

    def __init__(
        self,
        state: CoordinatorState,
        limits: CoordinatorLimits = CoordinatorLimits(),
    ) -> None:
        self._state = state
        self._limits = limits

    @classmethod
    def begin(
        cls,
        home: SiteId,
        job: str,
        candidates: tuple[Candidate, ...],
        first_attempt: int,
        now: Instant,
        limits: CoordinatorLimits = CoordinatorLimits(),
        *,
        user: str = "",
        drains: tuple[Drain, ...] = (),
    ) -> tuple[Coordinator, tuple[CoordinatorCommand, ...]]:
        """A new coordinator and its first commands.

        Args:
            home: the site that coordinates.
            job: the job's name at home; unique there for ever.
            candidates: best first; those beyond the limit are not tried.
            first_attempt: above every attempt number ever used for this job.
            now: both clocks.
            limits: patience and bounds.
            user: the job's owner at home.
            drains: what an earlier coordinator of this job has not seen released yet.
        """
        if not candidates:
            raise ModelError(f"no candidate to place {job} with")
        state = CoordinatorState(
            home, job, candidates[: limits.candidates], 0, first_attempt, user=user, drains=drains
        )
        coordinator = cls(state, limits)
        return coordinator, tuple([Persist(), *coordinator._ask_next(now)])

    @classmethod
    def restore(
        cls,
        state: CoordinatorState,
        now: Instant,
        limits: CoordinatorLimits = CoordinatorLimits(),
    ) -> tuple[Coordinator, tuple[CoordinatorCommand, ...]]:
        """The coordinator after a crash, from what was saved last, and what to do at once.

        `Placed` and `GaveUp` may come a second time.
        """
        coordinator = cls(replace(state, resend_s=now.monotonic_s, lease_end_s=None), limits)
        commands: _Commands = []
        if state.phase is Phase.ASKING:
            commands += coordinator._drop(None, Failure.RESTARTED, now, go_on=False)
        elif state.phase is Phase.COMMITTING:
            coordinator._set(asked_s=now.monotonic_s)
            commands += coordinator._resend(now)
        elif state.phase is Phase.PLACED:
            commands += [Placed(state.token, state.candidate), *coordinator._resend(now)]
        else:
            commands += [coordinator._gave_up(), *coordinator._resend(now)]
        return coordinator, tuple(commands)

    @property
    def state(self) -> CoordinatorState:
        """Everything, as one frozen value."""
        return self._state

    @property
    def finished(self) -> bool:
        """Whether it may be forgotten: given up and nothing left to release."""
        return self._state.phase is Phase.GAVE_UP and not self._state.drains

    def wake_s(self, now: Instant) -> float | None:
        """When to send a `Tick`, on the monotonic clock; None when nothing is awaited."""
        state, limits = self._state, self._limits
        wakes = [state.resend_s] if state.drains or not state.phase.decided else []
        wakes += [now.monotonic_s + (drain.until_s - now.wall_s) for drain in state.drains]
        if state.phase is Phase.ASKING:
            wakes.append(state.asked_s + limits.ask_s)
            if state.lease_end_s is not None:
                wakes.append(state.lease_end_s - limits.margin_s)
        elif state.phase is Phase.COMMITTING:
            wakes.append(state.asked_s + limits.commit_s)
        return min(wakes, default=None)

    def apply(self, event: CoordinatorEvent, now: Instant) -> tuple[CoordinatorCommand, ...]:
        """Take one event in; commands come in the order in which to perform them."""
        if isinstance(event, Abort):
            return tuple(self._abort(now))
        if isinstance(event, Tick):
            return tuple(self._tick(now))
        if not isinstance(event.message, Reply) or event.message.site != event.peer:
            return ()
        return tuple(self._take(event.message, now))

    # What follows changes the state by `_set` only.

    def _set(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    def _query(self, kind: type[Commit] | type[Release], token: Token, site: SiteId, now: Instant) -> Send:
        return Send(site, kind(token, site, now.wall_s))

    def _confirm(self, now: Instant) -> Send:
        state = self._state
        site = state.candidate.sites[len(state.answered)]
        return Send(site, Confirm(state.token, site, now.wall_s, state.candidate.claim(site), state.user))

    def _ask_next(self, now: Instant) -> _Commands:
        self._set(asked_s=now.monotonic_s, resend_s=now.monotonic_s + self._limits.resend_s, skewed=False)
        return [self._confirm(now)]

    def _resend(self, now: Instant) -> _Commands:
        """Send again whatever has no answer yet."""
        state = self._state
        self._set(resend_s=now.monotonic_s + self._limits.resend_s)
        sends: _Commands = []
        if state.phase is Phase.ASKING:
            sends.append(self._confirm(now))
        elif state.phase is Phase.COMMITTING:
            missing = [site for site in state.candidate.sites if site not in state.answered]
            sends += [self._query(Commit, state.token, site, now) for site in missing]
        sends += [self._query(Release, d.token, site, now) for d in state.drains for site in d.sites]
        return sends

    def _tick(self, now: Instant) -> _Commands:
        commands: _Commands = []
        drains = tuple(drain for drain in self._state.drains if drain.until_s > now.wall_s)
        if drains != self._state.drains:
            self._set(drains=drains)
            commands.append(Persist())
        failure = self._too_late(now)
        if failure is not None:
            return commands + self._drop(*failure, now)
        if now.monotonic_s >= self._state.resend_s:
            commands += self._resend(now)
        return commands

    def _too_late(self, now: Instant) -> tuple[SiteId | None, _HARD] | None:
        state, limits = self._state, self._limits
        if state.phase is Phase.ASKING:
            site = state.candidate.sites[len(state.answered)]
            if now.monotonic_s >= state.asked_s + limits.ask_s:
                return site, Refusal.SKEW if state.skewed else Failure.NO_ANSWER
            if self._lease_short(now):
                return site, Failure.LEASE_SHORT
        if state.phase is Phase.COMMITTING and now.monotonic_s >= state.asked_s + limits.commit_s:
            missing = [site for site in state.candidate.sites if site not in state.answered]
            return missing[0], Failure.NO_ANSWER
        return None

    def _lease_short(self, now: Instant) -> bool:
        end_s = self._state.lease_end_s
        return end_s is not None and now.monotonic_s >= end_s - self._limits.margin_s

    def _abort(self, now: Instant) -> _Commands:
        if self._state.phase is Phase.GAVE_UP:
            return []
        return self._drop(None, Failure.ABORTED, now, go_on=False)

    def _drop(
        self, site: SiteId | None, why: _HARD, now: Instant, *, go_on: bool = True, detail: str = ""
    ) -> _Commands:
        """The attempt under way has failed: release what was asked, try the next candidate or give up."""
        state = self._state
        setbacks = (*state.setbacks, Setback(state.attempt, site, why, detail))
        if state.phase is Phase.ASKING:
            # After a crash nobody knows how many were asked; otherwise those ready and the one asked now.
            known = why is not Failure.RESTARTED
            asked = state.candidate.sites[: len(state.answered) + 1] if known else state.candidate.sites
            until_s = now.wall_s + self._limits.lease_cap_s
        else:
            until_s = state.candidate.end_s + self._limits.grace_s
            asked, go_on = state.candidate.sites, False
        drains = state.drains
        if until_s > now.wall_s:
            drains = (*drains, Drain(state.token, asked, until_s))
        self._set(drains=drains, setbacks=setbacks, answered=(), lease_end_s=None)
        commands: _Commands = [Persist()]
        commands += [self._query(Release, state.token, name, now) for name in asked]
        if go_on and state.index + 1 < len(state.candidates):
            self._set(index=state.index + 1, attempt=state.attempt + 1)
            return commands + self._ask_next(now)
        self._set(phase=Phase.GAVE_UP, resend_s=now.monotonic_s + self._limits.resend_s)
        return [*commands, self._gave_up()]

    def _gave_up(self) -> GaveUp:
        return GaveUp(self._state.setbacks, self._state.attempt + 1)

    def _take(self, reply: Reply, now: Instant) -> _Commands:
        state = self._state
        if isinstance(reply, Released):
            return self._drained(reply)
        if reply.token != state.token or state.phase is Phase.GAVE_UP:
            mine = reply.token.home == state.home and reply.token.job == state.job
            if mine and reply.token.attempt <= state.attempt and isinstance(reply, Ready | Committed):
                return [self._query(Release, reply.token, reply.site, now)]
            return []
        if isinstance(reply, Ready | NotReady):
            if state.phase is Phase.ASKING and reply.site == state.candidate.sites[len(state.answered)]:
                return self._answered(reply, now)
            return []
        if state.phase is Phase.COMMITTING and reply.site in state.candidate.sites:
            return self._committed(reply, now)
        return []

    def _drained(self, reply: Released) -> _Commands:
        drains = []
        for drain in self._state.drains:
            # Releasing one attempt releases the earlier ones too.
            if drain.token.attempt <= reply.token.attempt and drain.token.job == reply.token.job:
                drain = replace(drain, sites=tuple(s for s in drain.sites if s != reply.site))
            if drain.sites:
                drains.append(drain)
        if tuple(drains) == self._state.drains:
            return []
        self._set(drains=tuple(drains))
        return [Persist()]

    def _answered(self, reply: Ready | NotReady, now: Instant) -> _Commands:
        state = self._state
        if isinstance(reply, NotReady) and reply.reason is not Refusal.SKEW:
            return self._drop(reply.site, reply.reason, now, detail=reply.detail)
        if isinstance(reply, NotReady) or abs(now.wall_s - reply.sent_s) > SKEW_CAP_S:
            # Off or only late: the next copy tells; the time-out names it.
            self._set(skewed=True)
            return []
        lease_end_s = state.asked_s + reply.lease_s
        if state.lease_end_s is not None:
            lease_end_s = min(lease_end_s, state.lease_end_s)
        self._set(lease_end_s=lease_end_s, answered=(*state.answered, reply.site))
        if self._lease_short(now):
            return self._lost_race(reply.site, now)
        if len(self._state.answered) < len(state.candidate.sites):
            return self._ask_next(now)
        self._set(phase=Phase.COMMITTING, answered=(), asked_s=now.monotonic_s)
        return [Persist(), *self._resend(now)]

    def _lost_race(self, site: SiteId, now: Instant) -> _Commands:
        self._set(answered=self._state.answered[:-1])
        return self._drop(site, Failure.LEASE_SHORT, now)

    def _committed(self, reply: Committed | Gone, now: Instant) -> _Commands:
        state = self._state
        if isinstance(reply, Gone):
            return self._drop(reply.site, reply.reason, now)
        if reply.site in state.answered:
            return []
        self._set(answered=(*state.answered, reply.site))
        if len(self._state.answered) < len(state.candidate.sites):
            return []
        self._set(phase=Phase.PLACED)
        return [Persist(), Placed(state.token, state.candidate)]
