"""A request is refused with the same code wherever it is computed: in this process, or by a server."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.client import AccelError, Call, connect

SETTINGS = {"workers": 1, "standby_workers": 0, "calibrate": False}
ONE = np.ones((1, 1))
NUMBERS = itertools.count(10**9)

numbers = st.one_of(
    st.integers(-10, 10),
    st.sampled_from([math.nan, math.inf, -1.0, 0.0, 0.5, 1e-300, 1e10, 2**53, 2**70, True, None, "4"]),
    st.sampled_from([np.int64(1), np.float32(0.5), np.bool_(True), np.array(2), np.array([8, 8, 8]), 1j]),
)
values = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
names = st.sampled_from(
    ["gemm", "lu", "echo", "kmeans", "knn", "lbp", "cholesky", "x", "", "a b", "é", "o" * 65]
)
params = st.dictionaries(
    st.sampled_from(["k", "seed", "form", "triangle", "hsv_bins", "tolerance", "n\n", "x" * 70, ""]),
    values,
    max_size=2,
)
inputs = st.lists(
    st.sampled_from(
        [
            ONE,
            [[1.0]],
            [[1, 2], [3]],
            [1.0],
            3,
            None,
            np.eye(2) * np.nan,
            np.zeros((0, 2)),
            np.ones(2, "M8[s]"),
            *("", "file:///no/such/file.npy", "u" * 5000, b"x"),
            np.ones(3, ">f4"),
            np.ones((4, 4))[::2, ::2],
        ]
    ),
    max_size=3,
)
requests = st.fixed_dictionaries(
    {"operation": names, "params": params, "inputs": inputs},
    optional={
        "key_chars": st.sampled_from([1, 240, 241, 1000]),
        "deadline_s": numbers,
        "priority": numbers,
        "output_uri": st.sampled_from(["u" * 5000, "\0", "file:///no/such\x01", "ftp://x/y.npz"]),
    },
)


@pytest.fixture(scope="module")
def runners():
    local = connect("local", patience_s=60, fallback=False, server_settings=SETTINGS)
    with local, connect("inline") as inline:
        yield local, inline


def code_of(accel, request, number):
    request = dict(request)
    key = f"{number}".rjust(request.pop("key_chars", 20), "k")
    call = Call(key, request.pop("operation"), request.pop("params"), tuple(request.pop("inputs")), **request)
    try:
        return "done", sorted(accel.call(call).tensors)
    except AccelError as error:
        return type(error).__name__, error.code


@given(requests)
@example({"operation": "echo", "params": {}, "inputs": [ONE] * 65})
@example({"operation": "gemm", "params": {}, "inputs": [ONE, ONE], "deadline_s": math.nan})
@example({"operation": "kmeans", "params": {"k": np.int64(1)}, "inputs": [ONE]})
@example({"operation": "echo", "params": {"x": "y" * (1 << 20)}, "inputs": [ONE]})
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
def test_local_and_inline_refuse_the_same(runners, request):
    number = next(NUMBERS)
    local, inline = (code_of(accel, request, number) for accel in runners)
    assert local == inline
