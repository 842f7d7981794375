"""Numbers become text in one place, and the examples of its docstrings hold."""

from __future__ import annotations

import doctest

import pytest

from yarn_accel.core import units


def test_docstring_examples_hold() -> None:
    result = doctest.testmod(units)
    assert result.attempted >= 2
    assert result.failed == 0


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (2048, "2.0 KiB"), (5 * 1024**5, "5120 TiB")]
)
def test_format_bytes(n_bytes: int, text: str) -> None:
    assert units.format_bytes(n_bytes) == text
