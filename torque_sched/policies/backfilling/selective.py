"""Selective backfilling: a job is promised a start once it has waited long for its length.

Between EASY and conservative (Srinivasan, Kettimuthu, Subramani, Sadayappan 2002): jobs without a promise are
in nobody's way, and none of them waits for ever.
"""

from __future__ import annotations

import math
from typing import TypeVar

from torque_sched.errors import ConfigError
from torque_sched.policies.backfilling.conservative import Conservative
from torque_sched.policies.backfilling.entry import Entry
from torque_sched.policies.backfilling.estimate import Estimates
from torque_sched.policies.backfilling.order import Order
from torque_sched.policies.backfilling.settings import Bounds
from torque_sched.policies.backfilling.table import Spot, Table

N = TypeVar("N")
S = TypeVar("S", bound=Spot)


def expansion_factor(wait_s: float, length_s: float) -> float:
    """How many times its own run time a job spends from submission to end, were it started now.

    >>> expansion_factor(3600.0, 1800.0)
    3.0
    """
    return (wait_s + length_s) / length_s if length_s > 0 else math.inf


class Selective(Conservative[N, S]):
    """Promises to those whose expansion factor passes a threshold; once given they are as `Conservative`'s.

    Args:
        table: as `Backfilling`.
        order: as `Backfilling`.
        estimates: as `Backfilling`.
        bounds: as `Backfilling`.
        compress: as `Conservative`.
        depth: as `Conservative`.
        threshold: above which expansion factor; 1 or more, 1 promises to all who must wait.
    """

    def __init__(
        self,
        table: Table[N, S],
        order: Order | None = None,
        estimates: Estimates | None = None,
        bounds: Bounds | None = None,
        *,
        compress: bool = True,
        depth: float = math.inf,
        threshold: float = 2.0,
    ) -> None:
        if not threshold >= 1:
            raise ConfigError(
                f"a threshold of {threshold:g}", cure="it is an expansion factor: 1 is no wait at all"
            )
        super().__init__(table, order, estimates, bounds, compress=compress, depth=depth)
        self._threshold = threshold

    def deserves_promise(self, entry: Entry[N, S]) -> bool:
        """As `Conservative.deserves_promise`."""
        wait_s = self.now_s - entry.job.submit_s
        return expansion_factor(wait_s, entry.length_s) > self._threshold
