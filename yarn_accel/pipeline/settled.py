"""Settings that were checked before: as `PipelineConfig` has them, without the library that checks them.

Loading that library is a third of a server's start, and a container of YARN gets settings which `yarn-accel
start` has checked and written out whole, every default included.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from yarn_accel.pipeline.derived import Derived, Terms

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["settled"]


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
