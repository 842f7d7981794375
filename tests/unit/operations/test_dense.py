"""BLAS and LAPACK without the rest of scipy are the same; unsound numbers are found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import lapack

from tests.fixtures.programs import ran
from tests.unit.operations.linear import general, positive_definite
from yarn_accel.errors import RejectedError
from yarn_accel.operations import dense

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["dgetrf", "sgeqrf", "dorgqr", "dpotrf", "dtpttr", "strttp", "dlaswp"])
def test_the_routines_are_those_of_scipy(name):
    matrix = np.asfortranarray([[4.0, 1.0], [1.0, 3.0]])
    assert getattr(dense.lapack, name).__doc__ == getattr(lapack, name).__doc__
    if name in ("dgetrf", "dpotrf"):
        ours, theirs = getattr(dense.lapack, name)(matrix), getattr(lapack, name)(matrix)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_nothing_else_of_scipy_is_loaded_and_all_of_it_can_be_later():
    program = (
        "import sys, yarn_accel.operations.factorization, yarn_accel.operations.dense as ours\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('scipy', 'numpy.f2py'))))\n"
        "import scipy.linalg\n"
        "print(scipy.linalg.lapack.dgetrf is ours.lapack.dgetrf, scipy.linalg.det([[2.0]]))\n"
    )
    completed = ran([sys.executable, "-c", program], cwd=ROOT, check=True)
    assert completed.stdout.splitlines() == ["scipy.linalg._fblas scipy.linalg._flapack", "True 2.0"]


def test_a_scipy_that_is_laid_out_otherwise_is_loaded_as_usual():
    assert dense._part("scipy.linalg.lapack", "scipy.linalg._no_such_module") is lapack


def test_without_scipy_the_error_is_pythons_own(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "scipy.linalg.lapack", None)
    with pytest.raises(ImportError, match=r"scipy\.linalg\.lapack"):
        dense._part("scipy.linalg.lapack", "scipy.linalg._flapack")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_that_overflows_is_no_infinity(dtype):
    dense.reject_not_finite(np.full(100, np.finfo(dtype).max, dtype=dtype), "input 0")


@pytest.mark.parametrize(
    "array", [np.ones((0, 3)), np.ones(3)[::-1], np.ones((4, 4, 4))[:, ::2], np.arange(5)]
)
def test_any_layout_can_be_looked_at(array):
    dense.reject_not_finite(array, "input 0")


def test_nan_in_a_view_without_contiguity_is_found():
    array = np.ones((4, 4))
    array[2, 2] = np.nan
    with pytest.raises(RejectedError, match=r"\[1, 1\]"):
        dense.reject_not_finite(array[::2, ::2], "input 0")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [2, 5, 129, 300])
def test_every_single_difference_is_seen(n, order):
    matrix = positive_definite((n, n), order=order)
    allowed = n * np.finfo(float).eps * matrix.diagonal().max()
    for i, j in np.random.default_rng(0).integers(0, n, (40, 2)):
        if i == j:
            continue
        changed = matrix.copy(order="K")
        changed[i, j] += 8 * allowed
        with pytest.raises(RejectedError, match="differ"):
            dense.reject_asymmetric(changed, "input 0")


def test_all_positive_and_equal_numbers_need_no_second_look(monkeypatch):
    """Rounding in two long sums must not look like a difference, or every look would be a slow one."""
    matrix = np.abs(general((1000, 1000)))
    matrix = matrix + matrix.T

    def slow(*_):
        raise AssertionError("looked at each element")

    monkeypatch.setattr(dense, "_compare_each", slow)
    dense.reject_asymmetric(matrix, "input 0")
    dense.reject_asymmetric(matrix.astype(np.float32), "input 0")
    gram = np.abs(general((1000, 50)))
    dense.reject_asymmetric(gram @ gram.T / 2 + (gram @ gram.T).T / 2, "input 0")
