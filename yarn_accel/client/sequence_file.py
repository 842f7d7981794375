"""Hadoop sequence files, uncompressed: many small objects in one file that Hadoop can split.

A file is a header (``SEQ`` and version 6, the class names of key and value, two compression flags, metadata,
a random sync marker of 16 bytes) and then records: length of the record, length of the key, key, value.
Every so often the length -1 and the sync marker stand before a record; a task whose split begins in the
middle looks for the marker. Numbers are big-endian, texts carry Hadoop's variable-length number.

Both directions stream: memory holds one record. Keys and values of the classes `Text`, `BytesWritable` and
`TypedBytesWritable` (what Streaming writes under ``-io typedbytes``) are understood. Standard library only,
Python 3.8.
"""

from __future__ import annotations

import io
import os
import struct
from typing import BinaryIO, Callable, Dict, Iterator, Optional, Tuple

from yarn_accel.client.typed_bytes import TypedBytesReader, TypedValue
from yarn_accel.client.writable import decode_number, encode_number, n_bytes_after
from yarn_accel.errors import LocalProtocolError, RejectedError, RemoteProtocolError

MAGIC = b"SEQ\x06"
TEXT = "org.apache.hadoop.io.Text"
BYTES = "org.apache.hadoop.io.BytesWritable"
TYPED_BYTES = "org.apache.hadoop.typedbytes.TypedBytesWritable"
SYNC_BYTES = 16
SYNC_INTERVAL_BYTES = 100 << 10
DEFAULT_MAX_RECORD_BYTES = 256 << 20
_MAX_CLASS_NAME_BYTES = 1024
_MAX_METADATA_ENTRIES = 1024
_MAX_METADATA_BYTES = 1 << 20
_SYNC_ESCAPE = -1
_INT = struct.Struct(">i")


