"""Which workers a server gets, where they run, which GPUs the environment allows, and how fast they are."""

import json
import os
import threading
from pathlib import Path

import pynvml
import pytest

from tests.fixtures.fake_nvml import LOST, GpuRow
from yarn_accel.adapters.nvml import Gpu, doubtful_numbers, visible_gpus
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.pipeline import devices
from yarn_accel.pipeline.calibration import Calibration
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.devices import GpuMonitor, find_devices, used_by_others
from yarn_accel.pipeline.workers.launching import Device
from yarn_accel.pipeline.workers.measuring import PROBLEMS, measure

CPU = Device("cpu", "cpu")
VERSIONS = {"numpy": "2"}


def config(**settings):
    return PipelineConfig(master_secret_file=Path("/none"), **settings)


def test_groups_are_apart_until_there_are_more_of_them_than_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 5})
    siblings = {(core, "thread_siblings_list"): f"{core % 3},{core % 3 + 3}" for core in range(6)}
    monkeypatch.setattr(devices, "_read", lambda core, name: siblings.get((core, name), "0"))
    assert devices.core_groups(3, 1) == ((0,), (1,), (2,))
    assert devices.core_groups(2, 3) == ((0, 1, 2), (3, 4, 5))
    assert devices.core_groups(4, 2) == ((0, 1), (2, 3), (4, 5), (0, 1))
    assert devices.core_groups(2, 99) == ((0, 1, 2, 3, 4, 5),) * 2


@pytest.fixture
def has_cupy(monkeypatch):
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: object())


def names(found):
    return [device.name for device in found]


def test_auto_without_a_gpu_is_the_cpu(monkeypatch):
    monkeypatch.setattr(devices, "list_gpus", list)
    assert names(find_devices(config(workers=3))) == ["cpu"] * 3
    assert find_devices(config(workers=1, pin_workers=False)) == (CPU,)


def test_auto_is_every_gpu_that_can_be_used(eight_gpus, has_cupy, caplog):
    found = find_devices(config(workers=3))
    beside = found[-3:]
    assert names(beside) == ["cpu"] * 3, "no more than there would be without GPUs"
    assert all(device.is_for_rest for device in beside)
    assert names(find_devices(config(cpu_workers_per_gpu_worker=0))) == names(found[:-3])
    found = found[:-3]
    assert names(found) == [f"cuda:{name}" for name in ("0", "1", "4", "5:0", "5:2", "6", "7")]
    assert "cuda:2 is not used: GPU is lost" in caplog.text
    assert "cuda:3 is not used: Insufficient Permissions" in caplog.text
    uuids = [device.environment()["CUDA_VISIBLE_DEVICES"] for device in found]
    assert uuids[2:4] == [eight_gpus.gpus[4].uuid, eight_gpus.parts[0].uuid]
    two = find_devices(config(cpu_workers_per_gpu_worker=0), {"CUDA_VISIBLE_DEVICES": "6,1"})
    assert two == (found[5], found[1])
    assert names(find_devices(config(workers=1), {"CUDA_VISIBLE_DEVICES": ""})) == ["cpu"]


def test_workers_that_share_a_gpu_know_how_many(eight_gpus, has_cupy):
    first, second = find_devices(config(workers_per_gpu=2, devices=("cuda:5:2",)))
    assert first == second
    assert (first.n_sharing, first.memory_bytes) == (2, 40448 << 20)


def test_what_is_asked_for_beside_others_and_cannot_be_used_says_why(eight_gpus, has_cupy):
    environ = {"CUDA_VISIBLE_DEVICES": "1,2,5"}
    asked = ("cuda:0", "cuda:1", "cuda:2", "cuda:5", "cuda:9")
    found = find_devices(config(devices=asked), environ)
    assert names(found) == ["cuda:0", "cuda:1", "cuda:2", "cuda:5:0", "cuda:5:2", "cuda:9"]
    faults = {device.name: device.fault for device in found if device.fault}
    assert set(faults) == {"cuda:0", "cuda:2", "cuda:9"}
    assert "CUDA_VISIBLE_DEVICES" in faults["cuda:0"]
    assert faults["cuda:2"] == "GPU is lost"
    assert "this machine has cuda:0, cuda:1" in faults["cuda:9"]


def test_a_server_none_of_whose_devices_can_be_used_is_refused(eight_gpus, monkeypatch):
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"cuda:1: CuPy is not installed: pip install"):
        find_devices(config(devices=("cuda:1",)))
    eight_gpus.gpus, eight_gpus.parts = [GpuRow(0, "GPU-0", is_mig=True)], []
    eight_gpus.write()
    with pytest.raises(StartupError, match="the driver shows no GPU; of one that MIG divides only"):
        find_devices(config(devices=("cuda:0",)))
    monkeypatch.setattr(devices, "list_gpus", list)
    monkeypatch.setattr(devices, "load_nvml", lambda: None)
    with pytest.raises(StartupError, match="no NVIDIA driver"):
        find_devices(config(devices=("cuda:0",)))


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", ""])
def test_an_unknown_device_is_a_wrong_setting(name):
    with pytest.raises(ConfigError, match="devices"):
        find_devices(config(devices=(name,)))


