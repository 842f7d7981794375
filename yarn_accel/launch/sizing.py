"""Sizes the servers' buffers to the cluster's nodes where the settings do not; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.pipeline.config import PipelineConfig

_MIB = 1024 * 1024
#: Scaled together, and only where none of them is set.
_BUFFERS = ("pool_bytes", "queue_bytes", "max_request_bytes", "max_shared_memory_bytes")
_STEPS = 16
_GPU = "yarn.io/gpu"
_STEP_KEY, _USUAL_STEP_MIB = "yarn.scheduler.minimum-allocation-mb", 1024
_LIMIT_KEY = "yarn.scheduler.maximum-allocation-mb"


def fitted(
    config: LaunchConfig, properties: Mapping[str, str], nodes: Sequence[NodeReport]
) -> tuple[LaunchConfig, tuple[str, ...]]:
    """The settings, with smaller buffers where a server with the default ones fits on no node.

    Args:
        properties: the cluster's; YARN rounds containers up, and bounds them.
        nodes: the cluster's.

    Returns:
        the settings, and what to say about them; nothing: they are as they were.
    """
    node_mib = _smallest_mib(config, nodes)
    if not node_mib or config.server.memory_mib or any(name in config.pipeline for name in _BUFFERS):
        return config, ()
    step_mib = _number(properties, _STEP_KEY, _USUAL_STEP_MIB)
    others = [config.master.memory_mib, config.agent.memory_mib if config.agent.enabled else 0]
    free_mib = node_mib - sum(-(-each // step_mib) * step_mib for each in others)
    free_mib = min(free_mib, _number(properties, _LIMIT_KEY, free_mib)) // step_mib * step_mib
    usual = {name: int(PipelineConfig.model_fields[name].default) for name in _BUFFERS}
    for share in range(_STEPS, 0, -1):
        sizes: dict[str, Any] = {name: n_bytes * share // _STEPS for name, n_bytes in usual.items()}
        smaller = config.model_copy(update={"pipeline": {**config.pipeline, **sizes}})
        if smaller.server_memory_mib <= free_mib:
            if share == _STEPS:
                return config, ()
            pools = [f"{given['pool_bytes'] // _MIB} MiB" for given in (sizes, usual)]
            why = f"so a server fits on a node of {node_mib} MiB beside an agent and the master"
            return smaller, (f"pool_bytes is {pools[0]} instead of {pools[1]}: {why}",)
    return config, ()


def _smallest_mib(config: LaunchConfig, nodes: Sequence[NodeReport]) -> int:
    """Memory of the smallest node that has an accelerator; of all, as long as none is known to have one."""
    named = config.master.settings.get("accelerator_nodes", ())
    sizes = {
        node.node.host: (node.capability.memory_mib, node.capability.other.get(_GPU, 0))
        for node in nodes
        if node.is_usable and node.capability is not None
    }
    known = [
        memory_mib
        for host, (memory_mib, n_gpus) in sizes.items()
        if n_gpus or any(fnmatchcase(host, each) for each in named)
    ]
    return min(known or [memory_mib for memory_mib, _ in sizes.values()], default=0)


def _number(properties: Mapping[str, str], key: str, usual: int) -> int:
    text = properties.get(key, "")
    return int(text) if text.isdecimal() and int(text) > 0 else usual
