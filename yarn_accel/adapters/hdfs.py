"""Storage by URI: ``hdfs://`` through the native client, ``file://`` on this machine.

What the native client needs to be fast (each measured): ``write`` takes `bytes`, any other buffer is
converted byte by byte; reading goes through ``read_range_stream``, since ``read`` copies once more and
``readinto`` does not exist.

A file is never seen half written: its content goes to ``_tmp/.<name>.<unique>.tmp`` beside it, which is then
renamed over it.  A job deletes the ``_tmp`` folder when it is done, and with it what killed attempts left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import shutil
import threading
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from yarn_accel.errors import StartupError, StorageError

if TYPE_CHECKING:
    import hdfs_native

__all__ = ["TMP_FOLDER", "Store", "split_uri"]

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

#: The folder beside an output in which files are written before they are renamed.
TMP_FOLDER = "_tmp"
#: With its defaults the native client needs three minutes to say that no NameNode listens; so it takes five
#: seconds, and trying again is the caller's decision.
_RETRIES = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
}
_WRITE_BYTES = 4 * 1024 * 1024
#: Words in the text of a native error that say that trying again may help; the client has one error class for
#: all.
_TRANSIENT_WORDS = (
    "safe mode",
    "standby",
    "connection",
    "timed out",
    "timeout",
    "could only be written to",
    "no alive",
    "datanode",
    "no replicas",
    "unexpectedly closed",
)


def split_uri(uri: str) -> tuple[str, str, str]:
    """A URI as (scheme, authority, absolute path).

    Raises:
        StorageError: another scheme than hdfs or file, a path that is not absolute or has ``..`` in it.
    """
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme not in ("hdfs", "file"):
        raise StorageError(f"{uri}: only hdfs:// and file:// can be read and written")
    if parts.query or parts.fragment or "\0" in uri or "\\" in uri:
        raise StorageError(f"{uri}: a query, fragment or backslash is not part of a file name")
    path = urllib.parse.unquote(parts.path) if parts.scheme == "file" else parts.path
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise StorageError(f"{uri}: the path must be absolute and without '..'")
    if parts.scheme == "file" and parts.netloc:
        raise StorageError(f"{uri}: a file on this machine is written file:///path")
    return parts.scheme, parts.netloc, posixpath.normpath(path)


class _Files(Protocol):
    """What `Store` asks of either kind of storage; paths are absolute; errors are the storage's own."""

    def size(self, path: str) -> int: ...
    def stream(self, path: str, n_bytes: int) -> Iterator[Buffer]: ...
    def exists(self, path: str) -> bool: ...
    def names(self, path: str) -> list[str]: ...
    def delete(self, path: str) -> bool: ...
    def mkdirs(self, path: str) -> None: ...
    def write(self, path: str, parts: Iterable[Buffer]) -> int: ...
    def rename(self, source: str, target: str) -> None: ...


class Store:
    """Reads and writes whole files by URI; safe to use from several threads.

    Args:
        conf_dir: folder with core-site.xml and hdfs-site.xml; default ``HADOOP_CONF_DIR``.

    Every method raises `StorageError` that names the URI, says what to do, and whether trying again may help.
    """

    def __init__(self, conf_dir: str | os.PathLike[str] | None = None) -> None:
        self._conf_dir = os.fspath(conf_dir) if conf_dir else os.environ.get("HADOOP_CONF_DIR", "")
        self._lock = threading.Lock()
        self._clients: dict[str, _Files] = {"": _LocalFiles()}

    def size(self, uri: str) -> int:
        """Length of a file in bytes."""
        with self._open(uri) as (files, path):
            return files.size(path)

    def read_bytes(self, uri: str, max_bytes: int) -> bytes:
        """The content of a file of at most `max_bytes`."""
        with self._open(uri) as (files, path):
            n_bytes = files.size(path)
            if n_bytes > max_bytes:
                raise StorageError(f"{uri}: {n_bytes} bytes, at most {max_bytes} are read here")
            return b"".join(files.stream(path, n_bytes)) if n_bytes else b""

    def read_into(self, uri: str, target: memoryview) -> None:
        """Fill a writable flat buffer with a file that has exactly its length."""
        view = target.cast("B") if target.nbytes else target
        with self._open(uri) as (files, path):
            n_bytes = files.size(path)
            if n_bytes != view.nbytes:
                raise StorageError(f"{uri}: {n_bytes} bytes, {view.nbytes} expected")
            at = 0
            for part in files.stream(path, n_bytes) if n_bytes else ():
                end = at + len(part)
                if end > n_bytes:
                    break
                view[at:end] = part
                at = end
            if at != n_bytes:
                raise StorageError(f"{uri}: its length changed while it was read", transient=True)

    def write_atomic(self, uri: str, parts: Iterable[Buffer]) -> int:
        """Write a file so that nobody sees a part of it; an existing one is replaced.  Returns its bytes."""
        with self._open(uri) as (files, path):
            folder, name = posixpath.split(path)
            temporary = f"{folder.rstrip('/')}/{TMP_FOLDER}/.{name}.{uuid.uuid4().hex}.tmp"
            files.mkdirs(posixpath.dirname(temporary))
            try:
                n_bytes = files.write(temporary, parts)
                files.rename(temporary, path)
            except BaseException:
                with contextlib.suppress(Exception):
                    files.delete(temporary)
                raise
            return n_bytes

    def exists(self, uri: str) -> bool:
        """Whether there is a file or folder of that name."""
        with self._open(uri) as (files, path):
            return files.exists(path)

    def list(self, uri: str) -> list[str]:
        """The URIs of what is in a folder, sorted."""
        with self._open(uri) as (files, path):
            scheme, authority, _ = split_uri(uri)
            folder = path.rstrip("/")
            return [f"{scheme}://{authority}{folder}/{name}" for name in sorted(files.names(path))]

    def delete(self, uri: str) -> bool:
        """Delete a file, or a folder with all that is in it; whether there was one."""
        with self._open(uri) as (files, path):
            return files.exists(path) and files.delete(path)

    def mkdirs(self, uri: str) -> None:
        """Make a folder and the folders above it; fine when it exists."""
        with self._open(uri) as (files, path):
            files.mkdirs(path)

    @contextlib.contextmanager
    def _open(self, uri: str) -> Iterator[tuple[_Files, str]]:
        scheme, authority, path = split_uri(uri)
        try:
            yield (self._files(f"{scheme}://{authority}") if scheme == "hdfs" else self._clients[""]), path
        except OSError as error:
            raise _storage_error(uri, error) from error
        except RuntimeError as error:
            raise _storage_error(uri, error) from error
        except ValueError as error:
            raise StorageError(f"{uri}: {error}", cure="set HADOOP_CONF_DIR") from error

    def _files(self, url: str) -> _Files:
        with self._lock:
            if url not in self._clients:
                self._clients[url] = _HdfsFiles(url, self._conf_dir)
            return self._clients[url]


