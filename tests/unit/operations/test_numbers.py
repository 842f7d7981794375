"""Complex numbers, integers and float16 in linear algebra; singular values and eigenvalues."""

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from tests.unit.operations.linear import LIMIT, general, lower_triangle, positive_definite, run
from yarn_accel.errors import RejectedError
from yarn_accel.operations import get
from yarn_accel.operations.operation import converted
from yarn_accel.wire import TensorSpec

COMPLEX = [("<c16", {}), ("<c8", {}), ("<c8", {"compute": "f64"}), ("<c16", {"reply": "f32"})]


def residual(name, matrix, factors):
    """LAPACK's ratios; the whole is in the rounding of the factors."""
    low = np.result_type(*factors, matrix).char in "fF" or any(f.dtype.char in "fF" for f in factors)
    matrix = matrix.astype("<c8" if low else "<c16") if np.iscomplexobj(matrix) else matrix
    return get("residual").run([matrix, *factors], {"operation": name}).info


@pytest.mark.parametrize(("dtype", "precision"), COMPLEX)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, shape) for name in ("lu", "qr", "svd") for shape in ((20, 20), (9, 4), (4, 9))),
        *((name, shape) for name in ("cholesky", "eigh") for shape in ((6, 6), (130, 130))),
    ],
)
def test_complex_factors(name, shape, order, dtype, precision):
    make = positive_definite if name in ("cholesky", "eigh") else general
    matrix = make(shape, dtype, order)
    factors = list(run(name, matrix, **precision).arrays.values())
    assert residual(name, matrix, factors)["passed"]
    if max(shape) > 20:
        return
    stack = make((3, *shape), dtype, "C", seed=1)
    for i, factor in enumerate(run(name, stack, **precision).arrays.values()):
        np.testing.assert_allclose(
            factor[1], list(run(name, stack[1], **precision).arrays.values())[i], atol=1e-3, rtol=1e-3
        )


@pytest.mark.parametrize("dtype", ["<c16", "<c8"])
@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [("lu", "packed"), ("lu", "separate"), ("qr", "packed"), ("qr", "separate"), ("cholesky", "separate")],
)
def test_complex_solutions(kind, form, order, stack, dtype):
    make = positive_definite if kind == "cholesky" else general
    matrix = make((*stack, 12, 12), dtype, "C" if stack else order)
    factors = [np.array(each, order=order) for each in run(kind, matrix, form=form).arrays.values()]
    b = general((*stack, 12, 2), dtype, "C" if stack else order, seed=3)
    x = run("solve", *factors, b, factors=kind, form=form).arrays["x"]
    np.testing.assert_allclose(matrix @ x, b, atol=1e-8 if dtype == "<c16" else 1e-2)


def test_a_complex_triangle_in_packed_storage():
    matrix = positive_definite((7, 7), "<c16")
    packed = run("cholesky", lower_triangle(matrix), triangle="lower").arrays["l"]
    full = run("cholesky", matrix).arrays["l"]
    np.testing.assert_allclose(packed, lower_triangle(full), atol=1e-12)
    b = general((7,), "<c16")
    x = run("solve", packed, b, factors="cholesky", triangle="lower").arrays["x"]
    np.testing.assert_allclose(matrix @ x, b, atol=1e-10)


def test_products_of_complex_matrices():
    a, b = general((3, 4), "<c16"), general((3, 5), "<c16", "C", seed=1)
    np.testing.assert_allclose(run("gemm", a, b, transpose_a=True).arrays["c"], a.T @ b)


@pytest.mark.parametrize("n", [5, 140])
@pytest.mark.parametrize("name", ["cholesky", "eigh"])
def test_hermitian_is_what_a_complex_matrix_must_be(name, n):
    matrix = positive_definite((n, n), "<c16")
    matrix[3, 1] = np.conj(matrix[3, 1])
    with refused("not-symmetric", match=r"\[3, 1\] and \[1, 3\] differ"):
        run(name, matrix)
    matrix[2, 4] = complex(0, np.nan)
    with pytest.raises(RejectedError, match=r"at index \[2, 4\]"):
        run(name, matrix)


@pytest.mark.parametrize(("dtype", "precision"), [("<f8", {}), ("<f4", {}), ("<f4", {"compute": "f64"})])
@pytest.mark.parametrize("shape", [(1, 1), (30, 30), (40, 7), (7, 40)])
def test_singular_values(shape, dtype, precision):
    matrix = general(shape, dtype, "C")
    found = run("svd", matrix, **precision)
    u, s, vh = found.arrays.values()
    least = min(shape)
    assert (u.shape, s.shape, vh.shape) == ((shape[0], least), (least,), (least, shape[1]))
    np.testing.assert_allclose(s, np.linalg.svd(matrix, compute_uv=False), rtol=1e-4)
    alone = run("svd", matrix, vectors=False, **precision)
    assert list(alone.arrays) == ["s"]
    np.testing.assert_allclose(alone.arrays["s"], s, rtol=1e-4)
    if not precision:
        info = residual("svd", matrix, [u, s, vh])
        assert info["residual"] < LIMIT
    assert found.info == {"n": shape[1], "m": shape[0]}


