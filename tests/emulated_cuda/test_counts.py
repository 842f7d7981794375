"""What a request of 1 MB, and a batch of small ones, ask of a GPU: no more than today.

Without a GPU this is what can be judged of the time beside its kernels: each copy, launch and wait costs some
microseconds of the host whatever it carries. Whoever needs more says why here; who needs less lowers the
numbers.
"""

import numpy as np
import pytest

from tests.emulated_cuda.conftest import Counts, counted
from tests.unit.operations.linear import general, positive_definite
from yarn_accel.operations import allocate, get

N = 354
"""1 MB of float64."""
CASES = {
    "lu": ({}, 1),
    "qr": ({"form": "packed"}, 1),
    "cholesky": ({}, 1),
    "gemm": ({}, 2),
}
ONE = {
    "lu": Counts(1, 1002528, 3, 1003952, 4, 5),
    "qr": Counts(1, 1002528, 3, 1005368, 3, 5),
    "cholesky": Counts(1, 1002528, 2, 1002536, 4, 4),
    "gemm": Counts(2, 2005056, 1, 1002528, 1, 2),
}
BATCH = {
    "lu": Counts(1, 524288, 3, 532992, 5, 4),
    "qr": Counts(1, 524288, 3, 541184, 3, 4),
    "cholesky": Counts(1, 524288, 2, 524800, 5, 4),
    "gemm": Counts(2, 1048576, 1, 524288, 64, 2),
}
"""A product of a stack is one launch on a GPU, where the emulation makes one for each matrix."""


def inputs(name, n, count):
    if name == "cholesky":
        return [[positive_definite((n, n))] for _ in range(count)]
    return [[general((n, n), seed=seed) for seed in range(CASES[name][1])] for _ in range(count)]


def asked(cupy, name, n, count):
    """What so many requests ask for that are computed together; everything was loaded before."""
    form = get(name).batch_form("cuda")
    params = CASES[name][0]
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(2):
            items = [(arrays, params, allocate) for arrays in inputs(name, n, count)]
            with counted() as found:
                outcomes = form(items)
    assert not [each for each in outcomes if isinstance(each, Exception)]
    return found[0]


@pytest.mark.parametrize("name", CASES)
def test_a_request_of_1_mb(cupy, name):
    found = asked(cupy, name, N, 1)
    assert (found.bytes_in, found.bytes_out) == (ONE[name].bytes_in, ONE[name].bytes_out)
    assert all(np.less_equal(found, ONE[name])), found


@pytest.mark.parametrize("name", CASES)
def test_64_of_order_32_together(cupy, name):
    found = asked(cupy, name, 32, 64)
    assert (found.bytes_in, found.bytes_out) == (BATCH[name].bytes_in, BATCH[name].bytes_out)
    assert all(np.less_equal(found, BATCH[name])), found
