"""PBS text for sizes, durations and counts, and back: the only place where text becomes a number.

PBS counts in powers of two: ``kb`` is 1024 bytes. A ``w`` unit is a word, eight bytes here.

>>> size_bytes("2gb"), size_bytes("24684092kb"), size_bytes("10w")
(2147483648, 25276510208, 80)
>>> duration_s("01:30:00"), duration_s("90"), duration_s("1:00:00:00")
(5400.0, 90.0, 86400.0)
"""

from __future__ import annotations

import functools
import re

from torque_sched.errors import UnitError

WORD_BYTES = 8
SIZE_RESOURCES = frozenset({"mem", "pmem", "vmem", "pvmem", "file", "workingset", "physmem", "availmem"})
DURATION_RESOURCES = frozenset({"walltime", "cput", "pcput", "time"})

_SIZE = re.compile(r"([0-9]+)([kmgtp]?)([bw]?)", re.IGNORECASE)
_DURATION = re.compile(r"(?:(?:(?:([0-9]+):)?([0-9]+):)?([0-9]+):)?([0-9]+)(\.[0-9]+)?")
_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4, "p": 1024**5}
_LONGEST_NUMBER = 40
_MOST = 2**63 - 1
"""Batch systems keep their numbers in 64 bits."""


@functools.lru_cache(maxsize=4096)
def size_bytes(text: str) -> int:
    """Bytes of a PBS size such as ``2gb``, ``2147483648b``, ``100mw`` or ``512`` (plain bytes).

    Raises:
        UnitError: the text is no PBS size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or len(text) > _LONGEST_NUMBER:
        raise UnitError(f"{text[:40]!r} is no PBS size", cure="write a number with b, kb, mb, gb, tb or pb")
    number, prefix, unit = found.groups()
    factor = _FACTORS[prefix.lower()]
    return _possible(int(number) * factor * (WORD_BYTES if unit.lower() == "w" else 1), text)


def _possible(number: int, text: str) -> int:
    if abs(number) > _MOST:
        raise UnitError(f"{text[:40]!r} is more than there can be", cure="write a smaller number")
    return number


@functools.lru_cache(maxsize=4096)
def duration_s(text: str) -> float:
    """Seconds of ``[[DD:]HH:]MM:SS`` or of plain seconds, each with an optional fraction.

    Raises:
        UnitError: the text is no PBS duration.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or len(text) > _LONGEST_NUMBER:
        raise UnitError(f"{text[:40]!r} is no PBS duration", cure="write HH:MM:SS or seconds")
    days, hours, minutes, seconds, fraction = found.groups()
    whole = (int(days or 0) * 24 + int(hours or 0)) * 3600 + int(minutes or 0) * 60 + int(seconds)
    return _possible(whole, text) + float(fraction or 0.0)


def format_duration(seconds: float) -> str:
    """``HH:MM:SS`` as batch systems print it; hours may exceed 99, fractions are cut.

    >>> format_duration(5400), format_duration(360000.9)
    ('01:30:00', '100:00:00')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"


def count(text: str) -> int:
    """A whole number with an optional sign.

    Raises:
        UnitError: the text is no whole number, or an absurdly long one.
    """
    stripped = text.strip()
    digits = stripped[1:] if stripped[:1] in {"-", "+"} else stripped
    if not (digits.isascii() and digits.isdigit()) or len(stripped) > _LONGEST_NUMBER:
        raise UnitError(f"{text[:40]!r} is no whole number", cure="write digits only")
    return _possible(int(stripped), text)


def boolean(text: str) -> bool:
    """Whether a batch system prints or accepts the text as true (``True``, ``TRUE``, ``t``, ``y``, ``1``).

    Raises:
        UnitError: the text is neither true nor false.
    """
    lowered = text.strip().lower()
    if lowered in {"true", "t", "y", "yes", "1"}:
        return True
    if lowered in {"false", "f", "n", "no", "0"}:
        return False
    raise UnitError(f"{text[:40]!r} is neither True nor False")


def amount(resource: str, text: str) -> float:
    """The number behind a resource of this name: bytes for sizes, seconds for times, else a count.

    Raises:
        UnitError: the text does not fit the resource.
    """
    if resource in SIZE_RESOURCES:
        return size_bytes(text)
    if resource in DURATION_RESOURCES:
        return duration_s(text)
    try:
        return count(text)
    except UnitError:
        return duration_s(text) if ":" in text else size_bytes(text)
