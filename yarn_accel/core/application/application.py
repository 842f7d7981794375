"""The ApplicationMaster without its network: `Application.apply(event) -> commands`.

::

    events ──EventHandlers──▶ ClusterState ──Reconciler──▶ each node that changed, or whose timer fired
                                             ├ ContainerManager  one container per role
                                             ├ Bindings          servers, and the nodes they serve
                                             └ SlotManager       how many mappers a node may start

It is level-triggered: `Reconciler.reconcile` compares the observed with the desired state and takes the next
step, whatever event caused it.  A lost message therefore costs time only.  The cost of an event is
proportional to what it changes.  All nodes are visited only for `Registered`, a complete `NodesReported`,
`RebindRequested`, `StopRequested`, a long `Stalled`, and when the first server begins to serve or the last
one ceases to.

The caller sends events in the order in which it learns of them, executes commands in the order in which they
are returned, and reports their results as events.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.application.cluster_state import ClusterState
from yarn_accel.core.application.commands import Command, SetTimer
from yarn_accel.core.application.event_handlers import EventHandlers
from yarn_accel.core.application.events import Event, Stalled, StatusReported
from yarn_accel.core.application.initial_bindings import InitialBindings
from yarn_accel.core.application.invariants import check
from yarn_accel.core.application.reconciler import Reconciler
from yarn_accel.core.application.roles import RoleTable
from yarn_accel.core.application.settings import Settings
from yarn_accel.core.application.slots import SlotMode
from yarn_accel.core.application.timers import NEVER
from yarn_accel.core.application.views import (
    ClusterSummary,
    explain_node,
    node_snapshots,
    snapshot,
    summarize,
)
from yarn_accel.core.binding.events import BindingPolicy

#: The timer of the application itself; those of nodes bear their names.
_SELF = ""
#: Timers that fire in one event, some 30 us each: ten thousand at once would delay everything else.
_N_ALARMS = 8
#: Nodes reconciled in one event; the others follow in the next ones, which `SetTimer` asks for.
_N_NODES = 32


@dataclass(frozen=True, slots=True)
class NodeAssignment:
    """What the response to a node's heartbeat contains.

    Attributes:
        version: of the bindings it is taken from.
        servers: nodes with serving servers and where these listen, best first: its own, the
            bound one, its rack's.
        bound: nodes of the servers it is bound to.
        slots: the `acct/slot` it was given; None: it has its configured value.
    """

    version: int
    servers: tuple[tuple[str, Hashable], ...]
    bound: tuple[str, ...]
    slots: int | None


class Application:
    """All state of the ApplicationMaster; one caller at a time."""

    def __init__(
        self, settings: Settings, roles: RoleTable, make_policy: Callable[[], BindingPolicy]
    ) -> None:
        self._settings = settings
        self._cluster = ClusterState(settings, roles, make_policy)
        self._event_handlers = EventHandlers(self._cluster)
        self._reconciler = Reconciler(self._cluster)
        self._initial_bindings = InitialBindings(self._cluster)
        self._wake_s = NEVER
        self._empty_s: float | None = None

    @property
    def is_over(self) -> bool:
        """The RM has accepted the end; nothing will be ordered any more."""
        return self._cluster.life.is_over

    def apply(self, event: Event) -> list[Command]:
        """Update the state with an event; returns the commands that follow, in order."""
        cluster = self._cluster
        if cluster.life.is_over:
            return []
        if type(event) is Stalled:
            cluster.exclude_stall(event.for_s, event.now_s)
            self._wake_s = NEVER  # the timer that was set would fire too early
        cluster.now_s = max(cluster.now_s, cluster.awake_s(event.now_s))
        self._event_handlers.take(event)
        if (
            type(event) is StatusReported
            and cluster.now_s < self._wake_s
            and not cluster.dirty
            and not cluster.commands
        ):
            return []
        self._mark_due()
        self._initial_bindings.step()
        dirty, cluster.dirty = cluster.dirty, {}
        for host in dirty:
            self._reconciler.reconcile(cluster.nodes[host])
        next_s = min(self._set_slots(dirty), cluster.life.reconcile(self._is_clear(), cluster.now_s))
        cluster.timers.set(_SELF, next_s)
        self._publish_and_set_timer()
        commands = list(cluster.commands)
        cluster.commands.clear()
        return commands

    def _mark_due(self) -> None:
        """Mark the nodes whose timer is due, and postpone those that exceed the limit of one event."""
        cluster = self._cluster
        if len(cluster.dirty) <= _N_NODES:
            cluster.dirty.update(dict.fromkeys(cluster.timers.due(cluster.now_s, _N_ALARMS)))
            cluster.dirty.pop(_SELF, None)
            return
        for host in list(cluster.dirty)[_N_NODES:]:
            del cluster.dirty[host]
            cluster.timers.set(host, cluster.now_s)

    def awake_s(self, now_s: float) -> float:
        """The caller's time without its stalls: waits for others are measured in it."""
        return self._cluster.awake_s(now_s)

    def assignment(self, host: str) -> NodeAssignment:
        """The servers and slots of a node; empty for a node that is not known."""
        bindings = self._cluster.bindings
        node = self._cluster.nodes.get(host)
        rack = node.view.rack if node is not None and node.view is not None else None
        names = bindings.servers_for(host, rack) if bindings.is_open else ()
        bound = bindings.bound.get(host)
        given = self._cluster.slots.given(host)
        return NodeAssignment(
            bindings.version,
            tuple((name, bindings.endpoint(name)) for name in names),
            (bound,) if bound is not None else (),
            given[0] if given is not None else None,
        )

    def bound(self) -> Mapping[str, str]:
        """The server's node of every bound node: a copy."""
        return dict(self._cluster.bindings.bound)

    def explain(self, host: str) -> str:
        """Lines for an admin: the node's containers, why it is bound as it is, its last events."""
        return explain_node(self._cluster, host)

    def summarize(self) -> ClusterSummary:
        """Counts and groups of all nodes."""
        return summarize(self._cluster)

    def snapshot(self, now_s: float, hosts: Iterable[str] | None = None) -> dict[str, Any]:
        """The whole state as JSON values; ages are relative to `now_s`.

        Args:
            hosts: the nodes to include; None: all, some 20 us each.
        """
        return snapshot(self._cluster, self.awake_s(now_s), hosts)

    def node_snapshots(self, now_s: float, hosts: Iterable[str]) -> dict[str, Any]:
        """Only the ``nodes`` part of a snapshot, of these nodes."""
        return node_snapshots(self._cluster, self.awake_s(now_s), hosts)

    def validate(self) -> None:
        """Check every invariant; visits all nodes.

        Raises:
            AssertionError: naming what is broken.
        """
        check(self._cluster, self._wake_s)

    def _is_clear(self) -> bool:
        """Nothing is left that must end before the application may end."""
        cluster = self._cluster
        return (
            not cluster.containers.instances and not cluster.containers.requests and cluster.slots.is_settled
        )

    def _set_slots(self, dirty: Iterable[str]) -> float:
        """Order the slots that are not set yet; returns when that changes by itself."""
        cluster = self._cluster
        mode, next_s = self._slot_mode()
        is_changed, cluster.slots.mode = mode is not cluster.slots.mode, mode
        hosts = dict.fromkeys(cluster.nodes if is_changed else dirty)
        if cluster.bindings.is_open:
            hosts.update(dict.fromkeys(self._share_out()))
        for host in hosts:
            node = cluster.nodes.get(host)
            if node is not None and node.is_usable and cluster.life.is_registered:
                again_s = cluster.slots_kept_s(node)
                if again_s <= cluster.now_s:
                    again_s = cluster.slots.reconcile(host, cluster.now_s)
                cluster.timers.set(host, min(cluster.timers.at(host), again_s))
        return next_s

    def _share_out(self) -> list[str]:
        """Recompute the shares of servers that changed; returns the nodes whose share changed."""
        bindings = self._cluster.bindings
        touched = bindings.touched()
        if not touched:
            return []
        served: dict[str, tuple[int, Iterable[str]] | None] = {}
        for server in touched:
            members = bindings.members.get(server)
            served[server] = (
                (bindings.node_bindings[server].capacity, members) if members is not None else None
            )
        return self._cluster.slots.share(served)

    def _slot_mode(self) -> tuple[SlotMode, float]:
        """The mode of the slots, and when it changes by itself."""
        cluster = self._cluster
        if cluster.life.stopping_s is not None:
            return SlotMode.RESTORE, NEVER
        if not cluster.bindings.is_open:
            return SlotMode.WAIT, self._initial_bindings.next_s()
        if cluster.bindings.members:
            self._empty_s = None
            return SlotMode.SHARE, NEVER
        if self._empty_s is None:
            self._empty_s = cluster.now_s
        restore_s = self._empty_s + self._settings.restore_after_s
        return (SlotMode.RESTORE, NEVER) if cluster.now_s >= restore_s else (SlotMode.WAIT, restore_s)

    def _publish_and_set_timer(self) -> None:
        """Publish changed bindings, and set the timer."""
        cluster = self._cluster
        publication = cluster.bindings.publication()
        if publication is not None:
            cluster.commands.append(publication)
        if self._wake_s <= cluster.now_s:
            self._wake_s = NEVER
        next_s = cluster.timers.next_s()
        if next_s < self._wake_s:
            self._wake_s = next_s
            cluster.commands.append(SetTimer(cluster.shell_s(next_s)))
