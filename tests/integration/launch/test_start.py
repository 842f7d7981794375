"""The verbs on a real cluster of four nodes, from a start to a stop that leaves nothing behind.

One cluster and one application for all tests here, in the order of an admin's day; times are printed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from yarn_accel.adapters.credentials import issue_token_file, read_master_secret
from yarn_accel.adapters.hadoop_rpc.backend import ResourceManager
from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.cluster import Cluster, UpOptions, take_down
from yarn_accel.errors import StartupError
from yarn_accel.launch.gateway import APPLICATION_TYPE, Gateway

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
CLUSTER_NAME = "start"
DEADLINE_S = 120.0
#: What the nodes offer before; no server feeds so many, so a share differs from it.
SLOTS = 7
SETTINGS = {
    # Nodes with CPUs alone play accelerators.
    "master": {"settings": {"accelerator_nodes": ["w1", "w3", "127.0.0.11", "127.0.0.13"]}},
    "acct": {"devices": "none", "vcores": 1},
    "pipeline": {
        "workers": 1,
        "standby_workers": 0,
        "devices": ["cpu"],
        "calibrate": False,
        "pool_bytes": 64 << 20,
        "queue_bytes": 32 << 20,
        "max_request_bytes": 16 << 20,
        "max_lent_bytes": 16 << 20,
    },
}
NUMBER = itertools.count()


class Site:
    """A cluster that is up, and our command as its admin runs it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.environ = {
            **os.environ,
            "HADOOP_CONF_DIR": str(cluster.conf_dir),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.gateway = Gateway.load(self.environ)
        # Apart from other clusters on this machine: their nodes have the same names.
        self.run_dir = f"/tmp/yarn-accel-{CLUSTER_NAME}-{os.getpid()}/{{node}}"
        self.settings = folder / "launch.yaml"
        self.settings.write_text(
            yaml.safe_dump({**SETTINGS, "agent": {"settings": {"run_dir": self.run_dir}}})
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "yarn_accel", *words],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command to its end; what it printed on stdout, or on stderr when it shall fail."""
        process = self.begin(*words)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, (out, err, self.logs())
        return err if code else out

    def state(self) -> dict[str, Any]:
        return json.loads(self.run("status", "--json"))["state"]

    def ask(self, question: Callable[[ResourceManager], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            async with self.gateway.manager() as manager:
                return await question(manager)

        return asyncio.run(asked())

    def nodes(self) -> dict[str, NodeReport]:
        return {each.node.host: each for each in self.ask(lambda manager: manager.nodes())}

    def slots(self) -> set[int | None]:
        return {each.capability.other.get("acct/slot") for each in self.nodes().values() if each.capability}

    def attributes(self) -> set[str]:
        """Names of all attributes that an operator set."""
        reports = self.nodes().values()
        return {
            each.key.name
            for report in reports
            for each in report.attributes
            if each.key.prefix == "rm.yarn.io"
        }

    def applications(self) -> list[Any]:
        found = self.ask(lambda manager: manager.applications(types=[APPLICATION_TYPE]))
        return [report for report in found if not report.state.is_final]

    def containers(self) -> list[str]:
        """Command lines of processes in containers of this cluster's nodes."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environ = (path / "environ").read_bytes()
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            is_ours = f"/clusters/{CLUSTER_NAME}/".encode() in environ
            if is_ours and b"CONTAINER_ID=" in environ and command:
                found.append(command)
        return found

    def mapper(self, node: str) -> dict[str, Any]:
        """Run a mapper's way to its server on a node."""
        token = self.folder / f"token-{next(NUMBER)}"
        issue_token_file(token, read_master_secret(self.cluster.master_secret_file), 3600)
        script = str(Path(__file__).with_name("mapper_of_w2.py"))
        host = self.cluster.plan.node(node).host
        words = [sys.executable, script, str(ROOT), str(token)]
        agent = f"ACCEL_AGENT={self.run_dir.format(node=host)}/agent.sock"
        argv = self.cluster.exec_argv(node, ["env", f"NM_HOST={host}", agent, *words])
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def logs(self) -> str:
        """The ends of all containers' logs."""
        paths = sorted(self.cluster.conf_dir.parent.glob("nodes/*/nm-logs/*/*/stderr"))
        return "\n".join(f"{path.parent.name}: {path.read_text(errors='replace')[-1500:]}" for path in paths)

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        until_s = time.monotonic() + DEADLINE_S
        while not (answer := condition()):
            assert time.monotonic() < until_s, f"never: {what}\n{self.logs()}"
            time.sleep(0.2)
        return answer


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    take_down(CLUSTER_NAME)
    mode = "netns" if os.geteuid() == 0 else "loopback"
    try:
        options = UpOptions(
            CLUSTER_NAME, nodes=4, racks=2, accel_nodes=2, mode=mode, pipeline=False, slots=SLOTS
        )
        cluster = Cluster.up(options)
        made = Site(cluster, tmp_path_factory.mktemp("admin"))
        yield made
        shutil.rmtree(Path(made.run_dir).parent, ignore_errors=True)
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")
    finally:
        take_down(CLUSTER_NAME)


def host(site: Site, name: str) -> str:
    return site.cluster.plan.node(name).host


def test_without_an_application_the_verbs_say_so(site) -> None:
    assert "yarn-accel start" in site.run("status", code=1)
    assert "yarn-accel start" in site.run("drain", "w1", code=1)
    assert "nothing runs" in site.run("stop")


def test_a_rehearsal_changes_nothing(site) -> None:
    told = site.run("start", "--config", str(site.settings), "--dry-run")
    assert "role acct on accelerator" in told
    assert not site.applications()
    assert not site.gateway.store().exists(site.gateway.staging_uri())


def test_settings_are_checked_before_anything_is_done(site) -> None:
    wrong = site.folder / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({"master": {"settings": {"policies": "paper"}}}))
    assert "policies" in site.run("start", "--config", str(wrong), code=2)
    wrong.write_text(yaml.safe_dump({"acct": {"memory_mib": 10**6}}))
    assert "largest container" in site.run("start", "--config", str(wrong), code=2)
    assert not site.applications()
    assert not list((site.folder / "state").glob("cluster-accel/applications/*"))


