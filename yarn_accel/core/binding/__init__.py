"""Which accelerator node serves a node that has none: the policies of the YARN paper, pure.

::

    NNodeAdded ANodeAdded NNodeLost ANodeLost NNodesReturned WeightChanged
        ──▶ policy ──▶ [Move(node, old, new, reason)]

    paper       section 2.3 as it is printed, but for one repair; unbalanced after losses
    weighted    section 5: shares by performance weights, always balanced with the fewest moves
    container   section 5: homes as `weighted`; mappers choose for every request
"""

from yarn_accel.core.binding.policies import ContainerBinding, PaperBinding, WeightedBinding
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
from yarn_accel.core.binding.settings import POLICIES, DeviceWeights, make

__all__ = [
    "POLICIES",
    "ANodeAdded",
    "ANodeLost",
    "BindingEvent",
    "BindingPolicy",
    "ContainerBinding",
    "DeviceWeights",
    "Move",
    "NNodeAdded",
    "NNodeLost",
    "NNodesReturned",
    "PaperBinding",
    "WeightChanged",
    "WeightedBinding",
    "make",
]
