"""`yarn-accel doctor` on a cluster with Kerberos: each trouble is made, found, and explained."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.kdc import REALM as OTHER_REALM
from tests.fixtures.kdc import running_kdc
from tests.fixtures.programs import ran
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.kerberos import REALM

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
Login = Callable[..., dict[str, str]]
Examine = Callable[..., dict[str, dict[str, str]]]
#: Asks for an HDFS token, writes it into a file, and cancels it.
CANCELLED = """
import asyncio, sys
from pathlib import Path
from yarn_accel.adapters.hadoop_rpc import TokenFile, write_token_file
from yarn_accel.hadoop.delegation import cancel, delegate
from yarn_accel.hadoop.rm_client import RmClient
async def act():
    client = RmClient.load()
    async with client.manager() as manager:
        given = await client.tokens(manager)
        Path(sys.argv[1]).write_bytes(write_token_file(TokenFile(given.tokens)))
        assert not await client.cancel(manager, given)
asyncio.run(act())
"""


def test_a_user_with_a_ticket_has_no_trouble(login: Login, command: Run, examine: Examine) -> None:
    alice = login("alice", "-r", "2d")
    assert examine(alice) == {}
    done = command(alice, "doctor")
    assert done.returncode == 0, done.stderr
    assert f"alice@{REALM}, good for " in done.stdout
    assert done.stdout.endswith("no trouble found\n")
    assert [done.stdout.count(f"{who} ") for who in ("KDC", "ResourceManager", "NameNode", "HDFS")] == [1] * 4


def test_a_ticket_that_cannot_be_renewed_is_a_warning(login: Login, command: Run, examine: Examine) -> None:
    alice = login("alice")
    found = examine(alice)
    assert list(found) == ["ticket-not-renewable"]
    assert "kinit -r" in found["ticket-not-renewable"]["cure"]
    assert "warning: ticket-not-renewable" in command({**alice, "COLUMNS": "200"}, "doctor").stdout


def test_another_principal_is_expected_and_no_realm_for_java(
    secure: Cluster, login: Login, examine: Examine, tmp_path: Path
) -> None:
    conf = conf_without(secure.conf_dir, tmp_path / "conf", "client_jvm_options")
    site = conf / "yarn-site.xml"
    site.write_text(site.read_text().replace("<value>rm/", "<value>yarn/"))
    found = examine({**login("alice"), "HADOOP_CONF_DIR": str(conf)})
    assert f"expected is yarn/{secure.plan.master.host}" in found["kerberos-other-server"]["text"]
    assert "yarn.resourcemanager.principal.pattern" in found["kerberos-other-server"]["cure"]
    assert "-Djava.security.krb5.conf=" in found["java-realm-unknown"]["cure"]


def test_acting_for_others_must_be_allowed(login: Login, examine: Examine) -> None:
    found = examine({**login("alice"), "HADOOP_PROXY_USER": "bob"})["impersonation"]
    assert f"alice@{REALM} may not act for bob" in found["text"]
    assert "hadoop.proxyuser.alice.groups" in found["cure"]
    assert "impersonation" not in examine({**login("accel"), "HADOOP_PROXY_USER": "bob"})


def test_a_cancelled_token_differs_from_an_expired_one(
    login: Login, examine: Examine, tmp_path: Path
) -> None:
    alice, file = login("alice"), tmp_path / "token"
    ran([sys.executable, "-c", CANCELLED, str(file)], env=alice, check=True)
    found = examine({**alice, "HADOOP_TOKEN_FILE_LOCATION": str(file)})
    assert "can't be found in cache" in found["token-cancelled"]["text"]
    assert "has ended" in found["token-cancelled"]["cure"]
    assert "token-expired" not in found


def test_a_user_of_another_realm_that_this_one_trusts(
    secure: Cluster, login: Login, examine: Examine, tmp_path: Path
) -> None:
    """The user's own realm is another KDC's; both share the key by which the cluster's realm trusts it."""
    bob, place = login("bob"), secure.conf_dir.parent / "kerberos"
    trust = f"addprinc -pw the-same-in-both krbtgt/{REALM}@{OTHER_REALM}"
    with running_kdc(tmp_path) as other:
        here = {**bob, "KRB5_KDC_PROFILE": str(place / "kdc.conf")}
        for realm, environ in ((OTHER_REALM, {**bob, **other.environment}), (REALM, here)):
            ran(["kadmin.local", "-r", realm, "-q", trust], env=environ, check=True)
        cache = other.kinit("alice", other.add("alice", keytab="alice.keytab"), "-r", "2d")
        ours, theirs = (Path(each).read_text() for each in (bob["KRB5_CONFIG"], other.folder / "krb5.conf"))
        realms = theirs.replace("[realms]\n", ours[ours.index("[realms]") : ours.index("[domain_realm]")])
        realms = realms.replace("[domain_realm]\n", ours[ours.index("[domain_realm]") :])
        (tmp_path / "both.conf").write_text(realms)
        alice = {**bob, "KRB5_CONFIG": str(tmp_path / "both.conf"), "KRB5CCNAME": cache}
        found = examine(alice)
    # Both servers close the connection at the end of the login, and say why in their logs alone.
    assert "kerberos-account" in found, found
    assert f"of alice@{OTHER_REALM}" in found["kerberos-account"]["text"]
    assert "auth_to_local" in found["kerberos-account"]["cure"]
    for service in ("ResourceManager", "NameNode"):
        assert service in found["kerberos-account"]["place"]


def test_a_login_by_keytab_without_the_privileges_that_a_later_master_needs(
    secure: Cluster, login: Login, examine: Examine
) -> None:
    words = ["--principal", "accel", "--keytab", str(secure.keytab("accel"))]
    found = examine(login(""), *words)["keytab-without-privileges"]
    assert "yarn.resourcemanager.proxy-user-privileges.enabled" in found["text"]
    assert "hadoop.proxyuser.yarn.hosts" in found["cure"]


def test_a_dead_kdc_is_named(secure: Cluster, login: Login, command: Run, examine: Examine) -> None:
    alice = login("alice")
    secure.kill("master", "kdc")
    try:
        found = examine(alice)
    finally:
        command(os.environ, "cluster", "up", secure.name)
    dead = found["kerberos-no-kdc"]
    assert f"realm {REALM}, KDC {secure.plan.master.address}:88" in dead["text"]
    assert "krb5kdc" in dead["cure"]