def test_xids_are_reported_once_and_a_lost_gpu_hides_none_of_the_others(eight_gpus, has_cupy):
    monitor = GpuMonitor(find_devices(config()), lambda *fault: None, lambda task: None)
    assert monitor.faults() == []
    eight_gpus.xids += [(1, 79, -1), (3, 31, -1), (6, 48, -1)]
    eight_gpus.write()
    assert monitor.faults() == [("cuda:1", "Xid 79"), ("cuda:6", "uncorrectable memory error")]
    eight_gpus.gpus[0].state = LOST
    eight_gpus.write()
    assert monitor.faults() == [("cuda:0", "GPU is lost")]
    eight_gpus.xids += [(7, 13, -1), (7, 94, -1), (7, 74, -1)]
    eight_gpus.write()
    assert monitor.faults() == [("cuda:7", "Xid 74"), ("cuda:0", "GPU is lost")], "13 is a program's own"
    eight_gpus.gpus[0].state = 0
    eight_gpus.write()
    assert monitor.faults() == []


def test_a_fault_of_a_part_rests_that_part_and_one_of_its_gpu_all_parts(eight_gpus, has_cupy):
    monitor = GpuMonitor(find_devices(config()), lambda *fault: None, lambda task: None)
    monitor.faults()
    eight_gpus.xids += [(5, 95, eight_gpus.parts[1].gpu_instance), (5, 79, -1)]
    eight_gpus.write()
    assert monitor.faults() == [("cuda:5:2", "Xid 95"), ("cuda:5:0", "Xid 79"), ("cuda:5:2", "Xid 79")]


@pytest.mark.parametrize(
    "call", ["nvmlEventSetCreate", "nvmlDeviceGetHandleByUUID", "nvmlDeviceRegisterEvents"]
)
def test_without_events_a_gpu_that_does_not_answer_is_seen_all_the_same(
    eight_gpus, has_cupy, monkeypatch, call
):
    """Some GPUs and containers have none."""

    def refused(*_):
        raise pynvml.NVMLError_NotSupported()

    monkeypatch.setattr(pynvml, call, refused)
    monitor = GpuMonitor(find_devices(config()), lambda *fault: None, lambda task: None)
    eight_gpus.xids += [(1, 79, -1)]
    eight_gpus.gpus[0].state = LOST
    eight_gpus.write()
    assert [monitor.faults() for _ in range(2)] == [[("cuda:0", "GPU is lost")]] * 2


def test_a_gpu_that_went_away_costs_the_others_no_events(eight_gpus, has_cupy):
    gone = Device("cuda:9", "cuda", uuid="GPU-gone")
    monitor = GpuMonitor([gone, *find_devices(config())], lambda *fault: None, lambda task: None)
    assert monitor.faults() == []
    eight_gpus.xids += [(1, 79, -1)]
    eight_gpus.write()
    assert monitor.faults() == [("cuda:1", "Xid 79")]


def test_the_thread_reports_to_its_owner(eight_gpus, has_cupy):
    eight_gpus.write()
    reported = []
    seen = threading.Event()

    def call(task):
        task()
        if reported and monitor.asked_s:
            seen.set()

    monitor = GpuMonitor([CPU, *find_devices(config())], lambda *fault: reported.append(fault), call)
    assert not monitor.may_report("cuda:4", 0.0), "it does not ask yet"
    monitor.start()
    eight_gpus.gpus[4].state = LOST
    eight_gpus.write()
    assert seen.wait(300)
    monitor.close()
    assert set(reported) == {("cuda:4", "GPU is lost")}
    assert len(monitor.latest) == 9
    assert GpuMonitor([CPU], lambda *fault: None, call).faults() == []


def test_a_gpu_that_the_driver_no_longer_shows_is_a_fault(eight_gpus, has_cupy):
    monitor = GpuMonitor(find_devices(config()), lambda *fault: None, lambda task: None)
    assert monitor.faults() == []
    eight_gpus.init = 999
    eight_gpus.write()
    found = monitor.faults()
    assert ("cuda:0", "the driver no longer shows it") in found
    assert len(found) == 7, "all that workers compute on"


def test_an_exception_does_not_end_the_monitor(eight_gpus, has_cupy, monkeypatch, caplog):
    n_asked, is_enough = [], threading.Event()

    def broken():
        n_asked.append(1)
        if len(n_asked) >= 3:
            is_enough.set()
        raise ValueError("what no binding should say")

    monkeypatch.setattr(devices, "_ASK_S", 0.001)
    monkeypatch.setattr(devices, "read_devices", broken)
    monitor = GpuMonitor(find_devices(config()), lambda *fault: None, lambda task: task())
    monitor.start()
    assert is_enough.wait(300)
    monitor.close()
    assert "what no binding should say" in caplog.text


