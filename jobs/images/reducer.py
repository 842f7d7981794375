"""The images reducer: all rows of features in, the index, the centroids and the rejections out.

K-means itself is an operation of the pipeline server, so the node needs no numpy. When the features outgrow
one reducer, `jobs.images.rounds` does the same in rounds. Standard library only, Python 3.8.
"""

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from jobs.images.mapper import FALLBACK_DEVICE, Dispatch, Record
from jobs.images.rows import (
    Centroid,
    Line,
    Rejection,
    format_centroid,
    format_index,
    format_reject,
    format_summary,
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
