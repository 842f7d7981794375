"""Whole files by URI: local ones here, and HDFS as far as the native client's behaviour can be imitated."""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.fixtures.waiting import until
from yarn_accel import storage
from yarn_accel.client import TaskFiles
from yarn_accel.errors import StorageError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.storage import Stamp, Store


@pytest.fixture
def base(tmp_path):
    return f"file://{tmp_path}"


def test_a_file_is_written_whole_or_not_at_all(base, tmp_path):
    store = Store()

    def parts():
        yield b"first"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert [path.name[:3] for path in (tmp_path / "out").iterdir()] == [".x."]
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"out/x: .*No space left"):
        store.write_atomic(f"{base}/out/x", parts())
    assert list((tmp_path / "out").iterdir()) == []
    assert store.write_atomic(f"{base}/out/x", [b"abc", memoryview(b"de")]) == 5
    assert store.read_bytes(f"{base}/out/x", 5) == b"abcde"
    assert store.list(f"{base}/out") == [f"{base}/out/x"]


def test_what_killed_writers_left_is_deleted_and_nothing_else(base, tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    left = [f".{name}.{n:032x}.tmp" for n, name in enumerate(("x.npz", "x.npz", "y z.npz"))]
    others = ["x.npz", "y z.npz", f".other.npz.{0:032x}.tmp", ".x.npz.tmp", f".x.npz.{0:031x}.tmp", "_tmp"]
    for name in (*left, *others):
        (folder / name).write_bytes(b"")
    uris = [f"{base}/a b/x.npz", f"{base}/a b/y z.npz", f"{base}/none/x.npz"]
    assert Store().delete_unfinished(uris) == 3
    assert sorted(path.name for path in folder.iterdir()) == sorted(others)
    assert Store().delete_unfinished(uris) == 0


def test_reading_into_an_array(base, tmp_path):
    a = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    (tmp_path / "a").write_bytes(a.tobytes(order="F"))
    target = np.empty((2, 3), order="F")
    Store().read_into(f"{base}/a", target.T.data)
    assert np.array_equal(a, target)
    with pytest.raises(StorageError, match="48 bytes, 40 expected"):
        Store().read_into(f"{base}/a", memoryview(bytearray(40)))


def test_errors_name_the_uri_and_are_final(base, tmp_path):
    store = Store()
    for attempt in (
        lambda: store.size(f"{base}/none"),
        lambda: store.read_bytes(f"{base}/none", 10),
        lambda: store.list(f"{base}/none"),
        lambda: store.size(base),
    ):
        with pytest.raises(StorageError, match=base) as caught:
            attempt()
        assert not caught.value.transient
    (tmp_path / "x").write_bytes(b"12345")
    with pytest.raises(StorageError, match="at most 4"):
        store.read_bytes(f"{base}/x", 4)
    assert store.exists(f"{base}/x")
    assert store.delete(f"{base}/x")
    assert not store.exists(f"{base}/x")
    assert not store.delete(f"{base}/x")


def test_a_name_node_that_does_not_listen_may_come_back():
    with pytest.raises(StorageError, match=r"hdfs://127\.0\.0\.1:1/x: .*refused") as caught:
        Store().size("hdfs://127.0.0.1:1/x")
    assert caught.value.transient
    assert "NameNode" in caught.value.cure


def test_a_stamp_changes_with_the_file(base, tmp_path):
    store = Store()
    uri = f"{base}/x"
    store.write_atomic(uri, [b"abc"])
    first = store.stamp(uri)
    assert first.n_bytes == 3
    os.utime(tmp_path / "x", ns=(1, 2))
    assert store.stamp(uri) == Stamp(3, 2)


# Local files nobody can lead astray


@pytest.fixture
def strict():
    return Store(follow_symlinks=False)


@pytest.fixture
def secret(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


def make_special(path, kind, target):
    path.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        socket_path = path.parent / "s"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(socket_path))
        socket_path.rename(path)
    elif kind == "folder":
        path.mkdir()
        (path / "inside").touch()
    else:
        path.symlink_to(target if kind == "link" else path.parent / "none")


def attempts(store, uri):
    yield lambda: store.stamp(uri)
    yield lambda: store.read_bytes(uri, 100)
    yield lambda: store.read_into(uri, memoryview(bytearray(6)))


def test_a_link_is_not_followed_at_the_end_or_on_the_way(strict, base, tmp_path, secret):
    (tmp_path / "link").symlink_to(secret / "secret")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "way").symlink_to(secret)
    for attempt in (
        *attempts(strict, f"{base}/link"),
        *attempts(strict, f"{base}/in/way/secret"),
        lambda: strict.write_atomic(f"{base}/in/way/new", [b"x"]),
    ):
        with pytest.raises(StorageError, match="symbolic links are not followed"):
            attempt()
    assert [path.name for path in secret.iterdir()] == ["secret"]
    assert Store().read_bytes(f"{base}/link", 100) == b"secret"


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "socket", "folder"])
@pytest.mark.parametrize("follow_symlinks", [True, False])
def test_writing_replaces_nothing_but_a_regular_file(base, tmp_path, secret, kind, follow_symlinks):
    place = tmp_path / "out" / "x"
    make_special(place, kind, secret / "secret")
    before = place.lstat()
    store = Store(follow_symlinks=follow_symlinks)
    for write in (
        lambda: store.write_atomic(f"{base}/out/x", [b"new"]),
        lambda: store.write_new(f"{base}/out/x", [b"new"]),
        lambda: write_atomic(place, "new"),
    ):
        with pytest.raises((StorageError, OSError)):
            write()
    with pytest.raises(StorageError), store.growing(f"{base}/out/x", b"new"):
        pass
    assert (place.lstat().st_mode, place.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert (secret / "secret").read_bytes() == b"secret"
    assert [path.name for path in place.parent.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "dangling"])
