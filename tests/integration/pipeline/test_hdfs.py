"""References into a real HDFS: read, factorize, write beside, rename, check."""

import os
import signal

import numpy as np
import pytest

from tests.fixtures.waiting import until
from yarn_accel import storage
from yarn_accel.client.calls import Call, Reference
from yarn_accel.client.client import Client
from yarn_accel.errors import StorageError
from yarn_accel.storage import Store
from yarn_accel.wire import TensorSpec

pytestmark = pytest.mark.hadoop
FOLDER = "hdfs:///tmp/pipeline-test"
RNG = np.random.default_rng(5)


@pytest.fixture
def store(hadoop_cluster):
    store = Store(hadoop_cluster.conf_dir)
    store.delete(FOLDER)
    yield store
    store.delete(FOLDER)


def test_what_is_written_is_read_back(store):
    content = RNG.bytes(9_000_001)
    parts = [content[:10], memoryview(content)[10:5_000_000], bytearray(content[5_000_000:])]
    assert store.write_atomic(f"{FOLDER}/a/b.bin", parts) == len(content)
    assert store.size(f"{FOLDER}/a/b.bin") == len(content)
    assert store.read_bytes(f"{FOLDER}/a/b.bin", len(content)) == content
    target = bytearray(len(content))
    store.read_into(f"{FOLDER}/a/b.bin", memoryview(target))
    assert target == content
    assert store.list(f"{FOLDER}/a") == [f"{FOLDER}/a/b.bin"]


def test_an_existing_file_is_replaced(store):
    store.write_atomic(f"{FOLDER}/x", [b"old and long"])
    store.write_atomic(f"{FOLDER}/x", [b"new"])
    assert store.read_bytes(f"{FOLDER}/x", 100) == b"new"


def test_an_empty_file(store):
    store.write_atomic(f"{FOLDER}/empty", [])
    assert store.read_bytes(f"{FOLDER}/empty", 0) == b""
    store.read_into(f"{FOLDER}/empty", memoryview(bytearray()))


def test_errors_name_the_uri_and_whether_to_try_again(store):
    with pytest.raises(StorageError, match="no such file") as caught:
        store.size(f"{FOLDER}/missing")
    assert f"{FOLDER}/missing" in str(caught.value)
    assert not caught.value.transient
    store.write_atomic(f"{FOLDER}/x", [b"12345"])
    with pytest.raises(StorageError, match="at most 4"):
        store.read_bytes(f"{FOLDER}/x", 4)
    with pytest.raises(StorageError, match="folder"):
        store.size(FOLDER)
    assert not store.exists(f"{FOLDER}/missing")
    assert not store.delete(f"{FOLDER}/missing")


@pytest.mark.slow
def test_a_datanode_that_hangs_is_an_error_and_then_another_replica_is_read(
    store, hadoop_cluster, monkeypatch
):
    """All DataNodes hang, then one does; ours is a shorter limit here, so that the test is."""
    monkeypatch.setattr(storage, "_DATA_S", 5.0)
    content = RNG.bytes(9_000_001)
    store.write_atomic(f"{FOLDER}/x", [content])
    refusals = []

    def read():
        try:
            return store.read_bytes(f"{FOLDER}/x") == content
        except StorageError as error:
            refusals.append(error)
            assert error.transient
            return False

    stopped = []
    try:
        workers = hadoop_cluster.plan.workers
        stopped.extend(hadoop_cluster.kill(each.name, "datanode", signal.SIGSTOP) for each in workers)
        assert not read()
        assert "HDFS does not answer: no data of a DataNode within 5 s" in str(refusals[0])
        while len(stopped) > 1:
            os.kill(stopped.pop(), signal.SIGCONT)
        until(read, "another replica is read")
        print(f"{len(refusals)} tries refused: {[str(each) for each in refusals]}")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    until(lambda: hadoop_cluster.status().is_healthy, "all daemons are healthy")


@pytest.mark.parametrize("operation", ["lu", "qr"])
def test_a_factorization_by_reference(store, hadoop_cluster, start_server, credential, operation):
    a = np.asfortranarray(RNG.standard_normal((300, 300)))
    store.write_atomic(f"{FOLDER}/a.f8", [a.tobytes(order="F")])
    server = start_server(
        hdfs_conf_dir=str(hadoop_cluster.conf_dir),
        tenants={"*": {"read_prefixes": ["hdfs://"], "write_prefixes": ["hdfs://"]}},
    )
    source = Reference(f"{FOLDER}/a.f8", TensorSpec("<f8", (300, 300), "F"))
    output = f"{FOLDER}/factors/a.npz"
    with Client(server.endpoint, credential) as client:
        reply = client.call(Call("k", operation, {}, (source,), output))
        assert reply.tensors == {}
        checked = client.call(Call("r", "residual", {"operation": operation}, (source, Reference(output))))
        assert checked.info["passed"] is True, checked.info
        with pytest.raises(StorageError, match="no such file"):
            client.call(Call("m", operation, {}, (Reference(f"{FOLDER}/none", source.spec),)))
    assert store.list(f"{FOLDER}/factors") == [output]
