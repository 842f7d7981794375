"""Faults of Kerberos and an application: a KDC that hangs or dies, clocks, tokens that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.hdfs_tokens import Issuer
from tests.fixtures.programs import ran
from tests.fixtures.secure_cluster import Application, application, secure_cluster
from tests.fixtures.waiting import until
from tests.integration.secure.test_smoke import MAPPER, requested
from yarn_accel.adapters.hadoop_rpc import TokenFile, write_token_file
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.kerberos import REALM

pytestmark = [pytest.mark.hadoop, pytest.mark.root, pytest.mark.slow]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
Examine = Callable[..., dict[str, dict[str, str]]]
TOKEN_LIFE_S = 100
URI = "hdfs:///user/alice/faults"


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    """HDFS tokens that end for good after a minute and a half."""
    with secure_cluster("faults", token_life_s=TOKEN_LIFE_S) as cluster:
        yield cluster


@pytest.fixture
def app(secure: Cluster, environment: dict[str, Any], tmp_path: Path) -> Iterator[Application]:
    with application(secure, tmp_path, sections=environment) as found:
        yield found


#: Looks for a folder of HDFS for each line that it is given, and tells what came of it.
LOOKS = """
import os, sys
from yarn_accel import storage
storage._ANSWER_S = 20.0
store = storage.Store(os.environ["HADOOP_CONF_DIR"])
for line in sys.stdin:
    try:
        print(store.exists("hdfs:///user/alice"), flush=True)
    except storage.StorageError as error:
        print(f"transient: {error.transient}:", error, flush=True)
"""


def daemon_pid(secure: Cluster, role: str) -> int:
    (found,) = (daemon.pid for daemon in secure.status().daemons if daemon.role == role)
    return found


def test_a_namenode_that_hangs_is_an_error_and_is_asked_again(secure: Cluster, login: Login) -> None:
    """The native client sets no time limit; ours is shorter here, so that the test is."""
    pid = daemon_pid(secure, "namenode")
    with subprocess.Popen(
        [sys.executable, "-c", LOOKS],
        env=login("alice"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def looks() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline()

        try:
            until(lambda: looks() == "True\n", "the NameNode answers")
            os.kill(pid, signal.SIGSTOP)
            assert "transient: True: hdfs:///user/alice: HDFS does not answer: no answer within" in looks()
            os.kill(pid, signal.SIGCONT)
            until(lambda: looks() == "True\n", "it answers again")
        finally:
            os.kill(pid, signal.SIGCONT)
            process.kill()


def test_a_kdc_that_hangs_before_a_start_is_named_in_one_line(
    secure: Cluster, command: Run, login: Login
) -> None:
    alice, pid = login("alice"), daemon_pid(secure, "kdc")
    os.kill(pid, signal.SIGSTOP)
    try:
        done = command(alice, "start")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "no KDC answers" in done.stderr
    assert "`kdc` lines" in done.stderr
    assert "nothing runs" in command(alice, "stop").stdout


def test_a_dead_kdc_leaves_a_running_application_alone(
    secure: Cluster, command: Run, login: Login, examine: Examine, app: Application, tmp_path: Path
) -> None:
    """Also after the end of its tokens: a connection that is open outlives them. `doctor` tells that end."""
    alice = login("alice")
    token = Issuer(alice).token()
    held = {**alice, "HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "token")}
    (tmp_path / "token").write_bytes(write_token_file(TokenFile({token.service: token})))
    began_s = time.time()
    started = command(alice, "start", "--config", str(app.settings), "--wait", "--wait-s", "400")
    assert started.returncode == 0, started.stderr
    requested(app, alice, URI)
    secure.kill("master", "kdc")
    try:
        # Tickets for both services are in the cache; master, agents and servers log in by tokens.
        requested(app, alice, URI)
        assert "1 of 1 accelerator nodes serve" in command(alice, "status").stdout
        time.sleep(max(0.0, began_s + TOKEN_LIFE_S + 15 - time.time()))
        late = ran(app.mapper_argv("w2", [sys.executable, "-c", MAPPER, URI]))
        assert late.stdout == "cpu\n", late.stderr
    finally:
        command(os.environ, "cluster", "up", secure.name)
        command(login("alice"), "stop")
    found = examine(held)["token-expired"]
    assert f"the HDFS token of alice@{REALM} for {token.service} ended" in found["text"]
    assert "with a keytab" in found["cure"]
