"""Kerberos and two masters: the active NameNode, then the active ResourceManager is killed under requests.

A mapper's requests run as its job's user, by one token for the name of both NameNodes.  How long nobody
answered is printed; docs/hadoop.md has such figures.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.hdfs_tokens import Issuer
from tests.fixtures.programs import ran
from tests.fixtures.secure_cluster import application, secure_cluster
from tests.fixtures.two_masters import Masters
from tests.fixtures.waiting import until
from tests.integration.secure.test_keytab import process_of
from yarn_accel.adapters.hadoop_rpc import read_token_file, write_token_file
from yarn_accel.adapters.hadoop_rpc.tokens import TokenFile
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.plan import NAME_SERVICE

pytestmark = [pytest.mark.hadoop, pytest.mark.root, pytest.mark.slow]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
#: Factorizes one file again and again, each time into a new one, until its standard input is closed.
MAPPER = """
import json, select, sys, time
from yarn_accel.client import connect
from yarn_accel.errors import AccelError
root, n, refusals = sys.argv[1], 0, []
with connect("hadoop", fallback=False, patience_s=120.0) as accel:
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        try:
            accel.lu(root + "/in.npy", output=root + "/out/" + str(n) + ".npz")
        except AccelError as error:
            refusals.append(str(error) if error.transient else "for good: " + str(error))
            continue
        print(json.dumps({"at": time.time(), "refusals": refusals}), flush=True)
        n, refusals = n + 1, []
"""
#: Writes a matrix, or tells of each file of a folder its owner and whether it has the right factors.
STORE = """
import io, json, os, sys
import hdfs_native
import numpy as np
from yarn_accel.storage import Store
store, matrix, (act, root) = Store(os.environ["HADOOP_CONF_DIR"]), np.eye(8) + np.ones((8, 8)), sys.argv[1:]
if act == "write":
    packed = io.BytesIO()
    np.save(packed, matrix)
    store.write_atomic(root + "/in.npy", [packed.getvalue()])
else:
    found = {}
    for info in hdfs_native.Client().list_status("/" + root.split("/", 3)[3] + "/out"):
        name = info.path.rpartition("/")[2]
        if not name.endswith(".npz") or name.startswith("."):
            found[name] = [info.owner, "unfinished"]
            continue
        factors = np.load(io.BytesIO(store.read_bytes(root + "/out/" + name)))
        lower, upper = np.tril(factors["lu"], -1) + np.eye(8), np.triu(factors["lu"])
        found[name] = [info.owner, bool(abs(lower @ upper - matrix).max() < 1e-9)]
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    with secure_cluster("secure-ha", ha=True) as cluster:
        yield cluster


class Requests:
    """Runs `MAPPER` while its block lasts.

    Attributes:
        answers: what it printed so far.
        errors: its standard error, when it has ended.
    """

    def __init__(self, argv: list[str]) -> None:
        self.answers: list[dict[str, Any]] = []
        self.errors = ""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.answers.append(json.loads(line))

    def _read_errors(self) -> None:
        self.errors = self._process.stderr.read() if self._process.stderr is not None else ""

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.close()
        try:
            process.wait(180.0)
        finally:
            process.kill()
            for thread in self._threads:
                thread.join()
            process.stdout.close()
            process.stderr.close()

    def go_on(self) -> None:
        """Wait for five more answers."""
        wanted = len(self.answers) + 5
        until(lambda: len(self.answers) >= wanted or self._process.poll() is not None, "more answers")
        assert self._process.poll() is None, self.errors

    def longest_gap_s(self, since: float) -> float:
        """The longest time between two answers of which the later came after a time (Unix seconds)."""
        times = [each["at"] for each in self.answers]
        return max(later - at for at, later in itertools.pairwise(times) if later > since)


