"""One job of this site that runs in the grid, seen from home.

Theory of operation. The handshake places the job; then home has every site submit its block, which gets
its nodes and waits at a barrier. Only when all have arrived does home decide to go, saves that, and says
so to all, again and again until each reports that it runs. `Go` is decided at most once per attempt.

Before `Go` no body has run anywhere: when a block fails or does not arrive in time, home drops the attempt
and the job is queued again at once. A late message cannot start the dropped attempt, for only home says
`Go`. After `Go` the job is queued again only when every site has said that its block is gone, or when the
claim's end has passed: so it never runs twice at a time. A site that cannot be reached while the job
runs is waited for, until the claim's end; what it says when it is back counts.

A site lets a block wait longer at its barrier than home waits for the blocks (`GuestLimits.start_s` over
`HomeLimits.start_s`), so a `Go` has the time between to arrive. Should one still come too late, its site has
cancelled the block, and home cancels all the others: no protocol can rule that out when links are cut.

A start may be reserved hours ahead. Until then home asks after every block now and then, which is also what
makes the sites keep their claims (`GuestLimits.keep_s`); a site that has given its claim back fails the
attempt like a block that failed to start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from torque_sched.grid.handshake.blocks import BlockReport, BlockState, Go, Look
from torque_sched.grid.handshake.coordinator import (
    Abort,
    Candidate,
    Coordinator,
    CoordinatorCommand,
    CoordinatorEvent,
    CoordinatorLimits,
    CoordinatorState,
    GaveUp,
    Placed,
)
from torque_sched.grid.handshake.holder import Persist, Send
from torque_sched.grid.handshake.messages import From, Instant, SiteId, Tick, Token


class Stage(Enum):
    """Where the job is, as its home sees it."""

    PLACING = "placing"
    STARTING = "starting"
    """All sites have committed; blocks are on their way to the barrier."""
    RUNNING = "running"
    """`Go` is decided."""
    STOPPING = "stopping"
    """A block failed after `Go`: all the others are being stopped, then the job is queued again."""
    CANCELLING = "cancelling"
    REQUEUED = "requeued"
    FINISHED = "finished"
    DROPPED = "dropped"

    @property
    def final(self) -> bool:
        """Whether the job's fate in this round is known."""
        return self in (Stage.REQUEUED, Stage.FINISHED, Stage.DROPPED)


@dataclass(frozen=True, slots=True)
class HomeLimits:
    """Patience; all times in seconds."""

    handshake: CoordinatorLimits = field(default_factory=CoordinatorLimits)
    start_s: float = 60.0
    """How long after their start the blocks may take to arrive at the barrier."""
    repeat_s: float = 2.0
    """How often what a site has not done yet is asked for again."""
    look_s: float = 10.0
    """How often running blocks are looked at."""
    wait_s: float = 60.0
    """How often blocks that wait for a reserved start are; a fraction of the sites' `GuestLimits.keep_s`."""
    stage_s: float = 3600.0
    """How long after the claims' end blocks may still bring files home."""


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block as its site reported it last."""

    site: SiteId
    state: BlockState = BlockState.UNKNOWN
    hosts: tuple[str, ...] = ()
    exit_status: int | None = None
    seen_s: float = 0.0
    """The site's wall clock of that report; 0 for none."""
    why: str = ""
    """What the site says about it besides, for its owner."""