def test_reading_waits_for_nothing(base, tmp_path, secret, kind):
    make_special(tmp_path / "in" / "x", kind, secret / "secret")
    store = Store()
    for attempt in (*attempts(store, f"{base}/in/x"), lambda: TaskFiles({}).read(f"{base}/in/x")):
        with pytest.raises(StorageError):
            attempt()
    for uri in ("file:///dev/zero", *([f"{base}/in/x"] if kind == "fifo" else ())):
        for each in (store, Store(follow_symlinks=False)):
            with pytest.raises(StorageError, match="not a regular file"):
                each.read_bytes(uri, 100)


def test_a_file_that_grows_is_read_to_the_length_that_was_bounded(base, tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    with Store().opened(f"{base}/x") as file:
        (tmp_path / "x").write_bytes(b"abcdef")
        content = bytearray(file.n_bytes)
        file.read_into(0, memoryview(content))
    assert content == b"abc"


def test_a_file_that_tells_no_length_is_not_empty():
    with pytest.raises(StorageError, match="tells no length"):
        Store().read_bytes("file:///proc/self/status")


def test_reading_has_a_bound_of_its_own(base, tmp_path):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(storage.DEFAULT_MAX_BYTES + 1)
    with pytest.raises(StorageError, match=r"268435457 bytes, at most 268435456 .* larger max_bytes"):
        Store().read_bytes(f"{base}/x")
    (tmp_path / "y").write_bytes(b"abc")
    assert Store().read_bytes(f"{base}/y") == b"abc"


def test_a_folder_swapped_for_a_link_again_and_again_never_leads_out(strict, base, tmp_path, secret):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "secret").write_bytes(b"public")
    (tmp_path / "a").mkdir()
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            (tmp_path / "a" / "b").symlink_to(secret)
            (tmp_path / "a" / "b").unlink()
            (tmp_path / "real").rename(tmp_path / "a" / "b")
            (tmp_path / "a" / "b").rename(tmp_path / "real")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(300):
            try:
                seen.add(strict.read_bytes(f"{base}/a/b/secret", 100))
            except StorageError:
                seen.add(b"refused")
    finally:
        stop.set()
        thread.join()
    assert b"secret" not in seen


