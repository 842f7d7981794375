"""Whether the environment that travels to the nodes can compute on the GPUs there are, or were asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch.config import EnvironmentSettings, LaunchConfig
from yarn_accel.launch.import_closure import distributions

GPU_EXTRAS = {"bundled": "gpu", "site": "gpu-site"}
"""By form of the environment, the extra that it takes along."""
_WHAT = {
    "bundled": "CuPy and CUDA 12's libraries travel to the nodes, about 2.6 GB there",
    "site": "CuPy travels to the nodes, about 0.4 GB there; each GPU node needs CUDA 12's toolkit",
    "none": "no CuPy travels to the nodes: their servers compute on the CPU",
}
_GPU = "yarn.io/gpu"
_N_NODES = 6
_CURE = "pip install 'cluster-accel[yarn,gpu]' here, with which `environment: {gpu: auto}` packs it"
_CUPY = re.compile(r"cupy-cuda(\d+)")
_CUDA_MAJORS = ("12", "13")


def gpu_form(settings: EnvironmentSettings) -> str:
    """``bundled``, ``site`` or ``none``: what travels for GPUs; ``auto`` is what is installed here."""
    if settings.gpu != "auto":
        return settings.gpu
    named = [form for form, extra in GPU_EXTRAS.items() if extra in settings.extras]
    return next(
        (form for form in [*named, *GPU_EXTRAS] if form in named or _is_installed(GPU_EXTRAS[form])), "none"
    )


def packed_extras(settings: EnvironmentSettings) -> tuple[str, ...]:
    """The extras that are packed, that of the GPUs among them.

    Raises:
        StartupError: what the settings ask for is not installed here.
    """
    extra = GPU_EXTRAS.get(gpu_form(settings))
    others = [each for each in settings.extras if each not in GPU_EXTRAS.values()]
    if extra is None:
        return tuple(others)
    try:
        distributions((extra,))
    except StartupError as error:
        cure = f"pip install 'cluster-accel[yarn,{extra}]' here, or `environment: {{gpu: none}}`"
        raise StartupError(f"environment.gpu: {settings.gpu}: {error.message}", cure=cure) from None
    return (*others, extra)


def gpu_note(settings: EnvironmentSettings) -> str:
    """What the setting means here, in one line."""
    form = gpu_form(settings)
    asked = settings.gpu if settings.gpu == form else f"{settings.gpu}, here {form}"
    return f"environment.gpu: {asked}: {_WHAT[form]}"


def _is_installed(extra: str) -> bool:
    try:
        return bool(distributions((extra,)))
    except StartupError:
        return False


def _check_cupy(packed: Iterable[str]) -> None:
    cure = "leave it out of `environment: {packages: ...}`; `environment: {gpu: ...}` takes cupy-cuda12x"
    found = {name: match[1] for name in packed if (match := _CUPY.match(name))}
    for name, major in found.items():
        if major not in _CUDA_MAJORS:
            raise ConfigError(f"{name} is of CUDA {major}, which is not supported", cure=cure)
    if len(found) > 1:
        text = f"{' and '.join(sorted(found))} do not work in one environment"
        raise ConfigError(text, cure=f"{cure}; CUDA 13's CuPy goes with `environment: {{gpu: none}}`")


def check_gpu_environment(config: LaunchConfig, nodes: Sequence[NodeReport]) -> list[str]:
    """What to say about an environment without CuPy on a cluster with GPUs; nothing: all is well.

    Nodes whose GPUs YARN does not count are not known here; `status` says what their servers compute on.

    Raises:
        ConfigError: the settings ask for GPUs, or CuPy is there twice, or of a CUDA that is not supported.
        StartupError: what the settings ask to pack is not installed here.
    """
    asked, found = _asked(config), _nodes_with_gpus(nodes)
    packed = distributions(packed_extras(config.environment), config.environment.packages)
    _check_cupy(packed)
    if not (asked or found) or any(name.startswith("cupy") for name in packed):
        return []
    if asked:
        raise ConfigError(f"{asked} asks for GPUs, and CuPy is not in the environment", cure=_CURE)
    if config.server.gpus == 0 or "auto" not in config.pipeline_settings.devices:
        return []
    more = f" and {len(found) - _N_NODES} more" if len(found) > _N_NODES else ""
    where = ", ".join(found[:_N_NODES]) + more
    return [f"the GPUs of {where} stay idle, for CuPy is not in the environment: {_CURE}"]


def _asked(config: LaunchConfig) -> str:
    """The setting that asks for GPUs; empty: none does."""
    server = config.server
    if isinstance(server.gpus, int) and server.gpus:
        return f"`server: {{gpus: {server.gpus}}}`"
    if server.devices.isdecimal():
        return f"`server: {{devices: {server.devices}}}`"
    names = [name for name in config.pipeline_settings.devices if name.startswith("cuda")]
    return f"`pipeline: {{devices: [{', '.join(names)}]}}`" if names else ""


def _nodes_with_gpus(nodes: Sequence[NodeReport]) -> list[str]:
    return sorted(
        node.node.host
        for node in nodes
        if node.is_usable and node.capability is not None and node.capability.other.get(_GPU, 0)
    )
