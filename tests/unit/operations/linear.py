"""What the tests of linear algebra share: an output area that counts, and LAPACK's ratios."""

import numpy as np

from yarn_accel.operations import get
from yarn_accel.operations.operation import converted
from yarn_accel.wire import TensorSpec

LIMIT = 30.0
"""LAPACK's own tests accept ratios below it."""

PRECISIONS = [("<f8", {}), ("<f4", {}), ("<f4", {"compute": "f64"}), ("<f8", {"reply": "f32"})]
"""Element type of the inputs, and parameters that change it."""


class Area:
    """An output area that counts what is taken from it, rounded up as the worker rounds it."""

    def __init__(self):
        self.n_bytes = 0

    def place(self, name, shape, dtype, order):
        array = np.full(shape, 77, dtype=dtype, order=order)
        self.n_bytes += -(-array.nbytes // 64) * 64
        return array


def spec(array):
    return TensorSpec(array.dtype.str, array.shape, "C" if array.flags.c_contiguous else "F")


def run(name, *arrays, **params):
    """Run on copies as a worker does: checked first, results contiguous, no more memory than announced."""
    arrays = [array.copy(order="K") for array in arrays]
    operation, area = get(name), Area()
    given = [spec(array) for array in arrays]
    specs = operation.computed_specs(given, params)
    operation.check(specs, params)
    inputs, _ = converted(arrays, specs)
    outcome = operation.run(inputs, params, area.place)
    kept = [found for found in outcome.arrays.values() if any(found is array for array in inputs)]
    private = sum(-(-array.nbytes // 64) * 64 for array in kept if not any(array is a for a in arrays))
    assert area.n_bytes + private <= operation.area_bytes(given, params)
    assert operation.flops(specs, params) >= 0
    assert operation.bytes_moved(specs, params) > 0
    for array in outcome.arrays.values():
        assert array.flags.c_contiguous or array.flags.f_contiguous
    return outcome


def general(shape, dtype="<f8", order="F", seed=0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return np.array(values, dtype=dtype, order=order)


def positive_definite(shape, dtype="<f8", order="F", seed=0):
    a = general(shape, "<c16" if np.dtype(dtype).kind == "c" else "<f8", seed=seed)
    product = a @ np.swapaxes(a, -1, -2).conj() + shape[-1] * np.eye(shape[-1])
    return np.array((product + np.swapaxes(product, -1, -2).conj()) / 2, dtype=dtype, order=order)


def lower_triangle(matrix):
    """LAPACK's packed storage: the lower triangle column after column."""
    n = matrix.shape[-1]
    rows, columns = np.tril_indices(n)
    order = np.lexsort((rows, columns))
    return np.ascontiguousarray(matrix[..., rows[order], columns[order]])


def norm(matrix):
    return np.abs(matrix).sum(axis=-2).max(axis=-1)


def ratio(error, scale, n, dtype):
    """LAPACK's ratio with the worst item of a stack: norm(error) / (scale * n * eps)."""
    eps = np.finfo(dtype).eps / 2
    worst = np.max(norm(error.astype(np.float64)) / np.maximum(scale, np.finfo(np.float64).tiny))
    return float(worst / (n * eps))


def permuted(matrix, pivots):
    """The rows in the order that the swaps i <-> pivots[i] lead to; stacks too."""
    result = np.array(matrix, order="C")
    items, all_swaps = result.reshape(-1, *matrix.shape[-2:]), pivots.reshape(-1, pivots.shape[-1])
    for item, swaps in zip(items, all_swaps, strict=True):
        for i, j in enumerate(swaps):
            item[[i, j]] = item[[j, i]]
    return result


def householder_q(packed, scalars):
    """Q (m, min(m, n)) from LAPACK's reflectors, the plain way."""
    m, least = packed.shape[-2], scalars.shape[-1]
    q = np.eye(m)
    for j in range(least):
        v = np.concatenate([np.zeros(j), [1.0], packed[j + 1 :, j].astype(np.float64)])
        q = q @ (np.eye(m) - float(scalars[j]) * np.outer(v, v))
    return q[:, :least]


def compare_lu(found, expected, matrix):
    """Two outcomes of LU of complex numbers: each partial pivoting, maybe by another size of a number.

    LAPACK compares the real part's size and the imaginary part's, added; cuSOLVER the modulus.
    """
    assert list(found.arrays) == list(expected.arrays)
    assert found.info == expected.info
    for key, array in expected.arrays.items():
        assert (found.arrays[key].dtype, found.arrays[key].shape) == (array.dtype, array.shape)
    arrays, (m, n) = found.arrays, matrix.shape[-2:]
    least = min(m, n)
    packed = arrays.get("lu")
    lower = arrays["l"] if packed is None else np.tril(packed[..., :least], -1) + np.eye(m, least)
    upper = arrays["u"] if packed is None else np.triu(packed[..., :least, :])
    assert np.abs(lower).max() < 1.4143, "more than the square root of 2: not the largest was taken"
    error = permuted(matrix, arrays["piv"]) - lower.astype("<c16") @ upper
    assert ratio(np.abs(error), norm(matrix), max(m, n), lower.dtype) < LIMIT


def compare(found, expected, dtype):
    """Two outcomes: the same but for rounding."""
    assert list(found.arrays) == list(expected.arrays)
    assert found.info == expected.info
    dtypes = {dtype, *(array.dtype.str for array in expected.arrays.values())}
    tolerance = 2e-3 if dtypes & {"<f4", "<c8"} else 1e-9
    for key, array in expected.arrays.items():
        assert (found.arrays[key].dtype, found.arrays[key].shape) == (array.dtype, array.shape)
        # A column's sign is free in QR, but Householder's choice of it is everybody's.
        np.testing.assert_allclose(found.arrays[key], array, atol=tolerance * max(1, np.abs(array).max()))
