"""Storage as the user of a session: the native client against a NameNode that knows tokens alone."""

from __future__ import annotations

import os
import re
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fixtures.secret_search import SecretSearch
from tests.fixtures.user_storage_server import running_server
from tests.fixtures.waiting import until
from tests.unit.adapters.hadoop_rpc.fake_hadoop import INVALID_TOKEN, Refusal
from tests.unit.pipeline.token_namenode import FAR_S, identifier, issued
from yarn_accel.adapters.hadoop_rpc import Address, Token, TokenFile, write_token_file
from yarn_accel.adapters.hadoop_rpc.kerberos import AUTHENTICATION_KEY
from yarn_accel.adapters.hadoop_rpc.sasl import SaslAuth
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND
from yarn_accel.errors import AuthenticationError, ConfigError, StartupError, StorageError
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.user_storage import UserStorage, drop_kerberos, site_services
from yarn_accel.wire import HdfsToken


def tokens_in_memory():
    return Path(os.environ["HADOOP_TOKEN_FILE_LOCATION"]).read_bytes()


def test_each_user_gets_his_own_and_no_other(namenode, users):
    alice, bob = (users.open([issued(namenode, f"{name}@R")]) for name in ("alice", "bob"))
    assert (alice.principal, repr(alice)) == ("alice@R", "UserSession('alice@R')")
    for own, other in ((alice, "bob"), (bob, "alice")):
        assert not own.store.exists(f"hdfs:///user/{own.principal[:-2]}/x")
        with pytest.raises(StorageError, match="permission denied"):
            own.store.exists(f"hdfs:///user/{other}/x")


def test_a_reconnect_keeps_identities(namenode, users):
    sessions = [users.open([issued(namenode, f"{name}@R")]) for name in ("alice", "bob")]
    namenode.run(namenode.vanish())
    namenode.users.clear()
    namenode.run(namenode.listen())
    for session in sessions:
        assert not session.store.exists(f"hdfs:///user/{session.principal[:-2]}/x")
    assert namenode.users == [identifier(session.principal) for session in sessions]


def test_two_namenodes_of_a_service_take_turns(start):
    first, second = namenodes = start(), start()
    site = {"dfs.nameservices": "ns1", "dfs.ha.namenodes.ns1": "a,b"}
    site |= {
        f"dfs.namenode.rpc-address.ns1.{n}": f"127.0.0.1:{x.port}"
        for n, x in zip("ab", namenodes, strict=True)
    }
    users = UserStorage(site_services(site, "hdfs://ns1"))
    first.is_standby = True
    alice, bob = ([issued(each, f"{name}@R", service="ha-hdfs:ns1") for each in namenodes] for name in "ab")
    sessions = [users.open(tokens[:1]) for tokens in (alice, bob)]
    for is_first in (False, True, False):
        first.is_standby, second.is_standby = not is_first, is_first
        active = first if is_first else second
        n_before = len(active.seen)
        for session in sessions:
            assert not session.store.exists(f"hdfs://ns1/user/{session.principal[:-2]}/x")
            with pytest.raises(StorageError, match="permission denied"):
                session.store.exists("hdfs:///user/carol/x")
        assert len(active.seen) == n_before + 4
    assert {*first.users, *second.users} == {identifier("a@R"), identifier("b@R")}
    assert users.find_ended() == []
    users.close_all()


def test_a_token_for_one_service_of_a_site_opens_that_one_alone(start):
    first, second = start(), start()
    site = {"dfs.nameservices": "ns1,ns2", "dfs.namenode.rpc-address.ns2": f"127.0.0.1:{second.port}"}
    users = UserStorage(site_services(site, f"hdfs://localhost:{first.port}"))
    session = users.open([issued(second), issued(start(), number=8)])
    assert not session.store.exists("hdfs://ns2/user/alice/x")
    for uri in ("hdfs:///user/alice/x", f"hdfs://localhost:{first.port}/user/alice/x"):
        with pytest.raises(StorageError, match=f"the job has no token for hdfs://localhost:{first.port}"):
            session.store.exists(uri)
    assert not first.streams
    users.close_all()


