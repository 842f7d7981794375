import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from yarn_accel.client.calls import Call, Reference, Tensor
from yarn_accel.client.fallback import LocalExecutor
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.wire import TensorSpec

MATRIX = np.asfortranarray(np.random.default_rng(5).standard_normal((20, 20)))
SPEC = TensorSpec("<f8", (20, 20), "F")


@pytest.fixture
def matrix_uri(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(MATRIX.tobytes("F"))
    return path.as_uri()


def test_by_value_leaves_the_callers_bytes_alone():
    data = bytearray(MATRIX.tobytes("F"))
    before = bytes(data)
    reply = LocalExecutor().call(Call("k", "lu", inputs=(Tensor(SPEC, data),)))
    assert bytes(data) == before
    assert list(reply.tensors) == ["lu", "piv"]
    assert reply.device == "cpu:fallback"
    assert (reply.bytes_in, reply.bytes_out) == (3200, 3200 + 80)
    assert set(reply.seconds) == {"read", "queue", "compute", "write", "total"}


def test_by_reference_to_a_file_and_back(matrix_uri, tmp_path):
    output = (tmp_path / "new" / "factors.npz").as_uri()
    executor = LocalExecutor()
    reply = executor.call(Call("k", "qr", inputs=(Reference(matrix_uri, SPEC),), output_uri=output))
    assert reply.tensors == {}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["factors.npz"]
    inputs = (Reference(matrix_uri, SPEC), Reference(output))
    checked = executor.call(Call("k2", "residual", {"operation": "qr"}, inputs))
    assert checked.info["passed"]
    with np.load(tmp_path / "new" / "factors.npz") as factors:
        np.testing.assert_allclose(factors["q"] @ factors["r"], MATRIX, atol=1e-12)


def test_files_that_describe_themselves(tmp_path):
    np.save(tmp_path / "a.npy", MATRIX)
    (tmp_path / "raw.bin").write_bytes(b"abc")
    inputs = (Reference(f"file://{tmp_path}/a.npy"), Reference(f"file:{tmp_path}/raw.bin"))
    reply = LocalExecutor().call(Call("k", "echo", inputs=inputs))
    np.testing.assert_array_equal(reply.tensors["input_0"].array(), MATRIX)
    assert reply.tensors["input_1"].array().tobytes() == b"abc"


def test_hdfs_goes_through_webhdfs():
    class Hdfs:
        def __init__(self):
            self.written = {}

        def open(self, uri, max_bytes):
            return MATRIX.tobytes("F")

        def create(self, uri, content):
            self.written[uri] = content

    call = Call("k", "lu", inputs=(Reference("hdfs://m/a", SPEC),), output_uri="hdfs://m/o.npz")
    hdfs = Hdfs()
    LocalExecutor(hdfs).call(call)
    with np.load(io.BytesIO(hdfs.written["hdfs://m/o.npz"])) as written:
        assert written.files == ["lu", "piv"]


def test_a_file_of_the_wrong_length_is_the_records_fault(matrix_uri):
    with pytest.raises(RejectedError, match="needs 3528 bytes, found 3200") as caught:
        LocalExecutor().call(Call("k", "lu", inputs=(Reference(matrix_uri, TensorSpec("<f8", (21, 21))),)))
    assert caught.value.code == "wrong-length"


def test_a_broken_npz_is_the_records_fault(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(RejectedError, match=r"x\.npz") as caught:
        LocalExecutor().call(Call("k", "echo", inputs=(Reference(f"file://{tmp_path}/x.npz"),)))
    assert caught.value.code == "bad-npz"


def test_an_error_of_plain_bytes_says_which_name_made_them_so(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(32))
    with pytest.raises(RejectedError, match=r"a\.bin is read as plain bytes because its name ends") as caught:
        LocalExecutor().call(Call("k", "lu", inputs=(Reference(f"file://{tmp_path}/a.bin"),)))
    assert caught.value.code == "wrong-shape"
    with pytest.raises(RejectedError) as caught:
        LocalExecutor().call(Call("k", "lu", inputs=(Tensor.of(np.zeros(32, np.uint8)),)))
    assert "name" not in caught.value.message


def test_a_missing_file(tmp_path):
    with pytest.raises(StorageError, match="no such file"):
        LocalExecutor().call(Call("k", "lu", inputs=(Reference(f"file://{tmp_path}/nope", SPEC),)))


def test_a_file_over_the_limit(matrix_uri):
    with pytest.raises(RejectedError, match="3200 bytes, at most 3199") as caught:
        LocalExecutor(max_bytes=3199).call(Call("k", "lu", inputs=(Reference(matrix_uri, SPEC),)))
    assert caught.value.code == "request-too-large"


def test_an_archive_that_inflates_beyond_the_limit(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros((100, 100)))
    with pytest.raises(RejectedError, match="80000 bytes, at most 10000") as caught:
        LocalExecutor(max_bytes=10000).call(Call("k", "lu", inputs=(Reference(f"file://{tmp_path}/x.npz"),)))
    assert caught.value.code == "request-too-large"


def test_one_array_by_its_name_and_what_reading_it_changed(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.eye(2), b=np.arange(3, dtype=">f4"))
    uri = f"file://{tmp_path}/x.npz#b"
    reply = LocalExecutor().call(Call("k", "echo", inputs=(Reference(uri),)))
    assert reply.tensors["input_0"].array().tolist() == [0, 1, 2]
    assert reply.info["converted"] == f"file://{tmp_path}/x.npz[b]: >f4 to <f4"


def test_objects_in_an_npy_are_not_unpickled(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(RejectedError):
        LocalExecutor().call(Call("k", "echo", inputs=(Reference(f"file://{tmp_path}/o.npy"),)))


def test_errors_of_the_operation_pass_through():
    with pytest.raises(RejectedError, match="order 1"):
        LocalExecutor().call(Call("k", "cholesky", inputs=(Tensor.of(-np.eye(3)),)))
    with pytest.raises(RejectedError, match=r"unknown operation 'x'; known: .*cholesky"):
        LocalExecutor().call(Call("k", "x"))


def test_without_numpy_the_cure_is_named():
    """In a fresh interpreter that has no site-packages."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from yarn_accel.client.calls import Call, Tensor\n"
        "from yarn_accel.client.fallback import LocalExecutor\n"
        "from yarn_accel.errors import StartupError, UnavailableError\n"
        "from yarn_accel.wire import TensorSpec\n"
        "try:\n"
        "    LocalExecutor().call(Call('k', 'lu', inputs=(Tensor(TensorSpec('<f8', (1, 1)), bytes(8)),)))\n"
        "except UnavailableError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    print(Call.of('lu', [[1, 2], [3, 4.5]]).inputs[0].spec)\n"
        "    print(Call.of('lu', [[1], [3, 4.5]]).error)\n"
        "    class Array: __array__ = None\n"
        "    Call.of('lu', Array())\n"
        "except StartupError as error:\n"
        "    print(error)\n"
    )
    root = str(Path(__file__).parents[3])
    argv = [sys.executable, "-I", "-S", "-c", program, root]
    completed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    assert "No module named 'numpy'" in completed.stdout
    assert "install numpy, scipy and Pillow on the node, or start a pipeline server" in completed.stdout
    assert "TensorSpec(dtype='<f8', shape=(2, 2), order='C')" in completed.stdout
    assert "input 0: a ragged list: row 1 has 2 element(s), row 0 has 1" in completed.stdout
    assert (
        "type Array needs numpy, which this node does not have: install numpy there, or" in completed.stdout
    )
