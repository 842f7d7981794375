"""Times: epoch seconds in XML, ``Fri Nov 20 17:28:51 2026`` in text, ``11/20/2026 17:21:01`` in logs.

The last two are the server's local time, without its zone; the caller says which zone that is.
"""

from __future__ import annotations

import functools
import re
from datetime import datetime, timezone, tzinfo

from torque_sched.errors import UnitError

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CTIME = re.compile(
    r"[A-Z][a-z]{2} +([A-Z][a-z]{2}) +([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) ([0-9]{4})"
)
_STAMP = re.compile(r"([0-9]{2})/([0-9]{2})/([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@functools.lru_cache(maxsize=65536)
def epoch_s(text: str, zone: tzinfo = timezone.utc) -> float:
    """Seconds since the epoch of an XML time (digits) or of a text time in ``zone``.

    Raises:
        UnitError: the text is neither.
    """
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) < 13:
        return float(stripped)
    found = _CTIME.fullmatch(stripped)
    if found is None or found.group(1) not in _MONTHS:
        raise UnitError(f"{text[:40]!r} is no time", cure="run with LC_TIME=C; qstat -x prints epoch seconds")
    month, day, hour, minute, second, year = found.groups()
    return _seconds((year, str(_MONTHS.index(month) + 1), day, hour, minute, second), zone)


def stamp_s(text: str, zone: tzinfo = timezone.utc) -> float:
    """Seconds since the epoch of a log's or accounting file's ``MM/DD/YYYY HH:MM:SS``.

    Raises:
        UnitError: the text is no such time.
    """
    found = _STAMP.fullmatch(text)
    if found is None:
        raise UnitError(f"{text[:40]!r} is no time", cure="a line begins with MM/DD/YYYY HH:MM:SS")
    month, day, year, hour, minute, second = found.groups()
    return _seconds((year, month, day, hour, minute, second), zone)


def _seconds(parts: tuple[str, ...], zone: tzinfo) -> float:
    year, month, day, hour, minute, second = (int(part) for part in parts)
    try:
        # A leap second (":60") counts as the second after.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone)
        return (moment - _EPOCH).total_seconds() + max(0, second - 59)
    except (ValueError, OverflowError) as error:
        raise UnitError(f"{'-'.join(parts)} is no day and time") from error