@pytest.fixture
def two(start):
    """Two NameNodes of a site, of which settings name the second one, and the storage of users."""
    first, second = start(), start()
    roots = [f"hdfs://localhost:{each.port}" for each in (first, second)]
    users = UserStorage(site_services({}, roots[0], roots))
    yield first, second, users
    users.close_all()


def tokens_of(namenodes, owner="alice@R"):
    return [issued(each, owner, number=number) for number, each in enumerate(namenodes)]


def is_there(session, namenode, user="alice"):
    return session.store.exists(f"hdfs://localhost:{namenode.port}/user/{user}/x")


def test_a_job_with_two_tokens_reaches_two_services_each_by_its_own(two):
    first, second, users = two
    alice, bob = (users.open(tokens_of((first, second), f"{name}@R")) for name in ("alice", "bob"))
    assert len(set(re.findall(rb"ha-hdfs:(u-[0-9a-f]{32})", tokens_in_memory()))) == 4
    assert users.hdfs == tuple(f"hdfs://localhost:{each.port}" for each in (first, second))
    for each in (first, second):
        assert not is_there(alice, each)
        assert not is_there(bob, each, "bob")
        with pytest.raises(StorageError, match="permission denied"):
            is_there(alice, each, "bob")
        until(lambda each=each: each.n_connections == 2)
    users.close(alice)
    for each in (first, second):
        until(lambda each=each: each.n_connections == 1)
    assert not is_there(bob, second, "bob")


def test_tokens_of_two_services_must_be_of_one_owner(two):
    first, second, users = two
    with pytest.raises(AuthenticationError, match="of one owner: alice@R, bob@R"):
        users.open([issued(first), issued(second, "bob@R")])
    assert not first.users + second.users


@pytest.mark.parametrize("fault", ["forged", "over", "cancelled"])
def test_a_token_that_counts_not_closes_its_own_service_alone(two, fault):
    first, second, users = two
    tokens = tokens_of((first, second))
    if fault == "forged":
        tokens[1] = HdfsToken(tokens[1].identifier, b"guessed", tokens[1].service)
    elif fault == "over":
        tokens[1] = issued(second, number=1, ends_s=1_700_000_000)
    session = users.open(tokens)
    if fault == "cancelled":
        assert not is_there(session, second)
        until(lambda: second.n_connections == 1)
        second.tokens.clear()
        assert users.find_ended() == []
        until(lambda: not second.n_connections)
    n_before = len(second.streams)
    with pytest.raises(StorageError, match=r"ends at 2023|does not accept the token of alice@R") as caught:
        is_there(session, second)
    assert not caught.value.transient
    assert not is_there(session, first)
    assert users.find_ended() == []
    assert len(second.streams) == n_before, "nobody asks again"
    assert len(set(re.findall(rb"ha-hdfs:(u-[0-9a-f]{32})", tokens_in_memory()))) == 1
    first.tokens.clear()
    assert users.find_ended() == [session]
    assert "does not accept the token of alice@R" in str(session.end)


def test_a_service_that_is_away_keeps_nobody_from_the_other(two):
    first, second, users = two
    second.run(second.vanish())
    alice, bob = (users.open(tokens_of((first, second), f"{name}@R")) for name in ("alice", "bob"))
    with pytest.raises(StorageError, match="does not answer") as caught:
        is_there(alice, second)
    assert caught.value.transient
    assert not is_there(alice, first)
    first.tokens.pop(0)
    assert users.find_ended() == [alice]
    second.run(second.listen())
    assert users.find_ended() == [alice]
    assert not is_there(bob, second, "bob")
    second.run(second.vanish())
    assert users.find_ended() == [alice]
    assert not is_there(bob, first, "bob")


def test_the_sessions_of_a_job_share_a_login_and_the_last_one_ends_it(namenode, users):
    token = issued(namenode)
    sessions = [users.open([token]) for _ in range(3)]
    assert len(namenode.users) == 2  # a proof of ours, then the native client
    until(lambda: namenode.n_connections == 1)
    assert b"hunter2" in tokens_in_memory()
    for session in sessions:
        assert namenode.n_connections == 1
        users.close(session)
        users.close(session)
    until(lambda: not namenode.n_connections)
    assert b"hunter2" not in tokens_in_memory()
    for session in sessions:
        with pytest.raises(StorageError, match="the session has ended") as caught:
            session.store.exists("hdfs:///user/alice/x")
        assert caught.value.transient
    assert users.open([token]).store.exists("hdfs:///user/alice/x") is False


