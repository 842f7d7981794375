"""The records and lines that mappers, reducers and readers of the images job exchange.

Between mapper and reducer a record is a key and bytes: ``F`` and a row of features (float32, little-endian),
or ``R`` and the reason for a rejection. The final output is text, one tag in front of every line, so that
one output holds all of it::

    index      KEY      CLUSTER
    centroid   NUMBER   COUNT     VALUES (with blanks between them)
    reject     KEY      CODE: MESSAGE
    summary    JSON

Standard library only, Python 3.8.
"""

import array
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Tuple, Union

from yarn_accel.client import TypedValue
from yarn_accel.errors import RejectedError, RemoteProtocolError

INDEX, CENTROID, REJECT, SUMMARY = "index", "centroid", "reject", "summary"

Line = Tuple[str, str]
"""A tag and the rest of the line."""


class Rejection(NamedTuple):
    """Why a record was rejected: a stable code, and the cause with its place."""

    code: str
    message: str


class Centroid(NamedTuple):
    """The mean of a cluster, and of how many images."""

    n_images: int
    values: Tuple[float, ...]


@dataclass
class Clustering:
    """All of a job's output.

    Attributes:
        index: cluster of each image.
        centroids: by number of the cluster.
        rejects: each with its key; records of one key may be rejected several times.
        doubled: keys of second images, which another mapper found; the first is in the index.
        summary: facts; ``inertia`` is the sum over all parts of the output.
    """

    index: Dict[str, int] = field(default_factory=dict)
    centroids: Dict[int, Centroid] = field(default_factory=dict)
    rejects: List[Tuple[str, Rejection]] = field(default_factory=list)
    doubled: List[str] = field(default_factory=list)
    summary: Dict[str, Any] = field(default_factory=dict)


def one_field(key: object) -> str:
    """A key as the output has it: line ends and tabs become blanks."""
    return " ".join(str(key).split())


def doubled(key: str) -> RejectedError:
    """Why the second record of a key is rejected."""
    return RejectedError(
        "doubled-record", "another record has the key {!r}, too".format(key[:200]), cure="give each its own"
    )


def pack_features(row: Union[bytes, bytearray, memoryview]) -> bytes:
    """The mapper's value for an image that was understood."""
    return b"F" + bytes(row)


def pack_reject(error: RejectedError) -> bytes:
    """The mapper's value for a record that was rejected."""
    return b"R" + "{}: {}".format(error.code, error).encode("utf-8", "backslashreplace")


def unpack(key: TypedValue, value: Union[TypedValue, RejectedError]) -> Union[bytes, Rejection]:
    """Features or the rejection, from a mapper's value.

    Raises:
        RemoteProtocolError: the value is neither, so the input is not a mapper's output.
    """
    if isinstance(value, bytes) and value[:1] == b"F" and len(value) % 4 == 1:
        return value[1:]
    if isinstance(value, bytes) and value[:1] == b"R":
        code, _, message = value[1:].decode("utf-8", "replace").partition(": ")
        return Rejection(code, message)
    raise RemoteProtocolError("record {!r}: neither features nor a rejection".format(key))


def format_reject(key: str, rejection: Rejection) -> Line:
    """The line for a rejection; line ends and tabs in it become blanks."""
    return REJECT, "{}\t{}: {}".format(one_field(key), rejection.code, one_field(rejection.message))


def format_centroid(number: int, centroid: Centroid) -> Line:
    """The line for a centroid; every value reads back as the very same number."""
    values = " ".join(repr(value) for value in centroid.values)
    return CENTROID, "{}\t{}\t{}".format(number, centroid.n_images, values)


def format_index(key: str, cluster: int) -> Line:
    """The line for an image."""
    return INDEX, "{}\t{}".format(one_field(key), cluster)


def format_summary(facts: Mapping[str, Any]) -> Line:
    """The line with facts about the clustering."""
    return SUMMARY, json.dumps(facts, sort_keys=True)


def parse_lines(lines: Iterable[str]) -> Clustering:
    """Merge the text output of one or several reducers.

    Raises:
        RejectedError: ``bad-line``, with its number.
    """
    result = Clustering()
    for number, line in enumerate(lines, 1):
        tag, _, rest = line.rstrip("\n").partition("\t")
        try:
            _PARSERS[tag](result, rest)
        except (KeyError, ValueError):
            raise RejectedError(
                "bad-line", "line {}: not one of this job: {!r}".format(number, line.rstrip("\n")[:80])
            ) from None
    return result


def _parse_index(result: Clustering, rest: str) -> None:
    key, cluster = rest.split("\t")
    number = int(cluster)
    if key in result.index:
        result.doubled.append(key)
    else:
        result.index[key] = number


def _parse_centroid(result: Clustering, rest: str) -> None:
    number, n_images, values = rest.split("\t")
    result.centroids[int(number)] = Centroid(int(n_images), tuple(float(value) for value in values.split()))


def _parse_reject(result: Clustering, rest: str) -> None:
    key, reason = rest.split("\t")
    code, _, message = reason.partition(": ")
    result.rejects.append((key, Rejection(code, message)))


def _parse_summary(result: Clustering, rest: str) -> None:
    facts = json.loads(rest)
    inertia = result.summary.get("inertia", 0.0) + facts.get("inertia", 0.0)
    result.summary.update(facts)
    result.summary["inertia"] = inertia


_PARSERS = {INDEX: _parse_index, CENTROID: _parse_centroid, REJECT: _parse_reject, SUMMARY: _parse_summary}


def numbers(kind: str, data: Any) -> List[Any]:
    """Little-endian numbers as a list: ``kind`` is ``i`` (4 bytes), ``q`` (8 bytes), ``f`` or ``d``."""
    values = array.array(kind)
    values.frombytes(memoryview(data).cast("B") if memoryview(data).nbytes else b"")
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def matrix_of(rows: Iterable[Iterable[float]]) -> bytes:
    """Rows of numbers as little-endian float64, one row after the other."""
    values = array.array("d")
    for row in rows:
        values.extend(row)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
