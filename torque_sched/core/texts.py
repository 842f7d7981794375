"""Texts that users choose, as one line of characters that can be shown.

A job's name, account, comment or resource may hold a newline, an ESC sequence or the marks that turn the
direction of writing. Readers of Torque's outputs pass every text through :func:`one_line`, so that none of
them does anything in a log, on a terminal, in a table or in a comment.
"""

from __future__ import annotations

import re

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
