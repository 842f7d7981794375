"""The self-learning paper's Algorithm 3.1: the largest residual capacity.

Equation (1) is the paper's but for two misprints. Its text has lost (2) to (5): the four shares are a
reconstruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torque_sched.decide.context import Context
from torque_sched.decide.needs import ResourceChunk
from torque_sched.decide.node_ledger import NodeLedger
from torque_sched.decide.search import Scorer
from torque_sched.errors import ConfigError

NORMALISERS = ("capacity", "frequency")


@dataclass(frozen=True, slots=True)
class ValuePlacement:
    """The node of largest VALUE = k1 Q1 + k2 Q2 + k3 Q3 + k4 Q4.

    Q is what is left of processors (1), memory (2), GPUs (3) and GPU memory (4), each as a share of the best
    node's. The paper's print has ``k2 Q1`` and ``- k3 Q3``; both are taken for misprints, since the weights
    sum to 1 and an idle GPU must not repel.

    Attributes:
        weights: k1 to k4; they sum to 1.
        normaliser: ``capacity`` (count times speed) or ``frequency`` (speed alone, as the paper has it).
        job_aware: for a job without GPU k3 and k4 count nothing; off is the paper.
    """

    weights: tuple[float, float, float, float] = (0.4, 0.2, 0.25, 0.15)
    normaliser: str = "capacity"
    job_aware: bool = False

    def __post_init__(self) -> None:
        if len(self.weights) != 4 or min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6:
            raise ConfigError(f"weights {self.weights}", cure="give k1, k2, k3, k4 >= 0 with sum 1")
        if self.normaliser not in NORMALISERS:
            raise ConfigError(f"normaliser {self.normaliser!r}", cure=f"known are {', '.join(NORMALISERS)}")

    def scorer(self, nodes: Sequence[NodeLedger], context: Context) -> Scorer:
        """As `Placement.scorer`."""
        return _Value(self, nodes)


def residual(capacity: float, used: float) -> float:
    """1 - utilisation, between 0 and 1; 0 where there is no capacity."""
    return min(1.0, max(0.0, 1.0 - used / capacity)) if capacity else 0.0


class _Value:
    def __init__(self, settings: ValuePlacement, nodes: Sequence[NodeLedger]) -> None:
        self._settings = settings
        self._by_count = settings.normaliser == "capacity"
        strengths = [self._strengths(node) for node in nodes]
        self._best = [max((s[i] for s in strengths), default=0.0) for i in range(4)]

    def _strengths(self, node: NodeLedger) -> tuple[float, float, float, float]:
        capacity, rates = node.capacity, node.rates
        cores = capacity.cpu_cores if self._by_count else 1.0
        gpus = capacity.gpus if self._by_count else float(capacity.gpus > 0)
        return rates.cpu * cores, capacity.mem_bytes, rates.gpu * gpus, capacity.gpu_mem_bytes

    def _parts(self, node: NodeLedger, piece: ResourceChunk) -> list[float]:
        """k Q of the four resources."""
        capacity = node.capacity
        left = (
            residual(capacity.cpu_cores, node.cpu_cores),
            residual(capacity.mem_bytes, node.mem_bytes),
            residual(capacity.gpus, node.gpus_busy),
            residual(capacity.gpu_mem_bytes, node.gpu_mem_bytes),
        )
        counted = 2 if self._settings.job_aware and not piece.gpus else 4
        parts = [0.0, 0.0, 0.0, 0.0]
        strengths = self._strengths(node)
        for i in range(counted):
            if self._best[i]:
                parts[i] = self._settings.weights[i] * strengths[i] / self._best[i] * left[i]
        return parts

    def score(self, node: NodeLedger, piece: ResourceChunk) -> float:
        return -sum(self._parts(node, piece))

    def terms(self, node: NodeLedger, piece: ResourceChunk) -> tuple[tuple[str, float], ...]:
        parts = self._parts(node, piece)
        names = ("k1 Q1 cpu", "k2 Q2 memory", "k3 Q3 gpu", "k4 Q4 gpu memory")
        return (*zip(names, parts, strict=True), ("VALUE", sum(parts)))
