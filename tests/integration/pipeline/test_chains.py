"""Chains on a real server: one request for several operations, and one clear error for a bad one."""

import numpy as np
import pytest

from tests.fixtures import onnx_models as models
from yarn_accel.client import Binding, Call, RejectedError, Reply, connect, step

RNG = np.random.default_rng(4)
A, B = RNG.standard_normal((30, 30)), RNG.standard_normal((30, 2))
WEIGHTS = RNG.standard_normal((30, 3)).astype(np.float32)
SOLVE = [step("lu"), step("solve", "lu", "piv", 1)]


@pytest.fixture
def server(start_server):
    return start_server(workers=1, max_request_bytes=100_000)


@pytest.fixture
def accel(server, credential):
    options = {"environ": {}, "fallback": False, "patience_s": 120.0}
    with connect(binding=Binding((server.endpoint,)), credential=credential, **options) as made:
        yield made


def test_one_request_computes_all_steps(accel, server):
    found = accel.chain(SOLVE, A, B)
    assert np.allclose(A @ found.outputs["x"], B)
    assert found.steps[0]["singular_at"] == 0
    assert server.stats()["done"] == 1


def test_a_model_may_be_a_step(accel, tmp_path):
    uri = models.written(models.linear(WEIGHTS), tmp_path / "model.onnx").as_uri()
    found = accel.chain([step("gemm", 0, 0), step("infer", "c", model=uri)], A.astype(np.float32))
    assert np.allclose(found.outputs["output_0"], A @ A @ WEIGHTS, atol=1e-3)
    assert found.steps[1]["outputs"] == ["y"]


def test_bad_chains_cost_themselves_alone(accel):
    totals = {}
    accel._counters.add = lambda **more: totals.update({k: totals.get(k, 0) + n for k, n in more.items()})
    bad = {
        "bad-chain": [SOLVE[0], step("no-such")],
        "wrong-shape": [step("gemm", 0, 0), step("gemm", "c", 2)],
        "wrong-inputs": [step("lu"), step("qr", "lu", "lu")],
        "model-format": [step("infer", 0, model="hdfs:///a.pt")],
        "request-too-large": [step("gemm", 3, 4), step("svd", vectors=False)],
    }
    inputs = (A, B, np.ones((7, 3)), np.ones((200, 1)), np.ones((1, 200)))
    calls = [Call.of("chain", *inputs, steps=steps, tag=code) for code, steps in bad.items()]
    calls[2:2] = [Call.of("chain", A, B, steps=SOLVE, tag="good")]
    for call, outcome in accel.map(calls):
        if call.tag == "good":
            assert isinstance(outcome, Reply), outcome
        else:
            assert isinstance(outcome, RejectedError), outcome
            assert outcome.code == call.tag, outcome
    assert totals["records_in"] == 6 == totals["done"] + totals["rejected"]
