"""Arrays as memory, and values as JSON."""

import json
import sys
import types

import numpy as np
import pytest

from yarn_accel.pipeline.arrays import array_at, plain
from yarn_accel.wire import TensorSpec


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1), (4,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_received_bytes_are_the_array(shape, order):
    source = np.asarray(np.random.default_rng(1).standard_normal(shape), order=order)
    spec = TensorSpec("<f8", shape, order)
    memory = bytearray(source.tobytes(order=order))
    assert np.array_equal(source, array_at(memoryview(memory), spec))


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
