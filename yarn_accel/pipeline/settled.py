"""Settings that were checked before: as `PipelineConfig` has them, without the library that checks them.

Loading that library is a third of a server's start, and a container of YARN gets settings which `yarn-accel
start` has checked and written out whole, every default included.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from yarn_accel.adapters.credentials import read_master_secret

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["CORES_MAY_SLEEP", "Derived", "Terms", "settled"]

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


class _Settled(Derived):
    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def model_copy(self, *, update: Mapping[str, Any]) -> _Settled:
        return _Settled({**self.__dict__, **update})


def settled(document: Mapping[str, Any]) -> PipelineConfig:
    """Settings for a server from what ``PipelineConfig.model_dump(mode="json")`` gave."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
    values["master_secret_file"] = Path(values["master_secret_file"])
    values["tenants"] = {name: _terms(given) for name, given in document["tenants"].items()}
    # It has the same attributes; that nothing is missing is what a test compares.
    return cast("PipelineConfig", _Settled(values))


def _terms(given: Mapping[str, Any]) -> Terms:
    return Terms(given["weight"], tuple(given["read_prefixes"]), tuple(given["write_prefixes"]))
