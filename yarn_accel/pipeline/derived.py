"""What follows from a server's settings: checked by `config`, or before, as `settled` has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.credentials import read_master_secret

__all__ = ["CORES_MAY_SLEEP", "Derived", "Terms"]

#: As `PipelineConfig.wake_latency_us`: leave the cores alone.
CORES_MAY_SLEEP = -1


@dataclass(frozen=True, slots=True)
class Terms:
    """What `config.Tenant` says."""

    weight: float = 1.0
    read_prefixes: tuple[str, ...] = ()
    write_prefixes: tuple[str, ...] = ()


_NOBODY = Terms()


class Derived:
    """What follows from the settings, however they came."""

    if TYPE_CHECKING:
        workers: int
        cores_per_worker: int
        master_secret_file: Path

        tenants: Any

    def tenant(self, name: str) -> Terms:
        """The rights and shares of a tenant: its own entry, else the one of ``*``, else none at all."""
        terms: Terms = self.tenants.get(name) or self.tenants.get("*") or _NOBODY
        return terms

    @property
    def n_workers(self) -> int:
        """CPU workers, with 0 resolved to the number of core groups this process may use."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) // self.cores_per_worker)

    def master_secret(self) -> bytes:
        """Read the master secret.

        Raises:
            ConfigError: not there, not hex, too short, or readable by others.
        """
        return read_master_secret(self.master_secret_file)