def test_no_descriptor_is_left_open(strict, base, tmp_path):
    def still_open():
        """Only those below the folder: other tests' sockets may be collected at any moment."""
        links = []
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(str(entry.readlink()))
        return [link for link in links if link.startswith(str(tmp_path))]

    (tmp_path / "x").write_bytes(b"abc")
    with (tmp_path / "x").open("rb"):
        assert still_open() == [str(tmp_path / "x")]
    for _ in range(5):
        strict.write_atomic(f"{base}/a/b/c", [b"abc"])
        strict.read_bytes(f"{base}/x", 3)
        assert strict.list(base)
        for uri in (f"{base}/none/x", f"{base}/x/y"):
            with pytest.raises(StorageError):
                strict.read_bytes(uri, 3)
    assert still_open() == []


def test_a_full_disk_is_said_clearly_and_leaves_nothing(base, tmp_path):
    full = OSError(28, "No space left on device")

    def parts():
        yield b"x"
        raise full

    with pytest.raises(StorageError) as caught:
        Store().write_atomic(f"{base}/out", parts())
    assert str(caught.value) == f"{base}/out: No space left on device: free disk space, then try again"
    assert caught.value.transient
    assert list(tmp_path.iterdir()) == []


# Errors of the native client


class BrokenClient:
    """Fails as the native client was seen to fail."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, name):
        def fail(*_):
            raise self.error

        return fail


@pytest.fixture
def store_over(monkeypatch):
    """A store whose native clients come from a function of the URL."""

    def make(client_of):
        native = SimpleNamespace(Client=lambda url, **_: client_of(url), WriteOptions=lambda **_: None)
        monkeypatch.setitem(sys.modules, "hdfs_native", native)
        return Store()

    return make


#: Errors of a NameNode of 3.5.0 after a restart, and by an administrator's order, by the native client.
SAFE_MODE = (
    'RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create directory /d. '
    "Name node is in safe mode.\\nThe reported blocks 0 needs additional 4 blocks to reach the threshold "
    "0.9990 of total blocks 5.\\nThe minimum number of live datanodes is not required. Safe mode will be "
    "turned off automatically once the thresholds have been reached. NamenodeHostName:master\\n\\tat org."
    'apache.hadoop.hdfs.server.namenode.FSNamesystem.newSafemodeException(FSNamesystem.java:1687)")'
)
SAFE_MODE_BY_HAND = (
    'RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot delete /tmp. Name node '
    'is in safe mode.\\nIt was turned on manually. Use \\"hdfs dfsadmin -safemode leave\\" to turn safe mode '
    'off. NamenodeHostName:master\\n\\tat org.apache.hadoop.hdfs.server.namenode.FSNamesystem.delete")'
)


@pytest.mark.parametrize(
    ("error", "said", "is_transient"),
    [
        (RuntimeError('DataTransferError("Block writer is closed")'), "Block writer is closed", True),
        (RuntimeError('OperationFailed("Failed to complete file in time")'), "in time", True),
        (
            RuntimeError('DataTransferError("All DataNodes failed: [DatanodeInfoProto { id: 1, x: [...'),
            "All DataNodes failed",
            True,
        ),
        (
            RuntimeError(
                'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=c\\n'
                '\\tat org.apache.hadoop.hdfs.server")'
            ),
            "permission denied",
            False,
        ),
        (
            RuntimeError(
                'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=ops, '
                'access=WRITE, inode=\\"/user/ada/x\\":ada:supergroup:drwxr-xr-x\\n\\tat org.apache.hadoop")'
            ),
            r"permission denied to ops \(WRITE on /user/ada/x\): check owner",
            False,
        ),
        (RuntimeError("NoSASLMechanism"), "does not accept our identity", False),
        (
            RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "too much")'),
            "quota",
            False,
        ),
        (RuntimeError(SAFE_MODE), r"safe mode and takes no changes \(The reported .* reached\): start", True),
        (RuntimeError(SAFE_MODE_BY_HAND), r'turned on manually\. Use "hdfs dfsadmin -safemode leave"', True),
        (OSError(122, "Disk quota exceeded"), "Disk quota exceeded", True),
        (FileNotFoundError("/x"), "no such file", False),
        (RuntimeError("No route to host (os error 113)"), r"No route to host \(os error 113\)", True),
        (RuntimeError('IOError("Network is unreachable (os error 101)")'), "unreachable", True),
        (RuntimeError("RPC listener disconnected"), "listener disconnected: check", True),
    ],
)
def test_each_failure_becomes_one_clear_line(store_over, error, said, is_transient):
    store = store_over(lambda _: BrokenClient(error))
    for attempt in (
        lambda: store.stamp("hdfs://nn/x"),
        lambda: store.read_into("hdfs://nn/x", memoryview(bytearray(3))),
        lambda: store.write_atomic("hdfs://nn/x", [b"abc"]),
    ):
        with pytest.raises(StorageError, match=said) as caught:
            attempt()
        assert str(caught.value).startswith("hdfs://nn/x: ")
        assert "DatanodeInfoProto" not in str(caught.value)
        assert "tat org" not in str(caught.value)
        assert caught.value.transient == is_transient


class PanicException(BaseException):
    """Looks like what the native client raises where its own code breaks: no ordinary exception."""


def test_a_native_client_that_breaks_fails_the_call_and_not_the_thread(store_over):
    store = store_over(lambda _: BrokenClient(PanicException("not yet implemented")))
    with pytest.raises(StorageError, match="hdfs://nn/x: the HDFS client broke: not yet implemented"):
        store.stamp("hdfs://nn/x")


class FlakyClient:
    """A native client whose pipelines break so many times."""

    def __init__(self, n_failures, error):
        self.left = n_failures
        self.error = error
        self.written = {}

    def create(self, path, options):
        self.written[path] = b""

        def write(content):
            self.written[path] += content

        return SimpleNamespace(write=write, close=self.close)

    def close(self):
        self.left -= 1
        if self.left >= 0:
            raise self.error

    def rename(self, source, target, overwrite):
        self.written[target] = self.written.pop(source)

    def delete(self, path, recursive):
        return self.written.pop(path) is not None


def test_a_file_that_can_be_made_anew_is_written_again_when_a_datanode_is_gone(store_over):
    files = FlakyClient(3, RuntimeError("IOError: Connection refused (os error 111)"))
    store = store_over(lambda _: files)
    assert store.write_atomic("hdfs://nn/x", lambda: iter([b"a", b"b"])) == 2
    assert files.written == {"/x": b"ab"}
    files.left = 4
    with pytest.raises(StorageError, match="refused"):
        store.write_atomic("hdfs://nn/x", lambda: iter([b"a", b"b"]))
    files.left = 1
    with pytest.raises(StorageError, match="refused"):
        store.write_atomic("hdfs://nn/x", iter([b"a", b"b"]))
    files.left, files.error = 1, RuntimeError("NoSASLMechanism")
    with pytest.raises(StorageError, match="identity"):
        store.write_atomic("hdfs://nn/x", lambda: iter([b"a", b"b"]))
    assert files.written == {"/x": b"ab"}


class Reader:
    """Reads as the native client does: in pieces, from any position; fails from a byte on."""

    def __init__(self, content, fails_at=None):
        self.content = content
        self.size = len(content)
        self.fails_at = fails_at

    def read_range_stream(self, offset, n_bytes):
        for at in range(offset, offset + n_bytes, 65536):
            if self.fails_at is not None and at >= self.fails_at:
                raise RuntimeError('DataTransferError("All DataNodes failed: []")')
            yield self.content[at : min(at + 65536, offset + n_bytes)]


@pytest.fixture
def store_with(store_over):
    return lambda reader: store_over(lambda _: SimpleNamespace(read=lambda path: reader))


@pytest.mark.parametrize("n_bytes", [0, 1, 65536, 4 * 1024 * 1024 - 1, 4 * 1024 * 1024 + 3, 9_000_001])
def test_hdfs_files_are_read_whole_also_in_halves(store_with, n_bytes):
    content = np.random.default_rng(3).bytes(n_bytes)
    view = memoryview(bytearray(n_bytes))
    store_with(Reader(content)).read_into("hdfs://nn/x", view)
    assert bytes(view) == content


def test_when_one_half_fails_the_buffer_is_free(store_with):
    """It belongs to somebody else as soon as `read_into` has returned."""
    content = bytes(8 * 1024 * 1024)
    for fails_at in (0, 5 * 1024 * 1024):
        view = memoryview(bytearray(len(content)))
        with pytest.raises(StorageError, match="All DataNodes failed"):
            store_with(Reader(content, fails_at)).read_into("hdfs://nn/x", view)
        view.release()


@pytest.fixture
def silent_datanode():
    """A connection on which nothing comes; `close` ends it, as the death of a DataNode does."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield SimpleNamespace(receive=lambda: ours.recv(1), close=theirs.close)


