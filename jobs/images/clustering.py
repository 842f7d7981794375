"""Clustering of images by features: by one reducer, or in rounds where features outgrow one reducer.

One reducer takes all rows of features and gives the index, the centroids and the rejections. K-means itself
is an operation of the pipeline server, so the node needs no numpy.

In rounds the features lie in shards. A sample of them is clustered by one reducer, which gives the start. In
every round each mapper assigns its shard to the nearest centroids (an operation of the pipeline server) and
passes on only sums, counts and inertias. Reducers add these up by cluster; the means are the next centroids.
Two rounds apart, nothing but the centroids has changed, so any round may be run again. At the end the mappers
write the index. Standard library only, Python 3.8.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from jobs.images.mapper import FALLBACK_DEVICE, Dispatch, Record
from jobs.images.rows import (
    Centroid,
    Clustering,
    Line,
    Rejection,
    format_centroid,
    format_index,
    format_reject,
    format_summary,
    matrix_of,
    numbers,
    unpack,
)
from yarn_accel.client import Call, CurrentAttempt, Reply, Tensor, TensorSpec
from yarn_accel.errors import AccelError, RejectedError, RemoteProtocolError


@dataclass(frozen=True)
class ClusterOptions:
    """How to cluster.

    Attributes:
        k: number of clusters; fewer when there are fewer images.
        seed: of the k-means++ start.
        max_iterations: of each start.
        restarts: the best of so many starts is kept.
    """

    k: int
    seed: int = 0
    max_iterations: int = 300
    restarts: int = 10


def reduce_features(
    pairs: Iterable[Record],
    dispatch: Dispatch,
    attempt: CurrentAttempt,
    options: ClusterOptions,
    count: Callable[[str, int], None],
) -> Iterator[Line]:
    """Cluster everything the mappers found.

    The rows are sorted by key first, so the result does not depend on the order in which they arrive.

    Args:
        pairs: the mappers' output.
        dispatch: sends calls and yields each with its answer.
        attempt: names the request.
        options: see there.
        count: adds to a counter by name.

    Raises:
        AccelError: the server could not do it.
        RemoteProtocolError: the input is not the mappers' output.
    """
    rows: List[Tuple[str, bytes]] = []
    for key, value in pairs:
        content = unpack(key, value)
        if isinstance(content, Rejection):
            yield format_reject(str(key), content)
        else:
            rows.append((str(key), content))
    if not rows:
        yield format_summary({"k": 0, "n": 0, "inertia": 0.0, "iterations": 0})
        return
    rows.sort()
    keys = [key for key, _ in rows]
    call = Call(
        key=attempt.request_key(1, "kmeans"),
        operation="kmeans",
        params=_params(options, len(rows)),
        inputs=(tensor_of_rows([row for _, row in rows]),),
    )
    del rows
    yield from _lines(keys, ask(dispatch, call, count))


def ask(dispatch: Dispatch, call: Call, count: Callable[[str, int], None]) -> Reply:
    """The answer to one call that must not fail; counts it.

    Raises:
        AccelError: the server refused or failed.
    """
    count("sent", 1)
    count("bytes", sum(tensor.spec.nbytes for tensor in call.inputs if isinstance(tensor, Tensor)))
    for _, answer in dispatch(iter((call,))):
        if isinstance(answer, AccelError):
            raise answer
        if answer.device == FALLBACK_DEVICE:
            count("cpu_fallback", 1)
        return answer
    raise RemoteProtocolError("call {}: no answer".format(call.key))


def tensor_of_rows(rows: Sequence[bytes]) -> Tensor:
    """Rows of float32 as one matrix.

    Raises:
        RejectedError: ``wrong-length``: the rows differ in length.
    """
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        raise RejectedError(
            "wrong-length",
            "rows of features of different lengths: {} bytes".format(
                ", ".join(str(n) for n in sorted(lengths))
            ),
            cure="all mappers of a job must use the same options",
        )
    return Tensor(TensorSpec("<f4", (len(rows), lengths.pop() // 4)), b"".join(rows))


def _params(options: ClusterOptions, n_images: int) -> Dict[str, Any]:
    return {
        "k": min(options.k, n_images),
        "seed": options.seed,
        "max_iterations": options.max_iterations,
        "restarts": options.restarts,
    }


def _lines(keys: Sequence[str], reply: Reply) -> Iterator[Line]:
    labels = numbers("i", reply.tensors["labels"].data)
    if len(labels) != len(keys):
        raise RemoteProtocolError("kmeans: {} labels for {} images".format(len(labels), len(keys)))
    k, n_values = reply.tensors["centroids"].spec.shape
    values = numbers("d", reply.tensors["centroids"].data)
    n_images = [0] * k
    for key, label in zip(keys, labels):  # noqa: B905
        n_images[label] += 1
        yield format_index(key, label)
    for number in range(k):
        row = tuple(values[number * n_values : (number + 1) * n_values])
        yield format_centroid(number, Centroid(n_images[number], row))
    facts = {"k": k, "n": len(keys), "server": reply.server, "device": reply.device}
    yield format_summary({**facts, **reply.info})


BATCH_ROWS = 8192
_HEAD = struct.Struct("<qd")


# ---- in rounds


@dataclass(frozen=True)
class Iterated:
    """Where the rounds ended.

    Attributes:
        centroids: by number of the cluster.
        inertia: of the last round that measured it, that is of the centroids before the last move.
        n_rounds: how many were run.
        is_converged: whether the centroids stood still; otherwise the limit on rounds was reached.
    """

    centroids: Dict[int, Centroid]
    inertia: float
    n_rounds: int
    is_converged: bool


def sample_rows(pairs: Iterable[Record], one_in: int) -> Iterator[Record]:
    """Pass on about one in so many rows, chosen by a checksum of the key, and no rejection."""
    for key, value in pairs:
        is_chosen = zlib.crc32(str(key).encode("utf-8", "backslashreplace")) % one_in == 0
        if is_chosen and not isinstance(unpack(key, value), Rejection):
            yield key, value


def step_rows(
    pairs: Iterable[Record],
    centroids: Mapping[int, Centroid],
    dispatch: Dispatch,
    attempt: CurrentAttempt,
    count: Callable[[str, int], None],
) -> Iterator[Tuple[str, bytes]]:
    """The mapper of a round: cluster number and partial sums, for each cluster that got an image."""
    totals: Dict[int, List[float]] = {}
    heads: Dict[int, Tuple[int, float]] = {}
    for _, reply in _steps(pairs, centroids, dispatch, attempt, count):
        counts = numbers("q", reply.tensors["counts"].data)
        inertias = numbers("d", reply.tensors["inertias"].data)
        sums = numbers("d", reply.tensors["sums"].data)
        n_values = reply.tensors["sums"].spec.shape[1]
        for number, n_images in enumerate(counts):
            if n_images:
                row = sums[number * n_values : (number + 1) * n_values]
                _add(totals, heads, number, (n_images, inertias[number], row))
    for number in sorted(totals):
        yield "{:06d}".format(number), _pack(heads[number], totals[number])


def merge_partials(pairs: Iterable[Record]) -> Iterator[Line]:
    """The reducer of a round: adds up by cluster; lines of centroids, and a summary with the inertia."""
    totals: Dict[int, List[float]] = {}
    heads: Dict[int, Tuple[int, float]] = {}
    for key, value in pairs:
        if not isinstance(value, bytes) or len(value) < _HEAD.size or (len(value) - _HEAD.size) % 8:
            raise RemoteProtocolError("record {!r}: not the sums of a cluster".format(key))
        n_images, inertia = _HEAD.unpack_from(value)
        _add(totals, heads, int(str(key)), (n_images, inertia, numbers("d", value[_HEAD.size :])))
    for number in sorted(totals):
        n_images = heads[number][0]
        values = tuple(total / n_images for total in totals[number])
        yield format_centroid(number, Centroid(n_images, values))
    yield format_summary({"inertia": sum(inertia for _, inertia in heads.values())})


def assign_rows(
    pairs: Iterable[Record],
    centroids: Mapping[int, Centroid],
    dispatch: Dispatch,
    attempt: CurrentAttempt,
    count: Callable[[str, int], None],
) -> Iterator[Line]:
    """The mapper of the last pass: lines of the index, of rejections, and a summary with the inertia."""
    inertia, n_images = 0.0, 0
    rejections: List[Line] = []

    def accepted() -> Iterator[Record]:
        for key, value in pairs:
            content = unpack(key, value)
            if isinstance(content, Rejection):
                rejections.append(format_reject(str(key), content))
            else:
                yield key, value

    for keys, reply in _steps(accepted(), centroids, dispatch, attempt, count):
        for key, label in zip(keys, numbers("i", reply.tensors["labels"].data)):  # noqa: B905
            yield format_index(key, label)
        inertia += float(reply.info["inertia"])
        n_images += len(keys)
    yield from rejections
    yield format_summary({"inertia": inertia})


def iterate(
    start: Mapping[int, Centroid],
    run_round: Callable[[Mapping[int, Centroid]], Clustering],
    *,
    max_rounds: int,
    tolerance: float,
    report: Callable[[str], None],
) -> Iterated:
    """Run rounds until the centroids stand still.

    Args:
        start: the first centroids.
        run_round: runs one round over all shards and returns its merged output; it may be a job on a cluster.
        max_rounds: limit.
        tolerance: stop when the centroids' squared shift is below this share of their squared length.
        report: gets a line about each round.
    """
    centroids, inertia = dict(start), 0.0
    for n_rounds in range(1, max_rounds + 1):
        output = run_round(centroids)
        # A cluster that got no image keeps its place.
        moved = {
            number: output.centroids.get(number, Centroid(0, old.values)) for number, old in centroids.items()
        }
        shift, length = _shift(centroids, moved)
        centroids, inertia = moved, float(output.summary["inertia"])
        report("round {}: inertia {:.6g}, centroids moved by {:.3g}".format(n_rounds, inertia, shift**0.5))
        if shift <= tolerance * length:
            return Iterated(centroids, inertia, n_rounds, True)
    return Iterated(centroids, inertia, max_rounds, False)


def _steps(
    pairs: Iterable[Record],
    centroids: Mapping[int, Centroid],
    dispatch: Dispatch,
    attempt: CurrentAttempt,
    count: Callable[[str, int], None],
) -> Iterator[Tuple[Sequence[str], Reply]]:
    """Send a shard's rows in batches; yields the keys of each batch with the answer."""
    ordered = [centroids[number].values for number in range(len(centroids))]
    spec = TensorSpec("<f8", (len(ordered), len(ordered[0])))
    tensor = Tensor(spec, matrix_of(ordered))
    for number, (keys, rows) in enumerate(_batches(pairs), 1):
        call = Call(
            key=attempt.request_key(number, "kmeans-step-{:08x}".format(zlib.crc32(tensor.data))),
            operation="kmeans_step",
            inputs=(tensor_of_rows(rows), tensor),
        )
        yield keys, ask(dispatch, call, count)


