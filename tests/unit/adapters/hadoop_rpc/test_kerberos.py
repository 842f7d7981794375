"""Logins by ticket and keytab against a KDC of this machine, what protects them, and their troubles."""

import asyncio
import os
import random
import socket
import subprocess
import sys
import time

import pytest

from tests.fixtures.kdc import REALM
from tests.unit.adapters.hadoop_rpc.exchanges import mutated
from tests.unit.adapters.hadoop_rpc.fake_hadoop import STANDBY, DigestServerLayer, FakeHadoop, Refusal
from tests.unit.adapters.hadoop_rpc.gss_acceptor import Acceptor
from yarn_accel.adapters.hadoop_rpc import framing, gssapi, methods
from yarn_accel.adapters.hadoop_rpc.clients import (
    NameNode,
    ResourceManager,
    ResourceManagerAddresses,
    hdfs_service,
)
from yarn_accel.adapters.hadoop_rpc.framing import User
from yarn_accel.adapters.hadoop_rpc.kerberos import Kerberos, KerberosLayer, KerberosLogin, Security
from yarn_accel.adapters.hadoop_rpc.methods import (
    GetApplicationReportRequest,
    GetApplicationReportResponse,
    GetDelegationTokenRequest,
    GetDelegationTokenResponse,
)
from yarn_accel.adapters.hadoop_rpc.protobuf import delimited, encode
from yarn_accel.adapters.hadoop_rpc.records import ApplicationId, ApplicationReport
from yarn_accel.adapters.hadoop_rpc.rpc_errors import (
    BusyError,
    ConnectionLostError,
    KdcUnavailableError,
    KerberosError,
    StandbyError,
    TokenEndedError,
    UnsupportedLoginError,
    remote_error,
)
from yarn_accel.adapters.hadoop_rpc.sasl import (
    DigestLayer,
    Protection,
    SaslAuth,
    SaslMessage,
    SaslState,
    TokenLogin,
)
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.adapters.hadoop_rpc.transport import Patience, RpcConnection, RpcService, RpcSettings
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, RemoteProtocolError

KEY = "yarn.resourcemanager.principal"
TOKEN = Token(b"identifier", b"password", "RM_DELEGATION_TOKEN", "")
SITE = {"hadoop.security.authentication": "kerberos", KEY: f"rm/m.test@{REALM}"}


def settings(**changes):
    """Of a site with Kerberos, some of its properties changed."""
    return RpcSettings(60.0, call_timeout_s=60.0, security=Security.from_properties({**SITE, **changes}))


async def connect(server, identity=None, **changes):
    identity = Kerberos() if identity is None else identity
    return await RpcConnection.open(server.address, methods.APPLICATION_CLIENT, identity, settings(**changes))


def reported(request):
    return GetApplicationReportResponse(ApplicationReport(request.application, diagnostics="d" * 70_000))


def deadline():
    """Again and again, until a test that waits for an end in vain has failed."""
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        yield
        time.sleep(0.05)


LEVELS = [
    (protection, login)
    for protection in ("authentication", "integrity", "privacy")
    for login in ("ticket", "token")
]
QOPS = {"authentication": "auth", "integrity": "auth-int", "privacy": "auth-conf"}


@pytest.mark.parametrize(("protection", "login"), LEVELS)
async def test_both_logins_with_each_protection(protection, login, ticket, keytabs):
    """Answers longer than a protected message, requests longer than the server takes at once."""
    bits = Protection[protection.upper()]
    async with FakeHadoop(
        {"getApplicationReport": reported, "getDelegationToken": lambda _: GetDelegationTokenResponse(TOKEN)},
        tokens=[TOKEN],
        qop=QOPS[protection],
        keytab=keytabs["rm"],
        protections=bits,
    ) as server:
        connection = await connect(server, Kerberos() if login == "ticket" else TOKEN)
        for number in range(3):
            request = GetApplicationReportRequest(ApplicationId(1, number))
            answer = await connection.call(methods.GET_APPLICATION_REPORT, request)
            assert answer.report.id.number == number
            assert len(answer.report.diagnostics) == 70_000
        long = GetDelegationTokenRequest("r" * 200_000)
        await connection.call(methods.GET_RM_DELEGATION_TOKEN, long)
        await connection.close()
    assert server.seen[-1] == ("getDelegationToken", long)
    assert server.users == [f"alice@{REALM}" if login == "ticket" else TOKEN.identifier]
    assert server.streams[0].most_bytes <= server.max_bytes
    assert bool(server.streams[0].most_bytes) is (bits > 1)


