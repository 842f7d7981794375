"""The grid with messages that take time, so that what a site hears of the others may be out of date.

A site asks the others what they can do for a job (discover), they answer with their own offer and, where jobs
are split over sites, their tables; the home site chooses, and has it confirmed and committed by the handshake
of `grid.handshake`, both sides of it. Somebody else may have been quicker: then a confirm is refused and the
next offer is tried, after the last one everybody is asked again. A site works on one job at a time, in the
order of its queue. A split or foreign job starts no earlier than its handshake can be over.

No message is lost here (the handshake's own tests do that), so no timer is needed.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import simpy

from torque_sched.errors import ConfigError
from torque_sched.grid.handshake.coordinator import (
    Ask,
    Candidate,
    Coordinator,
    CoordinatorCommand,
    GaveUp,
    Placed,
)
from torque_sched.grid.handshake.holder import (
    Ended,
    FreeCapacity,
    Freed,
    Grant,
    Granted,
    Holder,
    HolderCommand,
    HolderLimits,
    HolderState,
    Send,
    Taken,
)
from torque_sched.grid.handshake.messages import (
    Claim,
    From,
    Instant,
    NotReady,
    Piece,
    Query,
    Reply,
    SiteId,
    Token,
)
from torque_sched.grid.search import Block, Mode, Place, Plan, Request, Way, choose, offer
from torque_sched.grid.simulate.simulator import GridRun, GridSettings, Ran, cap_of, places_of
from torque_sched.model.availability import Availability
from torque_sched.simulate.workload import TraceJob

_MAX_DELAY_S = 0.5
"""The handshake takes messages later than a second for a wrong clock."""
_LIMITS = HolderLimits(ahead_s=math.inf, length_s=math.inf, per_home=1_000_000, forget_s=60.0)
_NO_PLAN = Plan(math.inf, math.inf, math.inf, ())


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How sites reach each other.

    Attributes:
        delay_s: how long one message takes; more than 0, at most 0.5.
        fan_out: how many other sites are asked for a job, drawn by chance; None: all. After the last
            round all are asked.
        rounds: how often a job is offered anew before its home takes it, where it can.
        seed: of the draws.
    """

    delay_s: float = 0.05
    fan_out: int | None = None
    rounds: int = 3
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.delay_s <= _MAX_DELAY_S:
            raise ConfigError(f"a message delay of {self.delay_s} s", cure=f"give 0 < s <= {_MAX_DELAY_S}")
        if self.fan_out is not None and self.fan_out < 1:
            raise ConfigError(f"a fan-out of {self.fan_out}", cure="ask at least one other site")


def simulate_messages(
    settings: GridSettings,
    streams: Sequence[Sequence[TraceJob]],
    link: LinkSettings,
    clock: Callable[[], float] | None = None,
) -> GridRun:
    """Run the jobs of all sites to the end, with messages.

    Args:
        settings: sites, mode and what splits cost.
        streams: for each site its jobs in order of submission.
        link: how sites reach each other.
        clock: measures what each site computes; None: not measured.
    """
    if len(streams) != len(settings.layout):
        raise ConfigError(
            f"{len(streams)} streams of jobs for {len(settings.layout)} sites", cure="give one to each site"
        )
    first_s = min((jobs[0].submit_s for jobs in streams if jobs), default=0.0)
    net = _Net(settings, link, simpy.Environment(initial_time=first_s), clock or (lambda: 0.0))
    net.sites = [_Site(net, index, place) for index, place in enumerate(places_of(settings.layout, first_s))]
    for site, jobs in zip(net.sites, streams, strict=True):
        site.expect(jobs)
    net.environment.run()
    for site in net.sites:
        site.check_empty()
    return net.run


