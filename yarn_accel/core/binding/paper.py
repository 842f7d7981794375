"""`paper`: the binding strategy of the YARN paper, section 2.3 and Figure 3, rule by rule.

Within a rack every ANode has a stack of its NNodes, and the stacks stand in a queue ordered by size.

1. Adding. (1) An NNode goes onto the smallest stack. (2) An ANode gets an empty stack; while the rack is not
   balanced, which means while the new stack is not as large as the smallest of the queue, the top of the
   largest stack goes onto the new one (Figure 3).
2. Losing. (1) A lost NNode is taken out of its stack; nobody is moved. (2) The NNodes of a lost ANode join
   again by rule 1 (1).

One repair. As printed, rule 1 (2) goes on until the new stack is as large as the smallest one, and from
[3, 2] it never is: [2, 2] and 1, [2, 1] and 2, [1, 1] and 3, until nothing is left to take. So the loop
stops, or does not begin, when the largest stack has at most one NNode more than the new one: no further
step would make the rack more even. Where the printed loop ends, this one ends with the same stacks.

What the paper leaves open: NNodes of a rack without an ANode wait and join, in the order they came, when
the first ANode comes; between equally large stacks the ANode that came first takes and the one that came
last gives; the stack of a lost ANode is emptied from its top.
"""

from __future__ import annotations

from yarn_accel.core.binding.events import ANodeAdded, WeightChanged
from yarn_accel.core.binding.racks import BindingPool, RackBinding
from yarn_accel.core.binding.stacks import Stack


class PaperBinding(RackBinding):
    """Section 2.3 of the paper with the one repair; knows no weights, and racks are always isolated.

    After an NNode was lost the stacks may differ by more than one, and stay so: `benchmarks/binding_scale`
    measures by how much.
    """

    name = "paper"

    def _anode_added(self, event: ANodeAdded) -> None:
        super()._anode_added(ANodeAdded(event.node, event.rack))

    def _weight_changed(self, event: WeightChanged) -> None:
        """All accelerators are alike to it."""

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
