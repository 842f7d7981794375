"""YARN takes containers of workers away for another queue: their tasks run again, and the pool comes back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.yarn_site import PREEMPTION_SETTINGS, Site, SiteOptions, hungry_application, site_up
from tests.integration.master.hadoop_settings import change
from tests.integration.tasks.live_apps import assert_reported, expected, n_done, output, status, write_app
from yarn_accel.errors import StartupError

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

N_WORKERS, N_SLOTS = 3, 2
#: Of 12 GiB these are more than the 40 % that are guaranteed to this queue.
SECTIONS = {
    "app": {"queue": "accel"},
    "worker": {"enabled": True, "memory_mib": 2560, "vcores": N_SLOTS},
    # On a busy machine a minute passes between the end of one application and the tasks of the next.
    "tasks": {"min_workers": 1, "max_workers": N_WORKERS, "idle_s": 120.0},
}
#: GiB: less than the other queue's 60 %, what that of one worker is enough for, what fits beside all workers.
N_HUNGRY, N_LESS_HUNGRY, N_BESIDE = 7, 5, 3
#: So long after YARN has said what it will take, it takes it; a busy master hears of it before.
WAIT_MS = {"yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill": "15000"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, Any]) -> Iterator[Site]:
    options = SiteOptions(
        "tasks-preempt", workers=N_WORKERS, accelerators=0, sections={**environment, **SECTIONS}
    )
    try:
        with site_up(options, tmp_path_factory.mktemp("preemption")) as found:
            change(found, {**PREEMPTION_SETTINGS, **WAIT_MS})
            found.run("tasks", "start", "--config", str(found.settings))
            yield found
            found.stop()
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")


def test_an_idle_worker_is_given_back_before_yarn_takes_a_busy_one(site: Site, tmp_path: Path) -> None:
    submit(site, "filling", tmp_path / "filling")
    site.until("all places are taken", lambda: n_running(site, "filling") == N_WORKERS * N_SLOTS)
    finish(site, "filling", tmp_path / "filling")
    submit(site, "quiet", tmp_path / "quiet", split_bytes=2000, cores=N_SLOTS)
    site.until("two workers are busy", lambda: n_running(site, "quiet") == 2)
    busy = {name for name, worker in status(site)["workers"].items() if worker["running"]}
    assert len(busy) == 2 < len(workers(site))
    with hungry_application(site, N_LESS_HUNGRY) as hungry:
        site.until("the other application has all", lambda: hungry.n_given == N_LESS_HUNGRY)
        site.until("one worker is gone", lambda: len(workers(site)) < N_WORKERS)
        assert workers(site) == busy
        assert n_running(site, "quiet") == 2
        finish(site, "quiet", tmp_path / "quiet", n_tasks=4)
    assert not any("preempted" in each for each in notes(site)), notes(site)


def test_tasks_of_preempted_workers_run_again_and_the_pool_comes_back(site: Site, tmp_path: Path) -> None:
    submit(site, "preempted", tmp_path / "first")
    site.until("all places are taken", lambda: n_running(site, "preempted") == N_WORKERS * N_SLOTS)
    assert len(workers(site)) == N_WORKERS
    with hungry_application(site, N_HUNGRY) as hungry:
        site.until("YARN has preempted for it", lambda: hungry.n_given > N_BESIDE)
        site.until("what ran there is known to be lost", lambda: len(workers(site)) < N_WORKERS)
        left = workers(site)
        assert 1 <= len(left) < N_WORKERS
        tasks = [f"preempted/{number:06}" for number in range(8)]
        assert any("was lost: preempted" in site.run("tasks", "explain", task) for task in tasks)
        finish(site, "preempted", tmp_path / "first")
        submit(site, "later", tmp_path / "second")
        site.until("what is left is busy", lambda: n_running(site, "later") == len(left) * N_SLOTS)
        assert workers(site) == left
        assert status(site)["workers_wanted"] == N_WORKERS
    site.until("the pool is whole again", lambda: n_running(site, "later") == N_WORKERS * N_SLOTS)
    assert len(workers(site)) == N_WORKERS
    finish(site, "later", tmp_path / "second")
    site.until("the pool has shrunk to its least", lambda: len(workers(site)) == 1)
    assert any("preempted" in each for each in notes(site)), notes(site)
    nodes = site.state()["nodes"].values()
    assert not any(place["failures"] for node in nodes for place in node["places"].values()), nodes
    assert site.state()["attempt"] == 1


def submit(site: Site, name: str, held: Path, *, split_bytes: int = 1000, cores: int = 1) -> None:
    """An application of tasks none of which may fail even once; two of them go on at once."""
    held.mkdir()
    cpu = {"command": [sys.executable, "./mapper.py", str(held)], "cores": cores}
    path = write_app(site, name, held, max_attempts=1, split_bytes=split_bytes, cpu=cpu)
    site.run("tasks", "submit", str(path), "--name", name)
    site.until("two are done", lambda: n_done(site, name) == 2)


def finish(site: Site, name: str, held: Path, n_tasks: int = 8) -> None:
    """Let it go on: each task is done once, and counts once for what is learned."""
    (held / "go-on").touch()
    site.until("it has ended", lambda: name in status(site)["ended"])
    ended = status(site)["ended"][name]
    assert (ended["state"], ended["error"]) == ("done", ""), ended
    assert ended["tasks"]["done"] == sum(ended["tasks"].values()) == n_tasks
    assert output(site, name) == expected(name)
    assert_reported(site, name, n_tasks)
    (believed,) = status(site)["figures"][name]
    assert believed["n_measured"] == n_tasks


def n_running(site: Site, name: str) -> int:
    app = status(site)["apps"].get(name)
    return int(app["tasks"].get("running", 0)) if app else 0


def workers(site: Site) -> set[str]:
    """Those that have reported, and are there as far as the service knows."""
    found = status(site)["workers"].items()
    return {name for name, worker in found if not worker["is_expected"]}


def notes(site: Site) -> list[str]:
    return [f"{each['what']} {each.get('reason', '')}" for each in site.state()["notes"]]
