from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from yarn_accel.errors import ConfigError
from yarn_accel.launch.secrets import MASTER_SECRET_FILE
from yarn_accel.launch.serving import NODE_SETTINGS_FILE, node_settings, prepare
from yarn_accel.node.config import load_config
from yarn_accel.pipeline.config import PipelineConfig

CONTAINER = "container_1700000000000_0001_01_000002"


@pytest.fixture
def environ(tmp_path, monkeypatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return {"NM_HOST": "w1", "CONTAINER_ID": CONTAINER}


def test_a_server_is_where_its_agent_looks(environ, tmp_path) -> None:
    (tmp_path / "agent.yaml").write_text(f"run_dir: {tmp_path}/run\n")
    (tmp_path / "pipeline.yaml").write_text("workers: 3\n")
    written = prepare(tmp_path / "pipeline.yaml", tmp_path / "agent.yaml", environ)
    assert written == Path(NODE_SETTINGS_FILE)
    config = PipelineConfig.model_validate(yaml.safe_load(written.read_text()))
    agent = load_config(tmp_path / "agent.yaml", environ)
    assert config.state_file == agent.server_state_file
    assert Path(config.state_file).parent.is_dir()
    assert (config.name, config.listen_host, config.workers) == (CONTAINER, "w1", 3)
    # Without its metrics the agent could not tell health and queue.
    assert (config.http_host, config.http_port) == ("127.0.0.1", 0)
    assert config.master_secret_file == Path(MASTER_SECRET_FILE)


def test_what_the_site_has_set_stays_but_for_the_secret() -> None:
    site = {"listen_host": "0.0.0.0", "name": "mine", "master_secret_file": "elsewhere"}
    values = node_settings(site, "w1", CONTAINER, Path("/run/yarn-accel/w1"), "/x/server.json")
    assert (values["listen_host"], values["name"]) == ("0.0.0.0", "mine")
    assert values["master_secret_file"] == MASTER_SECRET_FILE
    assert values["unix_path"] == "/run/yarn-accel/w1/server.sock"


@pytest.mark.parametrize("text", ["[1]", "a: ["])
def test_settings_that_are_none_are_named(environ, tmp_path, text) -> None:
    (tmp_path / "agent.yaml").write_text(f"run_dir: {tmp_path}/run\n")
    (tmp_path / "pipeline.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"pipeline\.yaml"):
        prepare(tmp_path / "pipeline.yaml", tmp_path / "agent.yaml", environ)


@pytest.mark.parametrize("missing", ["NM_HOST", "CONTAINER_ID"])
def test_only_containers_are_started_like_this(environ, tmp_path, missing) -> None:
    del environ[missing]
    with pytest.raises(ConfigError, match="only containers of YARN"):
        prepare(tmp_path / "pipeline.yaml", None, environ)
