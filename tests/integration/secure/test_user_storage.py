"""One process reads and writes HDFS as each user by the token of that user's job, and as nobody without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.hdfs_tokens import Issuer
from tests.fixtures.secret_search import SecretSearch, all_processes, misplaced_secrets
from tests.fixtures.user_storage_server import Server, running_server
from yarn_accel.adapters.hadoop_rpc import Token, TokenFile, write_token_file
from yarn_accel.testbed import Cluster

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Login = Callable[..., dict[str, str]]
WAIT_S = 120.0
ALICES, BOBS = "hdfs:///user/alice/mine", "hdfs:///user/bob/mine"


@pytest.fixture
def server(login: Login, tmp_path: Path) -> Iterator[Server]:
    """Its own token is of `accel`, whose ticket is in its environment, too: it must not be used."""
    environ = login("accel")
    own = Issuer(environ).token()
    file = tmp_path / "container_tokens"
    file.write_bytes(write_token_file(TokenFile({own.service: own})))
    environ["HADOOP_TOKEN_FILE_LOCATION"] = str(file)
    with running_server(environ, tmp_path) as found:
        yield found


def test_two_users_through_one_process(secure: Cluster, server: Server, login: Login, tmp_path: Path) -> None:
    """Each gets his own file and not the other's; identities outlive the NameNode; a kill leaves nothing."""
    began_s = time.time()
    issuers = {name: Issuer(login(name)) for name in ("alice", "bob")}
    tokens = {name: issuer.token() for name, issuer in issuers.items()}
    port = issuers["alice"].port
    alice, bob = (server.open(tokens[name])[0] for name in ("alice", "bob"))
    assert server("write", alice, ALICES) == ALICES
    assert server("write", bob, BOBS) == BOBS

    def each_has_his_own() -> None:
        assert server("read", alice, ALICES) == ALICES
        assert server("read", bob, BOBS) == BOBS
        assert "permission denied to alice" in server("read", alice, BOBS)["error"]
        assert "permission denied to bob" in server("read", bob, ALICES)["error"]
        assert "permission denied to accel" in server("read", None, ALICES)["error"]

    each_has_his_own()
    server.until(3, "connections", port)

    secure.kill("master", "namenode")
    secure.start("master", "namenode")
    until_s = time.monotonic() + WAIT_S
    while isinstance(server("read", alice, ALICES), dict):
        assert time.monotonic() < until_s
    each_has_his_own()
    assert server("ended") == []

    issuers["alice"].cancel(tokens["alice"])
    assert server("read", alice, ALICES) == ALICES  # an open connection outlives its token
    ((ended, why),) = server("ended")
    assert ended == alice
    assert "does not accept the token of alice@KRB.TEST" in why
    assert "the job or application that owned the token has ended" in why
    assert "that owned the token has ended" in server.open(tokens["alice"])["error"]
    server("close", alice)
    server.until(2, "connections", port)
    assert server("read", alice, ALICES)["transient"]
    assert server("read", bob, BOBS) == BOBS

    search = SecretSearch([each.password for each in tokens.values()])
    memory = Path(f"/proc/{server.pid}/fd")
    assert any("memfd:tokens" in str(link.readlink()) for link in memory.iterdir())
    assert search.in_processes(all_processes()) == []
    server.kill()
    places = [Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"), tmp_path, secure.conf_dir.parent]
    assert search.in_files(*places, since_s=began_s) == []


def test_no_way_leads_around_the_users_token(server: Server, login: Login) -> None:
    """Neither a URI nor the lack of a token makes the process use its own identity or another's."""
    issuer = Issuer(login("alice"))
    token = issuer.token()
    alice, principal = server.open(token)
    assert principal == "alice@KRB.TEST"
    for uri in (
        "hdfs://u-bob/user/bob/mine",
        "hdfs://localhost:8020/user/alice/mine",
        f"hdfs://other-host:{issuer.port}/user/alice/mine",
        "file:///etc/hostname",
    ):
        assert server("read", alice, uri)["code"] == "forbidden-uri"
    for changed, said in (
        (
            Token(token.identifier, b"guessed!", "", token.service),
            "does not accept the token of alice@KRB.TEST",
        ),
        (Token(token.identifier, token.password, "", "ha-hdfs:u-bob"), "are for ha-hdfs:u-bob, and this"),
        (Token(b"\0\0", token.password, "", token.service), "this is no HDFS token"),
    ):
        refused = server.open(changed)
        assert said in refused["error"]
        assert refused["code"] == "authentication"
    issuer.cancel(token)


def test_no_secret_of_the_cluster_is_in_a_log_or_a_process(secure: Cluster) -> None:
    assert misplaced_secrets(secure.conf_dir.parent) == []
