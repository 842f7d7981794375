"""Real agents as processes, and a pretended ResourceManager."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.node.master import PATIENCE_S, key_of
from yarn_accel.client import discovery
from yarn_accel.client.discovery import DiscoveredServers, discover_servers

ROOT = Path(__file__).resolve().parents[3]


class AgentProcess:
    """``python -m yarn_accel.node agent`` with a folder of its own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.run_dir = folder / "run"
        self.config = folder / "node.yaml"
        self.key_file = folder / "node.key"
        self.key_file.write_text(key_of("agent:w1").hex())
        self.key_file.chmod(0o600)
        values = {
            "node": "w1",
            "address": "127.0.0.1",
            "run_dir": str(self.run_dir),
            "key_file": str(self.key_file),
            "interval_s": 0.1,
            # A busy machine keeps the master from answering for longer than a second now and then.
            "timeout_s": 10.0,
            "max_backoff_s": 0.3,
            **settings,
        }
        self.config.write_text(yaml.safe_dump(values))
        self.log = folder / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> AgentProcess:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "yarn_accel.node", "agent", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        self.until(lambda: self.state().get("pid") == self.process.pid, "it wrote its state")
        return self

    def kill(self, number: int = 9) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def state(self) -> dict[str, Any]:
        """The state file, with the agent's pid as ``pid``."""
        try:
            state = json.loads((self.run_dir / "state.json").read_text())
        except OSError:
            return {}
        return {**state, "pid": state["agent"]["pid"]}

    def ask(self) -> DiscoveredServers:
        return discover_servers({"ACCEL_AGENT": str(self.run_dir / "agent.sock"), "NM_HOST": "w1"})

    def until(self, condition: Any, what: str, patience_s: float = PATIENCE_S) -> None:
        until_s = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < until_s, f"never: {what}\n{self.log.read_text()}"
            assert self.process is None or self.process.poll() is None, self.log.read_text()
            time.sleep(0.005)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks an agent waits for as long as a busy machine may take."""
    monkeypatch.setattr(discovery, "AGENT_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(discovery, "MASTER_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Any]:
    made: list[AgentProcess] = []

    def make(*, below: Path | None = None, **settings: Any) -> AgentProcess:
        folder = (below or tmp_path) / f"agent{len(made)}"
        folder.mkdir()
        made.append(AgentProcess(folder, **settings))
        return made[-1]

    yield make
    for agent in made:
        if agent.process is not None and agent.process.poll() is None:
            agent.kill()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Starts a server whose state file is where this agent looks; returns the process."""
    started: list[subprocess.Popen[bytes]] = []
    secret_file = tmp_path / "secret"
    secret_file.write_text(secrets.token_hex(32))
    secret_file.chmod(0o600)

    def start(agent: AgentProcess, **settings: Any) -> subprocess.Popen[bytes]:
        config = tmp_path / "server.yaml"
        values = {
            "name": "w1",
            "listen_host": "127.0.0.1",
            "unix_path": str(agent.run_dir / "server.sock"),
            "http_port": 0,
            "master_secret_file": str(secret_file),
            "state_file": str(agent.run_dir / "server.json"),
            "workers": 1,
            "standby_workers": 0,
            "devices": ["cpu"],
            "calibrate": False,
            "pool_bytes": 64 << 20,
            "queue_bytes": 32 << 20,
            "max_request_bytes": 16 << 20,
            **settings,
        }
        config.write_text(yaml.safe_dump(values))
        argv = [sys.executable, "-m", "yarn_accel", "pipeline", "serve", "--config", str(config)]
        with (tmp_path / "server.log").open("ab") as log:
            started.append(subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)


@contextlib.contextmanager
def resource_manager() -> Iterator[tuple[str, dict[str, Any]]]:
    """A ResourceManager's REST: answers every GET with the report in the dictionary's ``report``."""
    reported: dict[str, Any] = {"report": {}}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(reported["report"]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", reported
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def listening_port(pid: int) -> int:
    """The TCP port at which a process listens; 0: none yet."""
    own = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(path.readlink()).removeprefix("socket:[").rstrip("]"))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = (row for row in rows if row[3] == "0A" and row[9] in own)
    return next((int(row[1].rpartition(":")[2], 16) for row in listening), 0)


def cpu_s(pid: int) -> float:
    """Seconds a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