@dataclass(frozen=True, slots=True)
class HomeState:
    """All that home knows of the job; saved by the shell at every `Persist`."""

    handshake: CoordinatorState
    stage: Stage = Stage.PLACING
    blocks: tuple[BlockView, ...] = ()
    """In the order of their index."""
    start_by_s: float = 0.0
    """Wall clock: all blocks must have arrived by then."""
    why: str = ""
    repeat_s: float = 0.0
    """Monotonic: when to ask again."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Event: the user has deleted the job."""


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Event: the job has a place before its reserved start; give that up and queue it again."""


HomeEvent = From | Tick | Cancel | Reschedule


@dataclass(frozen=True, slots=True)
class SubmitBlock:
    """Command: send the site a `Submit` with this block's script; repeated until the site has it."""

    site: SiteId
    token: Token
    index: int
    count: int
    claim_s: float
    """How long the site keeps the nodes: the block's walltime with what the start takes."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Command: nothing of the job runs or will run; queue it again at home."""

    next_attempt: int
    why: str
    """Empty where nothing went wrong (`Reschedule`)."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Command: all blocks have ended; None where a site never reported how."""

    exits: tuple[tuple[SiteId, int | None], ...]
    troubles: tuple[tuple[SiteId, str], ...] = ()
    """Sites where not all went well besides, and what their owner has to know."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Command: the cancelled job has left nothing behind."""


HomeCommand = Persist | Send | SubmitBlock | Requeue | Finished | Dropped
_Commands = list[HomeCommand]


