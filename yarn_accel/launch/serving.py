"""The pipeline server inside an accelerator container: the site's settings, and what only the node knows.

All nodes get one document.  `yarn-accel start` has checked it and written out every default, so that a node
needs no more than a JSON parser to read it: each moment here is one without a server.  The node adds its
name, its address, and the places where its agent looks for a server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch.secrets import MASTER_SECRET_FILE
from yarn_accel.node.places import make_run_dir, places
from yarn_accel.pipeline.workers.launching import launch

__all__ = ["NODE_KEYS", "NODE_SETTINGS_FILE", "main", "node_settings", "prepare"]

#: The settings in effect, in the container's folder; JSON is YAML, so people's commands read it, too.
NODE_SETTINGS_FILE = "pipeline-node.yaml"
#: What the node sets, unless the site does.
NODE_KEYS = frozenset({"name", "listen_host", "unix_path", "http_port", "state_file"})
_SOCKET_NAME = "server.sock"
#: Any port, on the loopback: the agent asks there for health and figures.
_FREE_PORT = 0


def main(settings_file: Path, environ: Mapping[str, str] = os.environ) -> int:
    """Run the server of this node; its exit code.

    Raises:
        AccelError: it cannot be started.
    """
    _place(environ)
    site, _ = _read(settings_file)
    # Before anything else is loaded: its libraries take longest.
    first = launch(site["cores_per_worker"], site["extra_operations"])
    from yarn_accel.pipeline.settled import settled
    from yarn_accel.pipeline.starting import serve

    return serve(settled(prepare(settings_file, environ)), first)


def node_settings(
    values: Mapping[str, Any], node: str, container: str, run_dir: Path, server_state_file: str
) -> dict[str, Any]:
    """The settings of one node's server; what the site has set stays.

    Args:
        values: all settings but the node's.
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


def prepare(settings_file: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of this node's server, all of them; written down for people.

    Args:
        settings_file: JSON, as `staging.server_document` made it.

    Raises:
        ConfigError: the file is wrong, or this is no container of YARN.
        StartupError: the run_dir or the file cannot be written.
    """
    node, container = _place(environ)
    site, agent = _read(settings_file)
    found = places(agent, node)
    make_run_dir(Path(found.run_dir))
    values = node_settings(site, node, container, Path(found.run_dir), found.server_state_file)
    target = Path(NODE_SETTINGS_FILE)
    try:
        target.write_text(json.dumps(values, indent=1, sort_keys=True), encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{target}: {error.strerror}") from None
    return values


def _place(environ: Mapping[str, str]) -> tuple[str, str]:
    """The node's name and the container's id."""
    node, container = environ.get("NM_HOST", ""), environ.get("CONTAINER_ID", "")
    if not node or not container:
        raise ConfigError(
            "NM_HOST or CONTAINER_ID is not set", cure="only containers of YARN are started like this"
        )
    return node, container


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The server's settings, and those of its agent that it needs."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return dict(document["server"]), dict(document["agent"])
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}: not what `yarn-accel start` writes") from None
