"""A cluster with Kerberos as `start` sees it: whose ticket, which tokens, and until when they live."""

import asyncio
import re

import pytest

from tests.fixtures.kdc import REALM, secure_properties
from tests.unit.adapters.hadoop_rpc.fake_hadoop import FakeHadoop, Refusal
from yarn_accel.adapters.hadoop_rpc import ApplicationId, KerberosError, Token
from yarn_accel.adapters.hadoop_rpc.methods import (
    CancelDelegationTokenResponse,
    GetApplicationsResponse,
    GetDelegationTokenResponse,
)
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState
from yarn_accel.client.writable import encode_number
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.hadoop.delegation import EXCLUDED_PROPERTY, ApplicationTokens, delegate, ending, renewing
from yarn_accel.hadoop.rm_client import RmClient, mapper_environment

ENDS_S = 1_800_000_000
TEXTS = b"".join(encode_number(len(each)) + each for each in (b"alice", b"rm", b""))
NUMBERS = b"".join(encode_number(each) for each in (1, ENDS_S * 1000, 7, 2))
TOKENS = {
    "nn": Token(b"\0" + TEXTS + NUMBERS, b"p", "HDFS_DELEGATION_TOKEN", ""),
    "rm": Token(b"identifier", b"p", "RM_DELEGATION_TOKEN", ""),
}


def service(name, keytabs, asked, **handlers):
    def give(request):
        asked.append((name, request.renewer))
        return GetDelegationTokenResponse(TOKENS[name])

    return FakeHadoop(
        {"getDelegationToken": give, **handlers},
        tokens=[],
        keytab=keytabs[name],
        service=name,
        protections=4,
    )


