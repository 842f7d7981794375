"""The cores are kept awake while requests come often, and only then."""

import struct

import pytest

from yarn_accel.pipeline.config import CORES_MAY_SLEEP
from yarn_accel.pipeline.cpu_idle import CpuIdleLimit


class Requests:
    """Counts as the server does."""

    def __init__(self):
        self.n = 0

    def __call__(self):
        return self.n


@pytest.fixture
def device(tmp_path):
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    return path


def test_awake_only_while_requests_come_often(device):
    requests = Requests()
    limit = CpuIdleLimit(3, requests, str(device))
    limit.look()
    assert not limit.snapshot()["awake"]
    requests.n += 1000
    limit.look()
    assert limit.snapshot() == {"awake": True, "latency_us": 3, "problem": ""}
    assert device.read_bytes() == struct.pack("i", 3)
    requests.n += 1  # now and then one: not often
    for _ in range(9):
        limit.look()
    assert limit.snapshot()["awake"]
    limit.look()
    assert not limit.snapshot()["awake"]


def test_the_cores_sleep_again_when_the_server_ends(device):
    requests = Requests()
    limit = CpuIdleLimit(0, requests, str(device))
    requests.n += 1000
    limit.look()
    limit.close()
    assert not limit.snapshot()["awake"]


def test_switched_off_it_never_asks(device):
    limit = CpuIdleLimit(CORES_MAY_SLEEP, Requests(), str(device))
    limit.close()
    assert limit.snapshot()["problem"] == "switched off by wake_latency_us"
    assert device.read_bytes() == b""


def test_without_the_device_it_says_so(tmp_path):
    limit = CpuIdleLimit(0, Requests(), str(tmp_path / "none"))
    assert limit.snapshot()["problem"] == f"no right to write {tmp_path}/none"


def test_a_device_that_refuses_is_asked_once(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    requests = Requests()
    limit = CpuIdleLimit(0, requests, str(folder))  # a folder cannot be opened for writing
    requests.n += 1000
    limit.look()
    assert limit.snapshot() == {"awake": False, "latency_us": 0, "problem": f"{folder}: Is a directory"}
