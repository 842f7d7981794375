"""A journal in files: what was appended is read by the next attempt, and nobody before it writes on."""

import pytest

from yarn_accel.adapters.hdfs import Store
from yarn_accel.adapters.journal_file import StoredJournal
from yarn_accel.errors import StorageError


def journal(folder, attempt=1):
    return StoredJournal(Store(), f"file://{folder}/journal", attempt)


def test_a_new_journal_is_empty_and_is_begun_by_a_replacement(tmp_path):
    first = journal(tmp_path)
    assert first.read() == b""
    with pytest.raises(StorageError, match="replace its lines first"):
        first.append(b"early\n")
    first.replace(b"")
    first.append(b"one\n")
    first.append(b"two\n")
    assert journal(tmp_path, 2).read() == b"one\ntwo\n"


def test_a_replacement_leaves_one_file_with_its_lines_and_what_follows(tmp_path):
    first = journal(tmp_path)
    first.replace(b"a\n")
    first.append(b"b\n")
    first.replace(b"ab\n")
    first.append(b"c\n")
    assert journal(tmp_path, 2).read() == b"ab\nc\n"
    assert [each.name for each in (tmp_path / "journal").iterdir()] == ["journal-00000001-00000002"]


def test_the_newest_file_counts_where_a_crash_left_two(tmp_path):
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "journal-00000001-00000009").write_bytes(b"old\n")
    (folder / "journal-00000002-00000001").write_bytes(b"new\n")
    (folder / ".journal-00000002-00000002.0123456789abcdef0123456789abcdef.tmp").write_bytes(b"torn")
    third = journal(tmp_path, 3)
    assert third.read() == b"new\n"
    third.replace(b"new\n")
    assert sorted(each.name for each in folder.iterdir() if each.name[0] != ".") == [
        "journal-00000003-00000001"
    ]


def test_an_attempt_that_was_replaced_can_neither_read_nor_replace(tmp_path):
    first, second = journal(tmp_path), journal(tmp_path, 2)
    first.replace(b"a\n")
    assert second.read() == b"a\n"
    second.replace(b"a\n")
    with pytest.raises(StorageError, match="later attempt"):
        first.replace(b"mine\n")
    with pytest.raises(StorageError, match="attempt 2 writes"):
        first.read()
    assert journal(tmp_path, 3).read() == b"a\n"


def test_a_file_that_is_not_given_free_is_one_clear_error(tmp_path, monkeypatch):
    journal(tmp_path).replace(b"a\n")
    monkeypatch.setattr(Store, "seal", lambda *_: False)
    pauses = []
    second = StoredJournal(Store(), f"file://{tmp_path}/journal", 2, pauses.append)
    with pytest.raises(StorageError, match="former writer still has it after 10 s"):
        second.read(limit_s=10.0)
    assert sum(pauses) == pytest.approx(10.0)
