"""One handler per event: it updates the state and marks the nodes to be reconciled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from yarn_accel.core.application import events as ev
from yarn_accel.core.application.cluster_state import ClusterState
from yarn_accel.core.application.commands import ReleaseContainer
from yarn_accel.core.application.role_instance import ContainerRecord, Node, Phase, RoleInstance, StatusReport


class EventHandlers:
    """Applies events to the cluster state."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.StatusReported: self._status_reported,
            ev.TimerFired: self._timer_fired,
            ev.Registered: self._registered,
            ev.ContainersRecovered: self._containers_recovered,
            ev.Resynced: self._resynced,
            ev.NodesReported: self._nodes_reported,
            ev.NodesChosen: self._nodes_chosen,
            ev.ContainersAllocated: self._containers_allocated,
            ev.ContainerCompleted: self._container_completed,
            ev.PreemptionAnnounced: lambda _: None,
            ev.ContainerStarted: self._container_started,
            ev.ContainerStartFailed: self._container_start_failed,
            ev.SlotsSet: self._slots_set,
            ev.SlotsRefused: self._slots_refused,
            ev.DrainRequested: self._drain_requested,
            ev.UndrainRequested: self._undrain_requested,
            ev.RebindRequested: self._rebind_requested,
            ev.StopRequested: self._stop_requested,
            ev.Unregistered: self._unregistered,
            ev.Stalled: self._stalled,
        }

    def take(self, event: ev.Event) -> None:
        """Apply an event; a repeated or late one changes nothing."""
        self._handlers[type(event)](event)

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
            is_fresh = event.attempt <= 1 and not event.previous
            cluster.bind_from_s = cluster.now_s + (0.0 if is_fresh else cluster.settings.settle_s)
            cluster.bind_by_s = cluster.bind_from_s + (0.0 if is_fresh else cluster.settings.recall_s)
        else:
            cluster.containers.forget_requests()
            cluster.containers.query_missing((container.id for container in event.previous), cluster.now_s)
        cluster.dirty.update(dict.fromkeys(cluster.nodes))
        cluster.note("", "registered", f"attempt {event.attempt}")

    def _containers_recovered(self, event: ev.ContainersRecovered) -> None:
        self._adopt(event.containers)

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

    def _slots_set(self, event: ev.SlotsSet) -> None:
        self._cluster.slots.carried_out(event.node, event.n_slots)

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

    def _touch(self, host: str, what: str) -> None:
        if host in self._cluster.nodes:
            self._cluster.dirty[host] = None
        self._cluster.note(host, what, "an admin asked for it")

    def _rebind_requested(self, event: ev.RebindRequested) -> None:
        self._cluster.bindings.rebind(self._cluster.now_s)

    def _stop_requested(self, event: ev.StopRequested) -> None:
        self._cluster.life.stop(self._cluster.now_s)
        self._cluster.dirty.update(dict.fromkeys(self._cluster.nodes))
        self._cluster.note("", "stopping", "an admin asked for it")

    def _unregistered(self, event: ev.Unregistered) -> None:
        if self._cluster.life.stopping_s is not None:
            self._cluster.life.is_over = True

    def _stalled(self, event: ev.Stalled) -> None:
        """The stall is excluded already; agents that lost us need some more time to reconnect."""
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

    def _timer_fired(self, event: ev.TimerFired) -> None:
        """Timers that are due fire after every event."""


def _is_change(old: StatusReport | None, new: StatusReport, node: Node) -> bool:
    """Whether a report differs from the last one in what bindings or shares depend on."""
    return (
        old is None
        or node.is_serving != new.is_healthy
        or old.endpoint != new.endpoint
        or old.gauges.capacity != new.gauges.capacity
        or old.gauges.weight != new.gauges.weight
    )
