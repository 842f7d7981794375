"""The binding policies `paper`, `weighted` and `container`: how each one rebalances.

`paper` is section 2.3 and Figure 3 of the YARN paper, rule by rule. Within a rack every ANode has a stack of
its NNodes, and the stacks stand in a queue ordered by size.

1. Adding. (1) An NNode goes onto the smallest stack. (2) An ANode gets an empty stack; while the rack is not
   balanced, which means while the new stack is not as large as the smallest of the queue, the top of the
   largest stack goes onto the new one (Figure 3).
2. Losing. (1) A lost NNode is taken out of its stack; no other NNode moves. (2) The NNodes of a lost ANode
   join again by rule 1 (1).

It has one repair. As printed, rule 1 (2) goes on until the new stack is as large as the smallest one, and
from [3, 2] it never is: [2, 2] and 1, [2, 1] and 2, [1, 1] and 3, until nothing is left to take. So the loop
stops, or does not begin, when the largest stack has at most one NNode more than the new one: no further
step would make the rack more even. Where the printed loop ends, this one ends with the same stacks.

The paper leaves three things open. NNodes of a rack without an ANode wait and join, in the order they came,
when the first ANode comes; between equally large stacks the ANode that came first takes and the one that came
last gives; the stack of a lost ANode is emptied from its top.

`weighted` (section 5, second idea) gives every ANode NNodes in proportion to its weight, always balanced.

*Balanced.* The load of an ANode is the number of its NNodes over its weight. A rack is balanced when its
worst load is as small as it can be, among those ways the second worst, and so on: the loads, worst first,
are lexicographically least.

*How.* Think of all places: the k-th place of an ANode of weight w costs k / w, and between places of equal
cost the one of the heavier ANode counts as cheaper. N NNodes are balanced exactly when they sit on the N
cheapest places. So a newcomer takes the cheapest free place, and after any other event the NNode on the
dearest taken place moves to the cheapest free one until nothing is gained. An ANode that gives never takes
again and one that takes never gives, hence no other way to the same balance moves fewer NNodes.

*Across racks* (``cross_rack: fallback``). NNodes of a rack without an ANode become guests. The guests
of all racks form one pool on top of the racks: an ANode's own NNodes are its first places, and these never
move for a guest's sake.

`container` (section 5, first idea) binds requests instead of nodes. Every node has a home, bound as by
`weighted`, which is published; its mappers choose a server for every request (`core.server_choice`) among
those they may use. The paper's own example: with three ANodes and one NNode the strategy of section 2.3
leaves two nodes to share one accelerator (section 3.3, Cluster 4-3). Here the NNode's requests spread over
all three.
"""

from __future__ import annotations

from collections.abc import Mapping

from yarn_accel.core.binding.policy import BEFORE, ANodeAdded, BindingPolicy, BindingPool, WeightChanged
from yarn_accel.core.binding.stacks import Stack, StackQueue, thousandths


class PaperBinding(BindingPolicy):
    """Section 2.3 of the paper with the one repair; without weights, and racks are always isolated.

    After the loss of an NNode the stacks may differ by more than one, and stay so: `benchmarks/binding_scale`
    measures by how much.
    """

    name = "paper"

    def _anode_added(self, event: ANodeAdded) -> None:
        super()._anode_added(ANodeAdded(event.node, event.rack))

    def _weight_changed(self, event: WeightChanged) -> None:
        """Ignored: this policy has no weights."""

    def _rebalance(self, pool: BindingPool, newcomer: Stack | None = None) -> None:
        """Rule 1 (2), Figure 3; a loss (rule 2) rebalances nothing."""
        if newcomer is None:
            return
        smallest = min((stack.size for stack in pool.queue if stack is not newcomer), default=0)
        while newcomer.size < smallest:
            largest = pool.queue.giver()
            if largest is None or largest.size - newcomer.size <= 1:
                return
            self._shift(pool, largest, newcomer)
            smallest = min(smallest, largest.size)


