"""Read and write Hadoop's token storage files: tokens and secrets, each with an alias.

Hadoop hands a task its credentials in the file named by ``HADOOP_TOKEN_FILE_LOCATION``; a job is given some
with ``mapreduce.job.credentials.binary``. The file is ``HDTS``, one byte of format, and then

* format 0 (``Writable``, what Hadoop writes by default): a variable-length count of tokens, each an alias, an
  identifier, a password, a kind and a service; then a count of secrets, each an alias and a value; every
  text or byte string is a variable-length number and so many bytes;
* format 1 (Protocol Buffers): one length-delimited message whose field 1 repeats tokens and field 2 secrets,
  a secret being a message of field 1 (alias) and field 3 (value).

This project keeps a secret of its own there; the tokens are Hadoop's. Format 0 is written. Nothing here puts
a value into an error message. Standard library only, Python 3.8.
"""

from __future__ import annotations

import base64
from typing import Dict, Iterator, Mapping, NamedTuple, Tuple

from yarn_accel.client.writable import decode_number, encode_number, n_bytes_after
from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

MAGIC = b"HDTS"
FORMAT_WRITABLE = 0
FORMAT_PROTOBUF = 1
MAX_FILE_BYTES = 16 << 20
MAX_ENTRIES = 10_000
MAX_FIELD_BYTES = 1 << 20

Secrets = Dict[str, bytes]

#: The kind of the tokens that a NameNode gives.
HDFS_DELEGATION_KIND = "HDFS_DELEGATION_TOKEN"
#: Where Hadoop says which file has the credentials of a container, or of a task.
TOKEN_FILE_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"


class StoredToken(NamedTuple):
    """A token of a Hadoop service: whoever shows it acts as its owner.

    Attributes:
        identifier: describes the right; only the service reads it.
        password: its secret half; `repr` shows neither of the two.
        kind: such as `HDFS_DELEGATION_KIND`.
        service: whom it is for: ``address:port``, or ``ha-hdfs:NAME`` for a name service.
    """

    identifier: bytes
    password: bytes
    kind: str
    service: str

    def __repr__(self) -> str:
        return "StoredToken(kind={!r}, service={!r})".format(self.kind, self.service)

    def url_form(self) -> str:
        """The token as ``delegation=`` in an address of Hadoop's web services wants it; a secret."""
        fields = (self.identifier, self.password, self.kind.encode("utf-8"), self.service.encode("utf-8"))
        raw = b"".join(encode_number(len(each)) + each for each in fields)
        return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def read_secrets(data: bytes) -> Secrets:
    """The secrets of a token storage file, by alias.

    Raises:
        RemoteProtocolError: not such a file, or damaged; the message names the byte offset, never a value.
    """
    return read_stored(data)[1]


def read_tokens(data: bytes) -> Tuple[StoredToken, ...]:
    """The tokens of a token storage file, in its order.

    Raises:
        RemoteProtocolError: as `read_secrets`.
    """
    return tuple(read_stored(data)[0].values())


def read_stored(data: bytes) -> Tuple[Dict[str, StoredToken], Secrets]:
    """The tokens and the secrets of a token storage file, by alias.

    Raises:
        RemoteProtocolError: as `read_secrets`.
    """
    if len(data) > MAX_FILE_BYTES:
        raise RemoteProtocolError("token file: {} bytes, the limit is {}".format(len(data), MAX_FILE_BYTES))
    if data[:4] != MAGIC or len(data) < 5:
        raise RemoteProtocolError("token file: does not begin with {!r} at offset 0".format(MAGIC.decode()))
    if data[4] == FORMAT_WRITABLE:
        return _read_writable(_FieldReader(data, 5, len(data)))
    if data[4] == FORMAT_PROTOBUF:
        return _read_protobuf(_FieldReader(data, 5, len(data)))
    raise RemoteProtocolError("token file: unknown format {} at offset 4; known: 0, 1".format(data[4]))


def write_secrets(secrets: Mapping[str, bytes]) -> bytes:
    """A token storage file that holds these secrets and no token."""
    return write_stored({}, secrets)


def write_stored(tokens: Mapping[str, StoredToken], secrets: Mapping[str, bytes]) -> bytes:
    """A token storage file in format 0, the one that every Hadoop reads; aliases sorted.

    Raises:
        LocalProtocolError: a value is longer than what is read.
    """
    parts = [MAGIC, bytes((FORMAT_WRITABLE,)), encode_number(len(tokens))]
    for alias, token in sorted(tokens.items()):
        parts += [_field(alias.encode("utf-8")), _field(token.identifier), _field(token.password)]
        parts += [_field(token.kind.encode("utf-8")), _field(token.service.encode("utf-8"))]
    parts.append(encode_number(len(secrets)))
    for alias, value in sorted(secrets.items()):
        parts += [_field(alias.encode("utf-8")), _field(value)]
    return b"".join(parts)


