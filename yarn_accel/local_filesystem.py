"""This machine's files, read and written safely, whoever else may change the folders on the way.

Server, mappers and programs use these alone. A path is opened component by component, each relative to the
one before. With `follow_symlinks` off, a symbolic link anywhere in the path is refused, even one that is put
there meanwhile. Only regular files are read: a pipe could block, a device has no end. Only regular files are
replaced: not a folder, a pipe, a socket, a device or a link.

A reader never sees half a file: the content goes to ``.<name>.<unique>.tmp`` beside it, which is then renamed
over it.  Hadoop's input formats skip names that begin with a dot. Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, Union

from yarn_accel.errors import StorageError
from yarn_accel.uris import literal_hint, shown

Buffer = Union[bytes, bytearray, memoryview]

#: Opened to go through it, which a folder allows that may not be listed.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LISTED_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
#: Read at once: the kernel takes no more than 2 GiB.
_MAX_READ_BYTES = 1 << 30
_PIECE_BYTES = 4 << 20
#: The name of a file until it is complete, see `temporary_name`.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}\.tmp", re.DOTALL)
_CHANGED = "its length changed while it was read"


def temporary_name(path: str) -> str:
    """The name of a file until it is complete, in the same folder."""
    folder, name = posixpath.split(path)
    return "{}/.{}.{}.tmp".format(folder.rstrip("/"), name, uuid.uuid4().hex)


def unfinished_name(name: str) -> str | None:
    """The name that a writer's temporary file was to get; None: it is no such file."""
    match = _TEMPORARY.fullmatch(name)
    return match["name"] if match is not None else None


def pieces(path: Path) -> Iterator[bytes]:
    """The content of a file of ours, piece by piece."""
    with LocalFiles(follow_symlinks=True).opened(str(path.absolute())) as file:
        for start in range(0, file.n_bytes, _PIECE_BYTES):
            piece = bytearray(min(_PIECE_BYTES, file.n_bytes - start))
            file.read_into(start, memoryview(piece))
            yield bytes(piece)


class WritableFiles(Protocol):
    """A storage that `write_whole` can write to; paths are absolute."""

    def write(self, path: str, parts: Iterable[Buffer]) -> int:
        """Write a new file, and the folders above it; returns its bytes."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, also one that another regular file has."""
        ...

    def delete(self, path: str) -> bool:
        """Delete a file."""
        ...


def write_atomic(path: Path, text: str, mode: int = 0o644, *, is_for_all: bool = False) -> None:
    """Write one of our own files so that readers see the old or the new text and nothing between.

    The folders above it are made.  Nothing is left beside it when writing fails.  It is not forced to the
    disk: these files describe what runs now, and a machine that lost power runs nothing.

    Args:
        path: the file.
        text: all of it, written as UTF-8.
        mode: its permissions, less the umask.
        is_for_all: its permissions are `mode`, whatever the umask, as others must read it.

    Raises:
        OSError: it cannot be written, or what has the name is no regular file.
    """
    files = LocalFiles(follow_symlinks=True, mode=mode, ignores_umask=is_for_all)
    write_whole(files, str(path.absolute()), [text.encode("utf-8")])


def write_whole(files: WritableFiles, path: str, parts: Iterable[Buffer]) -> int:
    """Write a file so that nobody sees a part of it; an existing one is replaced.  Returns its bytes."""
    temporary = temporary_name(path)
    try:
        n_bytes = files.write(temporary, parts)
        files.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):
            files.delete(temporary)
        raise
    return n_bytes


def file_error(uri: str, error: OSError) -> StorageError:
    """The error of this machine's file system as one of ours, with the cure."""
    uri = shown(uri)
    if isinstance(error, FileNotFoundError):
        return StorageError(
            f"{uri}: there is no such file or folder", cure=literal_hint(uri) or "check the path"
        )
    if isinstance(error, IsADirectoryError):
        return StorageError(f"{uri}: is a folder, not a file")
    if isinstance(error, PermissionError) and error.errno in (errno.ELOOP, errno.EPERM):
        return StorageError(f"{uri}: {error.strerror}", cure="name the file itself")
    if isinstance(error, PermissionError):
        return StorageError(f"{uri}: permission denied", cure="check owner and mode, and HADOOP_USER_NAME")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"{uri}: {error.strerror}", cure="free disk space, then try again", transient=True
        )
    text = error.strerror or str(error)
    return StorageError(f"{uri}: {text}", transient=text == _CHANGED)


