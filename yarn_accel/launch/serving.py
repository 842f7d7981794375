"""The pipeline server inside an accelerator container: the site's settings, and what only the node knows.

All nodes get one file of settings.  The node adds its name, its address, and the places where its agent looks
for a server: both read the agent's settings, so they cannot disagree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from yarn_accel.adapters.settings_file import read_settings
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch.secrets import MASTER_SECRET_FILE
from yarn_accel.node.config import load_config
from yarn_accel.node.state_file import make_run_dir

__all__ = ["NODE_SETTINGS_FILE", "node_settings", "prepare"]

#: The settings in effect, in the container's folder.
NODE_SETTINGS_FILE = "pipeline-node.yaml"
_SOCKET_NAME = "server.sock"
#: Any port, on the loopback: the agent asks there for health and figures.
_FREE_PORT = 0


def node_settings(
    values: Mapping[str, Any], node: str, container: str, run_dir: Path, server_state_file: str
) -> dict[str, Any]:
    """The settings of one node's server; what the site has set stays.

    Args:
        values: the site's settings.
        node: this node's name, as YARN has it.
        container: id of the server's container: as the server's name it tells the master which one speaks.
        run_dir: the agent's folder.
        server_state_file: where the agent looks.
    """
    own = {
        "name": container,
        "listen_host": node,
        "unix_path": str(run_dir / _SOCKET_NAME),
        "http_port": _FREE_PORT,
        "state_file": server_state_file,
    }
    return {**own, **values, "master_secret_file": MASTER_SECRET_FILE}


def prepare(settings_file: Path, agent_file: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the settings of this node's server; returns their file.

    Args:
        settings_file: the site's settings of pipeline servers (YAML).
        agent_file: the agent's settings; None: its defaults.

    Raises:
        ConfigError: a file is wrong, or this is no container of YARN.
        StartupError: the run_dir or the file cannot be written.
    """
    node, container = environ.get("NM_HOST", ""), environ.get("CONTAINER_ID", "")
    if not node or not container:
        raise ConfigError(
            "NM_HOST or CONTAINER_ID is not set", cure="only containers of YARN are started like this"
        )
    agent = load_config(agent_file, environ)
    make_run_dir(Path(agent.run_dir))
    site = read_settings(settings_file, may_be_empty=True)
    values = node_settings(site, node, container, Path(agent.run_dir), agent.server_state_file)
    target = Path(NODE_SETTINGS_FILE)
    try:
        target.write_text(yaml.safe_dump(values, sort_keys=True), encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{target}: {error.strerror}") from None
    return target
