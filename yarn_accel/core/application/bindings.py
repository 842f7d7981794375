"""Feeds the binding policy with nodes and servers, and keeps the bindings it returns.

The policy gets no event before `open`: a later attempt of the application collects reports first.  Otherwise
the first server that reports would get every node of its rack, and lose most of them again.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from yarn_accel.core.application.commands import PublishBindings
from yarn_accel.core.application.nodes import EventHistory
from yarn_accel.core.binding.policy import (
    ANodeAdded,
    ANodeLost,
    BindingEvent,
    BindingPolicy,
    Move,
    NNodeAdded,
    NNodeLost,
    NNodesReturned,
    WeightChanged,
)

_FIRST_OF_ATTEMPT = 32
#: Servers of other racks that a node of a rack without one may use.
_N_FALLBACK = 8
#: Changes of speed by less than this factor move nobody.
_WEIGHT_STEP = 1.2


class NodeKind(enum.Enum):
    """The role of a node in the policy."""

    NNODE = "NNode"
    ANODE = "ANode"


@dataclass(frozen=True, slots=True)
class NodeBinding:
    """A node as the policy knows it; weight, endpoint and capacity are those of an ANode's server."""

    kind: NodeKind
    rack: str
    weight: float = 1.0
    endpoint: Hashable = None
    capacity: int = 1


