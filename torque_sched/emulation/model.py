"""What the emulated server remembers: jobs, nodes, queues, in Torque's own attribute names.

Everything here can be written as JSON and read back (:func:`to_record`, :func:`from_record`), because
the state has to outlive a killed server. Times are seconds since the epoch (``*_s``).
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

NO_SLOTS = -1
"""The slot limit of an array of which nothing may run."""
Record = TypeVar("Record")


class Refused(Exception):
    """The server said no: ``code`` is the PBS error number (15001 ...), ``text`` what clients print."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def exit_code(self) -> int:
        """What qsub, qdel, qalter and qstat exit with."""
        return self.code % 256


@dataclass(slots=True)
class EmulatedJob:
    """One job, one array member, or (``members`` set) one array as a whole."""

    id: str
    rank: int
    user: str
    group: str
    queue: str
    state: str
    substate: int
    attributes: dict[str, str] = field(default_factory=dict)
    """Torque's plain attributes; times as epoch seconds."""
    resources: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    holds: str = ""
    """Letters of u, o, s, l; empty means none."""
    parent: str = ""
    members: list[str] = field(default_factory=list)
    slot_limit: int = 0
    """0: none; `NO_SLOTS`: no member may run."""
    slots: list[tuple[str, list[int]]] = field(default_factory=list)
    gpus: list[tuple[str, int]] = field(default_factory=list)
    is_suspended: bool = False
    profile: dict[str, float] = field(default_factory=dict)
    """cpu (load per slot), mem_kb, gpu (percent), gpu_mem_mb."""
    runtime_s: float | None = None
    exit_with: int = 0
    start_s: float = 0.0
    ends_s: float | None = None
    depends: list[tuple[str, str]] = field(default_factory=list)
    """(kind, job id) still unmet."""
    awaited: list[str] = field(default_factory=list)
    """Of an array: ids of the jobs that wait for all of it."""
    defaulted: list[str] = field(default_factory=list)
    """Resources that the queue gave, not the user."""
    has_executed: bool = False
    """Moved from an execution queue into a routing queue."""
    is_anonymous: bool = False
    """Seen on real servers: what waited in a routing queue for room has no euser and no egroup."""
    script: str = ""
    executes: bool = False
    cached: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def walltime_s(self) -> float | None:
        """The limit it asked for."""
        text = self.resources.get("walltime")
        return None if text is None else float(seconds_of(text))

    @property
    def is_array(self) -> bool:
        """Whether it stands for a whole array, which may have no member at all."""
        return "[]" in self.id

    @property
    def is_active(self) -> bool:
        """Whether it stands on nodes."""
        return self.state in "RES"

    def seconds(self, attribute: str) -> int:
        """An epoch attribute as a number; 0 when it is not set."""
        return int(self.attributes.get(attribute, "0"))


@dataclass(slots=True)
class EmulatedNode:
    """One execution host: its place in the nodes file, what an operator set, and its mom."""

    name: str
    np: int
    gpus: int = 0
    properties: list[str] = field(default_factory=list)
    offline: bool = False
    note: str = ""
    marked_down: bool = False
    """Set by a failed start or ``pbsnodes -r``; cleared by the next report."""
    marked_down_s: float = 0.0
    mom: str = "up"
    """up, stopped (refuses connections) or hanging (accepts, never answers)."""
    mom_changed_s: float = 0.0
    is_failing: bool = False
    """Every job start fails here."""
    listed_s: float = 0.0
    """When qmgr made it, until its mom has the list of all nodes."""
    flap_s: float = 0.0
    physmem_kb: int = 24684092
    swap_kb: int = 0
    ncpus: int = 0
    base_load: float = 0.0
    fixed_load: float | None = None
    has_nvml: bool = False
    gpu_product: str = "NVIDIA A100-SXM4-40GB"
    gpu_mem_mb: int = 40960
    gpu_stray: dict[str, float] = field(default_factory=dict)
    """GPU index -> percent used by something that is not a job."""
    varattr: str = ""
    message: str = ""
    max_load: float | None = None
    ideal_load: float | None = None
    gres: str = ""
    jobend_report: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    """Of a vnode of OpenPBS: ``resources_available.mem``, ``sharing``, ``comment`` ..."""


