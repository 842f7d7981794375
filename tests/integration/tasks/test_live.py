"""The task service on a real cluster: applications run, and nothing of them is lost or doubled by a fault."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.fixtures.yarn_site import Site, SiteOptions
from tests.integration.tasks.live_apps import assert_reported, expected, n_done, output, status, write_app
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop]

WORKER = {
    "worker": [
        {"enabled": True, "memory_mib": 768, "vcores": 2},
        {"size": "wide", "memory_mib": 512, "vcores": 3, "priority": 31, "max_workers": 1},
    ],
    "tasks": {"max_workers": 2},
}
PATIENT = {"app": {"attempt_failures_validity_interval_s": 2.0}}


@pytest.fixture(scope="module")
def site(
    two_racks: Site, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, Any]
) -> Iterator[Site]:
    if two_racks.applications():
        two_racks.stop()
    options = SiteOptions("tasks", accelerators=("w1",), sections={**environment, **WORKER, **PATIENT})
    site = Site(two_racks.cluster, options, tmp_path_factory.mktemp("admin"))
    site.run("tasks", "start", "--config", str(site.settings))
    yield site
    site.stop()
    site.close()


def test_an_application_runs_and_its_output_is_whole(site: Site) -> None:
    out = site.run("tasks", "submit", str(write_app(site, "plain")), "--name", "plain-1", "--wait")
    assert out.split() == ["plain-1"]
    assert output(site, "plain") == expected("plain")
    ended = status(site)["ended"]["plain-1"]
    assert ended["state"] == "done"
    assert ended["tasks"]["done"] == sum(ended["tasks"].values()) > 4
    (believed,) = status(site)["figures"]["plain"]
    assert believed["n_measured"] == ended["tasks"]["done"]
    store = Store(site.cluster.conf_dir)
    kept = status(site)["submit_to"].partition("/applications/")[0] + "/task-figures.json"
    site.until(
        "its figures are kept", lambda: store.exists(kept) and b'"plain"' in store.read_bytes(kept, 1 << 20)
    )
    assert_shown(site, "plain-1", ended["tasks"]["done"])
    assert_reported(site, "plain-1", ended["tasks"]["done"])


def assert_shown(site: Site, name: str, n_done: int) -> None:
    """An application that has ended is on the page, in the state and in the metrics, through YARN's proxy."""
    url = site.rm_client.page_of(site.ask(lambda manager: manager.report(site.application)))

    def use() -> Any:
        found = json.loads(read(f"{url}v1/state"))["tasks"]["use"]
        rates = [n for each in found["workers"].values() for n in each["bytes_per_s"]]
        return found if sum(found["all"]["cores"]) > 0 and any(n is not None for n in rates) else None

    used = site.until("cores were in use, and a worker has sampled its node's I/O", use)
    page = read(url)
    assert name in page
    assert [worker for worker in used["workers"] if f">{worker}</text>" in page], "drawn over time"
    metrics = read(f"{url}metrics")
    assert 'yarn_accel_master_task_attempts_total{end="done",form="cpu"}' in metrics
    assert name not in metrics
    assert f"{n_done} of {n_done}" in site.run("tasks", "top")
    (attempt, *log) = site.run("logs", f"{name}/000000").splitlines()
    assert attempt.startswith("==> attempt_")
    assert "it begins" in log

    def accounted() -> list[dict[str, Any]]:
        lines = site.run("tasks", "accounting", "--config", str(site.settings)).splitlines()
        found = [each for each in map(json.loads, lines) if each["job"] == name]
        return [each for each in found if each["attempts"] >= n_done]

    (spent,) = site.until("what it used is written", accounted)
    assert spent["core_s"] > 0


def read(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=300) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize(
    "what", ["worker", pytest.param("agent of the worker's node", marks=pytest.mark.slow), "master"]
)
def test_nothing_is_lost_or_doubled_when_a_process_is_killed(site: Site, what: str, tmp_path: Path) -> None:
    name = f"killed-{what.split()[0]}"
    path = write_app(site, name, tmp_path)
    submitted = site.begin("tasks", "submit", str(path), "--name", name, "--wait")
    try:
        site.until("some tasks are done", lambda: n_done(site, name) >= 2)
        kill(site, what)
        (tmp_path / "go-on").touch()
        _, err = submitted.communicate(timeout=300)
    finally:
        submitted.kill()
    assert submitted.returncode == 0, err
    assert output(site, name) == expected(name)
    ended = status(site)["ended"][name]
    assert ended["tasks"]["done"] == sum(ended["tasks"].values())
    assert_reported(site, name, ended["tasks"]["done"])


