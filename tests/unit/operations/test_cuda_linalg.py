"""The CUDA forms of linear algebra: the CPU's answers on a GPU, and everything but the GPU by emulation."""

from __future__ import annotations

import itertools
import sys
from functools import partial

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from tests.unit.operations.linear import (
    PRECISIONS,
    Area,
    compare,
    compare_lu,
    general,
    lower_triangle,
    positive_definite,
)
from yarn_accel.errors import RejectedError, StartupError
from yarn_accel.operations import OPERATIONS, cuda_streams, get, linear


def test_without_cupy_the_message_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name, n_inputs in {"lu": 1, "qr": 1, "cholesky": 1, "gemm": 2, "solve": 3}.items():
        form = get(name).form("cuda")
        with pytest.raises(StartupError, match=r"CuPy cannot be imported.*pip install"):
            form([np.eye(3)] * n_inputs, {})


def test_every_named_form_exists():
    for operation in OPERATIONS.values():
        for kind in operation.forms:
            assert callable(operation.form(kind))
        for kind in operation.batch:
            assert callable(operation.batch_form(kind))
    assert get("echo").form("cuda") is None
    assert get("lu").batch_form("cpu") is None


STACKS = [(), (3,)]
SHAPES = [(30, 30), (40, 12), (12, 40), (75, 75), (600, 600)]
"""With 75 rows and columns of float64 nearly all shared memory that our QR may take is taken."""
CASES = [
    (name, (*stack, *shape), params)
    for name, all_params in {
        "lu": [{}, {"form": "separate"}],
        "qr": [{}, {"form": "packed"}],
        "cholesky": [{}, {"form": "packed"}],
    }.items()
    for stack, shape, params in itertools.product(STACKS, SHAPES, all_params)
    if (name != "cholesky" or shape[0] == shape[1]) and not (stack and shape[0] >= 75)
]
CASES = [
    # The same kernels as for the other large one.
    pytest.param(*case, marks=pytest.mark.slow) if case[1] == (600, 600) and case[2] else case
    for case in CASES
]
CASES += [("cholesky", (3, 20, 20), {"triangle": "lower"}), ("cholesky", (1, 1, 1), {"triangle": "lower"})]
CASES += [("lu", (n, 130, 130), {}) for n in (1, 2)] + [("cholesky", (n, 60, 60), {}) for n in (2, 3)]
"""One by one, and by one call."""
CASES += [("qr", (4, 100, 90), params) for params in ({}, {"form": "packed"})]
"""More shared memory than a block has without asking."""


@pytest.mark.parametrize(
    ("dtype", "order", "extra"),
    [
        ("<f8", "F", {}),
        ("<f8", "C", {}),
        ("<f4", "C", {"compute": "f64"}),
        ("<f8", "F", {"reply": "f32"}),
        ("<c16", "F", {}),
        ("<c8", "C", {"compute": "f64"}),
    ],
)
@pytest.mark.parametrize(("name", "shape", "params"), CASES)
def test_one_request(device, name, shape, params, dtype, order, extra):
    matrix = (positive_definite if name == "cholesky" else general)(shape, dtype, order)
    if "triangle" in params:
        matrix = lower_triangle(matrix)
    params = {**params, **extra}
    expected = get(name).run([matrix.copy(order="K")], params)
    found = get(name).form("cuda")([matrix.copy(order="K")], params, Area().place)
    if name == "lu" and matrix.dtype.kind == "c":
        compare_lu(found, expected, matrix)
    else:
        compare(found, expected, dtype)


@pytest.mark.parametrize("name", ["lu", "qr", "cholesky"])
def test_a_batch_keeps_its_order_and_its_errors_apart(device, name):
    shapes = [(8, 8), (8, 8), (5, 5), (8, 8), (700, 700), (8, 8), (3, 8, 8)]
    matrices = [
        positive_definite(shape, order="C" if len(shape) == 3 else "F", seed=i)
        for i, shape in enumerate(shapes)
    ]
    matrices[1][2, 3] = np.nan
    untouched = matrices[1].copy(order="K")
    expected = []
    for matrix in matrices:
        try:
            expected.append(get(name).run([matrix.copy(order="K")], {}))
        except RejectedError as error:
            expected.append(error)
    items = [([matrix], {}, Area().place) for matrix in matrices]
    for number, (found, answer) in enumerate(zip(get(name).batch_form("cuda")(items), expected, strict=True)):
        if number == 1:
            assert (found.code, found.message) == (answer.code, answer.message)
        else:
            compare(found, answer, "<f8")
    np.testing.assert_array_equal(matrices[1], untouched)


