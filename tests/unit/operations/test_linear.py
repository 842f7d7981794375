"""Forms, stacks, triangles and element types of lu, qr, cholesky, gemm and solve, in LAPACK's ratios."""

from itertools import product

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from tests.unit.operations.linear import (
    LIMIT,
    Area,
    general,
    householder_q,
    lower_triangle,
    permuted,
    positive_definite,
    ratio,
    run,
)
from tests.unit.operations.linear import norm as norm_1
from yarn_accel.errors import RejectedError
from yarn_accel.operations import get
from yarn_accel.wire import TensorSpec

STACKS = [(), (3,)]
PAIRS = list(product([False, True], repeat=2))
SHAPES = [(1, 1), (6, 6), (7, 4), (4, 7), (1, 3), (3, 1), (150, 150), (160, 70), (70, 160)]
F64, F32 = {"compute": "f64"}, {"reply": "f32"}
VARIANTS = [
    ("<f8", "F", {}),
    ("<f8", "C", {}),
    ("<f4", "F", {}),
    ("<f4", "C", F64),
    ("<f4", "F", {**F64, **F32}),
    ("<f8", "F", F32),
    ("<f8", "C", F32),
]


def expected_dtype(dtype, precision):
    return np.dtype("<f4" if "reply" in precision else "<f8" if "compute" in precision else dtype)


def worst_dtype(dtype, precision):
    """The element type whose rounding the result carries."""
    is_single = "reply" in precision or (dtype == "<f4" and "compute" not in precision)
    return np.float32 if is_single else np.float64


@pytest.mark.parametrize(("dtype", "order", "precision"), VARIANTS)
@pytest.mark.parametrize(("stack", "shape"), list(product(STACKS, SHAPES)))
def test_lu(stack, shape, dtype, order, precision):
    matrix = general(stack + shape, dtype, order)
    least, rounding = min(shape), worst_dtype(dtype, precision)
    separate = run("lu", matrix, form="separate", **precision).arrays
    assert list(separate) == ["l", "u", "piv"]
    assert separate["l"].dtype == separate["u"].dtype == expected_dtype(dtype, precision)
    lower, upper = separate["l"].astype(np.float64), separate["u"].astype(np.float64)
    difference = permuted(matrix.astype(np.float64), separate["piv"]) - lower @ upper
    assert ratio(difference, norm_1(matrix.astype(np.float64)), shape[1], rounding) < LIMIT
    np.testing.assert_array_equal(lower, np.tril(lower, -1) + np.eye(*lower.shape[-2:]))
    np.testing.assert_array_equal(upper, np.triu(upper))
    packed = run("lu", matrix, **precision).arrays
    np.testing.assert_array_equal(packed["piv"], separate["piv"])
    np.testing.assert_array_equal(np.triu(packed["lu"][..., :least, :]), upper)
    np.testing.assert_array_equal(np.tril(packed["lu"][..., :least], -1), np.tril(lower, -1))


@pytest.mark.parametrize(("dtype", "order", "precision"), VARIANTS)
@pytest.mark.parametrize(("stack", "shape"), list(product(STACKS, SHAPES)))
def test_qr(stack, shape, dtype, order, precision):
    matrix = general(stack + shape, dtype, order)
    n_rows, least, rounding = shape[0], min(shape), worst_dtype(dtype, precision)
    separate = run("qr", matrix, **precision).arrays
    assert list(separate) == ["q", "r"]
    assert separate["q"].dtype == separate["r"].dtype == expected_dtype(dtype, precision)
    q, r = separate["q"].astype(np.float64), separate["r"].astype(np.float64)
    assert ratio(matrix - q @ r, norm_1(matrix.astype(np.float64)), n_rows, rounding) < LIMIT
    assert ratio(np.swapaxes(q, -1, -2) @ q - np.eye(least), 1.0, n_rows, rounding) < LIMIT
    np.testing.assert_array_equal(r, np.triu(r))
    packed = run("qr", matrix, form="packed", **precision).arrays
    assert list(packed) == ["qr", "tau"]
    np.testing.assert_array_equal(np.triu(packed["qr"][..., :least, :]), r)
    if not stack and max(shape) < 10:
        written_out = householder_q(packed["qr"], packed["tau"])
        np.testing.assert_allclose(written_out, q, atol=50 * np.finfo(rounding).eps)


