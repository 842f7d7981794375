"""The lines of the factorize job: the manifest, one line per matrix, and the lines that its mapper prints.

A line of the manifest::

    key   URI of the matrix   dtype   shape   order   operation   URI of the factors (.npz)

TABs and not JSON, so that ``sort``, ``cut`` and ``awk`` work on it. Blank lines, lines that start with ``#``,
carriage returns and a byte order mark are skipped. The matrix itself is a headerless file of ``rows * columns
* itemsize`` bytes, little endian, in C (row) or F (column) order.

The mapper prints a line for each matrix, done or rejected; the fields are `DONE_FIELDS` and `REJECT_FIELDS`.
Standard library only, Python 3.8.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, Optional, Tuple, Union

from yarn_accel.errors import RejectedError
from yarn_accel.uris import normalised

FIELDS = ("key", "uri", "dtype", "shape", "order", "operation", "output_uri")
DTYPES = {"float32": "<f4", "float64": "<f8"}
OPERATIONS = ("lu", "qr", "cholesky")
MAX_LINE_CHARS = 8192
MAX_SIDE = 1 << 20
_BYTE_ORDER_MARK = "\ufeff"

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}\Z")
_SHAPE = re.compile(r"([0-9]{1,7})x([0-9]{1,7})\Z")


@dataclass(frozen=True)
class Entry:
    """One matrix to factorize.

    ``dtype`` is ``float32`` or ``float64``, ``shape`` is (rows, columns), ``order`` is ``C`` or ``F``.
    """

    key: str
    uri: str
    dtype: str
    shape: Tuple[int, int]
    order: str
    operation: str
    output_uri: str

    @property
    def wire_dtype(self) -> str:
        """The dtype as the wire names it, such as ``<f8``."""
        return DTYPES[self.dtype]

    @property
    def n_bytes(self) -> int:
        """Length of the matrix file in bytes."""
        return self.shape[0] * self.shape[1] * int(self.wire_dtype[-1])


def parse_entry(line: str, place: str = "manifest line", has_output: bool = True) -> Entry:
    """Read one manifest line.

    Args:
        line: the text, with or without its line end.
        place: how an error names the line, such as ``line 7``.
        has_output: whether the last field is used, and therefore has to be a URI.

    Raises:
        RejectedError: code ``manifest``; the message names the place, the field and the cure.
    """
    text = line.rstrip("\r\n").rstrip("\t")
    if len(text) > MAX_LINE_CHARS:
        raise _bad(
            place, "length", "has {} characters".format(len(text)), "keep it below {}".format(MAX_LINE_CHARS)
        )
    fields = text.split("\t")
    if len(fields) != len(FIELDS):
        raise _bad(
            place,
            "number of fields",
            "is {} in {}".format(len(fields), _excerpt(text)),
            "write {} fields separated by TABs: {}".format(len(FIELDS), ", ".join(FIELDS)),
        )
    key, uri, dtype, shape, order, operation, output_uri = fields
    if not _KEY.match(key):
        raise _bad(
            place, "key", "is {}".format(_excerpt(key)), "use letters, digits and . _ + - (at most 100)"
        )
    _check_choice(place, "dtype", dtype, tuple(DTYPES))
    _check_choice(place, "order", order, ("C", "F"))
    _check_choice(place, "operation", operation, OPERATIONS)
    _check_uri(place, "uri", uri)
    if has_output:
        _check_uri(place, "output_uri", output_uri)
        if not output_uri.endswith(".npz"):
            raise _bad(place, "output_uri", "is {}".format(_excerpt(output_uri)), "let it end in .npz")
    return Entry(key, uri, dtype, _parse_shape(place, shape), order, operation, output_uri)


class UniqueEntries:
    """Tells an entry whose key or output is that of an earlier one.

    Args:
        has_output: whether the entries' own outputs are used.
    """

    def __init__(self, has_output: bool = True) -> None:
        self._has_output = has_output
        self._lines: Dict[Tuple[str, str], int] = {}

    def check(self, entry: Entry, number: int, place: str) -> None:
        """Take an entry in.

        Args:
            number: of its line.
            place: how an error names the line.

        Raises:
            RejectedError: ``doubled-record``: an earlier line has its key or its output; both are named.
        """
        own = [("key", entry.key)]
        if self._has_output:
            own.append(("output_uri", normalised(entry.output_uri)))
        for field, value in own:
            if (field, value) in self._lines:
                raise RejectedError(
                    "doubled-record",
                    "{}: its {} {} is that of line {}".format(
                        place, field, _excerpt(value, 200), self._lines[field, value]
                    ),
                    cure="give each record a key and an output of its own",
                )
        for each in own:
            self._lines[each] = number


def format_entry(entry: Entry) -> str:
    """The manifest line of `entry`, without a line end; `parse_entry` gives the same entry back."""
    shape = "{}x{}".format(*entry.shape)
    return "\t".join(
        (entry.key, entry.uri, entry.dtype, shape, entry.order, entry.operation, entry.output_uri)
    )


def records(lines: Iterable[str]) -> Iterator[Tuple[int, str]]:
    """The lines that are records, with their number counted from 1; skips blank lines and comments."""
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith(_BYTE_ORDER_MARK):
            line = line[1:]
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, line.rstrip("\r\n")


def key_of(line: str) -> str:
    """A stable key for a line that may be garbage: its first field if that is a key, else a checksum."""
    first = line.split("\t", 1)[0]
    if "\t" in line and _KEY.match(first):
        return first
    return "line-{:08x}".format(zlib.crc32(line.encode("utf-8", "surrogateescape")))


def _parse_shape(place: str, text: str) -> Tuple[int, int]:
    match = _SHAPE.match(text)
    if match is None:
        raise _bad(place, "shape", "is {}".format(_excerpt(text)), "write rows x columns, such as 512x512")
    rows, columns = int(match.group(1)), int(match.group(2))
    if not (0 < rows <= MAX_SIDE and 0 < columns <= MAX_SIDE):
        raise _bad(place, "shape", "is {}".format(text), "both sides must be from 1 to {}".format(MAX_SIDE))
    return rows, columns


def _check_choice(place: str, field: str, value: str, known: Tuple[str, ...]) -> None:
    if value not in known:
        raise _bad(place, field, "is {}".format(_excerpt(value)), "use one of {}".format(", ".join(known)))


def _check_uri(place: str, field: str, value: str) -> None:
    try:
        normalised(value)
    except RejectedError as error:
        cure = error.cure or "write hdfs://HOST:PORT/PATH or file:///PATH"
        raise _bad(place, field, "is {}".format(_excerpt(value)), cure) from None


def _bad(place: str, field: str, what: str, cure: str) -> RejectedError:
    return RejectedError("manifest", "{}: {} {}".format(place, field, what), cure=cure)


def _excerpt(text: str, limit: int = 60) -> str:
    shown = text if len(text) <= limit else text[:limit] + "..."
    return ascii(shown)


# ---- lines that the mapper prints

STAGES = ("read", "queue", "compute", "write", "total")
DONE_FIELDS = (
    *("key", "status", "operation", "dtype", "shape", "residual"),
    *(stage + "_s" for stage in STAGES),
    *("bytes", "server", "device", "node", "attempt"),
)
NOT_CHECKED = "-"
REJECT_FIELDS = ("key", "status", "code", "message", "node", "attempt")


@dataclass(frozen=True)
class Done:
    """A matrix whose factors are on the store.

    ``residual`` is the largest LAPACK ratio (below 30 is good), None: not checked; ``seconds`` follow
    `STAGES`, ``n_bytes`` is the size of the matrix file.
    """

    key: str
    operation: str
    dtype: str
    shape: tuple[int, int]
    residual: Optional[float]
    seconds: tuple[float, ...]
    n_bytes: int
    server: str
    device: str
    node: str
    attempt: str

    @property
    def proven_residual(self) -> float:
        """The residual; infinite when it was not checked."""
        return math.inf if self.residual is None else self.residual


@dataclass(frozen=True)
class Reject:
    """A record that could not be done, with the reason."""

    key: str
    code: str
    message: str
    node: str
    attempt: str


Row = Union[Done, Reject]


def format_row(row: Row) -> str:
    """One line without its end; TABs and line ends inside a message become spaces."""
    if isinstance(row, Reject):
        fields = [row.key, "rejected", row.code, " ".join(row.message.split()), row.node, row.attempt]
    else:
        shape = "{}x{}".format(*row.shape)
        fields = [row.key, "done", row.operation, row.dtype, shape, _format_residual(row.residual)]
        fields += [f"{seconds:.4f}" for seconds in row.seconds]
        fields += [str(row.n_bytes), row.server, row.device, row.node, row.attempt]
    return "\t".join(fields)


def parse_row(line: str) -> Row:
    """The inverse of `format_row`, up to its rounding.

    Raises:
        ValueError: the line is not one of ours.
    """
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) == len(REJECT_FIELDS) and fields[1] == "rejected":
        key, _, code, message, node, attempt = fields
        return Reject(key, code, message, node, attempt)
    if len(fields) != len(DONE_FIELDS) or fields[1] != "done":
        raise ValueError(f"not a line of the factorize job: {line[:120]!r}")
    rows, columns = fields[4].split("x")
    return Done(
        key=fields[0],
        operation=fields[2],
        dtype=fields[3],
        shape=(int(rows), int(columns)),
        residual=_parse_residual(fields[5]),
        seconds=tuple(float(text) for text in fields[6:11]),
        n_bytes=int(fields[11]),
        server=fields[12],
        device=fields[13],
        node=fields[14],
        attempt=fields[15],
    )


def _format_residual(residual: Optional[float]) -> str:
    return NOT_CHECKED if residual is None else f"{residual:.4g}"


def _parse_residual(text: str) -> Optional[float]:
    if text == NOT_CHECKED:
        return None
    residual = float(text)
    return math.inf if math.isnan(residual) else residual
