"""Requests run as the user of their job: each with own files, keys and rights, and with nobody else's."""

import os
import socket
import threading
import time

import numpy as np
import pytest

from tests.fixtures.user_files import SECRET, StorageOfTests, write_site
from tests.integration.pipeline.attackers import RawClient
from tests.integration.pipeline.conftest import MASTER
from yarn_accel import wire
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reference, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.job_user import JobUser
from yarn_accel.core.ended_applications import format_ended
from yarn_accel.errors import (
    AuthenticationError,
    LocalProtocolError,
    RejectedError,
    StorageError,
    UnavailableError,
)
from yarn_accel.wire.credential import issue

DATA = np.arange(6.0)
APPLICATION = "application_1764000000000_0007"


@pytest.fixture
def users(tmp_path):
    return StorageOfTests(tmp_path / "hdfs")


@pytest.fixture
def server(start_server, tmp_path, users, monkeypatch):
    """One server for all users, with a Unix socket."""
    monkeypatch.setattr("yarn_accel.pipeline.server.TOKEN_CHECK_S", 0.1)
    conf = write_site(tmp_path / "conf")
    return start_server(
        users=users,
        tenants={},
        workers=1,
        unix_path=str(tmp_path / "socket"),
        hdfs_conf_dir=str(conf),
        state_file=str(tmp_path / "state.json"),
    )


@pytest.fixture
def connect(server, users, issue_to):
    """A function that makes a client of a tenant with a token of a principal."""

    def make(tenant, principal="", *, token=None, application="", endpoint=None):
        token = token or users.give(principal or f"{tenant}@KRB.TEST")
        job_user = JobUser((token,), application, os.geteuid(), "")
        return Client(endpoint or server.endpoint, issue_to(tenant), carriers=("unix",), job_user=job_user)

    return make


def put(tmp_path, user, name="a.npy", value=DATA):
    folder = tmp_path / "hdfs" / "user" / user
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / name, value)


def echo(uri, key="k", output=""):
    return Call(key, "echo", {}, (Reference(uri),), output)


def ask_until(client, until_s):
    n = 0
    while time.monotonic() < until_s:
        n += 1
        client.call(Call(f"k{n}", "echo", {}, (Tensor.of(DATA),)))


def first(reply):
    return next(iter(reply.tensors.values())).array()


def test_two_users_with_one_file_each_through_one_server(connect, tmp_path, users):
    put(tmp_path, "alice")
    put(tmp_path, "bob", value=-DATA)
    with connect("alice") as alice, connect("bob") as bob:
        assert (alice.principal, bob.principal) == ("alice@KRB.TEST", "bob@KRB.TEST")
        assert first(alice.call(echo("hdfs:///user/alice/a.npy"))).tolist() == DATA.tolist()
        assert first(bob.call(echo("hdfs://ns1/user/bob/a.npy"))).tolist() == (-DATA).tolist()
        for client, other in ((alice, "bob"), (bob, "alice")):
            with pytest.raises(StorageError, match="permission denied"):
                client.call(echo(f"hdfs:///user/{other}/a.npy", "other"))
            own = "alice" if other == "bob" else "bob"
            with pytest.raises(StorageError, match="permission denied"):
                client.call(echo(f"hdfs:///user/{own}/a.npy", "stolen", f"hdfs:///user/{other}/stolen.npz"))
        alice.call(echo("hdfs:///user/alice/a.npy", "out", "hdfs:///user/alice/out.npz"))
    assert [path.name for path in (tmp_path / "hdfs/user/alice").iterdir()] != ["a.npy"]
    assert [path.name for path in (tmp_path / "hdfs/user/bob").iterdir()] == ["a.npy"]


def test_the_same_key_of_two_realms_is_two_requests(connect, server):
    """Both count as alice by ``auth_to_local``, and both have a credential of the tenant alice."""
    with connect("alice") as own, connect("alice", "alice@PARTNER.TEST") as other, connect("alice") as again:
        assert first(own.call(Call("k", "echo", {}, (Tensor.of(DATA),)))).tolist() == DATA.tolist()
        assert first(other.call(Call("k", "echo", {}, (Tensor.of(-DATA),)))).tolist() == (-DATA).tolist()
        assert server.stats()["duplicates"] == 0
        assert first(again.call(Call("k", "echo", {}, (Tensor.of(DATA),)))).tolist() == DATA.tolist()
        assert server.stats()["duplicates"] == 1
        assert set(server.stats()["tenants"]) == {"alice@KRB.TEST", "alice@PARTNER.TEST"}