def _field(raw: bytes) -> bytes:
    if len(raw) > MAX_FIELD_BYTES:
        raise LocalProtocolError(
            "token file: a field of {} bytes, the limit is {}".format(len(raw), MAX_FIELD_BYTES)
        )
    return encode_number(len(raw)) + raw


class _FieldReader:
    """A position in a byte string that cannot leave it."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > self.end - self.position:
            raise RemoteProtocolError(
                "token file: cut short at offset {}: {} bytes expected, {} left".format(
                    self.position, n_bytes, self.end - self.position
                )
            )
        start, self.position = self.position, self.position + n_bytes
        return self.data[start : self.position]

    def byte(self) -> int:
        return self.take(1)[0]

    def bounded(self, value: int, limit: int, what: str, at: int) -> int:
        if not 0 <= value <= limit:
            raise RemoteProtocolError(
                "token file: {} {} at offset {} is outside 0..{}".format(what, value, at, limit)
            )
        return value

    def text(self, raw: bytes, at: int) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise RemoteProtocolError("token file: text at offset {} is not UTF-8".format(at)) from None


def _read_writable(cursor: _FieldReader) -> Tuple[Dict[str, StoredToken], Secrets]:
    tokens: Dict[str, StoredToken] = {}
    for _ in range(_read_count(cursor)):
        alias = _read_text(cursor)
        identifier, password = _read_field(cursor), _read_field(cursor)
        tokens[alias] = StoredToken(identifier, password, _read_text(cursor), _read_text(cursor))
    secrets: Secrets = {}
    for _ in range(_read_count(cursor)):
        alias = _read_text(cursor)
        secrets[alias] = _read_field(cursor)
    return tokens, secrets


def _read_text(cursor: _FieldReader) -> str:
    at = cursor.position
    return cursor.text(_read_field(cursor), at)


def _read_count(cursor: _FieldReader) -> int:
    at = cursor.position
    return cursor.bounded(_read_number(cursor), MAX_ENTRIES, "count", at)


def _read_field(cursor: _FieldReader) -> bytes:
    at = cursor.position
    return cursor.take(cursor.bounded(_read_number(cursor), MAX_FIELD_BYTES, "length", at))


def _read_number(cursor: _FieldReader) -> int:
    first = cursor.take(1)
    return decode_number(first + cursor.take(n_bytes_after(first[0])))


def _read_protobuf(cursor: _FieldReader) -> Tuple[Dict[str, StoredToken], Secrets]:
    at = cursor.position
    size = cursor.bounded(_read_varint(cursor), MAX_FILE_BYTES, "length", at)
    start = cursor.position
    cursor.take(size)
    tokens: Dict[str, StoredToken] = {}
    secrets: Secrets = {}
    for number, item in _fields(_FieldReader(cursor.data, start, start + size)):
        at = item.position
        fields = _contents(item)
        alias = item.text(fields.get(1, b""), at)
        if number == 1 and 2 in fields:
            parts = _contents(_FieldReader(fields[2], 0, len(fields[2])))
            kind, service = (item.text(parts.get(each, b""), at) for each in (3, 4))
            tokens[alias] = StoredToken(parts.get(1, b""), parts.get(2, b""), kind, service)
        elif number == 2:
            secrets[alias] = fields.get(3, b"")
    return tokens, secrets


def _contents(message: _FieldReader) -> Dict[int, bytes]:
    """The bytes of each length-delimited field of a message; of a repeated one the last."""
    return {number: content.take(content.end - content.position) for number, content in _fields(message)}


def _fields(cursor: _FieldReader) -> Iterator[Tuple[int, _FieldReader]]:
    """Number and content of each length-delimited field; fields of other wire types are stepped over."""
    n_fields = 0
    while cursor.position < cursor.end:
        n_fields += 1
        at = cursor.position
        cursor.bounded(n_fields, MAX_ENTRIES, "number of fields", at)
        tag = _read_varint(cursor)
        wire_type = tag & 7
        if wire_type == 2:
            size = cursor.bounded(_read_varint(cursor), MAX_FILE_BYTES, "length", at)
            start = cursor.position
            cursor.take(size)
            yield tag >> 3, _FieldReader(cursor.data, start, start + size)
        elif wire_type == 0:
            _read_varint(cursor)
        elif wire_type in (1, 5):
            cursor.take(8 if wire_type == 1 else 4)
        else:
            raise RemoteProtocolError(
                "token file: wire type {} at offset {} is unknown".format(wire_type, at)
            )


def _read_varint(cursor: _FieldReader) -> int:
    value = 0
    at = cursor.position
    for shift in range(0, 70, 7):
        byte = cursor.byte()
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise RemoteProtocolError("token file: number at offset {} is longer than ten bytes".format(at))
