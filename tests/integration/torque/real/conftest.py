"""A real Torque, where one is: brought up once in namespaces of its own, emptied for each test."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fixtures.torque_site import Absent, Daemon, TorqueSite, found, torque_up

QUICK = {"timer_s": 3, "settle_s": 0.1, "retry_s": 0.5, "comment_refresh_s": 1}
"""Settings under which a test need not wait long for what no event tells."""


class Head:
    """What a person at the head does with our commands."""

    def __init__(self, site: TorqueSite) -> None:
        self.site = site

    def ours(self, *words: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """``torque-sched WORDS``."""
        argv = (*self.site.python, "-m", "torque_sched", *words, "-d", str(self.site.torque.home))
        return self.site.run(*argv, user=user)

    def says(self, *words: str, user: str = "root") -> str:
        """What it prints; it has to end well."""
        done = self.ours(*words, user=user)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def document(self, *words: str) -> Any:
        """What it prints with ``--json``."""
        return json.loads(self.says(*words, "--json"))


@contextmanager
def in_force(site: TorqueSite, **attributes: str) -> Iterator[None]:
    """Server attributes for a while."""
    site.qmgr("\n".join(f"set server {name} = {value}" for name, value in attributes.items()))
    try:
        yield
    finally:
        site.qmgr("\n".join(f"unset server {name}" for name in attributes))


@pytest.fixture(scope="session")
def cluster() -> Iterator[TorqueSite]:
    """One cluster for all tests of this folder."""
    try:
        torque = found()
    except Absent as error:
        pytest.skip(str(error))
    with torque_up(torque) as site:
        # A queue that gives no job a nodes= of its own, for requests that are written otherwise.
        site.qmgr(
            "create queue bare\nset queue bare queue_type = Execution\n"
            "set queue bare resources_default.walltime = 01:00:00\n"
            "set queue bare enabled = True\nset queue bare started = True"
        )
        yield site


@pytest.fixture
def site(cluster: TorqueSite) -> Iterator[TorqueSite]:
    """The cluster without jobs, and no scheduler was ever here."""
    cluster.forget_scheduler()
    yield cluster
    cluster.delete_all()


@pytest.fixture
def head(site: TorqueSite) -> Head:
    return Head(site)


@pytest.fixture
def serve(site: TorqueSite) -> Iterator[Callable[..., Daemon]]:
    """Start daemons of ours; they end with the test, and none may have met a fault of its own."""
    made: list[Daemon] = []

    def start(*options: str, user: str = "root", **settings: Any) -> Daemon:
        daemon = Daemon(site, *options, user=user, **{**QUICK, **settings})
        made.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in made:
        daemon.end()
        assert not re.search("fault of ours|Traceback|without a reason", daemon.told()), daemon.told()
