"""Our commands and files on a real NodeManager; no ApplicationMaster is needed for that."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import json
import stat
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import records
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.launch import bootstrap
from yarn_accel.launch.plan import container_argv, container_command, container_environment
from yarn_accel.launch.uploads import upload, upload_script
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop]

DEADLINE_S = 120.0
HOSTILE = [
    *("a b", "'", '"', "$HOME", "`id`", "$(id)", "\\", "a\nb", "!", "*", "{{PATH}}", "}}}", "<LOG_DIR>", ""),
]
#: Stands in for this package: tells what arrived, and where.
ENTRY = """\
import fcntl, json, os, sys
out, *words = sys.argv[1:]
report = {"words": words, "environ": dict(os.environ), "stdout": os.readlink("/proc/self/fd/1")}
report["appends"] = bool(fcntl.fcntl(1, fcntl.F_GETFL) & os.O_APPEND)
report["files"] = sorted(os.listdir("."))
with open(out + ".tmp", "w") as stream:
    json.dump(report, stream)
os.rename(out + ".tmp", out)
"""


@dataclass(frozen=True)
class Yarn:
    """A cluster, and how to start something on it."""

    site: HadoopSite
    store: Store
    staging_uri: str
    n_nodes: int

    def run(self, environment, words, variables=None):
        """Run one container to its end; the report of its application."""
        script = upload_script(self.store, self.staging_uri)
        files = {
            item.name: records.LocalResource.of(item.uri, item.n_bytes, item.modified_ms)
            for item in (environment, script)
        }
        launch = records.LaunchContext.of(
            [container_command(container_argv(words, environment.name))],
            container_environment(more=variables),
            files,
        )
        return asyncio.run(self._run(launch))

    async def _run(self, launch):
        addresses = hadoop_rpc.ResourceManagerAddresses.from_properties(self.site.properties)
        settings = hadoop_rpc.RpcSettings(hosts=self.site.client_hosts)
        manager = hadoop_rpc.ResourceManager(
            addresses, hadoop_rpc.User(getpass.getuser()), settings, hadoop_rpc.Patience(30.0)
        )
        try:
            application = (await manager.new_application()).application
            resource = records.YarnResource.of(512, 1)
            await manager.submit(
                hadoop_rpc.ApplicationSubmission(
                    application, "launch", launch=launch, resource=resource, max_attempts=1
                )
            )
            deadline = time.monotonic() + DEADLINE_S
            while True:
                report = await manager.report(application)
                if report.state is not None and report.state.is_final:
                    return report
                assert time.monotonic() < deadline, report
                await asyncio.sleep(0.1)
        finally:
            await manager.close()


@pytest.fixture(scope="module")
def yarn(hadoop_cluster, hadoop_environ):
    site = HadoopSite.load(hadoop_environ)
    staging_uri = f"{site.properties['fs.defaultFS']}/containers"
    return Yarn(site, Store(hadoop_cluster.conf_dir), staging_uri, len(hadoop_cluster.plan.workers))


def small(folder, **need):
    files = {
        "yarn_accel/__init__.py": b"",
        "yarn_accel/launch/__init__.py": b"",
        "yarn_accel/launch/container_entry.py": ENTRY.encode(),
        bootstrap.REQUIREMENT: json.dumps({**bootstrap.node_facts(), **need}).encode(),
    }
    entries = {name: (hashlib.sha256(data).hexdigest(), False) for name, data in files.items()}
    path = folder / f"accel-environment-{bootstrap.content_digest(entries)}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def shared(tmp_path):
    """A folder that the container's process can write too."""
    tmp_path.chmod(0o777)
    return tmp_path


def test_words_and_variables_arrive_as_they_were(yarn, shared):
    resource = upload(yarn.store, small(shared), yarn.staging_uri)
    report = yarn.run(resource, [str(shared / "reported"), *HOSTILE], {"X": "a $HOME `id` \" \\ ' \n"})
    assert (shared / "reported").exists(), report.diagnostics
    reported = json.loads((shared / "reported").read_text())
    assert (reported["words"], reported["environ"]["X"]) == (HOSTILE, "a $HOME `id` \" \\ ' \n")
    assert reported["stdout"].endswith("/stdout")
    assert reported["environ"]["LOG_DIRS"].split(",")[0] in reported["stdout"]
    assert reported["appends"], "or the file could not be cut while it is written to"
    assert {"accel-start.py", resource.name} <= set(reported["files"])
    unpacked = Path(reported["environ"]["ACCEL_ENVIRONMENT"])
    assert str(unpacked).startswith(reported["environ"]["LOCAL_USER_DIRS"].split(",")[0])
    assert stat.S_IMODE(unpacked.parent.stat().st_mode) == 0o700
    # The next application of this user finds it there; of so many one runs on the node of another.
    changed = {unpacked: unpacked.stat().st_mtime_ns}
    while True:
        again = shared / f"again-{len(changed)}"
        yarn.run(resource, [str(again)])
        found = Path(json.loads(again.read_text())["environ"]["ACCEL_ENVIRONMENT"])
        if found in changed:
            break
        changed[found] = found.stat().st_mtime_ns
    assert len(changed) <= yarn.n_nodes
    assert found.stat().st_mtime_ns == changed[found]


def test_a_node_that_does_not_fit_is_reported_with_code_and_message(yarn, shared):
    resource = upload(yarn.store, small(shared, glibc="9.99"), yarn.staging_uri)
    report = yarn.run(resource, [str(shared / "reported")])
    assert f"exitCode: {bootstrap.EXIT_GLIBC}" in report.diagnostics
    assert "glibc is" in report.diagnostics
    assert "the environment needs 9.99" in report.diagnostics
    assert not (shared / "reported").exists()
