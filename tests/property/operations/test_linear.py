"""Any shape, order and element type: the ratios hold, memory is as announced, an item is its own matrix."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.operations.linear import LIMIT, general, norm, permuted, positive_definite, ratio, run

SIZES = st.integers(1, 24) | st.sampled_from([63, 64, 65, 130])
DTYPES = st.sampled_from(["<f4", "<f8"])
ORDERS = st.sampled_from(["C", "F"])
SEEDS = st.integers(0, 2**32 - 1)
EXPONENTS = st.integers(-30, 30)


@settings(max_examples=examples(60), deadline=None)
@given(SIZES, SIZES, DTYPES, ORDERS, EXPONENTS, SEEDS, st.sampled_from(["packed", "separate"]))
def test_lu_and_qr(m, n, dtype, order, exponent, seed, form):
    matrix = general((m, n), dtype, order, seed) * np.dtype(dtype).type(2.0**exponent)
    exact, least = matrix.astype(np.float64), min(m, n)
    factors = [a.astype(np.float64) for a in run("lu", matrix, form=form).arrays.values()]
    packed = factors[0]
    lower = np.tril(packed[:, :least], -1) + np.eye(m, least)
    upper = np.triu(packed[:least]) if form == "packed" else factors[1]
    pivots = factors[-1].astype(int)
    assert ratio(permuted(exact, pivots) - lower @ upper, norm(exact), n, dtype) < LIMIT
    q, r = (a.astype(np.float64) for a in run("qr", matrix).arrays.values())
    assert ratio(exact - q @ r, norm(exact), m, dtype) < LIMIT
    assert ratio(q.T @ q - np.eye(least), 1.0, m, dtype) < LIMIT


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 5), SIZES, DTYPES, ORDERS, SEEDS, st.sampled_from(["lu", "qr", "cholesky"]))
def test_a_stack_is_its_items(n_items, n, dtype, order, seed, name):
    stack = positive_definite((n_items, n, n), dtype, order, seed)
    together = run(name, stack).arrays
    for i in range(n_items):
        alone = run(name, np.array(stack[i], order="C")).arrays
        for key, array in alone.items():
            # LAPACK takes another path for another triangle; the factor is the same but for rounding.
            limit = 1e3 * np.finfo(dtype).eps * n
            np.testing.assert_allclose(together[key][i], array, rtol=limit, atol=limit * n)


@settings(max_examples=examples(60), deadline=None)
@given(SIZES, st.integers(0, 4), DTYPES, ORDERS, SEEDS, st.sampled_from(["lu", "qr", "cholesky"]))
def test_solve_undoes_the_product(n, n_right, dtype, order, seed, kind):
    """For well conditioned matrices, so that the solution itself can be compared."""
    matrix = positive_definite((n, n), dtype, order, seed)
    expected = general((n, n_right) if n_right else (n,), "<f8", order, seed + 1)
    b = np.array(matrix.astype(np.float64) @ expected, dtype=dtype, order=order)
    factors = run(kind, matrix).arrays.values()
    x = run("solve", *factors, b, factors=kind).arrays["x"]
    assert x.shape == expected.shape
    np.testing.assert_allclose(x, expected, atol=1e3 * n * np.finfo(dtype).eps)


@settings(max_examples=examples(60), deadline=None)
@given(SIZES, SIZES, SIZES, DTYPES, ORDERS, ORDERS, SEEDS)
def test_gemm(m, k, n, dtype, order_a, order_b, seed):
    a, b = general((m, k), dtype, order_a, seed), general((k, n), dtype, order_b, seed + 1)
    product = run("gemm", a, b).arrays["c"].astype(np.float64)
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert ratio(product - a @ b, norm(a) * norm(b), k, dtype) < LIMIT
