"""One real Hadoop for all tests that ask for it; its logs are shown when one of them fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.testbed import Cluster, UpOptions, take_down
from yarn_accel.testbed.class_archives import ensure_archive
from yarn_accel.testbed.maven import ensure_hadoop
from yarn_accel.testbed.single_node import SingleNode

CLUSTER_NAME = "test"
LOG_LINES = 12


@pytest.fixture(scope="session")
def hadoop_cluster() -> Iterator[Cluster]:
    """Four nodes, two racks, two pipeline servers: network namespaces as root, else loopback."""
    take_down(CLUSTER_NAME)
    mode = "netns" if os.geteuid() == 0 else "loopback"
    try:
        cluster = Cluster.up(UpOptions(CLUSTER_NAME, nodes=4, racks=2, accel_nodes=2, mode=mode))
    except StartupError as error:
        take_down(CLUSTER_NAME)
        pytest.skip(f"no Hadoop here: {error}")
    except BaseException:
        take_down(CLUSTER_NAME)
        raise
    yield cluster
    take_down(CLUSTER_NAME)


@pytest.fixture(scope="session")
def environment() -> Iterator[dict[str, Any]]:
    """A section of ``launch.yaml``: the nodes of all sites unpack into one folder, so once."""
    with tempfile.TemporaryDirectory(prefix="yarn-accel-environment-") as folder:
        yield {"environment": {"cache_dir": folder}}


@pytest.fixture(scope="session")
def single_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    """One node for tests of what needs a real Hadoop but no cluster; its daemons map the class archive."""
    try:
        install = ensure_hadoop(lambda _line: None)
        archive = ensure_archive(install, lambda _line: None)
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")
    with SingleNode(install, tmp_path_factory.mktemp("node"), lambda _line: None, archive=archive) as node:
        yield node


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Add the ends of the daemons' logs to the report of a failed test."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("hadoop_cluster")
    if report.failed and cluster is not None:
        for path in cluster.log_files():
            tail = "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])
            report.sections.append((f"{path.parent.name} {path.stem}", tail))
    return report
