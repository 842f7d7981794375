"""Limits and times of a task service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerSize:
    """A kind of worker containers; `cores` and `gpus` tell a worker's size by its report."""

    name: str
    cores: int
    gpus: int
    memory_bytes: int
    min_workers: int = 0
    max_workers: int = 1


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Limits and times.

    Attributes:
        policy: name of what places tasks.
        started_ms: when this master started; the first master's becomes a part of all attempts' names.
        master_attempt: of the application that the master is; grows with each master.
        sizes: workers that may be asked for; a task takes the first one that it fits.
        max_apps: applications that have not ended.
        max_open_tasks: tasks of all these.
        max_crashes: a task during whose attempts so many workers ended by themselves has failed.
        silence_s: a worker that does not report for so long is lost.
        recovery_s: so long a new master waits for the workers of the one before it.
        elsewhere_s: a task that failed on a worker and was to start there again waits so long for another
            worker, at most `n_elsewhere` times.
        idle_s: a worker that has had nothing to do for so long is released.
        commit_retry_s: between two tries to commit the output of an application.
        max_commits: such tries.
        listed_per_core: attempts of a worker's queue that lie at the worker already, for each of its cores.
        n_ended: applications that ended, of which the counts are kept.
        n_ended_tasks: tasks of these that are kept for reports; those of the last one always are.
        compact_records: a journal is not made shorter below so many records.
        uses_gpus: whether the policy gives GPUs to anybody.
        takes_dags: the policy plans DAGs, and takes nothing else.
        max_dag_tasks: of one DAG.
        environments: name of a Python environment that tasks may ask for -> its interpreter on all nodes, or
            the archive that has it.
        bandwidth_bytes_per_s: of a node whose worker does not know its own.
    """

    policy: str = ""
    started_ms: int = 0
    master_attempt: int = 1
    sizes: tuple[WorkerSize, ...] = ()
    max_apps: int = 200
    max_open_tasks: int = 1_000_000
    max_crashes: int = 10
    silence_s: float = 10.0
    recovery_s: float = 30.0
    elsewhere_s: float = 1.0
    n_elsewhere: int = 3
    idle_s: float = 30.0
    commit_retry_s: float = 2.0
    max_commits: int = 10
    listed_per_core: int = 2
    n_ended: int = 1000
    n_ended_tasks: int = 50_000
    compact_records: int = 20_000
    bandwidth_bytes_per_s: float = 128e6
    uses_gpus: bool = True
    takes_dags: bool = False
    max_dag_tasks: int = 10_000
    environments: Mapping[str, str] = field(default_factory=dict)
