"""pbs_sched's own files: its settings, holidays, dedicated time, resource groups and usage.

``sched_config`` has lines ``key: value [prime|non_prime|all|none]``. The C daemon ignores keys it does not
know without a word and goes on; here each gets one warning, and one goes on too.

``usage`` holds the fair-share usage that it kept, as the C compiler laid its records out: a name of up to 8
characters and its NUL, then CPU seconds as a ``long`` at the next place such a number may have. That makes 24
bytes on machines of 64 bits, 16 on those of 32. A longer name runs on into the gap. There is no header, no
count and no version; users whose usage is 1 (the least there is) are left out.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from torque_sched.errors import RecordError, UnitError
from torque_sched.model.units import duration_s

SORTS = frozenset(
    {
        "no_sort", "shortest_job_first", "longest_job_first", "smallest_memory_first", "largest_memory_first",
        "high_priority_first", "low_priority_first", "large_walltime_first", "short_walltime_first",
        "fair_share", "multi_sort",
    }
)  # fmt: skip
"""Values of ``sort_by`` and ``key``."""

_MAX_IGNORED_QUEUES = 16
_MAX_WARNINGS = 20
_MOST_NUMBER = (1 << 31) - 1
_SEPARATORS = re.compile(r"[ \t:]+")


@dataclass(frozen=True, slots=True)
class CPolicy:
    """What may differ between prime and non-prime time; the values are those shipped."""

    round_robin: bool = False
    by_queue: bool = True
    strict_fifo: bool = False
    fair_share: bool = False
    help_starving_jobs: bool = True
    sort_queues: bool = True
    load_balancing: bool = False
    load_balancing_rr: bool = False
    sort_by: str = "shortest_job_first"
    keys: tuple[str, ...] = ()
    """With ``sort_by: multi_sort``, the sorts in order."""


@dataclass(frozen=True, slots=True)
class SchedConfig:
    """The whole file."""

    prime: CPolicy = CPolicy()
    non_prime: CPolicy = CPolicy()
    log_filter: int = 256
    """Events of these classes (a bit mask) are not logged."""
    dedicated_prefix: str = "ded"
    ignored_queues: tuple[str, ...] = ()
    max_starve_s: float = 24 * 3600.0
    half_life_s: float = 24 * 3600.0
    sync_time_s: float = 3600.0
    unknown_shares: int = 10
    warnings: tuple[str, ...] = ()
    """What was not understood, a line each."""


_FLAGS = frozenset(entry.name for entry in fields(CPolicy) if isinstance(entry.default, bool))
_SECONDS = {"max_starve": "max_starve_s", "half_life": "half_life_s", "sync_time": "sync_time_s"}
_NOT_SUPPORTED = {
    "peer_queue": "peer servers are not supported: their jobs are not taken, and ours do not go there",
    "provision_policy": "provisioning is not supported: jobs that ask for it wait",
}
"""Keys of OpenPBS's file that mean more than a policy."""
_NUMBERS = frozenset({"log_filter", "unknown_shares"})
KEYS = tuple(sorted({*_FLAGS, *_SECONDS, *_NUMBERS, "sort_by", "key", "dedicated_prefix", "ignore_queue"}))
"""Every key there is."""


def parse_sched_config(text: str, place: str = "sched_config", *, as_c: bool = False) -> SchedConfig:
    """Read the file; whatever cannot be understood becomes a warning and keeps its default.

    Args:
        text: the file.
        place: its name for the warnings.
        as_c: repeat the C daemon's fault by which ``key ... non_prime`` lines are lost.
    """
    reader = _Reader(place, as_c)
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        key, *rest = _SEPARATORS.split(line.strip(" \t:"), maxsplit=1)
        if key and not key.startswith("#"):
            reader.line(number, [key, *" ".join(rest).split()])
    return reader.result()


