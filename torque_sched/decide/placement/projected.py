"""Ours: keep the worst projected utilisation small, over the resources the job uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torque_sched.decide.context import Context
from torque_sched.decide.needs import ResourceChunk
from torque_sched.decide.node_ledger import NodeLedger
from torque_sched.decide.search import Scorer
from torque_sched.errors import ConfigError

GPU_LAYOUTS = {"balance": 0.0, "pack": 1.0, "spread": -1.0}
"""How jobs with GPUs are laid out, with the sign of free GPUs left over on their node."""

_TIE = 1e-6
"""Less than any difference in load that matters."""


@dataclass(frozen=True, slots=True)
class ProjectedPlacement:
    """The node whose busiest resource stays least busy once the job is there.

    `value` ranks by what is left in absolute terms, so a large node looks attractive even when it is the
    busiest; this ranks by what the job would meet. Only resources the job uses count.

    Attributes:
        gpu_layout: ``pack`` (leave whole nodes of GPUs free), ``spread`` or ``balance`` (load alone decides).
        layout_weight: what the share of GPUs left over counts, in utilisation.
        gpu_node_penalty: what a job without GPU adds to a GPU node's score, times its share of idle GPUs;
            with 1 such jobs take nodes with idle GPUs last. Of equal nodes the one without GPUs comes first.
        rest_weight: what the mean of all its resources counts, so that equal ones differ.
    """

    gpu_layout: str = "pack"
    layout_weight: float = 0.2
    gpu_node_penalty: float = 0.05
    rest_weight: float = 0.01

    def __post_init__(self) -> None:
        if self.gpu_layout not in GPU_LAYOUTS:
            raise ConfigError(f"gpu_layout {self.gpu_layout!r}", cure=f"known are {', '.join(GPU_LAYOUTS)}")

    def scorer(self, nodes: Sequence[NodeLedger], context: Context) -> Scorer:
        """As `Placement.scorer`."""
        return _Projected(self)


class _Projected:
    def __init__(self, settings: ProjectedPlacement) -> None:
        self._penalty = settings.gpu_node_penalty
        self._rest = settings.rest_weight
        self._layout = GPU_LAYOUTS[settings.gpu_layout] * settings.layout_weight

    def _for_gpu_jobs(self, node: NodeLedger) -> float:
        """What keeps a job without GPU off a node."""
        n_gpus = node.capacity.gpus
        return self._penalty * node.gpus_free / n_gpus + _TIE if n_gpus else 0.0

    def score(self, node: NodeLedger, piece: ResourceChunk) -> float:
        load, capacity = node.expected(piece), node.capacity
        worst = total = (node.cpu_cores + load.cpu_cores) / capacity.cpu_cores
        if capacity.mem_bytes:
            memory = (node.mem_bytes + load.mem_bytes) / capacity.mem_bytes
            total += memory
            worst = max(worst, memory)
        if not piece.gpus:
            return worst + self._rest * total + self._for_gpu_jobs(node)
        for used, added, most in (
            (node.gpus_busy, load.gpus, capacity.gpus),
            (node.gpu_mem_bytes, load.gpu_mem_bytes, capacity.gpu_mem_bytes),
        ):
            if most:
                share = (used + added) / most
                total += share
                worst = max(worst, share)
        left = (node.gpus_free - piece.gpus) / capacity.gpus
        return worst + self._rest * total + self._layout * left

    def terms(self, node: NodeLedger, piece: ResourceChunk) -> tuple[tuple[str, float], ...]:
        load, capacity = node.expected(piece), node.capacity
        named: list[tuple[str, float]] = [("cpu", (node.cpu_cores + load.cpu_cores) / capacity.cpu_cores)]
        if capacity.mem_bytes:
            named.append(("memory", (node.mem_bytes + load.mem_bytes) / capacity.mem_bytes))
        if piece.gpus:
            named.append(("gpu", (node.gpus_busy + load.gpus) / capacity.gpus))
            if capacity.gpu_mem_bytes:
                gpu_mem = (node.gpu_mem_bytes + load.gpu_mem_bytes) / capacity.gpu_mem_bytes
                named.append(("gpu memory", gpu_mem))
        shares = [value for _, value in named]
        worst, total = max(shares), sum(shares)
        named.append(("worst", worst))
        named.append(("all resources", self._rest * total))
        if piece.gpus:
            named.append(("gpu layout", self._layout * (node.gpus_free - piece.gpus) / capacity.gpus))
        elif capacity.gpus:
            named.append(("idle gpus", self._for_gpu_jobs(node)))
        return tuple(named)
