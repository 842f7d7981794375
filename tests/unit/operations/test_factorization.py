import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.refusals import refused
from yarn_accel.errors import RejectedError
from yarn_accel.operations import get

SHAPES = [(1, 1), (2, 2), (7, 7), (64, 64), (150, 150), (1, 5), (5, 1), (90, 40), (40, 90)]
DTYPES = ["<f4", "<f8"]


def random_matrix(shape, dtype, order="F", seed=0):
    return np.array(np.random.default_rng(seed).standard_normal(shape), dtype=dtype, order=order)


def positive_definite(n, dtype, order="F", seed=0):
    a = np.random.default_rng(seed).standard_normal((n, n)).astype(dtype)
    return np.array(a @ a.T + n * np.eye(n, dtype=dtype), dtype=dtype, order=order)


def run(name, *arrays, **params):
    return get(name).run(list(arrays), params)


def check(name, matrix):
    """Factor a copy; the ratios of the factors against the original."""
    factors = run(name, matrix.copy(order="K")).arrays
    assert {array.dtype for array in factors.values()} <= {matrix.dtype, np.dtype(np.int32)}
    return run("residual", matrix, *factors.values(), operation=name).info, factors


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["lu", "qr"])
def test_residuals_of_general_matrices(name, shape, dtype, order):
    info, _ = check(name, random_matrix(shape, dtype, order))
    assert info["passed"]
    assert info["residual"] == max(info["residuals"].values()) < 30


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.sampled_from(DTYPES),
    st.integers(-30, 30),
    st.integers(0, 2**31),
)
def test_the_limit_holds_at_any_scale(m, n, dtype, exponent, seed):
    matrix = random_matrix((m, n), dtype, seed=seed) * np.dtype(dtype).type(2.0**exponent)
    for name in ("lu", "qr"):
        assert check(name, matrix)[0]["passed"]


@pytest.mark.parametrize(("name", "result"), [("lu", "lu"), ("qr", "q"), ("cholesky", "l")])
def test_a_fortran_buffer_is_factored_where_it_lies(name, result):
    matrix = positive_definite(50, "<f8")
    assert np.shares_memory(run(name, matrix).arrays[result], matrix)


@pytest.mark.parametrize("name", ["lu", "qr", "cholesky"])
def test_a_read_only_buffer_is_left_alone(name):
    matrix = positive_definite(50, "<f8")
    before = matrix.copy()
    matrix.flags.writeable = False
    run(name, matrix)
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("k", [1, 2, 25, 50])
def test_an_indefinite_matrix_names_the_order(k):
    matrix = np.eye(50)
    matrix[k - 1, k - 1] = -1.0
    with refused("not-positive-definite", match=f"order {k} of 50 is not positive definite"):
        run("cholesky", matrix)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["lu", "qr", "cholesky"])
def test_nan_and_infinity_name_their_index(name, value, order):
    matrix = np.array(np.eye(600), order=order)
    matrix[599, 3] = value
    with refused("not-finite", match=rf"input 0: {value} at index \[599, 3\]"):
        run(name, matrix)


def test_an_asymmetric_matrix_is_no_input_for_cholesky():
    matrix = positive_definite(600, "<f8")
    matrix[580, 20] += 1.0
    with refused("not-symmetric", match=r"\[580, 20\] and \[20, 580\] differ"):
        run("cholesky", matrix)


def test_asymmetry_from_rounding_is_fine():
    matrix = positive_definite(100, "<f4")
    matrix[50, 20] = np.nextafter(matrix[50, 20], np.float32(1e9))
    assert check("cholesky", matrix)[0]["passed"]


def test_a_singular_matrix_has_an_lu_factorization():
    matrix = np.asfortranarray(np.diag([1.0, 2.0, 0.0, 4.0]))
    outcome = run("lu", matrix.copy(order="F"))
    assert outcome.info == {"n": 4, "m": 4, "singular_at": 3}
    assert check("lu", matrix)[0]["residual"] == 0.0


@pytest.mark.parametrize("name", ["lu", "qr"])
def test_a_matrix_of_zeros_has_factors(name):
    assert check(name, np.zeros((5, 5)))[0]["passed"]


@pytest.mark.parametrize(
    ("name", "which"), [("lu", "lu"), ("lu", "piv"), ("qr", "q"), ("qr", "r"), ("cholesky", "l")]
)
def test_a_wrong_factor_is_seen(name, which):
    matrix = positive_definite(30, "<f8")
    factors = run(name, matrix.copy(order="F")).arrays
    factors[which] = factors[which].copy()
    if which == "piv":
        factors[which][0] = 29 - factors[which][0]
    else:
        factors[which][0, 0] *= 1 + 1e-6
    info = run("residual", matrix, *factors.values(), operation=name).info
    assert not info["passed"]
    assert info["residual"] > 30


def test_factors_with_nan_do_not_pass():
    matrix = positive_definite(5, "<f8")
    info = run("residual", matrix, np.full((5, 5), np.nan), operation="cholesky").info
    assert not info["passed"]
    assert np.isfinite(info["residual"])


def test_a_pivot_outside_the_matrix():
    with pytest.raises(RejectedError, match=r"piv\[1\] is 7, the matrix has 2 rows"):
        run("residual", np.eye(2), np.eye(2), np.array([0, 7], dtype=np.int32), operation="lu")


def test_the_ratios_are_those_of_lapack():
    """Against the definition: norm(A - LL') / (n norm(A) eps) with eps half of numpy's."""
    matrix = positive_definite(20, "<f8")
    factor = run("cholesky", matrix.copy(order="F")).arrays["l"] * (1 + 1e-13)
    error = np.linalg.norm(matrix - factor @ factor.T, 1)
    expected = error / (20 * np.linalg.norm(matrix, 1) * np.finfo(float).eps / 2)
    assert run("residual", matrix, factor, operation="cholesky").info["residual"] == pytest.approx(expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [500, 600])
def test_a_large_cholesky_factor_has_zeros_above_and_bad_input_is_named(n: int, order: str) -> None:
    half = np.random.default_rng(n).standard_normal((n, n))
    matrix = np.array(half + half.T + 4 * n * np.eye(n), order=order)
    factor = get("cholesky").run([matrix.copy(order)], {}).arrays["l"]
    assert not np.triu(factor, 1).any()
    assert np.allclose(factor @ factor.T, matrix)
    indefinite = matrix.copy(order)
    indefinite[n - 1, n - 1] = -1.0
    with pytest.raises(RejectedError, match=f"leading minor of order {n} "):
        get("cholesky").run([indefinite], {})
    matrix[n - 1, 3] += 1.0
    with pytest.raises(RejectedError, match="differ"):
        get("cholesky").run([matrix], {})


def test_echo_gives_back_what_it_got():
    outcome = run("echo", np.arange(3), np.eye(2), a=1)
    assert list(outcome.arrays) == ["input_0", "input_1"]
    assert outcome.info == {"params": {"a": 1}}
