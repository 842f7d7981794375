"""One cluster with Kerberos for all tests here, and tickets for its users.

A module that needs other protections, or tokens of a shorter life, has a fixture ``secure`` of its own::

    @pytest.fixture(scope="module")
    def secure() -> Iterator[Cluster]:
        with secure_cluster("privacy", protection="privacy") as cluster:
            yield cluster

The fixtures below then work on that cluster. Both clusters are up at the same time, so mark it ``slow``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fixtures.command_server import run_command
from tests.fixtures.programs import ran
from tests.fixtures.secure_cluster import secure_cluster
from yarn_accel.testbed import Cluster

Environ = dict[str, str]
Troubles = dict[str, dict[str, str]]
COMMAND_S = 600.0


@pytest.fixture(scope="package")
def secure() -> Iterator[Cluster]:
    """Two workers, `w1` plays an accelerator; each client chooses its protection. Tests leave it healthy."""
    with secure_cluster("secure") as cluster:
        yield cluster


@pytest.fixture
def login(secure: Cluster, tmp_path: Path) -> Callable[..., Environ]:
    """Get a user a ticket, and return the environment that has it; without a user none.

    Further words are options of ``kinit``, such as ``-l`` and ``20s``.
    """

    def act(user: str, *options: str) -> Environ:
        cache = tmp_path / f"tickets-{user}"
        environ = {**os.environ, **secure.client_environ, "KRB5CCNAME": f"FILE:{cache}"}
        environ["XDG_STATE_HOME"] = str(tmp_path / "state")
        environ.pop("HADOOP_HOME", None)
        if user:
            ran(["kinit", *options, "-kt", str(secure.keytab(user)), user], env=environ, check=True)
        return environ

    return act


@pytest.fixture
def examine(command: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Troubles]:
    """Run ``yarn-accel doctor``; its troubles by their codes. The exit code is 1 when one is no warning."""

    def act(environ: Environ, *words: str) -> Troubles:
        done = command(environ, "doctor", "--json", *words)
        assert done.stderr == ""
        troubles = json.loads(done.stdout)["troubles"]
        assert done.returncode == int(any(not each["is_warning"] for each in troubles))
        assert all(each["place"] and each["cure"] for each in troubles)
        return {each["code"]: each for each in troubles}

    return act


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``yarn-accel ...`` to its end in a process of its own; `login` returns its environment."""

    def run(environ: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        return run_command("yarn_accel", words, env=environ, timeout=COMMAND_S)

    return run
