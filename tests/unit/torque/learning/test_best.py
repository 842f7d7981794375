"""Of several predictors the one that was right lately speaks."""

from __future__ import annotations

import pytest

from torque_sched.errors import ConfigError, ModelError
from torque_sched.learning.best import BestOf
from torque_sched.policies.predict.fingerprint import Fingerprint

KIND = Fingerprint("ada", "relax", "1x2", "3600")


def test_the_first_speaks_until_there_are_checks() -> None:
    forecast = BestOf(("seed", "chain"), 20)
    forecast.hear(KIND, 1.0)
    said = forecast.say(KIND)
    assert (said.best, said.n_checks) == ("seed", 0)
    assert said.by_name.keys() == {"seed", "chain"}


def test_after_a_change_the_one_with_a_short_memory_takes_over() -> None:
    """The mean over all runs stays at the old value; a short window follows."""
    forecast = BestOf(("seed", "chain"), 10)
    for value in [1.0] * 30 + [5.0] * 15:
        forecast.hear(KIND, value)
    said = forecast.say(KIND)
    assert said.best == "chain"
    assert said.estimate.value == pytest.approx(5.0, abs=0.1)
    assert said.by_name["seed"].value == pytest.approx((30 + 75) / 45)
    assert said.n_checks == 10


def test_what_was_said_when_the_job_began_is_what_is_checked() -> None:
    forecast = BestOf(("chain",), 10)
    for value in [1.0] * 8:
        forecast.hear(KIND, value)
    before = forecast.say(KIND).by_name
    for value in [3.0] * 8:
        forecast.hear(KIND, value, before)
    # Eight times off by 2, though the predictor knows better by now.
    assert forecast.say(KIND).estimate.error == pytest.approx((2 * 0 + 8 * 2) / 10, abs=0.3)


def test_another_kind_is_judged_by_its_own_checks() -> None:
    forecast = BestOf(("seed", "chain"), 10)
    other = Fingerprint("bob", "fold", "1x1", "60")
    for n in range(40):
        forecast.hear(KIND, 1.0 if n < 25 else 5.0)
        forecast.hear(other, 2.0)
    assert forecast.say(KIND).best == "chain"
    assert forecast.say(other).best == "seed"  # both are exact: the first named


def test_a_bound_is_never_below_the_value() -> None:
    forecast = BestOf(("seed", "chain"), 10)
    for n in range(50):
        forecast.hear(KIND, float(n % 7))
        said = forecast.say(KIND)
        assert said.estimate.upper is not None
        assert said.estimate.upper >= said.estimate.value


def test_unknown_names_and_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="known are chain, seed"):
        BestOf(("crystal ball",), 5)
    with pytest.raises(ModelError):
        BestOf(("chain",), 5).hear(KIND, float("nan"))
