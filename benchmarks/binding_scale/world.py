"""A simulated cluster around a master: heartbeats, mishaps, and the time that passes, under SimPy.

The master is a bare binding policy, or the whole core of the ApplicationMaster.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import thread_time_ns
from typing import Any

from yarn_accel.core.application import (
    Application,
    ContainerRole,
    NodeSelector,
    RoleResource,
    RoleTable,
    Settings,
)
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.core.binding import ANodeAdded, ANodeLost, BindingEvent, NNodeAdded, NNodeLost, make

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
_GRANT_S, _START_S = 0.2, 0.3
_ROLES = (
    ContainerRole("server", NodeSelector.ACCELERATOR, RoleResource(1024), priority=10, is_server=True),
    ContainerRole("agent", NodeSelector.EVERY, RoleResource(128), priority=11),
)


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


def added(node: Node) -> BindingEvent:
    """The facts about a node that joins, for a policy."""
    return ANodeAdded(node.name, node.rack) if node.is_accelerator else NNodeAdded(node.name, node.rack)


def cluster(n_nodes: int, n_racks: int) -> list[Node]:
    """Every tenth node of a rack has an accelerator."""
    return [
        Node(f"h{number:05}", f"/rack{number % n_racks:03}", number // n_racks % 10 == 0)
        for number in range(n_nodes)
    ]


class PolicyMaster:
    """A binding policy, and who was heard when."""

    def __init__(self, policy: str) -> None:
        self.policy = make(policy)
        self.timed = Timed()
        self._heard_s: dict[Node, float] = {}

    def start(self, _: Sequence[Node]) -> Iterable[Later]:
        """There is nothing to do."""
        return ()

    def hear(self, node: Node, now_s: float) -> Iterable[Later]:
        """Who was not there joins; the others go to the end of the table."""
        began_ns = thread_time_ns()
        was_there = self._heard_s.pop(node, None) is not None
        self._heard_s[node] = now_s
        if not was_there:
            self._apply(added(node))
        self.timed.all_ns += thread_time_ns() - began_ns
        self.timed.n_calls += 1
        return ()

    def tick(self, now_s: float) -> Iterable[Later]:
        """Who was silent for too long is lost; the table is in order of time."""
        began_ns = thread_time_ns()
        while self._heard_s:
            node = next(iter(self._heard_s))
            if now_s - self._heard_s[node] < SILENCE_S:
                break
            del self._heard_s[node]
            self._apply(ANodeLost(node.name) if node.is_accelerator else NNodeLost(node.name))
        self.timed.all_ns += thread_time_ns() - began_ns
        return ()

    def judged(self, node: Node, now_s: float, *, is_usable: bool) -> Iterable[Later]:
        """It goes by what it hears itself."""
        return ()

    def listed(self, usable: Sequence[Node], now_s: float) -> Iterable[Later]:
        """It goes by what it hears itself."""
        return ()

    def _apply(self, event: BindingEvent) -> None:
        began_ns = thread_time_ns()
        moves = self.policy.apply(event)
        self.timed.took(type(event).__name__, thread_time_ns() - began_ns, is_change=True)
        self.timed.n_moves += len(moves)


class ApplicationMaster:
    """The core of the ApplicationMaster with agents on all nodes, and an obliging YARN around it.

    Attributes:
        bound: what is published.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.core = self._made_core()
        self.timed = Timed()
        self.bound: dict[str, str] = {}
        self._attempt = 1
        self._running: dict[tuple[str, str], ev.ContainerRef] = {}
        self._n_containers = 0
        self._wake_s = 0.0

    def _made_core(self) -> Application:
        return Application(Settings(), RoleTable(_ROLES), lambda: make(self._policy))

    def start(self, nodes: Sequence[Node]) -> Iterable[Later]:
        """The RM accepts us and tells of all nodes."""
        yield from self._apply(ev.TimerFired(0.0))
        yield from self._apply(ev.Registered((), 1, 0.0))
        yield from self.listed(nodes, 0.0)

    def restart(self, usable: Sequence[Node], now_s: float) -> None:
        """The next attempt, which finds everything as it is; its orders are not carried out."""
        self.core = self._made_core()
        self._attempt += 1
        self._wake_s = float("inf")
        for event in (
            ev.TimerFired(now_s),
            ev.Registered(tuple(self._running.values()), self._attempt, now_s),
        ):
            list(self._apply(event))
        list(self.listed(usable, now_s))
        for step_s in (1.0, 2.0):
            for node in usable:
                list(self.hear(node, now_s + step_s))
        self._wake_s = 0.0
        while self._wake_s <= now_s + 2.0:
            list(self.tick(now_s + 2.0))

    def hear(self, node: Node, now_s: float) -> Iterable[Later]:
        """The agent of the node reports for itself and for the server."""
        agent = self._running.get((node.name, "agent"))
        if agent is None:
            return
        yield from self._apply(ev.StatusReported(node.name, "agent", now_s, agent.id))
        server = self._running.get((node.name, "server"))
        if server is not None:
            yield from self._apply(
                ev.StatusReported(node.name, "server", now_s, server.id, endpoint=node.name)
            )

    def tick(self, now_s: float) -> Iterable[Later]:
        """Wakes the core when it asked for it, and again if that is at once."""
        while self._wake_s <= now_s:
            self._wake_s = float("inf")
            yield from self._apply(ev.TimerFired(now_s))

    def judged(self, node: Node, now_s: float, *, is_usable: bool) -> Iterable[Later]:
        """The RM tells, with the end of the containers there."""
        ended = [self._running.pop((node.name, role.name), None) for role in _ROLES] if not is_usable else []
        yield from self._apply(ev.NodesReported((self._view(node, is_usable),), now_s))
        for container in ended:
            if container is not None:
                yield from self._apply(ev.ContainerCompleted(container.id, -100, "its node was lost", now_s))

    def listed(self, usable: Sequence[Node], now_s: float) -> Iterable[Later]:
        """All usable nodes; with their attributes, as the RM has them."""
        views = tuple(self._view(node, is_usable=True) for node in usable)
        yield from self._apply(ev.NodesReported(views, now_s, is_complete=True))

    def _view(self, node: Node, is_usable: bool) -> ev.NodeView:
        bound = self.bound.get(node.name)
        size = {"memory-mb": 65536, "vcores": 32}
        return ev.NodeView(
            node.name, 8041, node.rack, is_usable, node.is_accelerator, capability=size, bound=bound
        )

    def _apply(self, event: ev.Event) -> Iterator[Later]:
        began_ns = thread_time_ns()
        orders = self.core.apply(event)
        used_ns = thread_time_ns() - began_ns
        self.timed.all_ns += used_ns
        self.timed.n_calls += 1
        is_all = isinstance(event, ev.NodesReported) and event.is_complete
        kind = "NodesReported, of all" if is_all else type(event).__name__
        is_change = any(type(order) is not cmd.SetTimer for order in orders)
        self.timed.took(kind, used_ns, is_change=is_change)
        for order in orders:
            yield from self._obey(order)

    def _obey(self, order: cmd.Command) -> Iterator[Later]:
        if isinstance(order, cmd.SetTimer):
            self._wake_s = order.at_s
        elif isinstance(order, cmd.PublishBindings):
            self._published(order)
        elif isinstance(order, cmd.RequestContainer):
            self._n_containers += 1
            container = ev.ContainerRef(
                f"c{self._n_containers}", order.node, order.priority, order.request_id
            )
            yield Later(_GRANT_S, lambda now_s: self._apply(ev.ContainersAllocated((container,), now_s)))
        elif isinstance(order, cmd.LaunchContainer):
            yield Later(_START_S, lambda now_s: self._started(order, now_s))
        elif isinstance(order, cmd.StopContainer | cmd.ReleaseContainer):
            yield Later(_GRANT_S, lambda now_s: self._ended(order.container, now_s))
        elif isinstance(order, cmd.QueryContainer):
            yield Later(_GRANT_S, lambda now_s: self._apply(ev.ContainerStarted(order.container.id, now_s)))
        elif isinstance(order, cmd.SetSlots):
            done = order.node, order.n_slots
            yield Later(_GRANT_S, lambda now_s: self._apply(ev.SlotsSet(*done, now_s)))

    def _published(self, order: cmd.PublishBindings) -> None:
        """Moves are bindings that differ from what was published before."""
        old = self.bound
        if order.is_full:
            self.bound = {}
        for node, server in order.bound:
            self.timed.n_moves += old.get(node) != server
            if server is None:
                self.bound.pop(node, None)
            else:
                self.bound[node] = server

    def _started(self, order: cmd.LaunchContainer, now_s: float) -> Iterator[Later]:
        self._running[order.container.node, order.role] = order.container
        yield from self._apply(ev.ContainerStarted(order.container.id, now_s))

    def _ended(self, container: ev.ContainerRef, now_s: float) -> Iterator[Later]:
        for role in _ROLES:
            known = self._running.get((container.node, role.name))
            if known is not None and known.id == container.id:
                del self._running[container.node, role.name]
        yield from self._apply(
            ev.ContainerCompleted(container.id, -105, "stopped by the ApplicationMaster", now_s)
        )


Master = PolicyMaster | ApplicationMaster
"""Who is driven; methods take simulated seconds and return what the world is to do."""


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
