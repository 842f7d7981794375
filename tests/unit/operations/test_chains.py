"""Chains: several operations in one request, on the CPU and on an emulated GPU."""

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from yarn_accel.client import connect, step
from yarn_accel.operations import get
from yarn_accel.wire import TensorSpec

RNG = np.random.default_rng(3)
A = RNG.standard_normal((40, 40))
B = RNG.standard_normal((40, 3))
SOLVE = [step("lu"), step("solve", "lu", "piv", 1)]
LONG = [step("gemm", 0, 0), step("qr"), step("gemm", "1.r", 0), step("gemm", "c", "0.c")]


def run(steps, *arrays, kind="cpu", **params):
    given = [np.array(array) for array in arrays]
    for array in given:
        array.flags.writeable = False
    specs = [TensorSpec(array.dtype.str, array.shape) for array in given]
    params = {"steps": steps, **params}
    get("chain").check(specs, params)
    return get("chain").form(kind)(given, params)


def test_a_chain_gives_what_its_steps_give_one_by_one():
    found = run(LONG, A)
    product = A @ A
    r = get("qr").run([product.copy()], {}).arrays["r"]
    assert list(found.arrays) == ["c"]
    assert np.allclose(found.arrays["c"], r @ A @ product)
    assert len(found.info["steps"]) == 4


def test_a_result_that_two_steps_take_is_not_written_over():
    steps = [step("gemm", 0, 0), step("lu"), step("gemm", "0.c", "0.c")]
    assert np.allclose(run(steps, A).arrays["c"], A @ A @ A @ A)


def test_it_solves():
    assert np.allclose(A @ run(SOLVE, A, B).arrays["x"], B)


@pytest.mark.parametrize(
    ("steps", "code", "match"),
    [
        (None, "bad-chain", "from 1 to 32 steps, found None"),
        ([], "bad-chain", "from 1 to 32 steps, found 0"),
        ([{}], "bad-chain", "step 0: unknown operation None"),
        ([step("lu"), None], "bad-chain", "step 1: expected an object"),
        ([step("lu"), step("no-such")], "bad-chain", "step 1: unknown operation 'no-such'; known: cholesky"),
        ([step("chain", steps=[step("lu")])], "bad-chain", "step 0: unknown operation 'chain'"),
        ([{"operation": "lu", "more": 1}], "bad-chain", "step 0: unknown key 'more'"),
        ([step("lu"), step("solve", "1.lu", 1)], "bad-chain", r"step 1 \(solve\): inputs: '1.lu'"),
        ([step("lu", "lu")], "bad-chain", r"step 0 \(lu\): inputs: 'lu'"),
        ([step("lu", 2)], "bad-chain", "input 2 of 2"),
        ([step("lu", -1)], "bad-chain", "inputs: -1"),
        ([step("lu", 0), step("solve", "l", 1)], "bad-chain", "step 0 gives no 'l'; it gives lu, piv"),
        ([step("gemm", 0, 1), step("lu", "c", "c")], "wrong-inputs", r"step 1 \(lu\): expected 1 input"),
        ([step("gemm", 1, 0)], "wrong-shape", r"step 0 \(gemm\): "),
        ([step("gemm", 0, 1), step("gemm", "c", 0)], "wrong-shape", r"step 1 \(gemm\): "),
        ([step("lu", 0, pivot=1)], "bad-parameter", r"step 0 \(lu\): unknown parameter 'pivot'"),
    ],
)
def test_a_chain_that_does_not_fit_is_one_clear_error(steps, code, match):
    with refused(code, match=match):
        run(steps, A, B)


def test_what_is_wrong_with_a_value_names_its_step():
    with refused("not-positive-definite", match=r"^step 1 \(cholesky\): "):
        run([step("gemm", 0, 1), step("cholesky")], -np.eye(3), np.eye(3))


def test_results_have_limits():
    with refused("output-too-large", match="12800 bytes of results") as _:
        run([step("gemm", 0, 1)], np.ones((40, 1)), np.ones((1, 40)), output_bytes=1)
    with refused("request-too-large", match="bytes of results between steps, at most 1000"):
        run(LONG, A, between_bytes=1000)


class Copies:
    """Counts the bytes that cross to the emulated device and back."""

    def __init__(self, monkeypatch):
        from tests.unit.operations import emulation

        self.n_in = self.n_out = 0
        set_to, get_from = emulation.DeviceArray.set, emulation.DeviceArray.get

        def counted_set(array, host, stream=None):
            self.n_in += host.nbytes
            return set_to(array, host, stream)

        def counted_get(array, **options):
            self.n_out += array.nbytes
            return get_from(array, **options)

        monkeypatch.setattr(emulation.DeviceArray, "set", counted_set)
        monkeypatch.setattr(emulation.DeviceArray, "get", counted_get)


@pytest.mark.parametrize(
    ("steps", "arrays"), [(LONG, (A,)), (SOLVE, (A, B)), (LONG, (np.asfortranarray(A),))]
)
def test_a_gpu_gives_the_same(device, steps, arrays):
    found, expected = run(steps, *arrays, kind="cuda").arrays, run(steps, *arrays).arrays
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert np.allclose(found[name], array)


def test_what_lies_between_stays_on_the_device(device, monkeypatch):
    if device != "emulated":
        pytest.skip("the emulation counts")
    steps = [step("gemm", 0, 1), step("gemm", "c", 1), step("gemm", "c", 1)]
    copies = Copies(monkeypatch)
    a, b = RNG.standard_normal((40, 500)), RNG.standard_normal((500, 500))
    found = run(steps, a, b, kind="cuda").arrays["c"]
    assert np.allclose(found, a @ b @ b @ b)
    assert copies.n_in == a.nbytes + 3 * b.nbytes, "no product is copied in"
    assert copies.n_out == found.nbytes, "the last product alone is copied out"


def test_a_step_without_a_form_for_gpus_gets_what_is_on_the_device(device):
    steps = [step("gemm", 0, 0), step("svd", vectors=False)]
    found = run(steps, A, kind="cuda").arrays["s"]
    assert np.allclose(found, np.linalg.svd(A @ A, compute_uv=False))


def test_the_client_sends_a_chain():
    with connect("inline") as accel:
        found = accel.chain(SOLVE, A, B)
        assert np.allclose(A @ found.outputs["x"], B)
        assert accel.chain(["lu"], A).steps[0]["singular_at"] == 0
