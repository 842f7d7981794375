"""A server with the GPUs of this machine, or with emulated ones: every operation, judged by the CPU."""

import importlib

import pytest

from benchmarks.gpu.cases import answered, cases, packed
from yarn_accel.client.client import Client
from yarn_accel.operations.registry import OPERATIONS


def _has_gpu():
    try:
        return importlib.import_module("cupy").cuda.runtime.getDeviceCount() > 0
    except Exception:  # noqa: BLE001 -- whatever CuPy raises without a driver
        return False


on_a_gpu = pytest.mark.skipif(not _has_gpu(), reason="no CUDA device")
CASES = list(cases())


def test_there_is_a_case_of_every_operation():
    assert {case.operation for case in CASES} == set(OPERATIONS) - {"infer", "chain"}, "of others"


@pytest.fixture
def device(start_server, credential):
    """A client of a server, and the name of the GPU that it computes on."""
    from benchmarks.gpu.machine import find

    name = find().gpu.name
    with Client(start_server(devices=(name,)).endpoint, credential) as client:
        yield client, name


@pytest.mark.gpu
@on_a_gpu
def test_every_operation_on_a_gpu_is_that_of_the_cpu(device):
    client, name = device
    for case in CASES:
        judgement, computed_on = answered(client, case, name)
        assert judgement.is_right, (str(case), judgement)
        has_form = OPERATIONS[case.operation].form("cuda") is not None
        assert computed_on == f"computed on {'cuda' if has_form else 'cpu'}", str(case)


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("operation", ["lu", "qr", "cholesky"])
def test_what_is_computed_together_is_right(device, operation):
    assert all(judgement.is_right for judgement in packed(device[0], operation))
