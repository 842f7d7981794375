"""The predictors by name."""

from __future__ import annotations

from collections.abc import Callable

from torque_sched.errors import ConfigError
from torque_sched.policies.predict.chain import ChainPredictor
from torque_sched.policies.predict.estimate import Predictor
from torque_sched.policies.predict.seed import SeedPredictor

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
