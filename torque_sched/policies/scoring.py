"""How well a node suits a piece of a job: what a placement (`base.Placement`) gives the search."""

from __future__ import annotations

from typing import Protocol

from torque_sched.policies.needs import Piece
from torque_sched.policies.node_ledger import NodeLedger


class Scorer(Protocol):
    """Ranks nodes for one cycle. A node's score may depend on that node and the piece only."""

    def score(self, node: NodeLedger, piece: Piece) -> float:
        """The smaller the better; equal scores go in the order of the server's nodes file."""
        ...

    def terms(self, node: NodeLedger, piece: Piece) -> tuple[tuple[str, float], ...]:
        """The figures behind the score, by name, for `explain`."""
        ...