async def test_a_keytab_is_enough_and_several_principals_share_a_process(keytabs):
    async with FakeHadoop(tokens=[], keytab=keytabs["rm"]) as server:
        identities = [Kerberos(f"{name}@{REALM}", str(keytabs["alice"])) for name in ("alice", "bob")]
        for connection in await asyncio.gather(*(connect(server, each) for each in identities)):
            await connection.close()
    assert sorted(server.users) == [f"alice@{REALM}", f"bob@{REALM}"]


def test_a_ticket_says_whose_it_is_and_for_how_long(ticket, keytabs):
    found = Kerberos().ticket()
    assert found.principal == f"alice@{REALM}"
    assert 3600 < found.left_s <= 86400
    assert Kerberos("bob", str(keytabs["alice"])).ticket().principal == f"bob@{REALM}"


@pytest.mark.parametrize("service", ["rm", "nn"])
@pytest.mark.parametrize(
    ("properties", "is_right"),
    [
        ({KEY: f"rm/_HOST@{REALM}"}, {"rm"}),
        ({KEY: "rm/_HOST"}, {"rm"}),
        ({KEY: f"rm/elsewhere.test@{REALM}"}, set()),
        ({KEY: f"rm/m.test@{REALM}", f"{KEY}.pattern": f"nn/*@{REALM}"}, {"nn"}),
        ({f"{KEY}.pattern": "*"}, {"rm", "nn"}),
        ({f"{KEY}.pattern": "rm/*@OTHER"}, set()),
        ({KEY: f"rm@{REALM}"}, set()),
        ({KEY: ""}, set()),
    ],
)
async def test_only_the_configured_principal_is_taken(service, properties, is_right, ticket, keytabs):
    async with FakeHadoop(tokens=[], keytab=keytabs[service], service=service) as server:
        site = Security.from_properties({**SITE, **properties}, {"m.test": "127.0.0.1"})
        opened = RpcConnection.open(
            server.address, methods.APPLICATION_CLIENT, Kerberos(), RpcSettings(60.0, security=site)
        )
        if service in is_right:
            await (await opened).close()
        else:
            with pytest.raises(KerberosError, match=r"(yarn\.resourcemanager\.principal|m\.test)") as caught:
                await opened
            assert caught.value.code in ("kerberos-other-server", "kerberos-server-unknown")
            assert KEY in str(caught.value)
            assert server.users == []


async def test_a_server_with_the_right_name_and_another_key_is_refused(ticket, keytabs):
    """It says rm/m.test and has the key of another service."""
    async with FakeHadoop(tokens=[], keytab=keytabs["nn"], service="rm") as server:
        with pytest.raises(ConnectionLostError, match="closed during the login"):
            await connect(server)
    assert server.users == []


async def test_nobody_is_believed_on_a_site_with_kerberos(ticket):
    async with FakeHadoop() as server:
        with pytest.raises(AuthenticationError, match="the site has Kerberos, so 'ann' alone"):
            await connect(server, User("ann"))
    assert server.streams == []


@pytest.mark.parametrize(
    "message",
    [
        SaslMessage(state=SaslState.SUCCESS),
        SaslMessage(state=SaslState.NEGOTIATE, auths=(SaslAuth("SIMPLE", ""),)),
        SaslMessage(state=SaslState.NEGOTIATE, auths=(SaslAuth("TOKEN", "DIGEST-MD5", "", "default"),)),
        SaslMessage(state=SaslState.CHALLENGE, token=b"x"),
        SaslMessage(state=SaslState.WRAP, token=b"x"),
    ],
)
def test_no_weaker_login_is_taken(message):
    login = KerberosLogin(Kerberos(), settings().security, methods.APPLICATION_CLIENT, "m.test:1")
    with pytest.raises((UnsupportedLoginError, AuthenticationError, RemoteProtocolError)):
        login.receive(message)


@pytest.mark.parametrize(("wanted", "offered"), [("privacy", 3), ("integrity", 1), ("", 0), ("", 8)])
async def test_a_weaker_protection_is_refused(wanted, offered, ticket, keytabs):
    async with FakeHadoop(tokens=[], keytab=keytabs["rm"], protections=offered) as server:
        with pytest.raises(UnsupportedLoginError, match=r"hadoop\.rpc\.protection"):
            await connect(server, **{"hadoop.rpc.protection": wanted})
    assert server.users == []


