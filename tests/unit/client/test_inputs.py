"""Inputs by value: lists as numpy reads them, arrays of other classes as arrays, nothing copied twice."""

import array
import ctypes
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.client import Call, RejectedError, Tensor, connect

N_BYTES = 8 << 20
SHAPES = st.lists(st.integers(0, 3), max_size=4)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.integers(-9, 9), st.floats(), st.booleans(), st.complex_numbers()
)


@st.composite
def nested(draw):
    """Lists of lists of one kind of numbers, or of several."""
    kind = draw(st.sampled_from([NUMBERS, st.integers(-9, 9), st.floats(), st.booleans()]))

    def build(shape):
        if not shape:
            return draw(kind)
        return draw(st.sampled_from([list, tuple]))([build(shape[1:]) for _ in range(shape[0])])

    return build(draw(SHAPES))


@given(nested())
@settings(max_examples=examples(500), deadline=None)
def test_a_list_of_numbers_is_read_as_numpy_reads_it(item):
    expected = np.asarray(item)
    try:
        tensor = Call.of("echo", item).inputs[0]
    except IndexError:
        assert expected.dtype == object
        return
    if expected.dtype != object:  # numpy gives up where one integer is beyond int64 and another is negative
        assert (tensor.spec.dtype, tensor.spec.shape) == (expected.dtype.str, expected.shape)
        np.testing.assert_array_equal(tensor.array(), expected)


class Series:
    """Has the attributes of a Series of pandas: `flags` that are not numpy's, a `dtype`, and `__array__`."""

    flags = object()
    dtype = np.dtype("f8")

    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0])


def test_arrays_of_other_classes_are_read_as_arrays():
    a = np.array([[4.0, 3.0], [6.0, 3.0]])
    with connect("inline") as accel:
        for item in (np.ma.masked_array(a, mask=False), a.view(np.matrix), np.float64(3) * a):
            assert accel.lu(item).piv.tolist() == [1, 1]
        assert accel.solve(accel.lu(a), Series()).x.shape == (2,)
        assert accel.call("echo", np.float32(2.5)).bytes_in == 4


@pytest.mark.parametrize(
    ("buffer", "dtype", "shape"),
    [
        (array.array("d", [1.0, 2.0]), "<f8", (2,)),
        (memoryview(array.array("d", [1.0, 2.0])).cast("B").cast("d", (2, 1)), "<f8", (2, 1)),
        ((ctypes.c_int16 * 3)(1, 2, 3), "<i2", (3,)),
        (memoryview(bytearray(6))[::2], "|u1", (3,)),
        (memoryview(b""), "|u1", (0,)),
        (np.ones((2, 3), order="F").data, "<f8", (2, 3)),
        (np.array(3.0).data, "<f8", ()),
        (np.ones(2, "c8").data, "<c8", (2,)),
    ],
)
def test_a_buffer_says_its_own_element_type_and_shape(buffer, dtype, shape):
    tensor = Tensor.of_buffer(buffer)
    assert (tensor.spec.dtype, tensor.spec.shape) == (dtype, shape)
    np.testing.assert_array_equal(tensor.array(), np.asarray(buffer))


def _views():
    whole = np.zeros((1024, 2048))
    read_only = whole[:, :1024].copy()
    read_only.flags.writeable = False
    return {
        "read-only": (read_only, 0),
        "read-only, columns first": (np.asfortranarray(read_only), 0),
        "strided": (whole[:, ::2], 1),
        "reversed": (whole[::-1, :1024], 1),
        "axes swapped": (np.zeros((64, 256, 64)).transpose(1, 0, 2), 1),
        "big-endian": (read_only.astype(">f8"), 1),
        "big-endian, strided": (whole.astype(">f8")[:, ::2], 1),
        "big-endian, axes swapped": (np.zeros((64, 256, 64), ">f8").transpose(1, 0, 2), 1),
    }


@pytest.mark.parametrize("name", sorted(_views()))
def test_an_array_is_copied_once_at_most(name):
    item, n_copies = _views()[name]
    tracemalloc.start()
    try:
        call = Call.of("echo", item)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_copies * N_BYTES <= peak_bytes < (n_copies + 0.5) * N_BYTES
    np.testing.assert_array_equal(call.inputs[0].array(), item)


def test_numbers_of_numpy_are_parameters_as_the_numbers_that_they_are():
    given_params = {"a": np.int64(1), "b": [np.float32(0.5), (np.bool_(True),)], "c": {"d": np.array(7)}}
    found = Call.of("echo", **given_params, e=np.array([8, 8])).params
    assert repr(found) == "{'a': 1, 'b': [0.5, [True]], 'c': {'d': 7}, 'e': [8, 8]}"
    with connect("inline") as accel:
        assert accel.kmeans([[0.0], [9.0]], k=np.int64(2), seed=np.array(1)).labels.shape == (2,)
        assert accel.call("echo", b"x", deadline_s=np.float32(60), priority=np.int8(1)).device


def test_a_result_that_is_an_input_again_needs_a_name_in_npz(tmp_path):
    with connect("inline") as accel:
        named = accel.lu([[4.0, 3.0], [6.0, 3.0]], output=tmp_path / "f.npz")
        assert accel.solve(named, [10.0, 12.0]).x.round(9).tolist() == [1.0, 2.0]
        other = accel.lu([[4.0, 3.0], [6.0, 3.0]], output=tmp_path / "f.out")
        assert sorted(np.load(tmp_path / "f.out")) == ["lu", "piv"]
        with pytest.raises(RejectedError, match=r"end an output that is an input later in \.npz"):
            accel.solve(other, [10.0, 12.0])


@pytest.mark.parametrize("images", [b"one", [1, 2], ["text"]])
def test_images_that_are_no_bytes_are_rejected(images):
    with connect("inline") as accel, pytest.raises(RejectedError, match="not the bytes of each"):
        accel.features(images)
