"""NVML by a stand-in: minor numbers, missing functions, a driver that fails in the middle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torque_sched.sampler import gpus
from torque_sched.sampler.gpus import GpuReader, load_nvml


class NVMLError(Exception):
    pass


class Nvml:
    """Two GPUs whose PCI order is the reverse of their minor numbers."""

    NVMLError = NVMLError

    def __init__(self, *broken: str) -> None:
        self.broken = broken

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "broken"):

            def fail(*_: object) -> None:
                raise NVMLError("Not Supported")

            return fail
        return object.__getattribute__(self, name)

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, place: int) -> int:
        return place

    def nvmlDeviceGetMinorNumber(self, device: int) -> int:
        return 1 - device

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:
        return SimpleNamespace(gpu=30 + device)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
        return SimpleNamespace(used=1000 + device)

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> Any:
        return [SimpleNamespace(pid=40 + device, usedGpuMemory=None if device else 500)]


def test_gpus_are_numbered_as_torque_numbers_them() -> None:
    uses = GpuReader(Nvml()).read()
    assert [(use.gpu.index, use.gpu.busy, use.gpu.mem_bytes) for use in uses] == [
        (0, 0.31, 1001),
        (1, 0.3, 1000),
    ]
    assert [dict(use.processes) for use in uses] == [{41: 0}, {40: 500}]


@pytest.mark.parametrize(
    ("broken", "n_gpus"),
    [
        ("nvmlDeviceGetCount", 0),
        ("nvmlDeviceGetUtilizationRates", 0),
        ("nvmlDeviceGetMinorNumber", 2),
        ("nvmlDeviceGetComputeRunningProcesses", 2),
    ],
)
def test_what_the_driver_refuses_is_left_out(broken: str, n_gpus: int) -> None:
    assert len(GpuReader(Nvml(broken)).read()) == n_gpus


def test_a_node_without_binding_or_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(gpus.importlib, "import_module", no_module)
    assert load_nvml() is None
    assert GpuReader(None).read() == ()
    broken = Nvml("nvmlInit")
    monkeypatch.setattr(gpus.importlib, "import_module", lambda name: broken)
    assert load_nvml() is None
