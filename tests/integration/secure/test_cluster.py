"""A cluster with Kerberos: who has a ticket gets what is his, and who has none gets a clear refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.fixtures.programs import ran
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
#: Writes a file and reads it again; prints what came of it.
STORE = """
import json, os, sys
from yarn_accel.errors import AccelError
from yarn_accel.storage import Store
store = Store(os.environ["HADOOP_CONF_DIR"])
answers = []
for uri in sys.argv[1:]:
    try:
        store.write_atomic(uri, [uri.encode()])
        answers.append(store.read_bytes(uri).decode())
    except AccelError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def stored(environ: dict[str, str], *uris: str) -> list[str]:
    done = ran([sys.executable, "-c", STORE, *uris], env=environ, check=True)
    return [str(answer) for answer in json.loads(done.stdout)]


def test_hdfs_takes_tickets_and_keeps_users_apart(secure: Cluster, login: Login) -> None:
    assert secure.status().is_healthy
    own, others = "hdfs:///user/alice/a", "hdfs:///user/bob/a"
    answers = stored(login("alice"), own, others)
    assert answers[0] == own
    assert "permission denied to alice" in answers[1]
    assert "permission denied to bob" in stored(login("bob"), own)[0]
    assert "HDFS does not accept our identity" in stored(login(""), own)[0]


def test_a_killed_kdc_comes_back_with_the_same_keys(secure: Cluster, command: Run, login: Login) -> None:
    secure.kill("master", "kdc")
    assert {d.role for d in secure.status().daemons if d.health == "stopped"} == {"kdc"}
    done = command(os.environ, "cluster", "up", secure.name)
    assert done.returncode == 0, done.stderr
    assert "starting kdc on master" in done.stderr
    assert stored(login("alice"), "hdfs:///user/alice/again") == ["hdfs:///user/alice/again"]
