"""Which accelerator node serves a node that has none: the policies of the YARN paper, pure.

::

    NNodeAdded ANodeAdded NNodeLost ANodeLost NNodesReturned WeightChanged
        ──▶ policy ──▶ [Move(node, old, new, reason)]

    paper       section 2.3 to the letter, but for one repair; unbalanced after losses
    weighted    section 5: shares by performance weights, always balanced with the fewest moves
    container   section 5: every request goes where it should be finished first; homes as `weighted`
"""

from yarn_accel.core.binding.container import ContainerBinding
from yarn_accel.core.binding.deviation import Deviation, deviation, misplaced
from yarn_accel.core.binding.device_weights import DeviceWeight, DeviceWeights, relative_weights
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
from yarn_accel.core.server_choice import (
    Choice,
    ChooserSettings,
    Prediction,
    Request,
    RequestChooser,
    ServerView,
)

__all__ = [
    "POLICIES",
    "SETTINGS",
    "ANodeAdded",
    "ANodeLost",
    "BindingEvent",
    "BindingPolicy",
    "Choice",
    "ChooserSettings",
    "ContainerBinding",
    "Deviation",
    "DeviceWeight",
    "DeviceWeights",
    "Move",
    "NNodeAdded",
    "NNodeLost",
    "NNodesReturned",
    "PaperBinding",
    "Prediction",
    "Request",
    "RequestChooser",
    "ServerView",
    "WeightChanged",
    "WeightedBinding",
    "deviation",
    "make",
    "misplaced",
    "relative_weights",
]
