"""Samples of this node: its I/O counters from the kernel's files, and its accelerators from their driver.

Every parser takes the text of one file and raises `CounterError` when it does not look like that file: a
missing or strange counter costs that counter, not the heartbeat. The driver is asked in a thread of its own,
because a faulty one may never answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from yarn_accel.adapters.nvml import read_devices
from yarn_accel.errors import AccelError

#: The kernel counts disk sectors of this size whatever the disk's own are.
_SECTOR_BYTES = 512
_NET_FIELDS = 16
_MAX_LINES = 10_000
#: Neither disks, nor what is made of disks that count already.
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)[0-9]+\Z")
_PARTITIONED = re.compile(r"(?P<disk>[a-z]+|(nvme|mmcblk|nbd)[a-z0-9]*[0-9]+(?=p))p?[0-9]+\Z")


class CounterError(AccelError):
    """A file of the kernel does not look as expected; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class NicCounters:
    """One network interface since it exists."""

    rx_bytes: int
    tx_bytes: int
    errors: int


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """One disk since the machine started; ``busy_ms`` is the time in which something was under way."""

    read_bytes: int
    written_bytes: int
    busy_ms: int


def parse_pressure(text: str, name: str = "io") -> dict[str, float]:
    """The numbers of ``/proc/pressure/io``, such as ``io_some_avg10`` (percent of the time, 0 to 100).

    Args:
        name: what the keys begin with.
    """
    place = f"/proc/pressure/{name}"
    found: dict[str, float] = {}
    for line in _lines(text, place):
        kind, *pairs = line.split()
        if kind not in ("some", "full"):
            raise CounterError(f"{place}: line {line!r} begins with neither some nor full")
        for pair in pairs:
            key, _, value = pair.partition("=")
            if key.startswith("avg"):
                found[f"{name}_{kind}_{key}"] = _share(value, place, line)
    if f"{name}_some_avg10" not in found:
        raise CounterError(f"{place}: has no line 'some avg10=...'")
    return found


def parse_net_dev(text: str) -> dict[str, NicCounters]:
    """Interface -> counters, from ``/proc/net/dev``."""
    place = "/proc/net/dev"
    found = {}
    for line in _lines(text, place):
        name, colon, rest = line.partition(":")
        if not colon:
            continue
        values = rest.split()
        if len(values) != _NET_FIELDS:
            raise CounterError(f"{place}: {len(values)} numbers in line {line!r}, not {_NET_FIELDS}")
        numbers = [_count(value, place, line) for value in values]
        found[name.strip()] = NicCounters(numbers[0], numbers[8], numbers[2] + numbers[10])
    if not found:
        raise CounterError(f"{place}: names no interface")
    return found


def parse_routes(text: str) -> tuple[str, ...]:
    """The interfaces by which this node reaches others, from ``/proc/net/route``.

    Those with the default route; where there is none, every one with a route, without ``lo``.
    """
    place = "/proc/net/route"
    heading, *lines = _lines(text, place)
    if not heading.startswith("Iface"):
        raise CounterError(f"{place}: does not begin with Iface")
    rows = [line.split() for line in lines]
    if any(len(row) < 3 for row in rows):
        raise CounterError(f"{place}: has a line with fewer than three columns")
    default = {row[0] for row in rows if row[1] == "00000000"}
    return tuple(sorted(default or {row[0] for row in rows} - {"lo"}))


def parse_diskstats(text: str) -> dict[str, DiskCounters]:
    """Disk -> counters, from ``/proc/diskstats``; without partitions and without disks made of disks."""
    place = "/proc/diskstats"
    rows = [(line, line.split()) for line in _lines(text, place)]
    names = {row[2] for _, row in rows if len(row) > 2}
    found = {}
    for line, row in rows:
        if len(row) < 14:
            raise CounterError(f"{place}: {len(row)} columns in line {line!r}, at least 14 expected")
        if _NO_DISK.match(row[2]) or _is_partition(row[2], names):
            continue
        sectors_read, sectors_written, busy_ms = (_count(row[at], place, line) for at in (5, 9, 12))
        found[row[2]] = DiskCounters(sectors_read * _SECTOR_BYTES, sectors_written * _SECTOR_BYTES, busy_ms)
    return found


def nic_rates(
    before: Mapping[str, NicCounters],
    after: Mapping[str, NicCounters],
    names: Iterable[str],
    elapsed_s: float,
) -> dict[str, float]:
    """Bytes and errors per second over these interfaces together; empty when nothing can be said."""
    pairs = [(before[name], after[name]) for name in names if name in before and name in after]
    if not pairs or not elapsed_s > 0:
        return {}
    return {
        "rx_bytes_per_s": sum(_grown(old.rx_bytes, new.rx_bytes) for old, new in pairs) / elapsed_s,
        "tx_bytes_per_s": sum(_grown(old.tx_bytes, new.tx_bytes) for old, new in pairs) / elapsed_s,
        "errors_per_s": sum(_grown(old.errors, new.errors) for old, new in pairs) / elapsed_s,
    }


