"""Who is driven through the simulated cluster: a bare policy, or the whole core of the ApplicationMaster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import thread_time_ns

from benchmarks.binding_scale.world import SILENCE_S, Later, Node, Timed
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
from yarn_accel.core.binding import (
    ANodeAdded,
    ANodeLost,
    BindingEvent,
    NNodeAdded,
    NNodeLost,
    make,
)

_GRANT_S, _START_S = 0.2, 0.3
_ROLES = (
    ContainerRole("server", NodeSelector.ACCELERATOR, RoleResource(1024), priority=10, is_server=True),
    ContainerRole("agent", NodeSelector.EVERY, RoleResource(128), priority=11),
)


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


def added(node: Node) -> BindingEvent:
    """The facts about a node that joins, for a policy."""
    return ANodeAdded(node.name, node.rack) if node.is_accelerator else NNodeAdded(node.name, node.rack)
