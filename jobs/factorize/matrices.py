"""Matrices to factorize, made by a fixed seed, and an independent check of their factors.

Each matrix follows from its number, so two runs agree. LU and QR get general matrices, Cholesky gets
symmetric positive definite ones. Operation, dtype and order go round so that every combination occurs; sizes
are spread over the range so that bytes, not count, are even. A few records can be spoilt on purpose, each in
another way, to show where bad input ends.

Factors are checked independently of the servers: read back from the store, and measured by the LAPACK ratios.
The formulas are those of LAPACK's own test suite (below 30 is good), in float64 with the epsilon of the
input's dtype: ``||A - PLU|| / (||A|| n eps)``, ``||A - QR|| / (||A|| m eps)``, ``||Q'Q - I|| / (m eps)``,
``||A - LL'|| / (||A|| n eps)``, all in the 1-norm. Nothing here is shared with `yarn_accel.operations`, so a
mistake there does not hide itself.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.factorize.manifest import DTYPES, OPERATIONS, Entry, format_entry

FLAWS = ("nan", "indefinite", "short", "missing")
"""How a record can be spoilt: a NaN inside, not positive definite, a file that is cut off, no file at all."""

GARBAGE_LINE = "this is not a manifest line"

LIMIT = 30.0
"""LAPACK's own threshold: a ratio below it is a pass."""

