"""The two files in data/ were written by Hadoop 3.5.0's own `SequenceFile.Writer`."""

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.client.sequence_file import SequenceFileReader, SequenceFileWriter
from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

DATA = Path(__file__).parent / "data"
SYNC = bytes(range(16))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)


def written(pairs, **options):
    stream = io.BytesIO()
    writer = SequenceFileWriter(stream, sync=SYNC, **options)
    for key, value in pairs:
        writer.append(key, value)
    assert writer.n_bytes == len(stream.getvalue())
    return stream.getvalue()


def read(content, **options):
    return list(SequenceFileReader(io.BytesIO(content), **options))


def test_reads_text_and_bytes_as_hadoop_wrote_them():
    pairs = read((DATA / "text_bytes.seq").read_bytes())
    assert pairs == [(f"key/{i}", bytes((i + q) % 256 for q in range(7 * i))) for i in range(20)]


def test_reads_typed_bytes_as_hadoop_wrote_them():
    values = [value for key, value in read((DATA / "typed_bytes.seq").read_bytes()) if key == "key"]
    assert values == ["text é", b"\x01\x02\x03", 7, 1 << 40, 2.5, True, 1.5]


def test_writes_the_very_bytes_hadoop_writes():
    content = (DATA / "text_bytes.seq").read_bytes()
    reader = SequenceFileReader(io.BytesIO(content))
    stream = io.BytesIO()
    writer = SequenceFileWriter(stream, sync=reader._sync)
    for key, value in reader:
        writer.append(key, value)
    assert stream.getvalue() == content


@given(st.lists(st.tuples(TEXT, st.binary(max_size=400)), max_size=12), st.integers(1, 2000))
def test_what_is_written_is_read_back(pairs, sync_interval_bytes):
    assert read(written(pairs, sync_interval_bytes=sync_interval_bytes)) == pairs


@given(st.lists(st.tuples(TEXT, st.binary(max_size=50)), min_size=1, max_size=4), st.data())
def test_any_cut_and_any_flipped_byte_end_in_the_documented_error(pairs, data):
    content = bytearray(written(pairs, sync_interval_bytes=64))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(content), bytes(content[:place])):
        with contextlib.suppress(RemoteProtocolError):
            read(damaged)


def test_markers_stand_where_a_split_can_begin():
    content = written([(f"k{i}", b"x" * 100) for i in range(100)], sync_interval_bytes=1000)
    header, *parts = content.split(b"\xff\xff\xff\xff" + SYNC)
    assert len(parts) >= 9
    # Every part is a run of whole records: with the header before it, it is a file.
    start = header[: header.index(SYNC) + 16]
    keys = [key for part in (header[len(start) :], *parts) for key, _ in read(start + part)]
    assert keys == [f"k{i}" for i in range(100)]


def test_an_empty_file_has_no_records():
    assert read(written([])) == []


def test_limits():
    content = written([("k", b"x" * 1000)])
    assert len(read(content, max_record_bytes=1006)) == 1
    with pytest.raises(RemoteProtocolError, match="limit is 1005"):
        read(content, max_record_bytes=1005)
    with pytest.raises(LocalProtocolError, match="15 bytes"):
        SequenceFileWriter(io.BytesIO(), sync=SYNC[:15])


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b"SEQ\x06", b"SEQ\x05", "version 6"),
        (b"BytesWritable", b"BytesWr1table", "is not understood; known"),
        (b"\x00\x00\x00\x00\x00\x00" + SYNC, b"\x01\x00\x00\x00\x00\x00" + SYNC, "compressed"),
        (b"\xff\xff\xff\xff" + SYNC, b"\xff\xff\xff\xff" + SYNC[::-1], "another sync marker at offset"),
    ],
)
def test_what_is_not_understood_is_named(old, new, match):
    content = written([("k", b"x" * 100), ("l", b"")], sync_interval_bytes=10)
    assert old in content
    with pytest.raises(RemoteProtocolError, match=match):
        read(content.replace(old, new))
