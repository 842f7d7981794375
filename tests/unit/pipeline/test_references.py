"""What a tenant may touch by URI, and how a changed file is noticed."""

import os

import pytest

from yarn_accel.adapters.hdfs import Store
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.pipeline.config import Tenant
from yarn_accel.pipeline.references import Prefixes, Rights, read_unchanged, stamp_or_none, stamps_of
from yarn_accel.wire import RemoteInput, TensorSpec


@pytest.fixture
def base(tmp_path):
    return f"file://{tmp_path}"


@pytest.mark.parametrize(
    "uri",
    [
        "hdfs://nn/data",
        "hdfs://nn/data/a/b",
        "hdfs://nn/data//a",
        "file:///scratch/x",
        "hdfs://other:9000/exact",
    ],
)
def test_what_is_below_a_prefix_is_allowed(uri):
    Prefixes(("hdfs://nn/data", "file:///scratch/", "hdfs://other:9000/exact")).check(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "hdfs://nn/database",
        "hdfs://nn/data/../secret",
        "hdfs://nn2/data/x",
        "hdfs:///data/x",
        "file:///scratch",
        "file:///scratch2/x",
        "file:///scratch/../etc/passwd",
        "file:///scratch/%2e%2e/etc/passwd",
        "file://host/scratch/x",
        "file:/etc/passwd",
        "/etc/passwd",
        "http://nn/data",
        "hdfs://nn/data/x?op=DELETE",
        "hdfs://nn/data/x#y",
        "hdfs://nn/data/a\0b",
        "",
    ],
)
def test_everything_else_is_refused(uri):
    with pytest.raises(RejectedError) as caught:
        Prefixes(("hdfs://nn/data", "file:///scratch/")).check(uri)
    assert caught.value.code == "forbidden-uri"


def test_one_scheme_alone_may_be_allowed():
    Prefixes(("hdfs://",)).check("hdfs://nn/x")
    with pytest.raises(RejectedError):
        Prefixes(("hdfs://",)).check("file:///x")


def test_a_tenant_without_prefixes_may_touch_nothing():
    rights = Rights(Tenant())
    rights.check([], "")
    for inputs, output in ([RemoteInput("hdfs://nn/x")], ""), ([], "file:///x"):
        with pytest.raises(RejectedError, match="of the tenant") as caught:
            rights.check(inputs, output)
        assert caught.value.code == "forbidden-uri"


def test_reading_does_not_mean_writing():
    rights = Rights(Tenant(read_prefixes=("hdfs://nn/in",), write_prefixes=("hdfs://nn/out",)))
    rights.check([RemoteInput("hdfs://nn/in/a")], "hdfs://nn/out/b")
    with pytest.raises(RejectedError, match="see write_prefixes"):
        rights.check([], "hdfs://nn/in/a")
    with pytest.raises(RejectedError, match="see read_prefixes"):
        rights.check([RemoteInput("hdfs://nn/out/b")], "")


def test_stamps_are_compared_with_what_was_announced(base, tmp_path):
    (tmp_path / "x").write_bytes(bytes(16))
    good = RemoteInput(f"{base}/x", TensorSpec("<f8", (2,)))
    assert [stamp.n_bytes for stamp in stamps_of(Store(), [good, RemoteInput(f"{base}/x")])] == [16, 16]
    with pytest.raises(RejectedError, match="16 bytes, its spec says 24") as caught:
        stamps_of(Store(), [RemoteInput(f"{base}/x", TensorSpec("<f8", (3,)))])
    assert caught.value.code == "wrong-length"


def test_a_file_that_changes_while_it_is_read_is_noticed(base, tmp_path):
    store = Store()
    (tmp_path / "x").write_bytes(b"abc")
    stamp = store.stamp(f"{base}/x")
    view = memoryview(bytearray(3))
    read_unchanged(store, f"{base}/x", stamp, view)
    assert bytes(view) == b"abc"
    os.utime(tmp_path / "x", ns=(1, 2))
    with pytest.raises(StorageError, match="changed") as caught:
        read_unchanged(store, f"{base}/x", stamp, view)
    assert caught.value.transient


def test_what_is_not_there_has_no_stamp(base, tmp_path):
    assert stamp_or_none(Store(), f"{base}/x") is None
    (tmp_path / "x").write_bytes(b"abc")
    assert stamp_or_none(Store(), f"{base}/x") == Store().stamp(f"{base}/x")
    with pytest.raises(StorageError, match="is a folder"):
        stamp_or_none(Store(), base)
