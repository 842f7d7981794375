"""Solutions on a GPU against the CPU's, and the CPU's reasons for what has none."""

from functools import partial

import numpy as np
import pytest

from tests.unit.operations.linear import PRECISIONS, Area, compare, general, lower_triangle, positive_definite
from yarn_accel.errors import RejectedError
from yarn_accel.operations import cuda_streams, get, solution


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
    monkeypatch.setattr(solution, "solve", on_the_cpu)
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
