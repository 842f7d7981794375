"""Whole problems from the matrix itself: right, the same on a GPU, and with reasons that name the fault."""

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from tests.unit.operations.linear import Area, general, positive_definite, run
from yarn_accel.errors import RejectedError
from yarn_accel.operations import factorization, get, linear, systems
from yarn_accel.wire import TensorSpec

FORMS = ["cpu", "cuda"]
STACKS = [(), (1,), (3,)]
DTYPES = ["<f8", "<f4", "<c16", "<c8"]


def asked(form, name, *arrays, **params):
    """The outcome of the CPU's form, or of the GPU's without help of the CPU's; no input is written to."""
    if form == "cpu":
        outcome = run(name, *arrays, **params)
    else:
        kept = [array.copy(order="K") for array in arrays]
        outcome = get(name).form("cuda")(list(arrays), params, Area().place)
        for array, copy in zip(arrays, kept, strict=True):
            np.testing.assert_array_equal(array, copy)
    return outcome


@pytest.fixture
def no_help(monkeypatch):
    """What a CUDA form would leave to the CPU fails."""

    def on_the_cpu(*_, **__):
        raise AssertionError("computed on the CPU")

    monkeypatch.setattr(linear, "solve", on_the_cpu)
    monkeypatch.setattr(linear, "lapack_routine", on_the_cpu)
    monkeypatch.setattr(factorization, "lapack_routine", on_the_cpu)


def close(found, expected, dtype):
    tolerance = 2e-3 if dtype in ("<f4", "<c8") else 1e-9
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=tolerance * max(1, np.abs(expected).max()))


def numpy_solve(a, b):
    is_vector = b.ndim < a.ndim
    x = np.linalg.solve(a, b[..., None] if is_vector else b)
    return x[..., 0] if is_vector else x


def systems_of(dtype, stack, right, order="F"):
    a = general((*stack, 30, 30), dtype, order) + 4 * np.eye(30, dtype=dtype)
    return np.array(a, order=order), general((*stack, 30, *right), dtype, order, seed=1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("right", [(), (4,)])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_systems(device, form, dtype, stack, right):
    a, b = systems_of(dtype, stack, right)
    outcome = asked(form, "linsolve", a, b)
    close(outcome.arrays["x"], numpy_solve(a, b), dtype)
    assert outcome.arrays["x"].dtype == a.dtype
    assert outcome.info["precision"] == ("f32" if dtype in ("<f4", "<c8") else "f64")
    assert np.shape(outcome.info["residual"]) == stack
    assert np.max(outcome.info["residual"]) < linear.RESIDUAL_LIMIT
    assert (outcome.info["n"], outcome.info["m"], outcome.info["n_right"]) == (30, 30, (*right, 1)[0])
    definite = positive_definite((*stack, 30, 30), dtype)
    outcome = asked(form, "linsolve", definite, b, positive_definite=True)
    close(outcome.arrays["x"], numpy_solve(definite, b), dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inverses_and_determinants(device, form, dtype, stack):
    a = systems_of(dtype, stack, (), "C")[0]
    definite = positive_definite((*stack, 30, 30), dtype)
    for matrix, params in ((a, {}), (definite, {"positive_definite": True})):
        outcome = asked(form, "inv", matrix, **params)
        close(outcome.arrays["inv"], np.linalg.inv(matrix), dtype)
        assert np.max(outcome.info["residual"]) < linear.RESIDUAL_LIMIT
        found = asked(form, "slogdet", matrix, **params).arrays
        sign, logdet = np.linalg.slogdet(matrix)
        close(found["sign"][..., 0], np.asarray(sign), dtype)
        close(found["logdet"][..., 0], np.asarray(logdet), dtype)
        assert found["logdet"].dtype == np.zeros(1, dtype).real.dtype


@pytest.mark.parametrize("form", FORMS)
def test_the_determinant_of_a_singular_matrix_is_zero(device, form):
    stack = np.array([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 2.0], [3.0, 0.0]]])
    found = asked(form, "slogdet", stack).arrays
    assert found["sign"].tolist() == [[0.0], [-1.0]]
    np.testing.assert_allclose(found["logdet"], [[-np.inf], [np.log(6.0)]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(40, 9), (12, 12), (5, 1)])
