"""Opens this machine's files safely, whoever else may change the folders on the way.

A path is opened component by component, each relative to the one before. With `follow_symlinks` off, a
symbolic link anywhere in the path is refused, even one that is put there meanwhile. Only regular files are
read: opening a pipe or a device could block or have an effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["LocalAppender", "LocalFile", "LocalFiles", "file_pieces", "write_atomic"]

Buffer = bytes | bytearray | memoryview

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
#: Read at once: the kernel takes no more than 2 GiB.
_MAX_READ_BYTES = 1 << 30
_PIECE_BYTES = 4 << 20


class LocalFile:
    """An open file.

    Attributes:
        n_bytes: its length.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.n_bytes = os.fstat(fd).st_size

    def read_into(self, start: int, view: memoryview) -> None:
        """Fill a buffer with the bytes from `start` on."""
        at = 0
        while at < len(view) and (n := os.preadv(self._fd, [view[at : at + _MAX_READ_BYTES]], start + at)):
            at += n
        if at != len(view):
            raise OSError("its length changed while it was read")


class LocalAppender:
    """A file that grows at its end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def append(self, content: bytes) -> None:
        """Add at the end, and force it to the disk."""
        view = memoryview(content)
        while view.nbytes:
            view = view[os.write(self._fd, view) :]
        os.fsync(self._fd)

    def close(self) -> None:
        """Leave the file as it is."""
        os.close(self._fd)


class LocalFiles:
    """Reads and writes files by absolute path; errors are `OSError`.

    Args:
        follow_symlinks: whether a path may lead through symbolic links.
    """

    def __init__(self, follow_symlinks: bool) -> None:
        self._follow_symlinks = follow_symlinks
        self._no_follow = 0 if follow_symlinks else os.O_NOFOLLOW

    def stamp(self, path: str) -> tuple[int, int]:
        """Length in bytes and time of the last change in nanoseconds."""
        with self._opened(path) as fd:
            status = os.fstat(fd)
            return status.st_size, status.st_mtime_ns

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[LocalFile]:
        """A file that is read in parts."""
        with self._opened(path) as fd:
            yield LocalFile(fd)

    def exists(self, path: str) -> bool:
        """Whether there is something of that name."""
        try:
            with self._parent(path) as (folder, name):
                os.stat(name, dir_fd=folder, follow_symlinks=self._follow_symlinks)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, path: str) -> list[str]:
        """What is in a folder."""
        with self._folder(path) as fd, os.scandir(fd) as entries:
            return [entry.name for entry in entries]

    def delete(self, path: str) -> bool:
        """Delete a file, or a folder with all that is in it."""
        with self._parent(path) as (folder, name):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(name, dir_fd=folder)
        return True

    def mkdirs(self, path: str) -> None:
        """Make a folder and the folders above it."""
        with self._folder(path, make=True):
            pass

    def write(self, path: str, parts: Iterable[Buffer]) -> int:
        """Write a new file, and the folders above it; returns its bytes."""
        n_bytes = 0
        with self._parent(path, make=True) as (folder, name):
            fd = os.open(name, _CREATE, 0o666, dir_fd=folder)
            try:
                for part in parts:
                    view = memoryview(part).cast("B")
                    n_bytes += view.nbytes
                    while view.nbytes:
                        view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
        return n_bytes

    def new_appender(self, path: str) -> LocalAppender:
        """A new file, and the folders above it, to be made longer."""
        with self._parent(path, make=True) as (folder, name):
            return LocalAppender(os.open(name, _CREATE | os.O_APPEND, 0o666, dir_fd=folder))

    def seal(self, path: str) -> bool:
        """Nobody else appends to a file of this machine."""
        return self.exists(path)

    def rename(self, source: str, target: str, *, overwrite: bool = True) -> None:
        """Give a file another name, also one that is taken; a link of that name is replaced itself.

        Args:
            overwrite: whether the name may be taken. A folder never replaces another one that is not empty.
        """
        with self._parent(source) as (from_folder, from_name), self._parent(target) as (to_folder, to_name):
            mode = os.stat(from_name, dir_fd=from_folder, follow_symlinks=False).st_mode
            if overwrite or stat.S_ISDIR(mode):
                os.replace(from_name, to_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)
                return
            # Unlike a rename, a link fails where there is a file already.
            os.link(from_name, to_name, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)
            os.unlink(from_name, dir_fd=from_folder)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        with self._parent(path) as (folder, name):
            fd = self._open(name, _READ, folder)
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder", path)
            if not stat.S_ISREG(mode):
                raise PermissionError(errno.EPERM, "not a regular file", path)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _parent(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        above, name = posixpath.split(path)
        with self._folder(above, make) as folder:
            yield folder, name or "."

    @contextlib.contextmanager
    def _folder(self, path: str, make: bool = False) -> Iterator[int]:
        fd = os.open("/", _FOLDER)
        try:
            for name in path.split("/"):
                if not name:
                    continue
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=fd)
                below = self._open(name, _FOLDER, fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def _open(self, name: str, flags: int, folder: int) -> int:
        try:
            return os.open(name, flags | self._no_follow, dir_fd=folder)
        except OSError as error:
            # Linux: a link opened with O_DIRECTORY | O_NOFOLLOW is "not a directory", without it a "loop".
            is_link = error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and _is_link(name, folder))
            if is_link and self._no_follow:
                raise PermissionError(errno.ELOOP, "symbolic links are not followed", name) from None
            raise


def file_pieces(path: Path) -> Iterator[bytes]:
    """The content of one of our own files, piece by piece."""
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def write_atomic(path: Path, text: str, mode: int = 0o644, *, is_for_all: bool = False) -> None:
    """Write one of our own files so that readers see the old or the new text and nothing between.

    Nothing is left beside it when writing fails.  It is not forced to the disk: these files describe what
    runs now, and a machine that lost power runs nothing.

    Args:
        path: the file; the folders above it are made.
        text: all of it, written as UTF-8.
        mode: its permissions, less the umask.
        is_for_all: whatever the umask, as others must read it.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(os.open(temporary, _CREATE, mode), "w", encoding="utf-8") as file:  # noqa: PTH123 -- has a mode
            if is_for_all:
                os.fchmod(file.fileno(), mode)
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _is_link(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False
