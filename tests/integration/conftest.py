"""Real Hadoop clusters for all tests that ask for one; the logs are shown when one of them fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.cluster_mode import mode_options
from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from yarn_accel.errors import StartupError
from yarn_accel.testbed import Cluster, UpOptions, take_down

CLUSTER_NAME = "test"
LOG_LINES = 12


@pytest.fixture(scope="session")
def hadoop_cluster() -> Iterator[Cluster]:
    """Four nodes, two racks, two pipeline servers, made as ``--cluster-mode`` says."""
    take_down(CLUSTER_NAME)
    try:
        cluster = Cluster.up(UpOptions(CLUSTER_NAME, nodes=4, racks=2, accel_nodes=2, **mode_options()))
    except StartupError as error:
        take_down(CLUSTER_NAME)
        pytest.skip(f"no Hadoop here: {error}")
    except BaseException:
        take_down(CLUSTER_NAME)
        raise
    yield cluster
    take_down(CLUSTER_NAME)


@pytest.fixture(scope="session")
def hadoop_environ(hadoop_cluster: Cluster) -> dict[str, str]:
    """What a user of that Hadoop has in his environment."""
    environ = {name: value for name, value in os.environ.items() if name != "HADOOP_HOME"}
    return {**environ, "HADOOP_CONF_DIR": str(hadoop_cluster.conf_dir)}


@pytest.fixture(scope="session")
def environment() -> Iterator[dict[str, Any]]:
    """A section of ``launch.yaml``: the nodes of all sites unpack into one folder, so once."""
    with tempfile.TemporaryDirectory(prefix="yarn-accel-environment-") as folder:
        yield {"environment": {"cache_dir": folder}}


#: What its nodes offer before; no server feeds so many, so a share differs from it.
SLOTS = 7


@pytest.fixture(scope="session")
def two_racks(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, Any]) -> Iterator[Site]:
    """Four nodes in two racks without an application, of which tests start and stop their own."""
    options = SiteOptions(
        "start",
        racks=2,
        slots=SLOTS,
        heartbeat_s=1.0,
        policy="weighted",
        sections=environment,
        call_pause_s=0.1,
    )
    try:
        with site_up(options, tmp_path_factory.mktemp("admin")) as found:
            yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Add the ends of the daemons' logs to the report of a failed test."""
    report = yield
    funcargs = getattr(item, "funcargs", {})
    cluster = funcargs.get("hadoop_cluster") or funcargs.get("secure")
    if report.failed and cluster is not None:
        for path in cluster.log_files():
            tail = "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])
            report.sections.append((f"{path.parent.name} {path.stem}", tail))
    return report