@pytest.mark.parametrize(("dtype", "order", "precision"), VARIANTS)
@pytest.mark.parametrize(("stack", "n"), list(product(STACKS, [1, 2, 40, 65, 150])))
def test_cholesky(stack, n, dtype, order, precision):
    matrix = positive_definite((*stack, n, n), dtype, order)
    rounding = worst_dtype(dtype, precision)
    triangle = np.array(lower_triangle(matrix), order=order)
    factor = run("cholesky", matrix, **precision).arrays["l"]
    assert factor.dtype == expected_dtype(dtype, precision)
    exact = factor.astype(np.float64)
    difference = matrix - exact @ np.swapaxes(exact, -1, -2)
    assert ratio(difference, norm_1(matrix.astype(np.float64)), n, rounding) < LIMIT
    np.testing.assert_array_equal(factor, np.tril(factor))
    limit = 1e-3 if rounding == np.float32 else 1e-9
    tolerance = {"rtol": limit, "atol": limit}
    for found in (
        run("cholesky", matrix, form="packed", **precision),
        run("cholesky", triangle, triangle="lower", **precision),
    ):
        assert found.info == {"n": n, "m": n}
        np.testing.assert_allclose(found.arrays["l"], lower_triangle(factor), **tolerance)
    full = run("cholesky", triangle, triangle="lower", form="separate", **precision).arrays["l"]
    np.testing.assert_allclose(full, factor, **tolerance)


@pytest.mark.parametrize(("dtype", "order", "precision"), VARIANTS)
@pytest.mark.parametrize("transposes", PAIRS)
@pytest.mark.parametrize("stack", STACKS)
def test_gemm(stack, transposes, dtype, order, precision):
    a, b = general((*stack, 30, 70), dtype, order, 1), general((*stack, 70, 20), dtype, order, 2)
    sent = [
        np.array(np.swapaxes(matrix, -1, -2), order=order) if is_transposed else matrix
        for matrix, is_transposed in zip((a, b), transposes, strict=True)
    ]
    outcome = run("gemm", *sent, transpose_a=transposes[0], transpose_b=transposes[1], **precision)
    assert outcome.info == {"m": 30, "n": 20, "k": 70}
    product = outcome.arrays["c"]
    assert product.dtype == expected_dtype(dtype, precision)
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert ratio(product - a @ b, norm_1(a) * norm_1(b), 70, worst_dtype(dtype, precision)) < LIMIT


def factored(kind, form, matrix):
    """The factors and the parameters that say what they are."""
    if form == "triangle":
        factors = run(kind, lower_triangle(matrix), triangle="lower").arrays.values()
        return list(factors), {"factors": kind, "triangle": "lower"}
    params = {} if form == "default" else {"form": form}
    return list(run(kind, matrix, **params).arrays.values()), {"factors": kind, **params}


SOLVED = [
    ("lu", "packed", (60, 60)),
    ("lu", "separate", (60, 60)),
    ("qr", "packed", (60, 60)),
    ("qr", "packed", (90, 40)),
    ("qr", "separate", (60, 60)),
    ("qr", "separate", (90, 40)),
    ("cholesky", "separate", (60, 60)),
    ("cholesky", "triangle", (60, 60)),
    ("lu", "packed", (1, 1)),
    ("qr", "separate", (3, 1)),
]


