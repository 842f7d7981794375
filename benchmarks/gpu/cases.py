"""Section `operations`: each operation on the GPU, by a server, judged on the CPU; alone and packed.

There are small problems for every operation of the table. A factorization is judged by LAPACK's ratio
(`yarn_accel.operations.linear`), everything else by its distance from what the CPU computes from the same
input.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.gpu.images import PNG, packed_images
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.lapack import matrix
from benchmarks.pipeline.setting import calls_of
from benchmarks.pipeline.setting import packed as packed_outcomes
from benchmarks.result import Row, measured
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError, JobError
from yarn_accel.operations import get
from yarn_accel.operations.linear import RESIDUAL_LIMIT
from yarn_accel.operations.operation import SMALL_ORDER

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
    definite = square @ square.T + 40.0 * np.eye(40)
    for operation in ("linsolve", "lstsq"):
        yield Case(operation, (definite, random.standard_normal((40, 3))))
    for operation in ("inv", "slogdet"):
        yield Case(operation, (definite,))
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


_PACK = 64
_N_PACKED = 128
_PACKED_ORDER = 24


def operation_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """A row for each case; its goal is that the answer is right."""
    device = setting.machine.gpu.name
    with setting.servers.gpu.client() as client:
        for case in cases():
            what = f"operation {case}"
            if setting.budget.allows(what):
                judgement, note = answered(client, case, device)
                yield [_row(what, [judgement], note)]
            else:
                yield [setting.budget.cut_row(what)]
        for operation in ("lu", "qr", "cholesky"):
            what = f"operation {operation}, order {_PACKED_ORDER}, packed by {_PACK}"
            yield [_row(what, packed(client, operation), f"{_N_PACKED} matrices, the worst")]


def answered(client: Client, case: Case, device: str) -> tuple[Judgement, str]:
    """The judgement of one call's answer, and where it was computed.

    Raises:
        JobError: another device answered.
    """
    tensors = tuple(Tensor.of(array) for array in case.arrays)
    reply = client.call(Call(secrets.token_hex(8), case.operation, dict(case.params), tensors))
    if reply.device != device:
        raise JobError(f"{case}: {reply.device} answered, not {device}")
    on = reply.info.get("computed_on", "cuda")
    return judged(case, reply.arrays(), reply.info), f"computed on {on}"


def packed(client: Client, operation: str) -> list[Judgement]:
    """The judgements of many small matrices that travel and are computed together.

    Raises:
        AccelError: what the first failed one failed with.
    """
    made = [factorization_of(operation, _PACKED_ORDER + at % 2) for at in range(_N_PACKED)]
    work = list(calls_of(operation, {}, ((Tensor.of(case.arrays[0]),) for case in made)))
    cases_of = {call.key: case for call, case in zip(work, made, strict=True)}
    found = []
    for call, outcome in packed_outcomes(client, work, 4, _PACK):  # as they are done, not in the calls' order
        if isinstance(outcome, AccelError):
            raise outcome
        found.append(judged(cases_of[call.key], outcome.arrays(), outcome.info))
    return found


def _row(what: str, judgements: Sequence[Judgement], note: str) -> Row:
    worst = max(judgements, key=lambda judgement: judgement.value)
    return measured(what, [worst.value], worst.unit, goal=f"<= {worst.limit:g}", note=note)
