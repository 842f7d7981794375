"""Distances between many points on a GPU through CuPy: nearest neighbours and K-means.

Same arguments and answers as on the CPU; distances may differ in their last digits, and so which of two
equally near points is the nearer one.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Callable, Iterator, List, Tuple

import numpy as np

from yarn_accel.operations import cuda_source, distances
from yarn_accel.operations.checks import DEFAULT_NEIGHBOURS
from yarn_accel.operations.cuda_streams import cupy_module, with_memory
from yarn_accel.operations.dense import reject_not_finite
from yarn_accel.operations.distances import (
    Points,
    Step,
    described,
    described_step,
    drawn,
    may_overflow,
    squared_norms,
)
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any
_BLOCK_BYTES = 256 << 20
_THREADS = 128
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
    for rows, _, found in _blocks(points, references):
        nearest, least = _least(found, k)
        neighbours[rows], squares[rows] = nearest.get(), least.get()
    return described(neighbours, np.sqrt(squares), arrays[2] if len(arrays) > 2 else None)


def kmeans(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `distances.kmeans`; the points are copied to the device once."""
    return distances.clustered(arrays[0], params, _Points)


def kmeans_seed(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `distances.kmeans_seed`."""
    return distances.seeded(arrays[0], params, _Points)


def kmeans_step(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `distances.kmeans_step`."""
    points, centroids = arrays
    if _may_overflow(points, centroids):
        return distances.kmeans_step(arrays, params, place)
    return described_step(_step(_blocks(points, centroids), len(points), centroids))


class _Points(Points):
    """Points on the device, squares of which are far from overflow, and their distances to those chosen."""

    def __init__(self, points: Array) -> None:
        cupy = cupy_module()
        super().__init__(points)
        self._on_device = with_memory(lambda: cupy.asarray(np.ascontiguousarray(points)))
        norms = self._norms
        self._device_norms = with_memory(lambda: cupy.asarray(norms), self._on_device.nbytes)

    def step(self, centroids: Array) -> Step:
        return _step(self._distances(centroids), len(self.points), centroids)

    def start_at(self, index: int) -> None:
        cupy = cupy_module()
        n = len(self.points)
        self._closest = with_memory(lambda: cupy.zeros((n,), dtype=np.float64) + np.inf, self._held_bytes)
        self._lower(index)

    def draw(self, fractions: Array) -> Array:
        return drawn(self._closest.get(), fractions)

    def choose(self, candidates: Array) -> int:
        cupy = cupy_module()
        totals = np.zeros(len(candidates))
        for rows, _, found in self._distances(self.points[candidates]):
            closest = self._closest[rows][:, None]
            ones = cupy.zeros((1, len(closest)), dtype=np.float64) + 1.0
            totals += cupy.matmul(ones, cupy.where(found < closest, found, closest)).get()[0]
        best = int(totals.argmin())
        self._lower(int(candidates[best]))
        return best

    @property
    def _held_bytes(self) -> int:
        """Points and norms, and the distances to chosen points and to centroids."""
        n_bytes: int = self._on_device.nbytes + 3 * self._device_norms.nbytes
        return n_bytes

    def _lower(self, index: int) -> None:
        """Count distances from that point, too; computed again, for those of all candidates may be many."""
        cupy = cupy_module()
        for rows, _, found in self._distances(self.points[index : index + 1]):
            closest = self._closest[rows]
            self._closest[rows] = cupy.where(found[:, 0] < closest, found[:, 0], closest)

    def _distances(self, centres: Array) -> Iterator[Tuple[slice, Array, Array]]:
        return _distances(self._rows, self._device_norms, centres, self._held_bytes)

    def _rows(self, rows: slice) -> Array:
        return self._on_device[rows].astype(np.float64, copy=False)


def _step(found: Iterator[Tuple[slice, Array, Array]], n: int, centroids: Array) -> Step:
    """A pass of K-means, from blocks of points and their squared distances from the centroids."""
    cupy = cupy_module()
    k = len(centroids)
    labels, distances = np.empty(n, dtype=np.int32), []
    totals = [np.zeros(centroids.shape), np.zeros((1, k)), np.zeros((1, k))]
    for rows, block, squares in found:
        nearest, least = _nearest(squares)
        members = (nearest[:, None] == cupy.arange(k)[None, :]).astype(np.float64)
        labels[rows] = nearest.get()
        distances.append(least)
        ones = cupy.zeros((1, len(block)), dtype=np.float64) + 1.0
        parts = (cupy.matmul(members.T, block), cupy.matmul(ones, members))
        with np.errstate(over="ignore"):
            for total, part in zip(totals, (*parts, cupy.matmul(least[None, :], members))):  # noqa: B905
                total += part.get()
    sums, counts, inertias = totals[0], totals[1][0].astype(np.int64), totals[2][0]
    is_any_empty = not counts.all()
    least_of_all = np.concatenate([each.get() for each in distances]) if is_any_empty else np.empty(0)
    return Step(labels, least_of_all, sums, counts, inertias)


def _may_overflow(points: Array, centres: Array) -> bool:
    """Whether the CPU has to compute these, each distance by itself; after they were found finite."""
    for i, array in enumerate((points, centres)):
        reject_not_finite(array, "input {}".format(i))
    return may_overflow(squared_norms(points), squared_norms(centres))


def _blocks(points: Array, centres: Array) -> Iterator[Tuple[slice, Array, Array]]:
    """As `_distances`, of points on the host."""
    cupy = cupy_module()

    def rows_of(rows: slice) -> Array:
        return cupy.asarray(np.ascontiguousarray(points[rows]), dtype=np.float64)

    return _distances(rows_of, squared_norms(points), centres)


def _distances(
    rows_of: Callable[[slice], Array], norms: Array, centres: Array, held_bytes: int = 0
) -> Iterator[Tuple[slice, Array, Array]]:
    """Rows of points, the points on the device, their squared distances from all centres.

    Args:
        rows_of: some of the points, float64 on the device.
        norms: |x|^2 of each point, on the host or the device.
        centres: on the host.
        held_bytes: what the request has on the device.
    """
    cupy = cupy_module()
    others = cupy.asarray(np.ascontiguousarray(centres), dtype=np.float64)
    other_norms = cupy.asarray(squared_norms(centres))
    n_rows = max(1, _BLOCK_BYTES // (8 * sum(others.shape)))
    for start in range(0, len(norms), n_rows):
        rows = slice(start, min(len(norms), start + n_rows))
        block = partial(_block, rows_of, norms, rows, others, other_norms)
        yield (rows, *with_memory(block, held_bytes + _bytes(rows, others)))


def _block(
    rows_of: Callable[[slice], Array], norms: Array, rows: slice, others: Array, other_norms: Array
) -> Tuple[Array, Array]:
    cupy = cupy_module()
    block = rows_of(rows)
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


def _least(distances: Array, k: int) -> Tuple[Array, Array]:
    """The k least of each row: numbers int32 and distances ``(n, k)``, in one pass for each 96 of them."""
    cupy = cupy_module()
    n, m = distances.shape
    neighbours, least = (cupy.empty((n, k), dtype=dtype) for dtype in (np.int32, np.float64))
    kernel = _kernels().get_function("nearest")
    for done in range(0, k, cuda_source.NEIGHBOURS_AT_ONCE):
        n_here = min(k - done, cuda_source.NEIGHBOURS_AT_ONCE)
        n_threads = _THREADS
        while 12 * n_threads * (n_here + 1) > cuda_source.NEIGHBOURS_SHARED_BYTES:
            n_threads //= 2
        sizes = np.int64(m), np.int32(k), np.int32(done), np.int32(n_here)
        arguments = (cupy.ascontiguousarray(distances), *sizes, neighbours, least)
        kernel((n,), (n_threads,), arguments, shared_mem=12 * n_threads * (n_here + 1))
    return neighbours, least


@lru_cache(maxsize=1)
def _kernels() -> Any:
    return cupy_module().RawModule(code=cuda_source.NEIGHBOURS, options=())
