from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.launch.yarn import node
from yarn_accel.adapters.hadoop_rpc.records import NodeReport, YarnResource
from yarn_accel.errors import ConfigError
from yarn_accel.launch import gpu_environment
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.gpu_environment import check_gpu_environment


def with_gpus(name: str, n_gpus: int) -> NodeReport:
    return replace(node(name), capability=YarnResource.of(64000, 8, {"yarn.io/gpu": n_gpus}))


NODES = (with_gpus("w2", 4), with_gpus("w1", 1), with_gpus("w3", 0))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = ["numpy"]
    monkeypatch.setattr(gpu_environment, "distributions", lambda *_: dict.fromkeys(names))
    return names


def checked(**settings: Any) -> list[str]:
    return check_gpu_environment(LaunchConfig.model_validate(settings), NODES)


@pytest.mark.parametrize(
    "settings",
    [{"server": {"gpus": 2}}, {"server": {"devices": "1"}}, {"pipeline": {"devices": ["cpu", "cuda:1"]}}],
)
def test_gpus_that_are_asked_for_need_cupy(packed: list[str], settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="asks for GPUs, and CuPy is not in the environment") as caught:
        checked(**settings)
    assert "extras: [yarn, gpu]" in str(caught.value)
    packed.append("cupy-cuda12x")
    assert checked(**settings) == []


def test_gpus_that_would_stay_idle_are_named(packed: list[str]) -> None:
    (note,) = checked()
    assert "the GPUs of w1, w2 stay idle" in note
    assert checked(server={"gpus": 0}) == []
    assert checked(pipeline={"devices": ["cpu"]}) == []
    assert check_gpu_environment(LaunchConfig.model_validate({}), NODES[2:]) == []
    packed.append("cupy-cuda13x")
    assert checked() == []
