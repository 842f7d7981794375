"""One real cluster of four nodes in one rack, two of which play accelerators, with the application on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.examples import ALL
from tests.fixtures.yarn_site import Caller, Site, SiteOptions, site_up
from tests.fixtures.yarn_site.faults import FAULTS
from tests.fixtures.yarn_site.job import Batch, Result, compare
from tests.fixtures.yarn_site.options import SMALL_PIPELINE
from tests.fixtures.yarn_site.performing import Performed, perform, why_not
from yarn_accel.errors import StartupError

#: No share is as large, so a share differs from what is configured.
SLOTS = 9
#: The site allows five failures; the master is killed more often here, but not so quickly.
PATIENT = {"app": {"attempt_failures_validity_interval_s": 2.0}}
#: One user may use one folder; the others, all of HDFS.
TENANTS = {
    **SMALL_PIPELINE["tenants"],
    "daemon": {"read_prefixes": ["/user/daemon"], "write_prefixes": ["/user/daemon"]},
}

#: On each node one mapper that binds late has a place, and the others wait for it.
ONE_PLACE = {"policy": "fifo", "cores": 1, "gpus": 1, "max_wait_s": 3600.0}


@pytest.fixture(scope="package")
def idle_site(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, Any]) -> Iterator[Site]:
    """Network namespaces as root, else loopback; skipped with the reason where Hadoop cannot be started."""
    options = SiteOptions(
        "master",
        late=1,
        slots=SLOTS,
        sections={**environment, **PATIENT},
        pipeline={"tenants": TENANTS},
        call_pause_s=0.1,
        agent={"late_binding": ONE_PLACE},
    )
    try:
        with site_up(options, tmp_path_factory.mktemp("admin")) as found:
            yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")


@pytest.fixture
def site(idle_site: Site) -> Site:
    """With its application; the test before may have stopped it."""
    if not idle_site.applications():
        print(f"\nstart took {idle_site.start():.1f} s")
    return idle_site


@pytest.fixture
def caller(site: Site) -> Iterator[Caller]:
    """A mapper on the first node without accelerator."""
    with site.caller(site.others[0]) as found:
        site.until("a first answer", lambda: found.answers)
        yield found


@pytest.fixture(scope="package")
def batch(idle_site: Site) -> Batch:
    return Batch(idle_site, n_records=160 if ALL else 128, n_tasks=4 if ALL else 2)


@pytest.fixture(scope="package")
def results() -> dict[str, Result]:
    """Of jobs that are run once for all tests."""
    return {}


@pytest.fixture
def undisturbed(site: Site, batch: Batch, results: dict[str, Result]) -> Result:
    """What the job leaves when nothing happens."""
    if not results:
        results["undisturbed"] = batch.run("undisturbed")
    return results["undisturbed"]


def struck(site: Site, batch: Batch, undisturbed: Result, *names: str) -> Performed:
    """Have faults happen while the job runs; its output is as if none had."""
    for name in names:
        if why := why_not(site, name):
            pytest.skip(f"{FAULTS[name].title}: {why}")
    performed = perform(site, names, batch, lambda line: print(f"\n{line}", end=""))
    for result in performed.results:
        compared = compare(undisturbed, result)
        reported = f"{compared.words()}; {result.way}"
        print(f"\n{result.wall_s:.1f} s, undisturbed {undisturbed.wall_s:.1f} s: {reported}")
        assert compared.is_equal, reported
    for each in performed.struck:
        assert each.n_done < batch.n_records, "it happened before all records were done"
        assert each.n_done
        assert each.n_answers > 0
        assert FAULTS[each.name].is_felt or each.n_failed == 0, f"servers were touched: {each.failures}"
    return performed
