"""Arrays as memory, and values as JSON."""

import json
import sys
import types

import numpy as np
import pytest

from yarn_accel.errors import LocalProtocolError
from yarn_accel.pipeline.arrays import array_at, flat_bytes, plain, spec_of
from yarn_accel.wire import TensorSpec


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1), (4,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_received_bytes_are_the_array(shape, order):
    source = np.asarray(np.random.default_rng(1).standard_normal(shape), order=order)
    spec = TensorSpec("<f8", shape, order)
    target = array_at(memoryview(bytearray(spec.nbytes)), spec)
    flat_bytes(target)[:] = source.tobytes(order=order)
    assert np.array_equal(source, target)
    assert bytes(flat_bytes(target)) == source.tobytes(order=order)
    assert spec_of(target).shape == shape


def test_the_memory_is_the_arrays_own():
    array = np.zeros((3, 4), order="F")
    flat_bytes(array)[0:8] = np.float64(2.5).tobytes()
    assert array[0, 0] == 2.5


def test_what_does_not_travel_is_refused():
    with pytest.raises(LocalProtocolError, match="object"):
        spec_of(np.array([object()]))


def test_values_become_plain():
    value = {
        "n": np.int64(3),
        "x": np.float32(0.5),
        "bad": [np.nan, float("inf"), np.float64("-inf")],
        "array": np.arange(3),
        "flag": np.bool_(True),
        4: ("a", None),
    }
    wanted = {"n": 3, "x": 0.5, "bad": [None] * 3, "array": [0, 1, 2], "flag": True, "4": ["a", None]}
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == wanted


def test_values_are_made_plain_while_another_thread_loads_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", types.ModuleType("numpy"))
    assert plain({"a": (1, float("nan"))}) == {"a": [1, None]}
