"""A journal in files: what was appended is read by the next attempt, and nobody before it writes on."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

from yarn_accel.adapters.journal_file import StoredJournal, begin_journal
from yarn_accel.errors import StorageError
from yarn_accel.storage import Store


def journal(folder, attempt=1):
    return StoredJournal(Store(), f"file://{folder}/journal", attempt)


def test_a_new_journal_is_empty_and_is_begun_by_a_replacement(tmp_path):
    first = journal(tmp_path)
    assert first.read() == b""
    with pytest.raises(StorageError, match="replace its lines first"):
        first.append(b"early\n")
    first.replace(b"begun\n")
    first.append(b"one\n")
    first.append(b"two\n")
    assert journal(tmp_path, 2).read() == b"begun\none\ntwo\n"


def test_a_replacement_leaves_one_file_with_its_lines_and_what_follows(tmp_path):
    first = journal(tmp_path)
    first.replace(b"a\n")
    first.append(b"b\n")
    first.replace(b"ab\n")
    first.append(b"c\n")
    assert [each.name for each in (tmp_path / "journal").iterdir()] == ["journal-00000001-00000002"]
    assert journal(tmp_path, 2).read() == b"ab\nc\n"


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
    with pytest.raises(StorageError, match="attempt 2, a later attempt"):
        first.read()
    assert journal(tmp_path, 3).read() == b"a\n"


def test_a_later_attempt_that_finds_nothing_does_not_begin_anew(tmp_path):
    """Unless none wrote before it, which is seen by the journal that was there before the first."""
    with pytest.raises(StorageError, match="no journal, though attempt 2 is not the first"):
        journal(tmp_path, 2).read()
    with pytest.raises(StorageError, match="no journal, though attempt 3"):
        journal(tmp_path, 3).read()
    begin_journal(Store(), f"file://{tmp_path}/journal/")
    assert journal(tmp_path, 4).read() == b""
    fifth = journal(tmp_path, 5)
    assert fifth.read() == b""
    fifth.replace(b"begun\n")
    assert [each.name for each in (tmp_path / "journal").iterdir()] == ["journal-00000005-00000001"]
    assert journal(tmp_path, 6).read() == b"begun\n"


def test_a_file_that_lost_all_its_lines_is_no_empty_journal(tmp_path):
    journal(tmp_path).replace(b"begun\n")
    (tmp_path / "journal" / "journal-00000001-00000001").write_bytes(b"")
    with pytest.raises(StorageError, match="empty, though attempt 1 wrote it"):
        journal(tmp_path, 2).read()


@pytest.mark.parametrize("is_named", [False, True])
def test_a_replacement_counts_for_nobody_if_a_later_attempt_reads_meanwhile(tmp_path, monkeypatch, is_named):
    """Two masters at once: what the later one has not read must not be acknowledged by the earlier one."""
    first, second, found = journal(tmp_path), journal(tmp_path, 2), []
    first.replace(b"old\n")
    growing = Store.growing

    @contextlib.contextmanager
    def interrupted(store, uri, content):
        if not is_named:
            found.append(second.read())
        with growing(store, uri, content) as appender:
            if is_named:
                found.append(second.read())
            yield appender

    with monkeypatch.context() as patched:
        patched.setattr(Store, "growing", interrupted)
        with pytest.raises(StorageError, match="later attempt"):
            first.replace(b"old\nmore\n")
    assert found == [b"old\nmore\n" if is_named else b"old\n"]
    with pytest.raises(StorageError, match="not open"):
        first.append(b"mine\n")
    second.replace(found[0])
    assert journal(tmp_path, 3).read() == found[0]


def test_a_file_that_is_not_given_free_is_one_clear_error(tmp_path, monkeypatch):
    journal(tmp_path).replace(b"a\n")
    monkeypatch.setattr(Store, "seal", lambda *_: False)
    pauses = []
    second = StoredJournal(Store(), f"file://{tmp_path}/journal", 2, pauses.append)
    with pytest.raises(StorageError, match="former writer still has it after 10 s"):
        second.read(limit_s=10.0)
    assert sum(pauses) == pytest.approx(10.0)


class LateCopy:
    """An HDFS whose files have two copies, of which the NameNode knows the second one only after a while.

    What the native client writes to a new file goes to both. What it appends to a closed one goes to the copy
    that is known, under the generation stamp of the other. When a dead writer's file is recovered, a copy
    that was closed wins, as in HDFS; without one, all copies are equal.
    """

    def __init__(self):
        self.files = {}

    def create(self, path, _):
        self.files[path] = written = SimpleNamespace(open=b"", closed=None)
        return self.writer(written)

    def append(self, path):
        return self.writer(self.files[path])

    def writer(self, file):
        def write(content):
            file.open += content

        def close():
            if file.closed is None:
                file.closed = file.open

        return SimpleNamespace(write=write, hsync=lambda: None, close=close)

    def rename(self, source, target, _):
        self.files[target] = self.files.pop(source)

    def recover_lease(self, path):
        file = self.files[path]
        file.open = file.open if file.closed is None else file.closed
        return True

    def get_file_info(self, path):
        if path in self.files:
            return SimpleNamespace(isdir=False, length=len(self.files[path].open), modification_time=0)
        if not any(each.startswith(f"{path}/") for each in self.files):
            raise FileNotFoundError(path)
        return SimpleNamespace(isdir=True)

    def list_status(self, folder):
        return [SimpleNamespace(path=path) for path in self.files if path.startswith(f"{folder}/")]

    def read(self, path):
        content = self.files[path].open
        return SimpleNamespace(
            size=len(content), read_range_stream=lambda start, n_bytes: [content[start : start + n_bytes]]
        )

    def delete(self, path, recursive):
        return self.files.pop(path, None) is not None


def test_what_was_appended_survives_a_writer_whose_second_copy_was_reported_late(monkeypatch):
    """A loaded cluster lost all that the first master of a task service had accepted: it read 1 record."""
    hdfs = LateCopy()
    native = SimpleNamespace(Client=lambda *_, **__: hdfs, WriteOptions=lambda **_: None)
    monkeypatch.setitem(sys.modules, "hdfs_native", native)
    first, second, third = (StoredJournal(Store(), "hdfs://cluster/journal", n) for n in (1, 2, 3))
    first.replace(b"begun\n")
    first.append(b"accepted\n")
    assert second.read() == b"begun\naccepted\n"
    second.replace(b"begun\naccepted\n")
    second.append(b"done\n")
    assert len(hdfs.files) == 1
    assert third.read() == b"begun\naccepted\ndone\n"
