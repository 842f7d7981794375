"""DAGs in the task service on a real cluster: files move, and kill -9 loses and doubles nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.yarn_site import Site, SiteOptions
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop]

SECTIONS = {
    "worker": {"enabled": True, "memory_mib": 768, "vcores": 2},
    "tasks": {"max_workers": 2, "policy": "mps"},
    "app": {"attempt_failures_validity_interval_s": 2.0},
}
N_PARTS = 6
N_CORES = 4
LU_LIMIT_S = 300
#: Cuts, changes or joins files. Those that change wait for a file, all but the first two.
STEP = """
    import os, sys, time
    what, folder, *names = sys.argv[1:]
    if what == "cut":
        for number, name in enumerate(names):
            open(name, "w").write(f"part {number}\\n" * 10)
    elif what == "change":
        number = int(names[0].partition(".")[0])
        while number >= 2 and not os.path.exists(os.path.join(folder, "go-on")):
            time.sleep(0.1)
        open(names[1], "w").write(open(names[0]).read().upper())
    else:
        open("whole", "w").write("".join(open(name).read() for name in names))
"""


@pytest.fixture(scope="module")
def site(
    two_racks: Site, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, Any]
) -> Iterator[Site]:
    if two_racks.applications():
        two_racks.stop()
    options = SiteOptions("dags", accelerators=("w1",), sections={**environment, **SECTIONS})
    site = Site(two_racks.cluster, options, tmp_path_factory.mktemp("admin"))
    site.run("tasks", "start", "--config", str(site.settings))
    yield site
    site.stop()
    site.close()


def write_dag(site: Site, name: str, held: Path, **more: Any) -> Path:
    """One task makes files, one for each changes it, and one joins them."""
    folder = site.folder / name
    folder.mkdir()
    (folder / "step.py").write_text(textwrap.dedent(STEP))
    program = [sys.executable, "./step.py"]
    cut, changed = ([f"{n}.{end}" for n in range(N_PARTS)] for end in ("cut", "changed"))
    tasks: list[dict[str, Any]] = [
        {"id": "cut", "command": [*program, "cut", str(held), *cut], "outputs": dict.fromkeys(cut, 70)}
    ]
    for old, new in zip(cut, changed, strict=True):
        command = [*program, "change", str(held), old, new]
        tasks.append({"id": f"change-{old}", "command": command, "inputs": [old], "outputs": {new: 70}})
    join = [*program, "join", str(held), *changed]
    tasks.append({"id": "join", "command": join, "inputs": changed, "outputs": {"whole": 420}})
    document = {
        "name": name,
        "output": f"hdfs:///dags/{name}",
        "files": ["step.py"],
        "memory_mib": 64,
        "tasks": tasks,
        **more,
    }
    path = folder / "dag.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def status(site: Site) -> dict[str, Any]:
    return site.control("tasks-status", patience_s=60.0)


def row(site: Site, name: str) -> dict[str, Any]:
    answer = status(site)
    found: dict[str, Any] = answer["apps"].get(name) or answer["ended"].get(name) or {"tasks": {}}
    return found


def assert_whole(site: Site, name: str) -> None:
    """Each task's folder is there once, and nothing else is."""
    store = Store(site.cluster.conf_dir)
    names = {uri.rpartition("/")[2] for uri in store.list(f"hdfs:///dags/{name}")}
    assert names == {
        "_SUCCESS",
        "_workflow.json",
        "cut",
        "join",
        *(f"change-{n}.cut" for n in range(N_PARTS)),
    }
    whole = store.read_bytes(f"hdfs:///dags/{name}/join/whole", 1 << 20).decode()
    assert whole == "".join(f"PART {n}\n" * 10 for n in range(N_PARTS))


