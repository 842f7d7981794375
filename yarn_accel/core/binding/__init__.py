"""Which accelerator node serves a node that has none: the policies of the YARN paper, pure.

::

    NNodeAdded ANodeAdded NNodeLost ANodeLost NNodesReturned WeightChanged
        ──▶ policy ──▶ [Move(node, old, new, reason)]

    paper       section 2.3 to the letter, but for one repair; unbalanced after losses
    weighted    section 5: shares by performance weights, always balanced with the fewest moves
    container   section 5: homes as `weighted`; mappers choose for every request
"""

from yarn_accel.core.binding.container import ContainerBinding
from yarn_accel.core.binding.device_weights import DeviceWeights
from yarn_accel.core.binding.events import (
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
from yarn_accel.core.binding.paper import PaperBinding
from yarn_accel.core.binding.registry import POLICIES, SETTINGS, make
from yarn_accel.core.binding.weighted import WeightedBinding

__all__ = [
    "POLICIES",
    "SETTINGS",
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
