"""A server process as on a node: GPUs found by NVML (emulated), computed on with CUDA (emulated)."""
# ruff: noqa: F811 -- fixtures are imported

import time

import pytest

from tests.emulated_cuda.asking import ask
from tests.emulated_cuda.build import UUIDS
from tests.fixtures import fake_nvml
from tests.integration.pipeline.conftest import ServerProcess, credential  # noqa: F401 -- a fixture


@pytest.fixture
def start(nvml_library, tmp_path, monkeypatch):
    """``start(**variables)``: a server with `devices: [auto]` on a node of two GPUs."""
    node = fake_nvml.Node(tmp_path / "nvml", [fake_nvml.GpuRow(i, uuid) for i, uuid in enumerate(UUIDS)])
    node.write()
    started = []

    def run(**variables):
        for name, value in {**node.environment(nvml_library), **variables}.items():
            monkeypatch.setenv(name, value)
        started.append(ServerProcess(tmp_path / "server", "w1", devices=["auto"]).wait_ready())
        return started[-1]

    run.node = node
    yield run
    for server in started:
        server.stop()


def devices_of(server, credential, wanted):
    """Which devices answer; asks until all that are wanted have."""
    seen, deadline_s, first = set(), time.monotonic() + 300, 0
    while not seen >= wanted:
        assert time.monotonic() < deadline_s, seen
        devices, codes = ask(server, credential, first, 5)
        assert codes == []
        seen |= devices
        first += 10_000
    return seen


def test_a_server_computes_on_every_gpu_of_its_node(start, credential):
    server = start()
    assert devices_of(server, credential, {"cuda:0", "cuda:1"}) == {"cuda:0", "cuda:1"}
    text = (server.folder / "log").read_text(encoding="utf-8")
    assert "computes on cuda:1 with CUDA 12.9: " in text, "which libraries they are"


def test_a_server_uses_the_gpu_that_it_was_given_and_no_other(start, credential):
    assert devices_of(start(CUDA_VISIBLE_DEVICES=UUIDS[1]), credential, {"cuda:1"}) == {"cuda:1"}


def test_a_gpu_that_nvml_says_is_lost_rests_and_the_other_goes_on(start, credential):
    server = start()
    devices_of(server, credential, {"cuda:0", "cuda:1"})
    start.node.gpus[0].state = fake_nvml.LOST
    start.node.write()
    deadline_s, first = time.monotonic() + 120, 10**6
    while "cuda:0" in ask(server, credential, first, 5)[0]:
        assert time.monotonic() < deadline_s
        first += 10_000
    devices, codes = ask(server, credential, first + 10_000, 10)
    assert (devices, codes) == ({"cuda:1"}, [])
