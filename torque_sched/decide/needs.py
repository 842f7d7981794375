"""A waiting job and its needs of each node; jobs of equal shape share one `Shape`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from torque_sched.decide.context import Load, Prediction
from torque_sched.decide.rules import MemoryRules, QueueRules
from torque_sched.model.cluster import Job, NodeName, QueueName
from torque_sched.model.request import AccessPolicy, Chunk, Request
from torque_sched.model.snapshot import Snapshot

if TYPE_CHECKING:
    from torque_sched.decide.table import Booking, ResourceDemand


@dataclass(frozen=True, slots=True)
class ResourceChunk:
    """``count`` equal shares of a job, each of which lies on one node.

    Attributes:
        mem_bytes: physical memory of one share (mem, pmem); 0: not asked.
        vmem_bytes: memory with swap of one share (vmem, pvmem).
        learned_bytes: memory jobs like it hardly exceed; 0 where that must not hold it back.
        load: what one share is expected to use; None without any history.
        name: a node's name or a property, as in ``nodes=node3``.
        is_pmem, is_pvmem: ``mem_bytes``, ``vmem_bytes`` come from what was asked for each processor.
        others: amounts of resources that the site counts on its nodes besides, by name.
        joined: the pieces it was made of, if several lie on one node, each with its count.
        on_own_part: as `Chunk` has it.
    """

    slots: int = 1
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
    others: tuple[tuple[str, int], ...] = ()
    joined: tuple[ResourceChunk, ...] = ()
    on_own_part: bool = False

    @property
    def made_of(self) -> tuple[ResourceChunk, ...]:
        """The pieces as asked for, each with its count on this node."""
        return self.joined or (self if self.count == 1 else replace(self, count=1),)

    @property
    def with_swap_bytes(self) -> int:
        """Memory with swap it takes: what is asked of memory is a part of that."""
        return max(self.mem_bytes, self.vmem_bytes)


def joined(one: ResourceChunk, other: ResourceChunk) -> ResourceChunk:
    """What two pieces of a job ask of a node that takes both."""
    load = one.load if other.load is None else other.load if one.load is None else one.load + other.load
    return replace(
        one,
        slots=one.slots + other.slots,
        gpus=one.gpus + other.gpus,
        mem_bytes=one.mem_bytes + other.mem_bytes,
        vmem_bytes=one.vmem_bytes + other.vmem_bytes,
        learned_bytes=one.learned_bytes + other.learned_bytes,
        load=load,
        properties=one.properties | other.properties,
        name=one.name if one.name is not None else other.name,
        others=_summed(one.others, other.others),
        joined=(*one.made_of, *other.made_of),
    )


def _summed(
    one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    if not (one and other):
        return one or other
    sums = dict(one)
    for name, amount in other:
        sums[name] = sums.get(name, 0) + amount
    return tuple(sorted(sums.items()))


def times(piece: ResourceChunk, n: int, gpus: int | None = None) -> ResourceChunk:
    """``n`` equal pieces on one node as a single piece, with as many GPUs instead if given."""
    load = None if piece.load is None else piece.load.scaled(float(n))
    return replace(
        piece,
        slots=piece.slots * n,
        gpus=piece.gpus * n if gpus is None else gpus,
        count=1,
        mem_bytes=piece.mem_bytes * n,
        vmem_bytes=piece.vmem_bytes * n,
        learned_bytes=piece.learned_bytes * n,
        load=load,
        others=tuple((name, amount * n) for name, amount in piece.others),
        joined=tuple(replace(each, count=each.count * n) for each in piece.made_of),
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
        mixes_tasks, is_scattered, node_group: as `Request` has them.
        empty: only nodes without another job.
        user: set where who else is on the node matters.
    """

    pieces: tuple[ResourceChunk, ...]
    fit: Fit = field(default_factory=Fit)
    procs: int = 0
    gpus_anywhere: int = 0
    may_share: bool = False
    host: str | None = None
    opsys: str = ""
    empty: bool = False
    access: AccessPolicy | None = None
    user: str = ""
    mixes_tasks: bool = False
    is_scattered: bool = False
    node_group: str = ""

    @property
    def wants_gpus(self) -> bool:
        """Whether any share has a GPU."""
        return self.gpus_anywhere > 0 or any(piece.gpus for piece in self.pieces)

    @property
    def n_shares(self) -> int:
        """Nodes (or shares of nodes) it needs."""
        return sum(piece.count for piece in self.pieces)


Wanted: TypeAlias = tuple[object, ...]
"""All of a piece and its shape that decides whether a capable node takes it, apart from time."""


def wanted(piece: ResourceChunk, shape: Shape) -> Wanted:
    """What a node is asked for."""
    return (
        piece.slots, piece.gpus, piece.mem_bytes, piece.vmem_bytes, piece.learned_bytes, shape.empty,
        shape.access, shape.user, shape.fit.may_use_kept, shape.wants_gpus, piece.others, piece.joined,
        piece.on_own_part,
    )  # fmt: skip