Float64s = NDArray[np.float64]
_SEED_STREAM = 20_260_731


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix to make: `n` x `n`, from stream `number` of `seed`; `flaw` is empty or one of `FLAWS`."""

    key: str
    number: int
    operation: str
    dtype: str
    order: str
    n: int
    seed: int
    flaw: str = ""

    @property
    def n_bytes(self) -> int:
        """Size of the whole file in bytes."""
        return self.n * self.n * int(DTYPES[self.dtype][-1])


def plan_matrices(count: int, n_min: int, n_max: int, seed: int = 0) -> tuple[Matrix, ...]:
    """Plan `count` good matrices with sides from `n_min` to `n_max`, every combination in turn."""
    combinations = list(itertools.product(OPERATIONS, DTYPES, ("F", "C")))
    steps = np.linspace(0.0, 1.0, count) if count > 1 else np.ones(1)
    sides = np.rint(n_min + (n_max - n_min) * steps).astype(int)
    sides = np.random.default_rng([seed, _SEED_STREAM]).permutation(sides)
    planned = []
    for number in range(count):
        operation, dtype, order = combinations[number % len(combinations)]
        n = int(sides[number])
        key = f"m{number:04d}-{operation}-{dtype[0]}{dtype[-2:]}{order.lower()}-n{n}"
        planned.append(Matrix(key, number, operation, dtype, order, n, seed))
    return tuple(planned)


def plan_flawed(n: int = 256, seed: int = 0) -> tuple[Matrix, ...]:
    """Plan one bad matrix for each of `FLAWS`."""
    operations = {"nan": "lu", "indefinite": "cholesky", "short": "qr", "missing": "lu"}
    return tuple(
        Matrix(f"bad-{flaw}", 1_000_000 + index, operations[flaw], "float64", "F", n, seed, flaw)
        for index, flaw in enumerate(FLAWS)
    )


def make_bytes(matrix: Matrix) -> bytes:
    """The content of the matrix file; shorter than `Matrix.n_bytes` for the flaw ``short``."""
    rng = np.random.default_rng([matrix.seed, matrix.number])
    values = rng.standard_normal((matrix.n, matrix.n), dtype=np.dtype(DTYPES[matrix.dtype]))
    if matrix.operation == "cholesky":
        values = values @ values.T
        values.flat[:: matrix.n + 1] += matrix.n * 0.1
    if matrix.flaw == "nan":
        values[matrix.n // 2, matrix.n // 3] = np.nan
    elif matrix.flaw == "indefinite":
        values[matrix.n // 2, matrix.n // 2] = -1.0
    content = values.tobytes(order="F" if matrix.order == "F" else "C")
    return content[: len(content) // 2] if matrix.flaw == "short" else content


def entry_of(matrix: Matrix, input_uri: str, output_uri: str) -> Entry:
    """The manifest entry of a matrix in folder `input_uri` whose factors go to folder `output_uri`."""
    return Entry(
        key=matrix.key,
        uri=f"{input_uri}/{matrix.key}.bin",
        dtype=matrix.dtype,
        shape=(matrix.n, matrix.n),
        order=matrix.order,
        operation=matrix.operation,
        output_uri=f"{output_uri}/{matrix.key}.npz",
    )


def balance(matrices: Sequence[Matrix], n_tasks: int) -> tuple[Matrix, ...]:
    """Order matrices so that cutting the list into `n_tasks` equal runs gives runs of about equal work."""
    by_size = sorted(matrices, key=lambda matrix: (-matrix.n, matrix.key))
    tasks: list[list[Matrix]] = [[] for _ in range(n_tasks)]
    for index, matrix in enumerate(by_size):
        turn, task = divmod(index, n_tasks)
        tasks[task if turn % 2 == 0 else n_tasks - 1 - task].append(matrix)
    return tuple(itertools.chain.from_iterable(tasks))


def manifest_of(matrices: Sequence[Matrix], input_uri: str, output_uri: str) -> str:
    """The manifest text of `matrices`, in their order."""
    entries = (entry_of(matrix, input_uri, output_uri) for matrix in matrices)
    return "".join(format_entry(entry) + "\n" for entry in entries)


# ---- checking factors


@dataclass(frozen=True, slots=True)
class Check:
    """The ratios of one matrix by name; `residual` is the largest."""

    key: str
    ratios: tuple[tuple[str, float], ...]

    @property
    def residual(self) -> float:
        """The largest ratio; infinite when one is not a number."""
        values = [value for _, value in self.ratios]
        return max(values) if np.all(np.isfinite(values)) else float("inf")


def drawn(entries: Sequence[Entry], sample: int = 0, seed: int = 0) -> list[Entry]:
    """`sample` of the entries (0 means all), drawn by `seed`, in their order."""
    if not 0 < sample < len(entries):
        return list(entries)
    picked = sorted(random.Random(seed).sample(range(len(entries)), sample))
    return [entries[index] for index in picked]


def verify(read_bytes: Callable[[str], bytes], factors: Iterable[tuple[Entry, bytes]]) -> tuple[Check, ...]:
    """Check entries, each with its factors as ``.npz``.

    Raises:
        StorageError: matrix or factors are not there.
    """
    return tuple(_check(read_bytes(entry.uri), content, entry) for entry, content in factors)


def ratios(
    matrix: Float64s, factors: dict[str, NDArray[np.generic]], operation: str, eps: float
) -> dict[str, float]:
    """The LAPACK ratios of `factors` (arrays by the names the server gives them) against `matrix` (m, n)."""
    rows, columns = matrix.shape
    if operation == "lu":
        residual = matrix - _product_lu(_wide(factors["lu"]), factors["piv"])
        return {"A-PLU": _ratio(residual, matrix, columns, eps)}
    if operation == "qr":
        q, r = _wide(factors["q"]), _wide(factors["r"])
        loss = q.T @ q - np.eye(q.shape[1])
        return {
            "A-QR": _ratio(matrix - q @ r, matrix, rows, eps),
            "QtQ-I": float(np.linalg.norm(loss, 1)) / (rows * eps),
        }
    lower = np.tril(_wide(factors["l"]))
    return {"A-LLt": _ratio(matrix - lower @ lower.T, matrix, columns, eps)}


def _check(elements: bytes, content: bytes, entry: Entry) -> Check:
    dtype: np.dtype[np.floating[Any]] = np.dtype(entry.wire_dtype)
    flat = np.frombuffer(elements, dtype=dtype)
    matrix = flat.reshape(entry.shape, order="F" if entry.order == "F" else "C").astype(np.float64)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        factors = {name: archive[name] for name in archive.files}
    found = ratios(matrix, factors, entry.operation, _unit_roundoff(dtype))
    return Check(entry.key, tuple(found.items()))


def _product_lu(packed: Float64s, pivots: NDArray[np.generic]) -> Float64s:
    """P L U from the packed LAPACK form; `pivots` are the row interchanges, counted from 0."""
    rows, columns = packed.shape
    rank = min(rows, columns)
    lower = np.tril(packed[:, :rank], -1)
    lower[np.arange(rank), np.arange(rank)] = 1.0
    product = lower @ np.triu(packed[:rank, :])
    for row in reversed(range(rank)):
        other = int(pivots[row])
        if other != row:
            product[[row, other]] = product[[other, row]]
    return product


def _ratio(residual: Float64s, matrix: Float64s, n: int, eps: float) -> float:
    scale = float(np.linalg.norm(matrix, 1))
    return float(np.linalg.norm(residual, 1)) / (scale * n * eps) if scale else 0.0


def _unit_roundoff(dtype: np.dtype[np.floating[Any]]) -> float:
    """LAPACK's epsilon: half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps) / 2


def _wide(values: NDArray[np.generic]) -> Float64s:
    return np.asarray(values, dtype=np.float64)