def disk_rates(
    before: Mapping[str, DiskCounters], after: Mapping[str, DiskCounters], elapsed_s: float
) -> dict[str, float]:
    """Bytes per second over all disks, and the share of time in which the busiest one was at work, 0 to 1."""
    pairs = [(before[name], after[name]) for name in after if name in before]
    if not pairs or not elapsed_s > 0:
        return {}
    busy_ms = max(_grown(old.busy_ms, new.busy_ms) for old, new in pairs)
    return {
        "read_bytes_per_s": sum(_grown(old.read_bytes, new.read_bytes) for old, new in pairs) / elapsed_s,
        "write_bytes_per_s": sum(_grown(old.written_bytes, new.written_bytes) for old, new in pairs)
        / elapsed_s,
        "busy_share": min(1.0, busy_ms / 1e3 / elapsed_s),
    }


def _grown(old: int, new: int) -> int:
    """By how much a counter grew; 0 when it was reset in between."""
    return max(0, new - old)


def _is_partition(name: str, names: set[str]) -> bool:
    match = _PARTITIONED.match(name)
    return match is not None and match["disk"] in names


def _lines(text: str, place: str) -> list[str]:
    lines = [line for line in text.split("\n", _MAX_LINES)[:_MAX_LINES] if line.strip()]
    if not lines:
        raise CounterError(f"{place}: is empty")
    return lines


def _count(value: str, place: str, line: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 20):
        raise CounterError(f"{place}: {value!r} in line {line!r} is not a count")
    return int(value)


def _share(value: str, place: str, line: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 100:
        raise CounterError(f"{place}: {value!r} in line {line!r} is not a share from 0 to 100")
    return share


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


_PATIENCE_S = 1.0
_MAX_DEVICES = 64
_Device = dict[str, Any]


def device_health(device: Mapping[str, Any], hot_celsius: float) -> str:
    """``failed`` when the driver reports a fault or no name, else ``hot`` or ``ok``."""
    if device.get("fault") or device.get("name") is None:
        return "failed"
    temperature_c = device.get("temperature_c")
    return "hot" if temperature_c is not None and temperature_c >= hot_celsius else "ok"


class DeviceWatch:
    """Asks the driver for the devices; used from one event loop.

    A device that was there once and is missing now is described as ``lost``: so a broken one shows. While the
    driver does not answer, the last devices are described as ``silent``, and no call waits.

    Args:
        read: `read_devices`.
    """

    def __init__(self, hot_celsius: float, read: Callable[[], list[_Device]] = read_devices) -> None:
        self._hot_celsius = hot_celsius
        self._read = read
        self._known: dict[str, _Device] = {}
        self._probing: asyncio.Future[list[_Device]] | None = None

    async def report(self) -> list[_Device]:
        """Every device with ``index`` and ``health``, fit for JSON."""
        is_new = self._probing is None
        if self._probing is None:
            loop = asyncio.get_running_loop()
            self._probing = loop.create_future()
            # A daemon thread and no pool: one that hangs in the driver must not hold up the exit.
            threading.Thread(
                target=self._probe, args=(loop, self._probing), name="devices", daemon=True
            ).start()
        asking = self._probing
        await asyncio.wait([asking], timeout=_PATIENCE_S if is_new else 0)
        if not asking.done():
            return [{**device, "health": "silent"} for device in self._known.values()]
        self._probing = None
        return self._merged(asking.result()[:_MAX_DEVICES])

    def _merged(self, found: list[_Device]) -> list[_Device]:
        devices = []
        for at, device in enumerate(found):
            key = str(device.get("device", at))
            described = {**device, "index": at, "health": device_health(device, self._hot_celsius)}
            self._known[key] = described
            devices.append(described)
        names = {str(device.get("device", at)) for at, device in enumerate(found)}
        lost = [{**device, "health": "lost"} for key, device in self._known.items() if key not in names]
        return devices + lost

    def _probe(self, loop: asyncio.AbstractEventLoop, asking: asyncio.Future[list[_Device]]) -> None:
        try:
            found = self._read()
        except Exception:  # noqa: BLE001 -- a driver that fails in a new way is one without devices
            found = []
        try:
            loop.call_soon_threadsafe(_settle, asking, found)
        except RuntimeError:
            return  # the loop has ended meanwhile


def _settle(asking: asyncio.Future[list[_Device]], found: list[_Device]) -> None:
    if not asking.done():
        asking.set_result(found)