def assert_explained(site: Site, name: str, out: Path) -> None:
    """The JSON of a live run is that of a simulation: parents end before their children start."""
    found = json.loads(out.read_text())
    assert set(found) >= {"makespan", "unfairness", "utilisation", "moved", "dags", "tasks"}
    ran = {each["task"]: each for each in found["tasks"]}
    assert len(ran) == len(found["tasks"]) == N_PARTS + 2
    for number in range(N_PARTS):
        change = ran[f"change-{number}.cut"]
        assert ran["cut"]["end"] <= change["start"] <= change["end"] <= ran["join"]["start"]
    assert found["dags"][name]["sd"] > 0
    assert "why there: rank" in site.run("dag", "explain", str(out), f"{name}/join")
    assert name in site.run("dag", "status", name)


def test_a_dag_runs_pauses_and_goes_on(site: Site, tmp_path: Path) -> None:
    path, out = write_dag(site, "paused", tmp_path), tmp_path / "out.json"
    words = ("--class", "high", "--name", "paused", "--json", str(out))
    submitted = site.begin("dag", "submit", str(path), *words)
    try:
        site.until("two parts are changed", lambda: row(site, "paused")["tasks"].get("done", 0) >= 3)
        site.run("dag", "pause", "paused")
        (tmp_path / "go-on").touch()
        site.until("nothing of it runs", lambda: not row(site, "paused")["tasks"].get("running"))
        assert row(site, "paused")["state"] == "paused"
        assert "paused" in site.run("dag", "explain", "paused")
        assert "waits" in site.run("dag", "explain", "paused/join")
        site.run("dag", "resume", "paused")
        _, err = submitted.communicate(timeout=300)
    finally:
        submitted.kill()
    assert submitted.returncode == 0, err
    assert_whole(site, "paused")
    assert_explained(site, "paused", out)


def assert_survives(
    site: Site,
    name: str,
    held: Path,
    strike: Callable[[], object],
    mend: Callable[[], object] = lambda: None,
) -> None:
    """A DAG goes on between a fault and what mends it, and ends with each task done once."""
    path, out = write_dag(site, name, held), held / "out.json"
    submitted = site.begin("dag", "submit", str(path), "--name", name, "--json", str(out))
    try:
        site.until("two parts are changed", lambda: row(site, name)["tasks"].get("done", 0) >= 3)
        strike()
        (held / "go-on").touch()
        mend()
        _, err = submitted.communicate(timeout=300)
    finally:
        submitted.kill()
    assert submitted.returncode == 0, err
    assert_whole(site, name)
    assert_explained(site, name, out)


@pytest.mark.parametrize("what", ["worker", "master"])
def test_nothing_is_lost_or_doubled_when_a_process_is_killed(site: Site, what: str, tmp_path: Path) -> None:
    word = {"master": "master run", "worker": "worker --config"}[what]
    assert_survives(site, f"killed-{what}", tmp_path, lambda: site.kill(what=word))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["nodemanager", "resourcemanager"])
def test_nothing_is_lost_or_doubled_when_a_daemon_of_yarn_is_killed(
    site: Site, role: str, tmp_path: Path
) -> None:
    """Killed and started again: its containers outlive it."""
    name = f"killed-{role}"
    # The daemon of whatever node has a worker once two parts are changed.
    nodes: list[str] = []

    def kill() -> None:
        nodes.append("master" if role == "resourcemanager" else site.names[status(site)["nodes"][0]])
        site.cluster.kill(nodes[0], role)

    assert_survives(site, name, tmp_path, kill, lambda: site.cluster.start(nodes[0], role))


