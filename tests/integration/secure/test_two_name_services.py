"""Two HDFS with Kerberos: an application has a token of each that its settings name, and so has a job."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.hdfs_tokens import Issuer
from tests.fixtures.programs import ran
from tests.fixtures.second_hdfs import SecondHdfs, second_hdfs
from tests.fixtures.secret_search import SecretSearch
from tests.fixtures.secure_cluster import Application, application, secure_cluster
from tests.fixtures.waiting import until
from tests.integration.secure.test_jobs import STORE, WORKER
from tests.integration.secure.test_keytab import TOKENS
from yarn_accel.adapters.hadoop_rpc import Token, read_token_file
from yarn_accel.adapters.hadoop_rpc.tokens import owner_of
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.hadoop, pytest.mark.root, pytest.mark.slow]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
LIFE_S = 300
#: Errors call a service without the usual one.
PORT = ":8020"
ANYWHERE = {"read_prefixes": ["hdfs://*"], "write_prefixes": ["hdfs://*"]}
LIST = "import sys; from yarn_accel.storage import Store; print(*Store().list(sys.argv[1]))"
#: Writes a matrix, or tells who owns a file.
MATRIX = """
import io, os, sys
import hdfs_native
import numpy as np
from yarn_accel.storage import Store
act, uri = sys.argv[1:]
if act == "write":
    packed = io.BytesIO()
    np.save(packed, np.eye(8))
    Store(os.environ["HADOOP_CONF_DIR"]).write_atomic(uri, [packed.getvalue()])
else:
    root, path = "/".join(uri.split("/")[:3]), "/" + "/".join(uri.split("/")[3:])
    print(hdfs_native.Client(root).get_file_info(path).owner)
"""
#: Has a server factorize each file into another, and tells what came of it.
MAPPER = """
import json, sys
from yarn_accel.client import connect
from yarn_accel.errors import AccelError
found = []
with connect("hadoop", fallback=False, patience_s=60.0) as accel:
    for pair in sys.argv[1:]:
        source, output = pair.split()
        try:
            found.append(accel.lu(source, output=output).reply.device)
        except AccelError as error:
            found.append(str(error))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    with secure_cluster("federated") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def second(secure: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecondHdfs]:
    with second_hdfs(secure, tmp_path_factory.mktemp("second")) as found:
        yield found


