"""The master at scale: 10,000 nodes in 250 racks under SimPy, with the very objects that run live.

Every node sends a heartbeat a second; 1 % of the nodes per minute fall silent for 5 to 30 s and come back.
What is timed is the master only, in CPU time of its thread: once each binding policy behind the least there
must be around it (who was heard when), once the whole core of the ApplicationMaster. RM and NMs are
simulated: they grant, start and stop whatever is asked, after a delay.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from time import thread_time_ns
from typing import Any, Protocol

from benchmarks.result import Report, Row, measured, not_measured, observed
from yarn_accel.core.application import Application, Resource, Role, Roles, Settings, Where
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.core.binding import (
    POLICIES,
    ANodeAdded,
    ANodeLost,
    BindingEvent,
    NNodeAdded,
    NNodeLost,
    deviation,
    make,
)

__all__ = [
    "SECTIONS",
    "ApplicationMaster",
    "Node",
    "PolicyMaster",
    "World",
    "cluster",
    "draw",
    "run",
    "simulate",
]

SECTIONS = ("policies", "application", "deviation")
#: Heartbeats come in so many groups per second, so that SimPy has fewer timeouts to handle.
_N_PHASES = 100
_HEARTBEAT_S = 1.0
_SILENCE_S = 3.0
_TICK_S = 0.1
_FLAPS_PER_NODE_S = 0.01 / 60
_DOWN_S = (5.0, 30.0)
#: The first heartbeats bring everybody in, and the application settles; measured is what comes after.
_WARM_UP_S = 20.0
_GRANT_S, _START_S = 0.2, 0.3


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


@dataclass(slots=True)
class Timed:
    """What the master used, and did; CPU time of its thread.

    Attributes:
        all_ns: of everything, heartbeats without consequence included.
        event_ns: of every event: for a policy what it is told, for the application heartbeats, too.
        change_ns: of those events that led to orders; for a policy the same as `event_ns`.
    """

    all_ns: int = 0
    n_calls: int = 0
    event_ns: array[int] = field(default_factory=lambda: array("Q"))
    change_ns: array[int] = field(default_factory=lambda: array("Q"))
    n_moves: int = 0


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
            added = ANodeAdded if node.is_accelerator else NNodeAdded
            self._apply(added(node.name, node.rack))
        self.timed.all_ns += thread_time_ns() - began_ns
        self.timed.n_calls += 1
        return ()

    def tick(self, now_s: float) -> Iterable[Later]:
        """Who was silent for too long is lost; the table is in order of time."""
        began_ns = thread_time_ns()
        while self._heard_s:
            node = next(iter(self._heard_s))
            if now_s - self._heard_s[node] < _SILENCE_S:
                break
            del self._heard_s[node]
            self._apply(ANodeLost(node.name) if node.is_accelerator else NNodeLost(node.name))
        self.timed.all_ns += thread_time_ns() - began_ns
        return ()

    def _apply(self, event: BindingEvent) -> None:
        began_ns = thread_time_ns()
        moves = self.policy.apply(event)
        used_ns = thread_time_ns() - began_ns
        self.timed.event_ns.append(used_ns)
        self.timed.change_ns.append(used_ns)
        self.timed.n_moves += len(moves)


class ApplicationMaster:
    """The core of the ApplicationMaster with agents on all nodes, and an obliging YARN around it."""

    def __init__(self, policy: str) -> None:
        roles = (
            Role("acct", Where.ACCELERATOR, Resource(1024), priority=10, is_server=True),
            Role("agent", Where.EVERY, Resource(128), priority=11),
        )
        self.core = Application(Settings(), Roles(roles), lambda: make(policy))
        self.timed = Timed()
        self._running: dict[tuple[str, str], str] = {}
        self._n_containers = 0
        self._wake_s = 0.0

    def start(self, nodes: Sequence[Node]) -> Iterable[Later]:
        """The RM accepts us and tells of all nodes."""
        views = tuple(
            ev.NodeView(one.name, 8041, one.rack, is_accelerator=one.is_accelerator) for one in nodes
        )
        yield from self._apply(ev.Tick(0.0))
        yield from self._apply(ev.Registered((), 1, 0.0))
        yield from self._apply(ev.NodesReported(views, 0.0, is_complete=True))

    def hear(self, node: Node, now_s: float) -> Iterable[Later]:
        """The agent of the node speaks for itself and for the server."""
        agent = self._running.get((node.name, "agent"))
        if agent is None:
            return
        yield from self._apply(ev.Heard(node.name, "agent", now_s, agent))
        server = self._running.get((node.name, "acct"))
        if server is not None:
            yield from self._apply(ev.Heard(node.name, "acct", now_s, server, endpoint=node.name))

    def tick(self, now_s: float) -> Iterable[Later]:
        """Wakes the core when it asked for it."""
        if self._wake_s <= now_s:
            self._wake_s = float("inf")
            yield from self._apply(ev.Tick(now_s))

    def _apply(self, event: ev.Event) -> Iterator[Later]:
        began_ns = thread_time_ns()
        orders = self.core.apply(event)
        used_ns = thread_time_ns() - began_ns
        self.timed.all_ns += used_ns
        self.timed.n_calls += 1
        self.timed.event_ns.append(used_ns)
        if any(type(order) is not cmd.WakeAt for order in orders):
            self.timed.change_ns.append(used_ns)
        for order in orders:
            yield from self._obey(order)

    def _obey(self, order: cmd.Command) -> Iterator[Later]:
        if isinstance(order, cmd.WakeAt):
            self._wake_s = order.at_s
        elif isinstance(order, cmd.Publish):
            self.timed.n_moves += len(order.bound)
        elif isinstance(order, cmd.Ask):
            self._n_containers += 1
            container = ev.Container(f"c{self._n_containers}", order.node, order.priority, order.request_id)
            yield Later(_GRANT_S, lambda now_s: self._apply(ev.Allocated((container,), now_s)))
        elif isinstance(order, cmd.Launch):
            yield Later(_START_S, lambda now_s: self._started(order, now_s))
        elif isinstance(order, cmd.StopContainer | cmd.Release):
            yield Later(_GRANT_S, lambda now_s: self._ended(order.container, now_s))
        elif isinstance(order, cmd.Check):
            yield Later(_GRANT_S, lambda now_s: self._apply(ev.Started(order.container.id, now_s)))
        elif isinstance(order, cmd.SetSlots):
            done = order.node, order.n_slots
            yield Later(_GRANT_S, lambda now_s: self._apply(ev.SlotsSet(*done, now_s)))

    def _started(self, order: cmd.Launch, now_s: float) -> Iterator[Later]:
        self._running[order.container.node, order.role] = order.container.id
        yield from self._apply(ev.Started(order.container.id, now_s))

    def _ended(self, container: ev.Container, now_s: float) -> Iterator[Later]:
        for key, known in list(self._running.items()):
            if known == container.id:
                del self._running[key]
        yield from self._apply(ev.Completed(container.id, -105, "stopped by the ApplicationMaster", now_s))


def cluster(n_nodes: int, n_racks: int) -> list[Node]:
    """Every tenth node of a rack has an accelerator."""
    return [
        Node(f"h{number:05}", f"/rack{number % n_racks:03}", number // n_racks % 10 == 0)
        for number in range(n_nodes)
    ]


class World:
    """The nodes with their heartbeats and mishaps, and what takes a while, around a master."""

    def __init__(self, master: Master, nodes: Sequence[Node], seed: int) -> None:
        import simpy

        self.env = simpy.Environment()
        self._master, self._nodes = master, nodes
        self._rng = random.Random(seed)
        self._silent_until_s: dict[Node, float] = {}
        self._enact(master.start(nodes))
        for phase in range(_N_PHASES):
            self.env.process(self._heartbeats(nodes[phase::_N_PHASES], phase * _HEARTBEAT_S / _N_PHASES))
        self.env.process(self._ticks())
        self.env.process(self._flaps())

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

    def _flaps(self) -> Process:
        while True:
            yield self.env.timeout(self._rng.expovariate(_FLAPS_PER_NODE_S * len(self._nodes)))
            self._silent_until_s[self._rng.choice(self._nodes)] = self.env.now + self._rng.uniform(*_DOWN_S)


def simulate(master: Master, nodes: Sequence[Node], duration_s: float, seed: int) -> Timed:
    """Drive a master for `duration_s` simulated seconds after the warm-up; returns what it used in them."""
    world = World(master, nodes, seed)
    world.env.run(until=_WARM_UP_S)
    master.timed = Timed()
    world.env.run(until=_WARM_UP_S + duration_s)
    return master.timed


def run(quick: bool, say: Callable[[str], None], report: Report, only: Sequence[str] = SECTIONS) -> None:
    """Measure the sections."""
    nodes = cluster(1_000, 25) if quick else cluster(10_000, 250)
    suffix = "; quick" if quick else ""
    plan: list[tuple[str, Master, float]] = []
    if "policies" in only:
        plan += [(f"policy {name}", PolicyMaster(name), 60.0 if quick else 600.0) for name in POLICIES]
    if "application" in only:
        plan.append(("application", ApplicationMaster("weighted"), 60.0 if quick else 300.0))
    for label, master, duration_s in plan:
        say(f"{label}: simulating {duration_s:.0f} s")
        timed = simulate(master, nodes, duration_s, seed=1)
        note = f"{len(nodes)} nodes, a tenth with accelerators, {duration_s:.0f} s{suffix}"
        report.add(_rows(label, timed, duration_s, note))
        report.series.setdefault("change_us", {})[label] = [
            round(ns / 1000, 1) for ns in sorted(timed.change_ns)
        ]
    if "deviation" in only:
        say("paper beside a balanced policy")
        report.add(_deviation_rows(nodes, 300 if quick else 2_000))


def _rows(label: str, timed: Timed, duration_s: float, note: str) -> list[Row]:
    event_us = [ns / 1000 for ns in timed.event_ns]
    change_us = [ns / 1000 for ns in timed.change_ns]
    n_calls = f"{timed.n_calls / duration_s:.0f} calls per second; {note}"
    cpu_ms = timed.all_ns / 1e6 / duration_s
    rows = _times(f"{label}: time per event", event_us, ("<= 50", "<= 1000"), note)
    if timed.change_ns != timed.event_ns:
        rows += _times(f"{label}: time per event that led to orders", change_us, ("", ""), note)
    return [
        *rows,
        observed(
            f"{label}: moves per such event", timed.n_moves / max(len(change_us), 1), "moves", note=note
        ),
        observed(f"{label}: CPU of the master per simulated second", cpu_ms, "ms", note=n_calls),
    ]


def _times(what: str, times_us: Sequence[float], goals: tuple[str, str], note: str) -> list[Row]:
    if len(times_us) < 2:
        return [not_measured(what, "nothing happened in the time simulated")]
    p99_us = quantiles(times_us, n=100)[98]
    return [
        measured(what, times_us, "us", goal=goals[0], note=note),
        observed(f"{what}, p99", p99_us, "us", goal=goals[1], note=f"n = {len(times_us)}; {note}"),
    ]


def _flapping(nodes: Sequence[Node], n_flaps: int, seed: int) -> Iterator[BindingEvent]:
    """All nodes join, then one after the other is lost and joins again a few events later."""
    rng = random.Random(seed)
    yield from map(_added, nodes)
    down: list[Node] = []
    for _ in range(n_flaps):
        node = rng.choice(nodes)
        yield ANodeLost(node.name) if node.is_accelerator else NNodeLost(node.name)
        down.append(node)
        if len(down) > 30:
            yield _added(down.pop(0))


def _added(node: Node) -> BindingEvent:
    return ANodeAdded(node.name, node.rack) if node.is_accelerator else NNodeAdded(node.name, node.rack)


def _deviation_rows(nodes: Sequence[Node], n_flaps: int) -> list[Row]:
    """What the paper's exemptions amount to; 25 racks are few enough to look at all after every event."""
    few = [node for node in nodes if node.rack < "/rack025"]
    found = deviation(make("paper"), _flapping(few, n_flaps, seed=1))
    note = f"{len(few)} nodes in 25 racks, {n_flaps} nodes lost, 30 at a time away"
    return [
        observed("paper: NNodes to move for balance, mean", found.misplaced_mean, "nodes", note=note),
        observed("paper: NNodes to move for balance, most", found.misplaced_max, "nodes", note=note),
        observed("paper: NNodes above a balanced stack, most", found.excess_max, "nodes", note=note),
        observed("paper: moves", found.n_moves, "moves", note=f"first bindings included; {note}"),
        observed("weighted: moves over the same events", found.n_moves_balanced, "moves", note=note),
    ]


def draw(report: Report, stem: str) -> list[str]:
    """Draw which share of the events with consequences took how long; returns the files."""
    from matplotlib.figure import Figure

    series = report.series.get("change_us")
    if not series:
        return []
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axes = figure.subplots()
    for label, times_us in series.items():
        shares = [100.0 * (1.0 - rank / len(times_us)) for rank in range(len(times_us))]
        axes.plot(times_us, shares, label=label)
    axes.axvline(50.0, color="gray", linestyle=":", label="goal of the median")
    axes.axvline(1000.0, color="gray", linestyle="--", label="goal of p99")
    axes.set(
        xscale="log", yscale="log", xlabel="CPU time of an event, us", ylabel="events that took longer, %"
    )
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    file = f"{stem}-time-per-event.png"
    figure.savefig(file, dpi=110)
    return [file]