@dataclass
class _Net:
    """What carries messages; it decides nothing."""

    settings: GridSettings
    link: LinkSettings
    environment: simpy.Environment
    clock: Callable[[], float]
    run: GridRun = field(default_factory=GridRun)
    sites: list[_Site] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return float(self.environment.now)

    def can_hold(self, job: TraceJob) -> bool:
        """Whether a job that its home cannot hold can run somewhere else."""
        sizes = [sum(clusters) for clusters in self.settings.layout]
        if self.settings.mode is Mode.COALLOCATE:
            return sum(sizes) >= job.procs
        return self.settings.mode is Mode.SEARCH and max(sizes) >= job.procs

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        event = self.environment.timeout(delay_s)
        event.callbacks.append(lambda _: action())

    def carry(self, kind: str, from_index: int, to_index: int, action: Callable[[], None]) -> None:
        """Count a message and have it act where it arrives; what stays at home takes no time."""
        if from_index == to_index:
            self.after(0.0, action)
        else:
            self.run.messages[kind] += 1
            self.after(self.link.delay_s, action)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a site knows of one job: its own offer and, where wanted, its tables at that time."""

    site: int
    plan: Plan | None
    tables: tuple[Availability, ...]


@dataclass
class _Open:
    """The job a site is working on."""

    job: TraceJob
    round: int = 0
    attempt: int = 1
    awaited: int = 0
    ready_s: float = 0.0
    """When the handshake can be over: no earlier start elsewhere."""
    answers: list[_Answer] = field(default_factory=list)
    plans: list[tuple[Plan, Way]] = field(default_factory=list)
    """What the candidates of the coordinator stand for."""


class _TableInventory:
    """What the site's own work leaves free: its tables, without what the holder holds."""

    def __init__(self, tables: Sequence[Availability], held: dict[Token, Grant]) -> None:
        self._tables = tables
        self._held = held

    def spare(self, node: str, start_s: float, end_s: float) -> FreeCapacity:
        table = self._tables[int(node)]
        mine = [
            (piece.slots, grant.claim)
            for grant in self._held.values()
            for piece in grant.pieces
            if piece.node == node
        ]
        for slots, claim in mine:
            table.give_back(slots, claim.start_s, claim.end_s)
        least = table.least(start_s, end_s)
        for slots, claim in mine:
            table.take(slots, claim.start_s, claim.end_s)
        return FreeCapacity(least)

    def nodes(self, claim: Claim) -> Iterable[str]:
        return ()


