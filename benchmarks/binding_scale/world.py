"""A simulated cluster around a master: heartbeats, mishaps, and the time that passes, under SimPy."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Heartbeats come in so many groups per second, so that SimPy has fewer timeouts to handle.
_N_PHASES = 100
_HEARTBEAT_S = 1.0
SILENCE_S = 3.0
_TICK_S = 0.1
_FLAPS_PER_NODE_S = 0.01 / 60
_DOWN_S = (5.0, 30.0)
#: Long enough for everybody to be back.
CALM_S = 45.0
#: The RM tells of all nodes so often.
REPORT_S = 10.0
#: The first heartbeats bring everybody in, and the application settles; measured is what comes after.
WARM_UP_S = 20.0


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the simulated cluster."""

    name: str
    rack: str
    is_accelerator: bool


@dataclass(frozen=True, slots=True)
class Later:
    """Something the world around the master does after a while: `act` tells the master."""

    delay_s: float
    act: Callable[[float], Iterable[Later]]


Process = Generator[Any, None, None]
"""A process of SimPy."""


def _times() -> array[int]:
    return array("Q")


@dataclass(slots=True)
class Timed:
    """What the master used, and did; CPU time of its thread.

    Attributes:
        all_ns: of everything, heartbeats without consequence included.
        event_ns: of every event: for a policy its own events, for the application heartbeats, too.
        change_ns: of those events that led to orders; for a policy the same as `event_ns`.
        kind_ns: of every event, by its kind.
    """

    all_ns: int = 0
    n_calls: int = 0
    event_ns: array[int] = field(default_factory=_times)
    change_ns: array[int] = field(default_factory=_times)
    kind_ns: dict[str, array[int]] = field(default_factory=dict)
    n_moves: int = 0

    def took(self, kind: str, used_ns: int, *, is_change: bool) -> None:
        """Take note of an event."""
        self.event_ns.append(used_ns)
        if is_change:
            self.change_ns.append(used_ns)
        if kind not in self.kind_ns:
            self.kind_ns[kind] = _times()
        self.kind_ns[kind].append(used_ns)


class Master(Protocol):
    """Who is driven; its methods take simulated seconds and return what the world is to do."""

    timed: Timed

    def start(self, nodes: Sequence[Node]) -> Iterable[Later]:
        """Time begins."""
        ...

    def hear(self, node: Node, now_s: float) -> Iterable[Later]:
        """A heartbeat."""
        ...

    def tick(self, now_s: float) -> Iterable[Later]:
        """A tenth of a second has passed."""
        ...

    def judged(self, node: Node, now_s: float, *, is_usable: bool) -> Iterable[Later]:
        """The RM takes a node for lost, with all that ran there, or counts with it again."""
        ...

    def listed(self, usable: Sequence[Node], now_s: float) -> Iterable[Later]:
        """The RM tells of all nodes."""
        ...


def cluster(n_nodes: int, n_racks: int) -> list[Node]:
    """Every tenth node of a rack has an accelerator."""
    return [
        Node(f"h{number:05}", f"/rack{number % n_racks:03}", number // n_racks % 10 == 0)
        for number in range(n_nodes)
    ]


class World:
    """The nodes with their heartbeats and mishaps, and what takes a while, around a master.

    Of the nodes that flap every second one only falls silent, as one whose link is cut; the RM takes the
    others for lost besides, and what ran there is dead when they are back.

    Attributes:
        is_calm: nobody flaps any more.
    """

    def __init__(self, master: Master, nodes: Sequence[Node], seed: int) -> None:
        import simpy

        self.env = simpy.Environment()
        self._master, self._nodes = master, nodes
        self._rng = random.Random(seed)
        self._silent_until_s: dict[Node, float] = {}
        self._lost: set[Node] = set()
        self.is_calm = False
        self._enact(master.start(nodes))
        for phase in range(_N_PHASES):
            self.env.process(self._heartbeats(nodes[phase::_N_PHASES], phase * _HEARTBEAT_S / _N_PHASES))
        self.env.process(self._ticks())
        self.env.process(self._reports())
        self.env.process(self._flaps())

    @property
    def usable(self) -> list[Node]:
        """The nodes that the RM counts with now."""
        return [node for node in self._nodes if node not in self._lost]

    def _enact(self, orders: Iterable[Later]) -> None:
        for later in orders:
            self.env.process(self._see_to(later))

    def _see_to(self, later: Later) -> Process:
        yield self.env.timeout(later.delay_s)
        self._enact(later.act(self.env.now))

    def _heartbeats(self, group: Sequence[Node], phase_s: float) -> Process:
        yield self.env.timeout(phase_s)
        while True:
            for node in group:
                if self._silent_until_s.get(node, 0.0) <= self.env.now:
                    self._enact(self._master.hear(node, self.env.now))
            yield self.env.timeout(_HEARTBEAT_S)

    def _ticks(self) -> Process:
        while True:
            yield self.env.timeout(_TICK_S)
            self._enact(self._master.tick(self.env.now))

    def _reports(self) -> Process:
        while True:
            yield self.env.timeout(REPORT_S)
            self._enact(self._master.listed(self.usable, self.env.now))

    def _flaps(self) -> Process:
        is_lost = False
        while True:
            yield self.env.timeout(self._rng.expovariate(_FLAPS_PER_NODE_S * len(self._nodes)))
            node, down_s = self._rng.choice(self._nodes), self._rng.uniform(*_DOWN_S)
            if self.is_calm:
                continue
            self._silent_until_s[node] = self.env.now + down_s
            is_lost = not is_lost
            if is_lost and node not in self._lost:
                self.env.process(self._lose(node, down_s))

    def _lose(self, node: Node, down_s: float) -> Process:
        self._lost.add(node)
        self._enact(self._master.judged(node, self.env.now, is_usable=False))
        yield self.env.timeout(down_s)
        self._lost.remove(node)
        self._enact(self._master.judged(node, self.env.now, is_usable=True))


def simulate(master: Master, nodes: Sequence[Node], duration_s: float, seed: int) -> Timed:
    """Drive a master for `duration_s` simulated seconds after the warm-up; returns what it used in them."""
    world = World(master, nodes, seed)
    world.env.run(until=WARM_UP_S)
    master.timed = Timed()
    world.env.run(until=WARM_UP_S + duration_s)
    return master.timed
