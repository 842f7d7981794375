"""Servers for these tests: inside this process, or as processes of their own that can be killed."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from tests.integration.pipeline import barrier_operations
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call
from yarn_accel.wire.credential import issue

ROOT = Path(__file__).resolve().parents[3]
MASTER = bytes(range(32))


@pytest.fixture
def credential():
    return issue(MASTER, "alice", int(time.time()) + 3600, "k1")


@pytest.fixture
def issue_to():
    """A function that issues a credential to a tenant."""
    return lambda tenant, lifetime_s=3600: issue(MASTER, tenant, int(time.time()) + lifetime_s, "k1")


@pytest.fixture
def start_server(tmp_path):
    """A function that starts a server in this process; all are closed, and checked, at the end."""
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.server import PipelineServer

    servers = []

    def start(store=None, users=None, **settings):
        values = {"name": f"w{len(servers) + 1}", "workers": 2, "standby_workers": 0, "calibrate": False}
        prefixes = [f"file://{tmp_path}/"]
        values["tenants"] = {"*": {"read_prefixes": prefixes, "write_prefixes": prefixes}}
        config = PipelineConfig(master_secret_file=tmp_path / "secret", **{**values, **settings})
        server = PipelineServer(config, MASTER, store, users=users)
        server.start()
        server.endpoint = Endpoint(config.name, config.listen_host, server.port, config.unix_path)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()
        stats = server.stats()
        pool = stats["pool"]
        assert pool["used_bytes"] == pool["kept_bytes"], "memory of the pool was not given back"
        assert stats["queues"]["read"]["bytes"] == 0, "memory of the read queue was not given back"
        assert stats["queues"]["write"]["bytes"] == 0, "memory of the write queue was not given back"


class ServerProcess:
    """``yarn-accel pipeline serve`` as a process."""

    def __init__(self, folder, name, **settings):
        folder.mkdir()
        self.folder = folder
        secret = folder / "secret"
        secret.write_text(MASTER.hex())
        secret.chmod(0o600)
        self.state_file = folder / "state.json"
        self.config_file = folder / "config.yaml"
        values = {"name": name, "master_secret_file": str(secret), "state_file": str(self.state_file)}
        values |= {"workers": 1, "standby_workers": 0, "calibrate": False, **settings}
        self.config_file.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
        options = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONUNBUFFERED": "1"}}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(self._words("serve"), cwd=ROOT, stderr=log, **options)

    def _words(self, *argv):
        return [sys.executable, "-m", "yarn_accel", "pipeline", *argv, "--config", str(self.config_file)]

    def wait_ready(self):
        line = self.process.stdout.readline()
        assert "ready" in line, (self.folder / "log").read_text()
        state = json.loads(self.state_file.read_text())
        assert state["pid"] == self.process.pid
        self.endpoint = Endpoint(state["name"], state["host"], state["port"], state["unix_path"])
        return self

    def has_loaded_all(self):
        """What no request needs at once it loads after its first answer: some 10 MiB, which are no leak."""
        return "numpy/linalg" in Path(f"/proc/{self.process.pid}/maps").read_text()

    def command(self, *argv):
        options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
        return subprocess.run(self._words(*argv), cwd=ROOT, **options)

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(300)
        self.process.stdout.close()


@pytest.fixture
def spawn_server(tmp_path):
    """A function that starts a server process; all are killed at the end."""
    spawned = []

    def spawn(name, **settings):
        server = ServerProcess(tmp_path / name, name, **settings)
        spawned.append(server)
        return server

    yield spawn
    for server in spawned:
        server.stop()


@pytest.fixture
def wait_until():
    """A function that waits until something is true, and fails with its text after a deadline."""
    return until


class Barrier:
    """The test's end of `barrier_operations`: what has begun, and when it may go on."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def open(self):
        (self.folder / "opened").touch()

    @property
    def n_started(self):
        started = self.folder / "started"
        return started.stat().st_size if started.exists() else 0

    def call(self, key, inputs=(), more=(), **options):
        return Call(key, "wait", {"folder": str(self.folder), **dict(more)}, inputs, **options)


@pytest.fixture
def barrier(tmp_path):
    """A barrier that is closed; whoever still waits there passes at the end."""
    barrier = Barrier(tmp_path / "barrier")
    yield barrier
    barrier.open()


@pytest.fixture
def start_gated(start_server):
    """A function that starts a server with the operations of `barrier_operations`."""
    return lambda **settings: start_server(extra_operations=(barrier_operations.PATH,), **settings)
