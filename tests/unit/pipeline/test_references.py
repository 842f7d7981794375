"""How a file is looked at, and how a changed one is noticed."""

import os

import numpy as np
import pytest

from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.pipeline.plans import ReferencedFile
from yarn_accel.pipeline.references import look_at, read_unchanged, stamp_or_none
from yarn_accel.storage import Store
from yarn_accel.wire import RemoteInput, TensorSpec


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