def demand_of_memory(request: Request, slots: int, piece_bytes: int = 0) -> tuple[int, int]:
    """Physical memory and memory with swap of a share of ``slots`` processors, in bytes.

    >>> demand_of_memory(Request(chunks=(Chunk(2, 4),), mem_bytes=800, pvmem_bytes=150), 4)
    (400, 600)
    """
    mem = vmem = 0
    if request.mem_bytes or request.vmem_bytes:
        n_procs = max(1, request.n_procs)
        mem = math.ceil((request.mem_bytes or 0) * slots / n_procs)
        vmem = math.ceil((request.vmem_bytes or 0) * slots / n_procs)
    return (
        max(mem, (request.pmem_bytes or 0) * slots, piece_bytes),
        max(vmem, (request.pvmem_bytes or 0) * slots),
    )


def memory_of_share(request: Request, slots: int) -> tuple[int, int]:
    """As `demand_of_memory`, with a part of what the pieces themselves ask for.

    >>> memory_of_share(Request(tasks=(Chunk(2, 4, mem_bytes=100),)), 4)
    (100, 0)
    """
    of_pieces = sum(piece.count * piece.mem_bytes for piece in request.pieces)
    part = -(-of_pieces * slots // request.n_procs) if of_pieces else 0
    return demand_of_memory(request, slots, part)


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
) -> tuple[ResourceChunk, ...]:
    """The pieces of a request; every one also needs ``properties``.

    Of the predicted load each share gets its part of the processors, and of the GPUs.
    """
    learned = (prediction.mem_upper_bytes or 0.0) if prediction is not None and admits_learned else 0.0
    n_procs, n_gpus = max(1, request.n_procs), max(1, request.n_gpus)
    chunks = request.pieces or (Chunk(),)
    anywhere = request.gpus_anywhere if request.pieces else 0
    pieces = []
    for chunk, count, gpus in _with_gpus(chunks, anywhere):
        mem, vmem = demand_of_memory(request, chunk.slots, chunk.mem_bytes)
        share = chunk.slots / n_procs
        load = None if prediction is None else prediction.load.scaled(share, gpus / n_gpus)
        wanted = properties | set(chunk.properties)
        is_pmem = 0 < mem == (request.pmem_bytes or 0) * chunk.slots
        is_pvmem = 0 < vmem == (request.pvmem_bytes or 0) * chunk.slots
        pieces.append(
            ResourceChunk(
                chunk.slots,
                gpus,
                count,
                mem,
                vmem,
                learned * share,
                load,
                wanted,
                chunk.name,
                is_pmem,
                is_pvmem,
                chunk.others,
                tuple(_piece_of(each, properties) for each in chunk.joined),
                chunk.on_own_part,
            )
        )
    if not request.pieces:
        return (replace(pieces[0], count=request.procs),)
    return tuple(pieces)


def _piece_of(chunk: Chunk, properties: frozenset[str]) -> ResourceChunk:
    """A chunk that lies on one node with others, without what history says of it."""
    return ResourceChunk(
        chunk.slots, chunk.gpus, chunk.count, chunk.mem_bytes,
        properties=properties | set(chunk.properties), others=chunk.others, on_own_part=chunk.on_own_part,
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _pieces_without_history(request: Request, properties: frozenset[str]) -> tuple[ResourceChunk, ...]:
    return pieces_of(request, properties, None, False)


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
            if prediction is None:
                pieces = _pieces_without_history(request, wanted)
            else:
                pieces = pieces_of(request, wanted, prediction, admits)
            shape = shapes[key] = _shape(request, pieces, fit, user)
        return shape


def _with_slots(request: Request) -> Request:
    """``ncpus=N`` as N slots of one node, where nothing else says what is wanted."""
    if request.ncpus < 2 or request.chunks or request.tasks or request.procs:
        return request
    return replace(request, chunks=(Chunk(slots=request.ncpus),))


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
        request.mixes_tasks,
        request.is_scattered,
        request.node_group,
    )


def _shape(request: Request, pieces: tuple[ResourceChunk, ...], fit: Fit, user: str) -> Shape:
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
        mixes_tasks=request.mixes_tasks,
        is_scattered=request.is_scattered,
        node_group=request.node_group,
    )


_NAMED = frozenset({AccessPolicy.SINGLE_USER, AccessPolicy.UNIQUE_USER})


def matches(piece: ResourceChunk, name: NodeName, properties: frozenset[str], is_node: bool) -> bool:
    """Whether a node is what the piece names; ``is_node``: the piece's name is the name of some node."""
    if piece.name is not None:
        if is_node:
            if piece.name != name:
                return False
        elif piece.name not in properties:
            return False
    return piece.properties <= properties


@dataclass(eq=False, slots=True)
class Candidate:
    """A job that nothing but nodes holds, as it takes part in the plan of one cycle.

    Attributes:
        shape: what it needs of the nodes, without what history expects it to use there.
        need: what it asks of the table of the future.
        length_s: how long it is planned to run; infinite: nobody knows.
        may_now: whether it may start in this cycle.
        booking: what is kept for it.
        outranked_by: the job of higher priority that takes over its reservation; None: it keeps it.
        is_refused: its nodes are free by the plan, but what decides now is against it.
    """

    job: Job
    shape: Shape
    need: ResourceDemand
    length_s: float
    may_now: bool = True
    booking: Booking | None = None
    outranked_by: Job | None = None
    is_refused: bool = False
