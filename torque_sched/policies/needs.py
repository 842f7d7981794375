"""What a job needs of each node, as the search for nodes wants it; equal-shaped jobs share one `Shape`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torque_sched.core.model import Job, NodeName, QueueName
from torque_sched.core.request import AccessPolicy, Chunk, Request
from torque_sched.core.snapshot import Snapshot
from torque_sched.policies.context import Prediction
from torque_sched.policies.load import Load
from torque_sched.policies.rules import MemoryRules, QueueRules


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` equal shares of a job, each of which lies on one node.

    Attributes:
        mem_bytes: physical memory of one share (mem, pmem); 0: not asked.
        vmem_bytes: memory with swap of one share (vmem, pvmem).
        learned_bytes: memory jobs like it hardly exceed; 0 where that must not hold it back.
        load: what one share is expected to use; None without any history.
        name: a node's name or a property, as in ``nodes=node3``.
        is_pmem, is_pvmem: ``mem_bytes``, ``vmem_bytes`` come from what was asked for each processor.
    """

    ppn: int = 1
    gpus: int = 0
    count: int = 1
    mem_bytes: int = 0
    vmem_bytes: int = 0
    learned_bytes: float = 0.0
    load: Load | None = None
    properties: frozenset[str] = frozenset()
    name: str | None = None
    is_pmem: bool = False
    is_pvmem: bool = False

    @property
    def with_swap_bytes(self) -> int:
        """Memory with swap it takes: what is asked of memory is a part of that."""
        return max(self.mem_bytes, self.vmem_bytes)


def joined(one: Piece, other: Piece) -> Piece:
    """What two pieces of a job ask of a node that takes both."""
    load = one.load if other.load is None else other.load if one.load is None else one.load + other.load
    return replace(
        one,
        ppn=one.ppn + other.ppn,
        gpus=one.gpus + other.gpus,
        mem_bytes=one.mem_bytes + other.mem_bytes,
        vmem_bytes=one.vmem_bytes + other.vmem_bytes,
        learned_bytes=one.learned_bytes + other.learned_bytes,
        load=load,
        properties=one.properties | other.properties,
        name=one.name if one.name is not None else other.name,
    )


@dataclass(eq=False, slots=True)
class Fit:
    """What is found out about all shapes that fit the same nodes; compared by identity.

    Attributes:
        may_use_kept: slots kept for idle GPUs are for these jobs too: they have waited long, or are too wide.
        hopeless_s: by user (empty: anybody), jobs that end no sooner than this were found not to fit.
    """

    may_use_kept: bool = False
    hopeless_s: dict[str, float] = field(default_factory=dict)
    never: str | None = None
    is_prepared: bool = False


@dataclass(eq=False, slots=True)
class Shape:
    """All that decides where a job fits best, apart from its time; compared by identity.

    Attributes:
        fit: shared by shapes that differ only in what they are expected to use.
        pieces: what is asked for; for ``procs=N`` a single processor, `procs` times.
        procs: processors anywhere, 0 if pieces are asked for.
        gpus_anywhere: GPUs to go with `procs`.
        may_share: several pieces may lie on one node.
        empty: only nodes without another job.
        user: set where who else is on the node matters.
    """

    pieces: tuple[Piece, ...]
    fit: Fit = field(default_factory=Fit)
    procs: int = 0
    gpus_anywhere: int = 0
    may_share: bool = False
    host: str | None = None
    opsys: str = ""
    empty: bool = False
    access: AccessPolicy | None = None
    user: str = ""

    @property
    def wants_gpus(self) -> bool:
        """Whether any share has a GPU."""
        return self.gpus_anywhere > 0 or any(piece.gpus for piece in self.pieces)

    @property
    def n_shares(self) -> int:
        """Nodes (or shares of nodes) it needs."""
        return sum(piece.count for piece in self.pieces)


def demand_of_memory(request: Request, ppn: int, piece_bytes: int = 0) -> tuple[int, int]:
    """Physical memory and memory with swap of a share of ``ppn`` processors, in bytes.

    >>> demand_of_memory(Request(chunks=(Chunk(2, 4),), mem_bytes=800, pvmem_bytes=150), 4)
    (400, 600)
    """
    mem = vmem = 0
    if request.mem_bytes or request.vmem_bytes:
        n_procs = max(1, request.n_procs)
        mem = math.ceil((request.mem_bytes or 0) * ppn / n_procs)
        vmem = math.ceil((request.vmem_bytes or 0) * ppn / n_procs)
    return (
        max(mem, (request.pmem_bytes or 0) * ppn, piece_bytes),
        max(vmem, (request.pvmem_bytes or 0) * ppn),
    )


def _with_gpus(chunks: tuple[Chunk, ...], anywhere: int) -> list[tuple[Chunk, int, int]]:
    """Chunks as (chunk, count, gpus), with ``-l gpus=N`` spread over the pieces, earlier ones first."""
    if not anywhere:
        return [(chunk, chunk.count, chunk.gpus) for chunk in chunks]
    each, rest = divmod(anywhere, sum(chunk.count for chunk in chunks))
    parts: list[tuple[Chunk, int, int]] = []
    for chunk in chunks:
        more = min(rest, chunk.count)
        rest -= more
        if more:
            parts.append((chunk, more, chunk.gpus + each + 1))
        if chunk.count > more:
            parts.append((chunk, chunk.count - more, chunk.gpus + each))
    return parts