def configured(folder, **properties):
    """The environment of a site with these properties."""
    lines = [
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()
    ]
    (folder / "core-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    return {"HADOOP_CONF_DIR": str(folder), "USER": "somebody"}


def secure(folder, rm, nn, **changes):
    return configured(folder, **{**secure_properties(rm, nn), **changes})


async def test_an_application_gets_a_token_of_each_service(ticket, keytabs, tmp_path):
    asked = []
    async with service("rm", keytabs, asked) as rm, service("nn", keytabs, asked) as nn:
        client = RmClient.load(secure(tmp_path, rm.address, nn.address))
        assert client.user == "alice"
        async with client.manager() as manager:
            given = await client.tokens(manager)
        assert rm.users == nn.users == [f"alice@{REALM}"]
        assert all(each.layer is not None for each in (*rm.streams, *nn.streams))
        assert sorted(asked) == [("nn", f"rm/m.test@{REALM}"), ("rm", f"rm/m.test@{REALM}")]
        assert {alias: (each.kind, each.service) for alias, each in given.tokens.items()} == {
            str(nn.address): ("HDFS_DELEGATION_TOKEN", str(nn.address)),
            str(rm.address): ("RM_DELEGATION_TOKEN", str(rm.address)),
        }
        assert given.ends_s == ENDS_S
        named = RmClient.load(
            secure(
                tmp_path,
                f"localhost:{rm.port}",
                nn.address,
                **{"hadoop.security.token.service.use_ip": "false"},
            )
        )
        async with named.manager() as manager:
            assert f"localhost:{rm.port}" in (await named.tokens(manager)).tokens


async def test_each_further_hdfs_gives_a_token_that_goes_back_to_it(ticket, keytabs, tmp_path):
    asked, cancelled = [], []

    def cancelling(name):
        def act(_):
            cancelled.append(name)
            return CancelDelegationTokenResponse()

        return act

    calls = [{"cancelDelegationToken": cancelling(name)} for name in ("rm", "nn", "other")]
    async with (
        service("rm", keytabs, asked, **calls[0]) as rm,
        service("nn", keytabs, asked, **calls[1]) as nn,
        service("nn", keytabs, asked, **calls[2]) as other,
    ):
        federated = {"dfs.ha.namenodes.ns2": "a", "dfs.namenode.rpc-address.ns2.a": str(other.address)}
        client = RmClient.load(secure(tmp_path, rm.address, nn.address, **federated))
        async with client.manager() as manager:
            named = (f"hdfs://{nn.address}", f"hdfs://localhost:{other.port}", "hdfs://ns2")
            given = await client.tokens(manager, named)
            hdfs = [str(nn.address), str(other.address), "ha-hdfs:ns2"]
            assert {each.service for each in given.tokens.values()} == {str(rm.address), *hdfs}
            assert given.names == {f"localhost:{other.port}": str(other.address)}
            assert [name for name, _ in asked] == ["rm", "nn", "nn", "nn"]
            assert await client.cancel(manager, given) == ()
            assert sorted(cancelled) == ["nn", "other", "other", "rm"]
            cancelled.clear()
            with pytest.raises(ConfigError, match="is no host:port"):
                await client.tokens(manager, ("hdfs://a..b",))
            del other.handlers["getDelegationToken"]
            with pytest.raises(AccelError, match=re.escape(str(other.address))):
                await client.tokens(manager, ("hdfs://ns2",))
            assert sorted(cancelled) == ["nn", "rm"], "what was given is of no use then"


async def test_the_resourcemanager_prolongs_no_token_of_an_excluded_hdfs(ticket, keytabs, tmp_path):
    """It would fail to log in there, and refuse the application; so that token ends after a day."""
    asked = []
    async with (
        service("rm", keytabs, asked) as rm,
        service("nn", keytabs, asked) as nn,
        service("nn", keytabs, asked) as other,
    ):
        changes = {
            "dfs.ha.namenodes.ns2": "a",
            "dfs.namenode.rpc-address.ns2.a": str(other.address),
            EXCLUDED_PROPERTY: "ns3, ns2",
        }
        client = RmClient.load(secure(tmp_path, rm.address, nn.address, **changes))
        renewer = f"rm/m.test@{REALM}"
        async with client.manager() as manager:
            given = await client.tokens(manager, ["hdfs://ns2"])
            assert [name for _, name in asked] == [renewer, renewer, ""]
            assert given.excluded == ("ha-hdfs:ns2",)
            assert given.ends_s == given.issued_s + 86_400
            asked.clear()
            site, login, settings = client.site, client.kerberos, client._settings()
            given = await delegate(site, manager, login, settings, "alice", ["hdfs://ns2"])
            assert [name for _, name in asked] == ["alice"] * 3, "a master with a keytab prolongs all"
            assert given.ends_s == ENDS_S


async def test_tokens_of_an_application_that_never_runs_are_cancelled(ticket, keytabs, tmp_path):
    cancelled = []

    def cancelling(request):
        cancelled.append(request.token.kind)
        return CancelDelegationTokenResponse()

    def refusing(_):
        raise Refusal(
            "org.apache.hadoop.security.token.SecretManager$InvalidToken", "can't be found in cache"
        )

    calls = {"cancelDelegationToken": cancelling}
    async with service("rm", keytabs, [], **calls) as rm, service("nn", keytabs, [], **calls) as nn:
        client = RmClient.load(secure(tmp_path, rm.address, nn.address))
        async with client.manager() as manager:
            given = await client.tokens(manager)
            assert await client.cancel(manager, given) == ()
            assert sorted(cancelled) == ["HDFS_DELEGATION_TOKEN", "RM_DELEGATION_TOKEN"]
            nn.handlers["cancelDelegationToken"] = refusing
            (problem,) = await client.cancel(manager, given)
            assert re.search(
                "HDFS_DELEGATION_TOKEN .* when it expires, if not before: .*can't be found in cache", problem
            )
            assert cancelled[2:] == ["RM_DELEGATION_TOKEN"], "the other one is cancelled all the same"
            nn.handlers["getDelegationToken"] = refusing
            with pytest.raises(AccelError, match="found in cache"):
                await client.tokens(manager)
            assert cancelled[3:] == ["RM_DELEGATION_TOKEN"], "one alone is of no use"


async def test_a_keytab_in_the_environment_serves_where_nobody_typed_kinit(keytabs, tmp_path, monkeypatch):
    monkeypatch.setenv("KRB5CCNAME", "MEMORY:of-this-test")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{keytabs['alice']}")
    async with service("rm", keytabs, []) as rm, service("nn", keytabs, []) as nn:
        client = RmClient.load(secure(tmp_path, rm.address, nn.address))
        async with client.manager() as manager:
            assert (await client.tokens(manager)).ends_s == ENDS_S
    assert (client.user, rm.users) == ("alice", [f"alice@{REALM}"])


async def test_without_kerberos_no_token_is_asked_for(tmp_path):
    client = RmClient.load(configured(tmp_path, **{"fs.defaultFS": "hdfs://nn"}))
    async with client.manager() as manager:
        assert await client.tokens(manager) == ApplicationTokens()
    assert ending(0.0) == ""


def test_a_status_says_until_when_tokens_are_good():
    assert re.fullmatch(r"lives until 2027-01-1[45] .*: its HDFS token ends then", ending(ENDS_S))
    assert re.search(
        "renews its tokens by keytab: the present ones are good until 2027-01-1[45]", renewing(ENDS_S)
    )
    assert renewing(0.0) == ""


def test_without_a_ticket_a_command_ends_at_once(kdc, tmp_path):
    with pytest.raises(KerberosError, match=r"no Kerberos ticket in .*: run kinit"):
        RmClient.load(secure(tmp_path, "127.0.0.1:1", "127.0.0.1:1"))
    with pytest.raises(ConfigError, match=rf"{tmp_path}: hadoop\.security\.authentication: 'custom'"):
        RmClient.load(configured(tmp_path, **{"hadoop.security.authentication": "custom"}))


async def test_jobs_find_their_application_by_rpc(ticket, keytabs, tmp_path):
    found = ApplicationReport(
        ApplicationId(1, 2),
        name="ours",
        user="alice",
        state=ApplicationState.RUNNING,
        host="w1",
        rpc_port=40001,
        tracking_url="http://rm:8088/proxy/application_1_0002/",
    )
    listed = {"getApplications": lambda _: GetApplicationsResponse((found,))}
    async with service("rm", keytabs, [], **listed) as rm:
        environ = secure(tmp_path, rm.address, "nn")
        site = RmClient.load(environ).site
        environment = await asyncio.to_thread(mapper_environment, site)
        assert environment == {"ACCEL_MASTER": "http://w1:40001", "ACCEL_SERVICE_USER": "alice"}