@pytest.mark.parametrize("owner", ["bob@KRB.TEST", "alice@OTHER", "bob/alice@KRB.TEST"])
def test_the_owner_of_the_tokens_must_be_the_tenant(connect, users, owner):
    with pytest.raises(AuthenticationError, match=f"those of {owner}, who is .* for alice") as caught:
        connect("alice", owner).connect()
    assert "auth_to_local" in caught.value.cure
    assert not users.sessions


@pytest.mark.parametrize(
    "uri",
    [
        "hdfs://u-bob/user/alice/a.npy",
        "hdfs://10.9.9.9:8020/user/alice/a.npy",
        "hdfs://10.9.9.1:9000/user/alice/a.npy",
        "hdfs://ha-hdfs:u-bob/user/alice/a.npy",
        "ha-hdfs://u-bob/user/alice/a.npy",
        "ha-hdfs:ns1/user/alice/a.npy",
        "hdfs://ns2/user/alice/a.npy",
        "hdfs://ns1.evil/user/alice/a.npy",
        "hdfs://bob@ns1/user/alice/a.npy",
        "file:///etc/passwd",
        "file:///user/alice/a.npy",
    ],
)
def test_no_uri_names_another_file_system(connect, tmp_path, uri):
    put(tmp_path, "alice")
    with connect("alice") as client:
        for call in (echo(uri), echo("hdfs://10.9.9.1:8020/user/alice/a.npy", output=uri)):
            with pytest.raises(RejectedError) as caught:
                client.call(call)
            assert caught.value.code == "forbidden-uri"


def test_an_entry_of_tenants_narrows(start_server, tmp_path, users, connect):
    conf = write_site(tmp_path / "conf2")
    rights = {"alice": {"read_prefixes": ["/user/alice/in"], "write_prefixes": ["hdfs://*"]}}
    narrow = start_server(
        users=users, tenants=rights, workers=1, unix_path=str(tmp_path / "two"), hdfs_conf_dir=str(conf)
    )
    put(tmp_path, "alice")
    put(tmp_path, "bob")
    put(tmp_path, "alice/in")
    with connect("alice", endpoint=narrow.endpoint) as alice, connect("bob", endpoint=narrow.endpoint) as bob:
        alice.call(echo("hdfs:///user/alice/in/a.npy"))
        bob.call(echo("hdfs:///user/bob/a.npy"))
        for call in (
            echo("hdfs:///user/alice/a.npy", "other"),
            echo("hdfs:///user/alice/in/a.npy", "outside", "hdfs://u-bob/user/alice/out.npz"),
        ):
            with pytest.raises(RejectedError) as caught:
                alice.call(call)
            assert caught.value.code == "forbidden-uri"


def test_who_has_no_tokens_computes_and_uses_no_file(server, credential, tmp_path):
    """A client of an earlier release, and one that does not know its server."""
    put(tmp_path, "alice")
    with Client(server.endpoint, credential) as client:
        assert client.principal == ""
        assert first(client.call(Call("k", "echo", {}, (Tensor.of(DATA),)))).tolist() == DATA.tolist()
        for call in (
            echo("hdfs:///user/alice/a.npy", "in"),
            Call("o", "echo", {}, (Tensor.of(DATA),), "hdfs:///user/alice/out.npz"),
        ):
            with pytest.raises(RejectedError) as caught:
                client.call(call)
            assert caught.value.code == "no-user-tokens"


def test_a_server_that_takes_no_tokens_is_used_as_before(start_server, tmp_path, connect):
    old = start_server(workers=1, unix_path=str(tmp_path / "old"))
    np.save(tmp_path / "a.npy", DATA)
    with connect("alice", endpoint=old.endpoint) as client:
        assert client.principal == ""
        assert first(client.call(echo(f"file://{tmp_path}/a.npy"))).tolist() == DATA.tolist()


