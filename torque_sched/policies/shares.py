"""Shares of nodes as one job gets them."""

from __future__ import annotations

from torque_sched.core.decisions import NodeShare


def merged(shares: tuple[NodeShare, ...]) -> tuple[NodeShare, ...]:
    """Shares of one node joined, in the order in which the nodes first appear."""
    if len(shares) < 2:
        return shares
    by_node: dict[str, NodeShare] = {}
    for share in shares:
        before = by_node.get(share.node)
        if before is not None:
            share = NodeShare(share.node, before.ppn + share.ppn, before.gpus + share.gpus)
        by_node[share.node] = share
    return tuple(by_node.values())
