"""The account of one node during one cycle: what is free, how busy it is, what is promised of it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torque_sched.decide.context import Load
from torque_sched.decide.needs import ResourceChunk, Shape, Wanted, times
from torque_sched.decide.rules import Rates
from torque_sched.model.cluster import Job, Node
from torque_sched.model.parts import Alone, NodePart, alone_on, taken_of
from torque_sched.model.reasons import Reason
from torque_sched.model.request import AccessPolicy


class Refusal(enum.Enum):
    """Why a node is no place for a job now, with the words for it; in the order in which they are found."""

    NOT_MATCHING = "other host, property or feature"
    TOO_SMALL = "too small"
    UNUSABLE = "down, offline or not reporting"
    BUSY = "busy"
    NOTED = "has a note"
    BACK_OFF = "failed to start jobs lately"
    JOB_BACK_OFF = "failed to start this job lately"
    NO_SLOTS = "full"
    NO_GPUS = "no free GPU"
    BAD_GPUS = "next GPU is in use by a stray or sick"
    KEPT_FOR_GPUS = "slots kept for its idle GPUs"
    NO_MEMORY = "too little memory free"
    NO_RESOURCE = "too little free of a resource of the site"
    NO_PARTS = "no vnodes free for its chunks"
    LEARNED_MEMORY = "less memory free than such jobs use"
    NOT_EMPTY = "not empty"
    TAKEN_ALONE = "taken by a job or user that wants it alone"
    RESERVED = "reserved"

    @property
    def reason(self) -> Reason:
        """The reason for its owner when this is what keeps a job waiting."""
        return _REASONS[self]


_REASONS = {
    Refusal.NOT_MATCHING: Reason.NEVER_FITS,
    Refusal.TOO_SMALL: Reason.NEVER_FITS,
    Refusal.UNUSABLE: Reason.NODES_UNUSABLE,
    Refusal.BUSY: Reason.NODES_TOO_LOADED,
    Refusal.NOTED: Reason.NODES_UNUSABLE,
    Refusal.BACK_OFF: Reason.NODES_BACK_OFF,
    Refusal.JOB_BACK_OFF: Reason.NODES_BACK_OFF,
    Refusal.NO_SLOTS: Reason.NO_FREE_SLOTS,
    Refusal.NO_GPUS: Reason.NO_FREE_GPUS,
    Refusal.BAD_GPUS: Reason.NO_FREE_GPUS,
    Refusal.KEPT_FOR_GPUS: Reason.NO_FREE_SLOTS,
    Refusal.NO_MEMORY: Reason.NO_FREE_MEMORY,
    Refusal.NO_RESOURCE: Reason.NOT_ENOUGH_NODES,
    Refusal.NO_PARTS: Reason.NO_FREE_SLOTS,
    Refusal.LEARNED_MEMORY: Reason.LEARNED_MEMORY,
    Refusal.NOT_EMPTY: Reason.NO_EMPTY_NODES,
    Refusal.TAKEN_ALONE: Reason.NO_FREE_SLOTS,
    Refusal.RESERVED: Reason.RESERVED_FOR_OTHERS,
}


INFINITE = math.inf


@dataclass(frozen=True, slots=True)
class Held:
    """What one job holds of one node."""

    job: Job
    slots: int
    gpus: int
    mem_bytes: int
    vmem_bytes: int
    others: tuple[tuple[str, int], ...] = ()

    @property
    def with_swap_bytes(self) -> int:
        """Memory with swap it takes: what is asked of memory is a part of that."""
        return max(self.mem_bytes, self.vmem_bytes)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job on a node."""

    end_s: float
    is_known: bool
    held: Held


Ready: TypeAlias = tuple[float, bool]
"""A time, and whether it is known."""


@dataclass(slots=True)
class NodeEnds:
    """The ends of the jobs on a node; a node keeps it until one of its jobs changes.

    Attributes:
        from_s: when they were looked at.
        until_s: looked at before then, they are the same.
        ends: soonest first.
        ready: when the node is ready for a piece; None: not within what is known.
    """

    from_s: float
    until_s: float
    ends: list[End]
    ready: dict[Wanted, Ready | None] = field(default_factory=dict)

    def is_good(self, now_s: float) -> bool:
        """Whether they are the same now."""
        return self.from_s <= now_s < self.until_s or now_s == self.from_s