@pytest.mark.parametrize("dtype", ["<f8", "<f4"])
@pytest.mark.parametrize("n", [1, 6, 130])
def test_eigenvalues(n, dtype):
    matrix = positive_definite((n, n), dtype) - n * np.eye(n, dtype=dtype)
    w, v = run("eigh", matrix).arrays.values()
    assert (np.diff(w) >= 0).all()
    assert residual("eigh", matrix, [w, v])["passed"]
    np.testing.assert_allclose(run("eigh", matrix, vectors=False).arrays["w"], w, atol=1e-2 * n)


def test_a_wrong_singular_value_is_noticed():
    matrix = general((20, 20))
    u, s, vh = run("svd", matrix).arrays.values()
    assert not residual("svd", matrix, [u, s + 1e-8, vh])["passed"]
    assert not residual("svd", matrix, [u * (1 + 1e-8), s, vh])["passed"]


def test_the_bad_one_of_a_stack_is_named():
    stack = positive_definite((4, 5, 5), order="C")
    stack[2, 1, 0] += 1
    with pytest.raises(RejectedError, match=r"item 2: .*\[1, 0\] and \[0, 1\] differ"):
        run("eigh", stack)
    stack[1, 4, 4] = np.inf
    with pytest.raises(RejectedError, match="item 1"):
        run("svd", stack)


@pytest.mark.parametrize("dtype", ["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2"])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("lu", {"form": "separate"}),
        *((name, {}) for name in ("qr", "cholesky", "svd", "eigh")),
        ("kmeans", {"k": 2}),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_integers_and_half_floats_are_converted(name, params, order, dtype):
    matrix = np.array(np.eye(6) + np.eye(6, k=1) + np.eye(6, k=-1) if name != "cholesky" else np.eye(6))
    matrix = np.array(matrix, dtype, order=order)
    wide = np.float32 if matrix.dtype.itemsize < 4 else np.float64
    found, expected = run(name, matrix, **params), run(name, matrix.astype(wide), **params)
    assert found.info == expected.info
    for key, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[key], array)
        assert found.arrays[key].dtype == array.dtype


def test_what_was_converted_is_said_and_pivots_are_not():
    operation, params = get("solve"), {"factors": "lu"}
    specs = [TensorSpec("<f4", (3, 3)), TensorSpec("<i4", (3,)), TensorSpec("<i8", (3,))]
    computed = operation.computed_specs(specs, params)
    assert [spec.dtype for spec in computed] == ["<f4", "<i4", "<f4"]
    arrays = [np.eye(3, dtype="<f4"), np.arange(3, dtype="<i4"), np.arange(3)]
    given, changes = converted(arrays, computed)
    assert (given[0] is arrays[0], given[2].dtype, changes) == (True, np.float32, "input 2: <i8 to <f4")
    assert run("solve", *arrays, factors="lu").arrays["x"].tolist() == [0, 1, 2]
    matrix = np.arange(9).reshape(3, 3) ** 2 + np.eye(3, dtype=int)
    lu, piv = run("lu", matrix).arrays.values()
    specs = [TensorSpec("<i8", (3, 3)), TensorSpec("<f8", (3, 3)), TensorSpec("<i4", (3,))]
    computed = get("residual").computed_specs(specs, {"operation": "lu"})
    assert [spec.dtype for spec in computed] == ["<f8", "<f8", "<i4"]
    given, _ = converted([matrix, lu, piv], computed)
    assert get("residual").run(given, {"operation": "lu"}).info["passed"]


@pytest.mark.parametrize(
    ("name", "specs", "params", "code"),
    [
        ("eigh", [TensorSpec("<f8", (3, 4))], {}, "wrong-shape"),
        ("svd", [TensorSpec("<f8", (3,))], {}, "wrong-shape"),
        ("svd", [TensorSpec("<f8", (3, 3))], {"vectors": 1}, "bad-parameter"),
        ("svd", [TensorSpec("<f8", (3, 3))], {"form": "packed"}, "bad-parameter"),
        ("kmeans", [TensorSpec("<c8", (3, 3))], {"k": 1}, "wrong-dtype"),
        ("solve", [TensorSpec("<f8", (3, 3))] * 3, {"factors": []}, "bad-parameter"),
        ("residual", [TensorSpec("<f8", (3, 3))] * 3, {"operation": []}, "bad-parameter"),
    ],
)
def test_what_is_not_taken_is_said(name, specs, params, code):
    with refused(code):
        get(name).check(get(name).computed_specs(specs, params), params)
