"""Which nodes get a worker container: as many as are wanted, where YARN has a place for them."""

from __future__ import annotations

from collections.abc import Iterable


class WorkerNodes:
    """Chooses nodes for the workers of one size, and keeps to its choice.

    A node on which no worker reports within `patience_s` may have no place for its container: another node is
    tried, and this one again when all others were.

    Args:
        patience_s: from the choice of a node, or the last report of its worker, to that of the next one.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        #: Node -> when it was chosen, or last had a worker.
        self._chosen: dict[str, float] = {}
        #: Node -> when it was given up.
        self._given_up: dict[str, float] = {}

    @property
    def chosen(self) -> frozenset[str]:
        """The nodes that are to have a worker."""
        return frozenset(self._chosen)

    def release(self, node: str) -> None:
        """Its worker is not wanted any more, or was lost."""
        self._chosen.pop(node, None)

    def choose(
        self, n_wanted: int, usable: Iterable[str], present: Iterable[str], now_s: float
    ) -> frozenset[str]:
        """The nodes that are to have a worker now.

        Args:
            n_wanted: how many.
            usable: nodes that are large enough, the best ones first.
            present: nodes whose workers report; they stay chosen until they are released.
        """
        order = list(usable)
        there = set(present)
        for node in there:
            self._chosen[node] = now_s
            self._given_up.pop(node, None)
        for node, since_s in list(self._chosen.items()):
            if node in there:
                continue
            if node not in order or len(self._chosen) > n_wanted:
                del self._chosen[node]
            elif now_s - since_s >= self._patience_s and self._others(order):
                del self._chosen[node]
                self._given_up[node] = now_s
        while len(self._chosen) < n_wanted and (others := self._others(order)):
            self._chosen[others[0]] = now_s
            self._given_up.pop(others[0], None)
        return self.chosen

    def _others(self, order: list[str]) -> list[str]:
        """Nodes to try next: those that were not given up, then those given up longest ago."""
        free = [node for node in order if node not in self._chosen]
        return sorted(free, key=lambda node: self._given_up.get(node, float("-inf")))
