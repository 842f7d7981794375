"""Check factors independently of the servers: read them back from the store and compute the LAPACK ratios
here.

The formulas are those of LAPACK's own test suite (below 30 is good), in float64 with the epsilon of the
input's dtype: ``||A - PLU|| / (||A|| n eps)``, ``||A - QR|| / (||A|| m eps)``, ``||Q'Q - I|| / (m eps)``,
``||A - LL'|| / (||A|| n eps)``, all in the 1-norm. Nothing here is shared with `yarn_accel.operations`, so a
mistake there does not hide itself.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.factorize.manifest import Entry

LIMIT = 30.0
"""LAPACK's own threshold: a ratio below it is a pass."""

Matrix = NDArray[np.float64]


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
    matrix: Matrix, factors: dict[str, NDArray[np.generic]], operation: str, eps: float
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


def _product_lu(packed: Matrix, pivots: NDArray[np.generic]) -> Matrix:
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


def _ratio(residual: Matrix, matrix: Matrix, n: int, eps: float) -> float:
    scale = float(np.linalg.norm(matrix, 1))
    return float(np.linalg.norm(residual, 1)) / (scale * n * eps) if scale else 0.0


def _unit_roundoff(dtype: np.dtype[np.floating[Any]]) -> float:
    """LAPACK's epsilon: half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps) / 2


def _wide(values: NDArray[np.generic]) -> Matrix:
    return np.asarray(values, dtype=np.float64)