@pytest.mark.parametrize("right", [(), (3,)])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<c16"])
def test_least_squares(device, form, dtype, stack, right, shape):
    a = general((*stack, *shape), dtype, "F") + 2 * np.eye(*shape, dtype=dtype)
    b = general((*stack, shape[0], *right), dtype, "F", seed=1)
    outcome = asked(form, "lstsq", a, b)
    expected = np.linalg.pinv(a) @ (b if right else b[..., None])
    close(outcome.arrays["x"], expected.reshape(outcome.arrays["x"].shape), dtype)
    assert outcome.arrays["x"].shape == (*stack, shape[1], *right)
    assert np.max(outcome.info["residual"]) < linear.RESIDUAL_LIMIT


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "extra"), [("<f4", {"compute": "f64"}), ("<f8", {"reply": "f32"})])
def test_precisions(device, form, dtype, extra):
    a, b = systems_of(dtype, (), (2,))
    for name, arrays in (("linsolve", (a, b)), ("lstsq", (a, b)), ("inv", (a,)), ("slogdet", (a,))):
        outcome = asked(form, name, *arrays, **extra)
        for array in outcome.arrays.values():
            assert array.dtype == ("<f4" if "reply" in extra else "<f8")
        assert outcome.info.get("precision", "f64") == "f64"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["<f8", "<c16"])
@pytest.mark.parametrize("right", [(), (2,)])
def test_large_systems_are_refined_where_the_residual_allows(device, monkeypatch, form, dtype, right):
    monkeypatch.setattr(systems, "REFINED_ORDER", 30)
    a, b = systems_of(dtype, (), right)
    outcome = asked(form, "linsolve", a, b)
    assert outcome.info["precision"] == "f32 refined"
    assert outcome.info["residual"] < 1
    close(outcome.arrays["x"], numpy_solve(a, b), dtype)
    assert asked(form, "linsolve", a, b, compute="f64").info["precision"] == "f64"
    u, _ = np.linalg.qr(a)
    for bad in (u * np.logspace(0, -12, 30) @ u.conj().T, a * 1e60):
        outcome = asked(form, "linsolve", np.asfortranarray(bad), b)
        assert outcome.info["precision"] == "f64"
        assert outcome.info["residual"] < linear.RESIDUAL_LIMIT


@pytest.mark.parametrize("stack", [(), (3,)])
def test_the_gpu_needs_no_help(device, no_help, stack):
    a, b = systems_of("<f8", stack, (2,))
    definite = positive_definite((*stack, 20, 20))
    for name, arrays, params in (
        ("linsolve", (a, b), {}),
        ("linsolve", (definite, b[..., :20, :]), {"positive_definite": True}),
        ("lstsq", (a, b), {}),
        ("inv", (a,), {}),
        ("slogdet", (a,), {}),
        ("svd", (a,), {}),
        ("eigh", (definite,), {}),
    ):
        asked("cuda", name, *arrays, **params)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stack", [(), (3,)])
def test_reasons_name_the_fault(device, form, stack):
    where = "item 1: " if stack else ""

    def spoiled(make, index, value):
        a = make((*stack, 6, 6), order="C")
        (a[1] if stack else a)[index] = value
        return a

    b = general((*stack, 6, 2), order="C")
    nan, zero = spoiled(general, (2, 3), np.nan), spoiled(general, (slice(None), 4), 0.0)
    negative, apart = spoiled(positive_definite, (3, 3), -1.0), spoiled(positive_definite, (0, 5), 9.0)
    definite = {"positive_definite": True}
    for name, arrays, params, code, text in (
        ("linsolve", (nan, b), {}, "not-finite", "input 0: nan at index \\[2, 3\\]"),
        (
            "linsolve",
            (b[..., :1] + np.eye(6), nan[..., :2] + nan[..., 2:4]),
            {},
            "not-finite",
            "input 1: nan at",
        ),
        ("linsolve", (zero, b), {}, "singular", "the triangular factor is 0 at \\[4, 4\\]"),
        ("linsolve", (negative, b), definite, "not-positive-definite", "the leading minor of order 4 of 6"),
        ("linsolve", (apart, b), definite, "not-symmetric", "input 0: \\[5, 0\\] and \\[0, 5\\] differ"),
        ("inv", (zero,), {}, "singular", "the triangular factor is 0"),
        ("inv", (negative,), definite, "not-positive-definite", "the leading minor"),
        ("slogdet", (nan,), {}, "not-finite", "input 0: nan"),
        ("slogdet", (negative,), definite, "not-positive-definite", "the leading minor"),
        ("lstsq", (nan, b), {}, "not-finite", "input 0: nan"),
        ("lstsq", (zero, b), {}, "rank-deficient", "input 0: within rounding, column 4 is a combination"),
        ("svd", (nan,), {}, "not-finite", "input 0: nan"),
        ("eigh", (apart,), {}, "not-symmetric", "input 0"),
    ):
        with refused(code, match="^" + where + text):
            asked(form, name, *arrays, **params)


