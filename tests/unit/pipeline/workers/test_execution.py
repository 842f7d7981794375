"""Which function a worker calls, and what it makes of the inputs before."""

import pytest

from yarn_accel.operations import get
from yarn_accel.pipeline.plans import Plans
from yarn_accel.pipeline.workers.execution import Forms
from yarn_accel.wire import Request, TensorSpec

MATRIX = TensorSpec("<f8", (3, 3))


def test_a_gpus_worker_runs_what_has_no_form_for_it_on_the_cpu_and_says_so():
    template = Forms("cuda").template("svd", {}, [MATRIX])
    assert template.facts == {"computed_on": "cpu"}
    assert Forms("cpu").template("svd", {}, [MATRIX]).facts == {}


def test_only_inputs_of_other_element_types_are_converted():
    assert Forms("cpu").template("lu", {}, [MATRIX]).computed == ()
    assert Forms("cpu").template("lu", {}, [TensorSpec("<i2", (3, 3))]).computed == (
        TensorSpec("<f4", (3, 3)),
    )


@pytest.mark.parametrize(
    ("operation", "devices", "kinds"),
    [
        ("lu", ("cpu", "cuda"), ("cpu", "cuda")),
        ("lu", ("cuda",), ("cuda",)),
        ("svd", ("cuda", "cpu"), ("cpu",)),
        ("svd", ("cuda",), ("cuda",)),
    ],
)
def test_a_request_waits_for_no_device_that_is_not_there(operation, devices, kinds):
    plan = Plans(get, lambda uri: uri, 1 << 20, lambda: devices).plan(
        Request(1, "k", operation, {}, (MATRIX,))
    )
    assert plan.needs[0].kinds == kinds
