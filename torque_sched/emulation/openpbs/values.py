"""OpenPBS's texts: sizes, selects, vnode lists, array ranges, and the times that clients print."""

from __future__ import annotations

import functools
import re
import time
import zoneinfo
from collections.abc import Iterable
from datetime import datetime, timezone

from torque_sched.emulation.model import EmulatedJob

Chunk = tuple[int, tuple[tuple[str, str], ...]]
"""How often, and resource -> value in the order in which they were asked for."""
Vnodes = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""What one element of an order takes: vnode and its resources, once for each vnode of the element."""

_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_SIZE = re.compile(r"(\d+)([kmgtp]?)[bw]?", re.IGNORECASE)
_NAMES = {shift: letter for letter, shift in _SHIFTS.items()}


def is_size(text: str) -> bool:
    """Whether a value is a size with a unit."""
    match = _SIZE.fullmatch(text)
    return match is not None and not text.isdigit()


def add(values: Iterable[str]) -> str:
    """The sum of counts or of sizes, in the smallest unit that occurs."""
    found = [match for value in values if (match := _SIZE.fullmatch(value))]
    if not found:
        return "0"
    total = sum(int(match[1]) << _SHIFTS[match[2].lower()] for match in found)
    if not any(is_size(match[0]) for match in found):
        return str(total)
    shift = min(_SHIFTS[match[2].lower()] for match in found)
    return f"{total >> shift}{_NAMES[shift]}b"


def size_bytes(text: str) -> int:
    """``2gb`` -> bytes; 0 for what is no size."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) << _SHIFTS[match[2].lower()] if match else 0


def multiply(value: str, times: int) -> str:
    """``512mb`` twice is ``1024mb``."""
    return value if times == 1 else add([value] * times)


@functools.lru_cache(maxsize=4096)
def chunks_of(select: str) -> tuple[Chunk, ...]:
    """``2:ncpus=1:mem=1gb+ncpus=2`` taken apart.

    Raises:
        ValueError: not such a text.
    """
    found = []
    for part in select.split("+"):
        head, *rest = _split(part, ":")
        count, pairs = (int(head), rest) if head.isdigit() else (1, [head, *rest])
        if any("=" not in pair for pair in pairs):
            raise ValueError(select)
        found.append((count, tuple((p.partition("=")[0], p.partition("=")[2]) for p in pairs)))
    return tuple(found)


def n_chunks(select: str) -> int:
    """How many chunks it has, each counted as often as it is asked for."""
    return sum(count for count, _ in chunks_of(select))


def select_text(chunks: Iterable[Chunk]) -> str:
    """The inverse of `chunks_of`."""
    return "+".join(":".join([str(count), *(f"{k}={v}" for k, v in pairs)]) for count, pairs in chunks)


@functools.lru_cache(maxsize=4096)
def elements_of(text: str) -> tuple[Vnodes, ...]:
    """``(a:ncpus=2)+(b:ncpus=1+c:ncpus=1)`` -> one entry per pair of parentheses, or per word without any."""
    if "(" not in text:
        return tuple((_vnode(word),) for word in _split(text, "+"))
    bodies = re.findall(r"\(([^()]*)\)?", text)
    return tuple(tuple(_vnode(word) for word in _split(body, "+")) for body in bodies)


def _vnode(word: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    name, *pairs = _split(word, ":")
    return name, tuple((p.partition("=")[0], p.partition("=")[2]) for p in pairs)


def _split(text: str, sign: str) -> list[str]:
    """Split, but not within quotes."""
    parts, quote = [""], ""
    for letter in text:
        if letter == sign and not quote:
            parts.append("")
            continue
        if letter in "\"'":
            quote = "" if letter == quote else quote or letter
        parts[-1] += letter
    return parts


def taken(job: EmulatedJob) -> list[tuple[str, dict[str, str]]]:
    """What a job holds, vnode by vnode in the order of its ``exec_vnode``."""
    elements = elements_of(job.attributes.get("exec_vnode", ""))
    return [(name, dict(pairs)) for element in elements for name, pairs in element if name]


def indices_of(text: str) -> list[int]:
    """``0-5``, ``1-9:2`` or ``1,3`` -> the indices of an array or of some of its members.

    Raises:
        ValueError: not such a text.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None or int(match[3] or 1) < 1:
            raise ValueError(text)
        found += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    return found


def remaining_text(indices: list[int]) -> str:
    """``array_indices_remaining``: ranges with their step, ``-`` where none is left."""
    parts: list[str] = []
    left = sorted(indices)
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        last = 0
        while last + 1 < len(left) and left[last + 1] - left[last] == step:
            last += 1
        if last == 0 or (last == 1 and step > 1):
            last = 0
            parts.append(str(left[0]))
        else:
            parts.append(f"{left[0]}-{left[last]}" + (f":{step}" if step > 1 else ""))
        left = left[last + 1 :]
    return ",".join(parts) or "-"


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(name) if name else None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return None


@functools.lru_cache(maxsize=65536)
def ctime(at_s: int, zone: str) -> str:
    """``Sun Nov 22 14:12:28 2026`` in the client's zone; the server's where it names none."""
    where = _zone(zone)
    if where is None:
        return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(at_s))
    return datetime.fromtimestamp(at_s, timezone.utc).astimezone(where).strftime("%a %b %d %H:%M:%S %Y")


def moment(at_s: float) -> str:
    """``Sun Nov 22 at 14:12``, as comments of the server have it."""
    return time.strftime("%a %b %d at %H:%M", time.localtime(at_s))
