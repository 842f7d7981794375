"""What the kernel's files say about a node's load, as numbers: pure parsers and differences of two readings.

Every parser takes the text of one file and raises `CounterError` when it is not what that file looks like: a
missing or strange gauge costs that gauge, not the heartbeat.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