class SequenceFileWriter:
    """Writes a ``SequenceFile<Text, BytesWritable>``.

    Args:
        stream: where the file goes; it is not closed.
        sync: the marker, 16 bytes; random unless given, so that no content can imitate it.
        sync_interval_bytes: at least so many bytes lie between two markers; splits cannot be finer.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        sync: Optional[bytes] = None,
        sync_interval_bytes: int = SYNC_INTERVAL_BYTES,
    ) -> None:
        self._stream = stream
        self._sync = os.urandom(SYNC_BYTES) if sync is None else sync
        if len(self._sync) != SYNC_BYTES:
            raise LocalProtocolError(
                f"sequence file: a sync marker of {len(self._sync)} bytes, not {SYNC_BYTES}"
            )
        self._sync_interval_bytes = sync_interval_bytes
        self.n_records = 0
        self.n_bytes = 0
        self._write(MAGIC + _text(TEXT) + _text(BYTES) + b"\x00\x00" + _INT.pack(0) + self._sync)
        self._last_sync = self.n_bytes

    def append(self, key: str, value: bytes) -> None:
        """Write one record."""
        if self.n_bytes >= self._last_sync + self._sync_interval_bytes:
            self._write(_INT.pack(_SYNC_ESCAPE) + self._sync)
            self._last_sync = self.n_bytes
        encoded_key = _text(key)
        n_value = _INT.size + len(value)
        lengths = (_INT.pack(len(encoded_key) + n_value), _INT.pack(len(encoded_key)))
        self._write(b"".join((*lengths, encoded_key, _INT.pack(len(value)))))
        self._write(value)
        self.n_records += 1

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self.n_bytes += len(content)


class SequenceFileReader:
    """Iterates over the records of an uncompressed sequence file as ``(key, value)``.

    ``Text`` is given as ``str``, ``BytesWritable`` as ``bytes``, ``TypedBytesWritable`` as what it holds.

    Args:
        stream: where the file comes from.
        max_record_bytes: limit on one record.

    Raises:
        RemoteProtocolError: not such a file, damaged, cut short, or over the limit; names the byte offset.
    """

    def __init__(self, stream: BinaryIO, *, max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES) -> None:
        self._stream = stream
        self._max_record_bytes = max_record_bytes
        self.offset = 0
        if self._take(len(MAGIC)) != MAGIC:
            raise RemoteProtocolError("sequence file: does not begin with SEQ and version 6")
        self.key_class = self._name()
        self.value_class = self._name()
        self._parse_key = self._parser(self.key_class)
        self._parse_value = self._parser(self.value_class)
        if self._take(2) != b"\x00\x00":
            raise RemoteProtocolError(
                "sequence file: compressed; this program reads and writes uncompressed ones only"
            )
        self._skip_metadata()
        self._sync = self._take(SYNC_BYTES)

    def __iter__(self) -> Iterator[Tuple[TypedValue, TypedValue]]:
        while True:
            start = self.offset
            head = self._stream.read(_INT.size)
            if not head:
                return
            self.offset += len(head)
            (n_record,) = _INT.unpack(head + self._take(_INT.size - len(head)))
            if n_record == _SYNC_ESCAPE:
                self._check_sync()
            else:
                yield self._record(n_record, start)

    def _record(self, n_record: int, start: int) -> Tuple[TypedValue, TypedValue]:
        (n_key,) = _INT.unpack(self._take(_INT.size))
        if not 0 <= n_key <= n_record <= self._max_record_bytes:
            raise RemoteProtocolError(
                f"sequence file: record of {n_record} bytes with a key of {n_key} at offset {start}, "
                f"the limit is {self._max_record_bytes}"
            )
        content = self._take(n_record)
        try:
            return self._parse_key(content[:n_key]), self._parse_value(content[n_key:])
        except (RemoteProtocolError, RejectedError, ValueError, struct.error) as error:
            raise RemoteProtocolError(f"sequence file: record at offset {start}: {error}") from None

    def _check_sync(self) -> None:
        start = self.offset
        if self._take(SYNC_BYTES) != self._sync:
            raise RemoteProtocolError(f"sequence file: damaged, another sync marker at offset {start}")

    def _parser(self, class_name: str) -> Callable[[bytes], TypedValue]:
        parsers: Dict[str, Callable[[bytes], TypedValue]] = {
            TEXT: _parse_text,
            BYTES: _parse_bytes,
            TYPED_BYTES: _parse_typed_bytes,
        }
        if class_name not in parsers:
            raise RemoteProtocolError(
                f"sequence file: class {class_name} is not understood; known: {', '.join(parsers)}"
            )
        return parsers[class_name]

    def _name(self) -> str:
        n_bytes = self._variable_length()
        if not 0 <= n_bytes <= _MAX_CLASS_NAME_BYTES:
            raise RemoteProtocolError(f"sequence file: class name of {n_bytes} bytes at offset {self.offset}")
        return self._take(n_bytes).decode("utf-8", "replace")

    def _skip_metadata(self) -> None:
        (n_entries,) = _INT.unpack(self._take(_INT.size))
        if not 0 <= n_entries <= _MAX_METADATA_ENTRIES:
            raise RemoteProtocolError(f"sequence file: {n_entries} metadata entries at offset {self.offset}")
        for _ in range(2 * n_entries):
            n_bytes = self._variable_length()
            if not 0 <= n_bytes <= _MAX_METADATA_BYTES:
                raise RemoteProtocolError(
                    f"sequence file: metadata of {n_bytes} bytes at offset {self.offset}"
                )
            self._take(n_bytes)

    def _variable_length(self) -> int:
        first = self._take(1)
        return decode_number(first + self._take(n_bytes_after(first[0])))

    def _take(self, n_bytes: int) -> bytes:
        content = self._stream.read(n_bytes) if n_bytes else b""
        while len(content) < n_bytes:
            more = self._stream.read(n_bytes - len(content))
            if not more:
                raise RemoteProtocolError(
                    f"sequence file: cut short at offset {self.offset + len(content)}, "
                    f"{n_bytes} bytes expected from offset {self.offset}"
                )
            content += more
        self.offset += n_bytes
        return content


def _parse_text(content: bytes) -> str:
    start = 1 + n_bytes_after(content[0]) if content else 0
    if not start or len(content) < start or decode_number(content[:start]) != len(content) - start:
        raise ValueError("a text whose length is not the one it announces")
    return content[start:].decode("utf-8")


def _parse_bytes(content: bytes) -> bytes:
    (n_bytes,) = _INT.unpack_from(content)
    if n_bytes != len(content) - _INT.size:
        raise ValueError(f"{n_bytes} bytes announced, {len(content) - _INT.size} there")
    return content[_INT.size :]


def _parse_typed_bytes(content: bytes) -> TypedValue:
    """A ``TypedBytesWritable`` is a ``BytesWritable`` that holds one typed-bytes value."""
    inner = _parse_bytes(content)
    reader = TypedBytesReader(io.BytesIO(inner), max_bytes=max(1, len(inner)))
    value = reader.read()
    if reader.offset != len(inner):
        raise ValueError(f"{len(inner) - reader.offset} bytes follow the typed-bytes value")
    return value


def _text(value: str) -> bytes:
    content = value.encode("utf-8")
    return encode_number(len(content)) + content