class LocalFile:
    """An open file.

    Attributes:
        n_bytes: its length.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.n_bytes = os.fstat(fd).st_size
        # Files of the kernel, as in /proc, tell no length: they would seem to be empty.
        if not self.n_bytes and os.pread(fd, 1, 0) and not os.fstat(fd).st_size:
            raise PermissionError(errno.EPERM, "tells no length, so it cannot be read here")

    def read_into(self, start: int, view: memoryview) -> None:
        """Fill a buffer with the bytes from `start` on."""
        at = 0
        while at < len(view) and (n := os.preadv(self._fd, [view[at : at + _MAX_READ_BYTES]], start + at)):
            at += n
        if at != len(view):
            raise OSError(_CHANGED)

    def read(self) -> bytes:
        """All of it."""
        parts, left = [], self.n_bytes
        while left and (part := os.pread(self._fd, min(left, _MAX_READ_BYTES), self.n_bytes - left)):
            parts.append(part)
            left -= len(part)
        if left:
            raise OSError(_CHANGED)
        return parts[0] if len(parts) == 1 else b"".join(parts)


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
        mode: permissions of new files, less the umask.
        ignores_umask: they get exactly `mode`.
    """

    def __init__(self, follow_symlinks: bool, mode: int = 0o666, *, ignores_umask: bool = False) -> None:
        self._mode, self._ignores_umask = mode, ignores_umask
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
        """The names in a folder."""
        with self._folder(path) as folder:
            fd = os.open(".", _LISTED_FOLDER, dir_fd=folder)
        try:
            with os.scandir(fd) as entries:
                return [entry.name for entry in entries]
        finally:
            os.close(fd)

    def delete(self, path: str) -> bool:
        """Delete a file, or a folder with all that is in it."""
        with self._parent(path) as (folder, name):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(name, dir_fd=folder)
        return True

    def mkdirs(self, path: str, mode: int | None = None, *, makes_folders: bool = True) -> None:
        """Make a folder, with `mode` if given, and the folders above it unless they must be there."""
        with self._parent(path, make=makes_folders) as (folder, name), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o777 if mode is None else mode, dir_fd=folder)
        with self._folder(path):
            pass

    def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a file, as long as it was when it was opened.

        Raises:
            OSError: EFBIG: it has more than `max_bytes`.
        """
        with self.opened(path) as file:
            if file.n_bytes > max_bytes:
                text = f"{file.n_bytes} bytes, at most {max_bytes} are read here"
                raise OSError(errno.EFBIG, text)
            return file.read()

    def write(
        self, path: str, parts: Iterable[Buffer], mode: int | None = None, *, makes_folders: bool = True
    ) -> int:
        """Write a new file; returns its bytes.

        Args:
            mode: its permissions, if they are not those of all new files.
            makes_folders: whether the folders above it are made.
        """
        n_bytes = 0
        with self._parent(path, make=makes_folders) as (folder, name):
            fd = os.open(name, _CREATE, self._mode if mode is None else mode, dir_fd=folder)
            try:
                if self._ignores_umask:
                    os.fchmod(fd, self._mode)
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
            return LocalAppender(os.open(name, _CREATE | os.O_APPEND, self._mode, dir_fd=folder))

    def seal(self, path: str) -> bool:
        """Nobody else appends to a file of this machine."""
        return self.exists(path)

    def rename(self, source: str, target: str, *, overwrite: bool = True) -> None:
        """Give a file another name, also one that another regular file has.

        Args:
            overwrite: whether the name may be taken. A folder never replaces another one that is not empty.
        """
        with self._parent(source) as (from_folder, from_name), self._parent(target) as (to_folder, to_name):
            mode = os.stat(from_name, dir_fd=from_folder, follow_symlinks=False).st_mode
            if overwrite or stat.S_ISDIR(mode):
                if not stat.S_ISDIR(mode):
                    _check_replaceable(to_name, to_folder)
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
            _check_regular(os.fstat(fd).st_mode, path)
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


def _check_replaceable(name: str, folder: int) -> None:
    """Refuse to write over a folder, a pipe, a socket, a device or a link."""
    with contextlib.suppress(FileNotFoundError):
        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode, name)


def _check_regular(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", name)
    if not stat.S_ISREG(mode):
        raise PermissionError(errno.EPERM, "not a regular file", name)


def _is_link(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False
