"""The manifest of the factorize job: one TAB-separated line per matrix.

::

    key   URI of the matrix   dtype   shape   order   operation   URI of the factors (.npz)

TABs and not JSON, so that ``sort``, ``cut`` and ``awk`` work on it. Blank lines, lines that start with ``#``,
carriage returns and a byte order mark are skipped. The matrix itself is a headerless file of ``rows * columns
* itemsize`` bytes, little endian, in C (row) or F (column) order. Standard library only, Python 3.8.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, Tuple

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