class HomeJob:
    """Runs one job in the grid; see the module's theory of operation."""

    def __init__(self, state: HomeState, limits: HomeLimits = HomeLimits()) -> None:
        self._state = state
        self._limits = limits
        self._handshake = Coordinator(state.handshake, limits.handshake)

    @classmethod
    def begin(
        cls,
        home: SiteId,
        job: str,
        user: str,
        candidates: tuple[Candidate, ...],
        first_attempt: int,
        now: Instant,
        limits: HomeLimits = HomeLimits(),
        *,
        earlier: HomeState | None = None,
    ) -> tuple[HomeJob, tuple[HomeCommand, ...]]:
        """A new round for a job, and its first commands.

        Args:
            home: this site.
            job: the job's id here; unique for ever.
            user: its owner.
            candidates: best first.
            first_attempt: 1, or what the `Requeue` of the round before said.
            now: both clocks.
            limits: patience.
            earlier: the state of the round before; what it has not seen released is carried on.
        """
        handshake, commands = Coordinator.begin(
            home,
            job,
            candidates,
            first_attempt,
            now,
            limits.handshake,
            user=user,
            drains=earlier.handshake.drains if earlier else (),
        )
        self = cls(HomeState(handshake.state), limits)
        self._handshake = handshake
        return self, self._tidy(self._translated(commands, now))

    @classmethod
    def restore(
        cls, state: HomeState, now: Instant, limits: HomeLimits = HomeLimits()
    ) -> tuple[HomeJob, tuple[HomeCommand, ...]]:
        """The job after a crash of home, and what to do at once; final commands may come a second time."""
        self = cls(replace(state, repeat_s=now.monotonic_s), limits)
        self._handshake, commands = Coordinator.restore(state.handshake, now, limits.handshake)
        done = self._translated(commands, now)
        if state.stage is self._state.stage and state.stage.final:
            done.append(self._last_word())
        done += self._step(now)
        return self, self._tidy([Persist(), *done])

    @property
    def state(self) -> HomeState:
        """Everything, as one frozen value."""
        return replace(self._state, handshake=self._handshake.state)

    @property
    def finished(self) -> bool:
        """Whether this object may be forgotten: its fate is known and nothing is left at any site."""
        return self._state.stage.final and self._handshake.finished

    @property
    def token(self) -> Token:
        """Of the attempt under way, or of the last."""
        return self._handshake.state.token

    def reserved_s(self, now: Instant) -> float:
        """In how many seconds it starts, where that is reserved; else 0."""
        if self._state.stage is not Stage.STARTING:
            return 0.0
        return max(0.0, self._handshake.state.candidate.start_s - now.wall_s)

    def wake_s(self, now: Instant) -> float | None:
        """When to send a `Tick`, on the monotonic clock."""
        wakes = [self._handshake.wake_s(now)]
        if self._state.stage in (Stage.STARTING, Stage.RUNNING):
            wakes.append(self._state.repeat_s)
            wakes.append(now.monotonic_s + self._deadline_s() - now.wall_s)
        return min((wake for wake in wakes if wake is not None), default=None)

    def apply(self, event: HomeEvent, now: Instant) -> tuple[HomeCommand, ...]:
        """Take one event in; commands come in the order in which to perform them."""
        commands: _Commands = []
        if isinstance(event, Cancel):
            if self._state.stage in (Stage.PLACING, Stage.STARTING, Stage.RUNNING, Stage.STOPPING):
                commands += self._leave(Stage.CANCELLING, "cancelled by its owner", now)
        elif isinstance(event, Reschedule):
            if self.reserved_s(now) > 0.0:
                commands += self._leave(Stage.REQUEUED, "", now)
        elif isinstance(event, From) and isinstance(event.message, BlockReport):
            if event.peer == event.message.site:
                self._see(event.message)
        else:
            commands += self._to_handshake(event, now)
        return self._tidy(commands + self._step(now))

    # The handshake.

    def _to_handshake(self, event: CoordinatorEvent, now: Instant) -> _Commands:
        return self._translated(self._handshake.apply(event, now), now)

    def _translated(self, commands: tuple[CoordinatorCommand, ...], now: Instant) -> _Commands:
        done: _Commands = []
        for command in commands:
            if isinstance(command, Placed):
                if self._state.stage is Stage.PLACING:
                    done += self._start(command.candidate, now)
            elif isinstance(command, GaveUp):
                if self._state.stage is Stage.PLACING:
                    last = command.setbacks[-1]
                    at = f" at {last.site}" if last.site else ""
                    detail = f" ({last.detail})" if last.detail else ""
                    done += self._end(Stage.REQUEUED, f"{last.why.value}{at}{detail}")
            else:
                done.append(command)
        return done

    # The blocks. What follows changes the state by `_set` only.

    def _set(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    def _start(self, candidate: Candidate, now: Instant) -> _Commands:
        start_by_s = max(now.wall_s, candidate.start_s) + self._limits.start_s
        blocks = tuple(BlockView(site) for site in candidate.sites)
        self._set(stage=Stage.STARTING, blocks=blocks, start_by_s=start_by_s, repeat_s=now.monotonic_s)
        return [Persist()]

    def _deadline_s(self) -> float:
        """Wall clock: of the start, or of the whole job."""
        if self._state.stage is Stage.STARTING:
            return self._state.start_by_s
        end_s = self._handshake.state.candidate.end_s + self._limits.handshake.grace_s
        is_staging = all(b.state in (BlockState.STAGING, BlockState.ENDED) for b in self._state.blocks)
        return end_s + self._limits.stage_s if is_staging else end_s

    def _see(self, report: BlockReport) -> None:
        """A report counts when it is newer than the last, or as new and further on."""
        if report.token != self.token or self._state.stage not in (Stage.STARTING, Stage.RUNNING):
            return
        blocks = list(self._state.blocks)
        for index, block in enumerate(blocks):
            newer = report.sent_s > block.seen_s
            further = report.sent_s == block.seen_s and report.state.rank > block.state.rank
            if block.site == report.site and (newer or further):
                lost = report.state is BlockState.UNKNOWN and block.state is not BlockState.UNKNOWN
                state = BlockState.CANCELLED if lost else report.state
                blocks[index] = BlockView(
                    block.site, state, report.hosts or block.hosts, report.exit_status, report.sent_s,
                    report.why,
                )  # fmt: skip
        self._set(blocks=tuple(blocks))

    def _step(self, now: Instant) -> _Commands:
        """One step from what is towards what is wanted."""
        stage, blocks = self._state.stage, self._state.blocks
        if stage in (Stage.STOPPING, Stage.CANCELLING):
            if not self._handshake.finished:
                return []
            return self._end(Stage.REQUEUED if stage is Stage.STOPPING else Stage.DROPPED, self._state.why)
        if stage is Stage.STARTING:
            return self._starting(blocks, now)
        if stage is Stage.RUNNING:
            return self._running(blocks, now)
        return []

    def _starting(self, blocks: tuple[BlockView, ...], now: Instant) -> _Commands:
        failed = next((b for b in blocks if b.state.rank > BlockState.READY.rank), None)
        if failed is not None:
            return self._leave(Stage.REQUEUED, f"block at {failed.site} failed to start", now)
        if now.wall_s >= self._state.start_by_s:
            missing = next(b for b in blocks if b.state is not BlockState.READY)
            return self._leave(Stage.REQUEUED, f"block at {missing.site} did not arrive in time", now)
        if all(block.state is BlockState.READY for block in blocks):
            self._set(stage=Stage.RUNNING, repeat_s=now.monotonic_s + self._limits.repeat_s)
            return [Persist(), *(self._go(block.site, now) for block in blocks)]
        if now.monotonic_s < self._state.repeat_s:
            return []
        self._set(repeat_s=now.monotonic_s + self._repeat_after_s(blocks, now))
        commands: _Commands = []
        for index, block in enumerate(blocks):
            if block.state is BlockState.UNKNOWN:
                length_s = self._handshake.state.candidate.length_s
                commands.append(SubmitBlock(block.site, self.token, index, len(blocks), length_s))
            elif block.state is not BlockState.READY:
                commands.append(Send(block.site, Look(self.token, block.site, now.wall_s)))
        return commands

    def _repeat_after_s(self, blocks: tuple[BlockView, ...], now: Instant) -> float:
        """Soon, unless all sites have their block and its start is not near."""
        to_start_s = self._handshake.state.candidate.start_s - now.wall_s
        has_all = all(block.state is not BlockState.UNKNOWN for block in blocks)
        return max(self._limits.repeat_s, min(self._limits.wait_s, to_start_s) if has_all else 0.0)

    def _go(self, site: SiteId, now: Instant) -> Send:
        blocks = self._state.blocks
        sites = tuple(block.site for block in blocks)
        return Send(site, Go(self.token, site, now.wall_s, sites, tuple(block.hosts for block in blocks)))

    def _running(self, blocks: tuple[BlockView, ...], now: Instant) -> _Commands:
        lost = (BlockState.CANCELLING, BlockState.CANCELLED)
        failed = next((b for b in blocks if b.state in lost), None)
        if failed is not None:
            return self._leave(Stage.STOPPING, f"block at {failed.site} was lost", now)
        if all(map(_ended, blocks)) or now.wall_s >= self._deadline_s():
            return self._leave(Stage.FINISHED, "", now)
        if now.monotonic_s < self._state.repeat_s:
            return []
        waiting = [block.site for block in blocks if block.state is BlockState.READY]
        pause_s = self._limits.repeat_s if waiting else self._limits.look_s
        self._set(repeat_s=now.monotonic_s + pause_s)
        commands: _Commands = [self._go(site, now) for site in waiting]
        looked = [b.site for b in blocks if b.site not in waiting and not _ended(b)]
        return commands + [Send(site, Look(self.token, site, now.wall_s)) for site in looked]

    def _leave(self, stage: Stage, why: str, now: Instant) -> _Commands:
        """Go on to this stage and release everything; what the handshake says of that is known already."""
        ending = self._end(stage, why)
        return [*ending[:1], *self._to_handshake(Abort(), now), *ending[1:], *self._step(now)]

    def _end(self, stage: Stage, why: str) -> _Commands:
        self._set(stage=stage, why=why)
        return [Persist(), self._last_word()] if stage.final else [Persist()]

    def _last_word(self) -> HomeCommand:
        if self._state.stage is Stage.REQUEUED:
            return Requeue(self._handshake.state.attempt + 1, self._state.why)
        if self._state.stage is Stage.FINISHED:
            blocks = self._state.blocks
            exits = tuple((block.site, block.exit_status) for block in blocks)
            return Finished(exits, tuple((block.site, block.why) for block in blocks if block.why))
        return Dropped()

    def _tidy(self, commands: _Commands) -> tuple[HomeCommand, ...]:
        """Save once, before anything else is done."""
        rest = tuple(command for command in commands if not isinstance(command, Persist))
        return (Persist(), *rest) if len(rest) < len(commands) else rest


def _ended(block: BlockView) -> bool:
    return block.state is BlockState.ENDED
