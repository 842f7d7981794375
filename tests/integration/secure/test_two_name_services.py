"""Two name services with Kerberos: an application gets a token of each that its settings name.

The second one is a NameNode alone, on a worker.  Files without content need no DataNode, so a task that
writes none shows that its worker may use that HDFS.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.programs import ran
from tests.fixtures.secure_cluster import application, secure_cluster
from tests.fixtures.waiting import until
from tests.integration.secure.test_jobs import STORE, WORKER
from yarn_accel.hadoop.java import java_argv
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.daemons import is_listening, node_environ
from yarn_accel.testbed.kerberos import REALM
from yarn_accel.testbed.plan import DaemonRole
from yarn_accel.testbed.settings import jvm_options, node_properties
from yarn_accel.testbed.software import ensure_software
from yarn_accel.testbed.state import ClusterPaths, silent

pytestmark = [pytest.mark.hadoop, pytest.mark.root, pytest.mark.slow]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
_PORT = 8020
LIST = "import sys; from yarn_accel.storage import Store; print(*Store().list(sys.argv[1]))"


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    with secure_cluster("federated") as cluster:
        yield cluster


class NameService(NamedTuple):
    """The second HDFS.

    Attributes:
        root: its URI.
        conf_dir: of clients that believe its principal, too.
        log: of its NameNode.
    """

    root: str
    conf_dir: Path
    log: Path


def with_properties(file: Path, properties: dict[str, str]) -> None:
    """Add properties to a file of Hadoop's settings; the last one of a name wins."""
    added = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in properties.items()
    )
    file.write_text(file.read_text().replace("</configuration>", f"{added}</configuration>"))


@pytest.fixture(scope="module")
def second(secure: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameService]:
    """A NameNode on `w2`, with the keys of that node's DataNode; it asks nobody for rights."""
    folder, paths = tmp_path_factory.mktemp("second"), ClusterPaths.of(secure.name)
    plan, node = secure.plan, secure.plan.node("w2")
    conf = folder / "conf"
    shutil.copytree(secure.node_conf_dir, conf)
    with_properties(conf / "core-site.xml", {"fs.defaultFS": f"hdfs://{node.host}:{_PORT}"})
    with_properties(
        conf / "hdfs-site.xml",
        {
            "dfs.namenode.kerberos.principal": f"dn/_HOST@{REALM}",
            "dfs.namenode.https-address": f"{node.host}:9871",
            "dfs.namenode.http-address": f"{node.host}:9870",
            "dfs.permissions.enabled": "false",
        },
    )
    software = ensure_software(silent)
    environ = {
        **node_environ(plan, paths, node, software.install.java_home, role=DaemonRole.NAMENODE),
        "HADOOP_CONF_DIR": str(conf),
    }

    def argv(*arguments: str) -> list[str]:
        command = java_argv(
            software.install,
            "namenode",
            conf,
            properties=node_properties(plan, paths, node),
            jvm_options=jvm_options(plan, paths),
            arguments=arguments,
        )
        return secure.exec_argv("w2", command)

    log = folder / "namenode.log"
    with log.open("wb") as output:
        subprocess.run(
            argv("-format", "-nonInteractive"), env=environ, stdout=output, stderr=output, check=True
        )
        process = subprocess.Popen(argv(), env=environ, stdout=output, stderr=output)
    try:
        until(lambda: is_listening(node.address, _PORT), "the second NameNode listens", logs=[log])
        client = conf_without(secure.conf_dir, folder / "client", "binding_file")
        with_properties(client / "hdfs-site.xml", {"dfs.namenode.kerberos.principal.pattern": f"*/*@{REALM}"})
        yield NameService(f"hdfs://{node.address}:{_PORT}", client, log)
    finally:
        process.kill()
        process.wait()


def test_tasks_write_to_the_hdfs_that_settings_name(
    secure: Cluster,
    second: NameService,
    command: Run,
    login: Login,
    environment: dict[str, Any],
    tmp_path: Path,
) -> None:
    alice = {**login("alice"), "HADOOP_CONF_DIR": str(second.conf_dir)}
    ran([sys.executable, "-c", STORE, "write", "hdfs:///user/alice/in/a=one\n"], env=alice, check=True)
    document = {
        "name": "empty",
        "input": "hdfs:///user/alice/in",
        "output": f"{second.root}/user/alice/out",
        "memory_mib": 64,
        "cpu": {"command": ["/bin/sh", "-c", "cat > /dev/null"]},
    }
    (tmp_path / "app.yaml").write_text(yaml.safe_dump(document))
    submit = ("tasks", "submit", str(tmp_path / "app.yaml"), "--wait")
    with application(secure, tmp_path, sections={**environment, **WORKER}) as app:
        for servers in ([], [second.root]):
            settings = yaml.safe_load(app.settings.read_text())
            settings["kerberos"] = {"hdfs_servers": servers}
            app.settings.write_text(yaml.safe_dump(settings))
            started = command(alice, "start", "--config", str(app.settings))
            assert started.returncode == 0, started.stderr
            done = command(alice, *submit)
            stopped = command(alice, "stop")
            assert stopped.returncode == 0, stopped.stderr
            if not servers:
                assert done.returncode == 2
                assert f"{second.root}: application_" in done.stderr
                assert "has no token for this HDFS" in done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
    found = ran([sys.executable, "-c", LIST, document["output"]], env=alice, check=True).stdout
    assert f"{document['output']}/_SUCCESS" in found.split()
    audit = second.log.read_text()
    assert "Auth successful for alice@KRB.TEST (auth:TOKEN)" in audit
    assert "Auth successful for rm/master@KRB.TEST (auth:KERBEROS)" in audit, (
        "who prolonged the token, and ended it"
    )
