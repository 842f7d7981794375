"""The needs of a request, which requests share a plan, and values as JSON."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest

from yarn_accel.errors import RejectedError
from yarn_accel.operations.registry import get
from yarn_accel.pipeline.plans import Plans, ReferencedFile
from yarn_accel.pipeline.storage import array_at
from yarn_accel.pipeline.workers.protocol import plain
from yarn_accel.uris import normalised
from yarn_accel.wire import RemoteInput, Request, TensorSpec

MATRIX = TensorSpec("<f8", (10, 10), "F")
FILE = RemoteInput("file:///data/a.f8", MATRIX)


@pytest.fixture
def plans():
    return Plans(get, normalised, 1 << 20, lambda: ("cpu",), lambda: ("cpu",))


def request(operation="echo", inputs=(MATRIX,), **options):
    return Request(1, "key", operation, options.pop("params", {}), inputs, **options)


def test_equal_kinds_share_one_plan_and_others_do_not(plans):
    plan = plans.plan(request())
    assert plans.plan(request()._replace(id=2, key="other")) is plan
    assert plan.fits(request())
    others = (request("qr"), request(params={"a": 1}), request(inputs=(MATRIX, MATRIX)))
    for other in others:
        assert not plan.fits(other)
        assert plans.plan(other) is not plan
    assert len({plans.plan(each).likeness for each in (request(), *others)}) == 4


def test_no_more_plans_are_kept_than_of_the_kinds_that_came_of_late(plans):
    for n in range(1000):
        plans.plan(request(inputs=(TensorSpec("|u1", (n + 1,)),)))
    assert len(plans._known) <= 256


def test_plans_of_files_are_not_kept_since_the_files_may_change(plans):
    plan = plans.plan(request(inputs=(FILE,)))
    assert plans.plan(request(inputs=(FILE,))) is not plan
    assert plan.likeness is None
    assert plan.needs[0].reads == ("file:///data/a.f8",)


def test_inputs_lie_aligned_one_behind_the_other_and_areas_are_remembered(plans):
    odd = TensorSpec("|u1", (3,))
    plan = plans.plan(request(inputs=(odd, FILE, odd)))
    assert plan.payload_bytes == 6
    offsets = [offset for (offset,) in plan.offsets]
    assert all(offset % 64 == 0 for offset in offsets)
    areas = plan.areas(7)
    assert plan.areas(7) is areas
    assert [(area.segment, area.offset) for area in areas] == [(7, offset) for offset in offsets]
    views = plan.payload_views(memoryview(bytearray(plan.inputs_end)))
    assert [len(view) for view in views] == [3, 3]
    for segment in range(1000):
        plan.areas(segment)
    assert plan.areas(7) == areas


@pytest.mark.parametrize(
    ("kind", "operation", "shape", "is_batched"),
    [
        ("cpu", "lu", (362, 362), True),
        ("cpu", "lu", (512, 512), False),
        ("cuda", "lu", (512, 512), True),
        ("cuda", "lu", (4, 512, 512), True),
        ("cuda", "lu", (5, 512, 512), False),
        ("cuda", "lu", (513, 513), False),
        ("cuda", "echo", (512, 512), False),
    ],
)
def test_what_a_gpu_computes_together_may_be_larger(kind, operation, shape, is_batched):
    plans = Plans(get, normalised, 1 << 30, lambda: (kind,), tuple)
    plan = plans.plan(request(operation, (TensorSpec("<f8", shape),)))
    assert (plan.needs[0].batch_key is not None) == is_batched


def test_inputs_that_must_stay_need_space_for_a_copy_where_the_operation_works_in_place(plans):
    may_change, must_stay = plans.plan(request("qr")).needs
    assert must_stay.output_bytes >= may_change.output_bytes + MATRIX.nbytes
    may_change, must_stay = plans.plan(request("echo")).needs
    assert must_stay.output_bytes == may_change.output_bytes


def test_a_file_that_describes_itself_is_sized_when_it_was_looked_at(plans):
    wanted = request("qr", (RemoteInput("file:///data/a.npy"),))
    plan = plans.plan(wanted)
    assert plan.specs == ()
    assert plan.inputs_end == 0
    sized = plans.sized(plan, wanted, [ReferencedFile((MATRIX,))])
    assert sized.specs == (MATRIX,)
    assert sized.inputs_end >= MATRIX.nbytes
    assert sized.needs[0].output_bytes > 0
    assert sized.needs[0].reads == plan.needs[0].reads


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (request("nothing"), "unknown-operation"),
        (request("qr", (TensorSpec("|u1", (3,)),)), ""),
        (request(inputs=(TensorSpec("|u1", ((1 << 20) + 1,)),)), "request-too-large"),
        (request(inputs=(RemoteInput("file:///data/../secret", MATRIX),)), ""),
    ],
)
def test_what_is_wrong_is_refused(plans, wanted, code):
    with pytest.raises(RejectedError) as caught:
        plans.plan(wanted)
    assert code in caught.value.code


def test_files_too_large_together_are_refused(plans):
    wanted = request(inputs=(RemoteInput("file:///data/a.npy"), RemoteInput("file:///data/b.npy")))
    files = [ReferencedFile((TensorSpec("|u1", (n_bytes,)),)) for n_bytes in (1 << 20, 1)]
    plan = plans.plan(wanted)
    with pytest.raises(RejectedError, match="1048577 bytes of inputs"):
        plans.sized(plan, wanted, files)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1), (4,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_received_bytes_are_the_array(shape, order):
    source = np.asarray(np.random.default_rng(1).standard_normal(shape), order=order)
    spec = TensorSpec("<f8", shape, order)
    memory = bytearray(source.tobytes(order=order))
    assert np.array_equal(source, array_at(memoryview(memory), spec))


def test_values_become_plain():
    value = {
        "n": np.int64(3),
        "x": np.float32(0.5),
        "bad": [np.nan, float("inf"), np.float64("-inf")],
        "array": np.arange(3),
        "flag": np.bool_(True),
        4: ("a", None),
    }
    wanted = {"n": 3, "x": 0.5, "bad": [None] * 3, "array": [0, 1, 2], "flag": True, "4": ["a", None]}
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == wanted


def test_values_are_made_plain_while_another_thread_loads_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", types.ModuleType("numpy"))
    assert plain({"a": (1, float("nan"))}) == {"a": [1, None]}
