"""The settings of one node's pipeline server: what `yarn-accel start` ships to all nodes, and the node's own.

A node adds its name, its address, and the paths where its agent looks for a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.node.config import load_config
from yarn_accel.node.paths import make_run_dir
from yarn_accel.pipeline.config import PipelineConfig, parse_config

#: The settings in effect, in the container's folder; JSON is YAML, so people's commands read it, too.
NODE_SETTINGS_FILE = "pipeline-node.yaml"
#: What the node sets, unless the site does.
NODE_KEYS = frozenset({"name", "listen_host", "unix_path", "http_port", "state_file"})
_SOCKET_NAME = "server.sock"
#: Any port, on the loopback: the agent asks there for health and figures.
_FREE_PORT = 0


def node_config(document: Mapping[str, Any], environ: Mapping[str, str]) -> PipelineConfig:
    """The settings of this node's server; also written to a file, for people.

    Args:
        document: as `staging.server_document` made it.
        environ: the container's.

    Raises:
        ConfigError: the document is wrong, or this is no container of YARN.
        StartupError: the folder of agent and server, or the file for people, cannot be written.
    """
    node, container = environ.get("NM_HOST", ""), environ.get("CONTAINER_ID", "")
    if not node or not container:
        raise ConfigError(
            "NM_HOST or CONTAINER_ID is not set", cure="only containers of YARN are started like this"
        )
    agent = load_config(None, environ, **document["agent"])
    make_run_dir(Path(agent.run_dir))
    own = {
        "name": node,
        "listen_host": node,
        "unix_path": str(Path(agent.run_dir) / _SOCKET_NAME),
        "http_port": _FREE_PORT,
        "state_file": agent.server_state_file,
    }
    config = parse_config({**own, **document["server"]})
    target = Path(NODE_SETTINGS_FILE)
    try:
        target.write_text(config.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{target}: {error.strerror}") from None
    return config
