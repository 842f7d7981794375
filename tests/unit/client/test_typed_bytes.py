import io
import struct

import pytest

from yarn_accel.client.typed_bytes import TypedBytesReader, encode_typed, write_typed_pairs
from yarn_accel.client.typed_bytes import encode_typed_pair as pair
from yarn_accel.errors import LocalProtocolError, RejectedError, RemoteProtocolError


class Dribble(io.RawIOBase):
    """A stream that gives one byte at a time, as a pipe may."""

    def __init__(self, content):
        self._rest = content

    def read(self, n=-1):
        piece, self._rest = self._rest[:1], self._rest[1:]
        return piece if n else b""


def records(content, **options):
    return list(TypedBytesReader(io.BytesIO(content), **options))


def test_a_record_of_text_and_bytes_on_the_wire():
    assert pair("ké", b"\x00\x01") == b"\x07\x00\x00\x00\x03k\xc3\xa9\x00\x00\x00\x00\x02\x00\x01"


def test_every_scalar_type_is_understood():
    content = (
        b"\x01\xfe" + b"\x02\x01" + b"\x03" + struct.pack(">i", -5) + b"\x04" + struct.pack(">q", 1 << 40)
    )
    content += b"\x05" + struct.pack(">f", 0.5) + b"\x06" + struct.pack(">d", 0.1)
    assert records(content) == [(-2, True), (-5, 1 << 40), (0.5, 0.1)]


def test_short_reads_are_continued():
    content = pair("key", b"x" * 100) * 2
    assert list(TypedBytesReader(Dribble(content))) == [("key", b"x" * 100)] * 2


def test_an_oversized_value_costs_its_record_only():
    content = pair("a", b"1234") + pair("big", b"x" * 5000) + pair("c", b"5678")
    (first, (key, error), last) = records(content, max_bytes=100)
    assert (first, last) == (("a", b"1234"), ("c", b"5678"))
    assert key == "big"
    assert isinstance(error, RejectedError)
    assert error.code == "too-large"
    assert "offset 23" in str(error)


def test_an_oversized_or_garbled_key_is_replaced_by_its_place():
    content = pair("x" * 200, b"1") + b"\x07\x00\x00\x00\x01\xff" + encode_typed(b"2") + pair("c", b"3")
    (first, second, third) = records(content, max_bytes=100)
    assert (first[0], first[1].code) == ("record at offset 0", "too-large")
    assert (second[0], second[1].code) == ("record at offset 211", "not-utf8")
    assert third == ("c", b"3")


def test_every_cut_inside_a_record_is_noticed():
    content = pair("key", b"value")
    for n_bytes in range(1, len(content)):
        with pytest.raises(RemoteProtocolError, match=f"ends at offset {n_bytes} "):
            records(content[:n_bytes])


def test_unknown_types_and_negative_lengths_name_the_offset():
    with pytest.raises(RemoteProtocolError, match="type 99 at offset 2"):
        records(b"\x01\x00\x63")
    with pytest.raises(RemoteProtocolError, match="length -1 at offset 0"):
        records(b"\x00\xff\xff\xff\xff")


def test_what_cannot_be_written():
    with pytest.raises(LocalProtocolError, match="list"):
        encode_typed([])
    with pytest.raises(LocalProtocolError, match="64 bits"):
        encode_typed(1 << 70)


def test_write_pairs_counts_and_can_be_read_back():
    stream = io.BytesIO()
    assert write_typed_pairs(stream, [("a", b"1"), (2, 2.5)]) == 2
    assert records(stream.getvalue()) == [("a", b"1"), (2, 2.5)]