@pytest.fixture
def data_limits(monkeypatch):
    """Reads that are given up soon, and threads of this test alone."""
    reads = storage._LimitedCalls(storage._NoDataError)
    monkeypatch.setattr(storage, "_reads", lambda: reads)
    monkeypatch.setattr(storage, "_DATA_S", 0.3)
    return reads


class HangingReader(Reader):
    """From a byte on it waits for a DataNode."""

    def __init__(self, content, hangs_at, datanode):
        super().__init__(content)
        self.hangs_at, self.datanode = hangs_at, datanode

    def read_range_stream(self, offset, n_bytes):
        for at, part in enumerate(super().read_range_stream(offset, n_bytes)):
            if offset + at * 65536 >= self.hangs_at:
                self.datanode.receive()
            yield part


@pytest.mark.parametrize("hangs_at", [0, 65536, 5 * 1024 * 1024])
def test_a_datanode_that_hangs_is_an_error_that_may_pass(store_with, silent_datanode, data_limits, hangs_at):
    reader = HangingReader(b"x" * (8 * 1024 * 1024), hangs_at, silent_datanode)
    buffer = bytearray(reader.size)
    error = refused(lambda: store_with(reader).read_into("hdfs://nn/x", memoryview(buffer)))
    assert str(error).startswith("hdfs://nn/x: HDFS does not answer: no data of a DataNode within 0.3 s")
    assert error.transient
    assert "another replica" in error.cure
    # The buffer is the caller's again: nobody writes what comes late, or refers to it but for the traceback.
    buffer[:] = bytes(len(buffer))
    silent_datanode.close()
    until(lambda: data_limits._n_overdue == 0, "its threads are free")
    assert not any(buffer)
    del error
    gc.collect()
    buffer.clear()


