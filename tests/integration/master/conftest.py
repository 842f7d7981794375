"""One real cluster of four nodes in one rack, two of which play accelerators, with the application on it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from yarn_accel.adapters.credentials import issue_token_file, read_master_secret
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.adapters.hadoop_rpc.backend import ResourceManager
from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.cluster import Cluster, UpOptions, take_down
from yarn_accel.errors import StartupError, UnavailableError
from yarn_accel.launch.control import Control
from yarn_accel.launch.gateway import Gateway, find_running
from yarn_accel.launch.kept import Kept

ROOT = Path(__file__).resolve().parents[3]
CLUSTER_NAME = "master"
DEADLINE_S = 90.0
#: No share is as large, so a share differs from what is configured.
SLOTS = 9
PIPELINE = {
    "workers": 1,
    "standby_workers": 0,
    "devices": ["cpu"],
    "calibrate": False,
    "pool_bytes": 64 << 20,
    "queue_bytes": 32 << 20,
    "max_request_bytes": 16 << 20,
    "max_lent_bytes": 16 << 20,
}


class Caller:
    """A mapper on a node that calls its server without end; `answers` is what it printed."""

    def __init__(self, argv: list[str]) -> None:
        self.answers: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._threads = [
            threading.Thread(
                target=self._read, args=(self._process.stdout, lambda x: self.answers.append(json.loads(x)))
            ),
            threading.Thread(target=self._read, args=(self._process.stderr, self.errors.append)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, take: Callable[[str], None]) -> None:
        for line in stream:
            take(line)

    def after(self, at: float, **facts: Any) -> dict[str, Any] | None:
        """The first answer after a time with these facts."""
        return next(
            (
                each
                for each in self.answers
                if each["at"] > at and all(each[k] == v for k, v in facts.items())
            ),
            None,
        )

    def failures(self) -> list[Any]:
        """Answers before which calls failed, and why these did."""
        # Before its first answer the agent of its node may just be starting.
        found: list[Any] = [each for each in self.answers[1:] if each["failed"]]
        late = [line for line in self.errors if float(line.split()[0]) > self.answers[0]["at"]]
        return [*found[:3], *late[:5]] if found else []

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Site:
    """The cluster, the application on it, and what an admin or a fault does to them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.environ = {
            **os.environ,
            "HADOOP_CONF_DIR": str(cluster.conf_dir),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.gateway = Gateway.load(self.environ)
        plan = cluster.plan
        self.servers = [node.host for node in plan.accel_nodes]
        self.others = [node.host for node in plan.workers if node.host not in self.servers]
        self.names = {node.host: node.name for node in plan.workers}
        self.application: ApplicationId

    def start(self) -> None:
        settings = {
            "master": {"settings": {"accelerator_nodes": self.servers, "heartbeat_interval_s": 0.2}},
            # The site allows five failures; the master is killed more often here, but not so quickly.
            "app": {"attempt_failures_validity_interval_s": 2.0},
            "acct": {"devices": "none", "vcores": 1},
            "pipeline": PIPELINE,
        }
        path = self.folder / "launch.yaml"
        path.write_text(yaml.safe_dump(settings))
        began_s = time.monotonic()
        self.verb("start", "--config", str(path))
        print(f"\nstart took {time.monotonic() - began_s:.1f} s")
        (report,) = self.ask(lambda manager: find_running(manager, "yarn-accel"))
        self.application = report.id
        self.until("both serve", lambda: self.is_whole())

    def is_whole(self) -> bool:
        nodes = self.state()["nodes"]
        return all(nodes.get(h, {}).get("is_serving") for h in self.servers) and all(
            nodes.get(h, {}).get("bound") for h in self.others
        )

    def verb(self, *words: str) -> str:
        argv = [sys.executable, "-m", "yarn_accel", *words]
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * DEADLINE_S,
        )
        assert done.returncode == 0, (done.stdout, done.stderr, self.logs())
        return done.stdout

    def ask(self, question: Callable[[ResourceManager], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            async with self.gateway.manager() as manager:
                return await question(manager)

        return asyncio.run(asked())

    def state(self) -> dict[str, Any]:
        """What the master says; empty while there is none."""

        async def asked(manager: ResourceManager) -> Any:
            secret = Kept.of(str(self.application), self.environ).secret()
            async with Control(self.gateway, manager, self.application, secret, patience_s=0.0) as control:
                return (await control.ask("status"))["state"]

        try:
            return self.ask(asked)
        except UnavailableError:
            return {"nodes": {}, "attempt": 0}

    def master_node(self) -> str:
        """Where the master runs."""
        report = self.ask(lambda manager: manager.report(self.application))
        return str(report.host)

    def nodes(self) -> dict[str, NodeReport]:
        return {each.node.host: each for each in self.ask(lambda manager: manager.nodes())}

    def attribute(self, host: str, name: str = "accel-bind") -> str | None:
        from yarn_accel.master.inventory import attribute_of

        report = self.nodes().get(host)
        return attribute_of(report, name) if report is not None else None

    def container(self, host: str, role: str) -> str:
        """Id of the one container of a role on a node; empty: there is none, or more than one, just now."""
        places = self.state()["nodes"].get(host, {}).get("places", {})
        held = [str(each["id"]) for each in places.get(role, {}).get("containers", ())]
        return held[0] if len(held) == 1 else ""

    def processes(self, container: str = "") -> dict[int, str]:
        """Processes of a container, or of all containers, by pid: their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environ = (path / "environ").read_bytes()
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            is_ours = f"/clusters/{CLUSTER_NAME}/".encode() in environ
            if is_ours and f"CONTAINER_ID={container}".encode() in environ and command:
                found[int(path.name)] = command
        return found

    def kill(self, container: str = "", what: str = "", signum: int = signal.SIGKILL) -> float:
        """Kill the main process of a container, or what is named; when it was done."""
        main = f"yarn_accel.launch.inside {what}"
        pids = [pid for pid, command in self.processes(container).items() if main in command]
        assert pids, self.processes(container)
        at = time.time()
        os.kill(min(pids), signum)
        return at

    def caller(self, host: str) -> Caller:
        token = self.folder / f"token-{time.monotonic_ns()}"
        issue_token_file(token, read_master_secret(self.cluster.master_secret_file), 3600)
        script = str(Path(__file__).with_name("caller.py"))
        words = ["env", f"NM_HOST={host}", sys.executable, script, str(ROOT), str(token)]
        return Caller(self.cluster.exec_argv(self.names[host], words))

    def logs(self) -> str:
        """The ends of all containers' logs."""
        paths = sorted(self.cluster.conf_dir.parent.glob("nodes/*/nm-logs/*/*/stderr"))
        return "\n".join(f"{path.parent.name}: {path.read_text(errors='replace')[-2500:]}" for path in paths)

    def until(self, what: str, condition: Callable[[], Any], pause_s: float = 0.05) -> Any:
        until_s = time.monotonic() + DEADLINE_S
        while not (answer := condition()):
            assert time.monotonic() < until_s, f"never: {what}\n{self.logs()}"
            time.sleep(pause_s)
        return answer


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Network namespaces as root, else loopback; skipped with the reason where Hadoop cannot be started."""
    take_down(CLUSTER_NAME)
    mode = "netns" if os.geteuid() == 0 else "loopback"
    try:
        options = UpOptions(
            CLUSTER_NAME, nodes=4, racks=1, accel_nodes=2, mode=mode, pipeline=False, slots=SLOTS
        )
        cluster = Cluster.up(options)
        found = Site(cluster, tmp_path_factory.mktemp("admin"))
        found.start()
        yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")
    finally:
        take_down(CLUSTER_NAME)
