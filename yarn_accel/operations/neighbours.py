"""The nearest neighbours of points, and what most of them are: exact, in blocks that bound the memory."""

from __future__ import annotations

from typing import Any, List

import numpy as np

from yarn_accel.operations.kmeans import blocks, squared_distances, squared_norms
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.operations.soundness import reject_not_finite

Array = Any
DEFAULT_NEIGHBOURS = 5


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
    neighbours = np.empty((len(points), k), dtype=np.int32)
    squares = np.empty((len(points), k))
    for rows, block in blocks(points, len(centres)):
        found = squared_distances(block, norms[rows], centres)
        # Stable, so that of equal distances the first reference point comes first.
        order = np.argsort(found, axis=1, kind="stable")[:, :k]
        neighbours[rows] = order
        squares[rows] = np.take_along_axis(found, order, axis=1)
    return described(neighbours, squares, arrays[2] if len(arrays) > 2 else None)


def described(neighbours: Array, squares: Array, labels: Any) -> Outcome:
    """The results, from the neighbours and their squared distances."""
    found = {"neighbours": neighbours, "distances": np.sqrt(squares)}
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