def as_job(cluster: Cluster, argv: list[str], token: Any) -> list[str]:
    """The command of a mapper, with a token of HDFS in its job's file, that knows the servers' user."""
    variable = "HADOOP_TOKEN_FILE_LOCATION="
    file = Path(next(word for word in argv if word.startswith(variable)).partition("=")[2])
    stored = read_token_file(file.read_bytes())
    file.write_bytes(write_token_file(TokenFile({token.service: token}, stored.secrets)))
    at = next(number for number, word in enumerate(argv) if word.startswith("NM_HOST="))
    return [*argv[:at], "ACCEL_SERVICE_USER=0", *argv[at:]]


def serving(status: str, attempt: int) -> str:
    """The status of an application whose master of that attempt knows its server; else empty."""
    return status if f"attempt {attempt} " in status and "1 of 1 accelerator nodes serve" in status else ""


@pytest.mark.parametrize("user", ["alice", "accel"])
def test_nothing_is_lost_or_doubled(
    secure: Cluster, command: Run, login: Login, environment: dict[str, Any], tmp_path: Path, user: str
) -> None:
    """alice starts by ticket, accel by keytab: its master logs in itself, also at standby services."""
    is_by_keytab = user == "accel"
    environ, root = login(user), f"hdfs://{NAME_SERVICE}/user/{user}/ha"
    ran([sys.executable, "-c", STORE, "write", root], env=environ, check=True)
    token = Issuer(environ).token()
    assert token.service == f"ha-hdfs:{NAME_SERVICE}"
    by_keytab = ("--principal", user, "--keytab", str(secure.keytab(user)))
    sections = {**environment, "kerberos": {"clear_text": is_by_keytab}}
    pipeline = {"user_tokens": "shared-uid"}
    with application(secure, tmp_path, sections=sections, pipeline=pipeline) as app:
        words = ("start", "--config", str(app.settings), *(by_keytab if is_by_keytab else ()))
        started = command(login("") if is_by_keytab else environ, *words)
        assert started.returncode == 0, started.stderr
        try:
            until(lambda: serving(command(environ, "status").stdout, attempt=1), "the server serves")
            argv = app.mapper_argv("w1", [sys.executable, "-c", MAPPER, root], tenant=user)
            with Requests(as_job(secure, argv, token)) as requests:
                requests.go_on()
                for role in ("namenode", "resourcemanager"):
                    at = time.time()
                    with Masters(secure, role).without(signal.SIGKILL):
                        requests.go_on()
                        until(lambda: "attempt 1" in command(environ, "status").stdout, "status")
                        status_s = time.time() - at
                    requests.go_on()
                    print(
                        f"{user}, {role} killed: no answer for {requests.longest_gap_s(at):.1f} s, "
                        f"status after {status_s:.1f} s"
                    )
                # A new master logs in where both active services are now.
                os.kill(process_of("container_entry master run", secure), signal.SIGKILL)
                reported = until(
                    lambda: serving(command(environ, "status").stdout, attempt=2), "a second attempt"
                )
                requests.go_on()
            assert ("renews its tokens by keytab" in reported) == is_by_keytab
            refusals = [text for each in requests.answers for text in each["refusals"]]
            assert not [text for text in refusals if text.startswith("for good")], refusals
            print(f"{user}: {len(requests.answers)} requests, {len(refusals)} tries refused: {set(refusals)}")
            listed = ran([sys.executable, "-c", STORE, "tell", root], env=environ)
            assert listed.returncode == 0, listed.stderr
            found = json.loads(listed.stdout)
            unfinished = [name for name, (_, is_right) in found.items() if is_right == "unfinished"]
            print(f"{user}: left unfinished: {unfinished}")
            done = {name: each for name, each in found.items() if name not in unfinished}
            assert done == {f"{number}.npz": [user, True] for number in range(len(requests.answers))}
        finally:
            stopped = command(environ, "stop")
        assert stopped.returncode == 0, stopped.stderr
    Issuer(environ).cancel(token)
