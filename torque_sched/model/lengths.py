"""How long a job runs beside how long it waits: what live planning and the counts of processors share."""

from __future__ import annotations

import math

CORRECTIONS_S = (60, 300, 900, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000, 360_000)
"""What a wrong prediction is raised by, time after time (Tsafrir, Etsion, Feitelson 2007, gradual steps)."""


def expansion_factor(wait_s: float, length_s: float) -> float:
    """How many times its own run time a job spends from submission to end, were it started now.

    >>> expansion_factor(3600.0, 1800.0)
    3.0
    """
    return (wait_s + length_s) / length_s if length_s > 0 else math.inf
