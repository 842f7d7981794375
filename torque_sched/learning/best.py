"""Several predictors side by side; for each kind of job the one that was right lately speaks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torque_sched.policies.predict.estimate import Estimate, Predictor
from torque_sched.policies.predict.fingerprint import Fingerprint, Key
from torque_sched.policies.predict.registry import new_predictor

_LEAST_CHECKS = 5
_MAX_KINDS = 20_000
_JUDGED = ("user+script", "recent")


@dataclass(frozen=True, slots=True)
class Said:
    """What was predicted of one figure of one job.

    Attributes:
        best: name of the predictor that speaks.
        estimate: its answer; ``error`` is its mean error over the last checks for this kind of job.
        by_name: every predictor's own answer; kept until the job ends, then checked.
        n_checks: how many checks the choice rests on; 0: nothing to choose by yet.
    """

    best: str
    estimate: Estimate
    by_name: Mapping[str, Estimate]
    n_checks: int = 0


class BestOf:
    """Learns one figure with all predictors named; the first of them speaks until there are checks.

    Args:
        names: predictors of :mod:`torque_sched.policies.predict.registry`.
        window: W, the last checks by which they are compared.
    """

    def __init__(self, names: Sequence[str], window: int) -> None:
        self._predictors: dict[str, Predictor] = {name: new_predictor(name) for name in names}
        self._window = window
        self._errors: OrderedDict[Key, deque[tuple[float, ...]]] = OrderedDict()
        self.n_observed = 0

    def say(self, job: Fingerprint, fallback: float = 0.0) -> Said:
        """What to expect of a job."""
        by_name = {name: each.predict(job, fallback) for name, each in self._predictors.items()}
        names = list(by_name)
        best, n_checks, error = names[0], 0, None
        for key in _judged(job):
            checks = self._errors.get(key)
            if checks is not None and len(checks) >= _LEAST_CHECKS:
                means = [sum(column) / len(checks) for column in zip(*checks, strict=True)]
                # The first named wins ties, so a lucky equal does not make the choice flutter.
                place = min(range(len(means)), key=lambda at: (means[at], at))
                best, n_checks, error = names[place], len(checks), means[place]
                break
        chosen = by_name[best]
        upper = chosen.upper
        if upper is None:
            upper = next((each.upper for each in by_name.values() if each.upper is not None), None)
        if upper is not None:
            upper = max(upper, chosen.value)
        return Said(
            best,
            replace(chosen, upper=upper, error=chosen.error if error is None else error),
            by_name,
            n_checks,
        )

    def hear(self, job: Fingerprint, value: float, said: Mapping[str, Estimate] | None = None) -> None:
        """Check what was said of a job that ended, then learn from it.

        Args:
            job: as it was predicted.
            value: what it used.
            said: every predictor's answer when it was started; None: what they would say now.

        Raises:
            ModelError: the value is no finite number.
        """
        if said is None or said.keys() != self._predictors.keys():
            said = {name: each.predict(job) for name, each in self._predictors.items()}
        if self.n_observed:
            errors = tuple(abs(said[name].value - value) for name in self._predictors)
            for key in _judged(job):
                checks = self._errors.get(key)
                if checks is None:
                    checks = self._errors[key] = deque(maxlen=self._window)
                self._errors.move_to_end(key)
                checks.append(errors)
            while len(self._errors) > _MAX_KINDS:
                self._errors.popitem(last=False)
        for name, each in self._predictors.items():
            each.observe(job, value, said[name])
        self.n_observed += 1


def _judged(job: Fingerprint) -> list[Key]:
    return [key for key in job.chain() if key[0] in _JUDGED]
