"""The rules to compare with: Torque's own first fit, going round, and Torque's load balancing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torque_sched.decide.context import Context
from torque_sched.decide.needs import ResourceChunk
from torque_sched.decide.node_ledger import NodeLedger
from torque_sched.decide.search import Scorer


@dataclass(frozen=True, slots=True)
class FirstFitPlacement:
    """The first node that fits, in the order of the server's nodes file: what pbs_server does by itself."""

    def scorer(self, nodes: Sequence[NodeLedger], context: Context) -> Scorer:
        """As `Placement.scorer`."""
        return _FirstFit()


class _FirstFit:
    def score(self, node: NodeLedger, piece: ResourceChunk) -> float:
        return float(node.index)

    def terms(self, node: NodeLedger, piece: ResourceChunk) -> tuple[tuple[str, float], ...]:
        return (("position", float(node.index)),)


@dataclass(frozen=True, slots=True)
class RoundRobinPlacement:
    """The node that got a job longest ago, beginning after the last one of the cycle before."""

    def scorer(self, nodes: Sequence[NodeLedger], context: Context) -> Scorer:
        """As `Placement.scorer`."""
        return _RoundRobin()


class _RoundRobin:
    def score(self, node: NodeLedger, piece: ResourceChunk) -> float:
        return float(node.tick)

    def terms(self, node: NodeLedger, piece: ResourceChunk) -> tuple[tuple[str, float], ...]:
        return (("turn", float(node.tick)),)


@dataclass(frozen=True, slots=True)
class LoadAveragePlacement:
    """Torque's ``load_balancing``, which there only serves time-shared nodes.

    The least load average among nodes that stay within the ideal load with the job, else within the maximum,
    else anywhere; each placement adds the job's processors to the load average.

    Attributes:
        ideal_share: ideal load as a share of the node's cores.
        max_share: maximum load as a share of the node's cores.
    """

    ideal_share: float = 1.0
    max_share: float = 1.5

    def scorer(self, nodes: Sequence[NodeLedger], context: Context) -> Scorer:
        """As `Placement.scorer`."""
        return _LoadAverage(self)


_STEP = 1e6
"""Larger than any load average: nodes over a bound come after all others."""


class _LoadAverage:
    def __init__(self, settings: LoadAveragePlacement) -> None:
        self._settings = settings

    def score(self, node: NodeLedger, piece: ResourceChunk) -> float:
        return math.fsum(value for _, value in self.terms(node, piece))

    def terms(self, node: NodeLedger, piece: ResourceChunk) -> tuple[tuple[str, float], ...]:
        after, cores = node.loadave + piece.slots, node.capacity.cpu_cores
        beyond = (after > self._settings.ideal_share * cores) + (after > self._settings.max_share * cores)
        return (("load average", node.loadave), ("beyond bounds", beyond * _STEP))