def test_the_reasons_of_cholesky_are_those_of_the_cpu(device):
    stack = positive_definite((4, 9, 9), order="C")
    stack[2, 4, 4] = -1.0
    with refused("not-positive-definite", match="item 2: the leading minor of order 5 of 9"):
        get("cholesky").form("cuda")([stack], {})
    with pytest.raises(RejectedError, match=r"^the leading minor of order 5 of 9"):
        get("cholesky").form("cuda")([np.asfortranarray(stack[2])], {})
    stack[1, 0, 5] += 1.0
    with pytest.raises(RejectedError, match=r"item 1: input 0: \[5, 0\] and \[0, 5\] differ"):
        get("cholesky").form("cuda")([stack], {})


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("orders", ["CC", "FF", "CF"])
@pytest.mark.parametrize("stack", [(), (3,), (1,)])
def test_products(device, stack, orders, transposed, dtype, precision):
    shapes = [(20, 30), (30, 10)]
    arrays, params = [], {**precision}
    for i, name in enumerate(("transpose_a", "transpose_b")):
        shape = shapes[i][::-1] if transposed[i] else shapes[i]
        arrays.append(general((*stack, *shape), dtype, orders[i], seed=i))
        params[name] = transposed[i]
    expected = get("gemm").run(arrays, params)
    found = get("gemm").form("cuda")(arrays, params, Area().place)
    compare(found, expected, dtype)
    assert found.arrays["c"].flags.f_contiguous == expected.arrays["c"].flags.f_contiguous


def test_nan_goes_through_a_product(device):
    a = np.eye(4)
    a[1, 2] = np.nan
    expected = get("gemm").run([a, np.eye(4)], {}).arrays["c"]
    np.testing.assert_array_equal(get("gemm").form("cuda")([a, np.eye(4)], {}).arrays["c"], expected)


def test_a_batch_of_products_keeps_its_order(device):
    sizes = [(8, 8), (8, 8), (5, 3), (600, 5), (8, 8), (600, 600), (600, 600), (600, 600), (600, 600)]
    items = [([general((m, n), seed=i), general((n, m), seed=i + 50)], {}) for i, (m, n) in enumerate(sizes)]
    items.append(([general((4, 8, 8), order="C"), general((4, 8, 8), order="C", seed=1)], {}))
    found = get("gemm").batch_form("cuda")([(arrays, params, Area().place) for arrays, params in items])
    for (arrays, params), one in zip(items, found, strict=True):
        compare(one, get("gemm").run(arrays, params), "<f8")


def test_lanes_have_streams_of_their_own(device):
    """Else a large request of one lane would wait for that of another."""
    cupy, matrix = cuda_streams.cupy_module(), np.eye(3)
    lanes = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    used = []
    for lane in (*lanes, *lanes):
        with lane:
            get("gemm").form("cuda")([matrix, matrix], {}, Area().place)
        used.append({stream.ptr for stream in cuda_streams._streams(lane.ptr)})
    assert cuda_streams._streams.cache_info().misses == 2
    assert len(used[0] | used[1]) == 6
    assert used[:2] == used[2:]


def test_copies_end_before_an_error_leaves(device):
    """The memory that results are copied to is the caller's again when the call has raised."""
    area = Area()

    def no_place(*_):
        raise MemoryError

    placed = []

    def place(*args):
        placed.append(area.place(*args))
        return placed[-1]

    matrix = general((600, 600))
    items = [([matrix, matrix], {}, place), ([matrix, matrix], {}, no_place)]
    with pytest.raises(MemoryError):
        get("gemm").batch_form("cuda")(items)
    np.testing.assert_allclose(placed[0], matrix @ matrix, atol=1e-9)


def system(kind, form, shape, stack=(), right=(), dtype="<f8", order="F", seed=0):
    """Inputs of solve and its parameters: factors as the CPU gives them, and a right-hand side."""
    make = positive_definite if kind == "cholesky" else general
    matrix = make((*stack, *shape), dtype, "C" if stack else "F", seed)
    if kind == "lu":
        matrix += 4 * np.eye(*shape, dtype=dtype)
    given = {"form": form} if form != "triangle" else {"triangle": "lower"}
    matrix = lower_triangle(matrix) if form == "triangle" else matrix
    factors = get(kind).run([matrix], given).arrays.values()
    b = general((*stack, shape[0], *right), dtype, order, seed + 1)
    return [np.array(factor, order=order) for factor in factors] + [b], {"factors": kind, **given}