class _Reader:
    def __init__(self, place: str, as_c: bool) -> None:
        self._place = place
        self._as_c = as_c
        self._prime: dict[str, Any] = {}
        self._non_prime: dict[str, Any] = {}
        self._keys: tuple[list[str], list[str]] = ([], [])
        self._rest: dict[str, Any] = {}
        self._ignored: list[str] = []
        self._warnings: list[str] = []

    def line(self, number: int, words: list[str]) -> None:
        key, value, when = words[0], words[1] if len(words) > 1 else "", words[2:3]
        try:
            self._take(key, value, when[0].lower() if when and not when[0].startswith("#") else "all")
        except (ValueError, UnitError) as error:
            message = getattr(error, "message", str(error))
            self._warnings.append(f"{self._place}, line {number}: {_shown(key)}: {_shown(message, 400)}")

    def _take(self, key: str, value: str, when: str) -> None:
        if key not in KEYS:
            raise ValueError(_NOT_SUPPORTED.get(key) or f"unknown key, ignored; known are {', '.join(KEYS)}")
        if not value:
            raise ValueError("no value; the default stays")
        if key in _FLAGS:
            self._set(key, _flag(value), when)
        elif key == "sort_by":
            self._set(key, _sort(value), when)
        elif key == "key":
            self._add_key(_sort(value), when)
        elif key in _SECONDS:
            self._rest[_SECONDS[key]] = duration_s(value)
        elif key in _NUMBERS:
            self._rest[key] = _number(value, least=0 if key == "unknown_shares" else -(1 << 31))
        elif key == "dedicated_prefix":
            self._rest[key] = value
        elif len(self._ignored) < _MAX_IGNORED_QUEUES:
            self._ignored.append(value)
        else:
            raise ValueError(f"more than {_MAX_IGNORED_QUEUES} queues to ignore")

    def _set(self, key: str, value: object, when: str) -> None:
        if when in {"prime", "all"}:
            self._prime[key] = value
        if when in {"non_prime", "nonprime", "all"}:
            self._non_prime[key] = value
        if when not in {"prime", "non_prime", "nonprime", "all", "none"}:
            raise ValueError(f"{when!r} is none of prime, non_prime, all, none")

    def _add_key(self, sort: str, when: str) -> None:
        if when in {"prime", "all"}:
            self._keys[0].append(sort)
        if when in {"non_prime", "nonprime", "all"} and not (self._as_c and when != "all"):
            self._keys[1].append(sort)

    def result(self) -> SchedConfig:
        prime, non_prime = self._keys
        return SchedConfig(
            prime=replace(CPolicy(), **self._prime, keys=tuple(prime)),
            non_prime=replace(CPolicy(), **self._non_prime, keys=tuple(non_prime)),
            ignored_queues=tuple(self._ignored),
            warnings=_few(self._place, self._warnings),
            **self._rest,
        )


def _shown(text: str, limit: int = 40) -> str:
    """A text for the log, also of a file that is none: short, and nothing but what can be printed."""
    clipped = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return clipped if clipped.isprintable() else repr(clipped)


def _few(place: str, warnings: list[str]) -> tuple[str, ...]:
    """The first ones: of a file that is something else altogether each line would be one."""
    n_more = len(warnings) - _MAX_WARNINGS
    more = (f"{place}: {n_more} more lines are not understood",) if n_more > 0 else ()
    return (*warnings[:_MAX_WARNINGS], *more)


def _number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{_shown(text)!r} is no whole number; the default stays") from None
    if not least <= number <= _MOST_NUMBER:
        limit = f"less than {least}" if number < least else f"more than {_MOST_NUMBER}"
        raise ValueError(f"{_shown(text)} is {limit}; the default stays")
    return number


def _flag(text: str) -> bool:
    word = text.lower()
    if word.startswith("true"):
        return True
    if word == "false":
        return False
    if text.isdigit():
        return bool(int(text))
    raise ValueError(f"{text!r} is neither true nor false; the default stays")


def _sort(text: str) -> str:
    if text not in SORTS:
        raise ValueError(f"no sort {text!r}; known are {', '.join(sorted(SORTS))}")
    return text


_Span = tuple[int, int]
"""From and until, in minutes since midnight; (0, 1440) is the whole day, (0, 0) no time at all."""
_DAYS = frozenset({"weekday", "saturday", "sunday"})
_ALL: _Span = (0, 1440)
_NONE: _Span = (0, 0)


@dataclass(frozen=True, slots=True)
class Holidays:
    """When prime time is; without the file it is always."""

    weekday: _Span = _ALL
    saturday: _Span = _ALL
    sunday: _Span = _ALL
    days: frozenset[int] = frozenset()
    """Days of the year (1 to 366) that are holidays: no prime time."""
    year: int = 0
    """For which ``days`` were written; 0: not said, and then it is always prime time."""
    warnings: tuple[str, ...] = ()

    def is_prime(self, at: datetime) -> bool:
        """Whether this local time is prime time; a file without a year says nothing, as for pbs_sched."""
        if not self.year:
            return True
        if at.timetuple().tm_yday in self.days and self.year == at.year:
            return False
        first, until = {5: self.saturday, 6: self.sunday}.get(at.weekday(), self.weekday)
        minute = at.hour * 60 + at.minute
        # 2200 0600: over midnight.
        return first <= minute < until if first <= until else minute >= first or minute < until


