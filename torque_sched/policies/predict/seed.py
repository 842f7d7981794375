"""The paper's own predictor (self-learning paper, section 3.2, Algorithm 3.2 PREDICT)."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from itertools import islice

from torque_sched.policies.predict.checks import finite
from torque_sched.policies.predict.estimate import Estimate
from torque_sched.policies.predict.fingerprint import Fingerprint


class SeedPredictor:
    """PREDICT to the letter: matched, N = 0, N = 1, N > 1 with L and L1.

    - jobs of the same script: the mean over all of them (one match: that one);
    - none, N = 0 records: the fallback, which the caller takes from the node (its load by its jobs);
    - none, N = 1: that record;
    - none, N > 1: of the L most recent records (L at most N) the newest L1 = ceil(0.2 L) weigh `newer_weight`
      together, the others the rest.

    The bracket around 0.2 L is ambiguous in print; rounding up keeps L1 >= 1. Records are any of one figure.

    Args:
        recent: L.
        newer_weight: what the newer part weighs, 0 to 1; the paper wants more than half.
        max_scripts: scripts remembered; the one not seen for longest goes first. Bounds the memory.
    """

    def __init__(self, recent: int = 50, newer_weight: float = 0.6, max_scripts: int = 200_000) -> None:
        self._newer_weight = newer_weight
        self._recent: deque[float] = deque(maxlen=recent)
        self._max_scripts = max_scripts
        self._sums: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def predict(self, job: Fingerprint, fallback: float = 0.0) -> Estimate:
        """As `Predictor.predict`; `upper` is never given."""
        total, n = self._sums.get(job.script, (0.0, 0))
        if n and job.script:
            return Estimate(total / n, n_similar=n, evidence="script")
        if not self._recent:
            return Estimate(fallback)
        return Estimate(self._forecast(), n_similar=len(self._recent), evidence="recent")

    def _forecast(self) -> float:
        n = len(self._recent)
        n_newer = math.ceil(0.2 * n)
        newer = sum(islice(self._recent, n_newer)) / n_newer
        if n_newer == n:
            return newer
        older = sum(islice(self._recent, n_newer, None)) / (n - n_newer)
        return self._newer_weight * newer + (1 - self._newer_weight) * older

    def observe(self, job: Fingerprint, value: float, predicted: Estimate | None = None) -> None:
        """As `Predictor.observe`."""
        finite(value)
        total, n = self._sums.get(job.script, (0.0, 0))
        self._sums[job.script] = (total + value, n + 1)
        self._sums.move_to_end(job.script)
        if len(self._sums) > self._max_scripts:
            self._sums.popitem(last=False)
        self._recent.appendleft(value)
