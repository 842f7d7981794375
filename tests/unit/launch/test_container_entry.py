"""The first code in a container: its logs, its secrets, the settings of its server."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from yarn_accel import __version__
from yarn_accel.adapters.credentials import read_master_secret
from yarn_accel.client.token_file import write_secrets
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import bootstrap
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_entry import (
    FILE_ALIAS,
    MASTER_ALIAS,
    MASTER_SECRET_FILE,
    NODE_SETTINGS_FILE,
    SERVE,
    deliver,
    keep_kernels,
    node_config,
    rotate,
    rotate_output,
)
from yarn_accel.launch.device_lock import EXIT_DEVICES
from yarn_accel.launch.staging import server_document
from yarn_accel.node.config import load_config
from yarn_accel.pipeline.config import load_config as load_server_config
from yarn_accel.pipeline.config import parse_config

ROOT = Path(__file__).parents[3]


def entered(*words, **environ):
    return subprocess.run(
        [sys.executable, "-m", "yarn_accel.launch.container_entry", *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_the_command_and_ends_with_its_exit_code():
    completed = entered("--version")
    assert (completed.returncode, completed.stdout) == (0, f"yarn-accel, version {__version__}\n")
    assert entered("no-such-command").returncode == 2


def test_a_server_starts_in_a_container_only(tmp_path):
    document = server_document(LaunchConfig.model_validate({}))
    (tmp_path / "pipeline.json").write_text(json.dumps(document))
    refused = entered(*SERVE, str(tmp_path / "pipeline.json"), NM_HOST="", CONTAINER_ID="")
    assert refused.returncode == 2
    assert "only containers of YARN" in refused.stderr


@pytest.mark.parametrize("text", [None, "[1]", "a: [", "{}", '{"server": 1, "agent": {}}'])
def test_settings_that_start_did_not_write_are_named(tmp_path, text):
    path = tmp_path / "pipeline.json"
    if text is not None:
        path.write_text(text)
    refused = entered(*SERVE, str(path))
    assert refused.returncode == 2
    assert f"{path}: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_servers_first_worker_waits_for_no_library():
    program = (
        "import sys, yarn_accel.launch.container_entry\n"
        "slow = {'pydantic', 'yaml', 'click', 'numpy', 'prometheus_client', 'aiohttp'}\n"
        "print(*sorted(slow & set(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


def test_devices_held_by_another_end_it_with_a_code_of_its_own(tmp_path):
    completed = entered("--version", ACCEL_DEVICES="99", ACCEL_DEVICES_DIR=str(tmp_path))
    assert completed.returncode == EXIT_DEVICES
    assert "99 devices wanted" in completed.stderr
    assert EXIT_DEVICES not in [
        getattr(bootstrap, name) for name in dir(bootstrap) if name.startswith("EXIT_")
    ]


def test_kernels_are_kept_in_the_containers_folder_unless_the_site_says_where(tmp_path):
    environ = {}
    keep_kernels(environ, tmp_path)
    assert environ == {"CUPY_CACHE_DIR": str(tmp_path / "cupy-kernels")}
    keep_kernels(environ, tmp_path / "other")
    assert environ == {"CUPY_CACHE_DIR": str(tmp_path / "cupy-kernels")}


SECRET = bytes(range(32))


@pytest.fixture
def environ(tmp_path):
    (tmp_path / "container_tokens").write_bytes(write_secrets({MASTER_ALIAS: SECRET, "other": b"x"}))
    return {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "container_tokens"), "CONTAINER_ID": "container_1"}


def test_the_secret_becomes_the_file_that_a_server_reads(environ, tmp_path):
    for _ in range(2):  # a container is started again in the same folder
        assert deliver(environ, tmp_path) == (MASTER_SECRET_FILE,)
    assert read_master_secret(tmp_path / MASTER_SECRET_FILE) == SECRET
    assert stat.S_IMODE((tmp_path / MASTER_SECRET_FILE).stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [MASTER_SECRET_FILE, "container_tokens"]


def test_small_files_come_with_the_credentials_and_stay_in_the_folder(environ, tmp_path):
    tokens = tmp_path / "container_tokens"
    tokens.write_bytes(write_secrets({f"{FILE_ALIAS}plan.json": b"{}", f"{FILE_ALIAS}master.json": b"[1]"}))
    assert sorted(deliver(environ, tmp_path)) == ["master.json", "plan.json"]
    assert (tmp_path / "master.json").read_bytes() == b"[1]"
    for name in ("../x", "/x", "", ".."):
        tokens.write_bytes(write_secrets({FILE_ALIAS + name: b"x"}))
        with pytest.raises(StartupError, match="not the name of a file"):
            deliver(environ, tmp_path)
    assert not (tmp_path.parent / "x").exists()


def test_without_a_secret_nothing_is_written(environ, tmp_path):
    (tmp_path / "container_tokens").write_bytes(write_secrets({"other": b"x"}))
    assert not deliver(environ, tmp_path)
    assert not deliver({}, tmp_path)
    del environ["CONTAINER_ID"]
    assert not deliver(environ, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["container_tokens"]


def test_damaged_credentials_are_said_without_their_content(environ, tmp_path):
    (tmp_path / "container_tokens").write_bytes(write_secrets({MASTER_ALIAS: SECRET})[:-3])
    with pytest.raises(StartupError, match=r"container_tokens.*cut short") as caught:
        deliver(environ, tmp_path)
    assert SECRET.hex() not in str(caught.value)
    (tmp_path / "container_tokens").unlink()
    with pytest.raises(StartupError, match="No such file"):
        deliver(environ, tmp_path)


CONTAINER = "container_1700000000000_0001_01_000002"


@pytest.fixture
def node_environ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {"NM_HOST": "w1", "CONTAINER_ID": CONTAINER}


def shipped(**settings):
    """The document that `start` brings to a node."""
    document = server_document(LaunchConfig.model_validate(settings))
    read = json.loads(json.dumps(document))
    return read


def test_a_server_is_where_its_agent_looks(node_environ, tmp_path):
    agent = {"run_dir": f"{tmp_path}/{{node}}/run"}
    config = node_config(shipped(agent={"settings": agent}, pipeline={"workers": 3}), node_environ)
    assert config.state_file == load_config(None, node_environ, **agent).server_state_file
    assert Path(config.state_file).parent.is_dir()
    assert (config.name, config.listen_host, config.workers) == ("w1", "w1", 3)
    # Without its metrics the agent could not tell the queue.
    assert (config.http_host, config.http_port) == ("127.0.0.1", 0)
    assert config.master_secret_file == Path(MASTER_SECRET_FILE)


def test_the_paths_are_the_agents_whatever_was_set(node_environ, tmp_path):
    agent = {"run_dir": str(tmp_path), "server_state_file": f"{tmp_path}/elsewhere.json"}
    config = node_config(shipped(agent={"settings": agent}), node_environ)
    assert config.state_file == load_config(None, node_environ, **agent).server_state_file
    assert config.unix_path == f"{tmp_path}/server.sock"


def test_people_can_use_the_settings_in_effect(node_environ, tmp_path):
    agent = {"run_dir": f"{tmp_path}/run"}
    tenants = {"*": {"read_prefixes": ["hdfs://nn/data"]}}
    config = node_config(shipped(agent={"settings": agent}, pipeline={"tenants": tenants}), node_environ)
    assert load_server_config(tmp_path / NODE_SETTINGS_FILE) == config
    assert config.tenant("alice").read_prefixes == ("hdfs://nn/data",)


def test_every_setting_of_a_site_reaches_its_servers(node_environ, tmp_path):
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
    config = node_config(shipped(agent={"settings": agent}, pipeline=site), node_environ)
    of_node = {"unix_path", "http_port", "state_file"}
    expected = parse_config({**site, "master_secret_file": MASTER_SECRET_FILE})
    assert config.model_dump(exclude=of_node) == expected.model_dump(exclude=of_node)


def test_settings_that_a_site_may_not_have_are_refused(node_environ, tmp_path):
    document = shipped(agent={"settings": {"run_dir": str(tmp_path)}})
    document["server"]["pool_byte"] = 1
    with pytest.raises(ConfigError, match="pool_byte: unknown key"):
        node_config(document, node_environ)


@pytest.mark.parametrize("missing", ["NM_HOST", "CONTAINER_ID"])
def test_only_containers_are_started_like_this(node_environ, missing):
    del node_environ[missing]
    with pytest.raises(ConfigError, match="only containers of YARN"):
        node_config(shipped(), node_environ)


@pytest.fixture
def log(tmp_path):
    descriptor = os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield descriptor
    os.close(descriptor)


def test_a_long_file_is_moved_away_and_writing_goes_on(log, tmp_path):
    os.write(log, b"a" * 100)
    assert not rotate(log, 100, 3)
    os.write(log, b"b")
    assert rotate(log, 100, 3)
    os.write(log, b"c")
    assert (tmp_path / "stderr").read_bytes() == b"c"
    assert (tmp_path / "stderr.1").read_bytes() == b"a" * 100 + b"b"


def test_only_so_many_are_kept(log, tmp_path):
    for number in range(6):
        os.write(log, b"%d" % number * 10)
        assert rotate(log, 5, 3)
    found = {path.name: path.read_bytes()[:1] for path in tmp_path.iterdir() if path.stat().st_size}
    assert found == {"stderr.1": b"5", "stderr.2": b"4", "stderr.3": b"3"}


def test_the_file_is_cut_even_when_it_cannot_be_copied(log, tmp_path):
    os.write(log, b"a" * 100)
    (tmp_path / "stderr.1").mkdir()
    (tmp_path / "stderr.2").mkdir()
    (tmp_path / "stderr.2" / "x").touch()
    with pytest.raises(OSError, match=r"stderr"):
        rotate(log, 10, 2)
    assert (tmp_path / "stderr").stat().st_size == 0


def test_every_writer_of_the_file_goes_on_at_its_new_beginning(tmp_path):
    """A child that inherited the file, as worker processes do, writes before and after the cut."""
    program = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from yarn_accel.launch.container_entry import rotate_output\n"
        "rotate_output(max_bytes=1000, interval_s=0.01)\n"
        "words = ['sh', '-c', 'head -c 2000 /dev/zero; read x; echo child']\n"
        "child = subprocess.Popen(words, stdin=subprocess.PIPE)\n"
        "deadline = time.monotonic() + 60\n"
        "while not Path('stdout.1').exists() or Path('stdout').stat().st_size: \n"
        "    assert time.monotonic() < deadline\n"
        "    time.sleep(0.01)\n"
        "child.communicate(b'go\\n')\n"
        "os.write(1, b'parent\\n')\n"
    )
    with (tmp_path / "stdout").open("ab") as out:
        subprocess.run(
            [sys.executable, "-c", program],
            stdout=out,
            cwd=tmp_path,
            check=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
    assert (tmp_path / "stdout").read_bytes() == b"child\nparent\n"
    assert (tmp_path / "stdout.1").stat().st_size == 2000


def test_a_file_that_is_not_appended_to_and_a_pipe_are_left_alone(tmp_path):
    reader, writer = os.pipe()
    plain = os.open(tmp_path / "plain", os.O_WRONLY | os.O_CREAT)
    try:
        os.write(plain, b"a" * 100)
        done = rotate_output((plain, writer, 9999), max_bytes=10, interval_s=0.001)
        time.sleep(0.02)
        done.set()
        assert (tmp_path / "plain").stat().st_size == 100
    finally:
        for descriptor in (reader, writer, plain):
            os.close(descriptor)