def parse_holidays(text: str, place: str = "holidays") -> Holidays:
    """Read ``weekday 0600 1730``, ``saturday none all``, ``YEAR 2026`` and ``DAY-OF-YEAR DATE NAME`` lines.

    The first figure of a day is when prime time begins, the second when non-prime time does; ``all`` and
    ``none`` say that it is the whole day or none of it. Of the older form, ``1998 0400 1530`` is a weekday's
    line; the line that names the file's version says nothing.
    """
    spans: dict[str, _Span] = {}
    days: set[int] = set()
    year = 0
    warnings: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        words = line.split()
        if not words or words[0][0] in "*#":
            continue
        try:
            key = words[0].lower()
            if key == "year":
                year = int(words[1])
            elif key in _DAYS or re.fullmatch(r"[0-9]{4}", key):
                spans[key if key in _DAYS else "weekday"] = _span(words[1], words[2])
            elif key != "holidayfile_version1":
                days.add(int(words[0]))
        except (ValueError, IndexError):
            warnings.append(f"{place}, line {number}: {line.strip()[:60]!r} is not understood")
    if spans and not year and not warnings:
        warnings.append(f"{place}: no YEAR line, so it is always prime time (as for pbs_sched)")
    return Holidays(days=frozenset(days), year=year, warnings=_few(place, warnings), **spans)


def _span(prime: str, non_prime: str) -> _Span:
    if prime.lower() == "all" or non_prime.lower() == "none":
        return _ALL
    if prime.lower() == "none" or non_prime.lower() == "all":
        return _NONE
    return _minutes(prime), _minutes(non_prime)


def _minutes(text: str) -> int:
    if not re.fullmatch(r"[0-9]{4}", text) or int(text[2:]) > 59 or int(text) > 2400:
        raise ValueError(text)
    return int(text[:2]) * 60 + int(text[2:])


def parse_dedicated_time(
    text: str, place: str = "dedicated_time"
) -> tuple[tuple[tuple[datetime, datetime], ...], tuple[str, ...]]:
    """``MM/DD/YYYY HH:MM MM/DD/YYYY HH:MM`` lines in local time; and what was not understood."""
    spans: list[tuple[datetime, datetime]] = []
    warnings: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            first = _moment(words[0], words[1])
            until = _moment(words[2], words[3])
            if until <= first:
                raise ValueError("ends before it begins")
            spans.append((first, until))
        except (ValueError, IndexError):
            warnings.append(f"{place}, line {number}: {line.strip()[:60]!r} is no span of time")
    return tuple(sorted(spans)), _few(place, warnings)


def _moment(day: str, hour: str) -> datetime:
    moment = datetime.strptime(f"{day} {hour}", "%m/%d/%Y %H:%M")  # noqa: DTZ007 -- the host's own time
    if not 1970 < moment.year < 9999:
        raise ValueError("no time that any zone has")
    return moment


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """One line of ``resource_group``: a share of the tree; users and groups of users alike."""

    name: str
    number: int
    parent: str
    shares: int


def parse_resource_group(
    text: str, place: str = "resource_group"
) -> tuple[tuple[ResourceGroup, ...], tuple[str, ...]]:
    """``NAME ID PARENT SHARES`` lines; and what was not understood."""
    groups: list[ResourceGroup] = []
    warnings: list[str] = []
    known = {"root"}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            name, parent, shares = words[0], words[2], int(words[3])
            if parent not in known or name in known or not 0 <= shares <= _MOST_NUMBER:
                raise ValueError(parent)
            groups.append(ResourceGroup(name, int(words[1]), parent, shares))
            known.add(name)
        except (ValueError, IndexError):
            warnings.append(
                f"{place}, line {number}: {line.strip()[:60]!r} is not NAME ID PARENT SHARES, or its parent "
                "is not above it"
            )
    return tuple(groups), _few(place, warnings)


_FORMS = ("<16sq", "<12si")
_MOST_BYTES = 64 << 20


def parse_usage(data: bytes, place: str = "usage") -> dict[str, float]:
    """CPU seconds by user or group.

    Raises:
        RecordError: these are no such records, of either size.
    """
    if len(data) > _MOST_BYTES:
        raise RecordError(f"{place} is {len(data)} bytes long", cure="remove it; usage then begins anew")
    for form in _FORMS:
        found = _read(data, form)
        if found is not None:
            return found
    raise RecordError(
        f"{place}: {len(data)} bytes that are no usage records of pbs_sched",
        cure="remove it; usage then begins anew",
    )


def _read(data: bytes, form: str) -> dict[str, float] | None:
    if len(data) % struct.calcsize(form):
        return None
    found: dict[str, float] = {}
    for raw, amount in struct.iter_unpack(form, data):
        name = raw.partition(b"\0")[0]
        if not name or amount < 0 or not all(32 < byte < 127 for byte in name):
            return None
        found[name.decode("ascii")] = float(amount)
    return found
