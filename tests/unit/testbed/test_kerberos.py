"""A realm of a cluster's own: whose keys lie where, and the logins that the launcher writes itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import ssl
import stat

import pytest

from tests.fixtures.kdc import NO_KERBEROS
from tests.unit.testbed.conftest import plan_of
from yarn_accel.adapters.hadoop_rpc.kerberos import Security
from yarn_accel.adapters.hadoop_rpc.methods import APPLICATION_CLIENT
from yarn_accel.adapters.hadoop_rpc.sasl import SaslAuth
from yarn_accel.errors import AuthenticationError, ConfigError, StartupError
from yarn_accel.hadoop.site import read_properties, read_site
from yarn_accel.testbed import kerberos, preflight
from yarn_accel.testbed.daemons import daemon_argv, node_environ, web_address
from yarn_accel.testbed.plan import DaemonRole, NetworkMode, UpOptions
from yarn_accel.testbed.settings import write_settings
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths


def test_each_node_has_the_keys_of_its_own_daemons_and_each_user_has_his(paths: ClusterPaths) -> None:
    found = kerberos.principals(plan_of(paths, NetworkMode.NETNS, nodes=2, secure=True))
    assert found["master"] == ["nn/master", "rm/master", "jhs/master", "HTTP/master"]
    assert found["w2"] == ["dn/w2", "nm/w2", "HTTP/w2"]
    assert {name: found[name] for name in kerberos.PEOPLE} == {name: [name] for name in kerberos.PEOPLE}


@pytest.mark.skipif(shutil.which("kdb5_util") is None, reason=NO_KERBEROS)
def test_a_realm_is_made_once_and_its_keys_are_the_owners_alone(paths: ClusterPaths) -> None:
    plan = plan_of(paths, NetworkMode.NETNS, nodes=1, racks=1, accel_nodes=1, secure=True)
    assert kerberos.ensure_realm(plan, paths)
    assert not kerberos.ensure_realm(plan, paths)
    keytabs = sorted(path.name for path in kerberos.folder(paths).glob("*.keytab"))
    assert keytabs == [f"{name}.keytab" for name in ("accel", "alice", "bob", "master", "w1")]
    for path in kerberos.folder(paths).iterdir():
        if path.suffix in {".keytab", ".key", ".p12"} or path.name == "http-secret":
            assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert [path.name for path in paths.root.iterdir()] == [kerberos.folder(paths).name]
    context = ssl.create_default_context(cafile=str(kerberos.ca_file(paths)))
    (certificate,) = context.get_ca_certs()
    assert {value for _, value in certificate["subjectAltName"]} == {
        *("master", "w1"),
        *(node.address for node in plan.nodes),
    }


def test_daemons_get_a_realm_and_clients_get_principals_without_placeholders(
    paths: ClusterPaths, software: Software
) -> None:
    plan = plan_of(paths, NetworkMode.NETNS, secure=True, protection="integrity", token_life_s=70)
    write_settings(plan, paths, software.install, None)
    nodes, client = read_site(paths.conf_dir), read_site(paths.client_conf_dir)
    assert nodes["yarn.resourcemanager.principal"] == "rm/_HOST@KRB.TEST"
    assert client["yarn.resourcemanager.principal"] == "rm/master@KRB.TEST"
    assert nodes["hadoop.rpc.protection"] == nodes["dfs.data.transfer.protection"] == "integrity"
    assert nodes["dfs.namenode.keytab.file"].endswith("/kerberos/${accel.node}.keytab")
    assert nodes["dfs.namenode.delegation.token.max-lifetime"] == "70000"
    assert nodes["hadoop.proxyuser.yarn.groups"] == kerberos.PEOPLE_GROUP
    assert nodes["yarn.log-aggregation-enable"] == "false"
    assert read_properties(paths.conf_dir / "ssl-server.xml")["ssl.server.keystore.type"] == "pkcs12"
    write_settings(plan_of(paths, NetworkMode.NETNS, secure=True), paths, software.install, None)
    nodes = read_site(paths.conf_dir)
    assert nodes["hadoop.rpc.protection"] == "authentication,integrity,privacy"
    assert not [key for key in nodes if key.startswith("hadoop.proxyuser.yarn") or "proxy-user" in key]


def test_two_masters_have_keys_of_their_own_and_clients_know_both(
    paths: ClusterPaths, software: Software
) -> None:
    plan = plan_of(paths, NetworkMode.NETNS, secure=True, ha=True)
    assert kerberos.principals(plan)["master2"] == ["nn/master2", "rm/master2", "HTTP/master2"]
    write_settings(plan, paths, software.install, None)
    nodes, client = read_site(paths.conf_dir), read_site(paths.client_conf_dir)
    second = plan.node("master2").address
    assert nodes["dfs.namenode.https-address.testns.nn2"] == "master2:9871"
    assert nodes["yarn.resourcemanager.principal"] == "rm/_HOST@KRB.TEST"
    assert not [key for key in nodes if key.endswith(".pattern")]
    assert client["yarn.resourcemanager.hostname.rm2"] == second
    security = Security.from_properties(client)
    offer = SaslAuth("KERBEROS", "GSSAPI", "rm", "master2")
    expected = security.server_of(APPLICATION_CLIENT, offer, second)
    expected.check("rm/master2@KRB.TEST", second)
    with pytest.raises(AuthenticationError, match="expected is rm/"):
        expected.check("alice@KRB.TEST", second)


def test_without_kerberos_nothing_mentions_it(paths: ClusterPaths, software: Software) -> None:
    write_settings(plan_of(paths, NetworkMode.NETNS), paths, software.install, None)
    assert not [key for key in read_site(paths.conf_dir) if "kerberos" in key or "keytab" in key]
    assert not (paths.conf_dir / "ssl-server.xml").exists()


def test_every_process_finds_the_realm_and_none_the_callers_tickets(
    paths: ClusterPaths, software: Software
) -> None:
    plan = plan_of(paths, NetworkMode.NETNS, secure=True)
    caller = {"KRB5CCNAME": "FILE:/mine", "KRB5_CONFIG": "/mine.conf"}
    node = plan.node("w1")
    environ = node_environ(plan, paths, node, None, caller)
    assert environ["KRB5_CONFIG"] == str(kerberos.krb5_conf(paths))
    assert "KRB5CCNAME" not in environ
    server = node_environ(plan, paths, node, None, caller, DaemonRole.PIPELINE)
    assert server["KRB5_CLIENT_KTNAME"] == f"FILE:{kerberos.keytab(paths, 'accel')}"
    argv = daemon_argv(plan, paths, node, DaemonRole.DATANODE, software)
    assert f"-Djava.security.krb5.conf={kerberos.krb5_conf(paths)}" in argv
    assert daemon_argv(plan, paths, plan.master, DaemonRole.KDC, software)[:2] == ["krb5kdc", "-n"]


def test_the_nodes_know_the_users_of_the_machine_and_those_of_the_realm(paths: ClusterPaths) -> None:
    files = kerberos.etc_files(plan_of(paths, NetworkMode.NETNS, secure=True))
    users = [line.partition(":")[0] for line in files["passwd"].splitlines()]
    assert {"root", "hdfs", "yarn", "mapred", "alice", "bob", "accel"} <= set(users)
    assert len(users) == len(set(users))
    assert "people:x:20002:alice,bob,accel" in files["group"]
    assert "kdc = 10.231.9.1:88" in files["krb5.conf"]


def test_the_launchers_login_is_the_cookie_that_daemons_would_sign() -> None:
    login = kerberos.WebLogin(b"secret", ssl.create_default_context())
    cookie = login.headers("hdfs", DaemonRole.NAMENODE, now_s=1000.0)["Cookie"]
    text, _, signature = cookie.removeprefix('hadoop.auth="').removesuffix('"').partition("&s=")
    assert text == "u=hdfs&p=hdfs@KRB.TEST&t=kerberos&e=1600000"
    assert base64.b64decode(signature) == hmac.new(b"secret", text.encode(), hashlib.sha256).digest()
    assert "&t=kerberos-dt&" in login.headers("hdfs", DaemonRole.RESOURCEMANAGER)["Cookie"]


def test_pages_of_hdfs_are_at_tls(paths: ClusterPaths) -> None:
    plan = plan_of(paths, NetworkMode.NETNS, secure=True)
    assert web_address(plan, plan.master, DaemonRole.NAMENODE) == "https://10.231.9.1:9871"
    assert web_address(plan, plan.master, DaemonRole.KDC) == "tcp://10.231.9.1:88"


def test_what_kerberos_lacks_is_named_at_once_with_its_packages() -> None:
    with pytest.raises(StartupError) as refusal:
        preflight.check_kerberos(find=lambda name: "/usr/bin/openssl" if name == "openssl" else None)
    assert "krb5kdc, kdb5_util, kadmin.local, kinit are not on this machine" in str(refusal.value)
    assert refusal.value.cure == "apt-get install -y krb5-kdc krb5-admin-server krb5-user"


@pytest.mark.parametrize(("mode", "euid"), [("docker", 0), ("loopback", 0), ("auto", 1000)])
def test_principals_need_nodes_with_names(mode: str, euid: int) -> None:
    with pytest.raises(ConfigError, match="--secure needs --mode netns"):
        preflight.choose_mode(UpOptions(mode=mode, secure=True), euid)
