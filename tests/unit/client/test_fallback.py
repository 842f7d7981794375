import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


def test_hdfs_goes_through_webhdfs():
    written = {}
    hdfs = SimpleNamespace(open=lambda uri, max_bytes: MATRIX.tobytes("F"), create=written.__setitem__)
    call = Call("k", "lu", inputs=(Reference("hdfs://m/a", SPEC),), output_uri="hdfs://m/o.npz")
    LocalExecutor(hdfs).call(call)
    with np.load(io.BytesIO(written["hdfs://m/o.npz"])) as found:
        assert found.files == ["lu", "piv"]


@pytest.mark.parametrize(
    ("name", "spec", "max_bytes", "error", "said", "code"),
    [
        ("a.bin", TensorSpec("<f8", (21, 21)), None, RejectedError, "3528 bytes, found 3200", "wrong-length"),
        ("a.bin", SPEC, 3199, RejectedError, "3200 bytes, at most 3199", "request-too-large"),
        ("broken.npz", None, None, RejectedError, r"broken\.npz", "bad-npz"),
        ("zeros.npz", None, 10000, RejectedError, "80000 bytes, at most 10000", "request-too-large"),
        ("objects.npy", None, None, RejectedError, "object", "bad-npy"),
        ("nope", SPEC, None, StorageError, "no such file", "storage"),
    ],
)
def test_a_file_that_cannot_be_used_is_the_records_fault(
    matrix_uri, tmp_path, name, spec, max_bytes, error, said, code
):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no zip")
    np.savez_compressed(tmp_path / "zeros.npz", a=np.zeros((100, 100)))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    executor = LocalExecutor(**({} if max_bytes is None else {"max_bytes": max_bytes}))
    with pytest.raises(error, match=said) as caught:
        executor.call(Call("k", "lu", inputs=(Reference(f"file://{tmp_path}/{name}", spec),)))
    assert caught.value.code == code


def test_an_error_of_plain_bytes_says_which_name_made_them_so(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(32))
    with pytest.raises(RejectedError, match=r"a\.bin is read as plain bytes because its name ends") as caught:
        LocalExecutor().call(Call("k", "lu", inputs=(Reference(f"file://{tmp_path}/a.bin"),)))
    assert caught.value.code == "wrong-shape"
    with pytest.raises(RejectedError) as caught:
        LocalExecutor().call(Call("k", "lu", inputs=(Tensor.of(np.zeros(32, np.uint8)),)))
    assert "name" not in caught.value.message


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