@pytest.mark.parametrize(("dtype", "order", "precision"), VARIANTS)
@pytest.mark.parametrize(("stack", "right"), [((), ()), ((), (5,)), ((3,), ()), ((3,), (1,)), ((3,), (5,))])
@pytest.mark.parametrize(("kind", "form", "shape"), SOLVED)
def test_solve(kind, form, shape, stack, right, dtype, order, precision):
    """The residual norm(b - Ax) / (norm(A) norm(x) n eps); for more rows than columns that of A'(b - Ax)."""
    make = positive_definite if kind == "cholesky" else general
    matrix, b = make(stack + shape, dtype, "F"), general(stack + shape[:1] + right, dtype, order, 1)
    factors, params = factored(kind, form, matrix)
    factors = [np.array(factor, order=order) for factor in factors]
    outcome = run("solve", *factors, b, **params, **precision)
    x = outcome.arrays["x"]
    assert x.shape == stack + shape[1:] + right
    assert x.dtype == expected_dtype(dtype, precision)
    assert outcome.info == {"m": shape[0], "n": shape[1], "n_right": right[0] if right else 1}
    a = matrix.astype(np.float64)
    x, b = (v.astype(np.float64) if right else v.astype(np.float64)[..., None] for v in (x, b))
    left, scale = b - a @ x, norm_1(a) * norm_1(x)
    if shape[0] > shape[1]:
        transposed = np.swapaxes(a, -1, -2)
        left, scale = transposed @ left, norm_1(transposed) * (norm_1(a) * norm_1(x) + norm_1(b))
    # The factors have the precision of the matrix, whatever is computed with them.
    rounding = np.float32 if dtype == "<f4" else worst_dtype(dtype, precision)
    assert ratio(left, scale, shape[0], rounding) < LIMIT


@pytest.mark.parametrize(("name", "results"), [("lu", ["lu"]), ("qr", ["q"]), ("cholesky", ["l"])])
def test_a_stack_of_rows_is_factored_where_it_lies(name, results):
    stack = positive_definite((4, 20, 20), order="C")
    outcome = get(name).run([stack], {}, Area().place)
    assert np.shares_memory(outcome.arrays[results[0]], stack)


@pytest.mark.parametrize("order", ["C", "F"])
def test_cholesky_copies_a_matrix_in_neither_order(order):
    matrix = positive_definite((200, 200), order=order)
    area = Area()
    outcome = get("cholesky").run([matrix], {}, area.place)
    assert np.shares_memory(outcome.arrays["l"], matrix)
    assert area.n_bytes == 0


def test_a_solution_takes_the_place_of_b():
    factors = run("lu", general((30, 30))).arrays.values()
    b = general((30, 4))
    assert np.shares_memory(get("solve").run([*factors, b], {}, Area().place).arrays["x"], b)


@pytest.mark.parametrize("name", ["lu", "qr", "cholesky"])
def test_the_bad_item_of_a_stack_is_named(name):
    stack = positive_definite((5, 9, 9), order="C")
    stack[3, 4, 2] = np.nan
    with pytest.raises(RejectedError, match=r"item 3: input 0: nan at index \[4, 2\]") as caught:
        run(name, stack)
    assert (caught.value.code, caught.value.item) == ("not-finite", 3)


@pytest.mark.parametrize("n", [9, 200])
def test_the_item_that_is_not_fit_for_cholesky_is_named(n):
    stack = positive_definite((5, n, n), order="C")
    stack[2, 1, 1] = -1.0
    with pytest.raises(RejectedError, match=f"item 2: the leading minor of order 2 of {n}") as caught:
        run("cholesky", stack)
    assert (caught.value.code, caught.value.item) == ("not-positive-definite", 2)
    stack[1, 7, 5] += 1.0
    with pytest.raises(RejectedError, match=r"item 1: input 0: \[7, 5\] and \[5, 7\] differ") as caught:
        run("cholesky", stack)
    assert (caught.value.code, caught.value.item) == ("not-symmetric", 1)


def test_singular_items_are_counted_not_refused():
    stack = general((3, 4, 4), order="C")
    stack[1, :, 2] = 0.0
    assert run("lu", stack).info == {"m": 4, "n": 4, "singular_at": [0, 3, 0]}


def test_a_singular_factor_solves_nothing():
    factors = run("lu", np.diag([1.0, 0.0, 2.0])).arrays.values()
    with refused("singular", match=r"0 at \[1, 1\]"):
        run("solve", *factors, np.ones(3))


