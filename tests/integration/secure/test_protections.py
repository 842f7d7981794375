"""Clusters that offer one protection alone: an application by ticket serves a request on each."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.secure_cluster import application, secure_cluster
from tests.integration.secure.test_smoke import served
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.hadoop, pytest.mark.root, pytest.mark.slow]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]


@pytest.fixture(scope="module", params=["authentication", "integrity", "privacy"])
def secure(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with secure_cluster(request.param, protection=request.param) as cluster:
        yield cluster


def test_an_application_serves_under_this_protection(
    secure: Cluster, login: Login, command: Run, environment: dict[str, Any], tmp_path: Path
) -> None:
    site = (secure.conf_dir / "core-site.xml").read_text()
    assert f"<value>{secure.plan.options.protection}</value>" in site
    with application(secure, tmp_path, sections=environment) as app:
        alice = login("alice")
        try:
            served(app, command, alice)
        finally:
            command(alice, "stop")