class WeightedBinding(BindingPolicy):
    """Loads as balanced as possible with as few moves as possible; with equal weights the sizes of `paper`.

    Args:
        cross_rack: NNodes of racks without an ANode are bound to other racks' ANodes until theirs has one.
    """

    name = "weighted"

    def __init__(self, cross_rack: bool = False) -> None:
        super().__init__()
        self._guests = BindingPool("the guests") if cross_rack else None
        self._homeless: dict[str, None] = {}
        self._touched: dict[str, None] = {}

    @property
    def crosses_racks(self) -> bool:
        """Whether nodes of a rack without an ANode use those of other racks."""
        return self._guests is not None

    def loads(self) -> Mapping[str, float]:
        """Of every ANode the number of its NNodes, guests included, over its weight."""
        return {anode: self._stack_of(anode).load() for anode in self._anodes}

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: naming what is broken.
        """
        super().validate()
        for rack in self._racks.values():
            _assert_balanced(rack)
        if self._guests is None:
            return
        assert not self._homeless, f"guests without a place: {sorted(self._homeless)}"
        guests = {node for rack in self._racks.values() for node in rack.waiting}
        self._validate_pool(self._guests, guests)
        _assert_balanced(self._guests)
        assert {stack.anode for stack in self._guests.queue} == self._anodes.keys(), "guests: wrong ANodes"
        for stack in self._guests.queue:
            own = self._racks[self._anodes[stack.anode]].queue[stack.anode]
            assert stack.n_below == own.size, f"{stack.anode}: its guests see a wrong number of own NNodes"
            assert stack.thousandths == own.thousandths, f"{stack.anode}: its guests see another weight"

    def _rebalance(self, pool: BindingPool, newcomer: Stack | None = None) -> None:
        """The dearest taken place against the cheapest free one, until nothing is gained."""
        while True:
            giver, taker = pool.queue.giver(), pool.queue.taker()
            if giver is None or taker is None or taker.next_key() >= giver.top_key():
                return
            self._shift(pool, giver, taker)

    def _open(self, rack: BindingPool, stack: Stack) -> None:
        if self._guests is not None:
            self._guests.queue.add(Stack(stack.anode, stack.thousandths, stack.order))
        super()._open(rack, stack)

    def _close(self, rack: BindingPool, anode: str) -> None:
        if self._guests is not None:
            for node in reversed(self._guests.queue.remove(anode).nodes):
                self._unbind(node)
                self._homeless[node] = None
            self._touched.pop(anode, None)
        super()._close(rack, anode)

    def _weight_changed(self, event: WeightChanged) -> None:
        super()._weight_changed(event)
        if self._guests is not None and event.node in self._anodes:
            self._guests.queue.weigh(self._guests.queue[event.node], thousandths(event.weight))

    def _wait(self, pool: BindingPool, node: str) -> None:
        super()._wait(pool, node)
        if self._guests is not None and pool is not self._guests:
            self._homeless[node] = None

    def _stop_waiting(self, pool: BindingPool, node: str) -> None:
        super()._stop_waiting(pool, node)
        guests = self._guests
        if guests is None or pool is guests:
            return
        if node in self._homeless:
            del self._homeless[node]
        elif node in guests.waiting:
            del guests.waiting[node]
        else:
            self._take(guests, guests.queue[self._bound[node]], node)

    def _bind(self, pool: BindingPool, stack: Stack, node: str, why: str = "") -> None:
        super()._bind(pool, stack, node, why)
        self._touched[stack.anode] = None

    def _take(self, pool: BindingPool, stack: Stack, node: str) -> None:
        super()._take(pool, stack, node)
        self._touched[stack.anode] = None

    def _settle(self) -> None:
        """Bind the guests, once it is clear how many own NNodes every ANode has."""
        guests = self._guests
        if guests is None:
            return
        for anode in self._touched:
            own = self._racks[self._anodes[anode]].queue[anode]
            guests.queue.raise_to(guests.queue[anode], own.size)
        self._touched.clear()
        homeless = list(self._homeless)
        self._homeless.clear()
        if len(guests.queue):
            homeless = [*guests.waiting, *homeless]
            guests.waiting.clear()
        others: list[str] = []
        for node in homeless:
            home = self._former_home(node)
            if home is not None and home in guests.queue:
                self._bind(guests, guests.queue[home], node, BEFORE)
            else:
                others.append(node)
        for node in others:
            self._place(guests, node)
        self._rebalance(guests)
        self._touched.clear()

    def _former_home(self, node: str) -> str | None:
        """The ANode it had before this event: it may keep it, as when that ANode only changed the rack."""
        old = self._changes[node][0] if node in self._changes else None
        return old or self._homes.get(node)

    def _stack_of(self, anode: str) -> Stack:
        return self._guests.queue[anode] if self._guests is not None else super()._stack_of(anode)

    def _queue_of(self, node: str) -> StackQueue:
        own = super()._queue_of(node)
        return own if self._guests is None or len(own) else self._guests.queue

    def _nowhere(self, rack: BindingPool) -> str:
        return super()._nowhere(rack) if self._guests is None else "there is no accelerator node in any rack"


def _assert_balanced(pool: BindingPool) -> None:
    giver, taker = pool.queue.giver(), pool.queue.taker()
    if giver is not None and taker is not None and taker.next_key() < giver.top_key():
        raise AssertionError(f"{pool.name}: not balanced, {giver.anode} should give to {taker.anode}")


class ContainerBinding(WeightedBinding):
    """Every node's home, bound as by `weighted`."""

    name = "container"
