"""Whether the environment that travels to the nodes can compute on the GPUs there are, or were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.errors import ConfigError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.import_closure import distributions

__all__ = ["check_gpu_environment"]

_GPU = "yarn.io/gpu"
_N_NODES = 6
_CURE = "pip install 'cluster-accel[gpu]' here, and `environment: {extras: [yarn, gpu]}`"


def check_gpu_environment(config: LaunchConfig, nodes: Sequence[NodeReport]) -> list[str]:
    """What to say about an environment without CuPy on a cluster with GPUs; nothing: all is well.

    Nodes whose GPUs YARN does not count are not known here; `status` says what their servers compute on.

    Raises:
        ConfigError: the settings ask for GPUs.
    """
    asked, found = _asked(config), _nodes_with_gpus(nodes)
    if not (asked or found) or _has_cupy(config):
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


def _has_cupy(config: LaunchConfig) -> bool:
    packed = distributions(config.environment.extras, config.environment.packages)
    return any(name.startswith("cupy") for name in packed)
