"""Which GPUs the environment allows; read as CUDA and the container runtime read it."""

from __future__ import annotations

import pytest

from yarn_accel.pipeline.gpu_visibility import doubtful_numbers, visible_gpus
from yarn_accel.pipeline.nvml import Gpu

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
        ("", ""),
        ("-1", ""),
        ("none", ""),
        ("NoDevFiles", ""),
        ("1", "1"),
        ("1,0", "1 0"),
        (" 1 , 0 ", "1 0"),
        ("0,-1,1", "0"),
        ("0,9,1", "0"),
        ("0,0,1", "0"),
        ("GPU-0abd", "1"),
        ("GPU-0ab", ""),
        ("GPU-0abc,GPU-0ab", "0"),
        ("0abc", ""),
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
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text: str, expected: str) -> None:
    found = visible_gpus(GPUS, {"CUDA_VISIBLE_DEVICES": text})
    assert " ".join(gpu.name.removeprefix("cuda:") for gpu in found) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ALL),
        ("void", ALL),
        ("", ALL),
        ("none", ""),
        ("GPU-0abd", "1"),
        ("GPU-0abd,MIG-22aa", "1 2:2"),
        ("0", "0"),
        ("2:2", "2:2"),
        ("4,5,6,7", ALL),
        ("nonsense", ""),
    ],
)
def test_what_the_container_runtime_was_asked_for_holds(text: str, expected: str) -> None:
    found = visible_gpus(GPUS, {"NVIDIA_VISIBLE_DEVICES": text})
    assert " ".join(gpu.name.removeprefix("cuda:") for gpu in found) == expected


def test_both_variables_hold_together() -> None:
    assert visible_gpus(GPUS, {}) == list(GPUS)
    both = {"NVIDIA_VISIBLE_DEVICES": "GPU-0abd,GPU-2b", "CUDA_VISIBLE_DEVICES": "0,2,1"}
    assert [gpu.name for gpu in visible_gpus(GPUS, both)] == ["cuda:2:0", "cuda:2:2", "cuda:1"]
    assert visible_gpus([], {"CUDA_VISIBLE_DEVICES": "0"}) == []


def test_numbers_are_doubtful_where_cuda_counts_another_way() -> None:
    mixed = [*GPUS, Gpu("cuda:4", "GPU-4", 4, product="B")]
    assert doubtful_numbers(mixed, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert not doubtful_numbers(mixed, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert not doubtful_numbers(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-4"})
    assert not doubtful_numbers(GPUS, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert not doubtful_numbers(mixed, {})
