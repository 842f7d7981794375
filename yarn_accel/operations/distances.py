"""K-means and nearest neighbours: exact distances, in blocks of points so that memory stays bounded.

K-means is a k-means++ start and Lloyd's iterations. Sums are kept in float64 whatever the dtype of the
points. The random numbers come from a generator with the given seed, so equal requests have equal answers.
One iteration is an operation of its own (`kmeans_step`): with it, points that do not fit into one request are
clustered in rounds, each part giving its sums.

Distances are compared by their squares, from one matrix product. Where a square may be beyond float64, as of
numbers above 1e153, each distance is computed by itself: slower, but then infinite only where it is.
"""

from __future__ import annotations

from typing import Any, Iterator, List, NamedTuple, Tuple, Type

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations.checks import (
    DEFAULT_ITERATIONS,
    DEFAULT_NEIGHBOURS,
    DEFAULT_RESTARTS,
    DEFAULT_TOLERANCE,
)
from yarn_accel.operations.dense import reject_not_finite
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any
_BLOCK_BYTES = 8 << 20
_EQUAL_INERTIAS = 1e-9
"""Of starts whose inertias differ by no larger part the first counts, so that rounding does not choose."""
_LARGEST_NORM = float(np.finfo(np.float64).max) / 8


class Step(NamedTuple):
    """The results of one pass over the points; see `kmeans_step`.

    Attributes:
        distances: the squared ones of the points to their centroids; only if a cluster is empty they have to
            be there.
    """

    labels: Array
    distances: Array
    sums: Array
    counts: Array
    inertias: Array


class _Fit(NamedTuple):
    labels: Array
    centroids: Array
    inertia: float
    n_iterations: int


