"""The confirm handshake in a world of values: every state can be copied, hashed and continued from.

Now is always 0: when time goes on, everything that bears a time is moved back instead, so that two worlds
which differ only in the date are one. Claims start `AHEAD_S` from now at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from torque_sched.grid.handshake.coordinator import (
    Ask,
    Candidate,
    Coordinator,
    CoordinatorCommand,
    CoordinatorEvent,
    CoordinatorLimits,
    CoordinatorState,
    GaveUp,
    Placed,
)
from torque_sched.grid.handshake.holder import (
    FreeCapacity,
    Holder,
    HolderCommand,
    HolderEvent,
    HolderLimits,
    HolderState,
    Persist,
    Send,
)
from torque_sched.grid.handshake.messages import (
    Claim,
    Confirm,
    From,
    Instant,
    Message,
    Piece,
    Query,
    Ready,
    SiteId,
    Tick,
    Token,
)

S = TypeVar("S")
C = TypeVar("C")
BOOT = "boot-1"
HOLDER_LIMITS = HolderLimits(lease_s=4.0)
COORDINATOR_LIMITS = CoordinatorLimits(resend_s=1.0, ask_s=2.0, commit_s=2.0, margin_s=1.0, lease_cap_s=5.0)
AHEAD_S = 100.0
LENGTH_S = 1000.0
"""Longer than any story here, so no claim is over by itself."""
STALE_S = -2.0
"""Messages sent then or earlier are alike: too old to be believed."""
NOW = Instant(0.0, 0.0)


class OneNode:
    """A site with one node of one slot and no work of its own."""

    def spare(self, node: str, start_s: float, end_s: float) -> FreeCapacity:
        return FreeCapacity(1 if node == "n1" else 0)

    def nodes(self, claim: Claim) -> Iterable[str]:
        return ("n1",)


def candidate(*sites: str) -> Candidate:
    asks = tuple(Ask(SiteId(site), (Piece("n1", 1),)) for site in sorted(sites))
    return Candidate(asks, AHEAD_S, LENGTH_S)


@dataclass(frozen=True, slots=True)
class Faults:
    """How many of each kind may still happen."""

    losses: int
    copies: int
    crashes: int
    delays: int
    """Times that the clock goes on while messages are on their way."""


@dataclass(frozen=True, slots=True)
class HolderSide:
    now: HolderState
    saved: HolderState


@dataclass(frozen=True, slots=True)
class CoordinatorSide:
    now: CoordinatorState
    saved: CoordinatorState
    placed: Token | None = None
    gave_up: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """One state of two coordinators, their sites and the messages on their way."""

    holders: tuple[HolderSide, ...]
    coordinators: tuple[CoordinatorSide, ...]
    on_way: frozenset[tuple[SiteId, Message]]
    """To whom, what; the same message twice is one that may be delivered twice (a copy)."""
    faults: Faults


def _moved_holder(state: HolderState, by_s: float) -> HolderState:
    grants = tuple(replace(g, lease_end_s=0.0 if g.committed else g.lease_end_s - by_s) for g in state.grants)
    return replace(state, grants=grants)


def _durable(state: CoordinatorState) -> CoordinatorState:
    """Without what a restart does not look at."""
    return replace(state, asked_s=0.0, resend_s=0.0, lease_end_s=None)


def _moved_coordinator(state: CoordinatorState, by_s: float) -> CoordinatorState:
    waits = bool(state.drains) or not state.phase.decided
    drains = tuple(
        # Until the end of the claim: that is ever as far ahead as the claim.
        d if d.until_s > AHEAD_S else replace(d, until_s=d.until_s - by_s)
        for d in state.drains
    )
    return replace(
        state,
        asked_s=0.0 if state.phase.decided else state.asked_s - by_s,
        resend_s=state.resend_s - by_s if waits else 0.0,
        lease_end_s=None if state.lease_end_s is None else state.lease_end_s - by_s,
        drains=drains,
    )


def _aged(message: Message, by_s: float) -> Message:
    """Only these two are judged by when they were sent."""
    sent_s = max(message.sent_s - by_s, STALE_S) if isinstance(message, Confirm | Ready) else 0.0
    return replace(message, sent_s=sent_s)


def moved(world: World, by_s: float) -> World:
    """The same world with now that much later."""
    return replace(
        world,
        holders=tuple(
            HolderSide(_moved_holder(side.now, by_s), _moved_holder(side.saved, by_s))
            for side in world.holders
        ),
        coordinators=tuple(
            replace(side, now=_moved_coordinator(side.now, by_s), saved=_moved_coordinator(side.saved, by_s))
            for side in world.coordinators
        ),
        on_way=frozenset((to, _aged(message, by_s)) for to, message in world.on_way),
    )


def _order(letter: tuple[SiteId, Message]) -> tuple[SiteId, str, Token, SiteId, float]:
    """The same in every run."""
    to, message = letter
    return to, type(message).__name__, message.token, message.site, message.sent_s


class Rules:
    """What may happen next in a world, with the real state machines."""

    def __init__(self, sites: tuple[str, ...], jobs: dict[str, tuple[Candidate, ...]]) -> None:
        self.sites = tuple(SiteId(site) for site in sites)
        self.homes = tuple(SiteId(home) for home in jobs)
        self._jobs = jobs

    def first(self, faults: Faults) -> World:
        empty = HolderState(BOOT)
        sides, on_way = [], []
        for home in self.homes:
            coordinator, commands = Coordinator.begin(home, "1", self._jobs[home], 1, NOW, COORDINATOR_LIMITS)
            sides.append(CoordinatorSide(coordinator.state, _durable(coordinator.state)))
            on_way += [(c.to, c.message) for c in commands if isinstance(c, Send)]
        holders = tuple(HolderSide(empty, empty) for _ in self.sites)
        return World(holders, tuple(sides), frozenset(on_way), faults)

    def holder(self, world: World, index: int) -> Holder:
        return Holder(self.sites[index], OneNode(), world.holders[index].now, HOLDER_LIMITS)

    def coordinator(self, world: World, index: int) -> Coordinator:
        return Coordinator(world.coordinators[index].now, COORDINATOR_LIMITS)

    # One event at one machine, whole or cut off by a crash after some of its commands.

    def holder_step(self, world: World, index: int, event: HolderEvent | None) -> Iterator[World]:
        """Every outcome of an event; None is a crash between events."""
        side, holder = world.holders[index], self.holder(world, index)
        commands = None if event is None else holder.apply(event, NOW)

        def risen(saved: HolderState) -> tuple[HolderState, tuple[HolderCommand, ...]]:
            after = Holder(self.sites[index], OneNode(), saved, HOLDER_LIMITS)
            more = after.restart(BOOT, NOW)
            return after.state, more

        def put(world: World, now: HolderState, saved: HolderState, _: Sequence[HolderCommand]) -> World:
            sides = (*world.holders[:index], HolderSide(now, saved), *world.holders[index + 1 :])
            return replace(world, holders=sides)

        return self._outcomes(world, side.saved, holder.state, commands, risen, put)

    def coordinator_step(self, world: World, index: int, event: CoordinatorEvent | None) -> Iterator[World]:
        """Every outcome of an event; None is a crash between events."""
        side, coordinator = world.coordinators[index], self.coordinator(world, index)
        commands = None if event is None else coordinator.apply(event, NOW)

        def risen(
            saved: CoordinatorState,
        ) -> tuple[CoordinatorState, tuple[CoordinatorCommand, ...]]:
            after, more = Coordinator.restore(saved, NOW, COORDINATOR_LIMITS)
            return after.state, more

        def put(
            world: World,
            now: CoordinatorState,
            saved: CoordinatorState,
            done: Sequence[CoordinatorCommand],
        ) -> World:
            placed = next((c.token for c in done if isinstance(c, Placed)), side.placed)
            gave_up = side.gave_up or any(isinstance(c, GaveUp) for c in done)
            one = CoordinatorSide(now, _durable(saved), placed, gave_up)
            sides = (*world.coordinators[:index], one, *world.coordinators[index + 1 :])
            return replace(world, coordinators=sides)

        return self._outcomes(world, side.saved, coordinator.state, commands, risen, put)

    def _outcomes(
        self,
        world: World,
        saved: S,
        state: S,
        commands: tuple[C, ...] | None,
        risen: Callable[[S], tuple[S, tuple[C, ...]]],
        put: Callable[[World, S, S, Sequence[C]], World],
    ) -> Iterator[World]:
        """All goes well, or it crashes after some of the commands and rises again from what is saved.

        Args:
            world: before the event.
            saved: what the machine had saved by then.
            state: what it is after the event.
            commands: of the event; None: it crashes without one.
            risen: the machine after a restart from a saved state, and its first commands.
            put: the world with this machine, what it has saved, and what it did.
        """
        if commands is not None:
            after = put(world, state, state if Persist() in commands else saved, commands)
            yield self._sent(after, commands)
        if not world.faults.crashes:
            return
        less = replace(world, faults=replace(world.faults, crashes=world.faults.crashes - 1))
        for cut in range(1 if commands is None else len(commands)):
            done = () if commands is None else commands[:cut]
            kept = state if Persist() in done else saved
            now, more = risen(kept)
            after = put(less, now, now if Persist() in more else kept, (*done, *more))
            yield self._sent(after, (*done, *more))

    def _sent(self, world: World, commands: Sequence[object]) -> World:
        sends = [(c.to, c.message) for c in commands if isinstance(c, Send)]
        return replace(world, on_way=world.on_way.union(sends)) if sends else world

    # What may happen next.

    def deliver(self, world: World, letter: tuple[SiteId, Message], *, keep: bool) -> Iterator[World]:
        to, message = letter
        if keep:
            copies = world.faults.copies - 1
            world = replace(world, faults=replace(world.faults, copies=copies))
        else:
            world = replace(world, on_way=world.on_way - {letter})
        if isinstance(message, Query):
            event = From(message.token.home, message)
            yield from self.holder_step(world, self.sites.index(to), event)
        else:
            yield from self.coordinator_step(world, self.homes.index(to), From(message.site, message))

    def lose(self, world: World, letter: tuple[SiteId, Message]) -> Iterator[World]:
        faults = replace(world.faults, losses=world.faults.losses - 1)
        yield replace(world, faults=faults, on_way=world.on_way - {letter})

    def wake_s(self, world: World) -> float | None:
        wakes = [self.holder(world, i).wake_s(NOW) for i in range(len(self.sites))]
        wakes += [self.coordinator(world, i).wake_s(NOW) for i in range(len(self.homes))]
        # A committed claim is over only after the story.
        due = [wake for wake in wakes if wake is not None and wake < LENGTH_S]
        return max(min(due), 0.0) if due else None

    def wait(self, world: World, until_s: float) -> Iterator[World]:
        """Time goes on, and everything that is due looks at the clock."""
        world = moved(world, until_s)
        calm = replace(world.faults, crashes=0)
        kept = world.faults
        world = replace(world, faults=calm)
        for index in range(len(self.sites)):
            wake = self.holder(world, index).wake_s(NOW)
            if wake is not None and wake <= 0:
                (world,) = self.holder_step(world, index, Tick())
        for index in range(len(self.homes)):
            wake = self.coordinator(world, index).wake_s(NOW)
            if wake is not None and wake <= 0:
                (world,) = self.coordinator_step(world, index, Tick())
        yield replace(world, faults=kept)

    def moves(self, world: World) -> Iterator[Callable[[], Iterable[World]]]:
        """Everything that may happen next; calling one gives its outcomes."""
        faults = world.faults
        for letter in sorted(world.on_way, key=_order):
            yield partial(self.deliver, world, letter, keep=False)
            if faults.copies:
                yield partial(self.deliver, world, letter, keep=True)
            if faults.losses:
                yield partial(self.lose, world, letter)
        if faults.crashes:
            for index in range(len(self.sites)):
                yield partial(self.holder_step, world, index, None)
            for index in range(len(self.homes)):
                yield partial(self.coordinator_step, world, index, None)
        wake = self.wake_s(world)
        if wake is not None and (faults.delays or not world.on_way):
            delays = faults.delays - bool(world.on_way)
            yield partial(self.wait, replace(world, faults=replace(faults, delays=delays)), wake)

    def after(self, world: World) -> Iterator[World]:
        """Every world that may come next."""
        for move in self.moves(world):
            yield from move()

    # What must hold.

    def check(self, world: World) -> None:
        """In every world: one owner at most, no hold beyond its lease, a placed job has all its sites."""
        committed: dict[Token, set[SiteId]] = {}
        for index, site in enumerate(self.sites):
            live = self.holder(world, index).grants(NOW)
            assert len(live) <= 1, f"two owners of {site} n1: {live}"
            for grant in live:
                if grant.committed:
                    committed.setdefault(grant.token, set()).add(site)
                else:
                    assert 0 < grant.lease_end_s <= HOLDER_LIMITS.lease_s
        for side in world.coordinators:
            if side.placed is not None and not side.gave_up:
                assert committed.get(side.placed, set()) >= set(side.now.candidate.sites)

    def check_last(self, world: World) -> None:
        """When nothing can happen any more: everybody has decided, and nothing is left behind."""
        kept = {grant.token for side in world.holders for grant in side.now.grants}
        placed = {side.placed for side in world.coordinators if side.placed and not side.gave_up}
        assert kept == placed
        for side in world.coordinators:
            assert side.now.phase.decided
            assert not side.now.drains
