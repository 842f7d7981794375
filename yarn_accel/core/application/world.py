"""All the application knows, in one place: nodes, containers, bindings, slots, alarms."""

from __future__ import annotations

import math
from collections.abc import Callable

from yarn_accel.core.application.alarms import NEVER, Alarms
from yarn_accel.core.application.bindings import Bindings
from yarn_accel.core.application.commands import Command
from yarn_accel.core.application.history import History
from yarn_accel.core.application.lifecycle import Lifecycle
from yarn_accel.core.application.places import Node, Place
from yarn_accel.core.application.roles import Roles
from yarn_accel.core.application.settings import Settings
from yarn_accel.core.application.slots import Mode, SlotBook
from yarn_accel.core.application.staff import Staff
from yarn_accel.core.binding.events import BindingPolicy

__all__ = ["World"]


class World:
    """What is known, and the orders that follow from it since the last event.

    Attributes:
        drained: nodes that shall have no server, known or not.
        dirty: nodes to be reconciled at the end of this event.
        settled_s: when bindings are first made and published; not before all is heard that the published
            ones need, but at `opens_by_s`, see `opening`.
        published: the server's node of each node as it was published before this attempt.
        is_listed: the RM has told of all nodes.
        registered_s: when the RM last accepted us.
        now_s: the shell's time without the stalls; so is every other time here.
        lost_s: seconds of the shell's time that were stalls.
        excused_s: nobody's silence counts before, but for those who were silent before the last stall.
    """

    def __init__(self, settings: Settings, roles: Roles, make_policy: Callable[[], BindingPolicy]) -> None:
        self.settings = settings
        self.roles = roles
        self.orders: list[Command] = []
        self.history = History(settings.n_notes)
        self.life = Lifecycle(settings, self.orders)
        self.staff = Staff(settings, self.history, self.orders)
        self.bindings = Bindings(make_policy, self.history)
        self.slots = SlotBook(settings, self.orders)
        self.alarms = Alarms()
        self.nodes: dict[str, Node] = {}
        self.drained: set[str] = set()
        self.dirty: dict[str, None] = {}
        self.now_s = -NEVER
        self.settled_s = NEVER
        self.opens_by_s = NEVER
        self.published: dict[str, str] = {}
        self.is_listed = False
        self.registered_s = -NEVER
        self.lost_s = 0.0
        self.excused_s = -NEVER

    def leave_out(self, for_s: float, now_s: float) -> None:
        """The shell stood still for so long up to its `now_s`.

        Never more than has passed since the last event: a stall that is told twice counts once, and where the
        shell's clock stood still as well there is nothing to leave out.
        """
        self.lost_s = max(self.lost_s, min(self.lost_s + for_s, now_s - self.now_s))

    def awake_s(self, now_s: float) -> float:
        """The shell's time without the stalls."""
        return now_s - self.lost_s

    def shell_s(self, at_s: float) -> float:
        """What the shell's clock shows then, rounded so that it is not too early here when it shows that."""
        shown_s = at_s + self.lost_s
        return shown_s if self.awake_s(shown_s) >= at_s else math.nextafter(shown_s, math.inf)

    def slots_kept_s(self, node: Node) -> float:
        """Until when a node's slots stay as they are, for a container that it is about to get.

        Fewer slots than its mappers hold leave the node with less than nothing, and then YARN gives out
        nothing there, not even that container, until they have ended.
        """
        if self.slots.mode is not Mode.SHARE or self.slots.given(node.host) is None:
            return -NEVER
        waits = [place.first_asked_s for place in node.places.values() if place.request_id is not None]
        gone = (held.gone_s for place in node.places.values() for held in place.live())
        waits += [gone_s for gone_s in gone if gone_s is not None]
        return max(waits, default=-NEVER) + self.settings.slots_kept_s

    def node(self, host: str) -> Node:
        """The node of this name; a new one is made."""
        node = self.nodes.get(host)
        if node is None:
            node = Node(host, None, {role.name: Place(host, role) for role in self.roles})
            self.nodes[host] = node
        return node

    def server_place(self, node: Node) -> Place | None:
        """Where the node's server is or would be."""
        return node.places[self.roles.server.name] if self.roles.server is not None else None

    def note(self, host: str, what: str, reason: str = "") -> None:
        """Note something for people."""
        self.history.add(self.now_s, host, what, reason)
