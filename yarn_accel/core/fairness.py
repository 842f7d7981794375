"""How evenly DAGs that share machines are slowed down, by equation (1) of the MPS paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Fairness(NamedTuple):
    """How evenly DAGs are slowed down.

    Attributes:
        unfairness: equation (1), the sum of the SDs' distances from their mean; it grows with the number
            of DAGs.
        relative_deviation: the mean distance over the mean SD, which does not; NaN where the mean is not
            above 0.
    """

    unfairness: float
    relative_deviation: float

    @property
    def words(self) -> str:
        """Both, for people."""
        share = self.relative_deviation
        return f"unfairness {self.unfairness:.3f}" + (
            "" if math.isnan(share) else f" (mean deviation {share:.3f} of the mean SD)"
        )

    def as_json(self) -> dict[str, float | None]:
        """Fit for `json.dumps`; what is not known is None."""
        share = self.relative_deviation
        return {"unfairness": self.unfairness, "relative_deviation": None if math.isnan(share) else share}


def fairness(slowdowns: Sequence[float]) -> Fairness:
    """The fairness of these SDs; 0 and NaN without DAGs."""
    if not slowdowns:
        return Fairness(0.0, math.nan)
    total = sum(slowdowns)
    distances = sum(abs(each - total / len(slowdowns)) for each in slowdowns)
    return Fairness(distances, distances / total if total > 0 else math.nan)
