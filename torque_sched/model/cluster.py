"""A cluster as its batch system shows it, as frozen values: jobs, nodes, queues, the server.

Times are seconds since the epoch (``*_s``), memory is bytes, utilisation a fraction from 0 to 1. A slot is a
processor of a node as the batch system counts it. Attributes this package does not use are kept as text in
``extra``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from torque_sched.errors import ModelError, UnitError
from torque_sched.model.parts import NodePart, Sharing
from torque_sched.model.request import Request
from torque_sched.model.states import HoldType, JobState, NodeState, StartProgress
from torque_sched.model.units import amount

JobId = NewType("JobId", str)
NodeName = NewType("NodeName", str)
QueueName = NewType("QueueName", str)


@dataclass(frozen=True, slots=True)
class HostSlots:
    """Slots ``first`` to ``last`` (both included) of one node."""

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
    """One GPU of a node that a job holds."""

    node: NodeName
    index: int


@dataclass(frozen=True, slots=True)
class Dependency:
    """One ``kind:job:job`` part of ``depend``; ``beforeok`` and the like point the other way."""

    kind: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UsedResources:
    """What a job has used up to its node's last report; None where it reported nothing."""

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
    """Not to be started earlier."""
    comp_s: float | None = None
    exit_status: int | None = None
    total_runtime_s: float | None = None
    walltime_remaining_s: float | None = None
    hold_types: frozenset[HoldType] = frozenset()
    progress: StartProgress = StartProgress.NONE
    """How far its last start has come; a batch system that does not show this leaves it at ``NONE``."""
    depend: tuple[Dependency, ...] = ()
    allocated_slots: tuple[HostSlots, ...] = ()
    allocated_gpus: tuple[GpuSlot, ...] = ()
    used: UsedResources = UsedResources()
    comment: str = ""
    account: str = ""
    project: str = ""
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
    def n_slots_held(self) -> int:
        """Slots it holds on all its nodes."""
        return sum(part.n_slots for part in self.allocated_slots)

    @property
    def queued_s(self) -> float:
        """Since when it waits: eligible time, else queue time, else creation."""
        return next((at for at in (self.etime_s, self.qtime_s, self.ctime_s) if at is not None), 0.0)

    def slots_by_node(self) -> dict[NodeName, int]:
        """Slots it holds on each node, first node first."""
        slots: dict[NodeName, int] = {}
        for part in self.allocated_slots:
            slots[part.node] = slots.get(part.node, 0) + part.n_slots
        return slots

    def gpus_by_node(self) -> dict[NodeName, int]:
        """GPUs it holds on each node."""
        gpus: dict[NodeName, int] = {}
        for slot in self.allocated_gpus:
            gpus[slot.node] = gpus.get(slot.node, 0) + 1
        return gpus


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU as its node reports it; None where the driver reports nothing."""

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
    """The last report of a node to the server; None where it reported nothing."""

    rectime_s: float | None = None
    """When the server received it: the age of everything else here."""
    ncpus: int | None = None
    """Real processors, unlike `Node.slots`."""
    loadave: float | None = None
    """One-minute load; it lags by up to the node's reporting interval besides."""
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
    """``key:value`` lines that a script of the site reports."""
    gres: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    """The health check's words; the server sets a node down when they begin with ERROR."""
    state: str = ""
    version: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    """Every pair as printed and in that order, also those above."""


@dataclass(frozen=True, slots=True)
class SiteResource:
    """An amount that a site counts on a node, such as licences or scratch space, and what of it jobs hold."""

    available: int
    assigned: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One execution host as the server sees it."""

    name: NodeName
    slots: int
    """Slots that jobs may take, whatever processors it has."""
    states: frozenset[NodeState] = frozenset()
    """Empty means free."""
    properties: tuple[str, ...] = ()
    gpus: int = 0
    jobs: tuple[JobSlots, ...] = ()
    power_saving: str = ""
    """The server's word where it powered the node down, such as ``Standby``; empty where it did not."""
    ntype: str = "cluster"
    sharing: Sharing = Sharing.DEFAULT_SHARED
    """Whether a job that runs here has the node alone."""
    parts: tuple[NodePart, ...] = ()
    """Of a node with several that a job may have alone."""
    only_for: str = ""
    """A property that a job must ask for to lie here: the node is a part of a reservation; empty: none."""
    mem_assigned_bytes: int | None = None
    """Memory that jobs here hold by the server's own account; None: it keeps none."""
    others: Mapping[str, SiteResource] = field(default_factory=dict)
    """Resources that the site counts here besides, by name."""
    note: str = ""
    status: NodeStatus | None = None
    """None before its first report."""
    gpu_report: GpuReport | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    """Attributes not used here (ports, sockets, cores), as printed."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ModelError(
                "a node without a name", cure="look for an empty entry in the server's nodes file"
            )
        if self.slots < 0 or self.gpus < 0:
            raise ModelError(f"node {self.name}: slots and gpus must not be negative")

    @property
    def is_exclusive(self) -> bool:
        """Whether a job that says nothing of it has the node alone."""
        return self.sharing.is_exclusive

    @property
    def is_up(self) -> bool:
        """Whether the server would start a job here, slots permitting (``busy`` does not hinder it)."""
        return self.states <= _STARTABLE and not self.power_saving

    @property
    def slots_used(self) -> int:
        """Slots in use; jobs that are suspended are not among them."""
        return sum(part.n_slots for part in self.jobs)

    @property
    def slots_free(self) -> int:
        """Slots not in use, never negative (an admin may lower ``slots`` below what runs)."""
        return max(0, self.slots - self.slots_used)

    @property
    def mem_bytes(self) -> int:
        """Physical memory; 0 before its first report."""
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
class RunLimit:
    """The most that runs at once of one user, group or project, or of all.

    Attributes:
        kind: ``user``, ``group``, ``project``; empty: all jobs together.
        name: of the user, group or project; empty: each one who has no limit of its own.
        resource: what is counted; empty: jobs.
    """

    kind: str
    name: str
    most: float
    resource: str = ""


@dataclass(frozen=True, slots=True)
class _Limits:
    """What queues and the server have in common; None means no limit."""

    max_running: int | None = None
    max_user_run: int | None = None
    max_group_run: int | None = None
    run_limits: tuple[RunLimit, ...] = ()
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

    @property
    def n_holding(self) -> int:
        """Jobs that hold nodes, by the server's own count."""
        return self.state_count.get("Running", 0) + self.state_count.get("Exiting", 0)


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
    holds_beyond_array_limits: bool | None = None
    """Whether the server itself holds the members of an array beyond the array's slot limit."""
    next_job_number: int | None = None
    version: str = ""
    """Of the batch system."""
    managers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    tokens: tuple[tuple[str, float], ...] = ()
    """Licences by name and number, which the scheduler has to count."""
