"""Reading GPUs: none is no error, and a value that a device does not give is None."""

import sys
import types

import pytest

from yarn_accel.pipeline import nvml


class FakeNvml(types.ModuleType):
    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, n_devices=1, has_driver=True):
        super().__init__("pynvml")
        self.n_devices = n_devices
        self.has_driver = has_driver
        self.n_inits = 0

    def nvmlInit(self):
        self.n_inits += 1
        if not self.has_driver:
            raise self.NVMLError("driver not loaded")

    def nvmlDeviceGetCount(self):
        return self.n_devices

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H200" if handle == 0 else "NVIDIA A10"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        if handle == 1:
            raise self.NVMLError("not supported")
        return 3

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 40 + handle

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(used=3 << 30, total=139 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle == 1:
            raise self.NVMLError("not supported")
        return types.SimpleNamespace(gpu=75)


@pytest.fixture
def install(monkeypatch):
    monkeypatch.setattr(nvml, "_nvml", [])

    def put(module):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return put


def test_two_devices(install):
    install(FakeNvml(2))
    first, second = nvml.read_devices()
    assert first == {
        "device": "cuda:0",
        "name": "NVIDIA H200",
        "uuid": "GPU-0",
        "temperature_c": 40,
        "memory_bytes": 3 << 30,
        "memory_total_bytes": 139 << 30,
        "utilisation": 0.75,
        "ecc_errors": 3,
    }
    assert (second["name"], second["utilisation"], second["ecc_errors"]) == ("NVIDIA A10", None, None)


def test_no_library(install):
    install(None)
    assert nvml.read_devices() == []


def test_no_driver_is_found_out_once(install):
    module = install(FakeNvml(has_driver=False))
    assert nvml.read_devices() == nvml.read_devices() == []
    assert module.n_inits == 1


def test_a_device_that_falls_off_the_bus(install, monkeypatch):
    module = install(FakeNvml())

    def lost(index):
        raise module.NVMLError("GPU is lost")

    monkeypatch.setattr(module, "nvmlDeviceGetHandleByIndex", lost)
    assert nvml.read_devices() == []
