"""Cuts files into splits: pure, from names and sizes, or the lines of a manifest.

Splits are cut at byte positions. Records stay whole because of how splits are read (`InputSplit`), so cutting
reads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from yarn_accel.core.tasks.applications import MAX_TASKS
from yarn_accel.core.tasks.attempt_orders import InputSplit
from yarn_accel.errors import ConfigError

#: A rest up to a tenth of a split belongs to the split before it, as Hadoop does it.
_TENTHS = 10
_MIB = 1024 * 1024
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


@dataclass(frozen=True, slots=True)
class SizedFile:
    """A file to cut."""

    uri: str
    n_bytes: int


def cut(files: Iterable[SizedFile], split_bytes: int, with_keys: bool = False) -> tuple[InputSplit, ...]:
    """Splits of `split_bytes` that cover each file once, in the order of the files; empty files have none.

    >>> [(split.start, split.length) for split in cut([SizedFile("file:///a", 25)], 10)]
    [(0, 10), (10, 10), (20, 5)]
    >>> [(split.start, split.length) for split in cut([SizedFile("file:///a", 21)], 10)]
    [(0, 10), (10, 11)]

    Raises:
        ConfigError: these would be more than `MAX_TASKS`; names a `split_bytes` that is large enough.
    """
    sized = [file for file in files if file.n_bytes > 0]
    n_splits = sum(_n_splits(file.n_bytes, split_bytes) for file in sized)
    if n_splits > MAX_TASKS:
        raise ConfigError(
            f"split_bytes: {split_bytes} makes {n_splits} tasks; at most {MAX_TASKS} are taken",
            cure=_larger(sized),
        )
    return tuple(split for file in sized for split in _splits(file, split_bytes, with_keys))


def cut_lines(uri: str, content: bytes, with_keys: bool = False) -> tuple[InputSplit, ...]:
    """Each line of a manifest as one split; lines of white space have none.

    >>> [(split.start, split.length) for split in cut_lines("file:///m", b"one\\n\\ntwo\\n")]
    [(0, 3), (4, 4)]

    Raises:
        ConfigError: these would be more than `MAX_TASKS`, or the first line is empty.
    """
    splits = []
    for line in _LINE.finditer(content):
        if line[0].strip():
            if line.start() == 1:  # no split begins there: one at 1 would skip it, one at 0 has both lines
                raise ConfigError(f"manifest: {uri}: the first line is empty", cure="remove it")
            # From before the line end before it, as reading begins after the first line end.
            start = max(line.start() - 1, 0)
            splits.append(InputSplit(uri, start, line.end() - 1 - start, with_keys))
    if len(splits) > MAX_TASKS:
        raise ConfigError(
            f"manifest: {uri} has {len(splits)} lines; at most {MAX_TASKS} tasks are taken",
            cure="submit several applications, or give the file as `input`, whose splits have many lines",
        )
    return tuple(splits)


def _n_splits(n_bytes: int, split_bytes: int) -> int:
    n_full, rest = divmod(n_bytes, split_bytes)
    return max(1, n_full + (rest * _TENTHS > split_bytes))


def _splits(file: SizedFile, split_bytes: int, with_keys: bool) -> Iterable[InputSplit]:
    n_splits = _n_splits(file.n_bytes, split_bytes)
    for number in range(n_splits):
        start = number * split_bytes
        end = file.n_bytes if number == n_splits - 1 else start + split_bytes
        yield InputSplit(file.uri, start, end - start, with_keys)


def _larger(files: Sequence[SizedFile]) -> str:
    """The cure: a size that is certain to do, as each file has one split at most that is not full."""
    left = MAX_TASKS - len(files)
    if left <= 0:
        return f"these are {len(files)} files: join them, or submit several applications"
    n_mib = -(-sum(file.n_bytes for file in files) // (left * _MIB))
    return f"give split_bytes: {n_mib * _MIB} or more"
