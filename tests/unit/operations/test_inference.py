"""`infer` within one process: batches, limits, images."""

import resource
import threading

import numpy as np
import pytest

from tests.fixtures import onnx_models as models
from tests.fixtures.refusals import refused
from yarn_accel.errors import RejectedError
from yarn_accel.operations import inference
from yarn_accel.operations.models import ModelSource, digest_of
from yarn_accel.operations.operation import allocate

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def source(made, **limits):
    content = made.SerializeToString()
    values = {"max_bytes": 64 << 20, "max_s": 120.0, **limits}
    return ModelSource("m.onnx", digest_of({"": content}), {"": content}, **values)._asdict()


def items(made, arrays, limits=None, **params):
    params = {"model": source(made, **(limits or {})), **params}
    return [([array], params, allocate) for array in arrays]


@pytest.fixture
def runs(monkeypatch):
    """The number of rows of each run."""
    found = []
    run = inference._run

    def counted(model, arrays, names):
        found.append(len(arrays[0]))
        return run(model, arrays, names)

    monkeypatch.setattr(inference, "_run", counted)
    return found


def rows(*counts):
    random = np.random.default_rng(5)
    return [random.standard_normal((count, 2)).astype(np.float32) for count in counts]


def test_requests_of_one_model_are_one_run(runs):
    arrays = rows(1, 3, 2)
    found = inference.infer_batch(items(models.linear(WEIGHTS), arrays))
    assert runs == [6]
    for array, outcome in zip(arrays, found, strict=True):
        assert np.allclose(outcome.arrays["output_0"], array @ WEIGHTS)
        assert outcome.info["computed_together"] == 3


def test_not_so_where_the_caller_says_so_or_the_first_axis_is_no_batch(runs):
    inference.infer_batch(items(models.linear(WEIGHTS), rows(1, 3), batch=False))
    assert runs == [1, 3]
    fixed = models.linear(WEIGHTS)
    for each in (*fixed.graph.input, *fixed.graph.output):
        each.type.tensor_type.shape.dim[0].dim_value = 2
    runs.clear()
    inference.infer_batch(items(fixed, rows(2, 2)))
    assert runs == [2, 2]


def test_one_bad_request_of_a_batch_does_not_spoil_the_others(runs):
    good = rows(2, 2)
    mixed = items(models.linear(WEIGHTS), [good[0], np.ones((2, 5), np.float32), good[1]])
    found = inference.infer_batch(mixed)
    assert [getattr(each, "code", "done") for each in found] == ["done", "wrong-shape", "done"]
    assert np.allclose(found[2].arrays["output_0"], good[1] @ WEIGHTS)


def test_a_model_that_does_not_end_is_not_waited_for_by_each_of_a_batch(runs):
    found = inference.infer_batch(items(models.endless(), rows(1, 1, 1, 1, 1), {"max_s": 0.2}))
    assert [error.code for error in found] == ["model-time"] * 5
    assert len(runs) == inference._LIMITS_OF_A_BATCH


def test_no_run_begins_a_thread_of_its_own():
    begun = []

    class Counted(threading.Thread):
        def start(self):
            begun.append(self.name)
            super().start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "Thread", Counted)
        for array in rows(1, 2, 3):
            inference.infer(*items(models.linear(WEIGHTS), [array])[0])
    assert len(begun) <= 1


def test_an_alarm_that_was_cleared_does_not_ring_and_an_earlier_one_does():
    alarm, late, was_called = inference._Alarm(), [], threading.Event()
    alarm.set(0.0, was_called.set)
    assert was_called.wait(30)
    alarm.set(3600.0, lambda: late.append(1))
    alarm.clear()
    was_called.clear()
    alarm.set(0.01, was_called.set)
    assert was_called.wait(30)
    assert late == []


def test_the_limit_of_memory_is_taken_back(runs):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    (found,) = inference.infer_batch(items(models.growing(), rows(1)))
    assert isinstance(found, RejectedError)
    assert (found.code, "67108864" in found.message) == ("model-memory", True)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert np.zeros(128 << 20, np.uint8).any() == False  # noqa: E712 -- numpy's own


def test_a_loaded_model_stays_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(inference, "_KEPT_BYTES", 0)
    inference._loaded.clear()
    for number in range(3):
        inference.infer_batch(items(models.linear(number + WEIGHTS), rows(1)))
    assert len(inference._loaded) == 1


def test_an_output_that_cannot_travel_is_a_bad_model():
    made = models.linear(WEIGHTS)
    made.graph.node.append(models.helper.make_node("Cast", ["y"], ["text"], to=models.TensorProto.STRING))
    made.graph.output.append(models.value("text", ["n", 3], models.TensorProto.STRING))
    with refused("bad-model", match="'text' has elements of tensor"):
        inference.infer(*items(made, rows(1))[0])
