"""The versions of Hadoop that sites run: each does all that the newest one does.

`yarn-accel hadoop fetch --version V` fetches one; what is not there is skipped.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.yarn_site import DEADLINE_S, Site, SiteOptions, site_up
from tests.fixtures.yarn_site.job import Batch
from tests.fixtures.yarn_site.small_dag import SmallDag
from tests.integration.tasks.live_apps import expected, output, write_app
from yarn_accel.hadoop.java import fetched, find_java

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]
#: The newest one runs in all other tests.
VERSIONS = ("3.3.6", "3.4.2")
SECTIONS = {"worker": {"enabled": True, "memory_mib": 768, "vcores": 2}, "tasks": {"max_workers": 1}}
#: Of the task service where it plans DAGs, and nothing else.
DAG_POLICY = {"policy": "mps"}


@pytest.fixture(scope="module", params=VERSIONS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, Any]
) -> Iterator[Site]:
    """Two workers of one version, of which one plays an accelerator, and the application on them."""
    version = request.param
    if fetched(find_java(), os.environ, version) is None:
        pytest.skip(f"needs `yarn-accel hadoop fetch --version {version}`")
    name = f"hadoop-{version.replace('.', '-')}"
    sections = {**environment, **SECTIONS}
    options = SiteOptions(name, workers=2, accelerators=1, hadoop_version=version, sections=sections)
    with site_up(options, tmp_path_factory.mktemp(name)) as found:
        print(f"{version}: start {found.start():.1f} s")
        yield found
        print(f"{version}: stop {found.stop():.1f} s")


def test_slots_and_bindings_are_published(site: Site) -> None:
    (server,), (other,) = site.servers, site.others
    site.until("the binding is an attribute", lambda: site.attribute(other) == server)
    site.until("the slots are the application's", lambda: site.slots()[other] != site.options.slots)


def test_a_streaming_job_uses_the_server(site: Site) -> None:
    result = Batch(site, n_records=20, n_tasks=2).run()
    assert len(result.factors) == 20
    print(f"job: {result.wall_s:.1f} s, {result.way}")
    assert result.n_by_server.keys() == set(site.servers)


def test_a_killed_server_is_replaced(site: Site) -> None:
    (server,), (other,) = site.servers, site.others
    with site.caller(other) as caller:
        site.until("the server answers", lambda: caller.answers)
        old = site.container(server, "server")
        at = site.kill(old)
        site.until("another container", lambda: site.container(server, "server") not in ("", old))
        site.until("it answers", lambda: caller.after(at))
        last = time.time()
        site.until("it goes on", lambda: caller.after(last))
        print(f"server killed: no answer for {caller.longest_gap_s(at):.2f} s")


def test_tasks_run(site: Site) -> None:
    site.run("tasks", "submit", str(write_app(site, "plain")), "--name", "plain", "--wait")
    assert output(site, "plain") == expected("plain")


def test_a_dag_runs(site: Site, tmp_path: Path) -> None:
    site.stop()
    tasks = {**SECTIONS["tasks"], **DAG_POLICY}
    site.start(replace(site.options, sections={**site.options.sections, "tasks": tasks}))
    with contextlib.closing(SmallDag(site, "small", tmp_path)) as dag:
        dag.go_on()
        dag.check(DEADLINE_S)
