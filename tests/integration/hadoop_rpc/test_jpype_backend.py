"""The back end for Kerberos and privacy, on a cluster without them: Hadoop's client carries our messages."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.hadoop_rpc.conftest import Yarn

pytestmark = [
    pytest.mark.hadoop,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("jpype") is None, reason="JPype is not installed (extra jpype)"
    ),
]

ROOT = Path(__file__).resolve().parents[3]


def test_the_same_play_through_hadoops_own_client(yarn: Yarn) -> None:
    where = {
        "client": str(yarn.addresses.client[0]),
        "scheduler": str(yarn.addresses.scheduler[0]),
        "admin": str(yarn.addresses.admin[0]),
        "hosts": dict(yarn.site.client_hosts),
    }
    # A process of its own: a JVM takes over signals, and one that was stopped cannot be started again.
    program = [sys.executable, str(Path(__file__).with_name("jpype_play.py")), json.dumps(where)]
    class_path = [str(yarn.cluster.conf_dir), str(yarn.site.install.class_path_jar)]
    done = subprocess.run(
        [*program, *class_path],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout.splitlines()[-1])
    assert story["unknown"] == "ApplicationGoneError"
    assert story["early"] == "NotRegisteredError"
    assert story["started"] == [story["container"]]
    assert story["exit_status"] == -105
    assert story["is_finished"] is True
