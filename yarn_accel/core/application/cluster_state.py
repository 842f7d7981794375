"""The state of the application, and the invariants that hold after every event."""

from __future__ import annotations

import math
from collections.abc import Callable

from yarn_accel.core.application.bindings import Bindings, NodeKind
from yarn_accel.core.application.commands import Command, Register, Unregister
from yarn_accel.core.application.containers import ContainerManager
from yarn_accel.core.application.nodes import NEVER, EventHistory, Node, Phase, RoleInstance, Timers, serves
from yarn_accel.core.application.settings import ContainerRole, NodeSelector, RoleTable, Settings
from yarn_accel.core.application.slots import SlotManager, SlotMode, shares
from yarn_accel.core.binding.policy import BindingPolicy


class Lifecycle:
    """The state of the whole application at the RM, from the first `Register` to `Unregistered`.

    Attributes:
        stopping_s: since when it stops; None: it does not stop.
        is_over: the RM has accepted the end.
    """

    def __init__(self, settings: Settings, commands: list[Command]) -> None:
        self._settings = settings
        self._commands = commands
        self._ordered_s = -NEVER
        self.attempt = 0
        self.is_registered = False
        self.stopping_s: float | None = None
        self.is_over = False

    def registered(self, attempt: int) -> None:
        """The RM accepted the registration."""
        if not self.is_registered:
            self.attempt = attempt
            self.is_registered = True
            self._ordered_s = -NEVER

    def lost(self) -> None:
        """The RM no longer knows the application."""
        self.is_registered = False
        self._ordered_s = -NEVER

    def stop(self, now_s: float) -> None:
        """Begin to stop, once."""
        if self.stopping_s is None:
            self.stopping_s = now_s

    def reconcile(self, is_clear: bool, now_s: float) -> float:
        """Register or unregister when that is due; returns when to look again.

        Args:
            is_clear: nothing is left that must end before the application may end.
        """
        if self.is_over:
            return NEVER
        if not self.is_registered:
            return self._order(Register(), now_s)
        if self.stopping_s is None:
            return NEVER
        limit_s = self.stopping_s + self._settings.stop_limit_s
        if is_clear or now_s >= limit_s:
            return self._order(Unregister("SUCCEEDED"), now_s)
        return limit_s

    def _order(self, command: Command, now_s: float) -> float:
        if now_s >= self._ordered_s + self._settings.register_again_s:
            self._ordered_s = now_s
            self._commands.append(command)
        return self._ordered_s + self._settings.register_again_s


