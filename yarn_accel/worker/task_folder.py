"""The files that a task leaves: into a folder of the attempt, then one rename of that folder to the task's.

``FOLDER/_temporary/ATTEMPT/`` has the files as they are written, and before that the first one, empty. The
master makes ``_temporary`` before the first attempt and deletes it after the last one. No worker makes it, so
one that hung meanwhile leaves nothing in an output that is complete. The rename to ``FOLDER/NAME`` is the
commit. It fails where the name is taken: then another attempt was done first, and this one's folder is
deleted. What a function returned lies beside the files, so that it is not lost with a worker that dies after
its commit.

A task may leave anything under its files' names. Only regular files are read, and links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from yarn_accel.core.tasks.attempt_orders import (
    AttemptOrder,
    TaskFolder,
    attempt_names,
    is_file_name,
    unfinished_uri,
)
from yarn_accel.core.tasks.values import AppId
from yarn_accel.core.tasks.worker_messages import MAX_RESULT
from yarn_accel.errors import AccelError, StorageError
from yarn_accel.storage import Store
from yarn_accel.worker.file_cache import FileCache
from yarn_accel.worker.function_call import checked_result

_PIECE_BYTES = 4 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
#: What a function returned; Hadoop's input formats skip names that begin so, and no task's file does.
_RESULT = "_result.json"
_NO_RESULT = "null"
_MAX_FOLDERS = 64


class EarlierTasks:
    """The tasks of an application that were done before it began: safe between threads.

    An output folder is looked at once for each application. What comes into it later is of attempts of the
    same application, and no task has had an attempt before its first one. So only others ask storage again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._names: OrderedDict[tuple[AppId, str], frozenset[str]] = OrderedDict()

    def has(self, app: AppId, folder: str, name: str) -> bool:
        """Whether a folder had this task's when it was first looked at for the application."""
        with self._lock:
            names = self._names.get((app, folder))
            if names is None:
                there = self._store.list(folder) if self._store.exists(folder) else []
                names = self._names[app, folder] = frozenset(map(posixpath.basename, there))
            if len(self._names) > _MAX_FOLDERS:
                self._names.popitem(last=False)
        return name in names


class TaskFolderOutput:
    """Writes and commits the files of one attempt.

    Args:
        source: its working folder.

    Raises:
        StorageError: from every method; names the place.
    """

    def __init__(
        self,
        store: Store,
        files: FileCache,
        earlier: EarlierTasks,
        order: AttemptOrder,
        target: TaskFolder,
        source: Path,
    ) -> None:
        self._store = store
        self._earlier = earlier
        self._order, self._folder = order, target
        self._files = files
        self._names = target.files
        self._has_result = order.function is not None
        self._source = source
        self._target = f"{target.folder.rstrip('/')}/{target.name}"
        self._own = f"{unfinished_uri(target.folder)}/{order.attempt}"
        self._is_begun = self._is_done = False
        #: Writes the first file, where that is begun.
        self._first: Callable[[Iterator[bytes]], int] | None = None
        self._source_fd = -1
        self._result = ""

    def is_done_earlier(self) -> bool:
        """Whether some attempt of this task was done before this one began."""
        order, folder = self._order, self._folder
        if attempt_names(order.attempt).number == 0:
            return self._earlier.has(order.app, folder.folder, folder.name)
        return self.is_committed()

    def is_committed(self) -> bool:
        """Whether some attempt of this task is done."""
        return self._store.exists(self._target)

    def kept_result(self) -> str:
        """What the function of the attempt that was done had returned, as JSON; empty: the task has none."""
        if not self._has_result:
            return ""
        uri = f"{self._target}/{_RESULT}"
        if not self._store.exists(uri):
            return _NO_RESULT
        return checked_result(self._store.read_bytes(uri, MAX_RESULT).decode("ascii", "replace"))

    def prepare(self) -> None:
        """Take hold of the working folder, which is there and still ours."""
        self._source_fd = os.open(self._source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def begin(self) -> None:
        """Make the first file in the storage while the task runs; fine where that fails.

        That takes the NameNode as long as half of a short task.
        """
        if self._names:
            self._is_begun = True
            with contextlib.suppress(StorageError):
                self._store.mkdir(self._own)
                self._first = self._store.begin_new(f"{self._own}/{self._names[0]}")

    def keep_result(self, result: str) -> None:
        """What its function returned, as JSON, is committed with its files; empty: there was no function."""
        self._result = result

    def commit(self, check: Callable[[], None]) -> bool:
        """Make its files the task's; False where another attempt was first.

        Args:
            check: called before each step; raises where none must be done any more.

        Raises:
            AccelError: a file is missing, or is none.
        """
        # Nothing is written before all are known to be there.
        for name in self._names:
            with self._opened(name):
                check()
        self._is_begun = True
        if self._first is None:
            self._store.mkdir(self._own)
        for name in self._names:
            with self._opened(name) as fd:
                self._write(f"{self._own}/{name}", fd, check)
        if self._result not in ("", _NO_RESULT):
            self._store.write_new(f"{self._own}/{_RESULT}", [self._result.encode("ascii")])
        check()
        try:
            self._store.rename(self._own, self._target, overwrite=False)
        except StorageError:
            if self.is_committed():
                return False
            raise
        self._is_begun, self._is_done = False, True
        for name in self._names:
            self._files.announce(f"{self._target}/{name}")
        return True

    def _write(self, uri: str, fd: int, check: Callable[[], None]) -> None:
        write, self._first = self._first, None
        if write is not None:
            try:
                write(_pieces(fd, check))
                return
            except StorageError:  # of a task of many minutes: the NameNode may have closed the file
                self._store.delete(uri)
                os.lseek(fd, 0, os.SEEK_SET)
        self._store.write_new(uri, _pieces(fd, check))

    def keep_copies(self) -> None:
        """Have the files that it has committed in the cache, for tasks that take them here."""
        for name in self._names if self._is_done else ():
            self._files.add(f"{self._target}/{name}", self._source / name)

    def clean(self) -> None:
        """Delete what is left of this attempt; fine where that is nothing, or fails."""
        if self._source_fd >= 0:
            os.close(self._source_fd)
            self._source_fd = -1
        if self._is_begun:
            with contextlib.suppress(StorageError):
                self._store.delete(self._own)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        if not is_file_name(name):
            raise AccelError(f"{name!r} is no plain name of a file")
        try:
            fd = os.open(name, _READ, dir_fd=self._source_fd)
        except FileNotFoundError:
            raise AccelError(f"the task has left no file {name}") from None
        except OSError as error:
            raise AccelError(f"{name}, which the task has left, cannot be read: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise AccelError(f"{name}, which the task has left, is no regular file")
            yield fd
        finally:
            os.close(fd)


def _pieces(fd: int, check: Callable[[], None]) -> Iterator[bytes]:
    while piece := os.read(fd, _PIECE_BYTES):
        check()
        yield piece
