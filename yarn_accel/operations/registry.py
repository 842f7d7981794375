"""The table of operations: the only place that knows their names.

A server of another kind (a GPU back end) offers the same names with another ``run``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence

from yarn_accel.errors import RejectedError
from yarn_accel.operations import checks
from yarn_accel.operations.operation import Operation, Outcome, Params
from yarn_accel.wire.tensors import TensorSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["OPERATIONS", "get"]

Check = Callable[[Sequence[TensorSpec], Params], None]
Count = Callable[[Sequence[TensorSpec], Params], int]


def _late(place: str) -> Callable[[List[np.ndarray[Any, Any]], Params], Outcome]:
    """A function of this package named ``module.function``, imported (with numpy) when it is first called."""
    module, _, function = place.partition(".")

    def run(arrays: List[np.ndarray[Any, Any]], params: Params) -> Outcome:
        loaded = importlib.import_module("yarn_accel.operations." + module)
        outcome: Outcome = getattr(loaded, function)(arrays, params)
        return outcome

    return run


def _anything(specs: Sequence[TensorSpec], params: Params) -> None:
    """Every input is fine."""


def _square(specs: Sequence[TensorSpec], params: Params) -> None:
    checks.matrix(specs, params, is_square=True)


def _no_count(specs: Sequence[TensorSpec], params: Params) -> int:
    return 0


def _lu_flops(specs: Sequence[TensorSpec], params: Params) -> int:
    rows, columns = specs[0].shape
    least = min(rows, columns)
    return 2 * rows * columns * least - (rows + columns) * least**2 + 2 * least**3 // 3


def _qr_flops(specs: Sequence[TensorSpec], params: Params) -> int:
    """The Householder form, and then q written out, which costs as much again for a square matrix."""
    rows, columns = specs[0].shape
    least = min(rows, columns)
    written_out = 2 * rows * least**2 - 2 * least**3 // 3
    return 2 * _lu_flops(specs, params) + written_out


def _cholesky_flops(specs: Sequence[TensorSpec], params: Params) -> int:
    n: int = specs[0].shape[0]
    return n**3 // 3


def _entry(
    name: str, summary: str, n_inputs: Optional[int], check: Check, place: str, flops: Count
) -> Operation:
    return Operation(name, summary, n_inputs, check, _late(place), flops)


_KMEANS = "k clusters of points: k-means++ start, then Lloyd's iterations"
_STEP = "one iteration of K-means: labels, and the sums, counts and inertia of each cluster"

OPERATIONS: Mapping[str, Operation] = {
    entry.name: entry
    for entry in (
        _entry("echo", "the inputs unchanged", None, _anything, "echo.echo", _no_count),
        _entry("lu", "PA = LU with partial pivoting", 1, checks.matrix, "factorization.lu", _lu_flops),
        _entry("qr", "A = QR, q written out", 1, checks.matrix, "factorization.qr", _qr_flops),
        _entry("cholesky", "A = LL'", 1, _square, "factorization.cholesky", _cholesky_flops),
        _entry("residual", "how exact factors are", None, checks.factors, "residual.residual", _no_count),
        _entry("lbp", "texture histograms", 2, checks.batch("bins"), "features.lbp", _no_count),
        _entry("colour", "colour histograms", 2, checks.batch("hsv_bins"), "features.colour", _no_count),
        _entry(
            "features",
            "texture and colour histograms, each image decoded once",
            2,
            checks.batch("bins", "hsv_bins"),
            "features.features",
            _no_count,
        ),
        _entry("kmeans", _KMEANS, 1, checks.points, "kmeans.kmeans", _no_count),
        _entry("kmeans_seed", "k-means++ start only", 1, checks.points, "kmeans.kmeans_seed", _no_count),
        _entry("kmeans_step", _STEP, 2, checks.centroids, "kmeans.kmeans_step", _no_count),
    )
}


def get(name: str) -> Operation:
    """The operation of that name.

    Raises:
        RejectedError: ``unknown-operation``, naming the known ones.
    """
    operation = OPERATIONS.get(name)
    if operation is None:
        known = ", ".join(sorted(OPERATIONS))
        raise RejectedError("unknown-operation", "unknown operation {!r}; known: {}".format(name, known))
    return operation
