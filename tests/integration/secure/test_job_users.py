"""One server, and the requests of each user run as that user: over its Unix socket, and over TLS."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.hdfs_tokens import Issuer
from tests.fixtures.programs import ran
from tests.fixtures.secret_search import SecretSearch
from tests.fixtures.secure_cluster import application
from tests.fixtures.user_storage_server import connections
from tests.fixtures.waiting import until
from yarn_accel.adapters.credentials import issue_token_file, read_master_secret
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
#: Writes a matrix as the user who has a ticket, or tells who owns a file.
STORE = """
import io, os, sys
import hdfs_native
import numpy as np
from yarn_accel.storage import Store
packed = io.BytesIO()
np.save(packed, np.eye(8))
if sys.argv[1] == "write":
    Store(os.environ["HADOOP_CONF_DIR"]).write_atomic("hdfs://" + sys.argv[2], [packed.getvalue()])
else:
    print(hdfs_native.Client().get_file_info(sys.argv[2]).owner)
"""
#: Has a server factorize each file, and tells what came of it.
MAPPER = """
import json, sys
from yarn_accel.client import connect
from yarn_accel.errors import AccelError
found = []
with connect("hadoop", fallback=False, patience_s=60.0) as accel:
    for uri in sys.argv[1:]:
        try:
            found.append(accel.lu("hdfs://" + uri + ".npy", output="hdfs://" + uri + ".npz").reply.device)
        except AccelError as error:
            found.append(str(error))
print(json.dumps(found))
"""

#: Goes on with a job that the ResourceManager knows no more, until its server ends that.
STAYS = """
import time
from yarn_accel.client import connect
from yarn_accel.errors import AccelError
until_s, n_served = time.monotonic() + 120, 0
with connect("hadoop", fallback=False, patience_s=1.0) as accel:
    while time.monotonic() < until_s:
        try:
            accel.lu([[4.0, 3.0], [6.0, 3.0]])
        except AccelError as error:
            print(n_served > 0, error)
            break
        n_served += 1
        time.sleep(0.05)
"""

#: A mapper that leaves a process behind, which goes on as the job's user as long as its server lets it.
#: It ends when somebody watches its job.
LINGERS = """
import json, os, sys, time
from pathlib import Path
from yarn_accel.client import connect
from yarn_accel.errors import AccelError
uri, notes = sys.stdin.readline().split()

def note(**values):
    with open(notes, "a") as file:
        file.write(json.dumps({**values, "at_s": time.time()}) + "\\n")

def linger():
    until_s, n_served = time.monotonic() + 300, 0
    with connect("hadoop", fallback=False, patience_s=1.0) as accel:
        while time.monotonic() < until_s:
            try:
                accel.lu(uri + ".npy", output=uri + ".npz")
            except AccelError as error:
                return note(n_served=n_served, ended=str(error))
            n_served += 1
            if n_served == 1:
                note(pid=os.getpid(), job=os.environ["CONTAINER_ID"])
            time.sleep(0.05)

if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(null, each)
    try:
        linger()
    except BaseException as error:
        note(broke=repr(error))
    os._exit(0)
for _ in range(1200):
    if os.path.exists(notes + ".watched"):
        break
    time.sleep(0.1)
print(Path(notes).read_text())
"""
#: Tells when the ResourceManager first reports the end of an application.
WATCHES = """
import asyncio, sys, time
from pathlib import Path
from yarn_accel.adapters.hadoop_rpc import ApplicationId
from yarn_accel.hadoop.rm_client import RmClient
async def watch():
    async with RmClient.load().manager() as manager:
        while True:
            found = await manager.report(ApplicationId.parse(sys.argv[1]))
            if found.state is not None and found.state.is_final:
                return print(time.time())
            Path(sys.argv[2]).touch()
            await asyncio.sleep(0.05)
