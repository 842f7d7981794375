"""Which workers a server gets, where they run, and what is known of their speed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.workers import affinity, devices
from yarn_accel.pipeline.workers.calibration import PROBLEMS, Calibration, measure
from yarn_accel.pipeline.workers.devices import Device, GpuMonitor, find_devices
from yarn_accel.pipeline.workers.jobs import Measured

CPU = Device("cpu", "cpu")
VERSIONS = {"numpy": "2"}


def config(**settings: Any) -> PipelineConfig:
    return PipelineConfig(master_secret_file=Path("/none"), **settings)


def test_groups_are_apart_until_there_are_more_of_them_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 5})
    siblings = {(core, "thread_siblings_list"): f"{core % 3},{core % 3 + 3}" for core in range(6)}
    monkeypatch.setattr(affinity, "_read", lambda core, name: siblings.get((core, name), "0"))
    assert affinity.core_groups(3, 1) == ((0,), (1,), (2,))
    assert affinity.core_groups(2, 3) == ((0, 1, 2), (3, 4, 5))
    assert affinity.core_groups(4, 2) == ((0, 1), (2, 3), (4, 5), (0, 1))
    assert affinity.core_groups(2, 99) == ((0, 1, 2, 3, 4, 5),) * 2


def test_cores_of_this_machine_can_be_shared() -> None:
    assert set(affinity.core_groups(1, 1)[0]) <= os.sched_getaffinity(0)
    assert affinity.thread_environment(3)["OPENBLAS_NUM_THREADS"] == "3"


def test_auto_is_every_gpu_that_can_be_used_else_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_gpus", lambda: [])
    assert [one.name for one in find_devices(config(workers=3))] == ["cpu"] * 3
    assert find_devices(config(workers=1, pin_workers=False)) == (CPU,)
    gpus = [Device("cuda:0", "cuda", fault="no CuPy"), Device("cuda:1", "cuda")]
    monkeypatch.setattr(devices, "_gpus", lambda: gpus)
    assert find_devices(config()) == (gpus[1],)


def test_a_gpu_that_is_asked_for_and_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        nvmlDeviceGetCount = staticmethod(lambda: 2)

    monkeypatch.setattr(devices, "_nvml", lambda: None)
    assert "driver" in find_devices(config(devices=("cuda:0",)))[0].fault
    monkeypatch.setattr(devices, "_nvml", lambda: Nvml)
    assert "2 GPUs" in find_devices(config(devices=("cuda:2",)))[0].fault
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in find_devices(config(devices=("cuda:1",)))[0].fault
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: object())
    gpu = find_devices(config(devices=("cuda:1",)))[0]
    assert (gpu.index, gpu.fault) == (1, "")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", ""])
def test_an_unknown_device_is_a_wrong_setting(name: str) -> None:
    with pytest.raises(ConfigError, match="devices"):
        find_devices(config(devices=(name,)))


def test_faults_that_a_gpu_reports_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        device, eventType, eventData = "handle", 8, 79

    class Nvml:
        nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError = 8, 2
        NVMLError = RuntimeError
        events: list[Event] = [Event()]  # noqa: RUF012
        nvmlEventSetCreate = staticmethod(object)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: f"handle-{index}")
        nvmlDeviceGetIndex = staticmethod(lambda handle: 1)
        nvmlDeviceRegisterEvents = staticmethod(lambda handle, kinds, events: None)

        @classmethod
        def nvmlEventSetWait_v2(cls, events: Any, timeout_ms: int) -> Event:
            if not cls.events:
                raise cls.NVMLError("timeout")
            return cls.events.pop()

    monkeypatch.setattr(devices, "_nvml", lambda: Nvml)
    monkeypatch.setattr(devices, "read_devices", lambda: [{"device": "cuda:1"}])
    reported: list[tuple[str, str]] = []
    seen = threading.Event()

    def call(task: Callable[[], None]) -> None:
        task()
        seen.set()

    monitor = GpuMonitor([CPU, Device("cuda:1", "cuda")], lambda *fault: reported.append(fault), call)
    monitor.start()
    assert seen.wait(60)
    monitor.close()
    assert reported == [("cuda:1", "Xid 79")]
    assert monitor.faults() == []
    assert GpuMonitor([CPU], lambda *fault: None, call).faults() == []


# Calibration


def made(path: Any, on_measured: Callable[[Measured], None] | None = None) -> Calibration:
    """A calibration without threads."""
    nobody: Callable[[Measured], None] = lambda measured: None  # noqa: E731
    return Calibration(
        config(calibration_file=str(path)), on_measured or nobody, lambda call: call(), lambda call: call()
    )


def found(seconds: float) -> dict[str, Any]:
    return {"flops": 10, "n_bytes": 20, "seconds": seconds}


def test_every_problem_is_measured_once_and_then_kept(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "calibration.json"
    reported: list[Measured] = []
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
    again: list[Measured] = []
    second = made(str(path), again.append)
    second.welcome(CPU, VERSIONS)
    assert again == reported
    assert second.is_done
    third = made(str(path), again.append)
    third.welcome(CPU, {"numpy": "3"})
    assert not third.is_done


def test_an_operation_that_is_slow_or_broken_is_not_measured_further(tmp_path: Path) -> None:
    calibration = made(str(tmp_path / "file"))
    calibration.welcome(CPU, VERSIONS)
    seen = []
    while (problem := calibration.next_problem(1, CPU)) is not None:
        seen.append(problem)
        calibration.learn(1, None if problem[0] == "qr" else found(0.01 if problem[0] == "lu" else 1e-5))
    assert [n for operation, n in seen if operation == "lu"] == [64]
    assert [n for operation, n in seen if operation == "qr"] == [64]
    assert [n for operation, n in seen if operation == "gemm"] == [64, 128, 256, 512]


def test_a_lost_worker_loses_its_piece_only(tmp_path: Path) -> None:
    calibration = made(str(tmp_path / "file"))
    calibration.welcome(CPU, VERSIONS)
    first = calibration.next_problem(1, CPU)
    calibration.forget(1)
    calibration.learn(1, found(1.0))
    assert calibration.next_problem(2, CPU) not in (None, first)


def test_a_disturbed_measurement_is_made_again(tmp_path: Path) -> None:
    calibration = made(str(tmp_path / "file"))
    calibration.welcome(CPU, VERSIONS)
    first = calibration.next_problem(1, CPU)
    calibration.learn(1, {})
    assert calibration.next_problem(1, CPU) == first


@pytest.mark.parametrize("content", ["", "[]", '{"a": [[1]]}', '{"a": 3}', "\x00"])
def test_a_damaged_file_is_no_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(content)
    calibration = made(str(path))
    calibration.welcome(CPU, VERSIONS)
    while calibration.next_problem(1, CPU) is not None:
        calibration.learn(1, found(1e-6))
    assert len(json.loads(path.read_text())) == 1


def test_a_folder_that_cannot_be_written_costs_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    calibration = made(str(tmp_path / "file" / "below"))
    calibration.welcome(CPU, VERSIONS)
    while calibration.next_problem(1, CPU) is not None:
        calibration.learn(1, found(1e-6))
    assert calibration.is_done


@pytest.mark.parametrize("operation", sorted({name for name, _ in PROBLEMS}))
def test_every_problem_can_be_measured(operation: str) -> None:
    from yarn_accel.pipeline.workers.forms import Forms

    measured = measure(Forms("cpu"), operation, 64)
    assert measured is not None
    assert measured["seconds"] > 0
    assert measured["flops"] + measured["n_bytes"] > 0
    assert measure(Forms("cpu"), "nothing", 64) is None
