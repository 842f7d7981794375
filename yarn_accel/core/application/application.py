"""The ApplicationMaster without its network: `Application.apply(event) -> commands`.

::

    events ──handlers──▶ ClusterState ──reconcile──▶ each node that changed, or whose timer fired
                                       ├ ContainerManager  one container per role
                                       ├ Bindings          servers, and the nodes they serve
                                       └ SlotManager       how many mappers a node may start

It is level-triggered: `reconcile` compares the observed with the desired state and takes the next step,
whatever event caused it. A lost message therefore costs time only. The cost of an event is proportional to
what it changes. All nodes are visited only for `Registered`, a complete `NodesReported`, `RebindRequested`,
`StopRequested`, a long `Stalled`, and when the first server begins to serve or the last one ceases to.

The caller sends events in the order in which it learns of them, executes commands in the order in which they
are returned, and reports their results as events.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from yarn_accel.core.application import events as ev
from yarn_accel.core.application.cluster_state import ClusterState, check
from yarn_accel.core.application.commands import Command, ReleaseContainer, SetTimer
from yarn_accel.core.application.nodes import NEVER, ContainerRecord, Node, Phase, RoleInstance, StatusReport
from yarn_accel.core.application.reconciler import InitialBindings, reconcile
from yarn_accel.core.application.settings import RoleTable, Settings
from yarn_accel.core.application.slots import SlotMode
from yarn_accel.core.application.views import (
    ClusterSummary,
    explain_node,
    node_snapshots,
    snapshot,
    summarize,
)
from yarn_accel.core.binding.policy import BindingPolicy

#: The timer of the application itself; those of nodes bear their names.
_SELF = ""
#: Timers that fire in one event, some 30 us each: ten thousand at once would delay everything else.
_N_ALARMS = 8
#: Nodes reconciled in one event; the others follow in the next ones, which `SetTimer` asks for.
_N_NODES = 32


@dataclass(frozen=True, slots=True)
class NodeAssignment:
    """The bindings and slots of one node, for the response to its heartbeat.

    Attributes:
        version: of the bindings it is taken from.
        servers: nodes with serving servers and where these listen, best first: its own, the
            bound one, its rack's.
        bound: nodes of the servers it is bound to.
        slots: the `acct/slot` it was given; None: its configured value.
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
        self._initial_bindings = InitialBindings(self._cluster)
        self._wake_s = NEVER
        self._empty_s: float | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.StatusReported: self._status_reported,
            ev.TimerFired: lambda _: None,  # timers that are due fire after every event
            ev.Registered: self._registered,
            ev.ContainersRecovered: lambda event: self._adopt(event.containers),
            ev.Resynced: self._resynced,
            ev.NodesReported: self._nodes_reported,
            ev.NodesChosen: self._nodes_chosen,
            ev.ContainersAllocated: self._containers_allocated,
            ev.ContainerCompleted: self._container_completed,
            ev.PreemptionAnnounced: lambda _: None,
            ev.ContainerStarted: self._container_started,
            ev.ContainerStartFailed: self._container_start_failed,
            ev.SlotsSet: lambda event: self._cluster.slots.carried_out(event.node, event.n_slots),
            ev.SlotsRefused: self._slots_refused,
            ev.DrainRequested: self._drain_requested,
            ev.UndrainRequested: self._undrain_requested,
            ev.ServersWanted: self._servers_wanted,
            ev.RebindRequested: lambda _: self._cluster.bindings.rebind(self._cluster.now_s),
            ev.StopRequested: self._stop_requested,
            ev.Unregistered: self._unregistered,
            ev.Stalled: self._stalled,
        }

    @property
    def is_over(self) -> bool:
        """Whether the RM has accepted the end: no command follows any more."""
        return self._cluster.life.is_over

    def apply(self, event: ev.Event) -> list[Command]:
        """Update the state with an event; returns the commands that follow, in order.

        A repeated or late event changes nothing.
        """
        cluster = self._cluster
        if cluster.life.is_over:
            return []
        if type(event) is ev.Stalled:
            cluster.exclude_stall(event.for_s, event.now_s)
            self._wake_s = NEVER  # the timer that was set would fire too early
        cluster.now_s = max(cluster.now_s, cluster.awake_s(event.now_s))
        self._handlers[type(event)](event)
        if (
            type(event) is ev.StatusReported
            and cluster.now_s < self._wake_s
            and not cluster.dirty
            and not cluster.commands
        ):
            return []
        self._mark_due()
        self._initial_bindings.step()
        dirty, cluster.dirty = cluster.dirty, {}
        for host in dirty:
            reconcile(cluster, cluster.nodes[host])
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
        """Whether nothing is left that must end before the application may end."""
        cluster = self._cluster
        return (
            not cluster.containers.instances and not cluster.containers.requests and cluster.slots.is_settled
        )

    def _set_slots(self, dirty: Iterable[str]) -> float:
        """Set slots that are not set yet; returns when the mode of the slots changes by itself."""
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

    # ---- one handler per event: it updates the state, and marks the nodes to be reconciled

    def _status_reported(self, event: ev.StatusReported) -> None:
        cluster = self._cluster
        node = cluster.nodes.get(event.node)
        if node is None:
            return
        node.heard_s = node.reached_s = now_s = cluster.now_s
        instance = node.instances.get(event.role)
        record = self._reporting_container(node, instance, event) if instance is not None else None
        if instance is None or record is None:
            return
        old = instance.report
        silent_from_s = max(now_s, cluster.excused_s) + cluster.settings.silence_s
        instance.used_s = now_s if _shows_use(old, event.gauges) else instance.used_s
        values = (event.endpoint, event.is_healthy, event.detail, event.gauges)
        new = instance.report = StatusReport(record.container.id, now_s, silent_from_s, *values)
        if not event.is_gone:
            record.gone_s = None
        elif record.gone_s is None:
            record.gone_s = now_s
            cluster.dirty[event.node] = None
        # One that does not name its container must not be taken for its replacement.
        is_hung = event.is_hung and bool(event.container)
        if is_hung != record.is_hung:
            record.is_hung = is_hung
            cluster.dirty[event.node] = None
        if event.is_healthy:
            instance.well_s = now_s
            instance.well_since_s = now_s if instance.well_since_s is None else instance.well_since_s
        elif not event.is_gone:  # the end of one that died is judged by how long it was well
            instance.well_since_s = None
        if record.phase is Phase.LAUNCHING:
            cluster.containers.confirm(record.container.id, now_s)
            cluster.dirty[event.node] = None
        is_looked_at = instance.ending_s is not None or not cluster.bindings.is_open
        if instance.role.is_server and (is_looked_at or _is_change(old, new, node)):
            cluster.dirty[event.node] = None

    def _reporting_container(
        self, node: Node, instance: RoleInstance, event: ev.StatusReported
    ) -> ContainerRecord | None:
        """The live container that reported; an unknown one is adopted, one that ended is stopped again."""
        if not event.container:
            return next((record for record in instance.live() if record.was_launched), None)
        containers, now_s = self._cluster.containers, self._cluster.now_s
        record = instance.records.get(event.container)
        if record is None and node.is_usable:
            container = ev.ContainerRef(event.container, node.host, instance.role.priority)
            if containers.is_ended(container, now_s) or containers.knows(container.id):
                return None
            containers.adopt(instance, container, now_s)
            self._cluster.dirty[node.host] = None
            record = instance.records[container.id]
        return record if record is not None and record.is_live and record.was_launched else None

    def _registered(self, event: ev.Registered) -> None:
        cluster = self._cluster
        was_registered, is_first = cluster.life.is_registered, cluster.life.attempt == 0
        cluster.life.registered(event.attempt)
        self._adopt(event.previous)
        if was_registered:
            return
        cluster.registered_s = cluster.now_s
        cluster.containers.begin(event.attempt)
        cluster.bindings.begin(event.attempt)
        if is_first:
            cluster.wanted_s = cluster.now_s
            is_fresh = event.attempt <= 1 and not event.previous
            cluster.bind_from_s = cluster.now_s + (0.0 if is_fresh else cluster.settings.settle_s)
            cluster.bind_by_s = cluster.bind_from_s + (0.0 if is_fresh else cluster.settings.recall_s)
        else:
            cluster.containers.forget_requests()
            cluster.containers.query_missing((container.id for container in event.previous), cluster.now_s)
        cluster.dirty.update(dict.fromkeys(cluster.nodes))
        cluster.note("", "registered", f"attempt {event.attempt}")

    def _resynced(self, event: ev.Resynced) -> None:
        if self._cluster.life.is_registered:
            self._cluster.life.lost()
            self._cluster.note("", "to register again", "the resource manager was restarted")

    def _adopt(self, containers: Iterable[ev.ContainerRef]) -> None:
        cluster = self._cluster
        for container in containers:
            role = cluster.roles.of_priority(container.priority)
            if role is None:
                self._release_stranger(container)
            elif not cluster.containers.is_ended(container, cluster.now_s) and not cluster.containers.knows(
                container.id
            ):
                instance = cluster.node(container.node).instances[role.name]
                cluster.containers.adopt(instance, container, cluster.now_s)
                cluster.dirty[container.node] = None

    def _containers_allocated(self, event: ev.ContainersAllocated) -> None:
        cluster = self._cluster
        for container in event.containers:
            asker = cluster.containers.requests.get(container.request_id)
            if asker is not None:
                cluster.containers.answered(container.request_id, cluster.nodes[asker.node])
                cluster.dirty[asker.node] = None
            role = cluster.roles.of_priority(container.priority)
            if role is None:
                self._release_stranger(container)
            elif not cluster.containers.knows(container.id):
                cluster.containers.grant(
                    cluster.node(container.node).instances[role.name], container, cluster.now_s
                )
                cluster.dirty[container.node] = None

    def _release_stranger(self, container: ev.ContainerRef) -> None:
        self._cluster.commands.append(ReleaseContainer(container))
        reason = f"no role has priority {container.priority}"
        self._cluster.note(container.node, "container released", reason)

    def _nodes_reported(self, event: ev.NodesReported) -> None:
        cluster = self._cluster
        for view in event.nodes:
            self._view(view)
        cluster.is_listed = cluster.is_listed or event.is_complete
        if event.is_complete:
            for host in sorted(cluster.nodes.keys() - {view.host for view in event.nodes}):
                self._missing(cluster.nodes[host])

    def _nodes_chosen(self, event: ev.NodesChosen) -> None:
        cluster = self._cluster
        before = cluster.chosen.get(event.role)
        cluster.chosen[event.role] = event.nodes
        changed = cluster.nodes if before is None else event.nodes ^ before
        cluster.dirty.update((host, None) for host in sorted(changed) if host in cluster.nodes)

    def _missing(self, node: Node) -> None:
        """A node that a complete report lacks is gone only if it stays missing.

        A restarted RM lists nodes as their NMs come back to it, and may be asked for them before it has
        ordered us to register again.
        """
        cluster = self._cluster
        node.missing_s = cluster.now_s if node.missing_s is None else node.missing_s
        gone_s = max(cluster.registered_s, node.missing_s) + cluster.settings.recovery_s
        if cluster.life.is_registered and cluster.now_s >= gone_s:
            self._view(replace(node.view or ev.NodeView(node.host, 0, ""), is_usable=False))

    def _view(self, view: ev.NodeView) -> None:
        cluster = self._cluster
        node = cluster.node(view.host)
        old, node.view = node.view, view
        if view.is_usable:
            node.missing_s = None
        if view.bound is not None and not cluster.bindings.is_open:
            cluster.published[view.host] = view.bound
        if cluster.slots.seen(view.host, view.slots) or old != view:
            cluster.dirty[view.host] = None
        if old is None or old.is_usable != view.is_usable:
            cluster.note(view.host, "node joined" if view.is_usable else "node is gone")
        elif view.is_leaving and not old.is_leaving:
            cluster.note(view.host, "node is leaving", "it is being decommissioned")

    def _container_completed(self, event: ev.ContainerCompleted) -> None:
        self._mark(event.container)
        self._cluster.containers.completed(
            event.container, event.exit_status, event.diagnostics, self._cluster.now_s
        )

    def _container_started(self, event: ev.ContainerStarted) -> None:
        instance = self._cluster.containers.instances.get(event.container)
        if instance is not None:
            self._cluster.nodes[instance.node].reached_s = self._cluster.now_s
        self._mark(event.container)
        self._cluster.containers.confirm(event.container, self._cluster.now_s)

    def _container_start_failed(self, event: ev.ContainerStartFailed) -> None:
        self._mark(event.container)
        self._cluster.containers.not_started(event.container, event.why, self._cluster.now_s)

    def _mark(self, container: str) -> None:
        instance = self._cluster.containers.instances.get(container)
        if instance is not None:
            self._cluster.dirty[instance.node] = None

    def _slots_refused(self, event: ev.SlotsRefused) -> None:
        self._cluster.slots.refusal = event.why
        self._cluster.note("", "slots are not set", event.why)

    def _drain_requested(self, event: ev.DrainRequested) -> None:
        self._cluster.drained.add(event.node)
        self._touch(event.node, "drained")

    def _undrain_requested(self, event: ev.UndrainRequested) -> None:
        self._cluster.drained.discard(event.node)
        self._touch(event.node, "drained no more")
        node = self._cluster.nodes.get(event.node)
        for instance in node.instances.values() if node is not None else ():
            instance.backoff.forgive()
            instance.used_s = self._cluster.now_s  # Whoever brings a server back wants to see it.

    def _servers_wanted(self, event: ev.ServersWanted) -> None:
        cluster = self._cluster
        cluster.wanted_s = max(cluster.wanted_s, cluster.now_s - max(event.age_s, 0.0))
        cluster.dirty.update(dict.fromkeys(sorted(cluster.released)))

    def _touch(self, host: str, what: str) -> None:
        if host in self._cluster.nodes:
            self._cluster.dirty[host] = None
        self._cluster.note(host, what, "an admin asked for it")

    def _stop_requested(self, event: ev.StopRequested) -> None:
        self._cluster.life.stop(self._cluster.now_s)
        self._cluster.dirty.update(dict.fromkeys(self._cluster.nodes))
        self._cluster.note("", "stopping", "an admin asked for it")

    def _unregistered(self, event: ev.Unregistered) -> None:
        if self._cluster.life.stopping_s is not None:
            self._cluster.life.is_over = True

    def _stalled(self, event: ev.Stalled) -> None:
        """Give agents time to reconnect after a long stall, which itself is excluded already."""
        cluster = self._cluster
        if event.for_s < cluster.settings.silence_s:
            return
        cluster.excused_s = cluster.now_s + cluster.settings.recall_s
        for node in cluster.nodes.values():
            instance = cluster.server_instance(node)
            report = instance.report if instance is not None else None
            if report is not None and cluster.now_s < report.silent_from_s:
                report.silent_from_s = cluster.excused_s + cluster.settings.silence_s
        if not cluster.bindings.is_open:
            cluster.bind_by_s = max(cluster.bind_by_s, cluster.excused_s)
        cluster.note("", "stood still", f"for {event.for_s:.1f} s, in which nobody could be heard")


def _shows_use(old: StatusReport | None, gauges: ev.ServerGauges) -> bool:
    """Whether a server has a request, or has had one since its last report."""
    return gauges.n_open > 0 or (old is not None and old.gauges.n_taken != gauges.n_taken)


def _is_change(old: StatusReport | None, new: StatusReport, node: Node) -> bool:
    """Whether a report differs from the last one in what bindings or shares depend on."""
    return (
        old is None
        or node.is_serving != new.is_healthy
        or old.endpoint != new.endpoint
        or old.gauges.capacity != new.gauges.capacity
        or old.gauges.weight != new.gauges.weight
    )