def test_logins_at_the_same_time(namenode, users):
    """Ten mappers of each of six jobs begin at once: a login each job, and no token is lost of another's."""
    tokens = [issued(namenode, f"u{chr(97 + n)}@R", b"%d" % n) for n in range(6) for _ in range(10)]
    with ThreadPoolExecutor(20) as pool:
        sessions = list(pool.map(lambda token: users.open([token]), tokens))
    assert len(namenode.users) == 12
    assert len({id(session.store) for session in sessions}) == 6
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(users.close, sessions))
    until(lambda: not namenode.n_connections)


def test_two_jobs_of_a_user_end_each_on_its_own(namenode, users):
    first, second = (users.open([issued(namenode, number=number)]) for number in (1, 2))
    assert first.store is not second.store
    users.close(first)
    until(lambda: namenode.n_connections == 1)
    assert not second.store.exists("hdfs:///user/alice/x")


@pytest.mark.parametrize(
    ("owners", "changes", "said"),
    [
        (["alice@R", "bob@R"], {}, "of one owner: alice@R, bob@R"),
        (["alice@R", "alice@OTHER"], {}, "of one owner: alice@OTHER, alice@R"),
        (["alice"], {}, "'alice' of the HDFS token has no realm"),
        (["@R"], {}, "'@R' of the HDFS token has no realm"),
        (["alice@R\nbob"], {}, "control characters"),
        (["alice@R"], {"ends_s": 1_700_000_000}, "ends at 2023-11-14 22:13:20 UTC"),
        (["alice@R"], {"password": b""}, "password has 0 bytes"),
        (["alice@R"], {"password": bytes(300)}, "password has 300 bytes"),
        (["alice@R"], {"service": "10.9.9.9:8020"}, "are for 10.9.9.9:8020, and this server .* localhost:"),
        (["alice@R"], {"service": "ha-hdfs:u-bob"}, "are for ha-hdfs:u-bob, and this server"),
        ([], {}, "of one owner: none is there"),
    ],
)
def test_tokens_that_cannot_be_used_reach_no_namenode(namenode, users, owners, changes, said):
    tokens = [issued(namenode, owner, number=number, **changes) for number, owner in enumerate(owners)]
    with pytest.raises(AuthenticationError, match=said):
        users.open(tokens)
    assert not namenode.users
    assert b"hunter2" not in tokens_in_memory()


@pytest.mark.parametrize("damaged", [b"", b"\0", b"\1abc", identifier()[:-1], identifier() + b"x", b"\0" * 9])
def test_what_is_no_token_reaches_no_namenode(namenode, users, damaged):
    with pytest.raises(AuthenticationError, match="HDFS token"):
        users.open([HdfsToken(damaged, b"hunter2", f"localhost:{namenode.port}")])
    assert not namenode.streams


def test_a_token_that_the_namenode_does_not_know_opens_nothing(namenode, users):
    token = issued(namenode)
    for forged in (
        HdfsToken(token.identifier, b"guessed", token.service),
        HdfsToken(identifier("bob@R"), token.password, token.service),
    ):
        with pytest.raises(
            AuthenticationError, match=r"does not accept the token of (alice|bob)@R"
        ) as caught:
            users.open([forged])
        assert "guessed" not in str(caught.value)
        assert forged.password not in tokens_in_memory()
    assert users.open([token]).principal == "alice@R"