@pytest.mark.parametrize("max_bytes", [0, 10])
async def test_a_server_that_takes_no_messages_is_refused(max_bytes, ticket, keytabs):
    async with FakeHadoop(tokens=[], keytab=keytabs["rm"], protections=4, max_bytes=max_bytes) as server:
        with pytest.raises(RemoteProtocolError, match=f"at most {max_bytes} bytes"):
            await connect(server)


@pytest.mark.parametrize(
    ("name", "error"),
    [(STANDBY, StandbyError), ("org.apache.hadoop.ipc.RetriableException", BusyError)],
)
async def test_a_standby_during_the_login_means_the_next_address(name, error, ticket, keytabs):
    refusal = Refusal(name, is_fatal=True)
    async with (
        FakeHadoop(tokens=[], keytab=keytabs["rm"], refuses=refusal) as standby,
        FakeHadoop({"getApplicationReport": reported}, tokens=[], keytab=keytabs["rm"]) as active,
    ):
        with pytest.raises(error):
            await connect(standby)

        async def recovered(_):
            standby.refuses = None
            standby.handlers = active.handlers

        service = RpcService(
            [standby.address, active.address],
            methods.APPLICATION_CLIENT,
            Kerberos,
            settings(),
            Patience(60.0),
            sleep=recovered,
        )
        request = GetApplicationReportRequest(ApplicationId(1, 1))
        assert (await service.call(methods.GET_APPLICATION_REPORT, request)).report.id.number == 1
        await service.close()
    assert active.users == ([f"alice@{REALM}"] if error is StandbyError else [])


@pytest.mark.parametrize(
    ("identity", "code", "cure"),
    [
        (
            Kerberos(cache="FILE:/nonexistent/cache"),
            "kerberos-no-ticket",
            "run kinit, or let KRB5_CLIENT_KTNAME",
        ),
        (Kerberos(cache="FILE:{alice}"), "kerberos-cache-damaged", "KRB5_CLIENT_KTNAME a keytab"),
        (Kerberos("carol", "{alice}"), "kerberos-keytab", "klist -kt"),
        (Kerberos("alice", "/nonexistent"), "kerberos-keytab", "klist -kt /nonexistent"),
        (Kerberos(cache="KCM:"), "kerberos-cache-unreadable", "kinit -c FILE:"),
    ],
)
def test_troubles_of_tickets_and_keys(identity, code, cure, keytabs):
    def filled(text):
        return text.format(**keytabs)

    with pytest.raises(KerberosError) as caught:
        Kerberos(identity.principal, filled(identity.keytab), filled(identity.cache)).ticket()
    assert caught.value.code == code
    assert cure in caught.value.cure


def test_a_stale_key_an_expired_ticket_and_an_unknown_principal(kdc, keytabs):
    keytab = kdc.add("dave", "erin", keytab="dave.keytab")
    kdc.change_key("dave")
    with pytest.raises(KerberosError, match="the key of dave was changed after") as caught:
        Kerberos("dave", str(keytab)).ticket()
    assert caught.value.code == "kerberos-stale-key"
    cache = kdc.kinit("erin", keytab, "-l", "1s", cache="short")
    with pytest.raises(KerberosError) as caught:
        all(Kerberos(cache=cache).ticket() for _ in deadline())
    assert caught.value.code == "kerberos-ticket-expired"
    kdc.delete("erin")
    with pytest.raises(KerberosError) as caught:
        Kerberos("erin", str(keytab), "MEMORY:erin").ticket()
    assert caught.value.code == "kerberos-principal-not-found"


async def test_a_server_that_the_realm_does_not_know(ticket, keytabs):
    async with FakeHadoop(tokens=[], keytab=keytabs["rm"], host="nowhere.test") as server:
        with pytest.raises(KerberosError, match=r"the realm knows no rm/nowhere\.test") as caught:
            await connect(server, **{KEY: f"rm/nowhere.test@{REALM}"})
    assert caught.value.code == "kerberos-server-not-found"
    assert "rdns = false" in caught.value.cure


