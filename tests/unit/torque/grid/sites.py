"""Sites with clocks, batch systems and links that fail: the shells around home jobs and guests, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from torque_sched.grid.handshake.blocks import (
    SITE_WIRE,
    Admission,
    BlockState,
    PeerRules,
    SiteMessage,
    Submit,
)
from torque_sched.grid.handshake.coordinator import Ask, Candidate
from torque_sched.grid.handshake.guest import (
    Arrived,
    BlockEnded,
    BlockFailed,
    BlockSubmitted,
    FindBlock,
    Guest,
    GuestState,
    JobOver,
    KillBlock,
    OpenBarrier,
    Rejection,
    RunBlock,
    StageTrouble,
)
from torque_sched.grid.handshake.holder import FreeCapacity, Grant, HolderState, Persist, Send
from torque_sched.grid.handshake.home_job import Dropped, Finished, HomeJob, Requeue, SubmitBlock
from torque_sched.grid.handshake.messages import (
    Claim,
    Confirm,
    From,
    Instant,
    Piece,
    Release,
    SiteId,
    Tick,
    Token,
)
from torque_sched.grid.site.site_files import STATE_FORM

LENGTH_S = 600.0
LETTERS_CAP = 60
"""The oldest on their way are lost when there are more."""
ROUNDS = 3
"""So often is a job placed again; then it stays queued."""


def through_json(codec: Any, value: Any) -> Any:
    return codec.value(json.loads(json.dumps(codec.plain(value))))


@dataclass
class BatchJob:
    """What the site's batch system has; it survives the site's service."""

    job_id: str
    token: Token
    nodes: tuple[str, ...]
    end_s: float
    at_barrier: bool = False
    body: bool = False
    doomed: bool = False
    over: bool = False
    exit_status: int | None = None


@dataclass(eq=False)
class Letter:
    sender: SiteId
    to: SiteId
    message: Any


class Crash(Exception):
    """The service is killed between two commands."""


@dataclass
class Site:
    """One site: its service (guest, home jobs), what that has saved, and its batch system."""

    world: World
    name: SiteId
    node_names: tuple[str, ...]
    ahead_s: float
    """Its wall clock is that much ahead."""
    jobs: dict[str, HomeJob] = field(default_factory=dict)
    saved_jobs: dict[str, Any] = field(default_factory=dict)
    batch: list[BatchJob] = field(default_factory=list)
    pending: list[RunBlock] = field(default_factory=list)
    """Submitted by the service, not yet taken by the batch system; a restart goes on with it."""
    stages: bool = False
    """What its blocks leave has to be brought home."""
    staging: list[tuple[Token, int | None]] = field(default_factory=list)
    """Blocks of which this is being done; a restart goes on with it."""
    heard_s: dict[Token, float] = field(default_factory=dict)
    """When their homes asked after them last, on this boot's monotonic clock."""
    boot: int = 0
    number: int = 0
    die_after: int | None = None
    """Commands performed before the service is killed."""

    def __post_init__(self) -> None:
        self.saved_guest = STATE_FORM.plain(GuestState(HolderState(f"boot-{self.boot}")))
        self.guest = self._guest()

    def _guest(self) -> Guest:
        rules = {
            name: PeerRules({"ann": "guest"}, 1000, 1e6, 100)
            for name in self.world.names
            if name != self.name
        }
        state = STATE_FORM.value(json.loads(json.dumps(self.saved_guest)))
        return Guest(self.name, self, Admission(self.name, rules), state)

    @property
    def now(self) -> Instant:
        return Instant(self.world.at_s + 7.0, self.world.at_s + 1e6 + self.ahead_s)

    # The site's books: a batch job whose claim is gone is its own work.

    def spare(self, node: str, start_s: float, end_s: float) -> FreeCapacity:
        granted = {grant.token for grant in self.guest.grants(self.now)}
        busy = any(not job.over and node in job.nodes and job.token not in granted for job in self.batch)
        return FreeCapacity(0 if busy or node not in self.node_names else 1)

    def nodes(self, claim: Claim) -> Iterable[str]:
        return self.node_names

    # The service.

    def tell_guest(self, event: Any) -> None:
        self._perform_guest(self.guest.apply(event, self.now))

    def tell_job(self, job: str, event: Any) -> None:
        if job in self.jobs:
            self._perform_job(job, self.jobs[job].apply(event, self.now))

    def _step(self) -> None:
        if self.die_after is not None:
            if self.die_after == 0:
                raise Crash
            self.die_after -= 1

    def _perform_guest(self, commands: Sequence[Any]) -> None:
        assert not any(isinstance(command, Persist) for command in commands[1:])
        later: list[Any] = []
        for command in commands:
            self._step()
            if isinstance(command, Persist):
                self.saved_guest = STATE_FORM.plain(self.guest.state)
            elif isinstance(command, Send):
                self.world.post(self.name, command.to, command.message)
            elif isinstance(command, RunBlock):
                assert command.walltime_s <= LENGTH_S
                self.pending.append(command)
            elif isinstance(command, OpenBarrier):
                self._open(command)
            elif isinstance(command, Rejection):
                self._doom(command.job_id)
            elif isinstance(command, KillBlock | FindBlock):
                later += self._search(command)
        for event in later:
            self.tell_guest(event)

    def _search(self, command: KillBlock | FindBlock) -> list[Any]:
        token = command.token
        if isinstance(command, FindBlock) and (self._is_pending(token) or self._is_staging(token)):
            return []
        self.staging = [each for each in self.staging if each[0] != token]
        found = [job for job in self.batch if job.token == token and not job.over]
        if isinstance(command, KillBlock):
            # One that waits for its start is dropped; another may be submitted in this moment.
            now_s = self.now.wall_s
            self.pending = [run for run in self.pending if run.token != token or run.start_s <= now_s]
            for job in found:
                job.doomed = True
            if found:
                return []
        elif found:
            here = found[0]
            first: list[Any] = [BlockSubmitted(token, here.job_id)]
            if here.at_barrier or here.body:
                first.append(Arrived(token, here.job_id, here.nodes))
            return first
        ended = [job for job in self.batch if job.token == token and job.exit_status is not None]
        if ended:
            return [BlockEnded(token, ended[0].exit_status)]
        return [BlockFailed(token, "no such batch job")]

    def _is_pending(self, token: Token) -> bool:
        return any(run.token == token for run in self.pending)

    def _is_staging(self, token: Token) -> bool:
        return any(each == token for each, _ in self.staging)

    def _open(self, command: OpenBarrier) -> None:
        for job in self.batch:
            if job.job_id == command.job_id and not job.over and not job.doomed and not job.body:
                assert job.at_barrier
                self.world.body_starts(self.name, job)
                job.body = True

    def _doom(self, job_id: str) -> None:
        for job in self.batch:
            if job.job_id == job_id:
                job.doomed = True

    def _perform_job(self, name: str, commands: Sequence[Any]) -> None:
        job = self.jobs[name]
        assert not any(isinstance(command, Persist) for command in commands[1:])
        for command in commands:
            self._step()
            if isinstance(command, Persist):
                self.saved_jobs[name] = STATE_FORM.plain(job.state)
            elif isinstance(command, Send):
                self.world.post(self.name, command.to, command.message)
            elif isinstance(command, SubmitBlock):
                submit = Submit(
                    *(command.token, command.site, self.now.wall_s, command.index, command.count),
                    *("ann", "job", int(command.claim_s), "#!/bin/sh\n"),
                )
                self.world.post(self.name, command.site, submit)
            elif isinstance(command, Requeue):
                self.world.requeued(job.token, command)
                if command.next_attempt <= ROUNDS:
                    self.begin(name, command.next_attempt, job)
                    return
            elif isinstance(command, Finished):
                self.world.finished(job.token, command)
            elif isinstance(command, Dropped):
                self.world.dropped(job.token)

    def begin(self, name: str, attempt: int, earlier: HomeJob | None = None) -> None:
        candidates = tuple(
            Candidate(
                tuple(Ask(site, (Piece("", 1, count=count),)) for site, count in sorted(asks)),
                self.now.wall_s + self.world.later_s.get((self.name, name), 0.0),
                LENGTH_S,
            )
            for asks in self.world.wishes[self.name, name]
        )
        self.jobs[name], commands = HomeJob.begin(
            *(self.name, name, "ann", candidates, attempt, self.now),
            earlier=earlier.state if earlier else None,
        )
        self._perform_job(name, commands)

    def restart(self, *, reboot: bool = False) -> None:
        """The service is gone; it comes up again with what it had saved."""
        self.die_after = None
        if reboot:
            self.boot += 1
            self.heard_s = dict.fromkeys(self.heard_s, self.now.monotonic_s)
            for job in self.batch:
                job.doomed = True
        self.guest = self._guest()
        self._perform_guest(self.guest.restart(f"boot-{self.boot}", self.now))
        self.jobs = {}
        for name, plain in list(self.saved_jobs.items()):
            state = STATE_FORM.value(json.loads(json.dumps(plain)))
            self.jobs[name], commands = HomeJob.restore(state, self.now)
            self._perform_job(name, commands)
        for home, name in self.world.wishes:
            if home == self.name and name not in self.jobs:
                # Killed before anything of it was saved: it is still in the queue.
                self.begin(name, 1)

    def tick(self) -> None:
        self.tell_guest(Tick())
        for name in list(self.jobs):
            self.tell_job(name, Tick())

    def wake_s(self) -> float | None:
        """On the world's clock."""
        now = self.now
        wakes = [self.guest.wake_s(now), *(job.wake_s(now) for job in self.jobs.values())]
        return min((wake - 7.0 for wake in wakes if wake is not None), default=None)

    # The batch system.

    def take_due(self, *, works: bool = True) -> None:
        """All whose start has come."""
        while due := [at for at, run in enumerate(self.pending) if run.start_s <= self.now.wall_s]:
            self.take(due[0], works=works)

    def take(self, index: int, *, works: bool, told: bool = True) -> None:
        if works and self.pending[index].start_s > self.now.wall_s:
            return  # it waits for its start
        run = self.pending.pop(index)
        if not works:
            self.tell_guest(BlockFailed(run.token, "qsub failed"))
            return
        grant = [g for g in self.guest.grants(self.now) if g.token == run.token]
        if not grant:
            # The job waits for nodes that it does not get; its token's kill finds it.
            nodes: tuple[str, ...] = ()
        else:
            nodes = tuple(piece.node for piece in grant[0].pieces)
        self.number += 1
        end_s = self.now.wall_s + run.walltime_s
        self.batch.append(BatchJob(f"{self.number}.{self.name}", run.token, nodes, end_s))
        if told:
            self.tell_guest(BlockSubmitted(run.token, self.batch[-1].job_id))

    def arrive(self, job: BatchJob) -> None:
        """It is at the barrier, or says so again."""
        job.at_barrier = True
        self.tell_guest(Arrived(job.token, job.job_id, job.nodes))

    def end(self, job: BatchJob) -> None:
        job.over = True
        job.exit_status = 0 if job.body and not job.doomed else 271
        if self.stages and job.body and not job.doomed:
            self.staging.append((job.token, job.exit_status))
            self.tell_guest(JobOver(job.token, job.exit_status))
        else:
            self.tell_guest(BlockEnded(job.token, job.exit_status))

    def stage(self, index: int, *, works: bool) -> None:
        """Try to bring home what a block has left."""
        token, exit_status = self.staging[index]
        if works:
            self.staging.pop(index)
            self.tell_guest(BlockEnded(token, exit_status))
        else:
            self.tell_guest(StageTrouble(token, "no space"))