@pytest.mark.parametrize("what", ["job", "cancel"])
def test_tokens_are_of_no_use_after_their_job(connect, server, users, wait_until, tmp_path, what):
    token = users.give("alice@KRB.TEST")
    other = connect("alice", application=APPLICATION.replace("7", "8"))
    with connect("alice", token=token, application=APPLICATION) as client, other:
        client.ping()
        if what == "job":
            assert APPLICATION in server.stats()["applications"]
            (tmp_path / "state.json.ended").write_text(format_ended([APPLICATION]))
        else:
            users.cancel(token)
        wait_until(lambda: len(users.sessions) == 1, "its storage is closed")
        with pytest.raises(UnavailableError, match=r"ended|cancelled"):
            client.ping()
        with pytest.raises(AuthenticationError):
            connect("alice", token=token, application=APPLICATION).connect()
        other.ping()
    wait_until(lambda: not users.sessions, "nobody's storage is open without a session")


def test_a_namenode_that_is_away_is_no_fault_of_the_token(connect, users):
    users.is_away = True
    with pytest.raises(UnavailableError, match="does not answer"):
        connect("alice").connect()


def test_who_leaves_while_the_namenode_thinks_leaves_nothing(server, users, credential, wait_until):
    users.may_answer.clear()
    raw = RawClient(server.endpoint, credential, unix=True, capabilities=(wire.USER_TOKENS,))
    raw.send(wire.UserTokens(1, (users.give("alice@KRB.TEST"),)))
    wait_until(lambda: users.n_opened == 1, "the tokens are being proved")
    raw.close()
    wait_until(lambda: not server.stats()["open_connections"], "the server knows")
    users.may_answer.set()
    wait_until(lambda: not users.sessions, "its storage is closed")


TOKENS = wire.UserTokens(1, (wire.HdfsToken(b"0 alice@KRB.TEST", SECRET),))


@pytest.mark.parametrize(
    ("first_message", "second"),
    [
        (wire.Request(1, "k", "echo", {}, (), "hdfs:///user/alice/x.npz"), None),
        (wire.StatsRequest(1), None),
        (wire.Cancel(1), None),
        (TOKENS, TOKENS),
    ],
    ids=["a request first", "a question first", "a cancel first", "tokens twice"],
)
def test_the_tokens_come_first_and_once(server, users, credential, first_message, second):
    users.give("alice@KRB.TEST")
    with RawClient(server.endpoint, credential, unix=True, capabilities=(wire.USER_TOKENS,)) as raw:
        answer = raw.answer(first_message)
        if second is not None:
            assert answer == wire.UserAccepted(1, "alice@KRB.TEST")
            answer = raw.answer(second)
        assert isinstance(answer, wire.Goodbye)
        assert answer.code == "protocol-error"
    assert users.n_opened == (second is not None)


def test_who_never_hands_its_tokens_over_is_not_waited_for(start_server, tmp_path, users, credential):
    conf = write_site(tmp_path / "conf5")
    path = str(tmp_path / "five")
    server = start_server(
        users=users, tenants={}, workers=1, unix_path=path, hdfs_conf_dir=str(conf), handshake_timeout_s=0.2
    )
    with RawClient(server.endpoint, credential, unix=True, capabilities=(wire.USER_TOKENS,)) as raw:
        assert raw.event().code == "protocol-error"


def test_over_plain_tcp_no_server_asks_for_tokens(server, users, credential):
    endpoint = Endpoint("w1", "127.0.0.1", server.port)
    with RawClient(endpoint, credential, capabilities=(wire.USER_TOKENS,)) as raw:
        assert wire.USER_TOKENS not in raw.connection.capabilities
        assert isinstance(raw.answer(wire.Ping(1)), wire.Pong)
        with pytest.raises(LocalProtocolError):
            raw.send(TOKENS)
    assert not users.n_opened


