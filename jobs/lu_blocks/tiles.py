"""The tasks of the DAG: each reads tiles from its working folder, and leaves tiles there.

Kernels are those of pipeline servers where the task finds one, else the same operations on its own core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yarn_accel.client import connect

LIMIT = 30.0
"""LAPACK's own threshold: a residual below it is a pass."""

_N_VECTORS = 4
Matrix = NDArray[np.float64]


def factor(tile: str, lu: str, piv: str) -> None:
    """getrf: the LU of a tile's transpose, with partial pivoting inside the tile.

    Args:
        tile: file of A[k, k].
        lu, piv: files to make.

    Raises:
        ValueError: the tile is singular.
    """
    with connect(count_calls=False) as accel:
        found = accel.lu(np.ascontiguousarray(np.load(tile).T))
        if found.singular_at:
            raise ValueError(f"{tile}: singular at {found.singular_at}; rows are swapped inside tiles only")
        np.save(lu, found.lu)
        np.save(piv, found.piv)


def left_factor(lu: str, piv: str, tile: str, into: str) -> None:
    """trsm: L[i, k] = A[i, k] / A[k, k], from the factors of A[k, k] transposed."""
    with connect(count_calls=False) as accel:
        right = np.ascontiguousarray(np.load(tile).T)
        reply = accel.call("solve", np.load(lu), np.load(piv), right, factors="lu", form="packed")
        np.save(into, np.ascontiguousarray(reply.arrays()["x"].T))


def update(tile: str, left: str, above: str, into: str) -> None:
    """gemm: A[i, j] - L[i, k] A[k, j]."""
    with connect(count_calls=False) as accel:
        np.save(into, np.load(tile) - accel.gemm(np.load(left), np.load(above)).c)


def residual(
    a: Sequence[Sequence[str]], left: Sequence[Sequence[str]], upper: Sequence[Sequence[str]], seed: int
) -> dict[str, float]:
    """How exact L and U are: ||AX - L(UX)|| / (||A|| ||X|| n eps) in the 1-norm, for a few random columns X.

    Each tile is read once; about as many operations as reading them takes.

    Args:
        a: files of A[i, j], row by row.
        left: files of L[i, k] for k < i; the diagonal blocks of L are units.
        upper: files of U[k, j] for j from k on.
        seed: of X.
    """
    n_tiles = len(a)
    edges = np.cumsum([0, *(np.load(row[0], mmap_mode="r").shape[0] for row in a)])
    parts = [slice(edges[i], edges[i + 1]) for i in range(n_tiles)]
    n = int(edges[-1])
    x = np.random.default_rng(seed).standard_normal((n, _N_VECTORS))
    ax, ux, column_sums = np.zeros_like(x), np.zeros_like(x), np.zeros(n)
    for i, row in enumerate(a):
        for j, name in enumerate(row):
            tile = np.load(name)
            ax[parts[i]] += tile @ x[parts[j]]
            column_sums[parts[j]] += np.abs(tile).sum(axis=0)
    for k, row in enumerate(upper):
        for j, name in enumerate(row, start=k):
            ux[parts[k]] += np.load(name) @ x[parts[j]]
    lux = ux.copy()
    for i, row in enumerate(left):
        for k, name in enumerate(row):
            lux[parts[i]] += np.load(name) @ ux[parts[k]]
    scale = column_sums.max() * _norm(x) * n * np.finfo(np.float64).eps
    return {"n": n, "residual": float(_norm(ax - lux) / scale) if scale else 0.0}


def _norm(x: Any) -> float:
    return float(np.linalg.norm(x, 1))
