"""The state of the application: nodes, containers, bindings, slots, timers."""

from __future__ import annotations

import math
from collections.abc import Callable

from yarn_accel.core.application.bindings import Bindings
from yarn_accel.core.application.commands import Command
from yarn_accel.core.application.container_manager import ContainerManager
from yarn_accel.core.application.history import EventHistory
from yarn_accel.core.application.lifecycle import Lifecycle
from yarn_accel.core.application.role_instance import Node, RoleInstance
from yarn_accel.core.application.roles import ContainerRole, NodeSelector, RoleTable
from yarn_accel.core.application.settings import Settings
from yarn_accel.core.application.slots import SlotManager, SlotMode
from yarn_accel.core.application.timers import NEVER, Timers
from yarn_accel.core.binding.events import BindingPolicy


class ClusterState:
    """The state, and the commands that follow from the current event.

    Attributes:
        drained: nodes on which an admin wants no server, known or not.
        chosen: by name of a role whose selector is CHOSEN, the nodes that are to have one.
        dirty: nodes to be reconciled at the end of this event.
        settled_s: when bindings are first made and published; not before all is heard that the published
            ones need, but at `bind_by_s`, see `initial_bindings`.
        published: the server's node of each node as it was published before this attempt.
        is_listed: the RM has reported all nodes.
        registered_s: when the RM last accepted us.
        now_s: the caller's time without its stalls; so is every other time here.
        lost_s: seconds of the caller's time that were stalls.
        excused_s: silence does not count before, except of servers that were silent before the last stall.
    """

    def __init__(
        self, settings: Settings, roles: RoleTable, make_policy: Callable[[], BindingPolicy]
    ) -> None:
        self.settings = settings
        self.roles = roles
        self.commands: list[Command] = []
        self.history = EventHistory(settings.n_history)
        self.life = Lifecycle(settings, self.commands)
        self.containers = ContainerManager(settings, self.history, self.commands)
        self.bindings = Bindings(make_policy, self.history)
        self.slots = SlotManager(settings, self.commands)
        self.timers = Timers()
        self.nodes: dict[str, Node] = {}
        self.drained: set[str] = set()
        self.chosen: dict[str, frozenset[str]] = {}
        self.dirty: dict[str, None] = {}
        self.now_s = -NEVER
        self.bind_from_s = NEVER
        self.bind_by_s = NEVER
        self.published: dict[str, str] = {}
        self.is_listed = False
        self.registered_s = -NEVER
        self.lost_s = 0.0
        self.excused_s = -NEVER

    def exclude_stall(self, for_s: float, now_s: float) -> None:
        """The caller did not run for `for_s` seconds before its `now_s`.

        At most the time since the last event is excluded: a stall that is reported twice counts once, and
        none counts where the caller's clock stopped, too.
        """
        self.lost_s = max(self.lost_s, min(self.lost_s + for_s, now_s - self.now_s))

    def awake_s(self, now_s: float) -> float:
        """The caller's time without its stalls."""
        return now_s - self.lost_s

    def shell_s(self, at_s: float) -> float:
        """The inverse of `awake_s`, rounded up so that a timer never fires too early."""
        shown_s = at_s + self.lost_s
        return shown_s if self.awake_s(shown_s) >= at_s else math.nextafter(shown_s, math.inf)

    def slots_kept_s(self, node: Node) -> float:
        """Until when a node's slots stay unchanged, because it is about to get a container.

        Fewer slots than its running mappers use make the node's free resources negative, and YARN allocates
        no container there until they have ended.
        """
        if self.slots.mode is not SlotMode.SHARE or self.slots.given(node.host) is None:
            return -NEVER
        waits = [
            instance.first_asked_s for instance in node.instances.values() if instance.request_id is not None
        ]
        gone = (record.gone_s for instance in node.instances.values() for record in instance.live())
        waits += [gone_s for gone_s in gone if gone_s is not None]
        return max(waits, default=-NEVER) + self.settings.slots_kept_s

    def node(self, host: str) -> Node:
        """The node of this name, created if needed."""
        node = self.nodes.get(host)
        if node is None:
            node = Node(host, None, {role.name: RoleInstance(host, role) for role in self.roles})
            self.nodes[host] = node
        return node

    def fits(self, node: Node, role: ContainerRole) -> bool:
        """Whether the node is to have a container of the role, if it is usable."""
        if role.where is NodeSelector.CHOSEN:
            return node.host in self.chosen.get(role.name, ())
        return node.view is not None and role.fits(node.view.is_accelerator)

    def keeps(self, node: Node, role: ContainerRole) -> bool:
        """Whether a container stays on a node that gets no new one, until the next choice."""
        if role.where is not NodeSelector.CHOSEN or self.life.stopping_s is not None:
            return False
        return role.name not in self.chosen or node.host in self.chosen[role.name]

    def server_instance(self, node: Node) -> RoleInstance | None:
        """The server role on the node; None: no role is a server."""
        return node.instances[self.roles.server.name] if self.roles.server is not None else None

    def note(self, host: str, what: str, reason: str = "") -> None:
        """Add an entry to the history."""
        self.history.add(self.now_s, host, what, reason)
