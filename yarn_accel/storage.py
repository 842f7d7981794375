"""Files by URI: ``hdfs://`` through the native client, ``file://`` on this machine.

>>> from yarn_accel.storage import Store
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     store = Store()
...     store.write_atomic(f"file://{folder}/a", [b"content"])
...     store.read_bytes(f"file://{folder}/a", max_bytes=100)
7
b'content'

A reader never sees half a file, see `local_filesystem`.  A killed writer leaves its temporary file, and
`Store.delete_unfinished` deletes it.

A process has one identity for a secure HDFS: its Kerberos ticket, or the delegation token for that name
service in ``HADOOP_TOKEN_FILE_LOCATION``.  A client of the native library has neither a token nor a user of
its own.  A store whose name services have other names (`HdfsServices`) finds another token there, so one
process can use each job's token, see `pipeline.user_storage`.

The native client waits for a NameNode's answer, and for a DataNode's data, for as long as the connection is
there, which a server that hangs keeps open.  So its calls run in threads of their own (`_LimitedCalls`), and
who waits for one gets an error after a stated time.  The native client reads another replica only when its
connection to a DataNode fails, which that of a hanging one does not.

Three habits make the native client fast (each measured).  ``write`` gets `bytes`, since any other buffer is
converted byte by byte.  Reading goes through ``read_range_stream``, since ``read`` copies once more and
``readinto`` does not exist.  Two halves of a large file are read at once, which is faster than the whole.

A closed file of HDFS is never made longer, see `Store.growing`.  The native client's ``append`` writes on
without a new generation stamp.  A copy of the block that misses these bytes, because its DataNode was away,
then looks as new as the others.  Being finalized, it wins when the block is recovered after the death of the
writer, and all that was appended is lost, though ``hsync`` acknowledged it.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import io
import os
import posixpath
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeAlias, TypeVar, cast

from yarn_accel.errors import UNKNOWN_STORAGE, StartupError, StorageError
from yarn_accel.extras import install_command
from yarn_accel.local_filesystem import (
    Buffer,
    LocalAppender,
    LocalFile,
    LocalFiles,
    file_error,
    temporary_name,
    unfinished_name,
    write_whole,
)
from yarn_accel.uris import NAMENODE_PORT, authority_of, shown, split_authority, split_uri

if TYPE_CHECKING:
    import hdfs_native

_T = TypeVar("_T")
#: A file that is read from any place.
OpenFile: TypeAlias = "LocalFile | _HdfsFile"
#: A file that grows at its end.
Appender: TypeAlias = "LocalAppender | _HdfsAppender"
#: Either kind of storage: paths are absolute, errors are the storage's own.
_Files: TypeAlias = "LocalFiles | _HdfsFiles"

#: With its defaults the native client needs three minutes to say that no NameNode listens; so it takes five
#: seconds, and trying again is the caller's decision.
_RETRIES = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
}
#: How long the NameNode may take for one answer.
_ANSWER_S = 60.0
#: The same for a part of a file that is written, or its end: a chain of DataNodes may be made anew meanwhile.
_WRITE_S = 180.0
#: How long a DataNode may be silent while a file is read; Java's dfs.client.socket-timeout is as long.
_DATA_S = 60.0
#: So long others fail at once after a call without an answer.
_SILENT_S = 2.0
#: Calls that are overdue at once, reads from DataNodes and all others apart; while there are so many, no
#: other one begins.
_MAX_OVERDUE = 64
#: The limit of `Store.read_bytes` unless it is given another one.
DEFAULT_MAX_BYTES = 256 * 1024 * 1024
_WRITE_BYTES = 4 * 1024 * 1024
#: The NameNode may name a DataNode that just died, and the native client does not ask for another one.
_WRITE_TRIES = 4
_STREAM_BYTES = 4 * 1024 * 1024
#: From this size on a file is read in two halves at once.
_HALVES_BYTES = 4 * 1024 * 1024
#: Name services in use at once; a URI may name any.
_MAX_CLIENTS = 16
_UNKNOWN_SERVICE = "No NameNode hosts found"
_PANIC = "PanicException"
_MAX_TEXT = 500
#: Codes of a `StorageError`: HDFS knows the token no more, its life is over, or no identity is accepted.
TOKEN_CANCELLED, TOKEN_EXPIRED, NO_IDENTITY = "token-cancelled", "token-expired", "no-identity"
#: Words in the text of a native error that say that trying again may help; the client has one error class for
#: all.
_TRANSIENT_WORDS = (
    "safe mode",
    "standby",
    "connection",
    "no route to host",
    "unreachable",
    "host is down",
    "broken pipe",
    "disconnected",
    "timed out",
    "no data received",
    "timeout",
    "could only be written to",
    "no alive",
    "datanode",
    "no replicas",
    "unexpectedly closed",
    "block writer",
    "nodes failed",
    "failed to complete file",
    "changed while it was read",
)


@dataclass(frozen=True, slots=True)
class HdfsServices:
    """The only HDFS services that a store uses, and the names that the native client has for them.

    Attributes:
        urls: what the native client connects to, by the authority in a URI, see `uris.authority_of`; that of
            ``hdfs:///`` is empty.  It may change while stores use it.
        options: properties of Hadoop that say where these are.
        allows_files: whether the store reads and writes ``file://``, too.
        refusals: why others cannot be used now, by their authorities; it may change, too.
    """

    urls: Mapping[str, str]
    options: Mapping[str, str]
    allows_files: bool = False
    refusals: Mapping[str, StorageError] = field(default_factory=dict)

    def url_of(self, uri: str) -> str:
        """What the native client connects to for a URI.

        Raises:
            StorageError: ``forbidden-uri``: it leads anywhere else; or that service cannot be used now.
        """
        authority = authority_of(split_uri(uri).authority)
        url = self.urls.get(authority)
        if url is not None:
            return url
        why = self.refusals.get(authority)
        if why is None:
            raise _forbidden(uri, f"only {_listed(self.urls)} can be used here")
        raise StorageError(
            f"{shown(uri)}: {why.message}", cure=why.cure, transient=why.transient, code=why.code
        )


@dataclass(frozen=True, slots=True)
class Stamp:
    """Length of a file, and the time of its last change (each storage's own unit)."""

    n_bytes: int
    modified: int


class Store:
    """Reads and writes whole files by URI; safe to use from several threads.

    Args:
        conf_dir: folder with core-site.xml and hdfs-site.xml; default ``HADOOP_CONF_DIR``.
        default_fs: what ``hdfs:///`` means; default: what the settings in `conf_dir` say.
        follow_symlinks: whether ``file://`` paths may lead through symbolic links; not where others choose
            the path.
        services: the only HDFS services; default: any that a URI names.

    Every method raises `StorageError` that names the URI, says what to do, and whether trying again may help.
    """

    def __init__(
        self,
        conf_dir: str | os.PathLike[str] | None = None,
        *,
        default_fs: str = "",
        follow_symlinks: bool = True,
        services: HdfsServices | None = None,
    ) -> None:
        self._default_fs = default_fs
        self._services = services
        self._is_closed = False
        self._conf_dir = os.fspath(conf_dir) if conf_dir else os.environ.get("HADOOP_CONF_DIR", "")
        self._lock = threading.Lock()
        self._local = LocalFiles(follow_symlinks)
        self._clients: collections.OrderedDict[str, _HdfsFiles] = collections.OrderedDict()

    def close(self) -> None:
        """Give up all connections to HDFS, and open none any more; a call that is under way may still end."""
        with self._lock:
            self._is_closed = True
            clients = list(self._clients.values())
            self._clients.clear()
        for files in clients:
            files.close()

    def disconnect(self, url: str) -> None:
        """Give up the connections to what `HdfsServices` calls so; a call that is under way may still end."""
        with self._lock:
            files = self._clients.pop(url, None)
        if files is not None:
            files.close()

    def stamp(self, uri: str) -> Stamp:
        """Length of a file in bytes, and when it was changed."""
        with self._open(uri) as (files, path):
            return Stamp(*files.stamp(path))

    def size(self, uri: str) -> int:
        """Length of a file in bytes."""
        return self.stamp(uri).n_bytes

    def read_bytes(self, uri: str, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
        """The content of a file of at most `max_bytes`; of a larger one nothing is read."""
        with self.opened(uri) as file:
            if file.n_bytes > max_bytes:
                raise StorageError(
                    f"{shown(uri)}: {file.n_bytes} bytes, at most {max_bytes} are read here",
                    cure="give a larger max_bytes, or read it in parts with `stream`",
                )
            content = bytearray(file.n_bytes)
            file.read_into(0, memoryview(content))
        return bytes(content)

    def read_into(self, uri: str, target: memoryview) -> None:
        """Fill a writable flat buffer with a file that has exactly its length."""
        view = target.cast("B") if target.nbytes else target
        with self.opened(uri) as file:
            if file.n_bytes != view.nbytes:
                raise StorageError(f"{shown(uri)}: {file.n_bytes} bytes, {view.nbytes} expected")
            file.read_into(0, view)

    @contextlib.contextmanager
    def opened(self, uri: str) -> Iterator[OpenFile]:
        """A file that is read in parts; a part beyond its end is an error."""
        with self._open(uri) as (files, path), files.opened(path) as file:
            yield file

    @contextlib.contextmanager
    def stream(self, uri: str) -> Iterator[BinaryIO]:
        """A file as a stream of bytes, from its begin."""
        with self.opened(uri) as file, io.BufferedReader(_Stream(file), _STREAM_BYTES) as stream:
            yield cast("BinaryIO", stream)

    def write_atomic(self, uri: str, parts: Iterable[Buffer] | Callable[[], Iterable[Buffer]]) -> int:
        """Write a file so that nobody sees a part of it; an existing one is replaced.  Returns its bytes.

        Args:
            uri: its name; the folders above it are made.
            parts: its content; a function that makes it, so that it can be written again from the start when
                HDFS names a DataNode that is gone.
        """
        if not callable(parts):
            return self._write_once(uri, parts)
        for _ in range(_WRITE_TRIES - 1 if split_uri(uri).scheme == "hdfs" else 0):
            try:
                return self._write_once(uri, parts())
            except StorageError as error:
                if not error.transient:
                    raise
        return self._write_once(uri, parts())

    def _write_once(self, uri: str, parts: Iterable[Buffer]) -> int:
        with self._open(uri) as (files, path):
            return write_whole(files, path, parts)

    def write_private(self, uri: str, content: bytes, mode: int = 0o600) -> None:
        """As `write_atomic`, a file that only its owner can read.

        Args:
            mode: its permissions, 0o400 or 0o600.
        """
        with self._open(uri) as (files, path):
            temporary = temporary_name(path)
            try:
                files.write(temporary, [content], mode)
                files.rename(temporary, path)
            except BaseException:
                _delete_quietly(files, temporary)
                raise

    @contextlib.contextmanager
    def growing(self, uri: str, content: bytes) -> Iterator[Appender]:
        """A file that begins with `content`, in the place of any other, to be made longer while it is open.

        It has its name when HDFS has that content on its disks.  After an error of an append nobody knows
        what is at its end.
        """
        with self._open(uri) as (files, path):
            appender = self._begin_growing(uri, files, path, content)
            try:
                yield appender
            finally:
                appender.close()

    def _begin_growing(self, uri: str, files: _Files, path: str, content: bytes) -> Appender:
        for _ in range(_WRITE_TRIES - 1):
            try:
                return _grown(files, path, content)
            except (OSError, RuntimeError) as error:
                if not _storage_error(uri, error).transient:
                    raise
        return _grown(files, path, content)

    def seal(self, uri: str) -> bool:
        """Take a file from whoever may still append to it; whether that is done, else call again.

        In HDFS the other one's next write fails; a file of this machine has no such owner.
        """
        with self._open(uri) as (files, path):
            return files.seal(path)

    def write_new(self, uri: str, parts: Iterable[Buffer]) -> int:
        """Write a file that is not there yet, into a folder that is; returns its bytes.

        Readers see it grow.
        """
        with self._open(uri) as (files, path):
            return files.write(path, parts, makes_folders=False)

    def begin_new(self, uri: str) -> Callable[[Iterable[Buffer]], int]:
        """Begin a file as `write_new` does; the function that this returns writes it, and is called once.

        Without that call the file stays empty, until it is deleted.
        """
        if split_uri(uri).scheme != "hdfs":
            return functools.partial(self.write_new, uri)
        with self._open(uri) as (_, path):
            write = self._hdfs_of(uri).begin(path, makes_folders=False)

        def finish(parts: Iterable[Buffer]) -> int:
            with self._open(uri):
                return write(parts)

        return finish

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Give a file, or a folder with all that is in it, another name within its storage.

        Args:
            overwrite: whether the name may be taken; that of a folder with files never is.
        """
        if split_uri(source)[:2] != split_uri(target)[:2]:
            raise StorageError(f"{shown(source)} and {shown(target)} are not in one storage")
        with self._open(target) as (files, path):
            files.rename(split_uri(source)[2], path, overwrite=overwrite)

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

    def delete_unfinished(self, uris: Iterable[str]) -> int:
        """Delete what killed writers of these files left beside them; how many files that were.

        A writer that is still at work loses what it wrote.
        """
        folders: dict[str, tuple[str, set[str]]] = {}
        for uri in uris:
            folder, name = posixpath.split(split_uri(uri).path)
            folders.setdefault(folder, (uri, set()))[1].add(name)
        return sum(self._delete_unfinished(uri, names) for uri, names in folders.values())

    def _delete_unfinished(self, uri: str, names: set[str]) -> int:
        with self._open(uri) as (files, path):
            folder = posixpath.dirname(path)
            found = files.names(folder) if files.exists(folder) else []
            unfinished = [name for name in found if unfinished_name(name) in names]
            return sum(files.delete(posixpath.join(folder, name)) for name in unfinished)

    def mkdirs(self, uri: str, mode: int | None = None) -> None:
        """Make a folder, with `mode` if given, and the folders above it; fine when it exists."""
        with self._open(uri) as (files, path):
            files.mkdirs(path, mode)

    def mkdir(self, uri: str) -> None:
        """Make a folder in one that is there; fine when it exists."""
        with self._open(uri) as (files, path):
            files.mkdirs(path, makes_folders=False)

    @contextlib.contextmanager
    def _open(self, uri: str) -> Iterator[tuple[_Files, str]]:
        scheme, _, path = split_uri(uri)
        if self._is_closed:
            raise StorageError(
                f"{shown(uri)}: this storage is closed", cure="the session has ended", transient=True
            )
        if scheme == "file" and self._services is not None and not self._services.allows_files:
            raise _forbidden(uri, "files of this machine cannot be used here")
        try:
            yield (self._hdfs_of(uri) if scheme == "hdfs" else self._local), path
        except (OSError, RuntimeError) as error:
            raise _storage_error(uri, error) from error
        except ValueError as error:
            raise StorageError(f"{shown(uri)}: {error}", cure="set HADOOP_CONF_DIR") from error
        except BaseException as error:
            # The native client's own faults are no `Exception`, and would end the thread.
            if type(error).__name__ != _PANIC:
                raise
            raise StorageError(f"{shown(uri)}: the HDFS client broke: {str(error)[:_MAX_TEXT]}") from None

    def _hdfs_of(self, uri: str) -> _HdfsFiles:
        url = f"hdfs://{split_uri(uri).authority}"
        options: Mapping[str, str] = {}
        if self._services is not None:
            url, options = self._services.url_of(uri), self._services.options
        elif url == "hdfs://":
            url = self._default_fs or url
        with self._lock:
            files = self._clients.pop(url, None)
            if files is None:
                files = _HdfsFiles(url, self._conf_dir, options)
            if self._is_closed:
                files.close()
                return files
            self._clients[url] = files
            if len(self._clients) > _MAX_CLIENTS:
                self._clients.popitem(last=False)
            return files


def _grown(files: _Files, path: str, content: bytes) -> Appender:
    """A new file that is still open, with its first content safe and then its name."""
    temporary = temporary_name(path)
    with contextlib.ExitStack() as undo:
        undo.callback(_delete_quietly, files, temporary)
        appender = files.new_appender(temporary)
        undo.callback(_close_quietly, appender)
        if content:
            appender.append(content)
        files.rename(temporary, path)
        undo.pop_all()
    return appender


def _delete_quietly(files: _Files, path: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        files.delete(path)


def _close_quietly(appender: Appender) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        appender.close()


class _NoAnswerError(RuntimeError):
    """A call of the native client has taken too long: a NameNode does not answer."""

    what = "no answer"
    cure = (
        "look whether the NameNode hangs (its log, `jstack`), and end it if so: with another one on standby "
        "calls go on there"
    )


class _NoDataError(_NoAnswerError):
    """The same for data that a DataNode does not send."""

    what = "no data of a DataNode"
    cure = (
        "look whether a DataNode hangs (its log, `jstack`), and end it if so: then another replica is read; "
        "dfs.namenode.avoid.read.stale.datanode has the NameNode name a silent one last, after 30 s"
    )


@dataclass(eq=False)
class _Call(Generic[_T]):
    """A call of the native client, and what came of it: its value, or its error.

    Attributes:
        moved_s: when it began, or when last a part came of what it waits for (monotonic seconds).
    """

    run: Callable[[_Call[_T]], _T]
    answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = field(default_factory=queue.SimpleQueue)
    moved_s: float = field(default_factory=time.monotonic)
    is_done: bool = False
    is_overdue: bool = False


class _LimitedCalls:
    """Calls that may take for ever, each in a thread of its own, so that the caller waits for a limited time.

    A thread whose call is overdue stays with it until the server answers or the connection ends; then it is
    used again.  The threads keep no process from ending.

    Args:
        error: raised when a call takes too long.
    """

    def __init__(self, error: type[_NoAnswerError] = _NoAnswerError) -> None:
        self._error = error
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call[Any]]] = []
        self._n_overdue = 0

    def begin(self, run: Callable[[_Call[_T]], _T]) -> _Call[_T]:
        """Have a thread make a call, for which `value` then waits.

        Raises:
            _NoAnswerError: too many are overdue already.
        """
        with self._lock:
            if self._n_overdue >= _MAX_OVERDUE:
                raise self._error(f"{self._n_overdue} calls wait for an answer already, and have too long")
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="hdfs-call", daemon=True).start()
        call = _Call(run)
        inbox.put(call)
        return call

    def give_up(self, call: _Call[Any]) -> None:
        """Wait for a call no more: it is overdue until its thread is free again."""
        with self._lock:
            if not (call.is_done or call.is_overdue):
                call.is_overdue = True
                self._n_overdue += 1

    def value(self, call: _Call[_T], limit_s: float) -> _T:
        """What came of a call that has begun.

        Raises:
            _NoAnswerError: nothing happened for longer than `limit_s`; it is given up.
        """
        answer = None
        while answer is None:
            left_s = call.moved_s + limit_s - time.monotonic()
            try:
                answer = call.answer.get(timeout=max(0.0, left_s))
            except queue.Empty:
                if left_s > 0:  # It may have moved meanwhile.
                    continue
                self.give_up(call)
                if not call.is_done:
                    raise self._error(f"{self._error.what} within {limit_s:g} s") from None
        value, error = answer
        del answer
        if error is None:
            return cast("_T", value)
        try:
            raise error
        finally:
            # Its traceback has this frame: the cycle would keep the native client, and so its connections.
            del error, call

    def _work(self, inbox: queue.SimpleQueue[_Call[Any]]) -> None:
        while True:
            call = inbox.get()
            value, error = None, None
            try:
                value = call.run(call)
            except BaseException as failure:  # noqa: BLE001 - the caller raises it
                error = failure
            with self._lock:
                call.is_done = True
                self._n_overdue -= call.is_overdue
                self._idle.append(inbox)
            call.answer.put((value, error))
            del call, value, error


@functools.cache
def _calls() -> _LimitedCalls:
    """Those to NameNodes, and those that write."""
    return _LimitedCalls()


@functools.cache
def _reads() -> _LimitedCalls:
    """Those that read from DataNodes."""
    return _LimitedCalls(_NoDataError)


# A child has none of its parent's threads.
os.register_at_fork(after_in_child=_calls.cache_clear)
os.register_at_fork(after_in_child=_reads.cache_clear)


@dataclass(slots=True)
class _Limits:
    """Calls of one name service; for a moment after one without an answer the others fail at once.

    So what undoes a write, or tries it again, does not wait as long once more.
    """

    silent_until_s: float = 0.0

    def answer(self, function: Callable[..., _T], *given: Any, **options: Any) -> _T:
        """The NameNode's answer to a call of the native client."""
        return self._run(functools.partial(function, *given, **options), _ANSWER_S)

    def written(self, function: Callable[..., _T], *given: Any) -> _T:
        """The same for a call that writes, which waits for DataNodes, too."""
        return self._run(functools.partial(function, *given), _WRITE_S)

    def _run(self, function: Callable[[], _T], limit_s: float) -> _T:
        if time.monotonic() < self.silent_until_s:
            raise _NoAnswerError("nor did it a moment ago")
        try:
            calls = _calls()
            return calls.value(calls.begin(lambda _: function()), limit_s)
        except _NoAnswerError:
            self.silent_until_s = time.monotonic() + _SILENT_S
            raise


class _HdfsFiles:
    """One name service, through the native client; safe to share between threads."""

    def __init__(self, url: str, conf_dir: str, properties: Mapping[str, str]) -> None:
        try:
            import hdfs_native
        except ImportError as error:
            raise StartupError(
                "hdfs:// needs the package hdfs-native", cure=install_command("hdfs_native")
            ) from error
        options: dict[str, Any] = {"config": {**_RETRIES, **properties}}
        if conf_dir:
            options["config_dir"] = conf_dir
        self._options = hdfs_native.WriteOptions
        self._new_file = hdfs_native.WriteOptions(create_parent=True)
        self._client: hdfs_native.Client | _ClosedClient = _client_of(url, options)
        self._limits = _Limits()

    def close(self) -> None:
        """Let go of the native client, which ends its connections when no call uses it any more."""
        self._client = _ClosedClient()

    def stamp(self, path: str) -> tuple[int, int]:
        status = self._limits.answer(self._client.get_file_info, path)
        if status.isdir:
            raise IsADirectoryError(path)
        return int(status.length), int(status.modification_time)

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[OpenFile]:
        yield _HdfsFile(self._limits.answer(self._client.read, path))

    def exists(self, path: str) -> bool:
        try:
            self._limits.answer(self._client.get_file_info, path)
        except FileNotFoundError:
            return False
        return True

    def names(self, path: str) -> list[str]:
        # It asks for a long list in parts.
        found = self._limits.answer(lambda: list(self._client.list_status(path)))
        return [posixpath.basename(status.path) for status in found]

    def delete(self, path: str) -> bool:
        return bool(self._limits.answer(self._client.delete, path, recursive=True))

    def mkdirs(self, path: str, mode: int | None = None, *, makes_folders: bool = True) -> None:
        permission = {} if mode is None else {"permission": mode}
        self._limits.answer(self._client.mkdirs, path, create_parent=makes_folders, **permission)

    def write(
        self, path: str, parts: Iterable[Buffer], mode: int | None = None, *, makes_folders: bool = True
    ) -> int:
        """Write a new file; the NameNode makes the folders above it."""
        return self.begin(path, mode, makes_folders=makes_folders)(parts)

    def begin(
        self, path: str, mode: int | None = None, *, makes_folders: bool = True
    ) -> Callable[[Iterable[Buffer]], int]:
        """Make a new file; the function that this returns writes and closes it.

        Args:
            mode: its permissions; default: those of all new files.
            makes_folders: whether the NameNode makes the folders above it.
        """
        options = self._new_file
        if mode is not None or not makes_folders:
            options = self._options(create_parent=makes_folders, permission=mode)
        writer = self._limits.answer(self._client.create, path, options)

        def write(parts: Iterable[Buffer]) -> int:
            n_bytes = 0
            for part in parts:
                view = memoryview(part).cast("B")
                for start in range(0, len(view), _WRITE_BYTES):
                    self._limits.written(writer.write, bytes(view[start : start + _WRITE_BYTES]))
                n_bytes += len(view)
            self._limits.written(writer.close)
            return n_bytes

        return write

    def rename(self, source: str, target: str, *, overwrite: bool = True) -> None:
        self._limits.answer(self._client.rename, source, target, overwrite)

    def new_appender(self, path: str) -> Appender:
        return _HdfsAppender(self._limits.answer(self._client.create, path, self._new_file), self._limits)

    def seal(self, path: str) -> bool:
        return bool(self._limits.answer(self._client.recover_lease, path))


def _client_of(url: str, options: dict[str, Any]) -> hdfs_native.Client:
    import hdfs_native

    try:
        return hdfs_native.Client(None if url == "hdfs://" else url, **options)
    except RuntimeError as error:
        # A host without a port, which Hadoop knows and the native client does not.
        authority = url.removeprefix("hdfs://")
        if _UNKNOWN_SERVICE not in str(error) or not authority or split_authority(authority)[1]:
            raise
    return hdfs_native.Client(f"{url}:{NAMENODE_PORT}", **options)


class _ClosedClient:
    """Stands for a native client that was let go."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this storage is closed: no connection")


class _HdfsAppender:
    """A new file of HDFS that grows at its end; the module says why none is opened again."""

    def __init__(self, writer: hdfs_native.FileWriter, limits: _Limits) -> None:
        self._writer = writer
        self._limits = limits

    def append(self, content: bytes) -> None:
        """Add at the end; returns when it is on the disks of the DataNodes."""
        self._limits.written(self._writer.write, content)
        self._limits.written(self._writer.hsync)

    def close(self) -> None:
        self._limits.written(self._writer.close)


class _Stream(io.RawIOBase):
    """An open file, read from its begin."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        n_bytes = min(len(view), self._file.n_bytes - self._at)
        if n_bytes:
            self._file.read_into(self._at, view[:n_bytes])
        self._at += n_bytes
        return n_bytes


class _HdfsFile:
    """A file of HDFS, read from any place."""

    def __init__(self, reader: hdfs_native.FileReader) -> None:
        self._reader = reader
        self.n_bytes = int(reader.size)

    def read_into(self, start: int, view: memoryview) -> None:
        n_bytes = len(view)
        if start + n_bytes > self.n_bytes:
            raise OSError("its length changed while it was read")
        middle = n_bytes // 2 if n_bytes >= _HALVES_BYTES else n_bytes
        ranges = [_Range(self._reader, start, view[:middle])]
        if middle < n_bytes:
            ranges.append(_Range(self._reader, start + middle, view[middle:]))
        reads, calls = _reads(), []
        try:
            calls = [reads.begin(each.fill) for each in ranges]
            n_read = sum(reads.value(call, _DATA_S) for call in calls)
        finally:
            # Whatever happened: the memory is the caller's again.
            for each in ranges:
                each.take_back()
            for call in calls:
                reads.give_up(call)
        if n_read != n_bytes:
            raise OSError("its length changed while it was read")


class _Range:
    """A range of a file, and the buffer that it is read into until that is taken back."""

    def __init__(self, reader: hdfs_native.FileReader, start: int, view: memoryview) -> None:
        self._reader = reader
        self._start = start
        self._n_bytes = len(view)
        self._view: memoryview | None = view
        self._lock = threading.Lock()

    def fill(self, call: _Call[int]) -> int:
        """Fill the buffer; returns how many bytes came."""
        at = 0
        for part in self._reader.read_range_stream(self._start, self._n_bytes) if self._n_bytes else ():
            with self._lock:
                if self._view is None:
                    break
                self._view[at : at + len(part)] = part
            at += len(part)
            call.moved_s = time.monotonic()
        return at

    def take_back(self) -> None:
        """Nothing is written to the buffer from now on, nor does anything here refer to it."""
        with self._lock:
            if self._view is not None:
                self._view.release()
            self._view = None


def _storage_error(uri: str, error: Exception) -> StorageError:
    if isinstance(error, OSError) and (split_uri(uri).scheme == "file" or _is_plain(error)):
        return file_error(uri, error)
    uri, text = shown(uri), _plain_text(error)
    if isinstance(error, _NoAnswerError):
        return StorageError(
            f"{uri}: HDFS does not answer: {text}",
            cure=error.cure,
            transient=True,
        )
    if isinstance(error, PermissionError) or "AccessControlException" in str(error):
        return _denied(uri, error)
    if any(word in text for word in (_UNKNOWN_SERVICE, "No fs.defaultFS", "failed to lookup address")):
        return _unknown(uri)
    if "SafeModeException" in str(error):
        return _in_safe_mode(uri, text)
    if "QuotaExceeded" in str(error):
        return StorageError(f"{uri}: {text}", cure="free space in the quota")
    if "InvalidToken" in str(error):
        return _token_error(uri, str(error), text)
    if any(word in str(error) for word in ("NoSASLMechanism", "GSSAPIError", "SaslException")):
        return StorageError(
            f"{uri}: HDFS does not accept our identity: {text}",
            cure="renew the Kerberos ticket or the token in HADOOP_TOKEN_FILE_LOCATION of the server",
            code=NO_IDENTITY,
        )
    is_transient = any(word in str(error).lower() for word in _TRANSIENT_WORDS)
    cure = "check that the NameNode and DataNodes are up" if is_transient else ""
    return StorageError(f"{uri}: {text}", cure=cure, transient=is_transient)


def _token_error(uri: str, error: str, text: str) -> StorageError:
    """Tell apart why HDFS does not know a token any more."""
    if "can't be found in cache" in error:
        return StorageError(
            f"{uri}: HDFS knows this token no more: the job that owned it has ended",
            cure="submit the job again; a program that outlives its job needs a token of its own",
            code=TOKEN_CANCELLED,
        )
    if "expired" in error:
        return StorageError(
            f"{uri}: this HDFS token has expired: {text}",
            cure="submit the job again; a service that shall live longer than its token (7 days by default) "
            "is started with --principal and --keytab",
            code=TOKEN_EXPIRED,
        )
    return StorageError(f"{uri}: HDFS does not accept this token: {text}", code=NO_IDENTITY)


def _forbidden(uri: str, why: str) -> StorageError:
    return StorageError(f"{shown(uri)}: {why}", code="forbidden-uri")


def _listed(authorities: Iterable[str]) -> str:
    return ", ".join(f"hdfs://{each}" for each in sorted(authorities) if each)


def _is_plain(error: OSError) -> bool:
    """Whether HDFS means by it what this machine's files do."""
    return isinstance(error, (FileNotFoundError, IsADirectoryError)) or error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
    )


def _unknown(uri: str) -> StorageError:
    """The settings here do not say where the URI leads, which is no fault of the URI."""
    authority = split_uri(uri).authority
    what = (
        f"{authority!r} is no name service of the settings here and no host"
        if authority
        else ("the settings here name no file system (fs.defaultFS)")
    )
    return StorageError(
        f"{uri}: {what}",
        cure="set HADOOP_CONF_DIR to the folder of the cluster's core-site.xml and hdfs-site.xml, "
        "or write hdfs://HOST:PORT/PATH",
        code=UNKNOWN_STORAGE,
    )


def _in_safe_mode(uri: str, text: str) -> StorageError:
    """The NameNode answers, and says what it waits for."""
    found = re.search(r"is in safe mode\. (.*?)\.?(?: NamenodeHostName|$)", text)
    return StorageError(
        f"{uri}: HDFS is in safe mode and takes no changes" + (f" ({found[1]})" if found else ""),
        cure="start the DataNodes that are missing and wait, see `hdfs dfsadmin -safemode get`; or end it: "
        "`hdfs dfsadmin -safemode leave`",
        transient=True,
    )


def _denied(uri: str, error: Exception) -> StorageError:
    """Name the user whom storage refused: the one who started the server, not always the reader."""
    found = re.search(r'user=([^,\s]+), access=(\w+), inode=[\\"]*([^\s"\\:]+)', str(error))
    who = f" to {found[1]} ({found[2]} on {found[3]})" if found else ""
    return StorageError(f"{uri}: permission denied{who}", cure="check owner and mode, and HADOOP_USER_NAME")


def _plain_text(error: Exception) -> str:
    """The text of an error, without Java's stack and the native client's dumps of its structures.

    >>> _plain_text(RuntimeError('RPCError("org.apache.x.BadException", "no, 1\\\\n\\\\tat org.x")'))
    'BadException: no, 1'
    """
    text = re.split(r"\\n\\tat |\n\tat |: \[DatanodeInfoProto", str(error))[0]
    text = re.sub(r'^RPCError\("(?:\w+\.)*(\w+)", "', r"\1: ", text)
    text = re.sub(r'^\w+\("', "", text).removesuffix('")')
    return " ".join(text.replace("\\n", " ").replace('\\"', '"').split())[:_MAX_TEXT]