def check(monkeypatch, kind, form, shape, stack, right, dtype, order, precision):
    """The answer of the CPU, without its help."""
    arrays, params = system(kind, form, shape, stack, right, dtype, order)
    expected = get("solve").run([array.copy(order="K") for array in arrays], {**params, **precision})

    def on_the_cpu(*_):
        raise AssertionError("computed on the CPU")

    form = get("solve").form("cuda")
    monkeypatch.setattr(linear, "solve", on_the_cpu)
    compare(form(arrays, {**params, **precision}, Area().place), expected, dtype)


SOLVED = [
    ("lu", "packed", (40, 40)),
    ("lu", "separate", (40, 40)),
    ("qr", "packed", (40, 15)),
    ("qr", "separate", (40, 15)),
    ("qr", "separate", (12, 12)),
    ("qr", "packed", (12, 12)),
    ("cholesky", "separate", (40, 40)),
    ("cholesky", "packed", (40, 40)),
    ("cholesky", "triangle", (40, 40)),
    ("lu", "packed", (1, 1)),
    ("qr", "packed", (3, 1)),
]
LARGE = [("cholesky", "separate"), ("lu", "separate"), ("lu", "packed"), ("qr", "packed")]


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("stack", "right"), [((), ()), ((), (5,)), ((3,), ()), ((3,), (5,)), ((1,), (1,))])
@pytest.mark.parametrize(("kind", "form", "shape"), SOLVED)
def test_solutions(device, monkeypatch, kind, form, shape, stack, right, order, dtype, precision):
    check(monkeypatch, kind, form, shape, stack, right, dtype, order, precision)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("stack", "right"), [((), (5,)), ((3,), ()), ((3,), (5,))])
@pytest.mark.parametrize(("kind", "form", "shape"), SOLVED[:9])
def test_complex_solutions(device, monkeypatch, kind, form, shape, stack, right, order):
    check(monkeypatch, kind, form, shape, stack, right, "<c16", order, {})


@pytest.mark.parametrize("dtype", ["<f8", "<c16"])
@pytest.mark.parametrize(("kind", "form"), LARGE)
def test_large_solutions(device, monkeypatch, kind, form, dtype):
    check(monkeypatch, kind, form, (600, 600), (), (3,), dtype, "F", {})


@pytest.mark.parametrize("stack", [(), (3,)])
def test_the_reasons_of_solve_are_those_of_the_cpu(device, stack):
    cases = []
    for place in range(3):
        arrays, params = system("lu", "packed", (9, 9), stack, (2,), order="C")
        arrays[place].reshape(-1)[-1] = 9 if place == 1 else np.nan
        cases.append((arrays, params))
    arrays, params = system("cholesky", "separate", (9, 9), stack, (2,), order="C")
    arrays[0][..., 4, 4] = 0.0
    cases.append((arrays, params))
    for arrays, params in cases:
        with pytest.raises(RejectedError) as expected:
            get("solve").run([array.copy(order="K") for array in arrays], params)
        with pytest.raises(RejectedError) as found:
            get("solve").form("cuda")(arrays, params)
        assert (found.value.code, found.value.message) == (expected.value.code, expected.value.message)


def test_overflow_of_a_solution_is_the_callers(device):
    arrays = [np.array([[1e-300]]), np.array([1e300])]
    assert np.isinf(get("solve").form("cuda")(arrays, {"factors": "cholesky"}).arrays["x"]).all()


def test_a_batch_of_systems_keeps_its_order_and_its_errors_apart(device):
    systems = [
        system("lu", "packed", (n, n), right=(2,), seed=n) for n in (8, 8, 8, 5, 600, 600, 600, 600, 8)
    ]
    systems[1][0][1][3] = -1
    systems[2][0][2][0, 0] = np.inf
    expected = [
        cuda_streams.attempt(partial(get("solve").run, [a.copy() for a in s[0]], s[1])) for s in systems
    ]
    items = [(arrays, params, Area().place) for arrays, params in systems]
    found = get("solve").batch_form("cuda")(items)
    assert [one.code for one in found[1:3]] == ["bad-pivot", "not-finite"]
    for one, answer in zip(found, expected, strict=True):
        if isinstance(answer, RejectedError):
            assert (one.code, one.message) == (answer.code, answer.message)
        else:
            compare(one, answer, "<f8")
