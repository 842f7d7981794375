"""Settings of the task service inside a master: the sizes of workers, and the policy that places tasks."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from yarn_accel.core.dags.live.policy import make_service_policy
from yarn_accel.core.dags.live.queues import MOST_QUEUED
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.registry import POLICIES
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.service import ServiceSettings, WorkerSize
from yarn_accel.errors import ConfigError
from yarn_accel.master.credentials import WORKER_ROLE

_MIB = 1024 * 1024
#: Has the defaults of what the core shares with these settings.
_CORE = ServiceSettings()
_ENVIRONMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_SCHEMES = ("hdfs://", "file://")
_ARCHIVES = (".tar.gz", ".tgz", ".tar")


class TaskWorkerSize(BaseModel):
    """A size of workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str = Field(WORKER_ROLE, min_length=1, description="of its containers")
    cores: int = Field(1, ge=1, le=4096, description="tasks on cores at once in a worker")
    gpus: int = Field(0, ge=0, le=64, description="GPUs of a worker")
    task_memory_mib: int = Field(1024, ge=64, description="memory of all tasks of a worker together")
    min_workers: int = Field(0, ge=0, le=10_000, description="workers kept though nothing waits")
    max_workers: int = Field(4, ge=1, le=10_000, description="workers at most, one on a node")
    node_label: str = Field("", description="only on nodes with this label")
    node_attribute: str = Field("", description="only on nodes with this attribute, PREFIX/NAME=VALUE")

    @model_validator(mode="after")
    def _check_limits(self) -> TaskWorkerSize:
        if self.min_workers > self.max_workers:
            raise ValueError(f"min_workers {self.min_workers} is more than max_workers {self.max_workers}")
        return self

    def size(self) -> WorkerSize:
        """As the core of the service has it."""
        return WorkerSize(
            self.role, self.cores, self.gpus, self.task_memory_mib * _MIB, self.min_workers, self.max_workers
        )


class TaskSettings(TaskWorkerSize):
    """Settings of a task service inside a master, with those of its first size of workers."""

    more_sizes: tuple[TaskWorkerSize, ...] = Field((), description="further sizes of workers")
    idle_s: float = Field(
        _CORE.idle_s, ge=0, description="a worker that had nothing to do for so long is released"
    )
    start_s: float = Field(60.0, gt=0, description="a node whose worker does not report by then gives way")
    policy: str = Field(
        "hdas+",
        description="what places tasks: fifo, model, hdas, hdas+, hadoop, or one that plans DAGs, as mps",
    )
    policy_settings: dict[str, Any] = Field(default_factory=dict, description="settings of that policy")
    bandwidth_bytes_per_s: float = Field(
        _CORE.bandwidth_bytes_per_s,
        gt=0,
        description="of a node whose worker does not know that of its disk or link",
    )
    max_apps: int = Field(_CORE.max_apps, ge=1, description="applications at once")
    figures_uri: str = Field(
        "", description="file with what was learned of this user's applications; default: one in staging_uri"
    )
    accounting_uri: str = Field(
        "", description="folder of JSON lines with what jobs used; default: one in staging_uri; empty: none"
    )
    silence_s: float = Field(
        _CORE.silence_s, gt=0, description="a worker that does not report for so long is lost"
    )
    max_dag_tasks: int = Field(
        _CORE.max_dag_tasks,
        ge=1,
        le=100_000,
        description="tasks of one DAG; to plan a large one stops all else meanwhile",
    )
    environments: dict[str, str] = Field(
        default_factory=dict,
        max_length=100,
        description="Python environments that tasks may name -> the interpreter's path on all nodes, or a "
        "packed environment (hdfs:// or file://, .tar.gz)",
    )

    @field_validator("environments")
    @classmethod
    def _check_environments(cls, environments: dict[str, str]) -> dict[str, str]:
        for name, place in environments.items():
            if not _ENVIRONMENT.match(name):
                raise ValueError(f"{name!r} is no name: letters, digits and . _ -")
            is_archive = place.startswith(_SCHEMES) and place.endswith(_ARCHIVES)
            if not is_archive and not place.startswith("/"):
                raise ValueError(
                    f"{name}: {place!r} is neither the absolute path of an interpreter nor an archive, "
                    f"hdfs:// or file:// with {', '.join(_ARCHIVES)}"
                )
        return environments

    @model_validator(mode="after")
    def _check(self) -> TaskSettings:
        try:
            self.make_policy(FigureStore())
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def sizes(self) -> tuple[TaskWorkerSize, ...]:
        """All sizes of workers, in their order."""
        return (self, *self.more_sizes)

    def make_policy(self, figures: FigureStore) -> TaskPolicy:
        """The policy that places tasks.

        Raises:
            ConfigError: there is no such policy, or it has no such setting.
        """
        return make_service_policy(self.policy, self.policy_settings, figures, self.bandwidth_bytes_per_s)

    def service_settings(self, started_ms: int, attempt: int) -> ServiceSettings:
        """The settings for the core of the service.

        Args:
            started_ms: Unix time of this master's start.
            attempt: number of this master.
        """
        takes_dags = self.policy not in POLICIES
        return ServiceSettings(
            policy=self.policy,
            started_ms=started_ms,
            master_attempt=attempt,
            sizes=tuple(each.size() for each in self.sizes()),
            max_apps=self.max_apps,
            uses_gpus=self.policy in POLICIES and POLICIES[self.policy].uses_gpus,
            takes_dags=takes_dags,
            # Workers learn at once of all tasks that a plan puts there.
            listed_per_core=MOST_QUEUED if takes_dags else _CORE.listed_per_core,
            silence_s=self.silence_s,
            idle_s=self.idle_s,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            max_dag_tasks=self.max_dag_tasks,
            environments=self.environments,
        )
