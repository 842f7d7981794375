"""`container`: requests, not nodes, are bound (paper section 5, first idea).

The paper's own example: with three ANodes and one NNode the strategy of section 2.3 leaves two nodes to share
one accelerator (section 3.3, Cluster 4-3).  Here the NNode's requests spread over all three.

Every node has a home, bound as `weighted` does it, which is published.  Its mappers choose a server for every
single request (`yarn_accel.core.server_choice`) among those they may use.
"""

from __future__ import annotations

from yarn_accel.core.binding.weighted import WeightedBinding


class ContainerBinding(WeightedBinding):
    """Homes as `weighted` binds them."""

    name = "container"
