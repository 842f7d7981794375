"""The settings inside the launch settings: of the master, the agents and the pipeline servers."""

from __future__ import annotations

from pydantic import BaseModel

from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.secrets import MASTER_SECRET_FILE
from yarn_accel.master.config import SOME_MANAGERS, parse_config
from yarn_accel.node.config import load_config
from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["inner_settings", "server_settings"]

#: Stands for what a start fills in.
_NODE = "NODE"


def inner_settings(config: LaunchConfig) -> dict[str, BaseModel]:
    """What they come to with all their defaults, as far as no cluster is needed, by their place.

    Raises:
        ConfigError: names the key and the known ones.
    """
    return {
        "master.settings": parse_config({**SOME_MANAGERS, **config.master.settings}),
        "agent.settings": load_config(None, {}, **{"node": _NODE, **config.agent.settings}),
        "pipeline": server_settings(config),
    }


def server_settings(config: LaunchConfig) -> PipelineConfig:
    """Those of the pipeline servers, checked, with every default."""
    # Without a number a server takes every core of its node, and the container was sized for fewer.
    workers = config.pipeline.get("workers") or config.acct.vcores
    given = {**config.pipeline, "workers": workers, "master_secret_file": MASTER_SECRET_FILE}
    return PipelineConfig.model_validate(given)
