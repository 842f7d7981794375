"""Containers under the names of their users: LinuxContainerExecutor, with a stand-in for its setuid program.

The application is svc's; alice's tasks use its servers. Nothing needs one uid for both.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hdfs_native
import pytest
import yaml

from tests.conftest import NEEDS_ROOT
from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.programs import ran
from tests.fixtures.yarn_site import DEADLINE_S, ROOT, Site, SiteOptions, site_up
from tests.fixtures.yarn_site.options import node_python
from tests.fixtures.yarn_site.unix_users import UnixUsers
from tests.integration.master.hadoop_settings import write
from yarn_accel.errors import StartupError
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop, pytest.mark.root, pytest.mark.slow]

UIDS = {"svc": 23001, "alice": 23002}
RUN_FOLDER = "/run/yarn-accel"
#: Files there that everybody may read.
PUBLIC = {"agent.lock", "application.json", "state.json", "server.json"}
#: Folders of HDFS: owner and mode.
FOLDERS = {
    "/tmp": ("root", 0o1777),
    "/tmp/logs": ("root", 0o1777),
    "/tmp/hadoop-yarn": ("root", 0o1777),
    "/tmp/hadoop-yarn/staging": ("root", 0o1777),
    "/tmp/hadoop-yarn/staging/history": ("root", 0o1777),
    "/user/svc": ("svc", 0o755),
    "/user/alice": ("alice", 0o755),
}
ONE_CALL = Path(ROOT, "tests/fixtures/yarn_site/one_call.py")
MAPPER = """
import os, sys
from yarn_accel.client import Call, connect
for line in sys.stdin:
    with connect() as accel:
        (_, outcome), = accel.map([Call.of("echo", bytes(range(100)) * 1000, tag=line)])
        umask = os.umask(0o27)
        print(os.geteuid(), f"{umask:03o}", outcome.server, outcome.device, os.environ["USER"], sep="\\t")
"""


@dataclass
class Scene:
    """The site, its users, and a folder that all of them may enter."""

    site: Site
    users: UnixUsers
    folder: Path

    def start(self, run_dir: str) -> None:
        """Start svc's application, with its agents in this folder; empty: in the default one."""
        if self.site.applications():
            self.site.stop()
        launch = self.site.options.launch(self.site.servers, run_dir)
        self.site.settings.write_text(yaml.safe_dump(launch))
        self.site.run("start", "--config", str(self.site.settings))
        self.site._application = None
        self.site.until("it serves", self.site.is_whole)

    def call(self, host: str, user: str, **environ: str) -> dict[str, object]:
        """What a task of the user sees on a node."""
        token = self.folder / f"token-of-{user}"
        shutil.copy(self.site.token_file(), token)
        os.chown(token, UIDS[user], UIDS[user])
        variables = [f"{name}={value}" for name, value in {"NM_HOST": host, "USER": user, **environ}.items()]
        python = [node_python(), str(ONE_CALL), str(ROOT), str(token)]
        done = self.users.run(host, user, "env", *variables, *python)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    with tempfile.TemporaryDirectory(prefix="users-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "admin").mkdir(mode=0o700)
        try:
            with site_up(SiteOptions("users", workers=2, accelerators=1), folder / "admin") as site:
                users = UnixUsers(site, UIDS, folder)
                write(site, users.settings)
                for host in site.names:
                    users.restart(host)
                    users.mount(host, RUN_FOLDER, "-o", f"mode=755,uid={UIDS['svc']}")
                files = hdfs_native.Client(site.rm_client.site.properties["fs.defaultFS"])
                for path, (owner, mode) in FOLDERS.items():
                    files.mkdirs(path, 0o755, create_parent=True)
                    files.set_owner(path, owner, owner)
                    files.set_permission(path, mode)
                site.environ["HADOOP_USER_NAME"] = "svc"
                site.rm_client = RmClient.load(site.environ)
                yield Scene(site, users, folder)
        except StartupError as error:
            pytest.skip(f"no Hadoop here: {error}")
        finally:
            for uid in UIDS.values():
                shutil.rmtree(f"/tmp/yarn-accel-{uid}", ignore_errors=True)


@pytest.fixture(scope="module")
def serving(scene: Scene) -> Scene:
    """The application as docs/hadoop.md has it, with one folder of svc's on every node."""
    scene.start(RUN_FOLDER)
    return scene


def test_containers_run_as_who_started_them(serving: Scene) -> None:
    found = serving.site.processes()
    assert found
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in found} == {UIDS["svc"]}


