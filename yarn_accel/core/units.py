"""Sizes, rates and durations: as people read them, and how large a file may make them."""

from __future__ import annotations

#: What files may name of seconds and bytes: sums of larger ones lose single seconds and bytes.
MAX_SECONDS = 1e9
MAX_BYTES = 2**53
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(n_bytes: float) -> str:
    """Write a size with a binary unit and at most three significant places.

    >>> format_bytes(512), format_bytes(1536), format_bytes(3 * 1024**3)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    value, power = float(n_bytes), 0
    while abs(value) >= 1024 and power < len(_BINARY) - 1:
        value, power = value / 1024, power + 1
    unit = _BINARY[power]
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"


def format_duration_s(duration_s: float) -> str:
    """Write a duration the way a person would say it.

    >>> format_duration_s(0.0042), format_duration_s(12.34), format_duration_s(184)
    ('4 ms', '12.3 s', '3 min 04 s')
    """
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds:02d} s"
