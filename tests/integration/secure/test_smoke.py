"""The application by ticket, from its start to its stop: one request of a mapper reads and writes HDFS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.programs import ran
from tests.fixtures.secret_search import misplaced_secrets
from tests.fixtures.secure_cluster import Application, application
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
#: Writes a matrix as the user who has a ticket, and tells the error of its factors, as a server wrote them.
STORE = """
import io, os, sys
import numpy as np
from yarn_accel.storage import Store
store, matrix = Store(os.environ["HADOOP_CONF_DIR"]), np.eye(8) + np.ones((8, 8))
if sys.argv[1] == "write":
    packed = io.BytesIO()
    np.save(packed, matrix)
    store.write_atomic(sys.argv[2] + ".npy", [packed.getvalue()])
else:
    found = np.load(io.BytesIO(store.read_bytes(sys.argv[2] + ".npz")))
    lower, upper = np.tril(found["lu"], -1) + np.eye(8), np.triu(found["lu"])
    print(abs(lower @ upper - matrix).max() < 1e-9)
"""
MAPPER = """
import sys
from yarn_accel.client import connect
with connect("hadoop", fallback=False) as accel:
    print(accel.lu(sys.argv[1] + ".npy", output=sys.argv[1] + ".npz").reply.device)
"""


def served(app: Application, command: Run, environ: dict[str, str]) -> list[str]:
    """Start the application as alice, and have a mapper's request read and write HDFS; what was printed."""
    started = command(environ, "start", "--config", str(app.settings), "--wait", "--wait-s", "400")
    assert started.returncode == 0, started.stderr
    reported = command(environ, "status")
    assert "1 of 1 accelerator nodes serve" in reported.stdout, reported.stderr
    assert "lives until" in reported.stdout
    request = requested(app, environ, "hdfs:///user/alice/smoke")
    assert "submitted by alice" in command(environ, "start").stdout
    return [started.stdout, started.stderr, reported.stdout, request, *app.pages(environ)]


def requested(app: Application, environ: dict[str, str], uri: str) -> str:
    """Make one request on the node without an accelerator, from and to HDFS; what the mapper reported."""
    ran([sys.executable, "-c", STORE, "write", uri], env=environ, check=True)
    done = ran(app.mapper_argv("w2", [sys.executable, "-c", MAPPER, uri]))
    assert done.stdout == "cpu\n", done.stderr
    assert ran([sys.executable, "-c", STORE, "read", uri], env=environ).stdout == "True\n"
    return done.stderr


def test_an_application_by_ticket_serves_and_stops(
    secure: Cluster, login: Login, command: Run, environment: dict[str, Any], tmp_path: Path
) -> None:
    alice = login("alice")
    with application(secure, tmp_path, sections=environment) as app:
        try:
            texts = served(app, command, alice)
            assert misplaced_secrets(secure.conf_dir.parent, *texts) == []
        finally:
            stopped = command(alice, "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert "nothing runs" in command(alice, "stop").stdout


@pytest.mark.parametrize("words", ["start", "status", "stop"])
def test_without_a_ticket_a_command_says_so_in_one_line(command: Run, login: Login, words: str) -> None:
    done = command(login(""), words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no Kerberos ticket in FILE:" in done.stderr
    assert "run kinit" in done.stderr