def test_two_starts_at_once_bring_up_one_application_that_serves(site) -> None:
    began_s = time.monotonic()
    processes = [site.begin("start", "--config", str(site.settings), "--wait") for _ in range(2)]
    told = [process.communicate(timeout=2 * DEADLINE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], (told, site.logs())
    print(f"\ntwo starts, every accelerator node serves after {time.monotonic() - began_s:.1f} s\n{told}")
    (application,) = site.applications()
    assert all(str(application.id) in out for out, _ in told)
    assert sum("runs already" in out for out, _ in told) == 1
    assert "runs already" in site.run("start")
    (kept,) = (site.folder / "state" / "cluster-accel" / "applications").iterdir()
    assert kept.name == str(application.id)
    assert (kept / "control-secret").stat().st_mode & 0o777 == 0o600
    nodes = site.state()["nodes"]
    assert {name for name, node in nodes.items() if node["is_serving"]} == {
        host(site, "w1"),
        host(site, "w3"),
    }
    assert nodes[host(site, "w2")]["bound"] == host(site, "w1")
    assert nodes[host(site, "w4")]["bound"] == host(site, "w3")
    assert "2 of 2 accelerator nodes serve" in site.run("status")


def test_a_mapper_finds_its_server_without_being_told_and_uses_it(site) -> None:
    def served() -> dict[str, Any] | None:
        told = site.mapper("w2")
        return told if told["servers"] else None

    told = site.until("the agent of w2 knows a server", served)
    assert told["source"] == "agent"
    assert told["servers"][0] == host(site, "w1")
    assert told["error"] < 1e-10


def test_slots_follow_what_the_servers_can_feed(site) -> None:
    site.until("the share is set", lambda: SLOTS not in site.slots())
    site.until("the binding is published", lambda: "accel-bind" in site.attributes())


def test_a_node_is_explained_drained_and_taken_back(site) -> None:
    first, second = host(site, "w1"), host(site, "w2")
    assert f"bound to {first}" in site.run("explain", second)
    assert "nowhere" in site.run("explain", "nowhere", code=1)
    site.run("drain", first)
    site.until("nobody uses w1", lambda: site.state()["nodes"][second]["bound"] is None)
    site.until("its server ends", lambda: not site.state()["nodes"][first]["places"]["acct"]["containers"])
    assert "drained" in site.run("status")
    site.run("undrain", first)
    site.until("w1 serves again", lambda: site.state()["nodes"][second]["bound"] == first)
    site.run("rebind")
    site.until("w2 is bound again", lambda: site.state()["nodes"][second]["bound"] == first)


def test_somebody_without_the_secret_is_refused(site) -> None:
    site.environ["XDG_STATE_HOME"] = str(site.folder / "elsewhere")
    try:
        assert "control secret" in site.run("stop", code=1)
        (application,) = site.applications()
        other = site.folder / "elsewhere" / "cluster-accel" / "applications" / str(application.id)
        other.mkdir(parents=True)
        (other / "control-secret").write_text("00" * 32)
        (other / "control-secret").chmod(0o600)
        assert "signature" in site.run("stop", code=1)
    finally:
        site.environ["XDG_STATE_HOME"] = str(site.folder / "state")
    assert site.applications()


def test_stop_leaves_nothing_behind(site) -> None:
    (application,) = site.applications()
    folder = f"{site.gateway.staging_uri()}/applications"
    assert site.gateway.store().list(folder)
    assert site.containers()
    began_s = time.monotonic()
    told = site.run("stop")
    print(f"\nstopped after {time.monotonic() - began_s:.1f} s: {told}")
    assert f"{application.id} has ended: FINISHED (SUCCEEDED)" in told
    assert not site.applications()
    site.until("no process of a container is left", lambda: not site.containers())
    assert site.slots() == {SLOTS}
    assert not site.attributes()
    assert not site.gateway.store().list(folder)
    assert not list((site.folder / "state").glob("cluster-accel/applications/*"))
    assert "nothing runs" in site.run("stop")


def test_force_needs_no_master_and_restores_the_nodes(site) -> None:
    began_s = time.monotonic()
    site.run("start", "--config", str(site.settings), "--wait")
    print(f"\nstarted again, every accelerator node serves after {time.monotonic() - began_s:.1f} s")
    site.until("the share is set", lambda: SLOTS not in site.slots())
    (application,) = site.applications()
    (
        site.folder / "state" / "cluster-accel" / "applications" / str(application.id) / "control-secret"
    ).unlink()
    assert "control secret" in site.run("stop", code=1)
    assert "KILLED" in site.run("stop", "--force")
    site.until("no process of a container is left", lambda: not site.containers())
    site.until("the slots are restored", lambda: site.slots() == {SLOTS})
    assert not site.attributes()
    assert not list((site.folder / "state").glob("cluster-accel/applications/*"))
