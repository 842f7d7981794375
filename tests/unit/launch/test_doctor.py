"""`yarn-accel doctor` reads files, and asks a KDC, ResourceManagers and NameNodes."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fixtures import shifted_clock
from tests.fixtures.kdc import REALM
from tests.fixtures.programs import ran
from tests.unit.adapters.hadoop_rpc.fake_hadoop import FakeHadoop, Refusal
from tests.unit.hadoop.test_delegation import configured, secure
from yarn_accel.adapters.hadoop_rpc.methods import GetClusterNodesResponse, GetFileInfoResponse
from yarn_accel.core.site_checks import troubles_of
from yarn_accel.launch.doctor import doctor, gather

STANDBY = "org.apache.hadoop.ipc.StandbyException"


def answering(**options):
    calls = {"getClusterNodes": GetClusterNodesResponse(), "getFileInfo": GetFileInfoResponse()}
    handlers = {name: lambda _, answer=answer: answer for name, answer in calls.items()}
    return FakeHadoop(handlers, is_strict=False, **options)


def on_standby():
    def refuse(_):
        raise Refusal(STANDBY, "")

    return FakeHadoop({"getClusterNodes": refuse, "getFileInfo": refuse}, is_strict=False)


async def codes(environ, **options):
    return {each.code: each for each in troubles_of(await gather(environ, **options))}


async def test_services_are_asked_as_the_owner_of_the_ticket(ticket, keytabs, kdc, tmp_path):
    options = {"tokens": [], "protections": 4}
    async with (
        answering(**options, keytab=keytabs["rm"]) as rm,
        answering(**options, keytab=keytabs["nn"], service="nn") as nn,
    ):
        environ = {**secure(tmp_path, rm.address, nn.address), **kdc.environment, "KRB5CCNAME": ticket}
        facts = await gather(environ)
        by_keytab = await gather(environ, keytab=str(keytabs["alice"]), principal="bob")
    good = [each.asked for each in facts.answers if not each.code]
    assert good == ["KDC", "ticket", "ResourceManager", "NameNode", "HDFS"]
    assert rm.users == [f"alice@{REALM}", f"bob@{REALM}"]
    assert nn.users == [f"alice@{REALM}", f"alice@{REALM}", f"bob@{REALM}"], "HDFS by the native client"
    assert facts.cache.own().client == f"alice@{REALM}"
    assert facts.clocks == {f"KDC {facts.krb5.kdcs[REALM][0]}": 0.0}
    assert [each.asked for each in by_keytab.answers if not each.code][1] == "keytab"


async def test_a_principal_of_another_realm(ticket, keytabs, kdc, tmp_path):
    other = Refusal(
        "org.apache.hadoop.security.authorize.AuthorizationException",
        "No rules applied to alice@OTHER",
        is_fatal=True,
    )
    options = {"tokens": [], "refuses": other}
    async with answering(**options, keytab=keytabs["rm"]) as rm, answering(**options) as nn:
        environ = {**secure(tmp_path, rm.address, nn.address), **kdc.environment, "KRB5CCNAME": ticket}
        found = (await codes(environ))["kerberos-account"]
    assert found.place == f"ResourceManager {rm.address}, NameNode {nn.address}"
    assert "auth_to_local" in found.cure


async def test_a_server_that_the_realm_does_not_know(ticket, keytabs, kdc, tmp_path):
    async with answering(tokens=[], keytab=keytabs["rm"], host="unknown.test") as rm, answering() as nn:
        properties = {"yarn.resourcemanager.principal.pattern": "*"}
        environ = {**secure(tmp_path, rm.address, nn.address, **properties), **kdc.environment}
        found = await codes({**environ, "KRB5CCNAME": ticket})
    assert "the realm knows no rm@unknown.test" in found["kerberos-server-not-found"].text


def ha_environ(folder, rms, nns, **more):
    properties = {
        "fs.defaultFS": "hdfs://ns1",
        "dfs.nameservices": "ns1",
        "dfs.ha.namenodes.ns1": "nn0,nn1",
        "dfs.client.failover.proxy.provider.ns1": "of.Hadoop",
        "yarn.resourcemanager.ha.enabled": "true",
        "yarn.resourcemanager.ha.rm-ids": "rm0,rm1",
    }
    for number, (rm, nn) in enumerate(zip(rms, nns, strict=True)):
        properties[f"yarn.resourcemanager.hostname.rm{number}"] = "127.0.0.1"
        properties[f"yarn.resourcemanager.address.rm{number}"] = str(rm.address)
        properties[f"dfs.namenode.rpc-address.ns1.nn{number}"] = str(nn.address)
    return configured(folder, **properties, **more)


async def test_which_of_two_is_active_and_that_none_is(tmp_path):
    async with answering() as first, on_standby() as second, on_standby() as third:
        found = await codes(ha_environ(tmp_path, (second, first), (third, second)))
    assert list(found) == ["no-active-server"]
    assert found["no-active-server"].text.startswith("every NameNode is on standby")


@pytest.mark.parametrize("is_alive", [True, False])
async def test_a_resourcemanager_on_standby_listens_for_operators_alone(tmp_path, is_alive):
    async with answering() as first, on_standby() as second, on_standby() as admin:
        async with answering() as gone:
            pass
        environ = ha_environ(
            tmp_path,
            (gone, first),
            (second, first),
            **{"yarn.resourcemanager.admin.address.rm0": str((admin if is_alive else gone).address)},
        )
        found = await codes(environ)
    assert list(found) == ([] if is_alive else ["unavailable"])
    assert all(each.is_warning and str(gone.address) in each.place for each in found.values())


async def test_nobody_listens(tmp_path):
    async with answering() as rm, answering() as nn:
        environ = configured(
            tmp_path, **{"fs.defaultFS": f"hdfs://{nn.address}", "yarn.resourcemanager.address": rm.address}
        )
    found = await gather(environ)
    assert [(each.asked, each.code) for each in found.answers] == [
        ("ResourceManager", "unavailable"),
        ("NameNode", "unavailable"),
    ]


def test_the_command_prints_a_table_or_json_and_its_exit_code_tells(tmp_path, monkeypatch):
    environ = configured(
        tmp_path, **{"fs.defaultFS": "viewfs://all", "yarn.resourcemanager.ha.enabled": "true"}
    )
    for name, value in {**environ, "COLUMNS": "160"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)
    done = CliRunner().invoke(doctor, [])
    assert done.exit_code == 1
    assert "federated-default" in done.output
    assert "set yarn.resourcemanager.ha.rm-ids" in done.output
    answer = json.loads(CliRunner().invoke(doctor, ["--json"]).output)
    assert {each["code"] for each in answer["troubles"]} >= {
        "federated-default",
        "resourcemanager-ids-missing",
    }
    (tmp_path / "token").write_bytes(b"no tokens")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "token"))
    assert "token-file" in CliRunner().invoke(doctor, []).output


@pytest.mark.parametrize("name", ["", "/nonexistent"])
def test_without_settings_it_cannot_begin(monkeypatch, name):
    monkeypatch.setenv("HADOOP_CONF_DIR", name)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert CliRunner().invoke(doctor, []).exit_code != 0


# ---- a real KDC and the machine's own Kerberos library; no Hadoop behind them


def examined(kdc, folder, *words, **environ):
    """The troubles by their codes, as a process of its own finds them: the library keeps what it has read."""
    given = {**os.environ, **kdc.environment, **secure(folder, "127.0.0.1:1", "127.0.0.1:2")}
    command = [sys.executable, "-m", "yarn_accel", "doctor", "--json", *words]
    done = ran(command, env={**given, "KRB5CCNAME": f"FILE:{folder}/none", **environ})
    assert done.stderr == ""
    troubles = json.loads(done.stdout)["troubles"]
    assert done.returncode == 1
    assert all(each["place"] and each["cure"] for each in troubles)
    return {each["code"]: each for each in troubles}


def test_no_ticket_an_expired_one_and_one_that_cannot_be_renewed(kdc, keytabs, tmp_path):
    assert "run kinit" in examined(kdc, tmp_path)["kerberos-no-ticket"]["cure"]
    lasting = kdc.kinit("alice", keytabs["alice"], cache="lasting")
    assert examined(kdc, tmp_path, KRB5CCNAME=lasting)["ticket-not-renewable"]["is_warning"]
    short = kdc.kinit("alice", keytabs["alice"], "-l", "1s", cache="short")
    until_s = time.monotonic() + 60
    while ran(["klist", "-s", "-c", short], env={**os.environ, **kdc.environment}).returncode == 0:
        assert time.monotonic() < until_s
        time.sleep(0.1)
    found = examined(kdc, tmp_path, KRB5CCNAME=short)
    assert f"that of alice@{REALM} ended" in found["kerberos-ticket-expired"]["text"]


def test_a_cache_that_is_none_and_one_of_a_type_that_is_not_there(kdc, keytabs, tmp_path):
    as_cache = examined(kdc, tmp_path, KRB5CCNAME=f"FILE:{keytabs['alice']}")["kerberos-cache-damaged"]
    assert "the file is a keytab" in as_cache["text"]
    found = examined(kdc, tmp_path, KRB5CCNAME="KCM:")
    assert "a cache of type KCM" in found["kerberos-cache-unreadable"]["text"]
    assert "kinit -c FILE:" in found["kerberos-cache-unreadable"]["cure"]
    assert "kinit -c FILE:" in found["cache-not-for-java"]["cure"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user")
def test_a_cache_of_another_user(kdc, keytabs, open_path):
    (open_path / "cache").write_bytes(Path(kdc.kinit("alice", keytabs["alice"])[5:]).read_bytes())
    (open_path / "cache").chmod(0o600)
    (open_path / "krb5.conf").write_text((kdc.folder / "krb5.conf").read_text())
    secure(open_path, "127.0.0.1:1", "127.0.0.1:2")
    (open_path / "core-site.xml").chmod(0o644)
    script = (
        "import _strptime, encodings.idna, importlib.metadata, os, yarn_accel.launch.doctor\n"
        "from yarn_accel.cli import main\n"
        "os.setuid(65534)\n"
        "main()"
    )
    named = {"KRB5CCNAME": f"FILE:{open_path}/cache", "KRB5_CONFIG": f"{open_path}/krb5.conf"}
    environ = {**os.environ, **named, "HADOOP_CONF_DIR": str(open_path)}
    done = ran([sys.executable, "-c", script, "doctor", "--json"], env=environ)
    assert done.stdout, done.stderr
    found = {each["code"]: each for each in json.loads(done.stdout)["troubles"]}["kerberos-cache-unreadable"]
    assert "a cache of type FILE of uid 0, and this is uid 65534" in found["text"]


def test_keytabs_of_somebody_else_and_of_yesterday(kdc, keytabs, tmp_path):
    alice = str(keytabs["alice"])
    other = examined(kdc, tmp_path, "--principal", "carol", "--keytab", alice)["kerberos-keytab"]
    assert f"it has keys of alice@{REALM}, bob@{REALM}" in other["text"]
    assert "No such file" in examined(kdc, tmp_path, "--keytab", "/nonexistent")["kerberos-keytab"]["text"]
    stale = kdc.add("dora", keytab="dora.keytab")
    kdc.change_key("dora")
    found = examined(kdc, tmp_path, KRB5_CLIENT_KTNAME=f"FILE:{stale}")["kerberos-stale-key"]
    assert f"its keys: dora@{REALM} number 2" in found["text"]
    assert "export the keytab again" in found["cure"]
    assert "unavailable" in examined(kdc, tmp_path, "--keytab", alice), (
        "the login is good, and no Hadoop is there"
    )


@pytest.mark.parametrize("shift_s", [-910, 910])
async def test_a_wrong_clock_is_reported_with_the_difference(ticket, kdc, keytabs, tmp_path, shift_s):
    library = shifted_clock.build(tmp_path)
    if library is None:
        pytest.skip(shifted_clock.NO_COMPILER)
    shift = shifted_clock.environment(library, shift_s)
    difference = "15 min behind ours" if shift_s > 0 else "15 min ahead of ours"
    by_keytab = examined(kdc, tmp_path, "--keytab", str(keytabs["alice"]), **shift)
    assert difference in by_keytab["clock-difference"]["text"]
    assert not by_keytab["clock-difference"]["is_warning"]
    async with answering(tokens=[], keytab=keytabs["rm"]) as rm:
        environ = {**os.environ, **kdc.environment, **secure(tmp_path, rm.address, "127.0.0.1:1")}
        environ |= {"KRB5CCNAME": ticket, **shift}
        command = [sys.executable, "-m", "yarn_accel"]
        found = await asyncio.to_thread(ran, [*command, "doctor", "--json"], env=environ)
        status = await asyncio.to_thread(ran, [*command, "status"], env=environ)
    troubles = {each["code"]: each for each in json.loads(found.stdout)["troubles"]}
    assert difference in troubles["kerberos-clock"]["text"]
    assert "clock-difference" not in troubles
    assert (status.returncode, status.stderr.count("\n")) == (1, 1)
    assert "the clocks of this machine and of the realm differ" in status.stderr


def test_a_kdc_that_is_stopped(kdc, keytabs, tmp_path):
    ticket = kdc.kinit("alice", keytabs["alice"])
    os.kill(kdc.pid, signal.SIGSTOP)
    try:
        found = examined(kdc, tmp_path, KRB5CCNAME=ticket)["kerberos-no-kdc"]
    finally:
        os.kill(kdc.pid, signal.SIGCONT)
    assert f"realm {REALM}, KDC 127.0.0.1:" in found["text"]
    assert "nothing within 5 s" in found["text"]
    assert "krb5kdc" in found["cure"]


def test_a_keytab_of_weak_keys(kdc, tmp_path):
    entry = bytes.fromhex("0001 0001 52 0001 61 00000001 00000000 02 0017 0002 ffff")
    (tmp_path / "weak").write_bytes(b"\5\2" + len(entry).to_bytes(4, "big") + entry)
    found = examined(kdc, tmp_path, "--keytab", str(tmp_path / "weak"))
    assert "arcfour-hmac" in found["weak-keys"]["text"]
