from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_secrets import MASTER_SECRET_FILE
from yarn_accel.launch.node_server import NODE_SETTINGS_FILE, node_config
from yarn_accel.launch.staging import server_document
from yarn_accel.node.config import load_config
from yarn_accel.pipeline.config import load_config as load_server_config
from yarn_accel.pipeline.config import parse_config

CONTAINER = "container_1700000000000_0001_01_000002"


@pytest.fixture
def environ(tmp_path, monkeypatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return {"NM_HOST": "w1", "CONTAINER_ID": CONTAINER}


def shipped(**settings: object) -> dict[str, Any]:
    """What `start` brings to a node."""
    document = server_document(LaunchConfig.model_validate(settings))
    read: dict[str, Any] = json.loads(json.dumps(document))
    return read


def test_a_server_is_where_its_agent_looks(environ, tmp_path) -> None:
    agent = {"run_dir": f"{tmp_path}/{{node}}/run"}
    config = node_config(shipped(agent={"settings": agent}, pipeline={"workers": 3}), environ)
    assert config.state_file == load_config(None, environ, **agent).server_state_file
    assert Path(config.state_file).parent.is_dir()
    assert (config.name, config.listen_host, config.workers) == ("w1", "w1", 3)
    # Without its metrics the agent could not tell the queue.
    assert (config.http_host, config.http_port) == ("127.0.0.1", 0)
    assert config.master_secret_file == Path(MASTER_SECRET_FILE)


def test_the_paths_are_the_agents_whatever_was_set(environ, tmp_path) -> None:
    agent = {"run_dir": str(tmp_path), "server_state_file": f"{tmp_path}/elsewhere.json"}
    config = node_config(shipped(agent={"settings": agent}), environ)
    assert config.state_file == load_config(None, environ, **agent).server_state_file
    assert config.unix_path == f"{tmp_path}/server.sock"


def test_people_can_use_the_settings_in_effect(environ, tmp_path) -> None:
    agent = {"run_dir": f"{tmp_path}/run"}
    tenants = {"*": {"read_prefixes": ["hdfs://nn/data"]}}
    config = node_config(shipped(agent={"settings": agent}, pipeline={"tenants": tenants}), environ)
    assert load_server_config(tmp_path / NODE_SETTINGS_FILE) == config
    assert config.tenant("alice").read_prefixes == ("hdfs://nn/data",)


def test_every_setting_of_a_site_reaches_its_servers(environ, tmp_path) -> None:
    site = {
        "name": "mine",
        "listen_host": "0.0.0.0",
        "checksums": ["crc32", "none"],
        "devices": ["cuda:0", "cpu"],
        "extra_operations": ["site.ops:table"],
        "hang_min_s": 2.5,
        "workers": 3,
        "tenants": {
            "alice": {"weight": 3.0, "read_prefixes": ["hdfs://nn/a"], "write_prefixes": ["file:///b"]},
            "*": {},
        },
    }
    agent = {"run_dir": str(tmp_path)}
    config = node_config(shipped(agent={"settings": agent}, pipeline=site), environ)
    of_node = {"unix_path", "http_port", "state_file"}
    expected = parse_config({**site, "master_secret_file": MASTER_SECRET_FILE})
    assert config.model_dump(exclude=of_node) == expected.model_dump(exclude=of_node)


def test_settings_that_a_site_may_not_have_are_refused(environ, tmp_path) -> None:
    document = shipped(agent={"settings": {"run_dir": str(tmp_path)}})
    document["server"]["pool_byte"] = 1
    with pytest.raises(ConfigError, match="pool_byte: unknown key"):
        node_config(document, environ)


@pytest.mark.parametrize("missing", ["NM_HOST", "CONTAINER_ID"])
def test_only_containers_are_started_like_this(environ, missing) -> None:
    del environ[missing]
    with pytest.raises(ConfigError, match="only containers of YARN"):
        node_config(shipped(), environ)