def test_threads_that_wait_for_a_datanode_are_few_and_disturb_no_other_call(
    store_over, silent_datanode, data_limits, monkeypatch
):
    monkeypatch.setattr(storage, "_MAX_OVERDUE", 3)
    reader = HangingReader(b"abc", 0, silent_datanode)
    status = SimpleNamespace(isdir=False, length=3, modification_time=7)
    store = store_over(lambda _: SimpleNamespace(read=lambda _: reader, get_file_info=lambda _: status))
    errors = [refused(lambda: store.read_bytes("hdfs://nn/x")).message for _ in range(6)]
    assert ["3 calls wait for an answer already" in each for each in errors] == [False] * 3 + [True] * 3
    assert store.size("hdfs://nn/x") == 3
    silent_datanode.close()
    until(lambda: len(data_limits._idle) == 3, "its threads are free")
    assert store.read_bytes("hdfs://nn/x") == b"abc"


def test_a_read_that_goes_on_is_waited_for(data_limits):
    """However long the whole takes: the limit counts from the last part that came."""
    moved, ends = threading.Event(), threading.Event()

    def run(call):
        call.moved_s += 3600.0
        moved.set()
        ends.wait()
        return 7

    call = data_limits.begin(run)
    moved.wait()
    timer = threading.Timer(0.1, ends.set)
    timer.start()
    assert data_limits.value(call, 0.0) == 7
    timer.join()


