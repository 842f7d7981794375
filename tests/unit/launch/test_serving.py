from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from yarn_accel.errors import ConfigError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.secrets import MASTER_SECRET_FILE
from yarn_accel.launch.serving import NODE_SETTINGS_FILE, node_settings, prepare
from yarn_accel.launch.staging import server_document
from yarn_accel.node.config import load_config
from yarn_accel.pipeline.config import PipelineConfig

CONTAINER = "container_1700000000000_0001_01_000002"


@pytest.fixture
def environ(tmp_path, monkeypatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return {"NM_HOST": "w1", "CONTAINER_ID": CONTAINER}


def uploaded(folder: Path, **settings: object) -> Path:
    """What `start` brings to a node."""
    path = folder / "pipeline.json"
    path.write_text(json.dumps(server_document(LaunchConfig.model_validate(settings))))
    return path


def test_a_server_is_where_its_agent_looks(environ, tmp_path) -> None:
    agent = {"run_dir": f"{tmp_path}/{{node}}/run"}
    path = uploaded(tmp_path, agent={"settings": agent}, pipeline={"workers": 3})
    values = prepare(path, environ)
    config = PipelineConfig.model_validate(values)
    assert config.state_file == load_config(None, environ, **agent).server_state_file
    assert Path(config.state_file).parent.is_dir()
    assert (config.name, config.listen_host, config.workers) == (CONTAINER, "w1", 3)
    # Without its metrics the agent could not tell the queue.
    assert (config.http_host, config.http_port) == ("127.0.0.1", 0)
    assert config.master_secret_file == Path(MASTER_SECRET_FILE)


def test_the_places_are_the_agents_whatever_was_set(environ, tmp_path) -> None:
    agent = {"run_dir": str(tmp_path), "server_state_file": f"{tmp_path}/elsewhere.json"}
    values = prepare(uploaded(tmp_path, agent={"settings": agent}), environ)
    assert values["state_file"] == load_config(None, environ, **agent).server_state_file
    assert values["unix_path"] == f"{tmp_path}/server.sock"


def test_people_can_use_the_settings_in_effect(environ, tmp_path) -> None:
    agent = {"run_dir": f"{tmp_path}/run"}
    tenants = {"*": {"read_prefixes": ["hdfs://nn/data"]}}
    values = prepare(uploaded(tmp_path, agent={"settings": agent}, pipeline={"tenants": tenants}), environ)
    written = yaml.safe_load((tmp_path / NODE_SETTINGS_FILE).read_text())
    assert PipelineConfig.model_validate(written) == PipelineConfig.model_validate(values)
    assert written["tenants"]["*"]["read_prefixes"] == ["hdfs://nn/data"]


def test_what_the_site_has_set_stays_but_for_the_secret() -> None:
    site = {"listen_host": "0.0.0.0", "name": "mine", "master_secret_file": "elsewhere"}
    values = node_settings(site, "w1", CONTAINER, Path("/run/yarn-accel/w1"), "/x/server.json")
    assert (values["listen_host"], values["name"]) == ("0.0.0.0", "mine")
    assert values["master_secret_file"] == MASTER_SECRET_FILE
    assert values["unix_path"] == "/run/yarn-accel/w1/server.sock"


@pytest.mark.parametrize("text", ["[1]", "a: [", "{}", '{"server": 1, "agent": {}}'])
def test_a_file_that_start_did_not_write_is_named(environ, tmp_path, text) -> None:
    (tmp_path / "pipeline.json").write_text(text)
    with pytest.raises(ConfigError, match=r"pipeline\.json"):
        prepare(tmp_path / "pipeline.json", environ)


def test_a_file_that_is_not_there_is_named(environ, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.json"):
        prepare(tmp_path / "pipeline.json", environ)


@pytest.mark.parametrize("missing", ["NM_HOST", "CONTAINER_ID"])
def test_only_containers_are_started_like_this(environ, tmp_path, missing) -> None:
    del environ[missing]
    with pytest.raises(ConfigError, match="only containers of YARN"):
        prepare(tmp_path / "pipeline.json", environ)
