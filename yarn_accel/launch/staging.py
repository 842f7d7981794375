"""What the containers of one application read: written here, uploaded to a folder of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from yarn_accel.adapters.hdfs import Store
from yarn_accel.errors import StartupError
from yarn_accel.launch.cleaning import USES_FILE, environments_uri, uses_document
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.gateway import Gateway
from yarn_accel.launch.node_server import NODE_KEYS
from yarn_accel.launch.packing import Environment
from yarn_accel.launch.plan import LaunchPlan, make_plan
from yarn_accel.launch.upload import (
    SCRIPT_NAME,
    FileResource,
    stored_script_name,
    upload,
    upload_script,
)
from yarn_accel.master.config import SOME_MANAGERS, parse_config
from yarn_accel.node.config import load_config

__all__ = [
    "Staged",
    "agent_document",
    "application_uri",
    "check_settings",
    "master_document",
    "rehearse",
    "role_settings",
    "server_document",
    "stage",
]

_VERSION = 1
_PLAN_FILE = "plan.json"
_SERVER_FILE, _AGENT_FILE, _MASTER_FILE = "pipeline.json", "agent.yaml", "master.json"


@dataclass(frozen=True, slots=True)
class Staged:
    """An application's files in the cluster's storage.

    Attributes:
        plan: the roles.
        folder_uri: the folder that is this application's alone.
        delivered: files of the master that come to it with its credentials, see `secrets`: name -> text.
    """

    plan: LaunchPlan
    folder_uri: str
    delivered: Mapping[str, str]


def application_uri(gateway: Gateway, config: LaunchConfig, application: str) -> str:
    """The folder of one application."""
    return f"{gateway.staging_uri(config.environment.staging_uri)}/applications/{application}"


def server_document(config: LaunchConfig) -> dict[str, Any]:
    """What a pipeline server's container reads, see `node_server`.

    ``server`` has the settings of the pipeline servers with every default but those that each node sets,
    ``agent`` the settings of the agents.
    """
    left_to_nodes = set(NODE_KEYS - config.pipeline.keys())
    server = config.server_settings.model_dump(mode="json", exclude=left_to_nodes)
    return {"server": server, "agent": config.agent.settings}


def agent_document(gateway: Gateway, config: LaunchConfig) -> dict[str, Any]:
    """Settings of the agents."""
    return {"rm_urls": gateway.site.resourcemanager_webs(), **config.agent.settings}


def master_document(gateway: Gateway, config: LaunchConfig, folder_uri: str) -> dict[str, Any]:
    """Settings of the ApplicationMaster."""
    addresses = gateway.addresses
    return {
        "version": _VERSION,
        "plan_file": _PLAN_FILE,
        "rm_client": [str(address) for address in addresses.client],
        "rm_scheduler": [str(address) for address in addresses.scheduler],
        "rm_admin": [str(address) for address in addresses.admin],
        "rm_webs": gateway.site.resourcemanager_webs(),
        "user": gateway.user,
        "application_name": config.app.name,
        "staging_uri": folder_uri,
        **config.master.settings,
    }


def stage(
    gateway: Gateway, store: Store, config: LaunchConfig, packed: Environment, application: str
) -> Staged:
    """Upload everything; the environment only when it is not there yet.

    Raises:
        StorageError: it cannot be written.
        StartupError: a local file cannot be read or written.
    """
    root = gateway.staging_uri(config.environment.staging_uri)
    folder = application_uri(gateway, config, application)
    # First of all, so that nobody removes from now on what is looked for next.
    _upload_text(store, folder, USES_FILE, uses_document([packed.path.name, stored_script_name()]))
    environment = upload(store, packed.path, environments_uri(root))
    script = upload_script(store, environments_uri(root))
    texts = _texts(gateway, config)
    files = {name: _upload_text(store, folder, name, text) for name, text in texts.items()}
    return _staged(gateway, config, folder, make_plan(config, environment, script, _files_of_roles(files)))


def rehearse(gateway: Gateway, config: LaunchConfig, packed: Environment) -> Staged:
    """The same without an upload, and without an application: for `--dry-run`."""
    shared = environments_uri(gateway.staging_uri(config.environment.staging_uri))
    folder = application_uri(gateway, config, "APPLICATION")
    environment = FileResource(packed.path.name, f"{shared}/{packed.path.name}", packed.n_bytes, 0)
    script = FileResource(SCRIPT_NAME, f"{shared}/{SCRIPT_NAME}", 0, 0)
    texts = _texts(gateway, config)
    files = {name: FileResource(name, f"{folder}/{name}", len(text), 0) for name, text in texts.items()}
    return _staged(gateway, config, folder, make_plan(config, environment, script, _files_of_roles(files)))


def role_settings(config: LaunchConfig) -> dict[str, BaseModel]:
    """The settings of master, agents and pipeline servers with all defaults, by their place in the file.

    What only a cluster or a node can tell is filled in with names that stand for it.

    Raises:
        ConfigError: names the key and the known ones.
    """
    return {
        "master.settings": parse_config({**SOME_MANAGERS, **config.master.settings}),
        "agent.settings": load_config(None, {}, **{"node": "NODE", **config.agent.settings}),
        "pipeline": config.server_settings,
    }


def check_settings(gateway: Gateway, config: LaunchConfig) -> None:
    """Check what `master` and `agent` say before anything is uploaded.

    Raises:
        ConfigError: names the key and the known ones.
    """
    parse_config(master_document(gateway, config, gateway.staging_uri(config.environment.staging_uri)))
    # An agent's name is known on its node alone.
    load_config(None, {}, node="node", **agent_document(gateway, config))


def _staged(gateway: Gateway, config: LaunchConfig, folder: str, plan: LaunchPlan) -> Staged:
    settings = json.dumps(master_document(gateway, config, folder), indent=1, sort_keys=True)
    return Staged(plan, folder, {_MASTER_FILE: settings, _PLAN_FILE: plan.to_json()})


def _texts(gateway: Gateway, config: LaunchConfig) -> dict[str, str]:
    return {
        _SERVER_FILE: json.dumps(server_document(config), indent=1, sort_keys=True),
        _AGENT_FILE: yaml.safe_dump(agent_document(gateway, config), sort_keys=True),
    }


def _files_of_roles(files: Mapping[str, FileResource]) -> dict[str, Sequence[FileResource]]:
    return {
        "acct": [files[_SERVER_FILE]],
        "agent": [files[_AGENT_FILE]],
    }


def _upload_text(store: Store, folder_uri: str, name: str, text: str) -> FileResource:
    with tempfile.TemporaryDirectory(prefix="yarn-accel-") as folder:
        path = Path(folder) / name
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StartupError(f"{path}: {error.strerror}") from None
        return upload(store, path, folder_uri)
