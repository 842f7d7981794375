"""Predictors of one figure of jobs (busy share, memory, run time), learned from jobs that ended before.

`SeedPredictor` is the paper's own rule; `torque_sched.learn.chain` has the default.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from torque_sched.errors import ModelError

#: One level of a chain: its name, then what must be equal.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The kind of a job, as far as it is known before it runs.

    Attributes:
        user: who submitted it; empty: unknown.
        script: what it runs: the job's name or its script, without a run's own number; empty: unknown.
        shape: what it asks for, such as ``2x4+1`` (nodes, processors of each, GPUs of each).
        limit: the requested walltime as text; people change it with the input.
    """

    user: str = ""
    script: str = ""
    shape: str = ""
    limit: str = ""

    def chain(self) -> tuple[Key, ...]:
        """Keys from the closest kind of job to any job at all; what is unknown matches nothing.

        >>> [key[0] for key in Fingerprint("ada", "relax", "1x4", "3600").chain()][:3]
        ['user+script+shape+limit', 'user+script+shape', 'user+script']
        """
        user, script, shape, limit = self.user, self.script, self.shape, self.limit
        levels: tuple[Key, ...] = (
            ("user+script+shape+limit", user, script, shape, limit),
            ("user+script+shape", user, script, shape),
            ("user+script", user, script),
            ("script", script),
            ("user+shape+limit", user, shape, limit),
            ("user+shape", user, shape),
            ("user", user),
            ("recent",),
        )
        return tuple(key for key in levels if all(key[1:]))


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


def finite(value: float) -> float:
    """The value itself.

    Raises:
        ModelError: it is infinite or no number: one such record would spoil every mean after it.
    """
    if not math.isfinite(value):
        raise ModelError(f"a job cannot have used {value}", cure="leave this record out of the history")
    return value


class SeedPredictor:
    """PREDICT as the paper prints it: matched, N = 0, N = 1, N > 1 with L and L1.

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
