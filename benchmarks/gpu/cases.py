"""Small problems for every operation of the table, and how far a device's answer is from the CPU's.

A factorization is judged by LAPACK's ratio (`yarn_accel.operations.linear`), everything else by its
distance from what the CPU computes from the same input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.gpu.pictured import PNG, packed_images
from benchmarks.pipeline.lapack import matrix
from yarn_accel.operations import get
from yarn_accel.operations.cuda_streams import SMALL_ORDER
from yarn_accel.operations.linear import RESIDUAL_LIMIT

Array = Any
_RATIO = "LAPACK's ratio"
_FACTORIZATIONS = ("lu", "qr", "cholesky", "svd", "eigh")
_DISTANCE = 1e-10
"""Allowed, of a product or a solution in float64, as a part of the largest number."""


@dataclass(frozen=True)
class Case:
    """One request."""

    operation: str
    arrays: tuple[Array, ...]
    params: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        first = self.arrays[0]
        return f"{self.operation}, {first.dtype} {' x '.join(map(str, first.shape))}"

    def copies(self) -> list[Array]:
        """The inputs, to be written over."""
        return [array.copy(order="K") for array in self.arrays]


@dataclass(frozen=True)
class Judgement:
    """How far an answer is off, and how far it may be."""

    value: float
    unit: str
    limit: float

    @property
    def is_right(self) -> bool:
        """Whether it is near enough; NaN is not."""
        return self.value <= self.limit


def cases() -> Iterator[Case]:
    """At least one of every operation: element types, orders on both sides of where batches end, stacks."""
    random = np.random.default_rng(0)
    for dtype, order in (("f8", 60), ("f4", 60), ("c16", 60), ("f8", SMALL_ORDER + 88)):
        square = _typed(random.standard_normal((order, order)), dtype)
        yield Case("lu", (np.asfortranarray(square),))
        yield Case("qr", (np.asfortranarray(square[:, : order // 2]),))
        definite = square @ square.conj().T + order * np.eye(order, dtype=square.dtype)
        yield Case("cholesky", (np.asfortranarray((definite + definite.conj().T) / 2),))
    square = random.standard_normal((40, 40))
    yield Case("lu", (random.standard_normal((5, 12, 12)),))
    yield Case("gemm", (square, random.standard_normal((40, 30))))
    factors = get("lu").run([square.copy()], {}).arrays
    yield Case("solve", (factors["lu"], factors["piv"], random.standard_normal(40)))
    yield Case("residual", (square, factors["lu"], factors["piv"]), {"operation": "lu"})
    yield Case("svd", (square,))
    yield Case("eigh", (square + square.T,))
    yield Case("echo", (square,))
    points = random.standard_normal((90, 4))
    points[:30] += 20.0
    points[30:60] -= 20.0
    yield Case("kmeans", (points,), {"k": 3})
    yield Case("kmeans_seed", (points,), {"k": 3})
    yield Case("kmeans_step", (points, points[::30].copy()))
    yield Case("knn", (points[::3].copy(), points, np.repeat(np.arange(3), 30)))
    # PNG: the pixels are the same wherever they are decoded.
    images = tuple(packed_images(PNG.encoded(5)))
    for operation in ("lbp", "colour", "features"):
        yield Case(operation, images)


def judged(case: Case, found: Mapping[str, Array], info: Mapping[str, Any]) -> Judgement:
    """What a device computed, judged on the CPU.

    Args:
        case: what was asked.
        found: the arrays that came back, by name.
        info: the facts that came with them.
    """
    if case.operation in _FACTORIZATIONS:
        return Judgement(_worst_ratio(case, found), _RATIO, RESIDUAL_LIMIT)
    expected = get(case.operation).run(case.copies(), case.params)
    if case.operation == "residual":
        difference = abs(info["residual"] - expected.info["residual"]) / expected.info["residual"]
        return Judgement(difference, "relative", _DISTANCE)
    if found.keys() != expected.arrays.keys():
        return Judgement(float("inf"), "relative", 0.0)
    is_exact = case.operation in ("echo", "lbp", "colour", "features")
    # The root of a number near 0 has half of its right digits: distances are compared by their squares.
    power = 2 if case.operation == "knn" else 1
    worst = max(_distance(found[name] ** power, array**power) for name, array in expected.arrays.items())
    return Judgement(worst, "relative", 0.0 if is_exact else _DISTANCE)


def factorization_of(operation: str, n: int) -> Case:
    """One small square matrix in float64."""
    return Case(operation, (matrix(operation, n),))


def _typed(numbers: Array, dtype: str) -> Array:
    return (numbers + 1j * numbers.T if dtype == "c16" else numbers).astype(dtype)


def _worst_ratio(case: Case, found: Mapping[str, Array]) -> float:
    given, factors = case.arrays[0], list(found.values())
    n_items = len(given) if given.ndim > 2 else 0
    items = [(given[i], [factor[i] for factor in factors]) for i in range(n_items)] or [(given, factors)]
    params = {"operation": case.operation}
    judged_items = (get("residual").run([one.copy(), *parts], params) for one, parts in items)
    return max(float(outcome.info["residual"]) for outcome in judged_items)


def _distance(found: Array, expected: Array) -> float:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    largest = float(np.abs(expected).max(initial=0)) or 1.0
    return float(np.abs(np.asarray(found, np.float64) - expected).max(initial=0)) / largest
