"""Short names of principals as Hadoop finds them, and where a server takes the tokens of users."""

import contextlib
import os
import time

import pytest

from tests.fixtures.user_files import write_site
from tests.fixtures.waiting import until
from tests.unit.pipeline.token_namenode import issued
from yarn_accel.adapters.hadoop_rpc.tokens import Token, TokenFile, write_token_file
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reference
from yarn_accel.client.client import Client
from yarn_accel.client.job_user import JobUser
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND
from yarn_accel.errors import (
    AuthenticationError,
    ConfigError,
    RejectedError,
    StartupError,
    StorageError,
    UnavailableError,
)
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.job_users import AuthToLocal, storage_of_users
from yarn_accel.pipeline.server import PipelineServer
from yarn_accel.pipeline.user_storage import UserStorage, site_services
from yarn_accel.users import shares_uid
from yarn_accel.wire.credential import issue

RULES = """
    RULE:[2:$1/$2@$0]([nd]n/.*@KRB.TEST)s/.*/hdfs/
    RULE:[2:$1;$2](^.*;admin$)s/;admin$/-adm/
    RULE:[1:$1@$0](.*@PARTNER\\.TEST)s/(.*)@.*/p-$1/
    RULE:[1:$1@$0](.*@LOWER.TEST)s/@.*///L
    RULE:[1:$1@$0](.*@LETTERS.TEST)s/[a@]/x/g
    DEFAULT
"""


@pytest.mark.parametrize(
    ("principal", "name"),
    [
        ("alice@KRB.TEST", "alice"),
        ("alice@krb.test", ""),
        ("alice@OTHER", ""),
        ("alice@KRB.TEST@OTHER", ""),
        ("alice", ""),
        ("", ""),
        ("nn/m.krb.test@KRB.TEST", "hdfs"),
        ("nn/m.krb.test@OTHER", ""),
        ("alice/admin@KRB.TEST", "alice-adm"),
        ("alice/w1@KRB.TEST", "alice"),
        ("alice@PARTNER.TEST", "p-alice"),
        ("alice@PARTNERxTEST", ""),
        ("ALICE@LOWER.TEST", "alice"),
        ("aa@LETTERS.TEST", "xxxLETTERS.TEST"),
        ("a b@KRB.TEST", ""),
    ],
)
def test_short_names(principal, name):
    assert AuthToLocal(RULES, "KRB.TEST").short_name(principal) == name


def test_a_rule_that_leaves_a_realm_names_nobody():
    assert AuthToLocal("RULE:[1:$1@$0] DEFAULT", "KRB.TEST").short_name("alice@KRB.TEST") == ""


def test_without_rules_the_realm_of_the_namenode_counts():
    rules = AuthToLocal.of({"dfs.namenode.kerberos.principal": "nn/_HOST@KRB.TEST"})
    assert rules.short_name("alice@KRB.TEST") == "alice"
    assert rules.short_name("alice@OTHER") == ""
    assert AuthToLocal.of({}).short_name("alice@KRB.TEST") == ""


@pytest.mark.parametrize("rules", ["RULE", "RULE:[1:$1](", "RULE:[1:$1]([)", "RULE:[3:$1]", "RULE:[:$1]"])
def test_rules_that_cannot_be_read(rules):
    with pytest.raises(ConfigError, match="auth_to_local"):
        AuthToLocal(rules, "KRB.TEST")


def container(folder, owner):
    """What YARN says to a container whose folders a NodeManager of that user has made."""
    below = folder / "usercache" / "alice" / "appcache" / "application_1_2"
    below.mkdir(parents=True, exist_ok=True)
    if owner != os.geteuid():
        os.chown(folder / "usercache", owner, -1)
    return {"CONTAINER_ID": "container_1_2_01_000001", "LOCAL_DIRS": f"{below},/nonexistent"}


@pytest.mark.parametrize(
    ("setting", "is_secure", "is_shared", "is_on"),
    [
        ("per-user-containers", False, False, False),
        ("shared-uid", False, True, False),
        ("off", True, False, False),
        ("per-user-containers", True, False, True),
        ("per-user-containers", True, True, False),
        ("shared-uid", True, True, True),
    ],
)
def test_where_users_tokens_are_taken(tmp_path, monkeypatch, caplog, setting, is_secure, is_shared, is_on):
    conf = write_site(tmp_path / "conf") if is_secure else None
    config = PipelineConfig(
        master_secret_file=tmp_path / "secret", user_tokens=setting, hdfs_conf_dir=str(conf or "")
    )
    monkeypatch.setattr(UserStorage, "of", lambda config: "storage of users")
    environ = container(tmp_path, os.geteuid()) if is_shared else {}
    assert (storage_of_users(config, environ) is not None) is is_on
    assert ("user_tokens: shared-uid" in caplog.text) is (is_secure and is_shared and not is_on)