class Bindings:
    """The policy, the nodes it knows, and the bindings."""

    def __init__(self, make_policy: Callable[[], BindingPolicy], history: EventHistory) -> None:
        self._make_policy = make_policy
        self._history = history
        self.policy = make_policy()
        self.node_bindings: dict[str, NodeBinding] = {}
        self.bound: dict[str, str] = {}
        self.members: dict[str, dict[str, None]] = {}
        self.racks: dict[str, dict[str, None]] = {}
        self.is_open = False
        self.version = 0
        self._is_published = False
        self._changed: dict[str, None] = {}
        self._changed_servers: dict[str, None] = {}
        self._touched: dict[str, None] = {}

    def begin(self, attempt: int) -> None:
        """Make the versions of this attempt larger than those of earlier ones."""
        self.version = max(self.version, attempt << _FIRST_OF_ATTEMPT)

    def set(self, node: str, binding: NodeBinding | None, now_s: float) -> None:
        """Replace what the policy knows of a node; None removes it."""
        old = self.node_bindings.get(node)
        if binding is not None and old is not None and _is_other_but_near(old.weight, binding.weight):
            binding = replace(binding, weight=old.weight)
        if binding == old:
            return
        self._index(node, old, binding)
        if self.is_open:
            for event in _events(node, old, binding):
                self._apply(event, now_s)
        if binding is None or binding.kind is NodeKind.NNODE:
            self.members.pop(node, None)

    def open(self, now_s: float, published: Mapping[str, str] | None = None) -> None:
        """Make the first bindings: first all ANodes, then all NNodes, by name, so that no node moves twice.

        Args:
            published: the server's node of each node before; kept where that is still possible.
        """
        if self.is_open:
            return
        self.is_open = True
        if published:
            self._restore(published, now_s)
        else:
            self._apply_all(now_s)

    def rebind(self, now_s: float) -> None:
        """Make all bindings anew, regardless of the present ones."""
        if not self.is_open:
            return
        before, self.bound = self.bound, {}
        changed, self._changed = self._changed, {}
        self.members = {server: {} for server in self.members}
        self._touched.update(dict.fromkeys(self.members))
        self.policy = self._make_policy()
        self._apply_all(now_s)
        nodes = before.keys() | self.bound.keys()
        self._changed = changed | {node: None for node in nodes if before.get(node) != self.bound.get(node)}
        self._history.add(now_s, "", "all bindings made anew", "an admin asked for it")

    def publication(self) -> PublishBindings | None:
        """The changes since the last publication; None: there are none."""
        if not self.is_open or (self._is_published and not self._changed and not self._changed_servers):
            return None
        self.version += 1
        is_full, self._is_published = not self._is_published, True
        bound = tuple((node, self.bound.get(node)) for node in sorted(self._changed))
        endpoints = tuple((node, self.endpoint(node)) for node in sorted(self._changed_servers))
        self._changed.clear()
        self._changed_servers.clear()
        return PublishBindings(self.version, bound, endpoints, is_full)

    def endpoint(self, node: str) -> Hashable:
        """Where the node's server listens; None: it does not serve."""
        binding = self.node_bindings.get(node)
        return binding.endpoint if binding is not None and binding.kind is NodeKind.ANODE else None

    def touched(self) -> list[str]:
        """Servers that started, ended, changed, or got other nodes since the last call."""
        servers = list(self._touched)
        self._touched.clear()
        return servers

    def servers_for(self, node: str, rack: str | None) -> Iterable[str]:
        """Nodes whose servers the node may use, best first: its own, the bound one, its rack's.

        Where the rack has none and the policy crosses racks, some of other racks take their place.
        """
        first = [name for name in (node, self.bound.get(node)) if name is not None and name in self.members]
        others: Iterable[str] = self.racks.get(rack, {}) if rack is not None else {}
        if rack is not None and not others and self.policy.crosses_racks:
            others = itertools.islice(self.members, _N_FALLBACK)
        return dict.fromkeys((*first, *others))

    def _index(self, node: str, old: NodeBinding | None, new: NodeBinding | None) -> None:
        was_server = old is not None and old.kind is NodeKind.ANODE
        is_server = new is not None and new.kind is NodeKind.ANODE
        if old is not None and was_server:
            self.racks[old.rack].pop(node)
            if not self.racks[old.rack]:
                del self.racks[old.rack]
        if new is not None and is_server:
            self.racks.setdefault(new.rack, {})[node] = None
            self.members.setdefault(node, {})
        if new is None:
            del self.node_bindings[node]
        else:
            self.node_bindings[node] = new
        if was_server or is_server:
            self._touched[node] = None
            if old is None or new is None or (old.kind, old.endpoint) != (new.kind, new.endpoint):
                self._changed_servers[node] = None

    def _apply_all(self, now_s: float) -> None:
        for kind in (NodeKind.ANODE, NodeKind.NNODE):
            for node in self._all(kind):
                for event in _events(node, None, self.node_bindings[node]):
                    self._apply(event, now_s)

    def _restore(self, published: Mapping[str, str], now_s: float) -> None:
        """Make the first bindings with the published ones; those that are kept are not recorded."""
        for node in self._all(NodeKind.ANODE):
            for event in _events(node, None, self.node_bindings[node]):
                self._apply(event, now_s)
        nodes = tuple(
            (node, self.node_bindings[node].rack, published.get(node)) for node in self._all(NodeKind.NNODE)
        )
        n_kept = 0
        for move in self.policy.apply(NNodesReturned(nodes)):
            is_kept = published.get(move.node) == move.new
            n_kept += is_kept
            self._move(move, now_s, is_noted=not is_kept)
        self._history.add(now_s, "", f"{n_kept} bindings kept", f"of {len(published)} that were published")

    def _all(self, kind: NodeKind) -> list[str]:
        return [node for node in sorted(self.node_bindings) if self.node_bindings[node].kind is kind]

    def _apply(self, event: BindingEvent, now_s: float) -> None:
        for move in self.policy.apply(event):
            self._move(move, now_s)

    def _move(self, move: Move, now_s: float, *, is_noted: bool = True) -> None:
        old = self.bound.pop(move.node, None)
        if old is not None:
            self.members[old].pop(move.node)
            self._touched[old] = None
        if move.new is not None:
            self.bound[move.node] = move.new
            self.members.setdefault(move.new, {})[move.node] = None
            self._touched[move.new] = None
        self._changed[move.node] = None
        if is_noted:
            self._history.add(now_s, move.node, f"bound to {move.new or 'nobody'}", move.reason)


def _is_other_but_near(old: float, new: float) -> bool:
    return old != new and max(old, new) < min(old, new) * _WEIGHT_STEP


def _events(node: str, old: NodeBinding | None, new: NodeBinding | None) -> list[BindingEvent]:
    """The policy's events that turn the old node into the new one."""
    is_same = old is not None and new is not None and (old.kind, old.rack) == (new.kind, new.rack)
    if is_same and old is not None and new is not None:
        return [WeightChanged(node, new.weight)] if old.weight != new.weight else []
    events: list[BindingEvent] = []
    if old is not None:
        events.append(ANodeLost(node) if old.kind is NodeKind.ANODE else NNodeLost(node))
    if new is not None:
        is_anode = new.kind is NodeKind.ANODE
        events.append(ANodeAdded(node, new.rack, new.weight) if is_anode else NNodeAdded(node, new.rack))
    return events
