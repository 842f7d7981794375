"""The files that a task leaves, where the storage closes a file that was begun long ago."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, TaskFolder
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, TaskId
from yarn_accel.errors import StorageError
from yarn_accel.local_filesystem import Buffer
from yarn_accel.storage import Store
from yarn_accel.worker.file_cache import FileCache
from yarn_accel.worker.task_folder import EarlierTasks, TaskFolderOutput


class _ClosingStore(Store):
    """Makes a begun file at once, and refuses what is written to it after its first piece, or does not."""

    def __init__(self, is_closed: bool) -> None:
        super().__init__()
        self.is_closed = is_closed
        self.written: list[str] = []

    def begin_new(self, uri: str) -> Callable[[Iterable[Buffer]], int]:
        self.write_new(uri, [])

        def finish(parts: Iterable[Buffer]) -> int:
            if self.is_closed:
                next(iter(parts))
                raise StorageError(f"{uri}: its lease is over")
            self.delete(uri)
            return self.write_new(uri, parts)

        return finish

    def write_new(self, uri: str, parts: Iterable[Buffer]) -> int:
        self.written.append(uri.rpartition("/")[2])
        return super().write_new(uri, parts)


def output(store: Store, folder: Path) -> TaskFolderOutput:
    """Of an attempt that has left two files in its working folder."""
    target = TaskFolder(f"file://{folder}/out", "t1", ("a", "b"))
    attempt, task = AttemptId("attempt_1_0001_m_000001_0"), TaskId("d/t1")
    order = AttemptOrder(attempt, AppId("d"), task, Form.CPU, ("x",), FormDemand(1), output_folder=target)
    source = folder / "working"
    source.mkdir()
    (folder / "out" / "_temporary").mkdir(parents=True)
    for name in target.files:
        (source / name).write_text(f"text of {name}")
    found = TaskFolderOutput(
        store, FileCache(store, folder / "files", 1000), EarlierTasks(store), order, target, source
    )
    found.prepare()
    return found


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_file_that_was_begun_is_written_anew_where_the_storage_has_closed_it(
    tmp_path: Path, is_closed: bool
) -> None:
    store = _ClosingStore(is_closed)
    made = output(store, tmp_path)
    made.begin()
    assert store.written == ["a"]
    assert made.commit(lambda: None)
    made.clean()
    assert {each.name: each.read_text() for each in (tmp_path / "out" / "t1").iterdir()} == {
        "a": "text of a",
        "b": "text of b",
    }


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_attempt_that_hung_until_the_output_was_complete_leaves_nothing_there(
    tmp_path: Path, is_begun: bool
) -> None:
    store = _ClosingStore(False)
    made = output(store, tmp_path)
    if is_begun:
        made.begin()
    store.delete(f"file://{tmp_path}/out/_temporary")
    made.begin()
    with pytest.raises(StorageError, match="no such file or folder"):
        made.commit(lambda: None)
    made.clean()
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_begun_is_removed_with_an_attempt_that_is_not_done(tmp_path: Path) -> None:
    made = output(_ClosingStore(False), tmp_path)
    made.begin()
    made.clean()
    assert list((tmp_path / "out" / "_temporary").iterdir()) == []
