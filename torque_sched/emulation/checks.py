"""What qsub and qalter themselves look at before they ask the server, and how the server writes values."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from torque_sched.emulation.call import Options
from torque_sched.emulation.model import Refused, seconds_of, walltime_text

__all__ = ["Misused", "canonical", "check_options", "execution_time_s"]

_USAGE = "usage: {name} [-a date_time] [-A account_string] ...\n"
_DURATIONS = frozenset(("walltime", "cput", "pcput"))
_NUMBERS = frozenset(("ncpus", "nodect", "procs", "nice", "size"))
_MOST_PRIORITY = 1024


class Misused(Exception):
    """The client itself refuses its arguments: it prints its usage and exits with 2."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(what)
        usage = _USAGE.format(name=name)
        self.text = f"[{name}: {what}]\n\n{usage}\n" if name == "qsub" else f"{name}: {what}\n{usage}"


def check_options(name: str, options: Options, now_s: float) -> None:
    """What the clients check of option values.

    Raises:
        Misused: the first one that is no good.
    """
    if name == "qalter" and re.match("[0-9]", options.last("N")):
        raise Misused(name, "illegal -N value")
    if name == "qalter" and not set(options.last("h", "u")) <= set("uosn"):
        raise Misused(name, "illegal -h value")
    for letter, is_good in _CHECKS.items():
        if options.has(letter) and not is_good(options.last(letter)):
            more = " (y/n)" if letter == "r" and name == "qsub" else ""
            raise Misused(name, f"illegal -{letter} value{more}")
    if options.has("a"):
        try:
            execution_time_s(options.last("a"), now_s)
        except Refused as error:
            raise Misused(name, "illegal -a value") from error


def _is_name(text: str) -> bool:
    return not re.search(r"\s", text)


def _is_priority(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text) is not None and abs(int(text)) <= _MOST_PRIORITY


def _is_mail(text: str) -> bool:
    return text == "n" or re.fullmatch("[abe]+", text) is not None


_CHECKS: dict[str, Callable[[str], bool]] = {
    "j": ("oe", "eo", "n").__contains__,
    "k": lambda text: re.fullmatch("n|[oe]+", text) is not None,
    "m": _is_mail,
    "N": _is_name,
    "p": _is_priority,
    "r": ("y", "n").__contains__,
}


def canonical(resource: str, text: str, *, is_old: bool) -> str:
    """A resource's value as the server keeps it: ``90`` -> ``00:01:30``, ``2GB`` -> ``2gb``.

    Raises:
        Refused: no value of that kind.
    """
    try:
        if resource in _DURATIONS:
            return walltime_text(_duration_s(text))
        if resource in _NUMBERS:
            return str(int(text))
        if resource.endswith("mem") or resource == "file":
            return _size(text)
    except ValueError as error:
        gap = "  " if is_old else " "
        raise Refused(
            15016, f"Illegal attribute or resource value for{gap}Resource_List.{resource}"
        ) from error
    return text


def _duration_s(text: str) -> int:
    """``1:2:3:4`` is days, hours, minutes, seconds."""
    *days, hours, minutes, seconds = ["0", "0", *text.split(":")][-4:]
    return int(days[0] if days else "0") * 86400 + seconds_of(f"{hours}:{minutes}:{seconds}")


def _size(text: str) -> str:
    match = re.fullmatch(r"(-?\d+)([kmgtp]?)([bw]?)", text.strip().lower())
    if match is None:
        raise ValueError(text)
    # A negative number is read as an unsigned one, as C does.
    return f"{int(match[1]) % 2**64}{match[2]}{match[3] or 'b'}"


def execution_time_s(text: str, now_s: float) -> int:
    """``[[[[CC]YY]MM]DD]hhmm[.SS]`` -> epoch seconds, the next such moment.

    Raises:
        Refused: not such a text.
    """
    digits, _, seconds = text.partition(".")
    if not digits.isdigit() or len(digits) not in (4, 6, 8, 10, 12) or (seconds and not seconds.isdigit()):
        raise Refused(15016, "illegal -a value")
    here = time.localtime(now_s)
    full = {4: "{0:04d}{1:02d}{2:02d}", 6: "{0:04d}{1:02d}", 8: "{0:04d}", 10: "20", 12: ""}[len(digits)]
    whole = full.format(here.tm_year, here.tm_mon, here.tm_mday) + digits
    year, month, day, hour, minute = int(whole[:4]), *[int(whole[i : i + 2]) for i in range(4, 12, 2)]
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60):
        raise Refused(15016, "illegal -a value")
    at_s = time.mktime((year, month, day, hour, minute, int(seconds or 0), 0, 0, -1))
    if at_s <= now_s and len(digits) == 4:
        at_s += 86400
    return int(at_s)
