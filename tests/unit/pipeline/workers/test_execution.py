"""Which function a worker calls, and what it makes of the inputs before."""

import pytest

from yarn_accel.operations import get
from yarn_accel.operations.operation import Operation
from yarn_accel.pipeline.plans import Plans
from yarn_accel.pipeline.workers.execution import Forms
from yarn_accel.wire import Request, TensorSpec

MATRIX = TensorSpec("<f8", (3, 3))


def test_a_gpus_worker_runs_what_has_no_form_for_it_on_the_cpu_and_says_so():
    template = Forms("cuda").template("echo", {}, [MATRIX])
    assert template.facts == {"computed_on": "cpu"}
    assert Forms("cpu").template("echo", {}, [MATRIX]).facts == {}


def test_only_inputs_of_other_element_types_are_converted():
    assert Forms("cpu").template("lu", {}, [MATRIX]).computed == ()
    assert Forms("cpu").template("lu", {}, [TensorSpec("<i2", (3, 3))]).computed == (
        TensorSpec("<f4", (3, 3)),
    )


@pytest.mark.parametrize(
    ("operation", "devices", "rest", "kinds"),
    [
        ("lu", ("cpu", "cuda"), ("cpu", "cuda"), ("cpu", "cuda")),
        ("lu", ("cuda",), ("cuda",), ("cuda",)),
        ("lu", ("cuda",), ("cpu",), ("cuda",)),
        ("echo-like", ("cuda", "cpu"), ("cuda", "cpu"), ("cpu",)),
        ("echo-like", ("cuda",), ("cuda",), ("cuda",)),
        ("echo-like", ("cuda",), ("cpu",), ("cpu",)),
    ],
)
def test_a_request_waits_for_no_device_that_is_not_there(operation, devices, rest, kinds):
    """Of a site's operation without a form for GPUs CPU workers beside these take care."""
    fits, counts = (lambda specs, params: None), (lambda specs, params: 0)
    own = Operation("echo-like", "", None, fits, lambda arrays, params, place: None, counts)
    find = {"lu": get("lu"), "echo-like": own}.__getitem__
    plan = Plans(find, lambda uri: uri, 1 << 20, lambda: devices, lambda: rest).plan(
        Request(1, "k", operation, {}, (MATRIX,))
    )
    assert plan.needs[0].kinds == kinds