@dataclass(slots=True)
class KeptAmounts:
    """What a reservation to come leaves beside what runs until then, and what starts meanwhile.

    Attributes:
        spare: by resource, of those that it keeps.
    """

    start_s: float
    end_s: float
    spare: dict[str, float]

    def keeps_out(self, piece: ResourceChunk, now_s: float, until_s: float) -> bool:
        """Whether the piece would run into it, and asks for more than it leaves."""
        if until_s <= self.start_s or now_s >= self.end_s:
            return False
        return any(n > self.spare.get(name, INFINITE) for name, n in needs_of(piece).items())

    def take(self, piece: ResourceChunk, until_s: float) -> None:
        """The piece starts now."""
        for name, n in needs_of(piece).items() if until_s > self.start_s else ():
            if name in self.spare:
                self.spare[name] -= n


class PartsLedger:
    """What is left of each part of a node.

    Args:
        parts: of the node as the cycle begins.
    """

    __slots__ = ("_free", "_in_use", "_parts", "_taken")

    def __init__(self, parts: Sequence[NodePart]) -> None:
        self._parts = parts
        self._free = [dict(part.free) for part in parts]
        self._taken = [part.is_taken for part in parts]
        self._in_use = [bool(part.jobs) for part in parts]

    def places(
        self, piece: ResourceChunk, access: AccessPolicy | None, *, is_idle: bool = False
    ) -> list[tuple[int, dict[str, int]]] | None:
        """Parts by their places for all that is joined in the piece, with what is taken of each.

        Args:
            piece: of a job.
            access: that of the job.
            is_idle: whether to ask the idle node.

        Returns:
            None: they do not take it.
        """
        chunks = piece.made_of
        if len(chunks) == 1:
            return self._places(chunks, access, is_idle)
        largest = sorted(chunks, key=lambda chunk: (-chunk.gpus, -chunk.slots))
        orders = chunks, largest, largest[::-1]
        return next((found for each in orders if (found := self._places(each, access, is_idle))), None)

    def _places(
        self, chunks: Iterable[ResourceChunk], access: AccessPolicy | None, is_idle: bool
    ) -> list[tuple[int, dict[str, int]]] | None:
        place_of = {part.name: place for place, part in enumerate(self._parts)}
        free = [dict(part.has) for part in self._parts] if is_idle else [dict(each) for each in self._free]
        own: set[int] = set()
        found: list[tuple[int, dict[str, int]]] = []
        for chunk in chunks:
            needs = needs_of(chunk)
            for _ in range(chunk.count):
                open_to_it = [
                    (part.name, free[place]) for place, part in enumerate(self._parts)
                    if chunk.properties <= part.properties
                    and (is_idle or not self._is_closed(place, access))
                    and not (chunk.on_own_part and place in own)
                ]  # fmt: skip
                shares = taken_of(needs, open_to_it, may_spread=not chunk.on_own_part)
                if not shares:
                    return None
                for name, amounts in shares:
                    place = place_of[name]
                    own.add(place)
                    found.append((place, amounts))
                    for each, n in amounts.items():
                        free[place][each] = free[place].get(each, 0) - n
        return found

    def _is_closed(self, place: int, access: AccessPolicy | None) -> bool:
        if self._taken[place]:
            return True
        return self._in_use[place] and alone_on(self._parts[place].sharing, access) is not Alone.NOTHING

    def take(self, piece: ResourceChunk, access: AccessPolicy | None) -> None:
        """A job starts here; what does not fit is taken as far as there is any."""
        for place, amounts in self.places(piece, access) or ():
            self._in_use[place] = True
            self._taken[place] |= alone_on(self._parts[place].sharing, access) is not Alone.NOTHING
            for name, n in amounts.items():
                self._free[place][name] = self._free[place].get(name, 0) - n


def needs_of(piece: ResourceChunk) -> dict[str, int]:
    """What a piece asks for by the names that parts have."""
    needs = {"ncpus": piece.slots, "ngpus": piece.gpus, "mem": int(piece.mem_bytes), **dict(piece.others)}
    return {name: n for name, n in needs.items() if n}