@dataclass(slots=True)
class EmulatedQueue:
    """One queue; ``attributes`` are the settable ones in their raw text."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    mtime_s: int = 0
    assigned: list[str] = field(default_factory=list)
    """Resources that were ever assigned: shown even when they are back at zero."""

    def is_true(self, attribute: str) -> bool:
        """Whether a boolean attribute is on."""
        return self.attributes.get(attribute, "False") == "True"


@dataclass(slots=True)
class EmulatedObject:
    """What else qmgr of OpenPBS keeps: ``name`` is kind and name, as ``hook wake`` or ``resource ngpus``."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)


def to_record(value: Any) -> dict[str, Any]:
    """One of the above as a dict that JSON can hold; defaults and caches are left out."""
    record = {}
    for name, default in _DEFAULTS[type(value)]:
        content = getattr(value, name)
        if content != default:
            record[name] = content
    return record


def _default_of(entry: dataclasses.Field[Any]) -> Any:
    if entry.default is not dataclasses.MISSING:
        return entry.default
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return dataclasses.MISSING


_DEFAULTS: dict[type[Any], tuple[tuple[str, Any], ...]] = {
    kind: tuple((each.name, _default_of(each)) for each in dataclasses.fields(kind) if each.name != "cached")
    for kind in (EmulatedJob, EmulatedNode, EmulatedQueue, EmulatedObject)
}


def from_record(kind: type[Record], record: dict[str, Any]) -> Record:
    """The inverse of :func:`to_record`."""
    value = kind(**record)
    if isinstance(value, EmulatedJob):
        value.slots = [(name, list(indices)) for name, indices in value.slots]
        value.gpus = [(name, index) for name, index in value.gpus]
        value.depends = [(kind_, other) for kind_, other in value.depends]
    return value


def job_order(job: EmulatedJob) -> int:
    """The order in which qstat lists jobs."""
    return job.rank


def range_text(indices: list[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``0-2,5``."""
    parts: list[str] = []
    ordered = sorted(indices)
    start = 0
    for place, index in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != index + 1:
            first = ordered[start]
            parts.append(str(first) if first == index else f"{first}-{index}")
            start = place + 1
    return ",".join(parts)


def range_indices(text: str) -> list[int]:
    """``0-2,5`` -> 0, 1, 2, 5, once each; what is below zero counts for nothing, blanks separate as well.

    Raises:
        ValueError: not such a text.
    """
    found: dict[int, None] = {}
    parts = re.split("[, ]+", text.strip())
    for part in parts:
        match = re.fullmatch(r"(-?\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(text)
        found.update(dict.fromkeys(range(max(0, int(match[1])), int(match[2] or match[1]) + 1)))
    return list(found)


def seconds_of(text: str) -> int:
    """``01:30:00``, ``90:00`` or ``5400`` -> seconds.

    Raises:
        ValueError: not such a text.
    """
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


def walltime_text(seconds: float) -> str:
    """Seconds -> ``HH:MM:SS`` (hours may pass 99)."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


_UNITS = {
    "b": 1,
    "kb": 1024,
    "mb": 1024**2,
    "gb": 1024**3,
    "tb": 1024**4,
    "w": 8,
    "kw": 8192,
    "mw": 8 * 1024**2,
}


def size_kb(text: str) -> int:
    """``2gb``, ``2147483648b``, ``100`` (bytes) -> KiB, rounded up; PBS ``kb`` means 1024 bytes.

    Raises:
        ValueError: not such a text.
    """
    lowered = text.strip().lower()
    digits = lowered.rstrip("bkmgtpw")
    unit = lowered[len(digits) :] or "b"
    if unit not in _UNITS:
        raise ValueError(text)
    return -(-int(digits) * _UNITS[unit] // 1024)