class World:
    """All sites and the letters between them; `check` judges what must hold at every instant."""

    def __init__(self, nodes: dict[str, int], ahead_s: dict[str, float] | None = None) -> None:
        self.at_s = 0.0
        self.names = tuple(SiteId(name) for name in nodes)
        self.later_s: dict[tuple[SiteId, str], float] = {}
        """So long after it is placed is a job to start."""
        self.wishes: dict[tuple[SiteId, str], tuple[tuple[tuple[SiteId, int], ...], ...]] = {}
        self.letters: list[Letter] = []
        self.cut: set[frozenset[SiteId]] = set()
        self.bodies: dict[Token, set[SiteId]] = {}
        self.gone: dict[tuple[SiteId, str], int] = {}
        """Attempts up to this one must never run a body again."""
        self.results: dict[tuple[SiteId, str], list[Any]] = {}
        self.sites = {
            SiteId(name): Site(
                self, SiteId(name), tuple(f"n{i}" for i in range(count)), (ahead_s or {}).get(name, 0.0)
            )
            for name, count in nodes.items()
        }

    def deliver_all(self) -> None:
        """Everything that is on its way now and whose link is not cut."""
        for letter in list(self.letters):
            if letter in self.letters and not self._cut_off(letter):
                self.deliver(self.letters.index(letter))

    def _cut_off(self, letter: Letter) -> bool:
        return letter.sender != letter.to and frozenset((letter.sender, letter.to)) in self.cut

    def post(self, sender: SiteId, to: SiteId, message: Any) -> None:
        self.letters.append(Letter(sender, to, through_json(SITE_WIRE, message)))
        del self.letters[:-LETTERS_CAP]

    def open_links(self) -> list[int]:
        return [index for index, letter in enumerate(self.letters) if not self._cut_off(letter)]

    def deliver(self, index: int, *, keep: bool = False) -> None:
        letter = self.letters[index] if keep else self.letters.pop(index)
        site, event = self.sites[letter.to], From(letter.sender, letter.message)
        try:
            if isinstance(letter.message, SiteMessage):
                site.tell_job(letter.message.token.job, event)
            else:
                if not isinstance(letter.message, Confirm | Release):
                    site.heard_s[letter.message.token] = site.now.monotonic_s
                site.tell_guest(event)
        except Crash:
            site.restart()

    def wait(self, length_s: float) -> None:
        until_s = self.at_s + length_s
        while True:
            wakes = [wake for site in self.sites.values() if (wake := site.wake_s()) is not None]
            ends = [
                job.end_s - 1e6 - site.ahead_s
                for site in self.sites.values()
                for job in site.batch
                if not job.over
            ]
            at_s = max(min([*wakes, *ends, until_s]), self.at_s + 0.01)
            if at_s > until_s:
                break
            self.at_s = at_s
            for site in self.sites.values():
                try:
                    self._due(site)
                except Crash:
                    site.restart()
            self.check()
            if at_s == until_s:
                break
        self.at_s = until_s

    def _due(self, site: Site) -> None:
        wake = site.wake_s()
        for job in site.batch:
            # The batch system itself ends a job at its walltime.
            if not job.over and site.now.wall_s >= job.end_s:
                site.end(job)
        if wake is not None and wake <= self.at_s:
            site.tick()

    def submit(
        self, home: str, name: str, wishes: Sequence[Sequence[tuple[str, int]]], later_s: float = 0.0
    ) -> None:
        site = SiteId(home)
        self.later_s[site, name] = later_s
        self.wishes[site, name] = tuple(tuple((SiteId(s), n) for s, n in wish) for wish in wishes)
        try:
            self.sites[site].begin(name, 1)
        except Crash:
            self.sites[site].restart()

    # What must hold.

    def body_starts(self, site: SiteId, job: BatchJob) -> None:
        token = job.token
        assert token.attempt > self.gone.get((token.home, token.job), 0), (
            f"{token} starts after it was given up"
        )
        started = self.bodies.setdefault(token, set())
        assert site not in started, f"{token} starts twice at {site}"
        here = self.sites[site]
        (grant,) = [grant for grant in here.guest.grants(here.now) if grant.token == token]
        assert here.now.wall_s >= grant.claim.start_s, f"{token} starts too early at {site}"
        if not started:
            wanted = self.sites[token.home].jobs[token.job].state.handshake.candidate.sites
            for name in wanted:
                there = [j for j in self.sites[name].batch if j.token == token and j.at_barrier]
                assert there, f"{token} starts, yet its block at {name} has not arrived"
        started.add(site)

    def running(self, home: SiteId, name: str) -> set[Token]:
        return {
            job.token
            for site in self.sites.values()
            for job in site.batch
            if job.body and not job.over and (job.token.home, job.token.job) == (home, name)
        }

    def requeued(self, token: Token, command: Requeue) -> None:
        key = token.home, token.job
        self.gone[key] = max(self.gone.get(key, 0), command.next_attempt - 1)
        self.results.setdefault(key, []).append(command)
        assert not self.running(*key), f"{token} is queued again while it runs"

    def finished(self, token: Token, command: Finished) -> None:
        self.results.setdefault((token.home, token.job), []).append(command)
        if all(status is not None for _, status in command.exits):
            assert not self.running(token.home, token.job)

    def dropped(self, token: Token) -> None:
        self.results.setdefault((token.home, token.job), []).append(Dropped())
        assert not self.running(token.home, token.job)

    def check(self) -> None:
        for site in self.sites.values():
            uses: dict[str, list[tuple[float, float, Token]]] = {}
            for grant in site.guest.grants(site.now):
                self._check_lease(site, grant)
                for piece in grant.pieces:
                    use = (grant.claim.start_s, grant.claim.end_s, grant.token)
                    uses.setdefault(piece.node, []).append(use)
            now_s = site.now.wall_s
            for job in site.batch:
                if not job.over:
                    for node in job.nodes:
                        uses.setdefault(node, []).append((now_s, now_s + 0.001, job.token))
            for node, spans in uses.items():
                for one, other in combinations(spans, 2):
                    apart = one[1] <= other[0] or other[1] <= one[0] or one[2] == other[2]
                    assert apart, f"two owners of {node} at {site.name}: {one} {other}"
        for home, name in self.wishes:
            assert len(self.running(home, name)) <= 1, f"{name} runs twice"

    @staticmethod
    def _check_lease(site: Site, grant: Grant) -> None:
        """No hold outlives its lease, and no claim whose body does not run the silence of its home."""
        if not grant.committed:
            left_s = grant.lease_end_s - site.now.monotonic_s
            assert 0 < left_s <= site.guest._holder._limits.lease_s + 1e-6
            return
        block = site.guest.block(grant.token)
        if block is None or block.state in (
            BlockState.SUBMITTING,
            BlockState.SUBMITTED,
            BlockState.READY,
        ):
            silent_s = site.now.monotonic_s - site.heard_s[grant.token]
            assert silent_s <= site.guest._limits.keep_s + 0.02, f"{grant.token} is kept for nobody"

    def settle(self) -> None:
        """Everything is well again: what is left must come to an end and leave nothing behind."""
        self.cut.clear()
        for site in self.sites.values():
            site.die_after = None
        for _ in range(4000):
            self.deliver_all()
            for site in self.sites.values():
                site.take_due()
                while site.staging:
                    site.stage(0, works=True)
                for job in [job for job in site.batch if not job.over]:
                    if job.doomed or job.body:
                        site.end(job)
                    else:
                        site.arrive(job)
            self.check()
            if self._quiet():
                return
            self.wait(1.0)
        raise AssertionError(f"not quiet: {[s.guest.state for s in self.sites.values()]}")

    def _quiet(self) -> bool:
        if self.letters:
            return False
        for site in self.sites.values():
            if (
                site.pending
                or site.staging
                or any(not job.over for job in site.batch)
                or site.guest.grants(site.now)
            ):
                return False
            if any(block.state.live for block in site.guest.state.blocks):
                return False
            if not all(job.finished for job in site.jobs.values()):
                return False
        return True
