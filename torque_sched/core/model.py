"""What a Torque server has, as frozen values: jobs, nodes, queues, the server.

Times are seconds since the epoch (``*_s``), memory is bytes, utilisation a fraction from 0 to 1. The
names are Torque's own: ``np`` processors (slots) of a node, ``ppn`` processors a job asks of each node.
Attributes this package does not use are kept as text in ``extra``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from torque_sched.core.request import Request
from torque_sched.core.states import HoldType, JobState, NodeState
from torque_sched.core.units import amount
from torque_sched.errors import ModelError, UnitError

JobId = NewType("JobId", str)
NodeName = NewType("NodeName", str)
QueueName = NewType("QueueName", str)

_JOB_ID = re.compile(r"([0-9]{1,18})(?:\[([0-9]{0,18})\]|-([0-9]{1,18}))?(?:\..*)?", re.DOTALL)


def job_number(job: str) -> tuple[int, int | None]:
    """The sequence number of a job id and its index in the array; None outside of arrays.

    A whole array (``47[].head``) has index -1.

    >>> job_number("44.head"), job_number("47[2].head"), job_number("47[].head")
    ((44, None), (47, 2), (47, -1))

    Raises:
        ModelError: the text is no job id.
    """
    found = _JOB_ID.fullmatch(job)
    if found is None:
        raise ModelError(
            f"{job[:60]!r} is no job id", cure="a job id is NUMBER.server or NUMBER[INDEX].server"
        )
    number, bracketed, dashed = found.groups()
    index = dashed if bracketed is None else bracketed
    return int(number), None if index is None else (-1 if index == "" else int(index))


@dataclass(frozen=True, slots=True)
class HostSlots:
    """Slots ``first`` to ``last`` (both included) of one node, as ``exec_host`` names them."""

    node: NodeName
    first: int
    last: int

    @property
    def n_slots(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class JobSlots:
    """Slots ``first`` to ``last`` (both included) of a node in use by one job."""

    job: JobId
    first: int
    last: int

    @property
    def n_slots(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class GpuSlot:
    """One GPU a job holds, from ``exec_gpus`` (``node4-gpu/0``)."""

    node: NodeName
    index: int


@dataclass(frozen=True, slots=True)
class Dependency:
    """One ``kind:job:job`` part of ``depend``; ``beforeok`` and the like point the other way."""

    kind: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UsedResources:
    """What a job has used up to the mom's last report; None where it reported nothing."""

    cput_s: float | None = None
    walltime_s: float | None = None
    mem_bytes: int | None = None
    vmem_bytes: int | None = None
    energy_used: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the server sees it; array members are jobs of their own."""

    id: JobId
    state: JobState
    queue: QueueName
    request: Request = field(default_factory=Request)
    name: str = ""
    owner: str = ""
    """``user@host``."""
    user: str = ""
    """The user it runs as (``euser``), which limits count; the owner's name until that is set."""
    group: str = ""
    sequence: int = 0
    array_index: int | None = None
    """Index in the array, -1 for a whole array, None outside of arrays."""
    array_slot_limit: int | None = None
    """How many members may run at once, where the server or the submission says so."""
    priority: int = 0
    ctime_s: float | None = None
    qtime_s: float | None = None
    etime_s: float | None = None
    """Since when it could run."""
    start_s: float | None = None
    start_count: int = 0
    execution_time_s: float | None = None
    """Not to be started earlier (``qsub -a``)."""
    comp_s: float | None = None
    exit_status: int | None = None
    total_runtime_s: float | None = None
    walltime_remaining_s: float | None = None
    hold_types: frozenset[HoldType] = frozenset()
    substate: int = 0
    depend: tuple[Dependency, ...] = ()
    exec_host: tuple[HostSlots, ...] = ()
    exec_gpus: tuple[GpuSlot, ...] = ()
    used: UsedResources = UsedResources()
    comment: str = ""
    account: str = ""
    submit_args: str = ""
    init_work_dir: str = ""
    interactive: bool = False
    rerunnable: bool = True
    queue_rank: int = 0

    def __post_init__(self) -> None:
        if not self.id:
            raise ModelError("a job without an id")

    @property
    def key(self) -> tuple[int, int]:
        """Sorts jobs as they were submitted, array members by index."""
        return self.sequence, -1 if self.array_index is None else self.array_index

    @property
    def is_array_parent(self) -> bool:
        """Whether this is a whole array, which cannot be run; its members can."""
        return self.array_index == -1

    @property
    def array(self) -> int | None:
        """The sequence number shared by the members of an array, None outside of arrays."""
        return None if self.array_index is None else self.sequence

    @property
    def walltime_s(self) -> float | None:
        """The requested limit; None when neither the job nor its queue sets one."""
        return self.request.walltime_s

    @property
    def queued_s(self) -> float:
        """Since when it waits: eligible time, else queue time, else creation."""
        return next((at for at in (self.etime_s, self.qtime_s, self.ctime_s) if at is not None), 0.0)

    def slots_by_node(self) -> dict[NodeName, int]:
        """Slots it holds on each node, first node (mother superior) first."""
        slots: dict[NodeName, int] = {}
        for part in self.exec_host:
            slots[part.node] = slots.get(part.node, 0) + part.n_slots
        return slots

    def gpus_by_node(self) -> dict[NodeName, int]:
        """GPUs it holds on each node."""
        gpus: dict[NodeName, int] = {}
        for slot in self.exec_gpus:
            gpus[slot.node] = gpus.get(slot.node, 0) + 1
        return gpus


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU as the mom reports it; None where the driver reports nothing."""

    index: int
    gpu_id: str = ""
    product: str = ""
    mode: str = ""
    """``Default``, ``Exclusive_Process``, ``Exclusive_Thread``, ``Prohibited``."""
    state: str = ""
    """``Unallocated``, ``Shared``, ``Exclusive``, ``Unavailable``: the server's book-keeping."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    single_bit_ecc_errors: int | None = None
    double_bit_ecc_errors: int | None = None
    temperature_c: float | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    """Every field as printed, also those above."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The ``gpu_status`` of a node; devices in order of their index."""

    devices: tuple[GpuDevice, ...]
    driver: str = ""
    timestamp: str = ""
    """The node's own clock and locale, so it stays text."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What is said of the whole node, as printed, also the two above."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What the mom last told the server; None where it told nothing."""

    rectime_s: float | None = None
    """When the server received it: the age of everything else here."""
    ncpus: int | None = None
    """Real processors, unlike ``np``."""
    loadave: float | None = None
    """One-minute load; it lags by up to the mom's reporting interval besides."""
    physmem_bytes: int | None = None
    totmem_bytes: int | None = None
    """Memory and swap together."""
    availmem_bytes: int | None = None
    """Free memory and swap together."""
    idletime_s: float | None = None
    netload_bytes: int | None = None
    nusers: int | None = None
    nsessions: int | None = None
    jobs: tuple[JobId, ...] = ()
    varattr: Mapping[str, str] = field(default_factory=dict)
    """``key:value`` lines of the mom's ``$varattr`` script."""
    gres: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    """The health check's words; the server sets a node down when they begin with ERROR."""
    state: str = ""
    version: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    """Every pair as printed and in that order, also those above."""