@pytest.mark.parametrize(
    "posing",
    [
        {"auths": (SaslAuth("SIMPLE", "", "", ""),)},
        {"lies": True},
    ],
)
def test_a_server_that_poses_as_the_namenode_makes_nobody_a_user(namenode, users, posing):
    """The native client takes the first one, which asks for no proof, and so would any token."""
    token = issued(namenode)
    vars(namenode).update(posing)
    with pytest.raises(AuthenticationError, match="does not accept the token of alice@R"):
        users.open([token])
    assert b"hunter2" not in tokens_in_memory()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Token for real user: , can't be found in cache", "owned the token has ended"),
        ("Token has expired, current time: 1 expected renewal time: 0", "the token's longest life is over"),
    ],
)
def test_a_token_that_counts_no_more_is_found_by_one_login_of_each_job(namenode, users, message, said):
    token = issued(namenode)
    ended, kept = [users.open([token]) for _ in range(2)], users.open([issued(namenode, "bob@R")])
    assert users.find_ended() == []
    namenode.tokens.pop(0)
    namenode.refuses = Refusal(INVALID_TOKEN, message, is_fatal=True)
    namenode.users.clear()
    assert not kept.store.exists("hdfs:///user/bob/x")
    n_before = len(namenode.streams)
    found = users.find_ended()
    assert len(namenode.streams) == n_before + 2
    assert set(found) == {*ended, kept}
    assert all(said in str(session.end) for session in found)
    with pytest.raises(AuthenticationError, match=said):
        users.open([token])
    for session in found:
        users.close(session)
    until(lambda: not namenode.n_connections)
    assert b"hunter2" not in tokens_in_memory()


def test_a_namenode_that_is_away_ends_no_session_and_begins_none(namenode, users):
    session = users.open([issued(namenode)])
    namenode.run(namenode.vanish())
    assert users.find_ended() == []
    with pytest.raises(StorageError, match=r"[Cc]onnection") as caught:
        users.open([issued(namenode, "bob@R", b"other")])
    assert caught.value.transient
    assert b"other" not in tokens_in_memory()
    namenode.run(namenode.listen())
    assert not session.store.exists("hdfs:///user/alice/x")


def test_the_life_of_a_token_ends_while_its_namenode_is_away(namenode, users, monkeypatch):
    users.open([issued(namenode, ends_s=FAR_S + 3600)])
    bob = users.open([issued(namenode, "bob@R", b"of bob")])
    namenode.run(namenode.vanish())
    assert users.find_ended() == []
    monkeypatch.setattr("yarn_accel.pipeline.user_storage.time.time", lambda: FAR_S - 30.0)
    assert users.find_ended() == [bob]
    assert b"of bob" not in tokens_in_memory()


def test_a_uri_leads_to_the_sites_services_alone(namenode, users):
    session = users.open([issued(namenode)])
    port, n_before = namenode.port, len(namenode.streams)
    random_name = re.search(rb"ha-hdfs:(u-[0-9a-f]{32})", tokens_in_memory())[1].decode()
    for uri in (
        f"hdfs://{random_name}/user/alice/x",
        "hdfs://u-bob/x",
        "hdfs://ha-hdfs:8020/x",
        "hdfs://localhost/x",
        f"hdfs://127.0.0.2:{port}/x",
        f"hdfs://localhost:{port + 1}/x",
        "file:///etc/passwd",
    ):
        with pytest.raises(StorageError) as caught:
            session.store.exists(uri)
        assert caught.value.code == "forbidden-uri"
    for uri in ("hdfs:///x", "hdfs:/x", f"hdfs://localhost:{port}/x", f"hdfs://LocalHost:{port}/x"):
        assert not session.store.exists(uri)
    assert len(namenode.streams) == n_before


def test_the_servers_own_token_stands_under_no_known_name(namenode, users, tmp_path, monkeypatch):
    file = tmp_path / "container_tokens"
    service = f"127.0.0.1:{namenode.port}"

    def given(number, password):
        token = issued(namenode, "accel@R", password, number=number)
        held = Token(token.identifier, password, HDFS_DELEGATION_KIND, service)
        other = Token(b"x", b"y", "YARN_AM_RM_TOKEN", "")
        file.with_suffix(".new").write_bytes(write_token_file(TokenFile({service: held, "": other})))
        file.with_suffix(".new").rename(file)

    given(1, b"first")
    server = UserStorage(site_services({}, f"hdfs://localhost:{namenode.port}"), "", str(file))
    assert not server.own_store.exists("hdfs:///user/accel/x")
    assert not server.own_store.exists(f"file://{tmp_path}/x")
    assert b"first" in tokens_in_memory()
    assert service.encode() not in tokens_in_memory()
    alice = server.open([issued(namenode)])
    with pytest.raises(StorageError, match="permission denied"):
        alice.store.exists("hdfs:///user/accel/x")
    given(2, b"second")
    server.find_ended()
    assert b"second" in tokens_in_memory()
    assert b"first" not in tokens_in_memory()
    server.close_all()


