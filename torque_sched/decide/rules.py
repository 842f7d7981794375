"""The rules of a site as values: what is checked, what is kept free, what is avoided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Job, QueueName

DEFAULT_WALLTIME_S = 0.0
"""What a job without walltime is taken to need; 0: nobody knows."""
CHARGED_WALLTIME_S = 3600.0
"""What it counts as then where something has to be charged: by fair share and by limits."""
ANYBODY = "*"
"""The name of a limit of everybody who has none of his own."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of one core and of one GPU of a node, in any unit used for all nodes (MHz for the paper)."""

    cpu: float = 1.0
    gpu: float = 1.0


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Which nodes are used at all.

    Attributes:
        avoid_busy: leave out nodes that report to be busy (the server itself would accept jobs there).
        avoid_noted: leave out nodes with a note. Notes outlive their cause, hence off.
        stale_after_s: a load report older than this is not trusted: the uncertainty is added to it.
        dead_after_s: a node whose last report is so much older than the newest of all gets no job, nor does
            any while nothing new has come for so long; 0: rely on the server.
        stale_uncertainty: share of a node's capacity added to a stale load.
        sample_lag_s: a load average contains a job that was started at least so long before it; what the
            sampler measured contains the jobs that it lists.
        cores_per_idle_gpu: slots of a GPU node that jobs without GPU leave free, per idle GPU, while there is
            work for GPUs.
        gpu_work_recent_s: there is work for GPUs while a job with GPUs waits or runs, and so long after.
        keep_suspended_slots: slots of suspended jobs stay theirs though ``pbsnodes`` shows them free.
        unknown_is_mean: a job without any history is taken to use as much as the mean job of its node (the
            paper's N = 0); otherwise what it asks for.
        rates: speed by node name or by property; nodes named nowhere have 1.
    """

    avoid_busy: bool = True
    avoid_noted: bool = False
    stale_after_s: float = 120.0
    dead_after_s: float = 300.0
    stale_uncertainty: float = 0.25
    sample_lag_s: float = 60.0
    cores_per_idle_gpu: int = 1
    gpu_work_recent_s: float = 600.0
    keep_suspended_slots: bool = True
    unknown_is_mean: bool = False
    rates: Mapping[str, Rates] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuRules:
    """Which GPUs are avoided; the server hands out the lowest free index, so this decides about nodes.

    Attributes:
        avoid_dirty: a GPU in use though no job has it is left alone.
        dirty_utilization: in use means busier than this (0 to 1) ...
        dirty_mem_bytes: ... or more memory taken than this.
        avoid_unhealthy: double-bit errors, mode Prohibited or too hot.
        hot_c: too hot, in degrees Celsius.
    """

    avoid_dirty: bool = True
    dirty_utilization: float = 0.0
    dirty_mem_bytes: int = 512 * 1024**2
    avoid_unhealthy: bool = True
    hot_c: float = 95.0


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """How memory decides.

    Attributes:
        sum_requests: what jobs on a node asked for must fit into its memory (mem, pmem: physical;
            vmem, pvmem: with swap).
        check_available: what a job asks for must also be free now, by the node's last report.
        admission: jobs also wait when jobs like them used more than is free (off: it only ranks nodes);
            looks at what is free now whatever `check_available` says.
        admission_limit_s: ... but not longer than this.
    """

    sum_requests: bool = True
    check_available: bool = True
    admission: bool = False
    admission_limit_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What is said of queues outside of the server.

    Attributes:
        properties: queue -> properties a node must have (all of them) for that queue's jobs.
        ignored: queues whose jobs are not looked at.
        dedicated_prefix: queues that begin so run in dedicated time only; empty: none.
        max_is_total: ``resources_max`` also bounds the sum over what runs, where no ``resources_available``
            does: so the C daemon reads it. pbs_server means each job by it, hence off.
        strict: the first job of a queue that cannot run blocks the rest of that queue (strict_fifo).
        ncpus_are_slots: ``ncpus=N`` without ``nodes`` gets N slots of one node; off: one slot, which is all
            that pbs_server gives for it.
        gpus_per_proc: ``procs=N,gpus=M`` gets M GPUs for each processor, as Moab has it (its users write
            ``procs=8,gpus=1`` for 8 GPUs); off: M for the whole job.
    """

    properties: Mapping[QueueName, tuple[str, ...]] = field(default_factory=dict)
    ignored: frozenset[QueueName] = frozenset()
    dedicated_prefix: str = ""
    max_is_total: bool = False
    strict: bool = False
    ncpus_are_slots: bool = False
    gpus_per_proc: bool = False


@dataclass(frozen=True, slots=True)
class RunningLimits:
    """How much of one user, group, account or queue may run at once; None: no limit.

    A hard limit is never exceeded. A soft limit is exceeded only while nobody waits whom no limit holds.

    Attributes:
        max_jobs: running jobs, hard.
        max_procs: their processors, hard.
        max_proc_s: the sum of their processors times the seconds of walltime they have left, hard.
        soft_max_jobs: running jobs, soft.
        soft_max_procs: their processors, soft.
        soft_max_proc_s: processors times seconds of walltime left, soft.
    """

    max_jobs: int | None = None
    max_procs: int | None = None
    max_proc_s: float | None = None
    soft_max_jobs: int | None = None
    soft_max_procs: int | None = None
    soft_max_proc_s: float | None = None

    def __post_init__(self) -> None:
        for hard, soft in (("max_jobs", "soft_max_jobs"), ("max_procs", "soft_max_procs"),
                           ("max_proc_s", "soft_max_proc_s")):  # fmt: skip
            most, preferred = getattr(self, hard), getattr(self, soft)
            if (most or 0) < 0 or (preferred or 0) < 0:
                raise ConfigError(f"{hard} or {soft} is below 0", cure="write 0 or more, or leave it out")
            if most is not None and preferred is not None and preferred > most:
                raise ConfigError(
                    f"{soft} {preferred:g} is above {hard} {most:g}", cure=f"lower {soft}, or leave it out"
                )

    @property
    def hard(self) -> tuple[float | None, ...]:
        """The hard limits of jobs, processors and processor-seconds."""
        return self.max_jobs, self.max_procs, self.max_proc_s

    @property
    def soft(self) -> tuple[float | None, ...]:
        """The soft limits of jobs, processors and processor-seconds."""
        return self.soft_max_jobs, self.soft_max_procs, self.soft_max_proc_s


@dataclass(frozen=True, slots=True)
class Members:
    """Who may use something: these users, groups and accounts; all empty: everybody.

    Attributes:
        users: names of users.
        groups: names of groups.
        accounts: names of accounts.
    """

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()

    def __contains__(self, job: Job) -> bool:
        is_open = not (self.users or self.groups or self.accounts)
        return is_open or job.user in self.users or job.group in self.groups or job.account in self.accounts


@dataclass(frozen=True, slots=True)
class Qos:
    """A quality of service: who may use it, when its jobs are taken and how much of them may run at once.

    Attributes:
        priority: jobs of a higher priority are taken before all of a lower one; jobs without a QoS have 0.
        members: who may use it.
        default_of: jobs of these queues that ask for none have it, if they may.
        limits: of all its jobs together.
        each_user: of each user's jobs in it.
    """

    priority: int = 0
    members: Members = Members()
    default_of: frozenset[str] = frozenset()
    limits: RunningLimits = RunningLimits()
    each_user: RunningLimits = RunningLimits()


@dataclass(frozen=True, slots=True)
class Throttling:
    """How much may run at once of each user, group, account, queue and QoS, and who may use what.

    The entry `ANYBODY` is the limit of each one that has no entry of its own.

    Attributes:
        users: user name -> limits.
        groups: group name -> limits.
        accounts: account (``qsub -A``) -> limits; jobs without an account are one account, the empty one.
        queues: queue name -> limits.
        qos: QoS -> its priority, members and limits; empty: what jobs ask for is not looked at.
        account_members: account -> who may use it; empty: each user may write any account.
    """

    users: Mapping[str, RunningLimits] = field(default_factory=dict)
    groups: Mapping[str, RunningLimits] = field(default_factory=dict)
    accounts: Mapping[str, RunningLimits] = field(default_factory=dict)
    queues: Mapping[str, RunningLimits] = field(default_factory=dict)
    qos: Mapping[str, Qos] = field(default_factory=dict)
    account_members: Mapping[str, Members] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: dict[str, str] = {}
        for name, qos in self.qos.items():
            for queue in sorted(qos.default_of):
                if found.setdefault(queue, name) != name:
                    raise ConfigError(
                        f"queue {queue} stands in default_of of {found[queue]} and {name}",
                        cure="leave it in one of them",
                    )
