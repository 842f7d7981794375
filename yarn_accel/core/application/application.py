"""The ApplicationMaster without its network: facts come in, orders go out.

::

    events ──Inbox──▶ World ──Reconciler──▶ each node that changed, or whose alarm rang
                                             ├ Staff      one container in every place that wants one
                                             ├ Bindings   which servers serve, who is bound where
                                             └ SlotBook   how many mappers each node may start

Level-triggered: `Reconciler.reconcile` compares what is with what should be and takes the next step,
whatever event brought it there; a message that was lost costs time and nothing else.  An event costs in
proportion to what it changes: nobody walks over all nodes but for `Registered`, a complete `NodesReported`,
`Rebind`, `Stop`, a long `Stalled`, and when the first server comes or the last one goes.

The shell sends events in the order in which it learns of them, carries out commands in the order in which
they are given, and reports what came of them as events.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.application.alarms import NEVER
from yarn_accel.core.application.commands import Command, WakeAt
from yarn_accel.core.application.events import Event, Heard, Stalled
from yarn_accel.core.application.inbox import Inbox
from yarn_accel.core.application.invariants import check
from yarn_accel.core.application.opening import Opening
from yarn_accel.core.application.reconciler import Reconciler
from yarn_accel.core.application.roles import Roles
from yarn_accel.core.application.settings import Settings
from yarn_accel.core.application.slots import Mode
from yarn_accel.core.application.views import Outline, explain_node, outline, picture, pictures
from yarn_accel.core.application.world import World
from yarn_accel.core.binding.events import BindingPolicy

__all__ = ["Answer", "Application"]

#: The alarm of the application itself; nodes have names.
_SELF = ""
#: Alarms that ring in one event, some 30 us each: ten thousand at once would hold up everything else.
_N_ALARMS = 8
#: Nodes looked at in one event; those beyond it follow in the next ones, which `WakeAt` asks for.
_N_NODES = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node is told in the answer to its heartbeat.

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

    def __init__(self, settings: Settings, roles: Roles, make_policy: Callable[[], BindingPolicy]) -> None:
        self._settings = settings
        self._world = World(settings, roles, make_policy)
        self._inbox = Inbox(self._world)
        self._reconciler = Reconciler(self._world)
        self._opening = Opening(self._world)
        self._wake_s = NEVER
        self._empty_s: float | None = None

    @property
    def is_over(self) -> bool:
        """The RM has accepted the end; nothing will be ordered any more."""
        return self._world.life.is_over

    def apply(self, event: Event) -> list[Command]:
        """Take note of what happened and say what to do now, in this order."""
        world = self._world
        if world.life.is_over:
            return []
        if type(event) is Stalled:
            world.leave_out(event.for_s, event.now_s)
            self._wake_s = NEVER  # what was asked for would come too early
        world.now_s = max(world.now_s, world.awake_s(event.now_s))
        self._inbox.take(event)
        if type(event) is Heard and world.now_s < self._wake_s and not world.dirty and not world.orders:
            return []
        self._ring()
        self._opening.step()
        dirty, world.dirty = world.dirty, {}
        for host in dirty:
            self._reconciler.reconcile(world.nodes[host])
        look_s = min(self._set_slots(dirty), world.life.reconcile(self._is_clear(), world.now_s))
        world.alarms.set(_SELF, look_s)
        self._give_notice()
        orders = list(world.orders)
        world.orders.clear()
        return orders

    def _ring(self) -> None:
        """Mark the nodes whose alarm rings, and put off those that are too many for one event."""
        world = self._world
        if len(world.dirty) <= _N_NODES:
            world.dirty.update(dict.fromkeys(world.alarms.due(world.now_s, _N_ALARMS)))
            world.dirty.pop(_SELF, None)
            return
        for host in list(world.dirty)[_N_NODES:]:
            del world.dirty[host]
            world.alarms.set(host, world.now_s)

    def awake_s(self, now_s: float) -> float:
        """The shell's time without the stalls it told of: whoever waits for others counts in it."""
        return self._world.awake_s(now_s)

    def answer(self, host: str) -> Answer:
        """What a node is to be told now; its own view of a cluster that may not know it yet is empty."""
        bindings = self._world.bindings
        node = self._world.nodes.get(host)
        rack = node.view.rack if node is not None and node.view is not None else None
        names = bindings.servers_for(host, rack) if bindings.is_open else ()
        bound = bindings.bound.get(host)
        given = self._world.slots.given(host)
        return Answer(
            bindings.version,
            tuple((name, bindings.endpoint(name)) for name in names),
            (bound,) if bound is not None else (),
            given[0] if given is not None else None,
        )

    def bound(self) -> Mapping[str, str]:
        """The server's node of every bound node: a copy."""
        return dict(self._world.bindings.bound)

    def explain(self, host: str) -> str:
        """Lines for an admin: what the node has and lacks, why it is bound there, what happened."""
        return explain_node(self._world, host)

    def outline(self) -> Outline:
        """All nodes at a glance."""
        return outline(self._world)

    def snapshot(self, now_s: float, hosts: Iterable[str] | None = None) -> dict[str, Any]:
        """All that is known, as values that JSON can carry; ages are counted up to `now_s`.

        Args:
            hosts: the nodes to tell of; None: all, some 20 us each.
        """
        return picture(self._world, self.awake_s(now_s), hosts)

    def pictures(self, now_s: float, hosts: Iterable[str]) -> dict[str, Any]:
        """The ``nodes`` of a snapshot of these nodes, alone."""
        return pictures(self._world, self.awake_s(now_s), hosts)

    def validate(self) -> None:
        """Check every invariant, after any event; walks over everything.

        Raises:
            AssertionError: naming what is broken.
        """
        check(self._world, self._wake_s)

    def _is_clear(self) -> bool:
        """Nothing is left that must be ended before the application may end."""
        world = self._world
        return not world.staff.holders and not world.staff.requests and world.slots.is_settled

    def _set_slots(self, dirty: Iterable[str]) -> float:
        """Shares, and what of them is not set yet; returns when that changes by itself."""
        world = self._world
        mode, look_s = self._slot_mode()
        is_changed, world.slots.mode = mode is not world.slots.mode, mode
        hosts = dict.fromkeys(world.nodes if is_changed else dirty)
        if world.bindings.is_open:
            hosts.update(dict.fromkeys(self._share_out()))
        for host in hosts:
            node = world.nodes.get(host)
            if node is not None and node.is_usable and world.life.is_registered:
                again_s = world.slots_kept_s(node)
                if again_s <= world.now_s:
                    again_s = world.slots.reconcile(host, world.now_s)
                world.alarms.set(host, min(world.alarms.at(host), again_s))
        return look_s

    def _share_out(self) -> list[str]:
        """Give the servers that changed their shares anew; returns the nodes whose share changed."""
        bindings = self._world.bindings
        touched = bindings.touched()
        if not touched:
            return []
        served: dict[str, tuple[int, Iterable[str]] | None] = {}
        for server in touched:
            members = bindings.members.get(server)
            served[server] = (bindings.stations[server].capacity, members) if members is not None else None
        return self._world.slots.share(served)

    def _slot_mode(self) -> tuple[Mode, float]:
        """What slots follow now, and when that changes by itself."""
        world = self._world
        if world.life.stopping_s is not None:
            return Mode.RESTORE, NEVER
        if not world.bindings.is_open:
            return Mode.WAIT, self._opening.look_s()
        if world.bindings.members:
            self._empty_s = None
            return Mode.SHARE, NEVER
        if self._empty_s is None:
            self._empty_s = world.now_s
        restore_s = self._empty_s + self._settings.restore_after_s
        return (Mode.RESTORE, NEVER) if world.now_s >= restore_s else (Mode.WAIT, restore_s)

    def _give_notice(self) -> None:
        """Publish what changed, and ask to be woken."""
        world = self._world
        publication = world.bindings.publication()
        if publication is not None:
            world.orders.append(publication)
        if self._wake_s <= world.now_s:
            self._wake_s = NEVER
        next_s = world.alarms.next_s()
        if next_s < self._wake_s:
            self._wake_s = next_s
            world.orders.append(WakeAt(world.shell_s(next_s)))
