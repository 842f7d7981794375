"""GPUs through NVML, where the driver's Python binding is installed; a node without one has no GPU here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torque_sched.sampler.form import GpuSample


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU and the processes on it: pid -> bytes of its memory (0 where the driver does not tell)."""

    gpu: GpuSample
    processes: Mapping[int, int]


def load_nvml() -> Any:
    """The module ``pynvml``, ready for use; None without it, without driver or without GPU."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 -- a broken driver must not keep CPU and memory from being reported
        return None
    return nvml


class GpuReader:
    """Reads all GPUs of this node; what fails is left out of that sample."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def read(self) -> tuple[GpuUse, ...]:
        """Every GPU that answers, by the driver's minor number, as Torque counts them."""
        if self._nvml is None:
            return ()
        uses: list[GpuUse] = []
        try:
            n = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError:
            return ()
        for place in range(n):
            with suppress(self._nvml.NVMLError):
                uses.append(self._one(place))
        return tuple(sorted(uses, key=lambda use: use.gpu.index))

    def _one(self, place: int) -> GpuUse:
        nvml = self._nvml
        device = nvml.nvmlDeviceGetHandleByIndex(place)
        index = place
        with suppress(nvml.NVMLError):
            index = int(nvml.nvmlDeviceGetMinorNumber(device))
        busy = nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
        used = nvml.nvmlDeviceGetMemoryInfo(device).used
        processes: dict[int, int] = {}
        with suppress(nvml.NVMLError):
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
                processes[int(process.pid)] = int(process.usedGpuMemory or 0)
        return GpuUse(GpuSample(index, busy, float(used)), processes)
