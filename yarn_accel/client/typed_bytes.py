"""Hadoop Streaming's typed bytes: what a task reads and writes under ``-io typedbytes``.

Every value is one byte of type and then its content, numbers big-endian: 0 bytes and 7 UTF-8 text (a 4-byte
length first), 1 byte, 2 boolean, 3 int, 4 long, 5 float, 6 double. A record is a key and a value; the stream
ends between two records. Lengths are bounded: a value over the limit is stepped over and reported, so that
one monstrous record costs that record and neither the memory nor the task.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Iterable, Iterator, Tuple, Union

from yarn_accel.errors import LocalProtocolError, RejectedError, RemoteProtocolError

TypedValue = Union[bytes, str, int, float, bool]

BYTES = 0
STRING = 7
DEFAULT_MAX_BYTES = 64 << 20
_SKIP_BYTES = 1 << 20
_LENGTH = struct.Struct(">i")
_SCALARS = {
    1: struct.Struct(">b"),
    2: struct.Struct(">?"),
    3: struct.Struct(">i"),
    4: struct.Struct(">q"),
    5: struct.Struct(">f"),
    6: struct.Struct(">d"),
}


class TypedBytesReader:
    """Reads records from a stream, keeping count of the byte offset for error messages.

    Args:
        stream: where to read; ``read(n)`` may return fewer bytes than asked for.
        max_bytes: the largest content of one bytes or text value.
    """

    def __init__(self, stream: BinaryIO, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self.offset = 0

    def __iter__(self) -> Iterator[Tuple[TypedValue, Union[TypedValue, RejectedError]]]:
        """Every record as ``(key, value)``.

        A bad key or value does not end the stream: the value is then a `RejectedError` that says why, and a
        bad key is replaced by ``record at offset N``.

        Raises:
            RemoteProtocolError: the stream ends inside a record, or holds an unknown type.
        """
        while True:
            start = self.offset
            kind = self._stream.read(1)
            if not kind:
                return
            self.offset += 1
            yield self._record(kind[0], start)

    def _record(self, kind: int, start: int) -> Tuple[TypedValue, Union[TypedValue, RejectedError]]:
        bad_key = None
        try:
            key = self._content(kind, start)
        except RejectedError as error:
            key, bad_key = "record at offset {}".format(start), error
        try:
            value: Union[TypedValue, RejectedError] = self.read()
        except RejectedError as error:
            value = error
        return key, bad_key or value

    def read(self) -> TypedValue:
        """The next value.

        Raises:
            RejectedError: ``too-large``; the value has been stepped over, so the next one can be read.
            RemoteProtocolError: cut short, or unknown type; the stream cannot be followed any further.
        """
        start = self.offset
        return self._content(self._exactly(1, start)[0], start)

    def _content(self, kind: int, start: int) -> TypedValue:
        if kind in (BYTES, STRING):
            return self._sized(kind, start)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise RemoteProtocolError(
                "typed bytes: type {} at offset {} is unknown; known: 0 to 7".format(kind, start)
            )
        value: TypedValue = scalar.unpack(self._exactly(scalar.size, start))[0]
        return value

    def _sized(self, kind: int, start: int) -> TypedValue:
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size, start))
        if size < 0:
            raise RemoteProtocolError("typed bytes: length {} at offset {} is negative".format(size, start))
        if size > self._max_bytes:
            self._skip(size, start)
            raise RejectedError(
                "too-large",
                "typed bytes: value at offset {} has {} bytes, the limit is {}".format(
                    start, size, self._max_bytes
                ),
            )
        content = self._exactly(size, start)
        if kind == BYTES:
            return content
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RejectedError(
                "not-utf8",
                "typed bytes: text at offset {} is not UTF-8 at its byte {}".format(start, error.start),
            ) from None

    def _exactly(self, n_bytes: int, start: int) -> bytes:
        content = self._stream.read(n_bytes)
        if len(content) < n_bytes:
            parts, missing = [content], n_bytes - len(content)
            while missing > 0 and parts[-1]:
                parts.append(self._stream.read(missing))
                missing -= len(parts[-1])
            content = b"".join(parts)
        self.offset += len(content)
        if len(content) < n_bytes:
            raise RemoteProtocolError(
                "typed bytes: the stream ends at offset {} inside the value that begins at offset {}".format(
                    self.offset, start
                )
            )
        return content

    def _skip(self, n_bytes: int, start: int) -> None:
        while n_bytes > 0:
            n_bytes -= len(self._exactly(min(n_bytes, _SKIP_BYTES), start))


def encode_typed(value: TypedValue) -> bytes:
    """One value as typed bytes; an ``int`` becomes a long, a ``float`` a double.

    Raises:
        LocalProtocolError: a type that typed bytes has no code for here, or a number outside 64 bits.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"\x00" + _LENGTH.pack(len(value)) + bytes(value)
    if isinstance(value, str):
        content = value.encode("utf-8")
        return b"\x07" + _LENGTH.pack(len(content)) + content
    kind = {bool: 2, int: 4, float: 6}.get(type(value))
    if kind is None:
        raise LocalProtocolError("typed bytes: cannot write a {}".format(type(value).__name__))
    try:
        return bytes((kind,)) + _SCALARS[kind].pack(value)
    except struct.error:
        raise LocalProtocolError("typed bytes: {} does not fit into 64 bits".format(value)) from None


def encode_typed_pair(key: TypedValue, value: TypedValue) -> bytes:
    """One record."""
    return encode_typed(key) + encode_typed(value)


def write_typed_pairs(stream: BinaryIO, pairs: Iterable[Tuple[TypedValue, TypedValue]]) -> int:
    """Write records and flush; returns how many there were."""
    n_pairs = 0
    for key, value in pairs:
        stream.write(encode_typed_pair(key, value))
        n_pairs += 1
    stream.flush()
    return n_pairs
