"""The predictors by name, and several of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torque_sched.errors import ConfigError
from torque_sched.learn.chain import ChainPredictor
from torque_sched.learn.predictors import Estimate, Fingerprint, Predictor, SeedPredictor

PREDICTORS: dict[str, Callable[[], Predictor]] = {"chain": ChainPredictor, "seed": SeedPredictor}


def new_predictor(name: str) -> Predictor:
    """A fresh predictor.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return PREDICTORS[name]()
    except KeyError:
        raise ConfigError(
            f"no predictor {name!r}", cure=f"known are {', '.join(sorted(PREDICTORS))}"
        ) from None


@dataclass(frozen=True, slots=True)
class RecordedPrediction:
    """The prediction of one figure of one job.

    Attributes:
        predictor: name of the one that answers.
        estimate: its answer; where it gives no upper bound, the bound is that of the next one that does.
        by_name: every predictor's own answer; kept until the job ends, then compared with it.
    """

    predictor: str
    estimate: Estimate
    by_name: Mapping[str, Estimate]


class PredictorEnsemble:
    """Learns one figure with all predictors named: the first answers, the others are recorded beside it.

    Args:
        names: of `PREDICTORS`; at least one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._predictors: dict[str, Predictor] = {name: new_predictor(name) for name in names}
        self._first = names[0]
        self.n_observed = 0

    def predict(self, job: Fingerprint) -> RecordedPrediction:
        """What to expect of a job."""
        by_name = {name: each.predict(job) for name, each in self._predictors.items()}
        answer = by_name[self._first]
        upper = next((each.upper for each in by_name.values() if each.upper is not None), None)
        if upper is not None:
            answer = replace(answer, upper=max(upper, answer.value))
        return RecordedPrediction(self._first, answer, by_name)

    def observe(
        self, job: Fingerprint, value: float, predicted: Mapping[str, Estimate] | None = None
    ) -> None:
        """Learn from a job that ended.

        Args:
            job: as it was predicted.
            value: what it used.
            predicted: every predictor's answer when it was started, where that is still known.

        Raises:
            ModelError: the value is no finite number.
        """
        for name, each in self._predictors.items():
            each.observe(job, value, None if predicted is None else predicted.get(name))
        self.n_observed += 1