asyncio.run(watch())
"""


def test_two_users_with_one_file_each_through_one_server(
    secure: Cluster, login: Login, command: Run, environment: dict[str, Any], tmp_path: Path
) -> None:
    """The server's own user is alice, who started it; what bob asks for runs as bob all the same."""
    users = {name: login(name) for name in ("alice", "bob")}
    tokens = {name: Issuer(environ).token() for name, environ in users.items()}
    for name, environ in users.items():
        ran([sys.executable, "-c", STORE, "write", f"/user/{name}/mine.npy"], env=environ, check=True)
    address = str(secure.plan.node("w1").address)
    cert, key = certificate_for(tmp_path, address)
    pipeline = {"user_tokens": "shared-uid", "tls_cert_file": str(cert), "tls_key_file": str(key)}
    with application(secure, tmp_path, sections=environment, pipeline=pipeline) as app:

        def run(name: str, node: str, *words: str, knows: dict[str, str], has_token: bool = True) -> str:
            """The output of a mapper of that user on that node."""
            held = [tokens[name]] if has_token else []
            done = ran(app.mapper_argv(node, [sys.executable, "-c", *words], name, held, **knows))
            assert done.returncode == 0, done.stderr
            return done.stdout

        def ask(name: str, node: str, *paths: str, **options: Any) -> Any:
            """What came of each path."""
            return json.loads(run(name, node, MAPPER, *paths, **options))

        service, authority = {"ACCEL_SERVICE_USER": "0"}, {"ACCEL_SERVER_CA_FILE": str(cert)}
        try:
            started = command(
                users["alice"], "start", "--config", str(app.settings), "--wait", "--wait-s", "400"
            )
            assert started.returncode == 0, started.stderr
            mine, others, pseudo = "/user/alice/mine", "/user/bob/mine", "u-bob/user/bob/mine"
            for name, node, knows in (("alice", "w1", service), ("bob", "w2", authority)):
                own, other = (mine, others) if name == "alice" else (others, mine)
                done, refused, forbidden = ask(name, node, own, other, pseudo, knows=knows)
                assert done == "cpu"
                assert f"permission denied to {name}" in refused
                assert "in no file system of this site" in forbidden
                owner = ran([sys.executable, "-c", STORE, "owner", f"{own}.npz"], env=users[name])
                assert owner.stdout == f"{name}\n", owner.stderr
            shown = "".join(app.pages(users["alice"])).encode()
            assert not SecretSearch([each.password for each in tokens.values()]).in_bytes(shown)
            assert "handed no HDFS token over" in ask("alice", "w1", mine, knows={})[0]
            assert "certificate is not accepted" in ask("alice", "w2", mine, knows={})[0]
            assert "handed no HDFS token over" in ask("bob", "w1", others, knows=service, has_token=False)[0]
            ended = run("bob", "w1", STAYS, knows={**service, "CONTAINER_ID": "container_1_0001_01_000002"})
            assert ended.startswith("True")
            assert "application_1_0001 has ended" in ended
            tokens["bob"] = tokens["alice"]
            assert "alice@KRB.TEST, who is alice here" in ask("bob", "w2", mine, knows=authority)[0]
            Issuer(users["alice"]).cancel(tokens["alice"])
            assert "has ended" in ask("alice", "w1", mine, knows=service)[0]
        finally:
            stopped = command(users["alice"], "stop")
        assert stopped.returncode == 0, stopped.stderr


