"""An application by keytab, and its later masters, outlive the first tokens; requests go on.

Tokens live 160 s here. It takes five minutes, so it runs in `make test-all`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.programs import ran
from tests.fixtures.secure_cluster import Application, application, secure_cluster
from tests.integration.secure.test_smoke import MAPPER, STORE
from yarn_accel.adapters.hadoop_rpc import read_token_file
from yarn_accel.adapters.hadoop_rpc.tokens import owner_of
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.hadoop, pytest.mark.root, pytest.mark.slow]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
LIFE_S = 160
#: ``acct/slot`` of each node before; no server feeds so many.
SLOTS = 7
PAUSE_S = 5.0
_ALL_PROTOCOLS = socket.htons(0x0003)
#: Prints the newest tokens, as their owner can read them.
TOKENS = """
import os, sys
from yarn_accel.storage import Store
sys.stdout.buffer.write(Store(os.environ["HADOOP_CONF_DIR"]).read_bytes(sys.argv[1]))
"""
#: Prints what operators, such as the master, have set on each node: its server and its slots.
NODES = """
import asyncio, json
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.master.inventory import BIND, attribute_of
async def nodes():
    async with RmClient.load().manager() as manager:
        return await manager.nodes()
found = asyncio.run(nodes())
print(json.dumps({n.node.host: [attribute_of(n, BIND), n.capability.other["acct/slot"]] for n in found}))
"""


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    """Everything between nodes is encrypted, as `start` asks for where it uploads a keytab."""
    with secure_cluster("keytab", protection="privacy", token_life_s=LIFE_S, slots=SLOTS) as cluster:
        yield cluster


@contextlib.contextmanager
def sniffed(cluster: Cluster) -> Iterator[bytearray]:
    """All packets of the workers while the block lasts."""
    packets, done = bytearray(), threading.Event()
    interfaces = {node.interface for node in cluster.plan.nodes if node.name != "master"}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _ALL_PROTOCOLS) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        wire.settimeout(0.2)

        def listen() -> None:
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    packet, address = wire.recvfrom(1 << 17)
                    if address[0] in interfaces:
                        packets.extend(packet)

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield packets
        finally:
            done.set()
            listener.join()


def calls(app: Application, accel: dict[str, str], uri: str) -> None:
    """One request of a mapper reads and writes HDFS."""
    ran([sys.executable, "-c", STORE, "write", uri], env=accel, check=True)
    served = ran(app.mapper_argv("w2", [sys.executable, "-c", MAPPER, uri]))
    assert served.stdout == "cpu\n", served.stderr
    assert ran([sys.executable, "-c", STORE, "read", uri], env=accel).stdout == "True\n"


def published(accel: dict[str, str], host: str) -> list[Any]:
    """The server of a node's tasks, and the node's slots, as YARN knows them."""
    found = json.loads(ran([sys.executable, "-c", NODES], env=accel, check=True).stdout)
    return list(found[host])


def forget_keytabs(cluster: Cluster) -> None:
    """Delete the keytab from nodes: the next master fetches it from HDFS, as on a node without one."""
    found = cluster.conf_dir.parent.glob("nodes/*/nm-local/usercache/*/appcache/**/master.keytab")
    fetched = [each for each in found if not each.is_symlink()]
    assert fetched
    for each in fetched:
        each.unlink()


def process_of(words: str, cluster: Cluster) -> int:
    """The process of an application's container whose command has these words."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environ = (each / "environ").read_bytes()
            if words in command and f"/clusters/{cluster.name}/".encode() in environ:
                found.append(int(each.name))
    return min(found, default=0)


def until(what: str, condition: Callable[[], Any], limit_s: float = 120.0) -> Any:
    end_s = time.monotonic() + limit_s
    while not (answer := condition()):
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(0.5)
    return answer


def test_an_application_by_keytab_outlives_its_first_tokens(
    secure: Cluster, login: Login, command: Run, environment: dict[str, Any], tmp_path: Path
) -> None:
    by_keytab = ("--principal", "accel", "--keytab", str(secure.keytab("accel")))
    with application(secure, tmp_path, sections=environment) as app:
        nobody, accel = login(""), login("accel")
        try:
            started = command(
                nobody, "start", "--config", str(app.settings), *by_keytab, "--wait", "--wait-s", "400"
            )
            assert started.returncode == 0, started.stderr
            until_s = time.monotonic() + LIFE_S
            server = process_of("container_entry launch serve", secure)
            other, serving = (secure.plan.node(name).host for name in ("w2", "w1"))
            until("a binding", lambda: published(accel, other)[0] == serving)
            until("a share of the slots", lambda: published(accel, other)[1] != SLOTS)
            (folder,) = (tmp_path / "state" / "cluster-accel" / "applications").iterdir()
            staging_uri = json.loads((folder / "start.json").read_text())["staging_uri"]
            newest = partial(ran_bytes, [sys.executable, "-c", TOKENS, f"{staging_uri}/tokens"], accel)
            uri = f"{staging_uri.partition('/.yarn-accel')[0]}/weeks"
            with sniffed(secure) as packets:
                # A later attempt asks for new tokens at once.
                os.kill(process_of("container_entry master run", secure), signal.SIGKILL)
                until("a second attempt", lambda: "attempt 2" in command(accel, "status").stdout)
                n_calls = 0
                while time.monotonic() < until_s:
                    calls(app, accel, f"{uri}-{n_calls}")
                    n_calls += 1
                    time.sleep(PAUSE_S)
                # Those of the start have ended: the ResourceManager has new ones for the next attempt.
                forget_keytabs(secure)
                os.kill(process_of("container_entry master run", secure), signal.SIGKILL)
                until("a third attempt", lambda: "attempt 3" in command(accel, "status").stdout)
                calls(app, accel, f"{uri}-{n_calls}")
                (tmp_path / "newest").write_bytes(newest())
            tokens = read_token_file((tmp_path / "newest").read_bytes()).tokens.values()
            assert {owner_of(each).principal for each in tokens if each.kind == HDFS_DELEGATION_KIND} == {
                "accel@KRB.TEST"
            }
            assert b"POST /v1/heartbeat" in packets, "what is not encrypted was seen"
            assert not [each for each in tokens if each.password in packets]
            assert process_of("container_entry launch serve", secure) == server != 0
            reported = command(accel, "status").stdout
            assert "renews its tokens by keytab: the present ones are good until" in reported
            assert "are not renewed" not in reported
            (tmp_path / "newest").write_bytes(newest())
        finally:
            stopped = command(accel, "stop")
        assert stopped.returncode == 0, stopped.stderr
        until("all is as before", lambda: published(accel, other) == [None, SLOTS])
        last = {**nobody, "HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "newest")}
        done = ran([sys.executable, "-c", STORE, "read", uri], env=last)
        assert "HDFS knows this token no more" in done.stderr, "an application's end is that of its tokens"


def ran_bytes(argv: list[str], environ: dict[str, str]) -> bytes:
    return subprocess.run(argv, env=environ, capture_output=True, check=True, timeout=60).stdout
