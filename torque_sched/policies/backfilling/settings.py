"""How much work one cycle of a backfilling policy may be."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on the work of one pass; the defaults are none, so that a simulation is exact.

    Attributes:
        window_s: nothing is reserved further ahead than this.
        resolution_s: expected ends are rounded up to its multiples (for the table: `CountTable`); 0 is exact.
        max_jobs: so many waiting jobs without a reservation are tested in one pass, in their order.
    """

    window_s: float = math.inf
    resolution_s: float = 0.0
    max_jobs: float = math.inf
