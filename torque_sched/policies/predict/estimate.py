"""What a predictor says, and what all predictors have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torque_sched.policies.predict.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction with what it rests on, all in the unit of what was observed.

    Attributes:
        value: what to expect.
        upper: not exceeded in the share of cases the predictor is calibrated to; None: it gives none.
        n_similar: ended jobs of the closest kind that has any.
        evidence: of which kind these are, such as ``user+script``; ``none`` when nothing was observed yet.
        error: mean absolute error of such predictions so far; None: none was checked yet.
    """

    value: float
    upper: float | None = None
    n_similar: int = 0
    evidence: str = "none"
    error: float | None = None


class Predictor(Protocol):
    """Learns one figure of jobs from those that ended."""

    def predict(self, job: Fingerprint, fallback: float = 0.0) -> Estimate:
        """What to expect of a job.

        Args:
            job: the job before it runs.
            fallback: the answer while nothing at all was observed.
        """
        ...

    def observe(self, job: Fingerprint, value: float, predicted: Estimate | None = None) -> None:
        """Learn from a job that ended.

        Args:
            job: as it was predicted.
            value: what it really used; must be a finite number.
            predicted: what was said when it was submitted, where that is still known.

        Raises:
            ModelError: the value is no finite number.
        """
        ...