@pytest.mark.slow
def test_a_preemptive_dag_interrupts_one_that_allows_it(site: Site, tmp_path: Path) -> None:
    """All cores are taken by tasks that do not end by themselves; those that give way run again."""
    held, free = tmp_path / "held", tmp_path / "free"
    held.mkdir()
    free.mkdir()
    (free / "go-on").touch()
    low, urgent = write_dag(site, "low", held, may_interrupt=True), write_dag(site, "urgent", free)
    out = tmp_path / "out.json"
    submitted = site.begin("dag", "submit", str(low), "--name", "low", "--json", str(out))
    try:
        site.until("all cores are taken", lambda: row(site, "low")["tasks"].get("running", 0) == N_CORES)
        site.run("dag", "submit", str(urgent), "--name", "urgent", "--class", "preemptive")
        site.until("it has ended", lambda: row(site, "urgent").get("state") == "done")
        assert row(site, "low")["state"] != "done"
        cost = row(site, "low")["dag"]
        assert cost["n_interrupted"] >= 1
        assert cost["lost_s"] > 0
        (held / "go-on").touch()
        _, err = submitted.communicate(timeout=300)
    finally:
        submitted.kill()
    assert submitted.returncode == 0, err
    for name in ("low", "urgent"):
        assert_whole(site, name)
    assert_explained(site, "low", out)


@pytest.mark.slow
def test_a_cancelled_dag_leaves_what_was_done(site: Site, tmp_path: Path) -> None:
    site.run("dag", "submit", str(write_dag(site, "gone", tmp_path)), "--name", "gone")
    site.until("two parts are changed", lambda: row(site, "gone")["tasks"].get("done", 0) >= 3)
    site.run("dag", "cancel", "gone")
    site.until("it has ended", lambda: "gone" in status(site)["ended"])
    assert row(site, "gone")["state"] == "cancelled"
    site.until("no task is left", lambda: not any("step.py" in each for each in site.processes().values()))
    names = {uri.rpartition("/")[2] for uri in Store(site.cluster.conf_dir).list("hdfs:///dags/gone")}
    assert names >= {"cut", "change-0.cut", "change-1.cut"}
    assert "join" not in names


def test_an_application_that_is_no_dag_is_refused(site: Site) -> None:
    Store(site.cluster.conf_dir).write_atomic("hdfs:///no-dag/in.txt", [b"one\n"])
    path = site.folder / "app.yaml"
    document = {"name": "plain", "input": "hdfs:///no-dag/in.txt", "output": "hdfs:///no-dag/out"}
    path.write_text(yaml.safe_dump({**document, "cpu": {"command": ["cat"]}}))
    assert "plans DAGs alone" in site.run("tasks", "submit", str(path), code=1)


def test_a_matrix_is_factorized_by_tiles(site: Site) -> None:
    words = ("--runner", "hadoop", "--n", "192", "--tile", "64", "--class", "high", "--home", "hdfs:///lu")
    done = subprocess.run(
        [sys.executable, "-m", "jobs", "lu_blocks", *words],
        env=site.environ,
        capture_output=True,
        text=True,
        timeout=LU_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{site.logs()}"
    assert "3 x 3" in done.stdout
    store = Store(site.cluster.conf_dir)
    names = {uri.rpartition("/")[2] for uri in store.list("hdfs:///lu/factors")}
    assert {"getrf-0", "trsm-2-1", "gemm-2-2-1"} <= names
    assert "_temporary" not in names
    ended = site.control("tasks-status", patience_s=60.0)["ended"]
    ((name, row),) = [each for each in ended.items() if each[0].startswith("lu_blocks-")]
    assert row["tasks"]["done"] == sum(row["tasks"].values()) == 3 + 3 + 5 + 1
    assert row["dag"]["class"] == "high"
    assert_reported(site, name)


def assert_reported(site: Site, name: str) -> None:
    """A live DAG has the report that a simulated one has, with SD over time."""
    folder = site.folder / "report"
    site.run("dag", "report", name, "--out", str(folder))
    document = json.loads((folder / "outcome.json").read_text())
    assert document["dags"].keys() == {name}
    assert len(document["tasks"]) == 12
    assert document["slowdowns"][name][-1][1] == pytest.approx(document["dags"][name]["sd"])
    assert f"{name}/residual on " in (folder / "index.html").read_text()