def test_tasks_write_to_the_hdfs_that_settings_name(
    secure: Cluster,
    second: SecondHdfs,
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


def ask(app: Application, name: str, held: Sequence[Token], *pairs: tuple[str, str]) -> Any:
    """What came of each pair of input and output, of a job that has these tokens."""
    words = [sys.executable, "-c", MAPPER, *(" ".join(pair) for pair in pairs)]
    done = ran(app.mapper_argv("w1", words, name, held, ACCEL_SERVICE_USER="0"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def end_one_after_the_other(
    app: Application, tokens: Sequence[Token], issuers: Sequence[Issuer], name: str, root: str
) -> None:
    """A token of the second HDFS counts no more: the first one stays until its own is over."""
    here, there = (f"{place}/user/alice/{name}" for place in ("hdfs://", root))
    issuers[1].cancel(tokens[1])
    gone, stays = ask(
        app, "alice", tokens, (f"{there}.npy", f"{here}-2.npz"), (f"{here}.npy", f"{here}-3.npz")
    )
    assert "does not accept the token of alice@KRB.TEST" in gone
    assert stays == "cpu"
    issuers[0].cancel(tokens[0])
    assert "does not accept the token" in ask(app, "alice", tokens, (f"{here}.npy", f"{here}-4.npz"))[0]


@pytest.mark.parametrize("is_logical", [False, True], ids=["host-and-port", "name-service"])
def test_jobs_users_reach_the_second_hdfs_by_their_own_tokens_for_it(
    secure: Cluster,
    second: SecondHdfs,
    command: Run,
    login: Login,
    environment: dict[str, Any],
    tmp_path: Path,
    is_logical: bool,
) -> None:
    """Inputs and outputs on either; each user is refused the other's files, and pseudo names lead nowhere."""
    root = second.logical_root if is_logical else second.root
    conf = second.logical_conf_dir if is_logical else second.conf_dir
    users = {name: {**login(name), "HADOOP_CONF_DIR": str(conf)} for name in ("alice", "bob")}
    first = {name: Issuer(environ) for name, environ in users.items()}
    other = {name: Issuer(environ, root) for name, environ in users.items()}
    tokens = {name: [first[name].token(), other[name].token()] for name in users}
    assert tokens["alice"][1].service.startswith("ha-hdfs:") is is_logical
    for name, environ in users.items():
        for place in ("hdfs://", root):
            uri = f"{place}/user/{name}/{conf.name}.npy"
            done = ran([sys.executable, "-c", MATRIX, "write", uri], env=environ)
            assert done.returncode == 0, done.stderr
    pipeline: dict[str, Any] = {"user_tokens": "shared-uid", "tenants": {}}
    kerberos = {} if is_logical else {"hdfs_servers": [root]}
    if is_logical:
        pipeline["hdfs_conf_dir"] = str(conf)
    sections = {**environment, "kerberos": kerberos}
    with application(secure, tmp_path, sections=sections, pipeline=pipeline) as app:
        try:
            alice = users["alice"]
            started = command(alice, "start", "--config", str(app.settings), "--wait", "--wait-s", "400")
            assert started.returncode == 0, started.stderr
            for name, stranger in (("alice", "bob"), ("bob", "alice")):
                here, there = (f"{place}/user/{name}/{conf.name}" for place in ("hdfs://", root))
                foreign = f"{root}/user/{stranger}/{conf.name}.npy"
                found = ask(
                    app,
                    name,
                    tokens[name],
                    (f"{there}.npy", f"{here}.npz"),
                    (f"{here}.npy", f"{there}.npz"),
                    (foreign, f"{here}-x.npz"),
                    (f"{here}.npy", f"{root}/user/{stranger}/x.npz"),
                    (f"hdfs://u-{stranger}/user/{stranger}/x.npy", f"{here}-x.npz"),
                    (f"hdfs://localhost:8020/user/{name}/x.npy", f"{here}-x.npz"),
                )
                assert found[:2] == ["cpu", "cpu"], found
                assert all(f"permission denied to {name}" in each for each in found[2:4]), found
                assert all("in no file system of this site" in each for each in found[4:]), found
                for uri in (f"{here}.npz", f"{there}.npz"):
                    owner = ran([sys.executable, "-c", MATRIX, "owner", uri], env=users[name])
                    assert owner.stdout == f"{name}\n", owner.stderr
                pair = (f"{there}.npy", f"{here}-y.npz")
                assert f"no token for {root.removesuffix(PORT)}" in ask(app, name, tokens[name][:1], pair)[0]
            pages = "".join(app.pages(alice)).encode()
            given = [each.password for several in tokens.values() for each in several]
            assert not SecretSearch(given).in_bytes(pages)
            mixed = [tokens["alice"][0], tokens["bob"][1]]
            assert "of one owner" in ask(app, "alice", mixed, pair)[0]
            end_one_after_the_other(app, tokens["alice"], (first["alice"], other["alice"]), conf.name, root)
        finally:
            stopped = command(users["alice"], "stop")
        assert stopped.returncode == 0, stopped.stderr
    assert "Auth successful for bob@KRB.TEST (auth:TOKEN)" in second.log.read_text()


def test_a_dag_reads_and_writes_the_second_hdfs(
    secure: Cluster,
    second: SecondHdfs,
    command: Run,
    login: Login,
    environment: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Its first task's input lies there, its results go there; the journal is in the first one."""
    alice = {**login("alice"), "HADOOP_CONF_DIR": str(second.conf_dir)}
    home = f"{second.root}/user/alice"
    ran([sys.executable, "-c", STORE, "write", f"{home}/dag-in=one\n"], env=alice, check=True)
    document = {
        "output": f"{home}/dag-out",
        "inputs": {"in.txt": {"uri": f"{home}/dag-in", "bytes": 4}},
        "tasks": [
            {"id": "copy", "command": ["cp", "in.txt", "a"], "inputs": ["in.txt"], "outputs": {"a": 4}},
            {"id": "again", "command": ["cp", "a", "b"], "inputs": ["a"], "outputs": {"b": 4}},
        ],
        "memory_mib": 64,
    }
    (tmp_path / "dag.yaml").write_text(yaml.safe_dump(document))
    sections = {
        **environment,
        **WORKER,
        "tasks": {"max_workers": 1, "policy": "mps"},
        "kerberos": {"hdfs_servers": [second.root]},
    }
    with application(secure, tmp_path, sections=sections) as app:
        try:
            for words in (
                ["tasks", "start", "--config", str(app.settings)],
                ["dag", "submit", str(tmp_path / "dag.yaml"), "--name", "dag-1", "--wait"],
            ):
                done = command(alice, *words)
                assert done.returncode == 0, done.stdout + done.stderr
            found = ran([sys.executable, "-c", STORE, "cat", f"{home}/dag-out/again/b"], env=alice)
            assert found.stdout == "one\n", found.stderr
        finally:
            stopped = command(alice, "stop")
        assert stopped.returncode == 0, stopped.stderr


def is_hdfs(token: Token) -> bool:
    return token.kind == HDFS_DELEGATION_KIND


def test_a_master_with_a_keytab_renews_the_tokens_of_both(
    secure: Cluster, command: Run, login: Login, environment: dict[str, Any], tmp_path: Path
) -> None:
    """The second HDFS gives tokens of five minutes, so theirs is the end that counts.

    The server reads and writes there when its first token is over.
    """
    by_keytab = ("--principal", "accel", "--keytab", str(secure.keytab("accel")))
    keys = (f"dfs.namenode.delegation.token.{each}" for each in ("max-lifetime", "renew-interval"))
    (tmp_path / "short").mkdir()
    with second_hdfs(secure, tmp_path / "short", "w1", dict.fromkeys(keys, str(LIFE_S * 1000))) as second:
        accel = {**login("accel"), "HADOOP_CONF_DIR": str(second.conf_dir)}
        kerberos = {"hdfs_servers": [second.root], "clear_text": True}
        pipeline: dict[str, Any] = {"tenants": {"*": ANYWHERE}}
        sections = {**environment, "kerberos": kerberos}
        with application(secure, tmp_path, sections=sections, pipeline=pipeline) as app:
            try:
                started = command(accel, "start", "--config", str(app.settings), *by_keytab)
                assert started.returncode == 0, started.stderr
                first_over_s = time.time() + LIFE_S
                (folder,) = (tmp_path / "state" / "cluster-accel" / "applications").iterdir()
                uri = json.loads((folder / "start.json").read_text())["staging_uri"] + "/tokens"
                newest = partial(subprocess.run, [sys.executable, "-c", TOKENS, uri], env=accel)
                found = until(lambda: newest(capture_output=True).stdout, "new tokens", LIFE_S, pause_s=2.0)
                assert time.time() < first_over_s
                held = [owner_of(each) for each in read_token_file(found).tokens.values() if is_hdfs(each)]
                assert len({each.ends_s - each.issued_s for each in held}) == 2, "of both"
                assert {each.renewer for each in held} == {"accel"}
                uri = f"{second.root}/user/accel/mine"
                done = ran([sys.executable, "-c", MATRIX, "write", f"{uri}.npy"], env=accel)
                assert done.returncode == 0, done.stderr
                until(
                    lambda: time.time() > first_over_s, "the first tokens are over", 2 * LIFE_S, pause_s=1.0
                )
                for place in ("hdfs://", second.root):
                    assert ask(app, "", (), (f"{uri}.npy", f"{place}/user/accel/mine.npz")) == ["cpu"]
            finally:
                stopped = command(accel, "stop")
            assert stopped.returncode == 0, stopped.stderr