class ClusterState:
    """The state, and the commands that follow from the current event.

    Attributes:
        drained: nodes on which an admin wants no server, known or not.
        released: nodes whose server is given back, as nobody needs it; see `Settings.idle_release_s`.
        wanted_s: when somebody last asked for servers; the start of the application counts.
        chosen: the nodes that get a container, by name of a role whose selector is CHOSEN.
        dirty: nodes to be reconciled at the end of this event.
        bind_from_s, bind_by_s: bindings are first made between these times, see `InitialBindings`.
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
        self.released: set[str] = set()
        self.wanted_s = -NEVER
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

    def lacks_server(self, host: str) -> bool:
        """Whether the node is to have no server for now: an admin drained it, or nobody needs its server."""
        return host in self.drained or host in self.released

    def server_instance(self, node: Node) -> RoleInstance | None:
        """The server role on the node; None: no role is a server."""
        return node.instances[self.roles.server.name] if self.roles.server is not None else None

    def note(self, host: str, what: str, reason: str = "") -> None:
        """Add an entry to the history."""
        self.history.add(self.now_s, host, what, reason)


def check(cluster: ClusterState, wake_s: float) -> None:
    """Check every invariant that holds after an event; for tests, as it visits all nodes.

    Args:
        wake_s: when the caller's timer fires.

    Raises:
        AssertionError: naming what is broken.
    """
    assert not cluster.dirty, f"left dirty: {list(cluster.dirty)}"
    assert not cluster.commands, "orders were left behind"
    next_s = cluster.timers.next_s()
    assert wake_s <= next_s, f"nobody is woken at {next_s}, but at {wake_s}"
    _check_index(cluster)
    for node in cluster.nodes.values():
        if cluster.timers.at(node.host) <= cluster.now_s:
            continue
        for instance in node.instances.values():
            _check_instance(cluster, node, instance)
        _check_server(cluster, node)
    if cluster.bindings.is_open:
        _check_bindings(cluster)
        _check_slots(cluster)


def _check_index(cluster: ClusterState) -> None:
    instances = [instance for node in cluster.nodes.values() for instance in node.instances.values()]
    record = {container: instance for instance in instances for container in instance.records}
    assert record == cluster.containers.instances, "containers and their index differ"
    asked = {instance.request_id: instance for instance in instances if instance.request_id is not None}
    assert asked == cluster.containers.requests, "requests and their index differ"


def _check_instance(cluster: ClusterState, node: Node, instance: RoleInstance) -> None:
    where = f"{instance.role.name} on {instance.node}"
    live = list(instance.live())
    if not cluster.life.is_registered or node.view is None:
        return
    assert len(live) <= 1, f"{where}: {len(live)} live containers"
    assert not (live and instance.request_id is not None), f"{where}: has a container and asks for one"
    assert not any(record.phase is Phase.GRANTED for record in live), f"{where}: granted and not launched"
    if instance.records or instance.request_id is not None:
        assert cluster.timers.at(node.host) < NEVER, f"{where}: nobody looks after it"
    if not node.is_usable:
        assert not instance.records, f"{where}: its node is gone"
        assert instance.request_id is None, f"{where}: asks for a node that is gone"
    elif not cluster.fits(node, instance.role) or cluster.life.stopping_s is not None:
        assert instance.request_id is None, f"{where}: asks for what is not wanted"
    elif not (live or node.view.is_leaving or cluster.lacks_server(node.host) or instance.is_done):
        is_waiting = instance.is_vacating() or instance.backoff.until_s > cluster.now_s
        assert is_waiting or instance.request_id is not None, f"{where}: nothing there and nothing asked"
    if instance.report is not None:
        assert any(record.container.id == instance.report.container for record in live), (
            f"{where}: hears the dead"
        )


def _check_server(cluster: ClusterState, node: Node) -> None:
    instance = cluster.server_instance(node)
    if instance is None:
        return
    is_serving = serves(node, instance, cluster.now_s) is not None
    assert node.is_serving == is_serving, f"{node.host}: is_serving is {node.is_serving}"
    binding = cluster.bindings.node_bindings.get(node.host)
    assert is_serving == (binding is not None and binding.kind is NodeKind.ANODE), f"{node.host}: {binding}"
    if binding is not None:
        assert node.view is not None, f"{node.host}: not reported, but {binding}"
        assert binding.rack == node.view.rack, f"{node.host}: in {node.view.rack}, but {binding}"
        assert cluster.life.stopping_s is None, f"{node.host}: stopping, but {binding}"


def _check_bindings(cluster: ClusterState) -> None:
    bindings = cluster.bindings
    bindings.policy.validate()
    assert bindings.bound == dict(bindings.policy.bound()), "our bindings are not the policy's"
    anodes = {host for host, binding in bindings.node_bindings.items() if binding.kind is NodeKind.ANODE}
    assert bindings.members.keys() == anodes, "our servers are not the ANodes"
    members = {(server, node) for server, nodes in bindings.members.items() for node in nodes}
    assert members == {(server, node) for node, server in bindings.bound.items()}, "members are not the bound"
    in_racks = {node for nodes in bindings.racks.values() for node in nodes}
    assert in_racks == anodes, "servers by rack are not the ANodes"


def _check_slots(cluster: ClusterState) -> None:
    slots, bindings = cluster.slots, cluster.bindings
    expected: dict[str, int] = {}
    for server, members in bindings.members.items():
        expected.update(shares(bindings.node_bindings[server].capacity, server, members))
    for host, node in cluster.nodes.items():
        if slots.mode is SlotMode.RESTORE:
            assert slots.wanted(host) is None, f"{host}: wants slots when they are restored"
        else:
            assert slots.wanted(host) == expected.get(host, 0), f"{host}: wants {slots.wanted(host)} slots"
        is_to_wait = cluster.timers.at(host) <= cluster.now_s
        if is_to_wait or cluster.slots_kept_s(node) > cluster.now_s:
            continue
        if (
            node.is_usable
            and cluster.life.is_registered
            and slots.mode is not SlotMode.WAIT
            and not slots.refusal
        ):
            given = slots.given(host)
            assert given is not None, f"{host}: its slots were never set"
            assert given[0] == slots.wanted(host), f"{host}: has {given[0]} slots"
            assert given[1] or cluster.timers.at(host) < NEVER, f"{host}: nobody sees to its slots"
