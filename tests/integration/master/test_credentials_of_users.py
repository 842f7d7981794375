"""Users get credentials from a master that YARN started, and reach nothing but their own folder."""

import io
import os
import pwd
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import NEEDS_ROOT
from tests.fixtures.yarn_site.site import ROOT
from yarn_accel.adapters.credentials import read_credential
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop, pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)]

#: The site's settings let this user into one folder; see conftest.py.
USER = pwd.getpwnam("daemon")
N_IDLE = 1000
#: Becomes another user once all is imported: the interpreter may lie where only root can read.
_AS_USER = """
import os, sys
from yarn_accel.cli import main
import yarn_accel.pipeline.credential_cli
uid, gid = map(int, sys.argv[1:3])
os.setgroups([]); os.setgid(gid); os.setuid(uid)
sys.argv[1:3] = []
main()
"""
_MAPPER = """
import sys
from yarn_accel.client import AccelError, connect
own, other = sys.argv[1:3]
with connect("hadoop", fallback=False) as accel:
    print(accel.lu(own + "/a.npy", output=own + "/a.lu.npz").reply.device)
    for inside, outside in ((other + "/a.npy", own + "/b.npz"), (own + "/a.npy", other + "/b.npz")):
        try:
            accel.lu(inside, output=outside)
        except AccelError as error:
            print(error.code)
"""


@pytest.fixture
def folder():
    """The user's own, on a path that the user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        os.chown(home, USER.pw_uid, USER.pw_gid)
        yield Path(home)


@pytest.fixture
def path(site):
    """Where the master of the site listens."""
    path = Path(site.agent_socket(site.master_node())).with_name("credential.sock")
    site.until("the master's socket", path.is_socket)
    return path


def request(path, file, *words, uid=USER.pw_uid):
    """`yarn-accel credential request`, as a user of the master's node."""
    command = ("credential", "request", "--socket", str(path), *words, str(file))
    return subprocess.run(
        [sys.executable, "-c", _AS_USER, str(uid), str(USER.pw_gid), *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def idle(path):
    """Somebody holds connections open and says nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * N_IDLE)), hard))
    held = []
    try:
        for _ in range(N_IDLE):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].connect(str(path))
        yield
    finally:
        for sock in held:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("idle")
def test_a_user_gets_a_credential_and_computes_in_the_own_folder(site, path, folder):
    done = request(path, folder / "mine")
    assert done.returncode == 0, done.stderr
    credential = read_credential(folder / "mine")
    assert credential.tenant == USER.pw_name
    assert (folder / "mine").stat().st_uid == USER.pw_uid
    assert (folder / "mine").stat().st_mode & 0o777 == 0o600

    store = Store(site.cluster.conf_dir)
    packed = io.BytesIO()
    np.save(packed, np.eye(8) + np.ones((8, 8)))
    root = SiteSettings.read(site.environ).properties["fs.defaultFS"].rstrip("/")
    uris = [f"{root}/user/{name}" for name in (USER.pw_name, "somebody")]
    for uri in uris:
        store.write_atomic(f"{uri}/a.npy", [packed.getvalue()])
    host = site.others[0]
    environ = {
        "NM_HOST": host,
        "ACCEL_AGENT": site.agent_socket(host),
        "HADOOP_TOKEN_FILE_LOCATION": str(folder / "mine"),
        "PYTHONPATH": str(ROOT),
    }
    words = [*(f"{name}={value}" for name, value in environ.items()), sys.executable, "-c", _MAPPER, *uris]
    mapper = subprocess.run(
        site.cluster.exec_argv(site.names[host], ["env", *words]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert mapper.stdout.split() == ["cpu", "forbidden-uri", "forbidden-uri"], mapper.stderr
    assert store.exists(f"{uris[0]}/a.lu.npz")
    assert [store.exists(f"{uri}/b.npz") for uri in uris] == [False, False]


def test_nobody_gets_the_credential_of_another_tenant(path, folder):
    refused = request(path, folder / "mine", "--tenant", "root")
    assert (refused.returncode, (folder / "mine").exists()) == (1, False)
    assert f"{USER.pw_name} gets no credential of tenant root" in refused.stderr


def test_the_user_of_all_containers_is_refused(path, folder):
    """DefaultContainerExecutor runs the containers of all users as the NodeManager's own, here root."""
    refused = request(path, folder / "mine", uid=0)
    assert (refused.returncode, (folder / "mine").exists()) == (1, False)
    assert "containers and services of several users run as root" in refused.stderr
