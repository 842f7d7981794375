"""A machine without internet: install from one archive, bring a cluster up, start the application, stop it.

Takes two minutes and 600 MB of disk, so it runs in `make test-all`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]
#: In a network namespace of its own nothing but the loopback interface is there.
SCRIPT = """
set -eu
ip link set lo up
test -z "$(ip route)"
sh "$1"/install.sh "$HOME/accel"
PATH="$HOME/accel/bin:$PATH"
yarn-accel cluster up offline --mode loopback --nodes 2 --accel-nodes 1 --no-pipeline
trap 'yarn-accel cluster down offline' EXIT
export HADOOP_CONF_DIR="$XDG_STATE_HOME/cluster-accel/clusters/offline/client-conf"
yarn-accel start --config "$2"
yarn-accel status
yarn-accel stop
"""
SETTINGS = """
pipeline: {pool_bytes: 67108864, tenants: {"*": {read_prefixes: ["/"], write_prefixes: ["/"]}}}
master: {settings: {accelerator_nodes: [w1]}}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network namespace without a route")
def test_a_site_without_internet_installs_and_starts_from_one_archive(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar"
    subprocess.run([sys.executable, "-m", "yarn_accel", "bundle", "--hadoop", str(file)], check=True)
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path / "bundle", filter="data")
    file.unlink()
    [bundle] = (tmp_path / "bundle").iterdir()
    settings = tmp_path / "accel.yaml"
    settings.write_text(SETTINGS)
    script = tmp_path / "offline.sh"
    script.write_text(SCRIPT)
    folders = {
        "HOME": tmp_path / "home",
        "XDG_CACHE_HOME": tmp_path / "cache",
        "XDG_STATE_HOME": tmp_path / "state",
    }
    for folder in folders.values():
        folder.mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHON": sys.executable,
        **{k: str(v) for k, v in folders.items()},
    }
    argv = ["unshare", "--net", "sh", str(script), str(bundle), str(settings)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has ended: FINISHED (SUCCEEDED)" in done.stdout + done.stderr
