"""The threads that wait for storage: real files, results that reach the loop, files that change meanwhile."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from yarn_accel.core.requests.records import SegmentRecord
from yarn_accel.errors import RejectedError, StorageError, UnavailableError
from yarn_accel.operations.registry import get
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.pipeline.plans import Plans, ReferencedFile, Work
from yarn_accel.pipeline.storage import Storage, look_at, read_unchanged, stamp_or_none
from yarn_accel.storage import Store
from yarn_accel.uris import normalised
from yarn_accel.wire import RemoteInput, Request, TensorSpec

MATRIX = np.arange(12.0).reshape(3, 4)
SPEC = TensorSpec("<f8", (3, 4))


class Bench:
    """A storage with its loop; `do` waits for what comes of a task."""

    def __init__(self, folder):
        self.loop = EventLoop()
        self.plans = Plans(get, normalised, 1 << 20, lambda: ("cpu",), lambda: ("cpu",))
        config = PipelineConfig(master_secret_file=folder / "secret", read_threads=2, write_threads=1)
        self.storage = Storage(config, Store(), self.loop)
        self.storage.start()
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def do(self, task, *arguments):
        found, is_over = [], threading.Event()

        def then(result, took_s):
            assert threading.current_thread() is self._thread
            found.append(result)
            is_over.set()

        task(*arguments, then)
        assert is_over.wait(120)
        return found[0]

    def work(self, *uris, operation="echo", spec=SPEC):
        request = Request(1, "k", operation, {}, tuple(RemoteInput(uri, spec) for uri in uris))
        connection = SimpleNamespace(tenant=SimpleNamespace(name="alice", queue=None))
        work = Work(connection, request, self.plans.plan(request), 0.0)
        work.segment = SegmentRecord(1, 4096)
        return work

    def close(self):
        self.storage.close()
        self.loop.stop()
        self._thread.join(120)
        self.loop.close()


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def uri(tmp_path):
    (tmp_path / "a.f8").write_bytes(MATRIX.tobytes())
    return f"file://{tmp_path}/a.f8"


def looked(bench, work):
    found = bench.do(bench.storage.look, work, bench.plans)
    work.stamps, work.plan = found.stamps, found.plan
    return found


def test_a_file_that_changes_between_look_and_read_is_not_used(bench, tmp_path, uri):
    work = bench.work(uri)
    looked(bench, work)
    (tmp_path / "a.f8").write_bytes(MATRIX.tobytes())
    os.utime(tmp_path / "a.f8", (1, 1))
    error = bench.do(bench.storage.read, work, memoryview(bytearray(work.plan.inputs_end)))
    assert isinstance(error, StorageError)
    assert error.transient


def test_outputs_are_written_and_looked_at(bench, tmp_path):
    uri = f"file://{tmp_path}/out/a.npz"
    assert bench.do(bench.storage.look_at_output, uri) is None
    stamp = bench.do(bench.storage.write, uri, {"x": MATRIX})
    assert np.array_equal(np.load(tmp_path / "out" / "a.npz")["x"], MATRIX)
    assert bench.do(bench.storage.look_at_output, uri) == stamp
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.npz"]
    (tmp_path / "file").write_text("no folder")
    error = bench.do(bench.storage.write, f"file://{tmp_path}/file/a.npz", {"x": MATRIX})
    assert isinstance(error, StorageError)


def test_whoever_cannot_use_what_was_found_hears_the_error(bench, tmp_path):
    heard, is_over = [], threading.Event()

    def then(result, took_s):
        heard.append(result)
        if len(heard) == 1:
            raise TypeError("cannot be used")
        is_over.set()

    bench.storage.look_at_output(f"file://{tmp_path}/missing", then)
    assert is_over.wait(120)
    assert heard[0] is None
    assert isinstance(heard[1], TypeError)


def test_what_still_waits_at_the_end_fails(bench, tmp_path, uri):
    bench.storage._is_closed = True
    error = bench.do(bench.storage.look, bench.work(uri), bench.plans)
    assert isinstance(error, UnavailableError)


@pytest.fixture
def base(tmp_path):
    return f"file://{tmp_path}"


def test_stamps_are_compared_with_what_was_announced(base, tmp_path):
    (tmp_path / "x").write_bytes(bytes(16))
    good = RemoteInput(f"{base}/x", TensorSpec("<f8", (2,)))
    stamps, files = look_at(Store(), [good, RemoteInput(f"{base}/x")])
    assert [stamp.n_bytes for stamp in stamps] == [16, 16]
    assert [file.specs for file in files] == [(good.spec,), (TensorSpec("|u1", (16,)),)]
    with pytest.raises(RejectedError, match="16 bytes, its spec says 24") as caught:
        look_at(Store(), [RemoteInput(f"{base}/x", TensorSpec("<f8", (3,)))])
    assert caught.value.code == "wrong-length"


def test_a_file_that_changes_while_it_is_read_is_noticed(base, tmp_path):
    store = Store()
    (tmp_path / "x").write_bytes(b"abc")
    stamp = store.stamp(f"{base}/x")
    view = memoryview(bytearray(3))
    whole = ReferencedFile((TensorSpec("|u1", (3,)),))
    read_unchanged(store, f"{base}/x", stamp, whole, [view])
    assert bytes(view) == b"abc"
    os.utime(tmp_path / "x", ns=(1, 2))
    with pytest.raises(StorageError, match="changed") as caught:
        read_unchanged(store, f"{base}/x", stamp, whole, [view])
    assert caught.value.transient


def test_an_archive_is_judged_by_its_headers_and_read_array_by_array(base, tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.arange(3.0), b=np.arange(4, dtype=">i4"))
    store = Store()
    stamps, (both, one) = look_at(store, [RemoteInput(f"{base}/x.npz"), RemoteInput(f"{base}/x.npz#b")])
    assert both.specs == (TensorSpec("<f8", (3,)), TensorSpec("<i4", (4,)))
    assert one.specs == both.specs[1:]
    view = memoryview(bytearray(16))
    read_unchanged(store, f"{base}/x.npz", stamps[1], one, [view])
    assert view.cast("i").tolist() == [0, 1, 2, 3]


def test_what_is_wrong_with_a_file_that_changed_meanwhile_is_not_its_fault(base, tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(3.0))
    store = Store()
    stamps, (file,) = look_at(store, [RemoteInput(f"{base}/x.npz")])
    np.savez(tmp_path / "x.npz", a=np.arange(30.0))
    with pytest.raises(StorageError, match="changed") as caught:
        read_unchanged(store, f"{base}/x.npz", stamps[0], file, [memoryview(bytearray(24))])
    assert caught.value.transient


def test_what_is_not_there_has_no_stamp(base, tmp_path):
    assert stamp_or_none(Store(), f"{base}/x") is None
    (tmp_path / "x").write_bytes(b"abc")
    assert stamp_or_none(Store(), f"{base}/x") == Store().stamp(f"{base}/x")
    with pytest.raises(StorageError, match="is a folder"):
        stamp_or_none(Store(), base)
