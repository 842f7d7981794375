"""Splits cover every file once, and have the lines that they should, whatever the sizes."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.core.tasks.applications import MAX_TASKS
from yarn_accel.errors import ConfigError
from yarn_accel.tasks.split import SizedFile, cut, cut_lines
from yarn_accel.worker.line_split import split_lines

MIB = 1024 * 1024
LINES = st.lists(st.text("ab \t\x00ü", max_size=6).map(str.encode))


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 2000), max_size=5), st.integers(1, 700))
def test_every_byte_is_in_one_split(sizes, split_bytes):
    files = [SizedFile(f"file:///f{i}", n_bytes) for i, n_bytes in enumerate(sizes)]
    splits = cut(files, split_bytes)
    for file in files:
        at = 0
        for split in (each for each in splits if each.uri == file.uri):
            assert split.start == at
            assert 0 < split.length <= split_bytes * 1.1
            at += split.length
        assert at == file.n_bytes
    assert [each.uri for each in splits] == sorted(each.uri for each in splits)


@settings(max_examples=examples(200))
@given(LINES, st.integers(1, 30))
def test_each_line_of_a_file_is_in_one_split(lines, split_bytes):
    content = b"".join(line + b"\n" for line in lines)
    splits = cut([SizedFile("file:///f", len(content))], split_bytes)
    assert [line for split in splits for line in lines_of(content, split)] == lines


@settings(max_examples=examples(200))
@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_each_line_of_a_manifest_is_one_split(lines, end, is_whole):
    content = end.join(lines) + (end if is_whole else b"")
    assume(not re.match(rb"[\r\n][^\r\n]", content))
    splits = cut_lines("file:///m", content)
    read = [lines_of(content, split) for split in splits]
    assert read == [[line] for line in lines if line.strip()]


class Content:
    """A file in memory."""

    def __init__(self, content):
        self.content = content
        self.n_bytes = len(content)

    def read_into(self, start, view):
        view[:] = self.content[start : start + len(view)]


def lines_of(content, split):
    """What a worker gives of a split to a task."""
    return b"".join(split_lines(Content(content), split)).split(b"\n")[:-1]


def test_an_empty_first_line_is_an_error():
    for content in (b"\nx\n", b"\rx"):
        with pytest.raises(ConfigError, match="file:///m: the first line is empty: remove it"):
            cut_lines("file:///m", content)
    assert len(cut_lines("file:///m", b"\r\nx\n")) == 1


def test_too_many_splits_name_a_size_that_does():
    files = [SizedFile(f"hdfs:///f{i}", 3 * 2**40 + i) for i in range(7)]
    with pytest.raises(ConfigError, match=rf"at most {MAX_TASKS} are taken: give split_bytes: \d+") as caught:
        cut(files, 64 * MIB)
    split_bytes = int(caught.value.cure.split()[2])
    assert split_bytes % MIB == 0
    assert MAX_TASKS * 0.9 < len(cut(files, split_bytes)) <= MAX_TASKS


def test_so_many_files_that_no_size_does():
    with pytest.raises(ConfigError, match="these are 100001 files: join them"):
        cut([SizedFile(f"hdfs:///f{i}", 1) for i in range(MAX_TASKS + 1)], MIB)


def test_too_many_lines():
    with pytest.raises(ConfigError, match=r"file:///m has 100001 lines.*give the file as `input`"):
        cut_lines("file:///m", b"x\n" * (MAX_TASKS + 1))
    assert len(cut_lines("file:///m", b"x\n" * MAX_TASKS)) == MAX_TASKS
