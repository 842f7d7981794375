"""Checks the parameters of an operation before there are inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yarn_accel.errors import RejectedError
from yarn_accel.operations.operation import Operation
from yarn_accel.wire import TensorSpec

_ORDER = 1 << 20
_SQUARE = TensorSpec("<f8", (_ORDER, _ORDER))
_PIVOTS = TensorSpec("<i4", (_ORDER,))
#: Inputs, so large that no parameter is too large for them; an operation takes some of these.
_INPUTS = (
    (_SQUARE,),
    (_SQUARE, _SQUARE),
    (_SQUARE, _PIVOTS, _SQUARE),
    (_SQUARE, _SQUARE, _PIVOTS),
    (TensorSpec("|u1", (_ORDER,)), TensorSpec("<i8", (1,))),
)


def check_params(operation: Operation, params: Mapping[str, Any]) -> None:
    """Refuse parameters that the operation refuses whatever its inputs are.

    An operation checks parameters and inputs together, so it is asked with inputs of several kinds. One that
    takes none of them judges its parameters when a task runs.

    Raises:
        RejectedError: ``bad-parameter``, as the operation says it.
    """
    refusals = []
    for specs in _INPUTS:
        try:
            operation.check(operation.computed_specs(specs, params), params)
        except RejectedError as error:
            refusals.append(error)
        else:
            return
    bad = [error for error in refusals if error.code == "bad-parameter"]
    if bad:
        raise bad[0]
