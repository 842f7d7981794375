from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.launch.yarn import node
from yarn_accel.adapters.hadoop_rpc.records import NodeReport, YarnResource
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import gpu_environment
from yarn_accel.launch.config import EnvironmentSettings, LaunchConfig
from yarn_accel.launch.gpu_environment import check_gpu_environment, gpu_form, gpu_note, packed_extras


def with_gpus(name: str, n_gpus: int) -> NodeReport:
    return replace(node(name), capability=YarnResource.of(64000, 8, {"yarn.io/gpu": n_gpus}))


NODES = (with_gpus("w2", 4), with_gpus("w1", 1), with_gpus("w3", 0))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = ["numpy"]
    monkeypatch.setattr(gpu_environment, "distributions", lambda *_: dict.fromkeys(names))
    monkeypatch.setattr(gpu_environment, "packed_extras", lambda _: ("yarn",))
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
    assert "environment: {gpu: auto}" in str(caught.value)
    packed.append("cupy-cuda12x")
    assert checked(**settings) == []


def test_gpus_that_would_stay_idle_are_named(packed: list[str]) -> None:
    (note,) = checked()
    assert "the GPUs of w1, w2 stay idle" in note
    assert checked(server={"gpus": 0}) == []
    assert checked(pipeline={"devices": ["cpu"]}) == []
    assert check_gpu_environment(LaunchConfig.model_validate({}), NODES[2:]) == []
    packed.append("cupy-cuda12x")
    assert checked() == []


def test_cupy_of_cuda_13_travels_alone(packed: list[str]) -> None:
    packed.append("cupy-cuda13x")
    assert checked() == []
    packed.append("cupy-cuda12x")
    with pytest.raises(ConfigError, match="cupy-cuda12x and cupy-cuda13x do not work in one") as caught:
        checked()
    assert "gpu: none" in caught.value.cure


def test_cupy_of_another_cuda_is_refused_by_name(packed: list[str]) -> None:
    packed.append("cupy-cuda11x")
    with pytest.raises(ConfigError, match="cupy-cuda11x is of CUDA 11, which is not supported") as caught:
        checked()
    assert "cupy-cuda12x" in caught.value.cure


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The extras whose distributions are installed on this machine."""
    found: set[str] = set()

    def distributions(extras: Sequence[str], more: Sequence[str] = ()) -> dict[str, None]:
        for extra in extras:
            if extra.startswith("gpu") and extra not in found:
                raise StartupError("cupy-cuda12x is not installed")
        return dict.fromkeys(extras)

    monkeypatch.setattr(gpu_environment, "distributions", distributions)
    return found


def environment(**settings: Any) -> EnvironmentSettings:
    return EnvironmentSettings.model_validate(settings)


@pytest.mark.parametrize(
    ("here", "form", "packs"),
    [
        ({"gpu", "gpu-site"}, "bundled", ("yarn", "gpu")),
        ({"gpu-site"}, "site", ("yarn", "gpu-site")),
        (set(), "none", ("yarn",)),
    ],
)
def test_auto_packs_what_is_installed_here(
    installed: set[str], here: set[str], form: str, packs: tuple[str, ...]
) -> None:
    installed |= here
    assert gpu_form(environment()) == form
    assert packed_extras(environment()) == packs
    assert f"environment.gpu: auto, here {form}: " in gpu_note(environment())


@pytest.mark.parametrize(("form", "extra"), [("bundled", "gpu"), ("site", "gpu-site")])
def test_a_form_that_is_asked_for_is_packed_or_its_package_is_named(
    installed: set[str], form: str, extra: str
) -> None:
    with pytest.raises(
        StartupError, match=f"environment.gpu: {form}: cupy-cuda12x is not installed"
    ) as caught:
        packed_extras(environment(gpu=form))
    assert f"pip install 'cluster-accel[yarn,{extra}]'" in caught.value.cure
    installed |= {"gpu", "gpu-site"}
    assert packed_extras(environment(gpu=form, extras=["yarn", "gpu"])) == ("yarn", extra)
    assert gpu_note(environment(gpu=form)).startswith(f"environment.gpu: {form}: ")


def test_the_extras_of_before_mean_their_form(installed: set[str]) -> None:
    installed |= {"gpu", "gpu-site"}
    assert gpu_form(environment(extras=["yarn", "gpu-site"])) == "site"
    assert packed_extras(environment(extras=["yarn", "gpu-site"])) == ("yarn", "gpu-site")


def test_none_packs_none(installed: set[str]) -> None:
    installed |= {"gpu"}
    assert packed_extras(environment(gpu="none", extras=["yarn", "gpu"])) == ("yarn",)
