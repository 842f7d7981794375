"""Texts that users choose, as one line of characters that can be shown.

A job's name, account, comment or resource may hold a newline, an ESC sequence or the marks that turn the
direction of writing. Readers of outputs of a batch system pass every text through :func:`one_line`, so that
none of them does anything in a log, on a terminal, in a table or in a comment.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, tzinfo

_PLAIN = bytes(range(0x20, 0x7F))

_NOT_SHOWN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)


def one_line(text: str, most: int = 0) -> str:
    """The text with what controls a terminal, ends a line or is no character written as Python writes it.

    Args:
        text: of anybody.
        most: longer texts are cut there and say so; 0 cuts none.

    >>> one_line("a\\tb\\x1b[2J")
    'a\\\\tb\\\\x1b[2J'
    >>> one_line("x" * 1000, 5)
    'xxxxx... (1000 characters)'
    """
    if most and len(text) > most:
        return f"{one_line(text[:most])}... ({len(text)} characters)"
    return text if is_plain(text) else _NOT_SHOWN.sub(_written, text)


def is_plain(text: str) -> bool:
    """Whether the text is of ASCII's characters that can be shown alone, as nearly all are; this is quick."""
    return text.isascii() and not text.encode("ascii").translate(None, _PLAIN)


def _written(found: re.Match[str]) -> str:
    return repr(found.group())[1:-1]


def time_text(at_s: float, zone: tzinfo) -> str:
    """A point in time for a comment, to the minute.

    >>> from datetime import timezone
    >>> time_text(0.0, timezone.utc)
    '1970-01-01 00:00 UTC'
    """
    try:
        return datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%d %H:%M %Z")
    except (OverflowError, ValueError, OSError):
        return f"{at_s:.0f} s after 1970"


def guaranteed_words(at_s: float, zone: tzinfo) -> str:
    """A guaranteed start, as the job's comment and `showstart` have it: the minute by which it is over.

    >>> from datetime import timezone
    >>> guaranteed_words(0.0, timezone.utc)
    'not later than 1970-01-01 00:00 UTC'
    """
    return f"not later than {time_text(math.ceil(at_s / 60) * 60.0, zone)}"


def expected_words(at_s: float | None, zone: tzinfo) -> str:
    """An expected start, as the job's comment and `showstart` have it.

    >>> from datetime import timezone
    >>> expected_words(60.0, timezone.utc), expected_words(None, timezone.utc)
    ('expected 1970-01-01 00:01 UTC', 'no start expected yet')
    """
    return "no start expected yet" if at_s is None else f"expected {time_text(at_s, zone)}"
