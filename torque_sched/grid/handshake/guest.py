"""A site that runs blocks of other sites' jobs (and of its own grid jobs: its own home is a peer like any).

Theory of operation. The holder keeps the nodes. `Guest` puts a batch job on them, once per token, holds it at
the barrier until home sends `Go`, and reports the state of the block. A block that gets no `Go` in time is
cancelled here. `Release` of a block that lives is answered only when its process is gone: `Released` means
that nothing of it runs. Until then the nodes stay granted, so nobody else gets them.

A claim may begin hours ahead. Until its block runs, home confirms every few seconds that it still wants it.
After `GuestLimits.keep_s` without such a message the claim is freed and its block cancelled. So a home that
is gone keeps no nodes for longer than that, and no body is lost by it, as none runs before `Go`.

A batch job that has ended frees its nodes at once. The block itself ends when its files are at home, or when
that was given up (the block's `why` names the reason).

After a restart every block that may live is looked for, and those past their end are killed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torque_sched.grid.handshake.blocks import Admission, BlockReport, BlockState, Denial, Go, Look, Submit
from torque_sched.grid.handshake.holder import (
    Ended,
    Freed,
    Grant,
    Granted,
    Holder,
    HolderCommand,
    HolderLimits,
    HolderState,
    Inventory,
    Persist,
    Send,
    Taken,
)
from torque_sched.grid.handshake.messages import (
    VERSION,
    Confirm,
    From,
    Instant,
    NotReady,
    Refusal,
    Release,
    SiteId,
    Tick,
    Token,
)


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
class Rejection:
    """Command: this batch job is none of ours (a second one of its token, or one too late): end it."""

    token: Token
    job_id: str


@dataclass(frozen=True, slots=True)
class FindBlock:
    """Command: look for the block's batch job by its token and tell what there is."""

    token: Token


GuestCommand = (
    Persist | Send | Granted | Taken | Freed | RunBlock | KillBlock | OpenBarrier | Rejection | FindBlock
)


_WAITING = frozenset({BlockState.SUBMITTING, BlockState.SUBMITTED, BlockState.READY})
"""Before `Go`."""
_DEFAULTS = GuestLimits()
_Commands = list[GuestCommand]