def kmeans(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """Cluster points ``(n, d)``.

    Args:
        arrays: the points, float32 or float64.
        params: ``k``; ``seed`` (0); ``max_iterations`` (300); ``tolerance`` (1e-4): stop when the centroids
            together moved less than this share of the points' mean variance; ``restarts`` (10): the best of
            so many starts.

    Returns:
        ``labels`` int32 (n,), ``centroids`` float64 (k, d); ``info`` has ``inertia`` (sum of squared
        distances of the points to their centroid), ``iterations`` and ``restarts``.

    Raises:
        RejectedError: ``not-finite``, with the index, or ``overflow``.
    """
    return clustered(arrays[0], params, Points)


def kmeans_seed(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """The k-means++ start for points ``(n, d)``: ``centroids`` float64 (k, d). Parameters as for `kmeans`."""
    return seeded(arrays[0], params, Points)


def kmeans_step(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """One pass: each point to its nearest centroid, and what the next centroids are made of.

    Args:
        arrays: points ``(n, d)``, centroids ``(k, d)``.
        params: none.

    Returns:
        ``labels`` int32 (n,); by cluster ``sums`` float64 (k, d), ``counts`` int64 (k,), ``inertias``
        float64 (k,). ``info["inertia"]`` is the sum over the clusters.

    Raises:
        RejectedError: ``not-finite``, with the index, or ``overflow``.
    """
    points, centroids = arrays
    for i, array in enumerate(arrays):
        reject_not_finite(array, "input {}".format(i))
    return described_step(Points(points).step(centroids.astype(np.float64)))


def described_step(step: Step) -> Outcome:
    """The results of `kmeans_step`."""
    return Outcome(
        {"labels": step.labels, "sums": step.sums, "counts": step.counts, "inertias": step.inertias},
        {"inertia": reject_overflow(float(step.inertias.sum())), "n": len(step.labels)},
    )


class Points:
    """The points of a request on this CPU, and what K-means computes of all of them.

    Args:
        points: ``(n, d)``.
    """

    _closest: Array

    def __init__(self, points: Array) -> None:
        self.points = points
        self._norms = squared_norms(points)

    def step(self, centroids: Array) -> Step:
        """Each point to its nearest centroid."""
        return _pass(self.points, self._norms, centroids)

    def start_at(self, index: int) -> None:
        """The first point of a start, from which distances are counted."""
        self._closest = self._squares_to([index])

    def draw(self, fractions: Array) -> Array:
        """Points, one for each number from 0 to 1, in proportion to their squares to the nearest chosen."""
        return drawn(self._closest, fractions)

    def choose(self, candidates: Array) -> int:
        """Choose the point that lowers the sum of squares most; its place among the candidates."""
        squares = np.minimum(self._squares_to(candidates), self._closest)
        best = int(squares.sum(axis=0).argmin())
        self._closest = squares[:, best : best + 1].copy()
        return best

    def _squares_to(self, indexes: Any) -> Array:
        centres = self.points[indexes].astype(np.float64)
        result = np.empty((len(self.points), len(centres)))
        for rows, block in blocks(self.points, len(centres)):
            result[rows] = squared_distances(block, self._norms[rows], centres)
        return result


def drawn(squares: Array, fractions: Array) -> Array:
    """For each number from 0 to 1 the index of a square, in proportion to these."""
    cumulative = np.cumsum(squares)
    return np.minimum(np.searchsorted(cumulative, fractions * cumulative[-1], side="right"), len(squares) - 1)


def clustered(given: Array, params: Params, points_class: Type[Points]) -> Outcome:
    """The results of `kmeans` on the device of that class."""
    scaled, unit = _scaled(given)
    points = points_class(scaled)
    n_restarts = params.get("restarts", DEFAULT_RESTARTS)
    shift_limit = params.get("tolerance", DEFAULT_TOLERANCE) * _mean_variance(scaled)
    limits = (params.get("max_iterations", DEFAULT_ITERATIONS), shift_limit)
    generator = np.random.Generator(np.random.PCG64(params.get("seed", 0)))
    best = _fit(points, _start(points, params["k"], generator), limits)
    for _ in range(1, n_restarts):
        fit = _fit(points, _start(points, params["k"], generator), limits)
        if fit.inertia < best.inertia * (1 - _EQUAL_INERTIAS):
            best = fit
    return Outcome(
        {"labels": best.labels, "centroids": best.centroids * unit},
        {
            "inertia": reject_overflow(best.inertia * unit * unit),
            "iterations": best.n_iterations,
            "restarts": n_restarts,
        },
    )


def seeded(given: Array, params: Params, points_class: Type[Points]) -> Outcome:
    """The results of `kmeans_seed` on the device of that class."""
    scaled, unit = _scaled(given)
    generator = np.random.Generator(np.random.PCG64(params.get("seed", 0)))
    centroids = _start(points_class(scaled), params["k"], generator)
    return Outcome({"centroids": centroids * unit}, {"k": params["k"]})


def _scaled(points: Array) -> Tuple[Array, float]:
    """Points in a unit in which no square overflows, and the unit: clusters are the same in any.

    A power of two, which rounds nothing.
    """
    reject_not_finite(points, "input 0")
    if not may_overflow(squared_norms(points)):
        return points, 1.0
    unit = 2.0 ** int(np.frexp(np.abs(points).max())[1] - 1)
    return points / unit, unit


def _fit(points: Points, centroids: Array, limits: Tuple[int, float]) -> _Fit:
    """Lloyd's iterations until labels or centroids stand still; the inertia is that of the returned ones."""
    max_iterations, shift_limit = limits
    step = points.step(centroids)
    n_iterations = 0
    while n_iterations < max_iterations:
        n_iterations += 1
        moved = _next_centroids(points.points, step)
        shift = float(((moved - centroids) ** 2).sum())
        labels, centroids = step.labels, moved
        step = points.step(centroids)
        if shift <= shift_limit or np.array_equal(labels, step.labels):
            break
    return _Fit(step.labels, centroids, float(step.inertias.sum()), n_iterations)


def _next_centroids(points: Array, step: Step) -> Array:
    """The means of the clusters; an empty one restarts at the point farthest from its own centroid."""
    empty = np.flatnonzero(step.counts == 0)
    if empty.size:
        sums, counts = step.sums.copy(), step.counts.copy()
        farthest = np.argsort(-step.distances, kind="stable")[: empty.size]
        for cluster, index in zip(empty.tolist(), farthest.tolist()):  # noqa: B905
            point = points[index].astype(np.float64)
            sums[step.labels[index]] -= point
            counts[step.labels[index]] -= 1
            sums[cluster], counts[cluster] = point, 1
        return sums / np.maximum(counts, 1)[:, None]
    return step.sums / step.counts[:, None]


def _pass(points: Array, norms: Array, centroids: Array) -> Step:
    n, k = points.shape[0], centroids.shape[0]
    labels = np.empty(n, dtype=np.int32)
    distances = np.empty(n, dtype=np.float64)
    sums = np.zeros(centroids.shape, dtype=np.float64)
    is_large = may_overflow(norms, squared_norms(centroids))
    for rows, block in blocks(points, k):
        compared = (
            distances_between(block, centroids)
            if is_large
            else squared_distances(block, norms[rows], centroids)
        )
        nearest = compared.argmin(axis=1)
        labels[rows] = nearest
        least = compared[np.arange(len(block)), nearest]
        with np.errstate(over="ignore"):
            distances[rows] = least**2 if is_large else least
        members = np.zeros((len(block), k))
        members[np.arange(len(block)), nearest] = 1.0
        sums += members.T @ block
    counts = np.bincount(labels, minlength=k).astype(np.int64)
    inertias = np.bincount(labels, weights=distances, minlength=k)
    return Step(labels, distances, sums, counts, inertias)


def _start(points: Points, k: int, generator: np.random.Generator) -> Array:
    """k-means++: each next centroid is a point drawn with probability in proportion to its squared distance.

    Of a few candidates drawn in that way the one that lowers the sum of distances most is kept, which is what
    scikit-learn does too.
    """
    n, d = points.points.shape
    n_candidates = 2 + int(np.log(k))
    centroids = np.empty((k, d), dtype=np.float64)
    first = min(n - 1, int(generator.random() * n))
    centroids[0] = points.points[first]
    points.start_at(first)
    for i in range(1, k):
        candidates = points.draw(generator.random(n_candidates))
        centroids[i] = points.points[candidates[points.choose(candidates)]]
    return centroids


def squared_distances(block: Array, norms: Array, centroids: Array) -> Array:
    """|x - c|^2 = |x|^2 - 2 x.c + |c|^2, one matrix product; rounding below zero is cut off."""
    squares = block @ centroids.T
    squares *= -2.0
    squares += norms[:, None]
    squares += (centroids**2).sum(axis=1)[None, :]
    return np.maximum(squares, 0.0, out=squares)


def may_overflow(*norms: Array) -> bool:
    """Whether the square of a distance may be beyond float64, given the squared norms of the points."""
    return not max(float(each.max()) for each in norms) <= _LARGEST_NORM


def reject_overflow(inertia: float) -> float:
    """The inertia, if it is finite."""
    if not np.isfinite(inertia):
        raise RejectedError(
            "overflow",
            "the sum of squared distances is beyond float64",
            cure="divide the points by a power of two",
        )
    return inertia


def distances_between(block: Array, centres: Array) -> Array:
    """The distances ``(n, k)`` themselves, each in the unit of its largest coordinate, as BLAS's nrm2."""
    found = np.empty((len(block), len(centres)))
    for i, centre in enumerate(centres):
        halves = np.abs(block / 2 - centre / 2)
        largest = halves.max(axis=1)
        unit = np.where(largest > 0, largest, 1.0)
        with np.errstate(over="ignore"):
            found[:, i] = np.sqrt(((halves / unit[:, None]) ** 2).sum(axis=1)) * unit * 2
    return found


def blocks(points: Array, k: int) -> Iterator[Tuple[slice, Array]]:
    """The points in float64, some rows at a time."""
    n, d = points.shape
    step = max(1, _BLOCK_BYTES // (8 * (d + 2 * k)))
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        yield rows, points[rows].astype(np.float64, copy=False)


def squared_norms(points: Array) -> Array:
    """|x|^2 of each point."""
    norms = np.empty(points.shape[0])
    for rows, block in blocks(points, 1):
        with np.errstate(over="ignore"):
            norms[rows] = np.einsum("ij,ij->i", block, block)
    return norms


def _mean_variance(points: Array) -> float:
    """The variance of each coordinate, averaged over the coordinates."""
    n = points.shape[0]
    mean = points.mean(axis=0, dtype=np.float64)
    total = sum(float(((block - mean) ** 2).sum()) for _, block in blocks(points, 1))
    return total / float(n * points.shape[1])


def knn(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """The k nearest of the reference points for each point ``(n, d)``, the nearest first.

    Args:
        arrays: the points; the reference points ``(m, d)``; as a third one the labels of these, whole numbers
            ``(m,)``.
        params: ``k`` (5).

    Returns:
        ``neighbours`` int32 (n, k), numbers of reference points, of equal ones the first; ``distances``
        float64 (n, k); with labels ``labels`` int64 (n,): the most frequent, of equal ones the smallest.

    Raises:
        RejectedError: ``not-finite``, with the index.
    """
    points, references = arrays[:2]
    for i in range(2):
        reject_not_finite(arrays[i], "input {}".format(i))
    k = params.get("k", DEFAULT_NEIGHBOURS)
    norms, centres = squared_norms(points), references.astype(np.float64)
    is_large = may_overflow(norms, squared_norms(centres))
    neighbours = np.empty((len(points), k), dtype=np.int32)
    distances = np.empty((len(points), k))
    for rows, block in blocks(points, len(centres)):
        found = (
            distances_between(block, centres) if is_large else squared_distances(block, norms[rows], centres)
        )
        # Stable, so that of equal distances the first reference point comes first.
        order = np.argsort(found, axis=1, kind="stable")[:, :k]
        neighbours[rows] = order
        nearest = np.take_along_axis(found, order, axis=1)
        distances[rows] = nearest if is_large else np.sqrt(nearest)
    return described(neighbours, distances, arrays[2] if len(arrays) > 2 else None)


def described(neighbours: Array, distances: Array, labels: Any) -> Outcome:
    """The results, from the neighbours and their distances."""
    found = {"neighbours": neighbours, "distances": distances}
    if labels is not None:
        found["labels"] = majority(labels[neighbours])
    return Outcome(found, {"n": int(neighbours.shape[0]), "k": int(neighbours.shape[1])})


def majority(votes: Array) -> Array:
    """The most frequent value of each row of ``(n, k)``, of equally frequent ones the smallest.

    >>> majority(np.array([[3, 1, 3], [2, 1, 0]])).tolist()
    [3, 0]
    """
    ordered = np.sort(votes, axis=1)
    n, k = ordered.shape
    best, most, run = ordered[:, 0].copy(), np.ones(n, np.int64), np.ones(n, np.int64)
    for column in range(1, k):
        run = np.where(ordered[:, column] == ordered[:, column - 1], run + 1, 1)
        is_more = run > most
        best[is_more], most[is_more] = ordered[is_more, column], run[is_more]
    return best.astype(np.int64)
