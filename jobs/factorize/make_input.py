"""Make matrices to factorize, by a fixed seed: what each one is follows from its number, so two runs agree.

LU and QR get general matrices, Cholesky gets symmetric positive definite ones. Operation, dtype and order go
round so that every combination occurs; sizes are spread over the range so that bytes, not count, are even. A
few records can be spoilt on purpose, each in another way, to show where bad input ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs.factorize.manifest import DTYPES, OPERATIONS, Entry, format_entry

FLAWS = ("nan", "indefinite", "short", "missing")
"""How a record can be spoilt: a NaN inside, not positive definite, a file that is cut off, no file at all."""

GARBAGE_LINE = "this is not a manifest line"

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
