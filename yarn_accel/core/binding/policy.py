"""Binding policies: events in, moves out, and the rules that all policies share. Pure, without time.

A node has one role: it is an NNode (no accelerator) or an ANode (has one, and its server serves). An event
that adds what is known already changes nothing, and so does one that takes away what is not known. A node
that is added but known otherwise (in the other role, in another rack) counts as lost there first.

All policies bind by stacks (`stacks`) within racks, and follow these rules::

                       rack has an ANode                      rack has none
    NNode joins        onto the stack that takes next         waits
    ANode joins        an empty stack, then *rebalance*       the same, then everybody who waited joins
    NNode is lost      out of its stack, then *rebalance*     forgotten
    ANode is lost      its NNodes, top of the stack first, join again; when it was the last they wait
    NNodes return      each onto the stack it was on, else as one that joins; then *rebalance*

The policies differ in how they *rebalance*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from yarn_accel.core.binding.stacks import Stack, StackQueue, explained, refusal, thousandths


@dataclass(frozen=True, slots=True)
class NNodeAdded:
    """A node without an accelerator joined (paper section 2.3, rule 1, part 1)."""

    node: str
    rack: str


@dataclass(frozen=True, slots=True)
class ANodeAdded:
    """The server of an accelerator node began to serve (paper section 2.3, rule 1, part 2).

    Attributes:
        weight: speed of its accelerators against the others', above 0; `paper` ignores it. It is ignored
            for an ANode that is known in this rack: `WeightChanged` changes it.
    """

    node: str
    rack: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class NNodeLost:
    """A node without an accelerator is gone (paper section 2.3, rule 2, part 1)."""

    node: str


@dataclass(frozen=True, slots=True)
class ANodeLost:
    """A server is gone or ill (paper section 2.3, rule 2, part 2).

    The caller sends `NNodeAdded` if the node is an NNode from now on.
    """

    node: str


@dataclass(frozen=True, slots=True)
class NNodesReturned:
    """NNodes that an earlier process had bound join together, after a restart.

    Each is bound where it was if an ANode of its rack has this name; the others join after them, and a policy
    that keeps a balance restores it with the fewest moves. `paper` moves no NNode, as after a loss; of its
    stacks only the sizes come back: each lists its NNodes in the order of this event.

    Attributes:
        nodes: (NNode, rack, its ANode before or None). An NNode that is known in this rack is skipped.
    """

    nodes: tuple[tuple[str, str, str | None], ...]


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """The table of weights was edited, or an accelerator was measured (paper section 5)."""

    node: str
    weight: float


BindingEvent = NNodeAdded | ANodeAdded | NNodeLost | ANodeLost | NNodesReturned | WeightChanged


@dataclass(frozen=True, slots=True)
class Move:
    """An NNode's binding changed.

    Attributes:
        old: its ANode before; None: it had none.
        new: its ANode now; None: it has none, or the NNode itself is gone.
        reason: one sentence.
    """

    node: str
    old: str | None
    new: str | None
    reason: str


#: How many ANodes `explain` names that were not taken.
_N_REFUSED = 3
#: Why an NNode is bound where it was before.
BEFORE = "it was bound there before"


@dataclass(slots=True, eq=False)
class BindingPool:
    """NNodes that may be bound to any of the same ANodes: those of one rack.

    Attributes:
        waiting: NNodes while there is no ANode, in the order in which they joined.
    """

    name: str
    queue: StackQueue = field(default_factory=StackQueue)
    waiting: dict[str, None] = field(default_factory=dict)


class BindingPolicy:
    """Binds NNodes to ANodes; equal sequences of events give equal bindings.

    A subclass has a name, by which settings choose it, and its own way to rebalance.
    """

    name = ""

    def __init__(self) -> None:
        self._racks: dict[str, BindingPool] = {}
        self._nnodes: dict[str, str] = {}
        self._anodes: dict[str, str] = {}
        self._bound: dict[str, str] = {}
        self._why: dict[str, str] = {}
        self._changes: dict[str, tuple[str | None, str]] = {}
        self._homes: dict[str, str] = {}
        self._cause = ""
        self._n_arrived = 0
        self._rules: dict[type, Callable[..., None]] = {
            NNodeAdded: self._nnode_added,
            ANodeAdded: self._anode_added,
            NNodeLost: self._nnode_lost,
            ANodeLost: self._anode_lost,
            NNodesReturned: self._nnodes_returned,
            WeightChanged: self._weight_changed,
        }

    @property
    def crosses_racks(self) -> bool:
        """Whether nodes of a rack without an ANode use those of other racks."""
        return False

    def apply(self, event: BindingEvent) -> list[Move]:
        """Apply an event; returns the changed bindings, every NNode at most once.

        Raises:
            ValueError: a weight that is not a number above 0; nothing has changed then.
        """
        self._changes.clear()
        self._rules[type(event)](event)
        self._settle()
        self._homes.clear()
        moves = []
        for node, (old, reason) in self._changes.items():
            new = self._bound.get(node)
            if new != old:
                moves.append(Move(node, old, new, reason))
        return moves

    def bound(self) -> Mapping[str, str]:
        """The ANode of every bound NNode: a read-only view of the current state, to be copied if kept."""
        return MappingProxyType(self._bound)

    def loads(self) -> Mapping[str, float]:
        """Of every ANode the number of its NNodes over its weight."""
        return {stack.anode: stack.load() for rack in self._racks.values() for stack in rack.queue}

    def explain(self, node: str) -> str:
        """One sentence or two: why the node is bound as it is, and which ANodes it was not bound to."""
        if node in self._anodes:
            return (
                f"{node} is an accelerator node of {self._anodes[node]}: {explained(self._stack_of(node))}."
            )
        if node not in self._nnodes:
            return f"{node} is not known."
        rack = self._racks[self._nnodes[node]]
        home = self._bound.get(node)
        if home is None:
            return f"{node} is not bound: {self._nowhere(rack)}; its tasks use its own CPU."
        queue = self._queue_of(node)
        text = f"{node} is bound to {explained(queue[home])} ({self._why[node]})."
        if node in rack.waiting:
            text += f" It is a guest there, as {rack.name} has no accelerator node."
        refused = [refusal(stack) for stack in queue.ranked() if stack.anode != home]
        more = f" and {len(refused) - _N_REFUSED} more" if len(refused) > _N_REFUSED else ""
        return f"{text} Refused: {'; '.join(refused[:_N_REFUSED])}{more}." if refused else text

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: naming what is broken.
        """
        both = self._nnodes.keys() & self._anodes.keys()
        assert not both, f"both NNode and ANode: {sorted(both)}"
        for rack in self._racks.values():
            self._validate_pool(rack, {node for node, name in self._nnodes.items() if name == rack.name})
            known = {anode for anode, name in self._anodes.items() if name == rack.name}
            assert {stack.anode for stack in rack.queue} == known, f"{rack.name}: stacks are not its ANodes"
        lost = self._bound.keys() - self._nnodes.keys()
        assert not lost, f"bound, but no NNode: {sorted(lost)}"

    def _validate_pool(self, pool: BindingPool, members: set[str]) -> None:
        pool.queue.validate()
        assert not (pool.waiting and len(pool.queue)), f"{pool.name}: NNodes wait beside an ANode"
        stacked: list[str] = list(pool.waiting)
        for stack in pool.queue:
            stacked += stack.nodes
            strangers = [node for node in stack.nodes if self._bound.get(node) != stack.anode]
            assert not strangers, f"in the stack of {stack.anode}, but not bound to it: {strangers}"
        assert sorted(stacked) == sorted(members), f"{pool.name}: its stacks do not hold each NNode once"

    def _rebalance(self, pool: BindingPool, newcomer: Stack | None = None) -> None:
        """Move NNodes after `newcomer`, now in the queue, or any other change."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Runs at the end of every event, for subclasses."""

    def _nnode_added(self, event: NNodeAdded) -> None:
        if self._nnodes.get(event.node) == event.rack:
            return
        self._forget(event.node)
        self._cause = f"{event.node} joined"
        self._nnodes[event.node] = event.rack
        self._place(self._rack(event.rack), event.node)

    def _anode_added(self, event: ANodeAdded) -> None:
        if self._anodes.get(event.node) == event.rack:
            return
        weight = thousandths(event.weight)
        self._forget(event.node)
        self._cause = f"{event.node} joined"
        self._anodes[event.node] = event.rack
        self._n_arrived += 1
        self._open(self._rack(event.rack), Stack(event.node, weight, self._n_arrived))

    def _nnode_lost(self, event: NNodeLost) -> None:
        name = self._nnodes.pop(event.node, None)
        if name is None:
            return
        self._cause = f"{event.node} left"
        rack = self._racks[name]
        if event.node in rack.waiting:
            self._stop_waiting(rack, event.node)
        else:
            self._take(rack, rack.queue[self._bound[event.node]], event.node)
            self._rebalance(rack)
        if event.node in self._changes:
            self._changes[event.node] = self._changes[event.node][0], "it is not to be bound any more"
        self._why.pop(event.node, None)
        self._tidy(rack)

    def _anode_lost(self, event: ANodeLost) -> None:
        name = self._anodes.pop(event.node, None)
        if name is None:
            return
        self._cause = f"{event.node} left"
        self._close(self._racks[name], event.node)
        self._tidy(self._racks[name])

    def _nnodes_returned(self, event: NNodesReturned) -> None:
        fresh = [each for each in event.nodes if self._nnodes.get(each[0]) != each[1]]
        for node, _, _ in fresh:
            self._forget(node)
        self._cause = "all bindings were read back"
        others: list[tuple[BindingPool, str]] = []
        for node, name, home in fresh:
            self._nnodes[node] = name
            rack = self._rack(name)
            if home is not None and home in rack.queue:
                self._bind(rack, rack.queue[home], node, BEFORE)
                continue
            if home is not None:
                self._homes[node] = home
            others.append((rack, node))
        for rack, node in others:
            self._place(rack, node)
        for name in dict.fromkeys(name for _, name, _ in fresh):
            self._rebalance(self._racks[name])

    def _weight_changed(self, event: WeightChanged) -> None:
        weight = thousandths(event.weight)
        name = self._anodes.get(event.node)
        if name is None:
            return
        self._cause = f"{event.node} has weight {weight / 1000:g} now"
        rack = self._racks[name]
        rack.queue.weigh(rack.queue[event.node], weight)
        self._rebalance(rack)

    def _forget(self, node: str) -> None:
        """Remove a node from the role or rack in which it is known."""
        self._nnode_lost(NNodeLost(node))
        self._anode_lost(ANodeLost(node))

    def _open(self, rack: BindingPool, stack: Stack) -> None:
        """An ANode joins: the first takes all who waited, another one its share."""
        rack.queue.add(stack)
        for node in list(rack.waiting):
            self._stop_waiting(rack, node)
            self._place(rack, node)
        self._rebalance(rack, stack)

    def _close(self, rack: BindingPool, anode: str) -> None:
        """An ANode goes: its NNodes join again, the top of its stack first."""
        stack = rack.queue.remove(anode)
        for node in reversed(stack.nodes):
            self._unbind(node)
            self._place(rack, node)

    def _place(self, pool: BindingPool, node: str) -> None:
        """Rule 1, part 1: onto the stack that takes next."""
        stack = pool.queue.taker()
        if stack is None:
            self._wait(pool, node)
        else:
            self._bind(pool, stack, node)

    def _wait(self, pool: BindingPool, node: str) -> None:
        pool.waiting[node] = None

    def _stop_waiting(self, pool: BindingPool, node: str) -> None:
        del pool.waiting[node]

    def _shift(self, pool: BindingPool, giver: Stack, taker: Stack) -> None:
        """The top of one stack goes onto another."""
        node = next(reversed(giver.nodes))
        self._take(pool, giver, node)
        self._bind(pool, taker, node)

    def _bind(self, pool: BindingPool, stack: Stack, node: str, why: str = "") -> None:
        """Put an NNode onto a stack; `why`: another reason than that the stack takes next."""
        pool.queue.push(stack, node)
        self._bound[node] = stack.anode
        self._why[node] = why or self._cause
        old = self._changes[node][0] if node in self._changes else None
        reason = why or f"{self._cause}: {stack.anode} had the least load, now {stack.load():g}"
        self._changes[node] = old, reason

    def _take(self, pool: BindingPool, stack: Stack, node: str) -> None:
        pool.queue.discard(stack, node)
        self._unbind(node)

    def _unbind(self, node: str) -> None:
        old = self._bound.pop(node)
        self._changes.setdefault(node, (old, f"{self._cause}: no accelerator node is left for {node}"))

    def _stack_of(self, anode: str) -> Stack:
        """The stack that knows all the NNodes of an ANode."""
        return self._racks[self._anodes[anode]].queue[anode]

    def _queue_of(self, node: str) -> StackQueue:
        """The queue a bound NNode stands in."""
        return self._racks[self._nnodes[node]].queue

    def _nowhere(self, rack: BindingPool) -> str:
        """Why an NNode of a rack without an ANode is not bound."""
        return f"{rack.name} has no accelerator node, and {self.name} keeps racks apart"

    def _rack(self, name: str) -> BindingPool:
        rack = self._racks.get(name)
        if rack is None:
            rack = self._racks[name] = BindingPool(name)
        return rack

    def _tidy(self, rack: BindingPool) -> None:
        if not len(rack.queue) and not rack.waiting:
            del self._racks[rack.name]
