"""What a job asks for, independent of the way it was written.

Two nodes with four slots and a GPU each are one :class:`Chunk` with count 2. Processors anywhere, tasks that
may share a node and GPUs asked as a generic resource each have their own field: they place differently.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass

from torque_sched.errors import ModelError


class AccessPolicy(enum.Enum):
    """Who else may run on the nodes of a job (``naccesspolicy``, ``-W x=NACCESSPOLICY:..``, ``-n``)."""

    SHARED = "shared"
    SINGLE_JOB = "singlejob"
    SINGLE_TASK = "singletask"
    SINGLE_USER = "singleuser"
    UNIQUE_USER = "uniqueuser"
    SINGLE_PART = "singlevnode"
    """Of a node with parts (`model.parts`) only those parts it uses; of others the whole node."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count`` equal pieces of a request, each of which lies on one node.

    ``name`` is the word in place of the count: a node's name or, when no node
    has that name, a property. It is None for a number.
    """

    count: int = 1
    slots: int = 1
    gpus: int = 0
    properties: tuple[str, ...] = ()
    name: str | None = None
    gpu_mode: str = ""
    """``exclusive_process``, ``shared``, ..., in small letters; empty when the job named none."""
    resets_gpu_errors: bool = False
    """``reseterr``: the node sets back the GPUs' counters of ECC errors."""
    mics: int = 0
    mem_bytes: int = 0
    """Memory of each piece; only ``-L`` and OpenPBS requests say it per piece."""
    others: tuple[tuple[str, int], ...] = ()
    """Amounts of each piece of resources that a site counts on its nodes besides, by name."""
    joined: tuple[Chunk, ...] = ()
    """The chunks it was made of, where several have to lie on one node."""
    on_own_part: bool = False
    """Whether each piece lies on one part of a node that no other piece of the job is on."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.slots < 1:
            raise ModelError("a chunk needs a count and slots of at least 1")
        if self.gpus < 0 or self.mics < 0 or self.mem_bytes < 0 or any(n < 0 for _, n in self.others):
            raise ModelError("gpus, mics and mem_bytes of a chunk must not be negative")


@dataclass(frozen=True, slots=True)
class GenericResource:
    """One entry of ``gres``; ``gpus:2`` is how ``-l gpus=2`` is stored."""

    name: str
    count: int = 1


@dataclass(frozen=True)
class Request:
    """Everything a job asks for. Memory is bytes, times are seconds; None means not asked."""

    chunks: tuple[Chunk, ...] = ()
    """From ``nodes=``; every piece of one chunk lies on a node of its own."""
    tasks: tuple[Chunk, ...] = ()
    """From ``-L tasks=`` or an OpenPBS select placed freely; pieces may share a node."""
    mixes_tasks: bool = False
    """Whether tasks of different kinds may share a node, too."""
    is_scattered: bool = False
    """Whether no two pieces share a node, not even those of different chunks."""
    node_group: str = ""
    """All its nodes have one value of this property, as ``switch`` of ``switch=s1``; empty: not asked."""
    procs: int = 0
    """From ``procs=``: processors anywhere; 0 when not asked."""
    ncpus: int = 0
    walltime_s: float | None = None
    cput_s: float | None = None
    mem_bytes: int | None = None
    """Of the whole job, over all its nodes."""
    pmem_bytes: int | None = None
    """Of one process, that is of each processor."""
    vmem_bytes: int | None = None
    pvmem_bytes: int | None = None
    gres: tuple[GenericResource, ...] = ()
    tokens: tuple[tuple[str, float], ...] = ()
    """Licences by name and number, out of the server's attribute ``tokens``."""
    host: str | None = None
    features: tuple[str, ...] = ()
    node_exclusive: bool = False
    """Whether the job asks for empty nodes."""
    access: AccessPolicy | None = None
    qos: str = ""
    """The quality of service it asks for (``-l qos=NAME``, ``-W x=QOS:NAME``)."""
    software: str = ""
    arch: str = ""
    opsys: str = ""
    nodes_text: str = ""
    """``Resource_List.nodes``, or at OpenPBS ``select``, as the server stores it."""
    trouble: str = ""
    """Why the request cannot be understood; such a job is never started by guess."""

    @functools.cached_property
    def gpus_anywhere(self) -> int:
        """GPUs asked as a generic resource (``-l gpus=N``); the server itself would give none."""
        return sum(entry.count for entry in self.gres if entry.name in {"gpus", "gpu"})

    @functools.cached_property
    def pieces(self) -> tuple[Chunk, ...]:
        """The chunks or tasks; a job that asks for neither gets one processor of one node."""
        return self.chunks or self.tasks or (() if self.procs else (Chunk(),))

    @functools.cached_property
    def n_pieces(self) -> int:
        """Number of pieces, counts included."""
        return sum(piece.count for piece in self.pieces)

    @functools.cached_property
    def n_procs(self) -> int:
        """Processors of the whole job."""
        return sum(piece.count * piece.slots for piece in self.pieces) + (0 if self.pieces else self.procs)

    @property
    def n_cpus(self) -> int:
        """Processors of the whole job by any word, ``ncpus`` too."""
        return max(self.ncpus, self.n_procs)

    @functools.cached_property
    def n_gpus(self) -> int:
        """GPUs of the whole job, however they were asked."""
        return sum(piece.count * piece.gpus for piece in self.pieces) + self.gpus_anywhere

    @property
    def wants_empty_nodes(self) -> bool:
        """Whether no other job may run on this job's nodes."""
        return self.node_exclusive or self.access in {AccessPolicy.SINGLE_JOB, AccessPolicy.SINGLE_TASK}