def test_a_pivot_outside_the_matrix_is_refused():
    with refused("bad-pivot", match=r"piv\[1\] is 2, b has 2 rows"):
        run("solve", np.eye(2), np.array([0, 2], dtype=np.int32), np.ones(2))


@pytest.mark.parametrize("place", [0, 2])
def test_what_is_not_finite_in_solve_names_its_input(place):
    arrays = [np.eye(3), np.arange(3, dtype=np.int32), np.ones((3, 2))]
    arrays[place][1, 1] = np.nan
    with pytest.raises(RejectedError, match=rf"input {place}: nan at index \[1, 1\]"):
        run("solve", *arrays)


@pytest.mark.parametrize("name", ["lu", "qr", "cholesky"])
def test_memory_of_a_fortran_matrix_is_its_own(name):
    """Only pivots, or what a second factor takes, are asked for."""
    specs = [TensorSpec("<f8", (512, 512), "F")]
    second = {"lu": 512 * 4, "qr": 512 * 512 * 8, "cholesky": 0}[name]
    assert get(name).output_bytes(specs, {}) == second


def specs(*items):
    """Of shapes; another element type than <f8 is beside its shape."""
    pairs = [item if item and isinstance(item[0], tuple) else (item, "<f8") for item in items]
    return [TensorSpec(dtype, shape) for shape, dtype in pairs]


@pytest.mark.parametrize(
    ("name", "shapes", "params", "code", "match"),
    [
        ("lu", [(3, 3)], {"form": "both"}, "bad-parameter", "packed or separate, found 'both'"),
        ("lu", [(3, 3)], {"triangle": "lower"}, "bad-parameter", "unknown parameter 'triangle'"),
        ("lu", [(2, 3, 3, 3)], {}, "wrong-shape", "2 or 3 axes"),
        ("qr", [(3, 3)], {"compute": "f16"}, "bad-parameter", "compute: expected f64"),
        ("qr", [(3, 3)], {"reply": "f64"}, "bad-parameter", "reply: expected f32"),
        ("cholesky", [(7,)], {"triangle": "lower"}, "wrong-shape", "7 elements are no triangle"),
        ("cholesky", [(2, 3, 4)], {}, "wrong-shape", "square matrix, found 2x3x4"),
        ("cholesky", [(3, 3)], {"triangle": "upper"}, "bad-parameter", "full or lower"),
        ("gemm", [(3, 4), (5, 6)], {}, "wrong-shape", r"input 1 \(b\): 5x6 does not go with 3x4"),
        ("gemm", [(2, 3, 4), (3, 4, 6)], {}, "wrong-shape", "does not go with"),
        ("gemm", [(3, 4), (4, 6)], {"transpose_a": 1}, "bad-parameter", "transpose_a: expected true"),
        ("gemm", [(3, 4)], {}, "wrong-inputs", "expected 2"),
        ("solve", [(3, 3), (3,)], {}, "wrong-inputs", "lu, piv, b"),
        ("solve", [(3, 3), (3,), (3,)], {}, "wrong-dtype", r"input 1 \(piv\): expected <i4"),
        ("solve", [(3, 4), (4, 4), (3,)], {"factors": "qr"}, "wrong-shape", "3 equations for 4 unknowns"),
        ("solve", [(5, 3), (3, 3), (4,)], {"factors": "qr"}, "wrong-shape", r"\(b\): expected shape 5"),
        ("solve", [(3, 3), (3, 3)], {"factors": "svd"}, "bad-parameter", "lu or qr or cholesky"),
        ("solve", [(6,), (4,)], {"factors": "cholesky", "triangle": "lower"}, "wrong-shape", "shape 3"),
        ("gemm", [(3, 3), ((3, 3), "<f4")], {}, "wrong-dtype", "input 1: expected <f8, found <f4"),
    ],
)
def test_bad_requests(name, shapes, params, code, match):
    with refused(code, match=match):
        get(name).check(specs(*shapes), params)
