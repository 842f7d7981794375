"""Numbers as people read them."""

from __future__ import annotations

import math
import time

from torque_sched.model.units import format_duration


def moment(at_s: float | None, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """A moment in this host's time, with its zone: an hour may come twice; a dash when it is not known.

    >>> moment(None), moment(float("inf")), moment(1e18)
    ('-', '-', '-')
    """
    try:
        return "-" if at_s is None or not math.isfinite(at_s) else time.strftime(form, time.localtime(at_s))
    except (OverflowError, ValueError, OSError):
        return "-"


def span(seconds: float | None) -> str:
    """A duration as Torque writes it; a dash when unknown."""
    return "-" if seconds is None else format_duration(max(0.0, round(seconds)))


def ago(seconds: float) -> str:
    """An age.

    >>> ago(5), ago(7300)
    ('5 s ago', '02:01:40 ago')
    """
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{span(seconds)} ago"


def size(amount_bytes: float | None) -> str:
    """Bytes with a unit that leaves few digits; a dash when unknown.

    >>> size(1.5 * 2**30), size(None)
    ('1.5 GiB', '-')
    """
    if amount_bytes is None:
        return "-"
    value = float(amount_bytes)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"


def percent(share: float | None) -> str:
    """A share of 1 as a percentage; a dash when unknown."""
    return "-" if share is None else f"{100 * share:.0f} %"


def amount(figure: str, value: float | None) -> str:
    """A predicted figure in its unit."""
    if value is None:
        return "-"
    if figure == "runtime":
        return span(value)
    return size(value) if "memory" in figure else f"{value:.2f}"