@pytest.mark.parametrize("setting", ["off", "per-user-containers", "shared-uid"])
def test_a_container_with_an_hdfs_token_must_see_the_settings_of_hadoop(tmp_path, monkeypatch, setting):
    """Else a server of a site with Kerberos would serve everybody as who started it."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    token_file = tmp_path / "container_tokens"
    token = Token(b"identifier", b"password", HDFS_DELEGATION_KIND, "10.0.0.1:8020")
    token_file.write_bytes(write_token_file(TokenFile({token.service: token})))
    config = PipelineConfig(master_secret_file=tmp_path / "secret", user_tokens=setting)
    environ = {"HADOOP_TOKEN_FILE_LOCATION": str(token_file)}
    with (
        contextlib.nullcontext()
        if setting == "off"
        else pytest.raises(StartupError, match="env-whitelist pass HADOOP_CONF_DIR on")
    ):
        assert storage_of_users(config, environ) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_container_of_another_user_than_its_nodemanager_is_the_users_own(tmp_path):
    assert not shares_uid(container(tmp_path, 4242))


@pytest.mark.parametrize("local_dirs", ["", "/nonexistent/usercache/alice/appcache/x", "/tmp"])
def test_a_container_that_cannot_tell_counts_as_shared(local_dirs):
    assert shares_uid({"CONTAINER_ID": "container_1_2_01_000001", "LOCAL_DIRS": local_dirs})


# A whole server, and a NameNode that knows tokens alone

MASTER = bytes(range(32))


@pytest.fixture
def connect(tmp_path, monkeypatch, namenode, users):
    """A function that connects a client of a tenant, which has this token."""
    monkeypatch.setattr("yarn_accel.pipeline.server.TOKEN_CHECK_S", 0.1)
    with serving(tmp_path, f"hdfs://localhost:{namenode.port}", users) as connect:
        yield connect


@contextlib.contextmanager
def serving(tmp_path, default_fs, users):
    """A server; the function connects a client of a tenant, which has these tokens."""
    conf = tmp_path / "conf"
    conf.mkdir()
    values = {"fs.defaultFS": default_fs, "dfs.namenode.kerberos.principal": "nn/_HOST@R"}
    rows = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in values.items()]
    (conf / "core-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
    path = str(tmp_path / "socket")
    settings = {"workers": 1, "standby_workers": 0, "calibrate": False, "unix_path": path}
    config = PipelineConfig(master_secret_file=tmp_path / "secret", hdfs_conf_dir=str(conf), **settings)
    server = PipelineServer(config, MASTER, users=users)
    server.start()
    clients = []

    def connect(tenant, *tokens):
        credential = issue(MASTER, tenant, int(time.time()) + 3600, "k1")
        job_user = JobUser(tokens, "", os.geteuid())
        clients.append(Client(Endpoint("w1", "", 0, path), credential, job_user=job_user))
        clients[-1].connect()
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.close()
        server.close()


def two_users(connect, namenode):
    """Their tokens, and a client of each."""
    names = ("alice", "bob")
    tokens = {name: issued(namenode, f"{name}@R", number=number) for number, name in enumerate(names)}
    return tokens, *(connect(name, tokens[name]) for name in names)


def test_a_job_reaches_each_hdfs_that_the_settings_name_and_no_other(start, tmp_path, monkeypatch):
    """What is no file system of the settings is not connected."""
    first, second, other = start(), start(), start()
    site, more = f"hdfs://localhost:{first.port}", f"hdfs://localhost:{second.port}"
    users = UserStorage(site_services({}, site, [more]))
    with serving(tmp_path, site, users) as connect:
        alice = connect(
            "alice", *(issued(each, number=number) for number, each in enumerate((first, second)))
        )
        bob = connect("bob", issued(second, "bob@R"))
        for uri in ("hdfs:///", f"{site}/", f"{more}/", f"hdfs://LOCALHOST:{second.port}/"):
            assert "there is no such file" in outcome(alice, f"{uri}user/alice/x")
            assert "permission denied" in outcome(alice, f"{uri}user/bob/x")
        assert "there is no such file" in outcome(bob, f"{more}/user/bob/x")
        assert f"no token for hdfs://localhost:{first.port}" in outcome(bob, "hdfs:///user/bob/x")
        for each in (f"hdfs://localhost:{other.port}/user/alice/x", "hdfs://u-bob/x", "file:///etc/hostname"):
            assert outcome(alice, each).startswith("forbidden-uri")
    assert not other.streams


def outcome(client, uri):
    try:
        return client.call(Call(uri, "echo", {}, (Reference(uri),)))
    except (RejectedError, StorageError) as error:
        return f"{error.code}: {error}"


def test_requests_run_by_the_token_of_their_session(connect, namenode):
    tokens, alice, bob = two_users(connect, namenode)
    assert (alice.principal, bob.principal) == ("alice@R", "bob@R")
    for client, own, other in ((alice, "alice", "bob"), (bob, "bob", "alice")):
        assert "there is no such file" in outcome(client, f"hdfs:///user/{own}/x")
        assert "permission denied" in outcome(client, f"hdfs:///user/{other}/x")
        assert outcome(client, "hdfs://u-bob/x").startswith("forbidden-uri")
    with pytest.raises(AuthenticationError, match="those of bob@R, who is bob here"):
        connect("alice", tokens["bob"])


def test_a_cancelled_token_ends_its_session_and_no_other(connect, namenode):
    tokens, alice, bob = two_users(connect, namenode)
    namenode.tokens[:] = [each for each in namenode.tokens if each.identifier != tokens["alice"].identifier]

    def is_over():
        try:
            return alice.ping() < 0
        except UnavailableError as error:
            return "cancelled" in error.message

    until(is_over, "the session of the cancelled token ends")
    with pytest.raises(AuthenticationError, match="does not accept the token of"):
        alice.connect()
    assert "there is no such file" in outcome(bob, "hdfs:///user/bob/x")
