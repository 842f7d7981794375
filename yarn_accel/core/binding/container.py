"""`container`: requests, not nodes, are bound (paper section 5, first idea).

The paper's own example: with three ANodes and one NNode the strategy of section 2.3 leaves two nodes to share
one accelerator (section 3.3, Cluster 4-3). Here the NNode's requests spread over all three.

Every node still has a home, bound as `weighted` does it: where its requests go as long as nowhere else is
better, and what is published.
"""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.binding.weighted import WeightedBinding
from yarn_accel.core.server_choice import Choice, ChooserSettings, Request, RequestChooser, ServerView

__all__ = ["ContainerBinding"]


class ContainerBinding(WeightedBinding):
    """Homes as `weighted` binds them, and a server for every single request.

    Args:
        cross_rack: as in `WeightedBinding`.
        settings: what it takes for a request to leave its place.
    """

    name = "container"

    def __init__(self, cross_rack: bool = False, settings: ChooserSettings | None = None) -> None:
        super().__init__(cross_rack)
        self._chooser = RequestChooser(settings)

    def choose(self, node: str, request: Request, views: Iterable[ServerView]) -> Choice:
        """The server that should finish a request of `node` first, within what `servers_for` allows.

        Args:
            node: NNode or ANode; one that is not known gets no server.
            request: sent or not.
            views: what is known of the servers, in any order; those of other racks are not looked at.
        """
        allowed = set(self.servers_for(node))
        return self._chooser.choose(self.home(node), request, (one for one in views if one.server in allowed))
