from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.factorize.make_input import FLAWS, balance, make_bytes, manifest_of, plan_flawed, plan_matrices
from jobs.factorize.manifest import DTYPES, parse_entry
from jobs.factorize.verify import LIMIT, drawn, ratios, verify


def array(matrix):
    flat = np.frombuffer(make_bytes(matrix), DTYPES[matrix.dtype])
    return flat.reshape((matrix.n, matrix.n), order=matrix.order)


def test_the_demo_has_every_combination_and_300_megabytes():
    planned = plan_matrices(60, 256, 1500)
    assert len({(m.operation, m.dtype, m.order) for m in planned}) == 12
    assert (min(m.n for m in planned), max(m.n for m in planned)) == (256, 1500)
    assert sum(m.n_bytes for m in planned) > 300_000_000
    assert len({m.key for m in planned}) == 60


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_ones():
    first, again = (plan_matrices(3, 8, 16, seed=1) for _ in range(2))
    assert [make_bytes(m) for m in first] == [make_bytes(m) for m in again]
    assert make_bytes(plan_matrices(3, 8, 16, seed=2)[0]) != make_bytes(first[0])


def test_cholesky_gets_symmetric_positive_definite_matrices():
    for matrix in plan_matrices(24, 8, 40):
        if matrix.operation == "cholesky":
            values = array(matrix).astype(float)
            assert np.array_equal(values, values.T)
            assert np.linalg.eigvalsh(values).min() > 0


def test_each_flaw_is_what_it_says():
    flawed = {matrix.flaw: matrix for matrix in plan_flawed(16)}
    assert set(flawed) == set(FLAWS)
    assert np.isnan(array(flawed["nan"])).sum() == 1
    assert np.linalg.eigvalsh(array(flawed["indefinite"])).min() < 0
    assert len(make_bytes(flawed["short"])) < flawed["short"].n_bytes


@given(st.integers(1, 40), st.integers(1, 9))
def test_dealing_keeps_every_matrix(count, n_tasks):
    planned = plan_matrices(count, 10, 99)
    assert sorted(balance(planned, n_tasks), key=lambda m: m.number) == list(planned)


def test_dealing_makes_runs_of_about_equal_work():
    balanced = balance(plan_matrices(48, 256, 1500), 8)
    work = [sum(m.n**3 for m in balanced[start : start + 6]) for start in range(0, 48, 6)]
    assert max(work) < 1.5 * min(work)


def test_the_manifest_says_where_everything_is():
    planned = plan_matrices(2, 8, 16)
    entries = [parse_entry(line) for line in manifest_of(planned, "file:///in", "file:///out").splitlines()]
    assert [entry.n_bytes for entry in entries] == [matrix.n_bytes for matrix in planned]
    assert entries[0].uri == f"file:///in/{planned[0].key}.bin"


def factors_of(matrix, operation):
    from scipy import linalg

    if operation == "lu":
        lu, piv = linalg.lu_factor(matrix)
        return {"lu": lu, "piv": piv}
    if operation == "qr":
        q, r = linalg.qr(matrix, mode="economic")
        return {"q": q, "r": r}
    return {"l": linalg.cholesky(matrix, lower=True)}


@pytest.mark.parametrize("operation", ["lu", "qr", "cholesky"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_good_factors_pass_and_damaged_ones_do_not(operation, dtype):
    rng = np.random.default_rng(5)
    matrix = rng.standard_normal((40, 40))
    matrix = (matrix @ matrix.T + 4 * np.eye(40) if operation == "cholesky" else matrix).astype(dtype)
    eps = float(np.finfo(dtype).eps) / 2
    factors = factors_of(matrix, operation)
    good = ratios(matrix.astype(float), factors, operation, eps)
    assert max(good.values()) < LIMIT
    factors = {name: values.copy() for name, values in factors.items()}
    next(iter(factors.values()))[1, 0] += 0.5
    assert max(ratios(matrix.astype(float), factors, operation, eps).values()) > LIMIT


def test_a_sample_is_drawn_by_its_seed(tmp_path):
    planned = [matrix for matrix in plan_matrices(12, 8, 16) if matrix.operation == "lu"]
    files = {}
    for matrix in planned:
        files[f"file:///in/{matrix.key}.bin"] = make_bytes(matrix)
        np.savez(tmp_path / "f.npz", **factors_of(array(matrix), "lu"))
        files[f"file:///out/{matrix.key}.npz"] = (tmp_path / "f.npz").read_bytes()
    lines = manifest_of(planned, "file:///in", "file:///out").splitlines()
    entries = [parse_entry(line) for line in lines]
    some = drawn(entries, sample=2, seed=3)
    assert some == drawn(entries, sample=2, seed=3)
    assert len(some) == 2
    assert drawn(entries) == entries
    everything = verify(files.__getitem__, ((entry, files[entry.output_uri]) for entry in entries))
    assert [check.key for check in everything] == [entry.key for entry in entries]
    assert all(check.residual < LIMIT for check in everything)