@pytest.mark.slow
@pytest.mark.parametrize("role", ["nodemanager", "resourcemanager"])
def test_nothing_is_lost_or_doubled_when_a_daemon_of_yarn_is_killed(
    site: Site, role: str, tmp_path: Path
) -> None:
    """Killed and started again: its containers outlive it."""
    name = f"killed-{role}"
    site.run("tasks", "submit", str(write_app(site, name, tmp_path)), "--name", name)
    site.until("some tasks are done", lambda: n_done(site, name) >= 2)
    node = "master" if role == "resourcemanager" else site.names[status(site)["nodes"][0]]
    site.cluster.kill(node, role)
    (tmp_path / "go-on").touch()
    site.cluster.start(node, role)
    site.until("it has ended", lambda: name in status(site)["ended"])
    ended = status(site)["ended"][name]
    assert ended["state"] == "done", ended
    assert ended["tasks"]["done"] == sum(ended["tasks"].values())
    assert output(site, name) == expected(name)


def test_a_worker_that_stands_still_is_replaced_and_later_doubles_nothing(site: Site, tmp_path: Path) -> None:
    path = write_app(site, "stopped", tmp_path)
    submitted = site.begin("tasks", "submit", str(path), "--name", "stopped", "--wait")
    site.until("some tasks are done", lambda: n_done(site, "stopped") >= 2)
    pids = worker_processes(site)
    pid = min(pids)
    os.kill(pid, signal.SIGSTOP)
    (tmp_path / "go-on").touch()
    try:
        _, err = submitted.communicate(timeout=300)
    finally:
        submitted.kill()
        # Its container was ended meanwhile, or is about to be.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert submitted.returncode == 0, err
    assert output(site, "stopped") == expected("stopped")


def test_a_failing_task_fails_its_application_alone(site: Site) -> None:
    bad = write_app(
        site, "bad", cpu={"command": [sys.executable, "-c", "import sys; sys.exit('no such luck')"]}
    )
    good = write_app(site, "good")
    first = site.begin("tasks", "submit", str(bad), "--name", "bad", "--wait")
    site.run("tasks", "submit", str(good), "--name", "good", "--wait")
    _, err = first.communicate(timeout=120)
    assert first.returncode == 1
    assert "no such luck" in err
    assert output(site, "good") == expected("good")


@pytest.mark.slow
def test_a_cancelled_application_leaves_nothing(site: Site, tmp_path: Path) -> None:
    path = write_app(site, "cancelled", tmp_path)
    site.run("tasks", "submit", str(path), "--name", "cancelled")
    site.until("it runs", lambda: status(site)["apps"]["cancelled"]["tasks"].get("running"))
    site.run("tasks", "cancel", "cancelled")
    site.until("it has ended", lambda: "cancelled" in status(site)["ended"])
    assert status(site)["ended"]["cancelled"]["state"] == "cancelled"
    site.until("no task is left", lambda: not any("mapper.py" in each for each in site.processes().values()))


def test_operations_are_computed_by_the_pipeline_servers(site: Site) -> None:
    store = Store(site.cluster.conf_dir)
    uris = [f"hdfs:///operations/in/{number}.npy" for number in range(6)]
    for number, uri in enumerate(uris):
        content = io.BytesIO()
        np.save(content, np.diag([1.0 + number, 4.0]))
        store.write_atomic(uri, [content.getvalue()])
    store.write_atomic("hdfs:///operations/list.txt", ["\n".join(uris).encode()])
    path = site.folder / "operations.yaml"
    document = {
        "name": "operations",
        "manifest": "hdfs:///operations/list.txt",
        "output": "hdfs:///operations/out",
        "gpu": {"operation": "cholesky"},
    }
    path.write_text(yaml.safe_dump(document))
    site.until("a server serves", lambda: any(status(site)["servers"]["gpus"].values()))
    site.run("tasks", "submit", str(path), "--name", "operations", "--wait")
    rows = [line.split("\t") for line in output(site, "operations")]
    assert [row[:2] for row in rows] == [[uri, "done"] for uri in uris]
    assert [json.loads(row[2])["results"]["l"][0][0] ** 2 for row in rows] == pytest.approx(range(1, 7))
    site.run("tasks", "explain", "operations")


def test_what_only_a_larger_worker_can_run_gets_one(site: Site) -> None:
    path = write_app(site, "wide", cpu={"command": [sys.executable, "./mapper.py"], "cores": 3})
    site.run("tasks", "submit", str(path), "--name", "wide", "--wait")
    assert output(site, "wide") == expected("wide")
    assert any(name.endswith("_wide") for name in status(site)["workers"])


def worker_processes(site: Site) -> list[int]:
    return [pid for pid, command in site.processes().items() if "container_entry worker" in command]


def kill(site: Site, what: str) -> None:
    words = {"master": "master run", "worker": "worker --config"}
    site.kill(what=words.get(what, "node agent"))
