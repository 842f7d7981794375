"""The lines of a split, exactly those that Hadoop's TextInputFormat gives to a mapper.

A line ends with LF, CR, or CR LF. A split that does not begin the file skips everything up to the first line
end at or after its begin, and every split goes on to the first line end at or after its own end: so wherever
two splits meet, each line is in one of them. Streaming gives a mapper each line with LF, also the last one.

Memory is bounded whatever the length of a line: lines are cut out of the file, never held.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from yarn_accel.core.tasks.attempt_orders import InputSplit
from yarn_accel.errors import StorageError
from yarn_accel.storage import OpenFile

#: From this size on, HDFS is read in two halves at once.
PIECE_BYTES = 4 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
_LINE_ENDS = re.compile(rb"(\r\n|\r|\n)")
#: What TextInputFormat would decompress.
_COMPRESSED = (".bz2", ".deflate", ".gz", ".lz4", ".snappy", ".zst")


def split_lines(file: OpenFile, split: InputSplit, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """What a mapper reads from standard input, in pieces.

    Args:
        file: the split's file, open.
        piece_bytes: how much is read at once; for tests.

    Raises:
        StorageError: the split begins behind the file's end, or the file is compressed.
    """
    if split.uri.endswith(_COMPRESSED):
        raise StorageError(f"{split.uri}: is compressed, which is not read here", cure="decompress it first")
    if split.start > file.n_bytes:
        raise StorageError(
            f"{split.uri}: has {file.n_bytes} bytes, and the split begins at {split.start}",
            cure="the file has changed since it was cut into splits: submit again",
        )
    end = min(split.start + split.length, file.n_bytes)
    first = _after_line_end(file, split.start, piece_bytes) if split.start else 0
    if first > end or first == file.n_bytes:
        return iter(())
    key = first
    if not first and _read(file, 0, min(len(_BOM), file.n_bytes)) == _BOM:
        first = len(_BOM)
    pieces = _until_line_end(file, first, max(first, end), piece_bytes)
    return _with_offsets(pieces, first, key) if split.with_keys else _with_line_feeds(pieces)


def _after_line_end(file: OpenFile, start: int, piece_bytes: int) -> int:
    """Where the first line after `start` begins; the file's end if none does."""
    at = start
    while at < file.n_bytes:
        piece = _read(file, at, min(piece_bytes, file.n_bytes - at))
        found = _LINE_END.search(piece)
        if found is not None:
            at += found.end()
            is_cut = found.end() == len(piece) and piece.endswith(b"\r") and at < file.n_bytes
            return at + (is_cut and _read(file, at, 1) == b"\n")
        at += len(piece)
    return at


def _until_line_end(file: OpenFile, first: int, end: int, piece_bytes: int) -> Iterator[bytes]:
    """The file from `first` to the first line end at or after `end`; CR LF is never cut into two pieces."""
    at = first
    while at < file.n_bytes:
        piece = _read(file, at, min(piece_bytes, file.n_bytes - at))
        behind = at + len(piece)
        if piece.endswith(b"\r") and behind < file.n_bytes and _read(file, behind, 1) == b"\n":
            piece += b"\n"
        if at + len(piece) > end:
            found = _LINE_END.search(piece, max(0, end - at))
            if found is not None:
                yield piece[: found.end()]
                return
        yield piece
        at += len(piece)


def _with_line_feeds(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Every line with LF."""
    last = b"\n"
    for piece in pieces:
        plain = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in piece else piece
        last = plain[-1:]
        yield plain
    if last != b"\n":
        yield b"\n"


def _with_offsets(pieces: Iterator[bytes], first: int, key: int) -> Iterator[bytes]:
    """Every line with LF, and before it the place in the file at which it begins, and a tab.

    Args:
        key: of the first line; with a byte order mark it begins before `first`.
    """
    at, is_line_begin = first, True
    for piece in pieces:
        # Line ends stand between the lines, so that the place of each line is the sum of all before it.
        parts = _LINE_ENDS.split(piece)
        lines = parts[::2]
        places = itertools.accumulate(map(len, parts), initial=at)
        keyed = [b"%d\t%s" % each for each in zip(itertools.islice(places, 0, None, 2), lines, strict=False)]
        if at == first:
            keyed[0] = b"%d\t%s" % (key, lines[0])
        elif not is_line_begin:
            keyed[0] = lines[0]
        is_line_begin = not lines[-1]
        if is_line_begin:
            keyed[-1] = b""
        at += len(piece)
        yield b"\n".join(keyed)
    if not is_line_begin:
        yield b"\n"


def _read(file: OpenFile, start: int, n_bytes: int) -> bytes:
    piece = bytearray(n_bytes)
    file.read_into(start, memoryview(piece))
    return bytes(piece)
