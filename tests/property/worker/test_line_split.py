"""Splits that lie side by side give every line of a file once, wherever they meet."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yarn_accel.core.tasks.attempt_orders import InputSplit
from yarn_accel.errors import StorageError
from yarn_accel.worker.line_split import split_lines


class MemoryFile:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.n_bytes = len(content)

    def read_into(self, start: int, view: memoryview) -> None:
        assert 0 <= start <= start + len(view) <= self.n_bytes
        view[:] = self._content[start : start + len(view)]


def lines(content: bytes, start: int, length: int, piece_bytes: int = 3, with_keys: bool = False) -> bytes:
    split = InputSplit("file:///x", start, length, with_keys)
    return b"".join(split_lines(MemoryFile(content), split, piece_bytes))


def hadoop_lines(content: bytes, start: int, length: int) -> list[tuple[int, bytes]]:
    """Hadoop's LineRecordReader step by step, written down from its documentation."""
    end, at = start + length, start
    if start:
        at = next_line(content, at)
    found = []
    while at <= end and at < len(content):
        behind = next_line(content, at)
        found.append((at, content[at:behind].rstrip(b"\r\n")))
        at = behind
    return found


def next_line(content: bytes, at: int) -> int:
    found = re.compile(rb"\r\n|\r|\n").search(content, at)
    return found.end() if found else len(content)


texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\t", b"\xff"]), max_size=20).map(
    b"".join
)


@settings(deadline=None)
@given(texts, st.integers(0, 40), st.integers(0, 40), st.integers(1, 5))
def test_a_split_has_the_lines_that_hadoop_gives(
    content: bytes, start: int, length: int, piece_bytes: int
) -> None:
    start = min(start, len(content))
    expected = hadoop_lines(content, start, length)
    assert lines(content, start, length, piece_bytes) == b"".join(line + b"\n" for _, line in expected)
    with_keys = b"".join(b"%d\t%s\n" % each for each in expected)
    assert lines(content, start, length, piece_bytes, with_keys=True) == with_keys


@settings(deadline=None)
@given(texts, st.lists(st.integers(0, 40), max_size=5))
def test_all_splits_together_are_the_whole_file(content: bytes, cuts: list[int]) -> None:
    borders = sorted({0, len(content), *(min(cut, len(content)) for cut in cuts)})
    parts = [lines(content, first, last - first) for first, last in itertools.pairwise(borders)]
    whole = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert b"".join(parts) == whole + (b"\n" if whole and not whole.endswith(b"\n") else b"")


def test_every_border_of_a_text() -> None:
    content = b"one\ntwo\r\nthree\rfour\n\n\r\nlast"
    whole = lines(content, 0, len(content))
    assert whole == b"one\ntwo\nthree\nfour\n\n\nlast\n"
    for cut in range(len(content) + 1):
        assert lines(content, 0, cut) + lines(content, cut, len(content) - cut) == whole or cut == 0


def test_line_ends_that_meet_the_ends_of_pieces() -> None:
    for content in (b"bc\r\r\n", b"b\r\r\r\n", b"bc\r\r", b"bc\r\n\r\n"):
        expected = b"".join(line + b"\n" for _, line in hadoop_lines(content, 0, len(content)))
        for piece_bytes in (1, 2, 3, 4):
            assert lines(content, 0, len(content), piece_bytes) == expected


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert lines(b"\xef\xbb\xbfa\n", 0, 5) == b"a\n"
    assert lines(b"\xef\xbb\xbfa\nb", 0, 6, with_keys=True) == b"0\ta\n5\tb\n"
    assert lines(b"\xef\xbb\xbf", 0, 3) == b""
    assert lines(b"x\n\xef\xbb\xbfa\n", 1, 6) == b"\xef\xbb\xbfa\n"


def test_a_line_is_never_held_in_memory() -> None:
    class Endless(io.BytesIO):
        n_bytes = 64 << 20

        def read_into(self, start: int, view: memoryview) -> None:
            assert len(view) <= 4096
            view[:] = b"x" * len(view)

    split = InputSplit("file:///x", 0, 1)
    pieces = split_lines(Endless(), split, 4096)
    assert sum(len(next(pieces)) for _ in range(100)) == 409600


def test_what_is_no_split_of_this_file_is_one_clear_error() -> None:
    with pytest.raises(StorageError, match="has 2 bytes, and the split begins at 3"):
        lines(b"a\n", 3, 1)
    with pytest.raises(StorageError, match="is compressed"):
        list(split_lines(MemoryFile(b"x"), InputSplit("file:///x.gz", 0, 1)))
