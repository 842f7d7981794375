"""What one node should have and be, against what it has and is.

::

    node, by the RM         role, server          place        to the policy
    ─────────────────────   ───────────────────   ──────────   ─────────────────────────────────────────────
    unknown                 any                   left alone   nothing
    gone                    any                   given up     nothing
    usable                  fits                  KEEP         ANode while its server serves; NNode without an
                                                               accelerator, or without a server for a while
    usable, drained         server                HOLD, NONE   NNode
    leaving, or Stop        server                HOLD, NONE   NNode; on Stop nothing
                            others                HOLD until the server has ended, then NONE
"""

from __future__ import annotations

from yarn_accel.core.application.alarms import NEVER
from yarn_accel.core.application.bindings import Kind, Station
from yarn_accel.core.application.events import NodeView
from yarn_accel.core.application.places import Node, Place, Want
from yarn_accel.core.application.servers import drain_step, server_station, serves, why_not
from yarn_accel.core.application.world import World

__all__ = ["Reconciler"]


class Reconciler:
    """Takes the next step on one node at a time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def reconcile(self, node: Node) -> None:
        """Step from what the node has to what it should have, and set the alarm for the next step."""
        world = self._world
        look_s = NEVER
        if node.view is not None and not node.view.is_usable and world.life.is_registered:
            self._give_up(node)
        if node.view is not None:
            for place in node.places.values():
                want, want_s = self._want(node, node.view, place)
                look_s = min(look_s, want_s)
                if world.life.is_registered:
                    look_s = min(look_s, world.staff.keep(place, want, node, world.now_s))
        world.alarms.set(node.host, min(look_s, self._serve(node)))

    def _give_up(self, node: Node) -> None:
        for place in node.places.values():
            self._world.staff.abandon(place, "its node is gone", self._world.now_s)
        self._world.slots.forget(node.host)

    def _want(self, node: Node, view: NodeView, place: Place) -> tuple[Want, float]:
        """What the place should have, and when that changes by itself."""
        world, role = self._world, place.role
        is_stopping = world.life.stopping_s is not None
        is_barred = is_stopping or view.is_leaving or (role.is_server and node.host in world.drained)
        if view.is_usable and role.fits(view.is_accelerator) and not is_barred:
            place.ending_s = None
            return Want.KEEP, NEVER
        if next(place.live(), None) is None:
            place.ending_s = None
            return Want.NONE, NEVER
        if role.is_server:
            return drain_step(place, world.settings, is_stopping, world.now_s)
        server = world.server_place(node)
        is_needed = server is not None and bool(server.held) and role.fits(view.is_accelerator)
        return (Want.HOLD if is_needed else Want.NONE), NEVER

    def _serve(self, node: Node) -> float:
        """Tell the policy what the node is now; returns when that changes by itself."""
        world = self._world
        place = world.server_place(node)
        report = serves(node, place, world.now_s) if place is not None else None
        if place is not None and node.is_serving != (report is not None):
            node.is_serving = report is not None
            reason = "" if node.is_serving else why_not(node, place, world.now_s)
            world.note(node.host, "server serves" if node.is_serving else "server serves no more", reason)
        if report is None or node.view is None:
            return self._do_without(node, place)
        node.down_s = None
        world.bindings.set(node.host, server_station(node.view, report), world.now_s)
        return report.silent_from_s

    def _do_without(self, node: Node, place: Place | None) -> float:
        """A node without a serving server: an NNode, or nothing to the policy; returns when that changes."""
        world, view, now_s = self._world, node.view, self._world.now_s
        since_s, node.down_s = node.down_s, None
        if view is None or not view.is_usable or world.life.stopping_s is not None:
            world.bindings.set(node.host, None, now_s)
            return NEVER
        is_expected = place is not None and place.role.fits(view.is_accelerator) and not view.is_leaving
        if is_expected and node.host not in world.drained:
            node.down_s = since_s if since_s is not None else now_s
            guest_s = node.down_s + world.settings.guest_after_s
            if now_s < guest_s:
                world.bindings.set(node.host, None, now_s)
                return guest_s
        world.bindings.set(node.host, Station(Kind.NNODE, view.rack), now_s)
        return NEVER
