"""Distances between many points on a GPU through CuPy: nearest neighbours and a pass of K-means.

Same arguments and answers as on the CPU; distances may differ in their last digits, and so which of two
equally near points is the nearer one.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Iterator, List, Tuple

import numpy as np

from yarn_accel.operations import distances
from yarn_accel.operations.checks import DEFAULT_NEIGHBOURS
from yarn_accel.operations.cuda_streams import cupy_module, with_memory
from yarn_accel.operations.dense import reject_not_finite
from yarn_accel.operations.distances import described, may_overflow, squared_norms
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any
_BLOCK_BYTES = 256 << 20
#: Matrices of a block's size that are there at once.
_N_MATRICES = 4


def knn(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `distances.knn`."""
    points, references = arrays[:2]
    if _may_overflow(points, references):
        return distances.knn(arrays, params, place)
    k = params.get("k", DEFAULT_NEIGHBOURS)
    neighbours = np.empty((len(points), k), dtype=np.int32)
    squares = np.empty((len(points), k))
    for rows, _, found in _distances(points, references):
        for column in range(k):
            nearest, least = _nearest(found)
            neighbours[rows, column], squares[rows, column] = nearest.get(), least.get()
            found = _without(found, nearest)
    return described(neighbours, np.sqrt(squares), arrays[2] if len(arrays) > 2 else None)


def kmeans_step(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `distances.kmeans_step`."""
    cupy = cupy_module()
    points, centroids = arrays
    if _may_overflow(points, centroids):
        return distances.kmeans_step(arrays, params, place)
    k = len(centroids)
    labels = np.empty(len(points), dtype=np.int32)
    totals = [np.zeros(centroids.shape), np.zeros((1, k)), np.zeros((1, k))]
    for rows, block, found in _distances(points, centroids):
        nearest, least = _nearest(found)
        members = (nearest[:, None] == cupy.arange(k)[None, :]).astype(np.float64)
        labels[rows] = nearest.get()
        ones = cupy.zeros((1, len(block)), dtype=np.float64) + 1.0
        parts = (cupy.matmul(members.T, block), cupy.matmul(ones, members))
        for total, part in zip(totals, (*parts, cupy.matmul(least[None, :], members))):  # noqa: B905
            total += part.get()
    sums, counts, inertias = totals[0], totals[1][0], totals[2][0]
    return Outcome(
        {"labels": labels, "sums": sums, "counts": counts.astype(np.int64), "inertias": inertias},
        {"inertia": float(inertias.sum()), "n": len(points)},
    )


def _may_overflow(points: Array, centres: Array) -> bool:
    """Whether the CPU has to compute these, each distance by itself; after they were found finite."""
    for i, array in enumerate((points, centres)):
        reject_not_finite(array, "input {}".format(i))
    return may_overflow(squared_norms(points), squared_norms(centres))


def _distances(points: Array, centres: Array) -> Iterator[Tuple[slice, Array, Array]]:
    """Rows of points, the points on the device, their squared distances from all centres."""
    cupy = cupy_module()
    norms = squared_norms(points)
    others = cupy.asarray(centres, dtype=np.float64)
    other_norms = cupy.asarray(squared_norms(centres))
    n_rows = max(1, _BLOCK_BYTES // (8 * (len(centres) + points.shape[1])))
    for start in range(0, len(points), n_rows):
        rows = slice(start, min(len(points), start + n_rows))
        block = partial(_block, points, norms, rows, others, other_norms)
        yield (rows, *with_memory(block, _bytes(rows, others)))


def _block(
    points: Array, norms: Array, rows: slice, others: Array, other_norms: Array
) -> Tuple[Array, Array]:
    cupy = cupy_module()
    block = cupy.asarray(np.ascontiguousarray(points[rows]), dtype=np.float64)
    squares = cupy.matmul(block, others.T) * -2.0
    squares = squares + cupy.asarray(norms[rows])[:, None] + other_norms[None, :]
    return block, cupy.where(squares > 0.0, squares, 0.0)


def _bytes(rows: slice, others: Array) -> int:
    n: int = _N_MATRICES * 8 * (rows.stop - rows.start) * len(others)
    return n


def _nearest(distances: Array) -> Tuple[Array, Array]:
    """The first of the least of each row: number and distance."""
    cupy = cupy_module()
    nearest = cupy.argmin(distances, axis=1)
    return nearest, cupy.take_along_axis(distances, nearest[:, None], 1)[:, 0]


def _without(distances: Array, nearest: Array) -> Array:
    cupy = cupy_module()
    columns = cupy.arange(distances.shape[1])
    return cupy.where(columns[None, :] == nearest[:, None], np.inf, distances)