def test_tasks_of_another_user_are_served(serving: Scene) -> None:
    """On the server's own node by its socket and shared memory, on others by TCP."""
    server, other = serving.site.servers[0], serving.site.others[0]
    for host, carrier in ((server, "memfd"), (other, "tcp")):
        for user in ("alice", "svc"):
            found = serving.call(host, user)
            assert (found["source"], found["server"], found["is_right"]) == ("agent", server, True), found
            assert (found["uid"], found["carrier"]) == (UIDS[user], carrier)


def test_nobody_else_reads_what_is_secret(serving: Scene) -> None:
    site, svc = serving.site, str(UIDS["svc"])
    secret = site.cluster.master_secret_file.read_text().strip()
    for host, name in site.names.items():

        def found(user: str, *words: str, host: str = host) -> set[str]:
            return set(serving.users.run(host, user, "find", *words).stdout.split())

        own = (str(site.cluster.conf_dir.parent / "nodes" / name), "-uid", svc, "-type", "f", "-readable")
        assert {"container_tokens", "stderr"} <= {Path(each).name for each in found("svc", *own)}
        assert found("alice", *own) == set()
        shown = found("alice", RUN_FOLDER, "-type", "f", "-readable")
        assert {Path(each).name for each in shown} <= PUBLIC
        assert all(secret not in serving.users.run(host, "alice", "cat", each).stdout for each in shown)
        assert found("alice", RUN_FOLDER, "-writable", "-not", "-type", "s") == set()
    shared = [each.lstat() for each in Path("/dev/shm").iterdir()]
    assert not [each for each in shared if each.st_uid == UIDS["svc"] and stat.S_IMODE(each.st_mode) & 0o077]


def test_logs_are_shown_while_it_runs(serving: Scene) -> None:
    host = serving.site.others[0]
    found = serving.call(host, "alice", REFUSED_KEY="refused-of-alice")
    assert found["refused"], found
    said = serving.site.run("logs", "refused-of-alice", "--config", str(serving.site.settings))
    assert f" on {serving.site.servers[0]} <==" in said
    assert "refused-of-alice (cholesky, tenant " in said


def test_a_streaming_job_of_another_user(serving: Scene) -> None:
    site = serving.site
    (serving.folder / "mapper.py").write_text(MAPPER)
    # The cluster's own binding names no server.
    conf_dir = conf_without(site.cluster.conf_dir, serving.folder / "conf", "binding_file")
    environ = {**site.environ, "HADOOP_USER_NAME": "alice", "HADOOP_CONF_DIR": str(conf_dir)}
    store = Store(site.cluster.conf_dir)
    root = site.rm_client.site.properties["fs.defaultFS"]
    store.write_atomic(f"{root}/user/alice/lines", [b"1\n2\n"])
    job = ["-D", "mapreduce.job.reduces=0", "-input", "/user/alice/lines", "-output", "/user/alice/out"]
    words = [sys.executable, "-m", "yarn_accel", "streaming", *job, "-mapper", "mapper.py"]
    environ["PYTHONPATH"] = str(ROOT)
    done = ran(words, env=environ, cwd=serving.folder, timeout=DEADLINE_S)
    assert done.returncode == 0, f"{done.stderr}\n{site.logs()}"
    parts = [uri for uri in store.list(f"{root}/user/alice/out") if "/part-" in uri]
    rows = b"".join(store.read_bytes(uri, 1 << 20) for uri in parts).decode().splitlines()
    assert len(rows) == 2
    for row in rows:
        uid, umask, server, _device, user = row.split("\t")
        assert (uid, umask, server, user) == (str(UIDS["alice"]), "027", site.servers[0], "alice")


def test_without_a_folder_for_all_tasks_of_others_ask_the_master(scene: Scene) -> None:
    scene.start("")
    host = scene.site.others[0]
    assert scene.call(host, "svc")["source"] == "agent"
    lost = scene.call(host, "alice")
    assert lost["source"] == "none"
    master = scene.site.state()["about"]["proxy_url"]

    def asked() -> dict[str, object] | None:
        found = scene.call(host, "alice", ACCEL_MASTER=master)
        return found if found["source"] == "master" else None

    found = scene.site.until("the master answers in the second that a task waits", asked)
    assert found is not None
    assert (found["server"], found["is_right"]) == (scene.site.servers[0], True)


def test_nothing_of_it_stays_when_it_has_ended(scene: Scene) -> None:
    """YARN removes folders as the user whose they are."""
    site = scene.site
    site.stop()
    for name in site.names.values():
        local = site.cluster.conf_dir.parent / "nodes" / name / "nm-local"
        left = site.until(
            f"{local} is empty", lambda local=local: not list(local.glob("usercache/svc/appcache/*"))
        )
        assert left
