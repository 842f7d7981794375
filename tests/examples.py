"""How many examples a property test draws: a fifth in `make test`, all of them in `make test-all`."""

from __future__ import annotations

import os

ALL = os.environ.get("TEST_EXAMPLES") == "all"
_FEWEST = 25


def examples(n: int) -> int:
    """The number of examples to draw now of ``n``; at least 25, or ``n`` where that is less."""
    return n if ALL else max(n // 5, min(n, _FEWEST))