class _HdfsFiles:
    """One name service, through the native client; safe to share between threads."""

    def __init__(self, url: str, conf_dir: str) -> None:
        try:
            import hdfs_native
        except ImportError as error:
            raise StartupError(
                "hdfs:// needs the package hdfs-native", cure="pip install 'cluster-accel[yarn]'"
            ) from error
        options: dict[str, Any] = {"config": _RETRIES}
        if conf_dir:
            options["config_dir"] = conf_dir
        self._client: hdfs_native.Client = hdfs_native.Client(None if url == "hdfs://" else url, **options)

    def size(self, path: str) -> int:
        status = self._client.get_file_info(path)
        if status.isdir:
            raise IsADirectoryError(path)
        return int(status.length)

    def stream(self, path: str, n_bytes: int) -> Iterator[Buffer]:
        return self._client.read(path).read_range_stream(0, n_bytes)

    def exists(self, path: str) -> bool:
        try:
            self._client.get_file_info(path)
        except FileNotFoundError:
            return False
        return True

    def names(self, path: str) -> list[str]:
        return [posixpath.basename(status.path) for status in self._client.list_status(path)]

    def delete(self, path: str) -> bool:
        return self._client.delete(path, recursive=True)

    def mkdirs(self, path: str) -> None:
        self._client.mkdirs(path, create_parent=True)

    def write(self, path: str, parts: Iterable[Buffer]) -> int:
        n_bytes = 0
        with self._client.create(path) as writer:
            for part in parts:
                view = memoryview(part).cast("B")
                for start in range(0, len(view), _WRITE_BYTES):
                    writer.write(bytes(view[start : start + _WRITE_BYTES]))
                n_bytes += len(view)
        return n_bytes

    def rename(self, source: str, target: str) -> None:
        self._client.rename(source, target, overwrite=True)


class _LocalFiles:
    """This machine's files."""

    def size(self, path: str) -> int:
        if Path(path).is_dir():
            raise IsADirectoryError(path)
        return Path(path).stat().st_size

    def stream(self, path: str, n_bytes: int) -> Iterator[Buffer]:
        with Path(path).open("rb") as file:
            while n_bytes > 0 and (part := file.read(min(n_bytes, _WRITE_BYTES))):
                n_bytes -= len(part)
                yield part

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, path: str) -> list[str]:
        return [entry.name for entry in Path(path).iterdir()]

    def delete(self, path: str) -> bool:
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path)
        else:
            Path(path).unlink()
        return True

    def mkdirs(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, parts: Iterable[Buffer]) -> int:
        with Path(path).open("wb") as file:
            return sum(file.write(part) for part in parts)

    def rename(self, source: str, target: str) -> None:
        Path(source).replace(target)


def _storage_error(uri: str, error: Exception) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return StorageError(f"{uri}: there is no such file or folder", cure="check the path")
    if isinstance(error, PermissionError):
        return StorageError(f"{uri}: permission denied", cure="check owner and mode, and HADOOP_USER_NAME")
    if isinstance(error, IsADirectoryError):
        return StorageError(f"{uri}: is a folder, not a file")
    text = " ".join(str(error).split())[:500]
    transient = any(word in text.lower() for word in _TRANSIENT_WORDS)
    cure = "check that the NameNode and DataNodes are up" if transient and uri.startswith("hdfs") else ""
    return StorageError(f"{uri}: {text}", cure=cure, transient=transient)
