"""What every predictor asks of an observation."""

from __future__ import annotations

import math

from torque_sched.errors import ModelError


def finite(value: float) -> float:
    """The value itself.

    Raises:
        ModelError: it is infinite or no number: one such record would spoil every mean after it.
    """
    if not math.isfinite(value):
        raise ModelError(f"a job cannot have used {value}", cure="leave this record out of the history")
    return value