@pytest.mark.parametrize(
    ("mode", "n_workers", "has_mps", "expected"),
    [
        ("default", 4, True, ""),
        ("", 4, True, ""),
        ("exclusive process", 1, False, ""),
        ("exclusive process", 2, False, "workers_per_gpu: 1"),
        ("exclusive process", 1, True, "under MPS"),
        ("prohibited", 1, False, "PROHIBITED"),
    ],
)
def test_a_compute_mode_that_keeps_workers_off_a_gpu_says_how_to_change_it(
    mode, n_workers, has_mps, expected
):
    fault = devices.mode_fault(Gpu("cuda:3", "GPU-3", 3, compute_mode=mode), n_workers, has_mps)
    assert bool(fault) == bool(expected)
    assert expected in fault
    assert not fault or "`nvidia-smi -i 3 -c DEFAULT`" in fault


def test_an_exclusive_gpu_is_refused_beside_mps_and_left_alone_without(
    eight_gpus, has_cupy, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetComputeMode", lambda handle: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    )
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert find_devices(config(devices=("cuda:1",)), environ)[0].fault == ""
    (tmp_path / "control").touch()
    with pytest.raises(StartupError, match="EXCLUSIVE_PROCESS under MPS"):
        find_devices(config(devices=("cuda:1",)), environ)


def test_a_gpus_worker_runs_on_the_cores_beside_its_gpu(eight_gpus, has_cupy, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", lambda handle, n_words: [0b111100])
    assert find_devices(config(devices=("cuda:1",)))[0].cores == (2, 3)
    assert find_devices(config(devices=("cuda:1",), pin_workers=False))[0].cores == ()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", lambda handle, n_words: [0b1111])
    assert find_devices(config(devices=("cuda:1",)))[0].cores == (), "all are as near"


def test_without_the_binding_a_node_with_a_driver_says_so_loudly(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(devices, "list_gpus", list)
    monkeypatch.setattr(devices, "is_package_missing", lambda: True)
    monkeypatch.setattr(devices, "_DRIVER_FILES", (str(tmp_path),))
    assert names(find_devices(config(workers=1))) == ["cpu"]
    assert "pip install 'cluster-accel[yarn]'" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    with pytest.raises(StartupError, match="nvidia-ml-py is not installed"):
        find_devices(config(devices=("cuda:0",)))


def test_memory_of_others_is_known_once_one_of_ours_is_seen():
    processes = {71: 300, 72: 40, 73: 8}
    assert used_by_others(processes, {72}) == 308
    assert used_by_others(processes, {71, 72, 73, 74}) == 0
    assert used_by_others(processes, {99}) is None
    assert used_by_others({}, {72}) is None


# Calibration


def made(path, on_measured=None):
    """A calibration without threads."""
    nobody = lambda measured: None  # noqa: E731
    return Calibration(
        config(calibration_file=str(path)), on_measured or nobody, lambda call: call(), lambda call: call()
    )


def found(seconds):
    return {"flops": 10, "n_bytes": 20, "seconds": seconds}


def test_every_problem_is_measured_once_and_then_kept(tmp_path):
    path = tmp_path / "folder" / "calibration.json"
    reported = []
    calibration = made(str(path), reported.append)
    assert calibration.is_done
    calibration.welcome(CPU, VERSIONS)
    calibration.welcome(CPU, VERSIONS)
    seen = []
    while (problem := calibration.next_problem(1, CPU)) is not None:
        assert calibration.next_problem(1, CPU) is None
        seen.append(problem)
        calibration.learn(1, found(1e-4))
    assert tuple(seen) == PROBLEMS
    assert calibration.is_done
    again = []
    second = made(str(path), again.append)
    second.welcome(CPU, VERSIONS)
    assert again == reported
    assert second.is_done
    third = made(str(path), again.append)
    third.welcome(CPU, {"numpy": "3"})
    assert not third.is_done


def test_an_operation_that_is_slow_or_broken_is_not_measured_further(tmp_path):
    calibration = made(str(tmp_path / "file"))
    calibration.welcome(CPU, VERSIONS)
    seen = []
    while (problem := calibration.next_problem(1, CPU)) is not None:
        seen.append(problem)
        calibration.learn(1, None if problem[0] == "qr" else found(0.01 if problem[0] == "lu" else 1e-5))
    assert [n for operation, n in seen if operation == "lu"] == [64]
    assert [n for operation, n in seen if operation == "qr"] == [64]
    assert [n for operation, n in seen if operation == "gemm"] == [64, 128, 256, 512]


def test_a_lost_worker_loses_its_piece_only_and_a_disturbed_measurement_is_made_again(tmp_path):
    calibration = made(str(tmp_path / "file"))
    calibration.welcome(CPU, VERSIONS)
    first = calibration.next_problem(1, CPU)
    calibration.learn(1, {})
    assert calibration.next_problem(1, CPU) == first
    calibration.forget(1)
    calibration.learn(1, found(1.0))
    assert calibration.next_problem(2, CPU) not in (None, first)


@pytest.mark.parametrize("content", ["", "[]", '{"a": [[1]]}', '{"a": 3}', "\x00"])
def test_a_damaged_file_is_no_file(tmp_path, content):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    calibration = made(str(path))
    calibration.welcome(CPU, VERSIONS)
    while calibration.next_problem(1, CPU) is not None:
        calibration.learn(1, found(1e-6))
    assert len(json.loads(path.read_text())) == 1


def test_a_folder_that_cannot_be_written_costs_the_file_only(tmp_path):
    (tmp_path / "file").write_text("")
    calibration = made(str(tmp_path / "file" / "below"))
    calibration.welcome(CPU, VERSIONS)
    while calibration.next_problem(1, CPU) is not None:
        calibration.learn(1, found(1e-6))
    assert calibration.is_done


@pytest.mark.parametrize("operation", sorted({name for name, _ in PROBLEMS}))
def test_every_problem_can_be_measured(operation):
    from yarn_accel.pipeline.workers.execution import Forms

    measured = measure(Forms("cpu"), operation, 64)
    assert measured is not None
    assert measured["seconds"] > 0
    assert measured["flops"] + measured["n_bytes"] > 0
    assert measure(Forms("cpu"), "nothing", 64) is None


PARENT = "GPU-2bcd"
GPUS = (
    Gpu("cuda:0", "GPU-0abc", 0, parent_uuid="GPU-0abc", product="A"),
    Gpu("cuda:1", "GPU-0abd", 1, parent_uuid="GPU-0abd", product="A"),
    Gpu("cuda:2:0", "MIG-20aa", 2, 0, PARENT, (3, 0), "A"),
    Gpu("cuda:2:2", "MIG-22aa", 2, 2, PARENT, (4, 1), "A"),
    Gpu("cuda:3", "", 3, fault="GPU is lost"),
)
ALL = "0 1 2:0 2:2 3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, "") for text in ("", "-1", "none", "NoDevFiles", "GPU-0ab", "0abc")),
        *((text, "0") for text in ("0,-1,1", "0,9,1", "0,0,1", "GPU-0abc,GPU-0ab")),
        *(("1", "1"), ("1,0", "1 0"), (" 1 , 0 ", "1 0"), ("GPU-0abd", "1")),
        ("2", "2:0 2:2"),
        ("GPU-2b", "2:0 2:2"),
        ("MIG-22", "2:2"),
        ("MIG-2", ""),
        ("MIG-GPU-2bcd/4/1", "2:2"),
        ("MIG-GPU-2bcd/9/9", ""),
        ("2:2", "2:2"),
        ("3", "3"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text, expected):
    found = visible_gpus(GPUS, {"CUDA_VISIBLE_DEVICES": text})
    assert " ".join(gpu.name.removeprefix("cuda:") for gpu in found) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, ALL) for text in ("all", "void", "", "4,5,6,7")),
        *((text, "") for text in ("none", "nonsense")),
        ("GPU-0abd", "1"),
        ("GPU-0abd,MIG-22aa", "1 2:2"),
        ("0", "0"),
        ("2:2", "2:2"),
    ],
)
def test_what_the_container_runtime_was_asked_for_holds(text, expected):
    found = visible_gpus(GPUS, {"NVIDIA_VISIBLE_DEVICES": text})
    assert " ".join(gpu.name.removeprefix("cuda:") for gpu in found) == expected


def test_both_variables_hold_together():
    assert visible_gpus(GPUS, {}) == list(GPUS)
    both = {"NVIDIA_VISIBLE_DEVICES": "GPU-0abd,GPU-2b", "CUDA_VISIBLE_DEVICES": "0,2,1"}
    assert [gpu.name for gpu in visible_gpus(GPUS, both)] == ["cuda:2:0", "cuda:2:2", "cuda:1"]
    assert visible_gpus([], {"CUDA_VISIBLE_DEVICES": "0"}) == []


def test_numbers_are_doubtful_where_cuda_counts_another_way():
    mixed = [*GPUS, Gpu("cuda:4", "GPU-4", 4, product="B")]
    assert doubtful_numbers(mixed, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert not doubtful_numbers(mixed, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert not doubtful_numbers(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-4"})
    assert not doubtful_numbers(GPUS, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert not doubtful_numbers(mixed, {})