class _Site:
    """One site: its queue, its tables, its side of every handshake."""

    def __init__(self, net: _Net, index: int, place: Place) -> None:
        self.name = _site_id(index)
        self._net = net
        self._index = index
        self._place = place
        self._cap = cap_of(net.settings, index)
        self._tables = tuple(table for table in place.tables if isinstance(table, Availability))
        self._held: dict[Token, Grant] = {}
        self._holder = Holder(self.name, _TableInventory(self._tables, self._held), HolderState("1"), _LIMITS)
        self._queue: deque[TraceJob] = deque()
        self._open: _Open | None = None
        self._coordinators: dict[str, Coordinator] = {}
        self._random = random.Random(f"{net.link.seed}/{index}")

    # The queue.

    def expect(self, jobs: Sequence[TraceJob], place: int = 0) -> None:
        """Have the next job of the stream come at its time."""
        if place < len(jobs):
            delay_s = max(0.0, jobs[place].submit_s - self._net.now_s)
            self._net.after(delay_s, lambda: self._submitted(jobs, place))

    def _submitted(self, jobs: Sequence[TraceJob], place: int) -> None:
        self.expect(jobs, place + 1)
        self._queue.append(jobs[place])
        if self._open is None:
            self._next()

    def _next(self) -> None:
        while self._queue and self._open is None:
            self._open = _Open(self._queue.popleft())
            self._discover(self._open)

    # Discover and choose.

    def _now_s(self, job: TraceJob) -> float:
        """The clock, which sums of delays may have put a rounding error before the job's submission."""
        return max(self._net.now_s, job.submit_s)

    def _request(self, job: TraceJob, not_before_s: float) -> Request:
        return Request(job.procs, job.run_s, not_before_s, self._cap(job.procs))

    def _own_offer(self, request: Request) -> Plan | None:
        for table in self._tables:
            table.advance(self._net.now_s)
        return offer(self._place, request, self._net.settings.cost)

    def _discover(self, opened: _Open) -> None:
        began_s = self._net.clock()
        now_s = self._now_s(opened.job)
        mine = self._own_offer(self._request(opened.job, now_s))
        self._net.run.decision_s.append(self._net.clock() - began_s)
        is_alone = self._net.settings.mode is Mode.HOME
        if mine is not None and len(mine.blocks) == 1 and mine.start_s <= now_s:
            self._run_here(opened, mine)
            return
        others = [] if is_alone else self._others(opened)
        if not others:
            self._run_here(opened, mine)
            return
        opened.answers = []
        opened.awaited = len(others)
        opened.ready_s = now_s + self._lead_s()
        request = self._request(opened.job, opened.ready_s)
        for other in others:
            self._ask(opened, other, request)

    def _ask(self, opened: _Open, other: _Site, request: Request) -> None:
        self._net.carry("discover", self._index, other._index, lambda: other._asked(self, opened, request))

    def _others(self, opened: _Open) -> list[_Site]:
        others = [site for site in self._net.sites if site is not self]
        fan_out = self._net.link.fan_out
        if fan_out is None or fan_out >= len(others) or opened.round > self._net.link.rounds:
            return others
        return self._random.sample(others, fan_out)

    def _lead_s(self) -> float:
        """How long it takes from the question to the last commit."""
        settings = self._net.settings
        n_sites = min(settings.cost.max_blocks, len(self._net.sites)) if self._is_co else 1
        return (2 + 2 * n_sites + 1) * self._net.link.delay_s

    @property
    def _is_co(self) -> bool:
        return self._net.settings.mode is Mode.COALLOCATE

    def _asked(self, home: _Site, opened: _Open, request: Request) -> None:
        began_s = self._net.clock()
        plan = self._own_offer(request)
        tables = tuple(table.copy() for table in self._tables) if self._is_co else ()
        self._net.run.offer_s.append(self._net.clock() - began_s)
        answer = _Answer(self._index, plan, tables)
        self._net.carry("offer", self._index, home._index, lambda: home._answered(opened, answer))

    def _answered(self, opened: _Open, answer: _Answer) -> None:
        opened.answers.append(answer)
        if len(opened.answers) == opened.awaited:
            self._choose(opened)

    def _choose(self, opened: _Open) -> None:
        began_s = self._net.clock()
        now_s = self._now_s(opened.job)
        opened.answers.sort(key=lambda answer: answer.site)
        mine = self._own_offer(self._request(opened.job, now_s))
        offers = [] if mine is None else [mine]
        offers += [answer.plan for answer in opened.answers if answer.plan is not None]
        request = self._request(opened.job, opened.ready_s)
        chosen = choose(
            offers, self._everywhere(opened) if self._is_co else None, request, self._net.settings.cost
        )
        self._net.run.decision_s.append(self._net.clock() - began_s)
        if chosen is None or chosen[0] is mine:
            self._run_here(opened, mine)
            return
        # What is next best if it is refused: the other offers, as long as they beat home.
        home_s = _NO_PLAN.score_s if mine is None else mine.score_s
        rest = sorted(
            (plan for plan in offers if plan is not chosen[0] and plan.score_s < home_s),
            key=lambda p: p.score_s,
        )
        opened.plans = [chosen, *((plan, _single_way(plan, opened)) for plan in rest)]
        self._confirm(opened)

    def _everywhere(self, opened: _Open) -> Place:
        answers = [_Answer(self._index, None, self._tables), *opened.answers]
        answers.sort(key=lambda answer: answer.site)
        return Place(
            [(answer.site, cluster) for answer in answers for cluster in range(len(answer.tables))],
            [table for answer in answers for table in answer.tables],
        )

    def _run_here(self, opened: _Open, mine: Plan | None) -> None:
        """Nobody else is involved, or nobody can hold it."""
        if mine is None:
            if self._net.can_hold(opened.job):
                self._again(opened)
                return
            self._net.run.too_wide += 1
            self._done()
            return
        for block in mine.blocks:
            self._tables[block.cluster].take(block.procs, mine.start_s, mine.end_s)
        way = Way.SINGLE_NOW if mine.start_s <= self._now_s(opened.job) else Way.SINGLE_QUEUED
        self._net.run.jobs.append(Ran(self._index, opened.job, mine, way))
        self._done()

    def _again(self, opened: _Open) -> None:
        opened.round += 1
        self._net.run.rounds += 1
        self._discover(opened)

    def _done(self) -> None:
        self._open = None
        self._net.after(0.0, self._resume)

    def _resume(self) -> None:
        if self._open is None:
            self._next()

    # The handshake, both sides.

    def _confirm(self, opened: _Open) -> None:
        candidates = tuple(_candidate(plan) for plan, _ in opened.plans)
        job = str(opened.job.number)
        coordinator, commands = Coordinator.begin(self.name, job, candidates, opened.attempt, self._instant())
        self._coordinators[job] = coordinator
        self._perform(job, commands)

    def _instant(self) -> Instant:
        return Instant(self._net.now_s, self._net.now_s)

    def _perform(self, job: str, commands: Iterable[CoordinatorCommand]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._send(command)
            elif isinstance(command, Placed):
                self._placed(command)
            elif isinstance(command, GaveUp):
                self._gave_up(command)
        state = self._coordinators[job].state
        if state.phase.decided and not state.drains:
            del self._coordinators[job]

    def _send(self, command: Send) -> None:
        to = self._net.sites[_site_index(command.to)]
        event = From(self.name, command.message)
        kind = type(command.message).__name__.lower()
        self._net.carry(kind, self._index, to._index, lambda: to._received(event))

    def _received(self, event: From) -> None:
        message = event.message
        if isinstance(message, Query):
            for table in self._tables:
                table.advance(self._net.now_s)
            self._keep(self._holder.apply(event, self._instant()))
        elif isinstance(message, Reply) and message.token.job in self._coordinators:
            if isinstance(message, NotReady):
                self._net.run.refusals[message.reason.value] += 1
            job = message.token.job
            self._perform(job, self._coordinators[job].apply(event, self._instant()))

    def _keep(self, commands: Iterable[HolderCommand]) -> None:
        """Enter into the tables what the holder grants: held, taken for good, or given up."""
        for command in commands:
            if isinstance(command, Granted):
                self._held[command.grant.token] = command.grant
                self._book(command.grant, self._take)
            elif isinstance(command, Taken):
                # From here on it is in the tables as any other job, and no more the holder's.
                del self._held[command.grant.token]
                self._holder.apply(Ended(command.grant.token), self._instant())
            elif isinstance(command, Freed):
                del self._held[command.grant.token]
                self._book(command.grant, self._give_back)
            elif isinstance(command, Send):
                self._send(command)

    def _book(self, grant: Grant, change: Callable[[int, int, Claim], None]) -> None:
        for piece in grant.pieces:
            change(int(piece.node), piece.slots, grant.claim)

    def _take(self, cluster: int, procs: int, claim: Claim) -> None:
        self._tables[cluster].take(procs, claim.start_s, claim.end_s)

    def _give_back(self, cluster: int, procs: int, claim: Claim) -> None:
        self._tables[cluster].give_back(procs, claim.start_s, claim.end_s)

    def _placed(self, command: Placed) -> None:
        opened = self._open
        if opened is None or command.token.job != str(opened.job.number):
            return
        for plan, way in opened.plans:
            if _candidate(plan) == command.candidate:
                self._net.run.jobs.append(Ran(self._index, opened.job, plan, way))
                break
        self._done()

    def _gave_up(self, command: GaveUp) -> None:
        opened = self._open
        if opened is None:
            return
        opened.attempt = command.next_attempt
        if opened.round < self._net.link.rounds:
            self._again(opened)
            return
        self._run_here(opened, self._own_offer(self._request(opened.job, self._now_s(opened.job))))

    def check_empty(self) -> None:
        """Raise unless no hold and no open job is left."""
        if self._held or self._open is not None or self._queue or self._coordinators:
            raise AssertionError(f"{self.name} is left with holds or open jobs")


def _single_way(plan: Plan, opened: _Open) -> Way:
    return Way.SINGLE_NOW if plan.start_s <= opened.ready_s else Way.SINGLE_QUEUED


def _site_id(index: int) -> SiteId:
    return SiteId(f"site{index:05d}")


def _site_index(site: SiteId) -> int:
    return int(site[4:])


def _candidate(plan: Plan) -> Candidate:
    """The plan in the words of the handshake; a cluster's number is the name of its node."""
    asks = tuple(
        Ask(_site_id(site), tuple(_piece(block) for block in plan.blocks if block.site == site))
        for site in plan.sites
    )
    return Candidate(asks, plan.start_s, plan.length_s)


def _piece(block: Block) -> Piece:
    return Piece(str(block.cluster), block.procs)