def _batches(pairs: Iterable[Record]) -> Iterator[Tuple[List[str], List[bytes]]]:
    keys: List[str] = []
    rows: List[bytes] = []
    for key, value in pairs:
        content = unpack(key, value)
        if isinstance(content, Rejection):
            continue
        keys.append(str(key))
        rows.append(content)
        if len(rows) >= BATCH_ROWS:
            yield keys, rows
            keys, rows = [], []
    if rows:
        yield keys, rows


def _add(totals: Dict[int, List[float]], heads: Dict[int, Tuple[int, float]], number: int, part: Any) -> None:
    n_images, inertia, row = part
    old_images, old_inertia = heads.get(number, (0, 0.0))
    heads[number] = (old_images + n_images, old_inertia + inertia)
    old_row = totals.get(number)
    if old_row is not None and len(old_row) != len(row):
        raise RemoteProtocolError(
            "cluster {}: sums of {} and {} values".format(number, len(old_row), len(row))
        )
    totals[number] = row if old_row is None else [a + b for a, b in zip(old_row, row)]  # noqa: B905


def _pack(head: Tuple[int, float], row: Sequence[float]) -> bytes:
    return _HEAD.pack(*head) + matrix_of((row,))


def _shift(before: Mapping[int, Centroid], after: Mapping[int, Centroid]) -> Tuple[float, float]:
    shift = length = 0.0
    for number, centroid in before.items():
        for old, new in zip(centroid.values, after[number].values):  # noqa: B905
            shift += (new - old) ** 2
            length += new * new
    return shift, length