def test_a_stream_cut_short_is_noticed(store_with):
    class Short(Reader):
        def read_range_stream(self, offset, n_bytes):
            return iter([b"abc"])

    with pytest.raises(StorageError, match="length changed") as caught:
        store_with(Short(b"abcdef")).read_into("hdfs://nn/x", memoryview(bytearray(6)))
    assert caught.value.transient


def test_only_so_many_name_services_are_kept(store_over):
    connected = []

    def client_of(url):
        connected.append(url)
        return SimpleNamespace(mkdirs=lambda path, create_parent: None)

    store = store_over(client_of)
    for number in (*range(17), *range(1, 17), 0):
        store.mkdirs(f"hdfs://nn{number}/x")
    assert connected == [f"hdfs://nn{number}" for number in (*range(17), 0)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_that_others_may_pass_and_not_list_is_on_the_way():
    """As `/home` is on many machines."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        Path(folder, "own").mkdir()
        Path(folder, "own").chmod(0o777)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os.setuid(65534)
                Store().write_atomic(f"file://{folder}/own/x", [b"abc"])
                os._exit(int(Store().read_bytes(f"file://{folder}/own/x", 9) != b"abc"))
            os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_is_renamed_over_another_one_or_not_at_all(tmp_path: Path) -> None:
    store = Store()
    uri = f"file://{tmp_path}"
    with pytest.raises(StorageError, match="no such file or folder"):
        store.write_new(f"{uri}/deep/first", [b"1", b"st"])
    with pytest.raises(StorageError, match="no such file or folder"):
        store.mkdir(f"{uri}/very/deep")
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        store.mkdir(f"{uri}/deep")
    assert store.write_new(f"{uri}/deep/first", [b"1", b"st"]) == 3
    store.write_new(f"{uri}/second", [b"2nd"])
    store.rename(f"{uri}/deep/first", f"{uri}/target", overwrite=False)
    with pytest.raises(StorageError, match="File exists"):
        store.rename(f"{uri}/second", f"{uri}/target", overwrite=False)
    with pytest.raises(StorageError, match="File exists"):
        store.write_new(f"{uri}/target", [b"x"])
    assert store.read_bytes(f"{uri}/target", 9) == b"1st"
    assert not (tmp_path / "deep" / "first").exists()
    store.rename(f"{uri}/second", f"{uri}/target", overwrite=True)
    assert (tmp_path / "target").read_bytes() == b"2nd"
    with pytest.raises(StorageError, match="are not in one storage"):
        store.rename(f"{uri}/target", "hdfs://nn/target", overwrite=True)


# Our own small files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_replaces_what_was_there_and_makes_the_folders(tmp_path):
    path = tmp_path / "a" / "b" / "state.json"
    write_atomic(path, "old")
    write_atomic(path, "neu: ü")
    assert path.read_bytes() == "neu: ü".encode()
    assert names(path.parent) == ["state.json"]


def test_the_mode_is_there_from_the_beginning(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("old")
    secret.chmod(0o644)
    write_atomic(secret, "new", 0o600)
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_file_for_all_is_readable_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "own", "")
        write_atomic(tmp_path / "shared", "", is_for_all=True)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("own", "shared")] == [0o600, 0o644]


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "state.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half \ud800")
    assert path.read_text() == "old"
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder", "text")
    assert names(tmp_path) == ["folder", "state.json"]


def test_who_reads_sees_one_text_or_the_other_whoever_writes(tmp_path):
    path = tmp_path / "state.json"
    texts = {letter * 100_000 for letter in "abcd"}
    write_atomic(path, "a" * 100_000)

    def write(text):
        for _ in range(25):
            write_atomic(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_text() in texts
    for thread in threads:
        thread.join()
    assert names(tmp_path) == ["state.json"]


@pytest.fixture
def silent_namenode():
    """A NameNode that takes connections and says nothing; `close` ends them, as its death does."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                opened.append(listener.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()

    def close():
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for each in opened:
            each.close()

    yield SimpleNamespace(uri=f"hdfs://127.0.0.1:{listener.getsockname()[1]}", close=close)
    if thread.is_alive():
        close()


@pytest.fixture
def limits(monkeypatch):
    """Calls that are given up soon, and threads of this test alone."""
    calls = storage._LimitedCalls()
    monkeypatch.setattr(storage, "_calls", lambda: calls)
    monkeypatch.setattr(storage, "_ANSWER_S", 0.3)
    monkeypatch.setattr(storage, "_SILENT_S", 0.0)
    return calls


def refused(act):
    with pytest.raises(StorageError) as caught:
        act()
    return caught.value


def test_a_namenode_that_hangs_is_an_error_that_may_pass(silent_namenode, limits, monkeypatch):
    uri, store = f"{silent_namenode.uri}/x", Store()
    for act in (store.stamp, store.exists, store.list, store.mkdirs, store.read_bytes, store.seal):
        error = refused(lambda act=act: act(uri))
        assert str(error).startswith(f"{uri}: HDFS does not answer: no answer within 0.3 s")
        assert error.transient
        assert "NameNode hangs" in error.cure
    monkeypatch.setattr(storage, "_SILENT_S", 300.0)
    assert "no answer within" in refused(lambda: store.stamp(uri)).message
    # What would undo it, or try again, does not wait.
    assert "nor did it a moment ago" in refused(lambda: store.write_atomic(uri, lambda: [b"a"])).message


def test_threads_that_wait_for_a_namenode_are_few_and_come_back(silent_namenode, limits, monkeypatch):
    monkeypatch.setattr(storage, "_MAX_OVERDUE", 3)
    store = Store()
    errors = [refused(lambda: store.exists(f"{silent_namenode.uri}/x")).message for _ in range(6)]
    assert ["3 calls wait for an answer already" in each for each in errors] == [False] * 3 + [True] * 3
    silent_namenode.close()
    until(lambda: len(limits._idle) == 3, "its threads are free")
    error = refused(lambda: store.exists(f"{silent_namenode.uri}/x"))
    assert "calls wait for an answer" not in error.message


def test_a_namenode_that_hangs_keeps_no_process_from_ending(silent_namenode):
    program = f"""
from yarn_accel import storage
storage._ANSWER_S = 0.3
try:
    storage.Store().exists("{silent_namenode.uri}/x")
except storage.StorageError as error:
    print(error.transient)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_an_error_keeps_no_native_client(store_over):
    class Client:
        def get_file_info(self, path):
            raise FileNotFoundError(path)

    clients = [Client()]
    alive = weakref.ref(clients[0])
    store = store_over(lambda url: clients.pop())
    gc.disable()
    try:
        assert not store.exists("hdfs://nn/x")
        store.close()
        until(lambda: alive() is None, "it is let go")
    finally:
        gc.enable()


def test_a_child_of_a_process_has_threads_of_its_own_for_hdfs(store_over):
    store = store_over(lambda url: SimpleNamespace(get_file_info=lambda path: None))
    assert store.exists("hdfs://nn/x")
    child = os.fork()
    if child == 0:
        os._exit(0 if store.exists("hdfs://nn/x") else 1)
    assert os.waitpid(child, 0)[1] == 0
