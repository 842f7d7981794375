"""Reading GPUs with the real pynvml over an emulated NVML: one that fails hides none of the others."""

import sys

import pynvml
import pytest

from tests.fixtures.fake_nvml import LOST
from yarn_accel.adapters import nvml

MIB = 1 << 20


def test_every_gpu_is_listed_and_a_divided_one_by_its_parts(eight_gpus):
    rows = {row["device"]: row for row in nvml.read_devices()}
    assert list(rows) == [f"cuda:{name}" for name in ("0", "1", "2", "3", "4", "5:0", "5:2", "6", "7")]
    assert rows["cuda:0"] == {
        "device": "cuda:0",
        "name": "NVIDIA H100 (emulated)",
        "uuid": "GPU-00000000-aaaa-bbbb-cccc-000000000000",
        "temperature_c": 40,
        "memory_bytes": 1024 * MIB,
        "memory_total_bytes": 81559 * MIB,
        "utilisation": 0.5,
        "ecc_errors": 0,
        "fault": "",
    }
    part = rows["cuda:5:2"]
    assert part["uuid"] == "MIG-50000002-aaaa-bbbb-cccc-000000000000"
    assert (part["temperature_c"], part["utilisation"]) == (40, None), "of the GPU; unknown of a part"
    assert part["memory_total_bytes"] == 40448 * MIB
    assert (rows["cuda:2"]["fault"], rows["cuda:2"]["name"]) == ("GPU is lost", None)
    assert rows["cuda:3"]["fault"] == "Insufficient Permissions"


def test_gpus_are_listed_with_their_faults(eight_gpus):
    eight_gpus.parts[1].state = LOST
    eight_gpus.write()
    gpus = {gpu.name: gpu for gpu in nvml.list_gpus()}
    assert {name for name, gpu in gpus.items() if gpu.fault} == {"cuda:2", "cuda:3", "cuda:5:2"}
    assert gpus["cuda:5:0"].parent_uuid == eight_gpus.gpus[5].uuid
    assert gpus["cuda:5:0"].instance == (1, 0)
    assert (gpus["cuda:7"].index, gpus["cuda:7"].part, gpus["cuda:7"].instance) == (7, None, None)
    assert gpus["cuda:7"].memory_bytes == 81559 * MIB


def test_a_gpu_without_memory_of_its_own_is_no_fault(eight_gpus):
    eight_gpus.gpus[0].total_mib = 0
    eight_gpus.write()
    gpu, row = nvml.list_gpus()[0], nvml.read_devices()[0]
    assert (gpu.memory_bytes, gpu.fault) == (0, "")
    assert (row["memory_total_bytes"], row["fault"]) == (None, "")


def test_a_gpu_that_knows_nothing_of_mig_is_a_whole_one(eight_gpus, monkeypatch):
    """As those before Ampere say."""

    def not_supported(handle):
        raise pynvml.NVMLError_NotSupported()

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", not_supported)
    assert [gpu.name for gpu in nvml.list_gpus()] == [f"cuda:{index}" for index in range(8)]


@pytest.mark.parametrize("question", ["nvmlDeviceGetName", "nvmlDeviceGetTotalEccErrors"])
def test_a_gpu_that_is_lost_between_two_questions_is_lost(eight_gpus, monkeypatch, question):
    def lost(handle, *_):
        raise pynvml.NVMLError_GpuIsLost()

    monkeypatch.setattr(pynvml, question, lost)
    assert nvml.read_devices()[0]["fault"] == "GPU is lost"


def raising(error):
    def question(*_):
        raise error()

    return question


@pytest.mark.parametrize("question", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_answers_unknown_error_is_no_healthy_one(eight_gpus, monkeypatch, question):
    """As in a container that lost its devices."""
    monkeypatch.setattr(pynvml, question, raising(pynvml.NVMLError_Unknown))
    row = nvml.read_devices()[0]
    assert row["fault"] == str(pynvml.NVMLError_Unknown())
    monkeypatch.setattr(pynvml, question, raising(pynvml.NVMLError_NotSupported))
    assert nvml.read_devices()[0]["fault"] == ""


def test_a_sensor_that_does_not_answer_is_no_fault(eight_gpus, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", raising(pynvml.NVMLError_Unknown))
    row = nvml.read_devices()[0]
    assert (row["fault"], row["temperature_c"]) == ("", None)


def test_mode_and_nearest_cores_of_a_gpu(eight_gpus, monkeypatch):
    monkeypatch.setattr(nvml.os, "cpu_count", lambda: 100)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetComputeMode", lambda handle: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", lambda handle, n_words: [0b101, 1 << 3][:n_words])
    gpu = nvml.list_gpus()[0]
    assert (gpu.compute_mode, gpu.cores) == ("exclusive process", (0, 2, 67))
    for question in ("nvmlDeviceGetComputeMode", "nvmlDeviceGetCpuAffinity"):
        monkeypatch.setattr(pynvml, question, raising(pynvml.NVMLError_NotSupported))
    gpu = nvml.list_gpus()[0]
    assert (gpu.compute_mode, gpu.cores, gpu.fault) == ("", (), "")


def test_processes_are_listed_where_they_compute(eight_gpus):
    eight_gpus.processes = [(0, -1, 71, 300), (0, -1, 72, 40), (5, 2, 73, 8), (2, -1, 74, 1)]
    eight_gpus.write()
    found = nvml.list_processes()
    assert found["cuda:0"] == {71: 300 * MIB, 72: 40 * MIB}
    assert (found["cuda:5:2"], found["cuda:5:0"]) == ({73: 8 * MIB}, {})
    assert "cuda:2" not in found, "it is lost"


def test_no_library(monkeypatch):
    monkeypatch.setattr(nvml, "_library", nvml._Library())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.read_devices() == nvml.list_gpus() == []
    assert nvml.is_package_missing()


def test_a_driver_that_is_loaded_later_is_found_later(eight_gpus, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(nvml.time, "monotonic", lambda: now_s[0])
    eight_gpus.init = 9
    eight_gpus.write()
    assert nvml.read_devices() == []
    eight_gpus.init = 0
    eight_gpus.write()
    assert nvml.read_devices() == [], "asked for again only after a while"
    now_s[0] += 6.0
    assert len(nvml.read_devices()) == 9


def test_a_driver_that_is_replaced_is_asked_anew(eight_gpus, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(nvml.time, "monotonic", lambda: now_s[0])
    assert len(nvml.list_gpus()) == 9
    eight_gpus.init = 18
    eight_gpus.write()
    assert nvml.list_gpus() == []
    eight_gpus.init = 0
    eight_gpus.write()
    now_s[0] += 6.0
    assert len(nvml.list_gpus()) == 9
