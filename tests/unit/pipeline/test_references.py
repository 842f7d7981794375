"""What may be touched by URI, and how the store behaves; local files here, HDFS in the integration tests."""

import numpy as np
import pytest

from yarn_accel.adapters.hdfs import TMP_FOLDER, Store, split_uri
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.pipeline.references import Prefixes


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


def test_the_default_allows_hdfs_and_nothing_local():
    Prefixes(("hdfs://",)).check("hdfs://nn/x")
    with pytest.raises(RejectedError):
        Prefixes(("hdfs://",)).check("file:///x")


def test_a_uri_falls_into_its_parts():
    assert split_uri("hdfs://nn:9000/a//b/") == ("hdfs", "nn:9000", "/a/b")
    assert split_uri("file:///a%20b") == ("file", "", "/a b")


@pytest.fixture
def base(tmp_path):
    return f"file://{tmp_path}"


def test_a_file_is_written_whole_or_not_at_all(base, tmp_path):
    store = Store()

    def parts():
        yield b"first"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert [path.name for path in (tmp_path / "out").iterdir()] == [TMP_FOLDER]
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"out/x: .*No space left"):
        store.write_atomic(f"{base}/out/x", parts())
    assert list((tmp_path / "out" / TMP_FOLDER).iterdir()) == []
    assert store.write_atomic(f"{base}/out/x", [b"abc", memoryview(b"de")]) == 5
    assert store.read_bytes(f"{base}/out/x", 5) == b"abcde"
    assert store.delete(f"{base}/out/{TMP_FOLDER}")
    assert store.list(f"{base}/out") == [f"{base}/out/x"]


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