def pieces_of(
    request: Request, properties: frozenset[str], prediction: Prediction | None, admits_learned: bool
) -> tuple[Piece, ...]:
    """The pieces of a request; every one also needs ``properties``.

    Of the predicted load each share gets its part of the processors, and of the GPUs.
    """
    learned = (prediction.mem_upper_bytes or 0.0) if prediction is not None and admits_learned else 0.0
    n_procs, n_gpus = max(1, request.n_procs), max(1, request.n_gpus)
    chunks = request.pieces or (Chunk(),)
    anywhere = request.gpus_anywhere if request.pieces else 0
    pieces = []
    for chunk, count, gpus in _with_gpus(chunks, anywhere):
        mem, vmem = demand_of_memory(request, chunk.ppn, chunk.mem_bytes)
        share = chunk.ppn / n_procs
        load = None if prediction is None else prediction.load.scaled(share, gpus / n_gpus)
        wanted = properties | set(chunk.properties)
        made = Piece(chunk.ppn, gpus, count, mem, vmem, learned * share, load, wanted, chunk.name)
        is_pmem = 0 < mem == (request.pmem_bytes or 0) * chunk.ppn
        is_pvmem = 0 < vmem == (request.pvmem_bytes or 0) * chunk.ppn
        pieces.append(replace(made, is_pmem=is_pmem, is_pvmem=is_pvmem))
    if not request.pieces:
        return (replace(pieces[0], count=request.procs),)
    return tuple(pieces)


def _rounded(load: Load, request: Request) -> tuple[int, ...]:
    """A key under which alike loads meet, so that jobs alike share one ranking.

    Quarters of each processor and GPU asked for, and half magnitudes of memory.
    """
    return (
        round(4 * load.cpu_cores / (request.n_procs or 1)),
        round(2 * math.log2(load.mem_bytes + 1)),
        round(4 * load.gpus / (request.n_gpus or 1)),
        round(2 * math.log2(load.gpu_mem_bytes + 1)),
    )


class Shapes:
    """The shapes of one cycle's jobs, each built once."""

    def __init__(self, snapshot: Snapshot, queues: QueueRules, memory: MemoryRules) -> None:
        self._memory = memory
        self._now_s = snapshot.now_s
        self._fits: dict[tuple[object, ...], tuple[Fit, dict[object, Shape]]] = {}
        self._queue_properties: dict[QueueName, frozenset[str]] = {}
        self._queues, self._snapshot = queues, snapshot

    def properties_of(self, queue: QueueName) -> frozenset[str]:
        """What the jobs of a queue need of every node."""
        found = self._queue_properties.get(queue)
        if found is None:
            known = self._snapshot.queue_by_name.get(queue)
            required = known.features_required if known is not None else ()
            found = frozenset(required) | frozenset(self._queues.properties.get(queue, ()))
            self._queue_properties[queue] = found
        return found

    def of(self, job: Job, prediction: Prediction | None, may_use_kept: bool = False) -> Shape:
        """The shape of a job."""
        request = job.request
        if self._queues.ncpus_are_slots:
            request = _with_slots(request)
        if self._queues.gpus_per_proc:
            request = _with_gpus_each(request)
        admits = self._memory.admission and self._now_s - job.queued_s < self._memory.admission_limit_s
        properties = self.properties_of(job.queue)
        user = job.user if request.access in _NAMED else ""
        learned = (prediction.mem_upper_bytes or 0.0) if admits and prediction is not None else 0.0
        fit_key = (*_asked(request), user, properties, may_use_kept, learned)
        known = self._fits.get(fit_key)
        if known is None:
            known = self._fits[fit_key] = Fit(may_use_kept), {}
        fit, shapes = known
        key = None if prediction is None else _rounded(prediction.load, request)
        shape = shapes.get(key)
        if shape is None:
            wanted = properties | set(request.features)
            pieces = pieces_of(request, wanted, prediction, admits)
            shape = shapes[key] = _shape(request, pieces, fit, user)
        return shape


def _with_slots(request: Request) -> Request:
    """``ncpus=N`` as ``nodes=1:ppn=N``, where nothing else says what is wanted."""
    if request.ncpus < 2 or request.chunks or request.tasks or request.procs:
        return request
    return replace(request, chunks=(Chunk(ppn=request.ncpus),))


def _with_gpus_each(request: Request) -> Request:
    """``procs=N,gpus=M`` as ``-L tasks=N:gpus=M``."""
    gpus = request.gpus_anywhere
    if not gpus or not request.procs or request.pieces:
        return request
    others = tuple(entry for entry in request.gres if entry.name not in {"gpus", "gpu"})
    return replace(request, tasks=(Chunk(request.procs, gpus=gpus),), procs=0, gres=others)


def _asked(request: Request) -> tuple[object, ...]:
    """What of a request decides which nodes it fits."""
    return (
        request.chunks,
        request.tasks,
        request.procs,
        request.mem_bytes,
        request.pmem_bytes,
        request.vmem_bytes,
        request.pvmem_bytes,
        request.gpus_anywhere,
        request.host,
        request.features,
        request.node_exclusive,
        request.access,
        request.opsys,
    )


def _shape(request: Request, pieces: tuple[Piece, ...], fit: Fit, user: str) -> Shape:
    return Shape(
        pieces,
        fit,
        0 if request.pieces else request.procs,
        0 if request.pieces else request.gpus_anywhere,
        may_share=not request.chunks and bool(request.tasks),
        host=request.host,
        opsys=request.opsys,
        empty=request.wants_empty_nodes,
        access=request.access,
        user=user,
    )


_NAMED = frozenset({AccessPolicy.SINGLE_USER, AccessPolicy.UNIQUE_USER})


def matches(piece: Piece, name: NodeName, properties: frozenset[str], is_node: bool) -> bool:
    """Whether a node is what the piece names; ``is_node``: the piece's name is the name of some node."""
    if piece.name is not None:
        if is_node:
            if piece.name != name:
                return False
        elif piece.name not in properties:
            return False
    return piece.properties <= properties