def test_a_realm_without_a_kdc(tmp_path, kdc):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        config = tmp_path / "krb5.conf"
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        config.write_text(f"[libdefaults]\n default_realm = R\n[realms]\n R = {{\n  kdc = {nobody}\n }}\n")
        keytab = tmp_path / "keytab"
        entry = "addent -password -p ann@R -k 1 -e aes256-cts\npassword\n"
        subprocess.run(
            ["ktutil"], input=f"{entry}wkt {keytab}\nq\n", text=True, check=True, capture_output=True
        )
        program = (
            "import sys\n"
            "from yarn_accel.adapters.hadoop_rpc.kerberos import Kerberos\n"
            "try:\n    Kerberos('ann@R', sys.argv[1]).ticket()\n"
            "except Exception as error:\n    print(type(error).__name__, error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(keytab)],
            env={**os.environ, "KRB5_CONFIG": str(config), "KRB5_TRACE": ""},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.startswith(f"{KdcUnavailableError.__name__} no KDC answers: Cannot contact any KDC")
    assert str(config) in done.stdout


def test_a_machine_without_the_library(monkeypatch):
    monkeypatch.setattr(gssapi, "LIBRARY", "libno-such-kerberos.so.2")
    gssapi.library.cache_clear()
    with pytest.raises(
        KerberosError, match=r"no Kerberos library on this machine.*libgssapi-krb5-2"
    ) as caught:
        Kerberos().ticket()
    gssapi.library.cache_clear()
    assert caught.value.code == "kerberos-no-library"


@pytest.mark.parametrize(
    ("name", "text", "error", "code"),
    [
        ("InvalidToken", "token (x) can't be found in cache", TokenEndedError, "token-cancelled"),
        (
            "InvalidToken",
            "Token has expired, current time: 1 expected renewal time: 0",
            TokenEndedError,
            "token-expired",
        ),
        (
            "AuthorizationException",
            "User: a@R is not allowed to impersonate b",
            KerberosError,
            "kerberos-account",
        ),
        ("AccessControlException", "No rules applied to alice@OTHER", KerberosError, "kerberos-account"),
    ],
)
def test_what_a_server_says_of_a_login(name, text, error, code):
    found = remote_error(f"org.apache.hadoop.{name}", text, "m:1", is_fatal=True)
    assert type(found) is error
    assert found.code == code
    assert found.cure


def test_a_configuration_that_hadoop_does_not_know():
    with pytest.raises(ConfigError, match="'krb'; known: simple, kerberos"):
        Security.from_properties({"hadoop.security.authentication": "krb"})
    assert not Security.from_properties({}).is_kerberos


# ---- delegation tokens


async def test_tokens_of_the_namenode_and_the_resourcemanager(ticket, keytabs):
    asked = []

    def give(kind):
        def handler(request):
            asked.append((kind, request.renewer))
            return GetDelegationTokenResponse(Token(b"i", b"p", kind, ""))

        return {"getDelegationToken": handler}

    async with (
        FakeHadoop(give("RM"), tokens=[], keytab=keytabs["rm"]) as rm,
        FakeHadoop(give("HDFS"), tokens=[], keytab=keytabs["nn"], service="nn") as nn,
    ):
        site = settings(**{"dfs.namenode.kerberos.principal": f"nn/m.test@{REALM}"})
        addresses = ResourceManagerAddresses((rm.address,), (rm.address,), (rm.address,))
        for client in (
            NameNode([nn.address], Kerberos(), site),
            ResourceManager(addresses, Kerberos(), site),
        ):
            token = await client.delegation_token("renewer")
            assert (token.identifier, token.kind) == (b"i", asked[-1][0])
            await client.close()
        nn.handlers = {"getDelegationToken": lambda _: GetDelegationTokenResponse()}
        client = NameNode([nn.address], Kerberos(), site)
        with pytest.raises(AuthenticationError, match="the server has no Kerberos"):
            await client.delegation_token("renewer")
        await client.close()
    assert asked == [("HDFS", "renewer"), ("RM", "renewer")]


@pytest.mark.parametrize(
    ("uri", "name", "addresses"),
    [
        ("hdfs://m:9000/", "", ["m:9000"]),
        ("hdfs://m", "", ["m:8020"]),
        ("hdfs://ns/folder", "ha-hdfs:ns", ["a:1", "b:8020"]),
    ],
)
def test_where_an_hdfs_answers(uri, name, addresses):
    properties = {
        "dfs.ha.namenodes.ns": "n1, n2",
        "dfs.namenode.rpc-address.ns.n1": "a:1",
        "dfs.namenode.rpc-address.ns.n2": "b",
    }
    found = hdfs_service(properties, uri)
    assert (found.name, [str(each) for each in found.addresses]) == (name, addresses)


@pytest.mark.parametrize("uri", ["file:///x", "hdfs:///x", "", "hdfs://half"])
def test_what_is_no_hdfs(uri):
    with pytest.raises(ConfigError, match=r"no hdfs URI|n1 is not set"):
        hdfs_service({"dfs.ha.namenodes.half": "n1"}, uri)


# ---- damaged frames

CHALLENGE = b'realm="default",nonce="n",qop="auth-conf",charset=utf-8,algorithm=md5-sess,cipher="rc4"'
OFFERS = (
    SaslAuth("TOKEN", "DIGEST-MD5", "", "default", CHALLENGE),
    SaslAuth("KERBEROS", "GSSAPI", "rm", "m.test"),
)
NEGOTIATED = SaslMessage(state=SaslState.NEGOTIATE, auths=OFFERS)


class Established:
    """A security context whose login is complete, for as many logins as a test plays."""

    def __init__(self, acceptor):
        self._real = gssapi.SecurityContext(gssapi.Credentials(), f"rm/m.test@{REALM}")
        answer, _ = acceptor.step(self._real.step())
        self._real.step(answer)
        self.unwrap, self.wrap = self._real.unwrap, self._real.wrap
        self.server, self.plain_limit = self._real.server, self._real.plain_limit
        self.is_complete = True

    def step(self, received=b""):
        return b"token"


def sasl_frame(message):
    header = framing.ResponseHeader(-33 & 0xFFFFFFFF, framing.RpcStatus.SUCCESS)
    content = delimited(encode(header)) + delimited(encode(message))
    return len(content).to_bytes(4, "big") + content


def ended(client, *frames):
    """Whether the client took the frames; anything but an error of ours escapes."""
    try:
        for frame in frames:
            client.receive_data(frame)
            while client.next_event() is not None:
                pass
        client.data_to_send()
    except AccelError:
        assert not client.is_open
        return False
    return True


@pytest.mark.parametrize("n_damaged", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_damaged_frames_end_in_one_error_of_ours(n_damaged, ticket, keytabs):
    """Of each step of both logins, and of what is protected after them."""
    rng = random.Random(7)
    acceptor = Acceptor(keytabs["rm"])
    context = Established(acceptor)
    security = settings().security

    def client(identity=TOKEN, login=None):
        return framing.RpcClientProtocol(methods.APPLICATION_CLIENT, identity, security=security, login=login)

    def by_ticket(opened=lambda *_: context):
        return client(
            Kerberos(), KerberosLogin(Kerberos(), security, methods.APPLICATION_CLIENT, "m.test:1", opened)
        )

    def protected(layer):
        login = TokenLogin(TOKEN)
        login.layer, login.receive = layer, lambda _: None
        return client(login=login)

    first = sasl_frame(NEGOTIATED)
    offer = sasl_frame(
        SaslMessage(state=SaslState.CHALLENGE, token=acceptor.wrap(b"\x07\x01\x00\x00", False))
    )
    proof = sasl_frame(SaslMessage(state=SaslState.SUCCESS, token=b"rspauth=" + b"0" * 32))
    done = sasl_frame(SaslMessage(state=SaslState.SUCCESS))
    sealed = [acceptor.wrap(done, True), DigestServerLayer(b"s" * 16, True).wrap(done)]
    answers = [sasl_frame(SaslMessage(state=SaslState.WRAP, token=each)) for each in sealed]
    begun = sasl_frame(SaslMessage(state=SaslState.CHALLENGE, token=acceptor_answer(keytabs["rm"])))
    steps = [
        (lambda: client(), (), first),
        (lambda: client(), (first,), proof),
        (by_ticket, (), first),
        (by_ticket, (first,), offer),
        (lambda: protected(KerberosLayer(context, 65536, is_private=True)), (done,), answers[0]),
        (lambda: protected(DigestLayer(b"s" * 16, 65536, is_private=True)), (done,), answers[1]),
    ]
    n_taken = 0
    for number in range(n_damaged):
        make, before, frame = steps[number % len(steps)]
        if number % 100 == 0:  # a login of its own, by the library
            make, before, frame = lambda: by_ticket(None), (first,), begun
        begun_client = make()
        begun_client.begin()
        assert ended(begun_client, *before)
        n_taken += ended(begun_client, mutated(frame, rng))
    assert 0 < n_taken < n_damaged // 2


def acceptor_answer(keytab):
    context = gssapi.SecurityContext(gssapi.Credentials(), f"rm/m.test@{REALM}")
    return Acceptor(keytab).step(context.step())[0]
