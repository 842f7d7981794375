"""What qsub and qalter themselves look at before they ask the server, and how the server writes values."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from torque_sched.emulation.call import Options
from torque_sched.emulation.model import Refused, seconds_of, walltime_text

_USAGE = "usage: {name} [-a date_time] [-A account_string] ...\n"
_DURATIONS = frozenset(("walltime", "cput", "pcput"))
_NUMBERS = frozenset(("ncpus", "nodect", "procs", "nice", "size"))
_LOWEST, _HIGHEST = -1024, 1023
_CHECKPOINT = frozenset(
    ("n", "c", "s", "u", "none", "shutdown", "periodic", "enabled", "interval", "depth", "dir")
)


class Misused(Exception):
    """The client itself refuses its arguments: it prints its usage and exits with 2."""

    code = 2

    def __init__(self, name: str, what: str, *, before: str = "") -> None:
        super().__init__(what)
        usage = _USAGE.format(name=name or "qsub")
        named = f"{name}: {what}" if name else what
        self.text = before + (f"{named}\n{usage}" if name == "qalter" else f"[{named}]\n\n{usage}\n")


def check_options(name: str, options: Options, now_s: float, *, is_old: bool = False) -> None:
    """What the clients check of option values.

    Raises:
        Misused: the first one that is no good.
    """
    if name == "qalter" and options.has("N") and re.match("[0-9]|$", options.last("N")):
        raise Misused(name, "illegal -N value")
    if name == "qalter" and not (options.last("h", "u") and set(options.last("h", "u")) <= set("uosn")):
        raise Misused(name, "illegal -h value")
    if is_old and set(options.last("m")) & set("fp"):
        raise Misused(name, "illegal -m value")
    if name == "qalter" and options.last("n", "y") not in ("y", "n"):
        raise Misused(name, "illegal -n value")
    for letter, is_good in _CHECKS.items():
        if options.has(letter) and not is_good(options.last(letter)):
            more = " (y/n)" if letter == "r" and name == "qsub" else ""
            raise Misused(name, f"illegal -{letter} value{more}")
    if options.has("a"):
        try:
            execution_time_s(options.last("a"), now_s)
        except Refused as error:
            raise Misused(name, "illegal -a value") from error


def is_host_list(text: str, *, is_path: bool = False, is_counted: bool = True) -> bool:
    """``name[@host],...``: every host (and none) once if ``is_counted``; from the root if ``is_path``."""
    parts = [each.strip().partition("@") for each in text.split(",")]
    hosts = [host for _, _, host in parts]
    return (
        all(name and (host or not sign) for name, sign, host in parts)
        and (not is_counted or len(set(hosts)) == len(hosts))
        and (not is_path or all(name.startswith("/") for name, _, _ in parts))
    )


def _is_shells(text: str) -> bool:
    return is_host_list(text, is_path=True)


def _is_mail_list(text: str) -> bool:
    return is_host_list(text, is_counted=False)


def _is_checkpoint(text: str) -> bool:
    return all(each.partition("=")[0].strip() in _CHECKPOINT for each in text.split(","))


def _is_name(text: str) -> bool:
    return not re.search(r"\s", text)


def _is_priority(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text) is not None and _LOWEST <= int(text) <= _HIGHEST


def _is_mail(text: str) -> bool:
    return text == "n" or re.fullmatch("[abefp]+", text) is not None


def _is_positive(text: str) -> bool:
    return re.match(r"\s*\+?0*[1-9]", text) is not None


_CHECKS: dict[str, Callable[[str], bool]] = {
    "c": _is_checkpoint,
    "j": ("oe", "eo", "n").__contains__,
    "k": ("o", "e", "oe", "eo", "n").__contains__,
    "K": _is_positive,
    "m": _is_mail,
    "M": _is_mail_list,
    "N": _is_name,
    "p": _is_priority,
    "r": ("y", "n").__contains__,
    "S": _is_shells,
    "u": is_host_list,
    "o": bool,
    "e": bool,
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
    if not re.fullmatch(r"(\d+:){0,3}\d+(\.\d+)?", text):
        raise ValueError(text)
    whole, _, part = text.partition(".")
    *days, hours, minutes, seconds = ["0", "0", *whole.split(":")][-4:]
    total = int(days[0] if days else "0") * 86400 + seconds_of(f"{hours}:{minutes}:{seconds}")
    return total + (part[:1] >= "5")


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
    if at_s <= now_s and len(digits) == 8:
        at_s = time.mktime((year + 1, month, day, hour, minute, int(seconds or 0), 0, 0, -1))
    return int(at_s)