@dataclass(frozen=True, slots=True)
class Node:
    """One execution host as the server sees it."""

    name: NodeName
    np: int
    """Slots."""
    states: frozenset[NodeState] = frozenset()
    """Empty means free."""
    properties: tuple[str, ...] = ()
    gpus: int = 0
    jobs: tuple[JobSlots, ...] = ()
    power_state: str = ""
    """``Running`` on 6.x; empty where the server knows no power states."""
    ntype: str = "cluster"
    note: str = ""
    status: NodeStatus | None = None
    """None before the mom's first report."""
    gpu_report: GpuReport | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    """Attributes not used here (ports, sockets, cores), as printed."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ModelError(
                "a node without a name", cure="look for an empty entry in the server's nodes file"
            )
        if self.np < 0 or self.gpus < 0:
            raise ModelError(f"node {self.name}: np and gpus must not be negative")

    @property
    def is_up(self) -> bool:
        """Whether the server would start a job here, slots permitting (``busy`` does not hinder it)."""
        return self.states <= _STARTABLE and self.power_state in {"", "Running"}

    @property
    def slots_used(self) -> int:
        """Slots in use; jobs that are suspended are not among them."""
        return sum(part.n_slots for part in self.jobs)

    @property
    def slots_free(self) -> int:
        """Slots not in use, never negative (an admin may lower ``np`` below what runs)."""
        return max(0, self.np - self.slots_used)

    @property
    def mem_bytes(self) -> int:
        """Physical memory; 0 before the mom's first report."""
        return (self.status.physmem_bytes or 0) if self.status is not None else 0


_STARTABLE = frozenset({NodeState.BUSY, NodeState.JOB_EXCLUSIVE, NodeState.JOB_SHARING})


@dataclass(frozen=True, slots=True)
class Resources:
    """One family of limits (``resources_max.*``) as text by resource name."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def amount(self, resource: str) -> float | None:
        """The number (bytes, seconds or a count), None when unset or unreadable."""
        text = self.texts.get(resource)
        if text is None:
            return None
        try:
            return amount(resource, text)
        except UnitError:
            return None

    def __bool__(self) -> bool:
        return bool(self.texts)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What queues and the server have in common; None means no limit."""

    max_running: int | None = None
    max_user_run: int | None = None
    max_group_run: int | None = None
    max_queuable: int | None = None
    max_user_queuable: int | None = None
    resources_available: Resources = Resources()
    resources_assigned: Resources = Resources()
    resources_max: Resources = Resources()
    resources_min: Resources = Resources()
    resources_default: Resources = Resources()
    total_jobs: int | None = None
    state_count: Mapping[str, int] = field(default_factory=dict)
    """Jobs by state word (``Queued``, ``Running``, ...)."""
    keep_completed_s: float | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue(_Limits):
    """One queue with its limits, all of which the scheduler has to keep."""

    name: QueueName = QueueName("")
    queue_type: str = "Execution"
    is_enabled: bool = True
    is_started: bool = True
    """False when its jobs must not run."""
    priority: int = 0
    features_required: tuple[str, ...] = ()

    @property
    def is_execution(self) -> bool:
        """Whether jobs run from here; a route queue only passes them on."""
        return self.queue_type.lower().startswith("e")


@dataclass(frozen=True, slots=True)
class Server(_Limits):
    """The server's own attributes."""

    name: str = ""
    state: str = ""
    scheduling: bool = True
    """The admin's pause switch: False means start nothing."""
    scheduler_iteration_s: float | None = None
    default_queue: str = ""
    node_check_rate_s: float | None = None
    job_stat_rate_s: float | None = None
    query_other_jobs: bool | None = None
    moab_array_compatible: bool | None = None
    next_job_number: int | None = None
    version: str = ""
    """``pbs_version``."""
    managers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    tokens: tuple[tuple[str, float], ...] = ()
    """Licences by name and number, which the scheduler has to count."""