def test_a_batch_keeps_its_order_and_its_errors_apart(device):
    problems = [systems_of("<f8", (), (2,)) for _ in range(5)]
    for i, (a, _) in enumerate(problems):
        a += i * np.eye(30)
    problems[1][0][:, 7] = 0
    problems[3][1][2, 1] = np.inf
    found = get("linsolve").batch_form("cuda")([([a, b], {}, Area().place) for a, b in problems])
    assert [getattr(one, "code", "") for one in found] == ["", "singular", "", "not-finite", ""]
    for i in (0, 2, 4):
        close(found[i].arrays["x"], numpy_solve(*problems[i]), "<f8")
        assert found[i].info["residual"] < linear.RESIDUAL_LIMIT


@pytest.mark.parametrize("extra", [{}, {"vectors": False}, {"reply": "f32"}])
@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8), (40, 40), (2, 40, 40), (12, 5), (3, 5, 12)])
@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<c16"])
def test_a_gpu_finds_the_same_values(device, shape, dtype, extra):
    single = dtype == "<f4" or "reply" in extra
    for name in ("svd", "eigh") if shape[-1] == shape[-2] else ("svd",):
        a = (positive_definite if name == "eigh" else general)(shape, dtype)
        expected, found = run(name, a, **extra), asked("cuda", name, a, **extra)
        assert found.info == expected.info
        assert list(found.arrays) == list(expected.arrays)
        for key, array in expected.arrays.items():
            assert (found.arrays[key].dtype, found.arrays[key].shape) == (array.dtype, array.shape)
        values = "s" if name == "svd" else "w"
        close(found.arrays[values], expected.arrays[values], "<f4" if single else dtype)
        if extra.get("vectors", True):
            left = found.arrays["u" if name == "svd" else "v"]
            right = found.arrays["vh"] if name == "svd" else left.conj().swapaxes(-1, -2)
            close(left * found.arrays[values][..., None, :] @ right, a, "<f4" if single else dtype)


def test_values_that_do_not_converge_on_a_gpu_are_the_cpus(device, monkeypatch):
    if device != "emulated":
        pytest.skip("a GPU's library finds them all")
    import cupy

    def fails(*_, **__):
        raise np.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(cupy.linalg, "svd", fails)
    a = general((6, 6))
    np.testing.assert_allclose(asked("cuda", "svd", a).arrays["s"], np.linalg.svd(a, compute_uv=False))


@pytest.mark.parametrize("name", ["lu", "qr", "cholesky", "svd", "eigh"])
@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<c16"])
def test_a_gpu_finds_the_same_ratios(device, name, dtype):
    a = (positive_definite if name in ("cholesky", "eigh") else general)((20, 20), dtype)
    factors = list(get(name).run([a.copy(order="K")], {}).arrays.values())
    for spoil in (0.0, 1.0):
        factors[0] = factors[0] + factors[0].dtype.type(spoil)
        expected = get("residual").run([a, *factors], {"operation": name}).info
        found = get("residual").form("cuda")([a, *factors], {"operation": name}).info
        assert found["passed"] == expected["passed"] == (not spoil)
        for key, ratio in expected["residuals"].items():
            assert found["residuals"][key] == pytest.approx(ratio, rel=0.5)


@pytest.mark.parametrize(
    ("name", "shapes", "params", "code", "text"),
    [
        ("linsolve", [(3, 3)], {}, "wrong-inputs", "a, b"),
        ("linsolve", [(3, 4), (3,)], {}, "wrong-shape", "a square matrix"),
        ("linsolve", [(3, 3), (4,)], {}, "wrong-shape", "input 1 .b.: 4 does not go with 3x3"),
        ("linsolve", [(2, 3, 3), (3, 3)], {}, "wrong-shape", "does not go with"),
        ("linsolve", [(3, 3), (3,)], {"positive_definite": 1}, "bad-parameter", "true or false"),
        ("linsolve", [(3, 3), (3,)], {"factors": "lu"}, "bad-parameter", "unknown parameter"),
        ("lstsq", [(3, 4), (3,)], {}, "wrong-shape", "3 equations for 4 unknowns"),
        ("inv", [(3, 4)], {}, "wrong-shape", "a square matrix"),
        ("slogdet", [(3,)], {}, "wrong-shape", "expected 2 or 3 axes"),
    ],
)
def test_bad_shapes_are_refused(name, shapes, params, code, text):
    with refused(code, match=text):
        get(name).check([TensorSpec("<f8", shape) for shape in shapes], params)


def test_what_comes_back_is_finite_or_the_callers_overflow():
    with np.errstate(all="ignore"):
        outcome = run("linsolve", np.array([[1e-300]]), np.array([1e300]))
    assert np.isinf(outcome.arrays["x"]).all()
    assert outcome.info["residual"] == 2**53
    with pytest.raises(RejectedError):
        run("linsolve", np.zeros((2, 2)), np.ones(2))
