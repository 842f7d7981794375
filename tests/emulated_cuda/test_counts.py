"""What a request of 1 MB, and a batch of small ones, ask of a GPU: no more than today.

Without a GPU this is what can be judged of the time beside its kernels: each copy, launch and wait costs some
microseconds of the host whatever it carries. Whoever needs more says why here; who needs less lowers the
numbers.
"""

import numpy as np
import pytest

from tests.emulated_cuda.conftest import Counts, counted
from tests.unit.operations.linear import general, positive_definite
from yarn_accel.operations import allocate, cuda_qr, get
from yarn_accel.operations.registry import OPERATIONS

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
WHOLE_COUNTS = {
    "solve": Counts(3, 35328, 2, 2052, 11, 4),
    "linsolve": Counts(2, 34816, 3, 2068, 27, 6),
    "lstsq": Counts(2, 34816, 3, 2068, 30, 6),
    "inv": Counts(1, 32768, 3, 32788, 34, 6),
    "slogdet": Counts(1, 32768, 3, 780, 7, 7),
    "svd": Counts(1, 32768, 5, 66053, 9, 8),
    "eigh": Counts(1, 32768, 4, 33285, 10, 7),
    "residual": Counts(3, 66048, 2, 16, 17, 4),
    "knn": Counts(4, 13280, 2, 1920, 7, 4),
    "kmeans_step": Counts(4, 12120, 4, 2544, 20, 8),
    "kmeans_seed": Counts(12, 12360, 4, 4848, 48, 8),
    "kmeans": Counts(142, 18000, 120, 99360, 880, 240),
    "chain": Counts(3, 35328, 4, 2316, 16, 8),
}
"""Of one request: matrices of order 64 with 4 right-hand sides, 300 points in 3 clusters."""


def inputs(name, n, count):
    if name == "cholesky":
        return [[positive_definite((n, n))] for _ in range(count)]
    return [[general((n, n), seed=seed) for seed in range(CASES[name][1])] for _ in range(count)]


def asked(cupy, name, items):
    """What these requests ask for that are computed together; everything was loaded before."""
    operation = get(name)
    form, batch = operation.form("cuda"), operation.batch_form("cuda")
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(2):
            given = [([array.copy(order="K") for array in arrays], params) for arrays, params in items]
            with counted() as found:
                if batch is None:
                    outcomes = [form(*each) for each in given]
                else:
                    outcomes = batch([(*each, allocate) for each in given])
    assert not [each for each in outcomes if isinstance(each, Exception)]
    return found[0]


def compare(found, most):
    """The same bytes, and no more of anything else."""
    assert (found.bytes_in, found.bytes_out) == (most.bytes_in, most.bytes_out), found
    assert all(np.less_equal(found, most)), found


@pytest.fixture(autouse=True)
def our_own_qr(monkeypatch):
    """Which way is the fastest depends on the machine."""
    monkeypatch.setattr(cuda_qr, "fastest_way", cuda_qr._own_way)


@pytest.mark.parametrize("name", CASES)
def test_a_request_of_1_mb(cupy, name):
    compare(asked(cupy, name, [(arrays, CASES[name][0]) for arrays in inputs(name, N, 1)]), ONE[name])


@pytest.mark.parametrize("name", CASES)
def test_64_of_order_32_together(cupy, name):
    compare(asked(cupy, name, [(arrays, CASES[name][0]) for arrays in inputs(name, 32, 64)]), BATCH[name])


def test_qr_by_cublas_is_two_launches_more_for_the_addresses(cupy, monkeypatch):
    monkeypatch.setattr(cuda_qr, "fastest_way", lambda _: "cublas")
    found = asked(cupy, "qr", [(arrays, CASES["qr"][0]) for arrays in inputs("qr", 32, 64)])
    compare(found, BATCH["qr"]._replace(launches=BATCH["qr"].launches + 2))


def whole_problems(n, n_points):
    """Operation, inputs and parameters of what has a form for GPUs beside the factorizations."""
    matrix, right, definite = general((n, n)), general((n, 4), seed=1), positive_definite((n, n))
    factors = get("lu").run([matrix.copy(order="K")], {}).arrays
    random = np.random.default_rng(0)
    points = random.standard_normal((n_points, 4)) + 20.0 * (np.arange(n_points) % 3)[:, None]
    steps = [
        {"operation": "lu", "inputs": [0]},
        {"operation": "solve", "inputs": ["lu", "piv", 1]},
    ]
    return {
        "solve": ([factors["lu"], factors["piv"], right], {}),
        "linsolve": ([matrix, right], {}),
        "lstsq": ([matrix, right], {}),
        "inv": ([matrix], {}),
        "slogdet": ([matrix], {}),
        "svd": ([matrix], {}),
        "eigh": ([definite], {}),
        "residual": ([matrix, *factors.values()], {"operation": "lu"}),
        "knn": ([points[:32].copy(), points, np.arange(n_points) % 3], {}),
        "kmeans_step": ([points, points[:3].copy()], {}),
        "kmeans_seed": ([points], {"k": 3}),
        "kmeans": ([points], {"k": 3}),
        "chain": ([matrix, right], {"steps": steps}),
    }


WHOLE = whole_problems(64, 300)


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_problem(cupy, name):
    compare(asked(cupy, name, [WHOLE[name]]), WHOLE_COUNTS[name])


def test_every_operation_with_a_form_for_gpus_is_counted():
    """`infer` runs by onnxruntime's provider, which the emulated CUDA has no part in; images by nvJPEG's."""
    of_gpus = {name for name, operation in OPERATIONS.items() if operation.form("cuda") is not None}
    assert of_gpus - {*CASES, *WHOLE} == {"lbp", "colour", "features", "infer"}