class Guest:
    """The site's side of the grid; see the module's theory of operation."""

    def __init__(
        self,
        site: SiteId,
        books: Inventory,
        admission: Admission,
        state: GuestState,
        limits: GuestLimits = _DEFAULTS,
    ) -> None:
        self.site = site
        self._admission = admission
        self._limits = limits
        self._holder = Holder(site, books, state.holder, limits.holder)
        self._blocks = {block.token: block for block in state.blocks}
        self._kept = {kept.token: kept.until_s for kept in state.kept}
        self._kill_s: float = 0.0
        self._handlers: dict[type, Callable[..., _Commands]] = {
            Tick: self._tick,
            From: self._from,
            BlockSubmitted: self._submitted,
            BlockFailed: self._failed,
            Arrived: self._arrived,
            JobOver: self._job_over,
            StageTrouble: self._stage_trouble,
            BlockEnded: self._ended,
        }

    @property
    def state(self) -> GuestState:
        """Everything, as one frozen value."""
        return GuestState(
            self._holder.state,
            tuple(self._blocks[token] for token in sorted(self._blocks)),
            tuple(Kept(token, self._kept[token]) for token in sorted(self._kept)),
        )

    def block(self, token: Token) -> Block | None:
        """What is known of a block."""
        return self._blocks.get(token)

    def grants(self, now: Instant) -> tuple[Grant, ...]:
        """What the site's own scheduler must keep off now."""
        return self._holder.grants(now)

    def wake_s(self, now: Instant) -> float | None:
        """When to send a `Tick`, on the monotonic clock."""
        wakes = [self._holder.wake_s(now), *self._kept.values()]
        for block in self._blocks.values():
            if block.state is BlockState.CANCELLING:
                wakes.append(self._kill_s)
            elif block.state.live and block.state is not BlockState.STAGING:
                until_s = block.end_s if block.state is BlockState.RUNNING else block.start_by_s
                wakes.append(max(now.monotonic_s + until_s - now.wall_s, self._kill_s))
        return min((wake for wake in wakes if wake is not None), default=None)

    def restart(self, boot: str, now: Instant) -> tuple[GuestCommand, ...]:
        """Call once after building from a saved state."""
        is_new_boot = boot != self._holder.state.boot
        commands = self._holder_did(self._holder.restart(boot, now), now)
        for grant in self._holder.grants(now):
            block = self._blocks.get(grant.token)
            waits = grant.committed and (block is None or block.state in _WAITING)
            if waits and (is_new_boot or grant.token not in self._kept):
                self._kept[grant.token] = now.monotonic_s + self._limits.keep_s
                commands.append(Persist())
        for block in list(self._blocks.values()):
            if block.state is BlockState.CANCELLING:
                commands.append(KillBlock(block.token, block.job_id, block.why))
            elif block.state.live:
                commands.append(FindBlock(block.token))
        return self._tidy(commands)

    def apply(self, event: GuestEvent, now: Instant) -> tuple[GuestCommand, ...]:
        """Take one event in; commands come in the order in which to perform them."""
        return self._tidy(self._handlers[type(event)](event, now))

    def _tidy(self, commands: _Commands) -> tuple[GuestCommand, ...]:
        """Save once, before anything else is done."""
        rest = tuple(command for command in commands if not isinstance(command, Persist))
        return (Persist(), *rest) if len(rest) < len(commands) else rest

    # Blocks change by these two only.

    def _put(self, block: Block) -> Persist:
        self._blocks[block.token] = block
        if block.state not in _WAITING:
            self._kept.pop(block.token, None)
        return Persist()

    def _kill(self, block: Block, why: str, now: Instant) -> _Commands:
        """Towards cancelled; a block is not before its batch job is gone."""
        self._kill_s = now.monotonic_s + self._limits.kill_s
        doomed = replace(block, state=BlockState.CANCELLING, why=block.why or why)
        return [self._put(doomed), KillBlock(block.token, block.job_id, doomed.why)]

    # Messages.

    def _from(self, event: From, now: Instant) -> _Commands:
        return [*self._renewed(event, now), *self._take(event, now)]

    def _renewed(self, event: From, now: Instant) -> _Commands:
        """Home still wants its claim; written down when a quarter of `keep_s` has passed since."""
        token = event.message.token
        until_s, keep_s = self._kept.get(token), self._limits.keep_s
        if until_s is None or event.peer != token.home or now.monotonic_s + 0.75 * keep_s < until_s:
            return []
        self._kept[token] = now.monotonic_s + keep_s
        return [Persist()]

    def _take(self, event: From, now: Instant) -> _Commands:
        message = event.message
        if isinstance(message, Submit | Go | Look):
            if (event.peer, self.site, VERSION) != (message.token.home, message.site, message.version):
                return []
            if isinstance(message, Submit):
                return self._submit(message, now)
            return self._go(message, now) if isinstance(message, Go) else self._report(message.token, now)
        older = [
            block
            for block in self._blocks.values()
            if (block.token.home, block.token.job) == (event.peer, message.token.job)
            and block.token.home == message.token.home
            and block.token.attempt <= message.token.attempt
        ]
        live = [block for block in older if block.state.live]
        if isinstance(message, Release) and message.site == self.site:
            if live:
                return [c for block in live for c in self._again(block, "released by its home", now)]
            for block in older:
                del self._blocks[block.token]
            freed = self._holder_did(self._holder.apply(event, now), now)
            return [Persist(), *freed] if older else freed
        if isinstance(message, Confirm) and message.site == self.site:
            dying = [block for block in live if block.token != message.token]
            if dying:
                # No answer: when it is asked again, the earlier attempt's block may be gone.
                return [c for block in dying for c in self._again(block, "superseded", now)]
            denied = self._denied(event.peer, message, now)
            if denied is not None:
                return [denied]
        return self._holder_did(self._holder.apply(event, now), now)

    def _again(self, block: Block, why: str, now: Instant) -> _Commands:
        """Kill it, unless that was done a moment ago."""
        if block.state is BlockState.CANCELLING and now.monotonic_s < self._kill_s:
            return []
        return self._kill(block, why, now)

    def _denied(self, peer: SiteId, message: Confirm, now: Instant) -> Send | None:
        allowed = self._admission.admit(
            peer, message.token, message.user, message.claim, self._holder.grants(now)
        )
        if isinstance(allowed, Denial) and peer == message.token.home:
            answer = NotReady(message.token, self.site, now.wall_s, Refusal.DENIED, allowed.why[:300])
            return Send(peer, answer)
        return None

    def _submit(self, message: Submit, now: Instant) -> _Commands:
        token = message.token
        if token in self._blocks:
            return self._report(token, now)
        grant = next((g for g in self._holder.grants(now) if g.token == token and g.committed), None)
        if grant is None:
            return [self._no_block(token, "its claim is gone here", now)]
        user = self._admission.admit(token.home, token, message.user, grant.claim, self._holder.grants(now))
        if isinstance(user, Denial):
            return [self._no_block(token, user.why, now)]
        start_by_s = max(now.wall_s, grant.claim.start_s) + self._limits.start_s
        block = Block(
            token, message.index, message.count, BlockState.SUBMITTING, start_by_s, grant.claim.end_s
        )
        begins_s = max(now.wall_s, grant.claim.start_s)
        # Not longer than its claim, whatever home asks.
        walltime_s = max(1, min(message.walltime_s, int(grant.claim.end_s - begins_s)))
        run = RunBlock(
            token,
            block.index,
            block.count,
            user,
            message.name,
            grant.claim.start_s,
            walltime_s,
            message.script,
        )
        return [self._put(block), run, *self._report(token, now)]

    def _go(self, message: Go, now: Instant) -> _Commands:
        block = self._blocks.get(message.token)
        if block is None or block.state is not BlockState.READY or block.job_id is None:
            return self._report(message.token, now)
        running = replace(block, state=BlockState.RUNNING, sites=message.sites, all_hosts=message.hosts)
        return [self._put(running), self._open(running, block.job_id), *self._report(block.token, now)]

    def _open(self, block: Block, job_id: str) -> OpenBarrier:
        return OpenBarrier(block.token, job_id, block.sites, block.all_hosts)

    def _no_block(self, token: Token, why: str, now: Instant) -> Send:
        return Send(
            token.home, BlockReport(token, self.site, now.wall_s, BlockState.CANCELLED, why=why[:300])
        )

    def _report(self, token: Token, now: Instant) -> _Commands:
        block = self._blocks.get(token)
        if block is None:
            return [Send(token.home, BlockReport(token, self.site, now.wall_s, BlockState.UNKNOWN))]
        report = BlockReport(
            token, self.site, now.wall_s, block.state, block.hosts, block.exit_status, block.why[:300]
        )
        return [Send(token.home, report)]

    # What the batch system says.

    def _submitted(self, event: BlockSubmitted, now: Instant) -> _Commands:
        block = self._blocks.get(event.token)
        if block is None or not block.state.live or block.job_id not in (None, event.job_id):
            return [Rejection(event.token, event.job_id)]
        known = replace(block, job_id=event.job_id)
        if block.state is BlockState.CANCELLING:
            return [self._put(known), KillBlock(block.token, event.job_id, block.why)]
        if block.state is BlockState.SUBMITTING:
            known = replace(known, state=BlockState.SUBMITTED)
        return [self._put(known)]

    def _arrived(self, event: Arrived, now: Instant) -> _Commands:
        block = self._blocks.get(event.token)
        if block is None or not block.state.live or block.job_id not in (None, event.job_id):
            return [Rejection(event.token, event.job_id)]
        known = replace(block, job_id=event.job_id, hosts=event.hosts)
        if block.state is BlockState.CANCELLING:
            return [self._put(known), KillBlock(block.token, event.job_id, block.why)]
        if block.state is BlockState.RUNNING:
            return [self._open(block, event.job_id)]
        if block.state is BlockState.STAGING:
            return []
        return [self._put(replace(known, state=BlockState.READY)), *self._report(event.token, now)]

    def _failed(self, event: BlockFailed, now: Instant) -> _Commands:
        return self._over(event.token, BlockState.CANCELLED, None, event.why, now)

    def _job_over(self, event: JobOver, now: Instant) -> _Commands:
        block = self._blocks.get(event.token)
        if block is None or block.state is not BlockState.RUNNING:
            return []
        staging = replace(block, state=BlockState.STAGING, exit_status=event.exit_status)
        commands: _Commands = [self._put(staging)]
        commands += self._holder_did(self._holder.apply(Ended(event.token), now), now)
        return commands + self._report(event.token, now)

    def _stage_trouble(self, event: StageTrouble, now: Instant) -> _Commands:
        block = self._blocks.get(event.token)
        if block is None or block.state is not BlockState.STAGING:
            return []
        return [self._put(replace(block, why=event.why)), *self._report(event.token, now)]

    def _ended(self, event: BlockEnded, now: Instant) -> _Commands:
        block = self._blocks.get(event.token)
        if block is not None and block.state in (BlockState.RUNNING, BlockState.STAGING):
            return self._over(event.token, BlockState.ENDED, event.exit_status, event.why, now)
        return self._over(event.token, BlockState.CANCELLED, event.exit_status, "ended before its start", now)

    def _over(
        self, token: Token, state: BlockState, exit_status: int | None, why: str, now: Instant
    ) -> _Commands:
        """There is no batch job of this block any more: its nodes are free, and home may know."""
        block = self._blocks.get(token)
        if block is None or not block.state.live:
            return []
        if state is not BlockState.ENDED:
            why = block.why or why
        commands: _Commands = [self._put(replace(block, state=state, exit_status=exit_status, why=why))]
        commands += self._holder_did(self._holder.apply(Ended(token), now), now)
        return commands + self._report(token, now)

    # Time.

    def _tick(self, event: Tick, now: Instant) -> _Commands:
        commands = self._holder_did(self._holder.apply(event, now), now)
        commands += self._forgotten(now)
        again = now.monotonic_s >= self._kill_s
        for block in list(self._blocks.values()):
            if block.state in _WAITING:
                if now.wall_s >= block.start_by_s:
                    commands += self._kill(block, "heard no start signal in time", now)
            elif block.state is BlockState.CANCELLING and again:
                commands += self._kill(block, block.why, now)
            elif block.state is BlockState.RUNNING and now.wall_s >= block.end_s and again:
                commands += self._out_of_time(block, now)
            elif not block.state.live and now.wall_s >= block.end_s + self._limits.forget_s:
                del self._blocks[block.token]
                commands.append(Persist())
        return commands

    def _forgotten(self, now: Instant) -> _Commands:
        """Give back what its home has not asked about for too long."""
        commands: _Commands = []
        for token in [token for token, until_s in self._kept.items() if now.monotonic_s >= until_s]:
            block = self._blocks.get(token)
            if block is not None and block.state.live:
                commands += self._kill(block, "its home was not heard of in time", now)
            else:
                commands += self._holder_did(self._holder.apply(Ended(token), now), now)
            self._kept.pop(token, None)
        return commands

    def _out_of_time(self, block: Block, now: Instant) -> _Commands:
        """Its walltime is over: it ends like any job at its limit, and that is no failure of its start."""
        self._kill_s = now.monotonic_s + self._limits.kill_s
        return [KillBlock(block.token, block.job_id, "at the end of its claim")]

    def _holder_did(self, commands: tuple[HolderCommand, ...], now: Instant) -> _Commands:
        """Pass the holder's commands on; a freed claim takes its block along."""
        done: _Commands = list(commands)
        for command in commands:
            if isinstance(command, Taken):
                self._kept[command.grant.token] = now.monotonic_s + self._limits.keep_s
            elif isinstance(command, Freed):
                self._kept.pop(command.grant.token, None)
            block = self._blocks.get(command.grant.token) if isinstance(command, Freed) else None
            if block is None or not block.state.live:
                continue
            if block.state in (BlockState.STAGING, BlockState.CANCELLING):
                continue
            if block.state is BlockState.RUNNING and now.wall_s >= block.end_s:
                done += self._out_of_time(block, now)
            else:
                done += self._kill(block, "its claim is gone here", now)
        return done
