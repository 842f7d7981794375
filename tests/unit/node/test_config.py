"""Settings: from YARN's environment, a file and flags; and the key that only we may read."""

import os
import socket

import pytest

from yarn_accel.client.token_file import write_secrets
from yarn_accel.errors import ConfigError
from yarn_accel.node.config import KEY_ALIAS, load_config, read_key

CONTAINER = {"NM_HOST": "w7.example.org", "CONTAINER_ID": "container_e17_1700000000000_0042_02_000003"}


def test_in_a_container_yarn_says_it_all(tmp_path):
    (tmp_path / "node.yaml").write_text("# nothing\n")
    for path in (None, tmp_path / "node.yaml"):
        config = load_config(path, CONTAINER)
        assert config.node == config.address == "w7.example.org"
        assert config.application_id == "application_1700000000000_0042"
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml", {})


def test_elsewhere_the_host_name_is_the_node():
    config = load_config(None, {})
    assert (config.node, config.application_id) == (socket.gethostname(), "")
    assert config.run_dir.endswith("/" + config.node)
    assert config.server_state_file == config.run_dir + "/server.json"


def test_flags_before_file_before_environment(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text("node: filed\naddress: 10.0.0.7\nrm_urls: ['http://rm:8088/']\ninterval_s: 2\n")
    assert load_config(path, CONTAINER).node == "filed"
    assert load_config(path, CONTAINER, node="").node == "filed"
    config = load_config(path, CONTAINER, node="flagged")
    assert (config.node, config.address, config.interval_s) == ("flagged", "10.0.0.7", 2.0)
    assert config.rm_urls == ("http://rm:8088",)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("nod: w1", "nod: unknown key; known: address, "),
        ("interval_s: 0", "interval_s"),
        ("node: ../w1", "not a host name"),
        ("application_id: app_1", "not like application_"),
        ("run_dir: here", "not an absolute path"),
        ("run_dir: /" + "x" * 100, "too long for a Unix socket"),
        ("rm_urls: ['rm:8088']", "not like http://host:port"),
        ("rm_urls: ['http://user@rm:8088']", "not like http://host:port"),
        ("master_url: 'http://m:1/?x'", "not like http://host:port"),
        ("socket_mode: '0999'", "socket_mode"),
        ("application_type: 'a&b'", "application_type"),
    ],
)
def test_settings_that_are_none(tmp_path, text, reported):
    path = tmp_path / "node.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reported) as caught:
        load_config(path, CONTAINER)
    assert str(path) in str(caught.value)


def keyed(tmp_path, content, mode=0o600):
    path = tmp_path / "node.key"
    path.write_text(content)
    path.chmod(mode)
    return load_config(None, {}, key_file=str(path))


def test_the_key_of_a_file(tmp_path):
    assert read_key(keyed(tmp_path, "ab" * 32 + "\n"), {}) == b"\xab" * 32


@pytest.mark.parametrize(
    ("content", "mode", "reported"),
    [
        ("ab" * 32, 0o640, "others may read it.*chmod 600"),
        ("ab" * 31, 0o600, "31 bytes, 32 expected"),
        ("hunter2", 0o600, "not hexadecimal"),
        ("", 0o600, "0 bytes"),
    ],
)
def test_keys_that_are_none(tmp_path, content, mode, reported):
    with pytest.raises(ConfigError, match=reported) as caught:
        read_key(keyed(tmp_path, content, mode), {})
    assert not content or content not in str(caught.value)


def test_a_key_that_is_not_there_names_what_makes_it(tmp_path):
    config = load_config(None, {}, node="w7", key_file=str(tmp_path / "node.key"))
    with pytest.raises(
        ConfigError, match=f"No such file.*make-key --secret-file SECRET w7 {tmp_path}/node.key"
    ):
        read_key(config, {})


def test_the_key_of_a_container(tmp_path):
    path = tmp_path / "container_tokens"
    config = load_config(None, CONTAINER)
    for content, reported in (
        (None, "No such file"),
        (b"nonsense", "does not begin with"),
        (write_secrets({"other": b"x"}), "no secret"),
        (write_secrets({KEY_ALIAS: b"short"}), "5 bytes"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=reported):
            read_key(config, {"HADOOP_TOKEN_FILE_LOCATION": str(path)})
    path.write_bytes(write_secrets({KEY_ALIAS: b"k" * 32}))
    assert read_key(config, {"HADOOP_TOKEN_FILE_LOCATION": str(path)}) == b"k" * 32


def test_no_key_at_all():
    with pytest.raises(ConfigError, match=r"key_file is not set.*make-key"):
        read_key(load_config(None, CONTAINER), {})


@pytest.mark.parametrize(
    ("uid", "environ", "run_dir", "found"),
    [
        (0, CONTAINER, {}, "/run/yarn-accel/w7.example.org/1700000000000_0042"),
        (0, CONTAINER, {"run_dir": "/x/{node}/y"}, "/x/w7.example.org/y"),
        (1000, CONTAINER, {}, "/tmp/yarn-accel-1000/w7.example.org/1700000000000_0042"),
        (1000, {"NM_HOST": "w7.example.org"}, {}, "/tmp/yarn-accel-1000/w7.example.org"),
        (1000, CONTAINER, {"run_dir": "/run/{application}/{node}"}, "/run/1700000000000_0042/w7.example.org"),
    ],
)
def test_who_we_are_decides_where_we_live(monkeypatch, uid, environ, run_dir, found):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert load_config(None, environ, **run_dir).run_dir == found