class NodeLedger:
    """Slots, GPUs and memory left on a node, its load, and why it may be closed.

    During a cycle everything here only shrinks, so what did not fit once does not fit later.
    """

    __slots__ = (
        "avail_bytes",
        "blocked",
        "capacity",
        "cpu_cores",
        "ends",
        "gpu_mem_bytes",
        "gpus_busy",
        "gpus_clean",
        "gpus_free",
        "index",
        "is_closed",
        "is_taken",
        "job_users",
        "kept_amounts",
        "kept_per_gpu",
        "loadave",
        "mem_bytes",
        "mem_free_bytes",
        "most_mem_bytes",
        "most_vmem_bytes",
        "n_jobs",
        "name",
        "node",
        "others_free",
        "parts",
        "promised_s",
        "properties",
        "rates",
        "reserved",
        "reserved_now",
        "single_user",
        "slots",
        "slots_free",
        "spare_bytes",
        "spare_gpus",
        "spare_slots",
        "tick",
        "unknown_is_mean",
        "version",
        "vmem_free_bytes",
        "why",
    )

    def __init__(self, index: int, node: Node, capacity: Load, rates: Rates) -> None:
        self.index, self.node, self.name, self.slots = index, node, node.name, node.slots
        self.properties = frozenset(node.properties)
        self.capacity, self.rates = capacity, rates
        #: Load in use: measured, and placed since.
        self.cpu_cores = self.mem_bytes = self.gpus_busy = self.gpu_mem_bytes = 0.0
        self.loadave = 0.0
        self.slots_free = node.slots
        self.gpus_free = node.gpus
        #: For each free GPU, lowest index first, whether it may be handed out.
        self.gpus_clean: list[bool] = []
        status = node.status
        #: All there is; infinite while the node reported nothing.
        self.most_mem_bytes = float((status and status.physmem_bytes) or INFINITE)
        self.most_vmem_bytes = float((status and status.totmem_bytes) or INFINITE)
        #: Not yet asked for by jobs here.
        self.mem_free_bytes, self.vmem_free_bytes = self.most_mem_bytes, self.most_vmem_bytes
        if node.mem_assigned_bytes is not None:
            self.mem_free_bytes -= node.mem_assigned_bytes
        #: Of resources that the site counts here besides.
        self.others_free = {name: each.available - each.assigned for name, each in node.others.items()}
        #: Of what a job may have alone; None: of the whole node only.
        self.parts = PartsLedger(node.parts) if node.parts else None
        #: Free with swap by the last report, less what was placed since.
        free_now = status.availmem_bytes if status is not None else None
        self.avail_bytes = INFINITE if free_now is None else float(free_now)
        self.n_jobs = 0
        self.job_users: set[str] = set()
        self.is_closed = False
        self.single_user = ""
        self.blocked: Refusal | None = None
        self.why = ""
        self.kept_per_gpu = 0
        self.unknown_is_mean = False
        #: From when on something is promised, and what is left beside the promise then.
        self.promised_s = INFINITE
        self.spare_slots = self.spare_gpus = 0
        self.spare_bytes = 0.0
        #: Reservations: (start, end, users who may).
        self.reserved: tuple[tuple[float, float, frozenset[str]], ...] = ()
        #: Of reservations of amounts: those to come; slots and GPUs for those of now.
        self.kept_amounts: list[KeptAmounts] = []
        self.reserved_now = (0, 0)
        self.tick = 0
        self.version = 0
        #: A job was started here in this cycle.
        self.is_taken = False
        #: When its jobs end, once somebody asked (`draining`).
        self.ends: NodeEnds | None = None

    def block(self, refusal: Refusal, why: str) -> None:
        """Take no job here during this cycle; the first cause stays."""
        if self.blocked is None:
            self.blocked, self.why = refusal, why

    def too_small(self, piece: ResourceChunk) -> bool:
        """Whether the piece could not run here even if the node were idle."""
        return (
            piece.slots > self.slots
            or piece.gpus > self.node.gpus
            or piece.mem_bytes > self.most_mem_bytes
            or piece.vmem_bytes > self.most_vmem_bytes
            or (bool(piece.others) and not self._has_ever(piece))
            or self._lacks_parts(piece, None, is_idle=True)
        )

    def _lacks_parts(self, piece: ResourceChunk, access: AccessPolicy | None, *, is_idle: bool) -> bool:
        """Whether the node's parts, or its being one whole, are against it."""
        if self.parts is None:
            return piece.on_own_part and (len(piece.joined) > 1 or piece.made_of[0].count > 1)
        return self.parts.places(piece, access, is_idle=is_idle) is None

    def most_ever(self, piece: ResourceChunk, limit: int) -> int:
        """How many such pieces, up to a limit, the idle node takes where several may lie on it."""
        gpus = self.node.gpus // piece.gpus if piece.gpus else limit
        most = min(self.slots // piece.slots, gpus, limit)
        if self.parts is None:
            return min(most, 1) if piece.on_own_part else most
        while most and self.parts.places(times(piece, most), None, is_idle=True) is None:
            most -= 1
        return most

    def closes_for(self, access: AccessPolicy | None, *, is_empty: bool) -> bool:
        """Whether a job of this kind has the whole node alone."""
        alone = alone_on(self.node.sharing, access)
        return is_empty or alone is Alone.NODE or (alone is Alone.PART and self.parts is None)

    def _has_ever(self, piece: ResourceChunk) -> bool:
        known = self.node.others
        return all(name in known and amount <= known[name].available for name, amount in piece.others)

    def refusal(self, piece: ResourceChunk, shape: Shape) -> Refusal | None:
        """Why a matching piece does not fit now; None: it does. Time is not looked at."""
        if self.blocked is not None:
            return self.blocked
        if piece.slots > self.slots_free:
            return Refusal.NO_SLOTS
        if self.is_closed:
            return Refusal.TAKEN_ALONE
        if piece.gpus:
            if piece.gpus > self.gpus_free or not all(self.gpus_clean[: piece.gpus]):
                return Refusal.NO_GPUS if piece.gpus > self.gpus_free else Refusal.BAD_GPUS
        elif self._keeps_slots(piece, shape):
            return Refusal.KEPT_FOR_GPUS
        if piece.mem_bytes or piece.vmem_bytes or piece.learned_bytes or piece.others:
            found = self._memory_refusal(piece)
            if found is not None:
                return found
        if shape.empty or shape.access or self.single_user or self.parts or piece.on_own_part:
            return self._company_refusal(piece, shape)
        return None

    def _keeps_slots(self, piece: ResourceChunk, shape: Shape) -> bool:
        idle_gpus = self.gpus_free
        if not idle_gpus or not self.kept_per_gpu or shape.fit.may_use_kept or shape.wants_gpus:
            return False
        return self.slots_free - piece.slots < min(self.kept_per_gpu * idle_gpus, self.slots - 1)

    def _memory_refusal(self, piece: ResourceChunk) -> Refusal | None:
        # What is not asked for may be overdrawn: others start jobs, too, whatever they ask for.
        if piece.mem_bytes and piece.mem_bytes > min(self.mem_free_bytes, self.avail_bytes):
            return Refusal.NO_MEMORY
        if piece.vmem_bytes and piece.vmem_bytes > min(self.vmem_free_bytes, self.avail_bytes):
            return Refusal.NO_MEMORY
        if any(amount > self.others_free.get(name, 0) for name, amount in piece.others):
            return Refusal.NO_RESOURCE
        return Refusal.LEARNED_MEMORY if piece.learned_bytes > max(0.0, self.avail_bytes) else None

    def _company_refusal(self, piece: ResourceChunk, shape: Shape) -> Refusal | None:
        if self.n_jobs and self.closes_for(shape.access, is_empty=shape.empty):
            return Refusal.NOT_EMPTY
        if self.single_user and self.single_user != shape.user:
            return Refusal.TAKEN_ALONE
        if shape.access is AccessPolicy.SINGLE_USER and self.job_users - {shape.user}:
            return Refusal.NOT_EMPTY
        if shape.access is AccessPolicy.UNIQUE_USER and shape.user in self.job_users:
            return Refusal.NOT_EMPTY
        return Refusal.NO_PARTS if self._lacks_parts(piece, shape.access, is_idle=False) else None

    def is_kept_at(self, piece: ResourceChunk, now_s: float, until_s: float, user: str) -> bool:
        """Whether a promise or a reservation keeps the piece away if it runs until ``until_s``."""
        for start_s, end_s, users in self.reserved:
            if until_s > start_s and now_s < end_s and user not in users:
                return True
        if any(kept.keeps_out(piece, now_s, until_s) for kept in self.kept_amounts):
            return True
        if until_s <= self.promised_s:
            return False
        mem_bytes = piece.with_swap_bytes
        return (
            piece.slots > self.spare_slots
            or (piece.gpus > 0 and piece.gpus > self.spare_gpus)
            or (mem_bytes > 0 and mem_bytes > self.spare_bytes)
        )

    def expected(self, piece: ResourceChunk) -> Load:
        """What the piece is expected to add; without history what it asks for, or the node's mean job."""
        if piece.load is not None:
            return piece.load
        if self.unknown_is_mean and self.n_jobs:
            part = 1.0 / self.n_jobs
            return Load(
                self.cpu_cores * part,
                self.mem_bytes * part,
                self.gpus_busy * part if piece.gpus else 0.0,
                self.gpu_mem_bytes * part if piece.gpus else 0.0,
            )
        return Load(float(piece.slots), float(piece.mem_bytes), float(piece.gpus), 0.0)

    def add_load(self, load: Load) -> None:
        """What something placed here uses from now on."""
        self.cpu_cores += load.cpu_cores
        self.mem_bytes += load.mem_bytes
        self.gpus_busy += load.gpus
        self.gpu_mem_bytes += load.gpu_mem_bytes

    def occupy(self, slots: int, gpus: int) -> None:
        """Slots and GPUs are a job's now; the server hands out the lowest free GPU."""
        self.slots_free = max(0, self.slots_free - slots)
        self.gpus_free = max(0, self.gpus_free - gpus)
        del self.gpus_clean[:gpus]
        self.n_jobs += 1

    def commit_memory(self, mem_bytes: float, vmem_bytes: float) -> None:
        """A job here asked for this."""
        self.mem_free_bytes -= mem_bytes
        self.vmem_free_bytes -= max(mem_bytes, vmem_bytes)

    def commit_others(self, others: Iterable[tuple[str, int]]) -> None:
        """A job here asked for this of the site's resources."""
        for name, amount in others:
            self.others_free[name] = self.others_free.get(name, 0) - amount

    def take(self, piece: ResourceChunk, shape: Shape, user: str, until_s: float) -> None:
        """The piece starts here now."""
        self.is_taken, self.ends = True, None
        load = self.expected(piece)
        self.occupy(piece.slots, piece.gpus)
        self.commit_memory(piece.mem_bytes, piece.vmem_bytes)
        self.commit_others(piece.others)
        if self.parts is not None:
            self.parts.take(piece, shape.access)
        self.avail_bytes -= max(piece.with_swap_bytes, load.mem_bytes)
        self.add_load(load)
        self.loadave += piece.slots
        self.job_users.add(user)
        if self.closes_for(shape.access, is_empty=shape.empty):
            self.is_closed = True
        elif shape.access is AccessPolicy.SINGLE_USER:
            self.single_user = user
        for kept in self.kept_amounts:
            kept.take(piece, until_s)
        if until_s > self.promised_s:
            self.spare_slots -= piece.slots
            self.spare_gpus -= piece.gpus
            self.spare_bytes -= piece.with_swap_bytes

    def promise(self, start_s: float, spare_slots: int, spare_gpus: int, spare_bytes: float) -> None:
        """From ``start_s`` on only this much is left beside what is promised to waiting jobs."""
        if self.promised_s == INFINITE:
            self.promised_s, self.spare_slots = start_s, spare_slots
            self.spare_gpus, self.spare_bytes = spare_gpus, spare_bytes
            return
        self.promised_s = min(self.promised_s, start_s)
        self.spare_slots = min(self.spare_slots, spare_slots)
        self.spare_gpus = min(self.spare_gpus, spare_gpus)
        self.spare_bytes = min(self.spare_bytes, spare_bytes)

    def reserve_now(self, amounts: Mapping[str, int]) -> None:
        """A reservation runs that keeps this for its own jobs."""
        slots, gpus = amounts.get("ncpus", 0), amounts.get("ngpus", 0)
        slots, gpus = min(slots, self.slots_free), min(gpus, self.gpus_free)
        self.slots_free -= slots
        self.gpus_free -= gpus
        del self.gpus_clean[:gpus]
        self.commit_memory(amounts.get("mem", 0), 0)
        self.commit_others((name, n) for name, n in amounts.items() if name in self.others_free)
        self.reserved_now = self.reserved_now[0] + slots, self.reserved_now[1] + gpus

    def reserve_later(
        self, start_s: float, end_s: float, amounts: Mapping[str, int], ended: Sequence[Held]
    ) -> None:
        """A reservation is to come that keeps this; `ended`: what is held until it begins, and no longer."""
        free: dict[str, float] = {
            "ncpus": self.slots_free + sum(each.slots for each in ended),
            "ngpus": self.gpus_free + sum(each.gpus for each in ended),
            "mem": self.mem_free_bytes + sum(each.mem_bytes for each in ended),
            **self.others_free,
        }
        spare = {name: free[name] - n for name, n in amounts.items() if n and name in free}
        self.kept_amounts.append(KeptAmounts(start_s, end_s, spare))

    def forget_promises(self) -> None:
        """Another cycle begins."""
        self.promised_s = INFINITE
        self.spare_slots = self.spare_gpus = 0
        self.spare_bytes = 0.0
        self.version = 0

    def keep_out(self, reservations: Iterable[tuple[float, float, frozenset[str]]]) -> None:
        """Reservations of this node."""
        self.reserved = (*self.reserved, *reservations)
