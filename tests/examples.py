"""How many examples a test takes: a tenth or the first few in `make test`, all of them in `make test-all`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

ALL = os.environ.get("TEST_EXAMPLES") == "all"
_FEWEST = 15


def examples(n: int) -> int:
    """The number of examples to draw now of ``n``; at least 15, or ``n`` where that is less."""
    return n if ALL else max(n // 10, min(n, _FEWEST))


def first(n: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which all but the first ``n`` are left to `make test-all` (marker `slow`)."""
    kept = list(values)
    rest = (each if isinstance(each, tuple) else (each,) for each in kept[n:])
    return kept[:n] + [pytest.param(*each, marks=pytest.mark.slow) for each in rest]