def test_a_recorded_handshake_opens_nothing_a_second_time(server, users, connect, tmp_path):
    """Somebody between client and server has every byte of the client, its tokens among them."""
    recorded = []
    path = str(tmp_path / "between")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def pass_on(source, target, note):
        while data := source.recv(65536):
            note(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def between():
        client, _ = listener.accept()
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(server.endpoint.unix_path)
        back = threading.Thread(target=pass_on, args=(upstream, client, len))
        back.start()
        pass_on(client, upstream, recorded.append)
        back.join()
        upstream.close()
        client.close()

    thread = threading.Thread(target=between)
    thread.start()
    endpoint = Endpoint("w1", "", 0, path)
    with connect("alice", endpoint=endpoint) as client:
        client.ping()
    thread.join(120)
    listener.close()
    assert users.n_opened == 1
    with socket.socket(socket.AF_UNIX) as replayed:
        replayed.connect(server.endpoint.unix_path)
        replayed.settimeout(120)
        replayed.sendall(b"".join(recorded))
        answer = b""
        while data := replayed.recv(65536):
            answer += data
    assert b"wrong-proof" in answer
    assert users.n_opened == 1


def test_nothing_of_a_token_is_logged_or_shown(server, users, connect, caplog, tmp_path):
    caplog.set_level("DEBUG")
    put(tmp_path, "alice")
    with connect("alice") as client:
        client.call(echo("hdfs:///user/alice/a.npy"))
        shown = repr(server.stats()) + repr(client.stats())
    for owner in ("bob@KRB.TEST", "alice@OTHER"):
        with pytest.raises(AuthenticationError) as caught:
            connect("alice", owner).connect()
        shown += str(caught.value)
    assert SECRET.decode() not in shown + caplog.text
    assert "refused" in caplog.text


def test_the_storage_of_users_ends_with_the_server(server, users, connect):
    with connect("alice") as client:
        client.ping()
        server.close()
    assert users.is_over
    assert not users.sessions


def test_over_tls_the_tokens_go_to_the_certificate_that_the_job_trusts(
    start_server, tmp_path, users, issue_to, certificate
):
    conf = write_site(tmp_path / "conf3")
    cert, key = (str(certificate / name) for name in ("cert.pem", "key.pem"))
    server = start_server(
        users=users, tenants={}, workers=1, tls_cert_file=cert, tls_key_file=key, hdfs_conf_dir=str(conf)
    )
    put(tmp_path, "alice")
    endpoint = Endpoint("w1", "127.0.0.1", server.port, tls=True, ca_file=cert)
    tokens = (users.give("alice@KRB.TEST"),)
    with Client(endpoint, issue_to("alice"), job_user=JobUser(tokens, "", None, cert)) as client:
        assert client.principal == "alice@KRB.TEST"
        assert first(client.call(echo("hdfs:///user/alice/a.npy"))).tolist() == DATA.tolist()
    with Client(endpoint, issue_to("alice"), job_user=JobUser(tokens, "", os.geteuid(), "")) as client:
        assert client.principal == "", "the address and its authority came from the node, not from the job"
    assert users.n_opened == 1


def test_a_revoked_credential_ends_a_users_session(start_server, tmp_path, users, connect, wait_until):
    conf, revoked = write_site(tmp_path / "conf4"), tmp_path / "revoked"
    revoked.write_text("")
    server = start_server(
        users=users,
        tenants={},
        workers=1,
        unix_path=str(tmp_path / "three"),
        hdfs_conf_dir=str(conf),
        revoked_file=str(revoked),
    )
    with connect("alice", endpoint=server.endpoint) as client:
        client.call(Call("k", "echo", {}, (Tensor.of(DATA),)))
        revoked.write_text("alice\n")
        until_s = time.monotonic() + 120
        with pytest.raises(UnavailableError, match="revoked"):
            ask_until(client, until_s)
    wait_until(lambda: not users.sessions, "its storage is closed")


def test_a_credential_of_another_secret_gets_nowhere(server, users):
    job_user = JobUser((users.give("alice@KRB.TEST"),), "", os.geteuid(), "")
    stranger = issue(b"x" * len(MASTER), "alice", 2**40, "k1")
    with pytest.raises(AuthenticationError, match="does not know the secret"):
        Client(server.endpoint, stranger, job_user=job_user).connect()
    assert not users.n_opened


def test_who_floods_the_server_with_tokens_delays_nobody_else(server, users, connect, issue_to, wait_until):
    """Ten connections of one tenant wait for a NameNode that thinks; another tenant's tokens are proved."""
    users.slow = users.give("mallory@KRB.TEST").identifier
    users.may_answer.clear()
    tokens = wire.UserTokens(1, (wire.HdfsToken(users.slow, SECRET),))
    flood = [
        RawClient(server.endpoint, issue_to("mallory"), unix=True, capabilities=(wire.USER_TOKENS,))
        for _ in range(10)
    ]
    try:
        for raw in flood:
            raw.send(tokens)
        wait_until(lambda: users.n_opened == 1, "the first of them is being proved")
        with connect("alice") as alice:
            alice.ping()
        flood.pop().close()
        users.may_answer.set()
        for raw in flood:
            assert raw.event() == wire.UserAccepted(1, "mallory@KRB.TEST")
    finally:
        users.may_answer.set()
        for raw in flood:
            raw.close()
    wait_until(lambda: not users.sessions, "nobody's storage is open")