def test_tokens_lie_in_memory_that_ends_with_the_process(users):
    path = Path(os.environ["HADOOP_TOKEN_FILE_LOCATION"])
    assert str(path.readlink()).startswith("/memfd:")
    assert not os.get_inheritable(int(path.name))
    users.close_all()
    assert "HADOOP_TOKEN_FILE_LOCATION" not in os.environ


def test_a_killed_process_leaves_nothing_of_a_token(namenode, tmp_path):
    """It is in the memory of the process while that lives, and nowhere else: not in its variables, either."""
    passwords = (b"a password of alice", b"a password of bob")
    properties = {AUTHENTICATION_KEY: "kerberos", "fs.defaultFS": f"hdfs://localhost:{namenode.port}"}
    rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
    (tmp_path / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
    search, began_s = SecretSearch(passwords), time.time()
    with running_server({**os.environ, "HADOOP_CONF_DIR": str(tmp_path)}, tmp_path) as server:
        for number, (name, password) in enumerate(zip(("alice", "bob"), passwords, strict=True)):
            assert server.open(issued(namenode, f"{name}@R", password)) == [number, f"{name}@R"]
            assert server("exists", number, f"hdfs:///user/{name}/x") is False
        links = {str(each.readlink()): each for each in Path(f"/proc/{server.pid}/fd").iterdir()}
        assert search.in_bytes(links["/memfd:tokens (deleted)"].read_bytes())
        assert search.in_processes([server.pid]) == []
        server.kill()
    assert search.in_files(tmp_path, Path("/dev/shm"), Path("/run"), since_s=began_s) == []


@pytest.fixture
def core_limit():
    before = resource.getrlimit(resource.RLIMIT_CORE)
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def test_the_kerberos_identity_of_the_process_is_given_up(ticket, core_limit, monkeypatch):
    """Variables of another process do not help: the library still finds the ticket, and that is said."""
    with pytest.raises(StartupError, match=r"identity alice@TEST\.REALM"):
        drop_kerberos({})
    monkeypatch.setenv("HADOOP_PROXY_USER", "bob")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "FILE:/any")
    drop_kerberos(os.environ)
    assert "HADOOP_PROXY_USER" not in os.environ
    assert os.environ["KRB5CCNAME"] == os.environ["KRB5_CLIENT_KTNAME"] == "FILE:/nonexistent"


def test_a_site_without_kerberos_has_no_such_storage(tmp_path):
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    config = PipelineConfig(master_secret_file=tmp_path / "s", hdfs_conf_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"hadoop\.security\.authentication .* is not kerberos"):
        UserStorage.of(config, {})


HA = {
    "dfs.nameservices": "ns1, ns2,elsewhere",
    "dfs.ha.namenodes.ns1": "a,b",
    "dfs.namenode.rpc-address.ns1.a": "127.0.0.1:8020",
    "dfs.namenode.rpc-address.ns1.b": "127.0.0.2:8020",
    "dfs.client.failover.proxy.provider.ns1": "Provider",
    "dfs.namenode.rpc-address.ns2": "127.0.0.3:9000",
}


def test_the_services_of_a_site_with_several():
    first, second = site_services(HA, "hdfs://ns1/")
    assert (first.authority, first.name, first.provider) == ("ns1", "ha-hdfs:ns1", "Provider")
    assert first.token_names() == {"ha-hdfs:ns1", "127.0.0.1:8020", "127.0.0.2:8020"}
    assert (second.authority, second.name, *second.addresses) == ("ns2", "", Address("127.0.0.3", 9000))
    assert [each.authority for each in site_services(HA, "hdfs://ns2")] == ["ns2", "ns1"]
    (alone,) = site_services({}, "hdfs://NN:8020/")
    assert (alone.authority, alone.token_names()) == ("nn", {"nn:8020"})
    with pytest.raises(ConfigError):
        site_services({}, "file:///")
