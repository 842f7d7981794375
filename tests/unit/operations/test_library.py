"""BLAS and LAPACK without the rest of scipy are the same, and without the rest of scipy."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy
from scipy.linalg import blas, lapack

from yarn_accel.operations import library

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["dgetrf", "sgeqrf", "dorgqr", "dpotrf", "dtpttr", "strttp", "dlaswp"])
def test_the_routines_are_those_of_scipy(name):
    matrix = np.asfortranarray([[4.0, 1.0], [1.0, 3.0]])
    assert getattr(library.lapack, name).__doc__ == getattr(lapack, name).__doc__
    if name in ("dgetrf", "dpotrf"):
        ours, theirs = getattr(library.lapack, name)(matrix), getattr(lapack, name)(matrix)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_sums_and_versions_are_those_of_scipy():
    assert library.blas.dasum(np.array([1.0, -2.0])) == blas.dasum(np.array([1.0, -2.0])) == 3.0
    assert library.scipy_version == scipy.__version__


def test_nothing_else_of_scipy_is_loaded_and_all_of_it_can_be_later():
    program = (
        "import sys, yarn_accel.operations.factorization as ours\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('scipy', 'numpy.f2py'))))\n"
        "import scipy.linalg\n"
        "print(scipy.linalg.lapack.dgetrf is ours.lapack.dgetrf, scipy.linalg.det([[2.0]]))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert completed.stdout.splitlines() == ["scipy.linalg._fblas scipy.linalg._flapack", "True 2.0"]


def test_a_scipy_that_is_laid_out_otherwise_is_loaded_as_usual():
    assert library._part("scipy.linalg.lapack", "scipy.linalg._no_such_module") is lapack


def test_without_scipy_the_error_is_pythons_own(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "scipy.linalg.lapack", None)
    with pytest.raises(ImportError, match=r"scipy\.linalg\.lapack"):
        library._part("scipy.linalg.lapack", "scipy.linalg._flapack")
