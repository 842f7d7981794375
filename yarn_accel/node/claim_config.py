"""Settings of late binding: how a node's agent answers mappers that ask "CPU or GPU?"."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from yarn_accel.core.tasks.late_binding.values import LateBindingSettings
from yarn_accel.core.tasks.policies import make
from yarn_accel.errors import ConfigError


class LateBindingConfig(BaseModel):
    """Section ``late_binding`` of an agent's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="off: mappers that ask choose by themselves")
    policy: str = Field("hdas+", description="who decides, as in docs/hdas.md")
    policy_settings: dict[str, Any] = Field(default_factory=dict, description="its own settings")
    cores: int = Field(0, ge=0, le=4096, description="tasks that run at once, on a GPU or not; 0: the cores")
    gpus: int = Field(-1, ge=-1, le=64, description="GPUs for mappers; -1: those that the agent sees work")
    bandwidth_mb_s: float = Field(125.0, gt=0, le=1e9, description="what the disk or link gives its readers")
    io: Literal["link", "disk", "larger"] = Field("larger", description="what of the node's I/O counts")
    max_wait_s: float = Field(30.0, ge=0, le=3600, description="no mapper waits longer for an answer")
    lease_s: float = Field(3.0, ge=1, le=4, description="so long after its last sign of life a place is held")
    counts_max_age_s: float = Field(
        10.0, gt=0, le=3600, description="older counts of the cluster do not count"
    )
    max_claims_per_user: int = Field(64, ge=1, le=256, description="mappers of one user, waiting or not")
    max_jobs_per_user: int = Field(16, ge=1, le=256, description="jobs of one user that have such mappers")
    shared_users: tuple[str, ...] = Field(
        (), description="users, beside the agent's own, under whom mappers of several people run"
    )
    figures_file: str = Field("", description="what was learned of jobs; default: figures.json in run_dir")

    @model_validator(mode="after")
    def _check_policy(self) -> LateBindingConfig:
        try:
            make(self.policy, self.policy_settings)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def settings(self, node: str, gpus: tuple[int, ...], accelerator: str) -> LateBindingSettings:
        """For the decisions of one node, whose agent sees these GPUs work."""
        return LateBindingSettings(
            node,
            self.cores or os.cpu_count() or 1,
            gpus,
            self.bandwidth_mb_s * 1e6,
            accelerator,
            self.policy,
            self.policy_settings,
            self.max_wait_s,
            self.lease_s,
            self.counts_max_age_s,
            max_claims_per_user=self.max_claims_per_user,
            max_jobs_per_user=self.max_jobs_per_user,
        )