@pytest.mark.slow
def test_the_storage_of_a_user_ends_with_the_job(
    secure: Cluster,
    login: Login,
    command: Run,
    environment: dict[str, Any],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """A process of a real MapReduce job outlives it, with an open connection: the server ends that.

    The aim is 5 s after the ResourceManager reports the job's end; the figures are printed.
    """
    conf = conf_without(secure.conf_dir, tmp_path / "conf", "binding_file")
    users = {name: {**login(name), "HADOOP_CONF_DIR": str(conf)} for name in ("alice", "bob")}
    bob = users["bob"]
    ran([sys.executable, "-c", STORE, "write", "/user/bob/lingers.npy"], env=bob, check=True)
    cert, key = certificate_for(tmp_path, str(secure.plan.node("w1").address))
    pipeline = {"user_tokens": "shared-uid", "tls_cert_file": str(cert), "tls_key_file": str(key)}
    notes, port = tmp_path / "notes", Issuer(bob).port
    (tmp_path / "mapper.py").write_text(LINGERS)
    write = "import os, sys; from yarn_accel.storage import Store; Store(os.environ['HADOOP_CONF_DIR'])"
    write += ".write_atomic('hdfs:///user/bob/lines', [sys.argv[1].encode()])"
    line = f"hdfs:///user/bob/lingers {notes}\n"
    ran([sys.executable, "-c", write, line], env=bob, check=True)
    secret = read_master_secret(secure.master_secret_file)
    credential = issue_token_file(tmp_path / "credential", secret, 3600.0, "bob")
    words = ["--python", sys.executable, "--credential", str(credential), "-D", "mapreduce.job.reduces=0"]
    words += ["-D", "mapreduce.job.maps=1", "-D", "mapreduce.map.maxattempts=1", "-input", "/user/bob/lines"]
    words += ["-output", "/user/bob/streamed", "-mapper", str(tmp_path / "mapper.py")]
    words += ["-cmdenv", "ACCEL_SERVICE_USER=0", "-cmdenv", f"ACCEL_SERVER_CA_FILE={cert}"]

    def noted() -> list[dict[str, Any]]:
        return [json.loads(each) for each in notes.read_text().splitlines()] if notes.exists() else []

    with application(secure, tmp_path, sections=environment, pipeline=pipeline) as app:
        try:
            started = command(
                users["alice"], "start", "--config", str(app.settings), "--wait", "--wait-s", "400"
            )
            assert started.returncode == 0, started.stderr
            server = json.loads((app.run_dir / "w1" / "server.json").read_text())["pid"]
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                job = pool.submit(command, bob, "streaming", *words)
                until(lambda: noted() or job.done(), "the mapper's process is served")
                assert noted(), job.result().stderr
                assert "job" in noted()[0], noted()
                name = "_".join(["application", *noted()[0]["job"].split("_")[-4:-2]])
                assert connections_of(secure, "bob", port, server)
                watched = ran([sys.executable, "-c", WATCHES, name, f"{notes}.watched"], env=bob, check=True)
                until(lambda: not connections_of(secure, "bob", port, server), "the user's storage is gone")
                gone_s = time.time()
                assert job.result().returncode == 0, job.result().stderr
            until(lambda: len(noted()) > 1, "the process of the job ends")
            reported_s, last = float(watched.stdout), noted()[-1]
            assert last.get("n_served", 0) > 0, last
            assert f"{name} has ended" in last["ended"], last
            for what, at_s in (("last request refused", last["at_s"]), ("connections closed", gone_s)):
                after_s = round(at_s - reported_s, 2)
                record_property(what, after_s)
                print(f"{what} {after_s} s after the ResourceManager reported the end of the job")
        finally:
            for each in noted()[:1]:
                with contextlib.suppress(ProcessLookupError, KeyError):
                    os.kill(each["pid"], signal.SIGKILL)
            command(users["alice"], "stop")


def connections_of(cluster: Cluster, user: str, port: int, pid: int) -> set[int]:
    """A process's connections to the NameNode by a user's token: a server may have some by its own."""
    text = (cluster.conf_dir.parent / "logs" / "master" / "namenode.log").read_text(errors="replace")
    logins = re.findall(rf"Auth successful for {user}@\S+ \(auth:TOKEN\) from \S+:(\d+)", text)
    return connections(port, pid) & {int(each) for each in logins}


def certificate_for(folder: Path, address: str) -> tuple[Path, Path]:
    """A certificate for a server at that address, and its key."""
    cert, key = folder / "server.pem", folder / "server.key"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=server"
    extra = ["-addext", f"subjectAltName=DNS:w1,IP:{address}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words.split(), *extra], check=True, capture_output=True, timeout=300)
    return cert, key
