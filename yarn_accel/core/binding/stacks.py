"""The paper's data structure (section 2.3): a stack of NNodes per ANode, and per rack the stacks in order
of load.

The order is kept in two heaps. An entry carries the stamp that its stack had then; it is not removed when the
stack changes, but dropped when it is met with an old stamp. So a change costs as much in a rack of thousands
as in a small one.

A weight is kept as a whole number of thousandths. Up to 10**9 of them, and up to 9,000 NNodes of one ANode,
loads (NNodes over weight) are compared exactly; beyond that, those equal to 16 digits count as equal.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Of an ANode: a thousand devices of the largest weight that a table may have.
MAX_WEIGHT = 10**9
#: Entries of a heap per stack before it is made anew.
_SLACK = 8

#: Load, then the negative weight: of equally loaded stacks that of the stronger ANode comes first, because
#: what the weaker one is then left with is less.
Key = tuple[float, int]
_Entry = tuple[float, int, int, int, "Stack"]


def thousandths(weight: float) -> int:
    """A weight as the whole number of thousandths it is kept as; at least 1.

    >>> thousandths(1.0), thousandths(2.71828), thousandths(0.0001)
    (1000, 2718, 1)

    Raises:
        ValueError: not a number above 0, or above `MAX_WEIGHT`.
    """
    if not math.isfinite(weight) or not 0 < weight <= MAX_WEIGHT:
        raise ValueError(f"a weight must be above 0 and at most {MAX_WEIGHT}, not {weight!r}")
    return max(round(weight * 1000), 1)


@dataclass(slots=True, eq=False)
class Stack:
    """The NNodes of one ANode, the one that was bound last on top.

    Attributes:
        order: when the ANode arrived, counted over all; settles what is otherwise equal.
        n_below: NNodes that load the ANode but are not in this stack, because another queue binds them.
        stamp: counts changes.
    """

    anode: str
    thousandths: int
    order: int
    nodes: dict[str, None] = field(default_factory=dict)
    n_below: int = 0
    stamp: int = 0

    @property
    def size(self) -> int:
        """The number of NNodes in it."""
        return len(self.nodes)

    def load(self, n_more: int = 0) -> float:
        """NNodes over weight, if it had so many more."""
        return 1000 * (self.n_below + len(self.nodes) + n_more) / self.thousandths

    def top_key(self) -> Key:
        """Its load; higher keys give first."""
        return self.load(), -self.thousandths

    def next_key(self) -> Key:
        """Its load with one NNode more; lower keys take first."""
        return self.load(1), -self.thousandths


class StackQueue:
    """The sorted queue of one rack: knows the stack that takes next and the one that gives next.

    Between equals the ANode that arrived first takes and the one that arrived last gives: the front and the
    back of the sorted queue.
    """

    def __init__(self) -> None:
        self._stacks: dict[str, Stack] = {}
        self._takers: list[_Entry] = []
        self._givers: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._stacks)

    def __iter__(self) -> Iterator[Stack]:
        return iter(self._stacks.values())

    def __getitem__(self, anode: str) -> Stack:
        return self._stacks[anode]

    def __contains__(self, anode: str) -> bool:
        return anode in self._stacks

    def add(self, stack: Stack) -> None:
        """Take in a stack of an ANode that has none here."""
        self._stacks[stack.anode] = stack
        self._changed(stack)

    def remove(self, anode: str) -> Stack:
        """Take a stack out of the queue, with what is in it."""
        stack = self._stacks.pop(anode)
        stack.stamp += 1
        return stack

    def push(self, stack: Stack, node: str) -> None:
        """Put an NNode on top of a stack."""
        stack.nodes[node] = None
        self._changed(stack)

    def discard(self, stack: Stack, node: str) -> None:
        """Take an NNode out of a stack, wherever it lies."""
        del stack.nodes[node]
        self._changed(stack)

    def weigh(self, stack: Stack, thousandths: int) -> None:
        """Give an ANode another weight."""
        stack.thousandths = thousandths
        self._changed(stack)

    def raise_to(self, stack: Stack, n_below: int) -> None:
        """Set how many NNodes of another queue the ANode has."""
        if stack.n_below != n_below:
            stack.n_below = n_below
            self._changed(stack)

    def taker(self) -> Stack | None:
        """The stack that takes the next NNode: least loaded when it has it; None: there is no stack."""
        return self._first(self._takers)

    def giver(self) -> Stack | None:
        """The most loaded stack with an NNode to give; None: there is none."""
        return self._first(self._givers)

    def ranked(self) -> list[Stack]:
        """All stacks, who takes next first."""
        return sorted(self._stacks.values(), key=lambda stack: (*stack.next_key(), stack.order))

    def validate(self) -> None:
        """Check that the heaps find what a search finds.

        Raises:
            AssertionError: they do not.
        """
        ranked = self.ranked()
        assert self.taker() is (ranked[0] if ranked else None), "a rack's queue is out of order"
        givers = [stack for stack in ranked if stack.nodes]
        giver = max(givers, key=lambda stack: (*stack.top_key(), stack.order), default=None)
        assert self.giver() is giver, "a rack's queue is out of order at its end"

    def _changed(self, stack: Stack) -> None:
        stack.stamp += 1
        self._enter(stack)
        limit = _SLACK * len(self._stacks) + 16
        if len(self._takers) > limit or len(self._givers) > limit:
            self._takers, self._givers = [], []
            for one in self._stacks.values():
                self._enter(one)

    def _enter(self, stack: Stack) -> None:
        load, minus_weight = stack.next_key()
        heapq.heappush(self._takers, (load, minus_weight, stack.order, stack.stamp, stack))
        if stack.nodes:
            load, minus_weight = stack.top_key()
            heapq.heappush(self._givers, (-load, -minus_weight, -stack.order, stack.stamp, stack))

    def _first(self, heap: list[_Entry]) -> Stack | None:
        while heap:
            _, _, _, stamp, stack = heap[0]
            if stamp == stack.stamp:
                return stack
            heapq.heappop(heap)
        return None


def explained(stack: Stack) -> str:
    """The ANode with its NNodes and load, for a person."""
    size = stack.n_below + stack.size
    return f"{stack.anode} with {size} node{'' if size == 1 else 's'}, load {stack.load():g}{_weight(stack)}"


def refusal(stack: Stack) -> str:
    """The ANode with the load it would have with one NNode more, for a person."""
    return f"{stack.anode}, whose load would be {stack.load(1):g}{_weight(stack)}"


def _weight(stack: Stack) -> str:
    return "" if stack.thousandths == 1000 else f" (weight {stack.thousandths / 1000:g})"
