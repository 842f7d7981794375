"""What we write numpy reads, what numpy writes we read; what is broken is refused by name."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.errors import RejectedError
from yarn_accel.pipeline.npz import npz_parts, read_npy, read_npz

ARRAYS = {
    "q": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "piv": np.arange(5, dtype=np.int32),
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(2.5),
    "large": np.random.default_rng(1).standard_normal((300, 400)),
}


def written(arrays):
    return b"".join(npz_parts(arrays))


def assert_equal(left, right):
    assert list(left) == list(right)
    for name, array in left.items():
        assert np.array_equal(array, right[name])
        assert array.dtype == right[name].dtype


def test_numpy_reads_what_we_write():
    with np.load(io.BytesIO(written(ARRAYS))) as loaded:
        assert_equal(ARRAYS, dict(loaded.items()))
        assert loaded["q"].flags.f_contiguous


def test_we_read_what_we_and_numpy_write():
    assert_equal(ARRAYS, read_npz(memoryview(written(ARRAYS)), "x"))
    file = io.BytesIO()
    np.savez(file, **ARRAYS)
    assert_equal(ARRAYS, read_npz(memoryview(file.getvalue()), "x"))


def test_reading_copies_nothing():
    content = np.frombuffer(written(ARRAYS), np.uint8).copy()
    assert np.shares_memory(read_npz(content.data, "x")["large"], content)


def test_every_array_we_write_is_aligned_in_the_file():
    content = np.frombuffer(written(ARRAYS), np.uint8)
    start = content.__array_interface__["data"][0]
    for name, array in read_npz(content.data, "x").items():
        assert (array.__array_interface__["data"][0] - start) % 64 == 0 or not array.size, name


def test_writing_copies_no_large_array():
    parts = [part for part in npz_parts(ARRAYS) if isinstance(part, memoryview)]
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), ARRAYS["large"]) for part in parts)


def test_an_array_beyond_one_piece_is_whole():
    array = np.random.default_rng(2).integers(0, 255, 40 << 20, dtype=np.uint8)
    assert np.array_equal(read_npz(memoryview(written({"a": array})), "x")["a"], array)


def test_a_compressed_file_is_refused():
    file = io.BytesIO()
    np.savez_compressed(file, a=np.eye(3))
    with pytest.raises(RejectedError, match=r"x\[a\.npy\]: compressed"):
        read_npz(memoryview(file.getvalue()), "x")


def test_objects_are_refused():
    file = io.BytesIO()
    np.save(file, np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(RejectedError, match=r"\|O are not taken"):
        read_npy(memoryview(file.getvalue()), "x")


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': 1, 'shape': (1,)}",
        b"{'descr': '<f8'}",
        b"[",
        b"\0",
        b"1",
        b"'" * 99,
        b"",
    ],
)
def test_a_header_that_is_none_is_refused(header):
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(8)
    with pytest.raises(RejectedError, match=r"not an \.npy file"):
        read_npy(memoryview(content), "x")


def test_an_npy_cut_short_is_refused():
    file = io.BytesIO()
    np.save(file, np.eye(3))
    with pytest.raises(RejectedError, match="71 bytes do not make shape"):
        read_npy(memoryview(file.getvalue()[:-1]), "x")


def test_a_zip_of_something_else_is_refused():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(RejectedError, match=r"not an \.npy file"):
        read_npz(memoryview(file.getvalue()), "x")


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_but_never_crashes(data):
    content = bytearray(written({"a": np.eye(3), "b": np.arange(4)}))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        arrays = read_npz(memoryview(bytes(content)), "x")
    except RejectedError as error:
        assert str(error).startswith("x")
    else:
        assert all(isinstance(array, np.ndarray) for array in arrays.values())
