"""Samples this node's I/O counters; one that cannot be read is missing in the sample."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from yarn_accel.node.io_counters import (
    CounterError,
    DiskCounters,
    NicCounters,
    disk_rates,
    nic_rates,
    parse_diskstats,
    parse_net_dev,
    parse_pressure,
    parse_routes,
)

_MAX_BYTES = 1024 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_T = TypeVar("_T")


class Sampler:
    """Takes samples; rates are those since the sample before.

    Args:
        interfaces: whose traffic counts; empty: those with the default route.
        proc: the folder of the kernel's files.
        clock: seconds that only grow.
        cpu_clock: seconds this process has computed.
    """

    def __init__(
        self,
        interfaces: Iterable[str] = (),
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._interfaces = tuple(interfaces)
        self._proc = proc
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._at_s = clock()
        self._cpu_s = cpu_clock()
        self._nics: Mapping[str, NicCounters] = {}
        self._disks: Mapping[str, DiskCounters] = {}
        self._problems: dict[str, str] = {}

    def sample(self) -> dict[str, Any]:
        """``agent``, ``pressure``, ``nic``, ``disk`` and ``problems``; a gauge that fails is empty there."""
        now_s, cpu_s = self._clock(), self._cpu_clock()
        elapsed_s = now_s - self._at_s
        self._problems = {}
        pressure = self._read("pressure/io", parse_pressure) or {}
        routes = self._interfaces or self._read("net/route", parse_routes) or ()
        nics = self._read("net/dev", parse_net_dev) or {}
        disks = self._read("diskstats", parse_diskstats) or {}
        sample = {
            "agent": {
                "pid": os.getpid(),
                "rss_bytes": self._rss_bytes(),
                "cpu_share": round((cpu_s - self._cpu_s) / elapsed_s, 6) if elapsed_s > 0 else None,
            },
            "pressure": pressure,
            "nic": _rounded(nic_rates(self._nics, nics, routes, elapsed_s)),
            "disk": _rounded(disk_rates(self._disks, disks, elapsed_s)),
            "problems": sorted(self._problems.values()),
        }
        self._at_s, self._cpu_s, self._nics, self._disks = now_s, cpu_s, nics, disks
        return sample

    def _rss_bytes(self) -> int | None:
        pages = self._read("self/statm", lambda text: int(text.split()[1]))
        return None if pages is None else pages * _PAGE_BYTES

    def _read(self, name: str, parse: Callable[[str], _T]) -> _T | None:
        path = self._proc / name
        try:
            with path.open("rb") as file:
                return parse(file.read(_MAX_BYTES).decode("utf-8", "replace"))
        except OSError as error:
            self._problems[name] = f"{path}: {(error.strerror or str(error)).lower()}"
        except CounterError as error:
            self._problems[name] = str(error)[:300]
        except (ValueError, IndexError) as error:
            self._problems[name] = f"{path}: {error}"[:300]
        return None


def total_bytes_per_s(sample: Mapping[str, Any], source: str) -> float:
    """Bytes per second of the links and disks in a sample of `Sampler`, both directions.

    What a node reads over its link and puts to its disk would count twice in a sum, so the larger counts.
    """
    nic, disk = sample["nic"], sample["disk"]
    link = float(nic.get("rx_bytes_per_s", 0.0) + nic.get("tx_bytes_per_s", 0.0))
    local = float(disk.get("read_bytes_per_s", 0.0) + disk.get("write_bytes_per_s", 0.0))
    return {"link": link, "disk": local, "larger": max(link, local)}[source]


def _rounded(rates: Mapping[str, float]) -> dict[str, float]:
    return {name: round(rate, 6) for name, rate in rates.items()}
