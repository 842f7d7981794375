"""Takes note of events: each changes what is known, and marks the nodes that must be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from yarn_accel.core.application import events as ev
from yarn_accel.core.application.commands import Release
from yarn_accel.core.application.places import Held, Node, Phase, Place, Report
from yarn_accel.core.application.world import World

__all__ = ["Inbox"]


class Inbox:
    """Events into the world; orders nothing but what needs no thought."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.Heard: self._heard,
            ev.Tick: self._tick,
            ev.Registered: self._registered,
            ev.Recovered: self._recovered,
            ev.Resynced: self._resynced,
            ev.NodesReported: self._nodes_reported,
            ev.Allocated: self._allocated,
            ev.Completed: self._completed,
            ev.Started: self._started,
            ev.StartFailed: self._start_failed,
            ev.SlotsSet: self._slots_set,
            ev.SlotsRefused: self._slots_refused,
            ev.Drain: self._drain,
            ev.Undrain: self._undrain,
            ev.Rebind: self._rebind,
            ev.Stop: self._stop,
            ev.Unregistered: self._unregistered,
            ev.Stalled: self._stalled,
        }

    def take(self, event: ev.Event) -> None:
        """Take note of an event; one that was taken before, or comes late, changes nothing."""
        self._handlers[type(event)](event)

    def _heard(self, event: ev.Heard) -> None:
        world = self._world
        node = world.nodes.get(event.node)
        if node is None:
            return
        node.heard_s = node.reached_s = now_s = world.now_s
        place = node.places.get(event.role)
        held = self._speaker(node, place, event) if place is not None else None
        if place is None or held is None:
            return
        old = place.report
        silent_from_s = max(now_s, world.excused_s) + world.settings.silence_s
        told = (event.endpoint, event.is_healthy, event.detail, event.gauges)
        new = place.report = Report(held.container.id, now_s, silent_from_s, *told)
        if not event.is_gone:
            held.gone_s = None
        elif held.gone_s is None:
            held.gone_s = now_s
            world.dirty[event.node] = None
        if event.is_healthy:
            place.well_s = now_s
            place.well_since_s = now_s if place.well_since_s is None else place.well_since_s
        elif not event.is_gone:  # the end of one that died is judged by how long it was well
            place.well_since_s = None
        if held.phase is Phase.LAUNCHING:
            world.staff.confirm(held.container.id, now_s)
            world.dirty[event.node] = None
        is_looked_at = place.ending_s is not None or not world.bindings.is_open
        if place.role.is_server and (is_looked_at or _is_news(old, new, node)):
            world.dirty[event.node] = None

    def _speaker(self, node: Node, place: Place, event: ev.Heard) -> Held | None:
        """The live container that spoke; a stranger is adopted, one of the past is told to stop."""
        if not event.container:
            return next((held for held in place.live() if held.was_launched), None)
        staff, now_s = self._world.staff, self._world.now_s
        held = place.held.get(event.container)
        if held is None and node.is_usable:
            container = ev.Container(event.container, node.host, place.role.priority)
            if staff.speaks_late(container, now_s) or staff.knows(container.id):
                return None
            staff.adopt(place, container, now_s)
            self._world.dirty[node.host] = None
            held = place.held[container.id]
        return held if held is not None and held.is_live and held.was_launched else None

    def _registered(self, event: ev.Registered) -> None:
        world = self._world
        was_registered, is_first = world.life.is_registered, world.life.attempt == 0
        world.life.registered(event.attempt)
        self._adopt(event.previous)
        if was_registered:
            return
        world.registered_s = world.now_s
        world.staff.begin(event.attempt)
        world.bindings.begin(event.attempt)
        if is_first:
            is_fresh = event.attempt <= 1 and not event.previous
            world.settled_s = world.now_s + (0.0 if is_fresh else world.settings.settle_s)
            world.opens_by_s = world.settled_s + (0.0 if is_fresh else world.settings.recall_s)
        else:
            world.staff.forget_requests()
            world.staff.doubt((container.id for container in event.previous), world.now_s)
        world.dirty.update(dict.fromkeys(world.nodes))
        world.note("", "registered", f"attempt {event.attempt}")

    def _recovered(self, event: ev.Recovered) -> None:
        self._adopt(event.containers)

    def _resynced(self, event: ev.Resynced) -> None:
        if self._world.life.is_registered:
            self._world.life.lost()
            self._world.note("", "to register again", "the resource manager was restarted")

    def _adopt(self, containers: Iterable[ev.Container]) -> None:
        world = self._world
        for container in containers:
            role = world.roles.of_priority(container.priority)
            if role is None:
                self._release_stranger(container)
            elif not world.staff.speaks_late(container, world.now_s) and not world.staff.knows(container.id):
                place = world.node(container.node).places[role.name]
                world.staff.adopt(place, container, world.now_s)
                world.dirty[container.node] = None

    def _allocated(self, event: ev.Allocated) -> None:
        world = self._world
        for container in event.containers:
            asker = world.staff.requests.get(container.request_id)
            if asker is not None:
                world.staff.answered(container.request_id, world.nodes[asker.node])
                world.dirty[asker.node] = None
            role = world.roles.of_priority(container.priority)
            if role is None:
                self._release_stranger(container)
            elif not world.staff.knows(container.id):
                world.staff.grant(world.node(container.node).places[role.name], container, world.now_s)
                world.dirty[container.node] = None

    def _release_stranger(self, container: ev.Container) -> None:
        self._world.orders.append(Release(container))
        reason = f"no role has priority {container.priority}"
        self._world.note(container.node, "container released", reason)

    def _nodes_reported(self, event: ev.NodesReported) -> None:
        world = self._world
        for view in event.nodes:
            self._view(view)
        world.is_listed = world.is_listed or event.is_complete
        if event.is_complete:
            for host in sorted(world.nodes.keys() - {view.host for view in event.nodes}):
                self._missing(world.nodes[host])

    def _missing(self, node: Node) -> None:
        """A node that a complete report lacks is gone only if it stays missing.

        A restarted RM lists nodes as their NMs come back to it, and may be asked for them before it has
        ordered us to register again.
        """
        world = self._world
        node.missing_s = world.now_s if node.missing_s is None else node.missing_s
        gone_s = max(world.registered_s, node.missing_s) + world.settings.recovery_s
        if world.life.is_registered and world.now_s >= gone_s:
            self._view(replace(node.view or ev.NodeView(node.host, 0, ""), is_usable=False))

    def _view(self, view: ev.NodeView) -> None:
        world = self._world
        node = world.node(view.host)
        old, node.view = node.view, view
        if view.is_usable:
            node.missing_s = None
        if view.bound is not None and not world.bindings.is_open:
            world.published[view.host] = view.bound
        if world.slots.seen(view.host, view.slots) or old != view:
            world.dirty[view.host] = None
        if old is None or old.is_usable != view.is_usable:
            world.note(view.host, "node joined" if view.is_usable else "node is gone")
        elif view.is_leaving and not old.is_leaving:
            world.note(view.host, "node is leaving", "it is being decommissioned")

    def _completed(self, event: ev.Completed) -> None:
        self._mark(event.container)
        self._world.staff.completed(event.container, event.exit_status, event.diagnostics, self._world.now_s)

    def _started(self, event: ev.Started) -> None:
        place = self._world.staff.holders.get(event.container)
        if place is not None:
            self._world.nodes[place.node].reached_s = self._world.now_s
        self._mark(event.container)
        self._world.staff.confirm(event.container, self._world.now_s)

    def _start_failed(self, event: ev.StartFailed) -> None:
        self._mark(event.container)
        self._world.staff.not_started(event.container, event.why, self._world.now_s)

    def _mark(self, container: str) -> None:
        place = self._world.staff.holders.get(container)
        if place is not None:
            self._world.dirty[place.node] = None

    def _slots_set(self, event: ev.SlotsSet) -> None:
        self._world.slots.carried_out(event.node, event.n_slots)

    def _slots_refused(self, event: ev.SlotsRefused) -> None:
        self._world.slots.refusal = event.why
        self._world.note("", "slots are not set", event.why)

    def _drain(self, event: ev.Drain) -> None:
        self._world.drained.add(event.node)
        self._touch(event.node, "drained")

    def _undrain(self, event: ev.Undrain) -> None:
        self._world.drained.discard(event.node)
        self._touch(event.node, "drained no more")
        node = self._world.nodes.get(event.node)
        for place in node.places.values() if node is not None else ():
            place.backoff.forgive()

    def _touch(self, host: str, what: str) -> None:
        if host in self._world.nodes:
            self._world.dirty[host] = None
        self._world.note(host, what, "an admin asked for it")

    def _rebind(self, event: ev.Rebind) -> None:
        self._world.bindings.rebind(self._world.now_s)

    def _stop(self, event: ev.Stop) -> None:
        self._world.life.stop(self._world.now_s)
        self._world.dirty.update(dict.fromkeys(self._world.nodes))
        self._world.note("", "stopping", "an admin asked for it")

    def _unregistered(self, event: ev.Unregistered) -> None:
        if self._world.life.stopping_s is not None:
            self._world.life.is_over = True

    def _stalled(self, event: ev.Stalled) -> None:
        """The time is left out already; agents that gave us up for lost need some more to come back."""
        world = self._world
        if event.for_s < world.settings.silence_s:
            return
        world.excused_s = world.now_s + world.settings.recall_s
        for node in world.nodes.values():
            place = world.server_place(node)
            report = place.report if place is not None else None
            if report is not None and world.now_s < report.silent_from_s:
                report.silent_from_s = world.excused_s + world.settings.silence_s
        if not world.bindings.is_open:
            world.opens_by_s = max(world.opens_by_s, world.excused_s)
        world.note("", "stood still", f"for {event.for_s:.1f} s, in which nobody could be heard")

    def _tick(self, event: ev.Tick) -> None:
        """Alarms that are due ring after every event."""


def _is_news(old: Report | None, new: Report, node: Node) -> bool:
    """Whether a report says more than the time; gauges matter as far as they change bindings or shares."""
    return (
        old is None
        or node.is_serving != new.is_healthy
        or old.endpoint != new.endpoint
        or old.gauges.capacity != new.gauges.capacity
        or old.gauges.weight != new.gauges.weight
    )
