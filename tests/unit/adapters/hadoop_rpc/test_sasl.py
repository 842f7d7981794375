"""DIGEST-MD5 against the example of RFC 2831, and logins that must fail."""

import base64
import re

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import DigestServerLayer
from yarn_accel.adapters.hadoop_rpc.rpc_errors import UnsupportedLoginError
from yarn_accel.adapters.hadoop_rpc.sasl import (
    DigestLayer,
    DigestMd5,
    Protection,
    SaslAuth,
    SaslMessage,
    SaslState,
    TokenLogin,
    choose_protection,
    read_protections,
)
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, RemoteProtocolError

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
HADOOP = b'realm="default",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'
TOKEN = Token(b"\x00identifier", b"\xffpassword", "YARN_AM_RM_TOKEN", "")
OFFER = SaslAuth("TOKEN", "DIGEST-MD5", "", "default", HADOOP)


def example():
    return DigestMd5("chris", "secret", "imap/elwood.innosoft.com", "OA6MHXh6VqTrRk")


def test_the_example_of_the_rfc():
    client = example()
    assert client.respond(CHALLENGE) == (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,'
        b'cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",maxbuf=65536,'
        b"response=d388dad90d4bbd760a152321f2143af7,qop=auth"
    )
    client.verify(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize(
    "final", [b"", b"rspauth=", b"rspauth=ea40f60335c427b5527b84dbabcdfffe", b"rspauth=\xc3\xa9", b"other=1"]
)
def test_the_server_must_prove_itself(final):
    client = example()
    client.respond(CHALLENGE)
    with pytest.raises(AuthenticationError, match="could not prove"):
        client.verify(final)


def test_a_proof_before_the_challenge_proves_nothing():
    with pytest.raises(AuthenticationError, match="could not prove"):
        example().verify(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


AUTHENTICATION, INTEGRITY, PRIVACY = Protection


@pytest.mark.parametrize(
    ("wanted", "offered", "chosen"),
    [
        *(([], [AUTHENTICATION, PRIVACY], AUTHENTICATION), ([], [PRIVACY, INTEGRITY], INTEGRITY)),
        ([PRIVACY, AUTHENTICATION], [AUTHENTICATION, PRIVACY], PRIVACY),
        ([PRIVACY, AUTHENTICATION], [AUTHENTICATION], AUTHENTICATION),
        ([AUTHENTICATION], [PRIVACY], PRIVACY),
        *(([PRIVACY], [AUTHENTICATION, INTEGRITY], None), ([INTEGRITY], [AUTHENTICATION], None)),
        ([], [], None),
    ],
)
def test_the_protection_is_never_weaker_than_wanted(wanted, offered, chosen):
    if chosen is None:
        with pytest.raises(UnsupportedLoginError, match=r"hadoop\.rpc\.protection"):
            choose_protection(wanted, offered)
    else:
        assert choose_protection(wanted, offered) is chosen


def test_what_hadoop_rpc_protection_may_say():
    assert read_protections("Privacy, authentication") == (PRIVACY, AUTHENTICATION)
    assert read_protections("") == ()
    with pytest.raises(ConfigError, match="'auth'; known: authentication, integrity, privacy"):
        read_protections("auth")


@pytest.mark.parametrize(("qop", "ending"), [("auth-int", b",qop=auth-int"), ("auth-conf", b'cipher="rc4"')])
def test_integrity_and_privacy_are_taken(qop, ending):
    challenge = CHALLENGE.replace(b'qop="auth"', f'qop="{qop}",cipher="3des,rc4"'.encode())
    assert example().respond(challenge).endswith(ending)


@pytest.mark.parametrize("more", [b',cipher="3des,des"', b""])
def test_privacy_without_rc4_is_refused(more):
    with pytest.raises(UnsupportedLoginError, match="no protection that is known"):
        example().respond(CHALLENGE.replace(b'qop="auth"', b'qop="auth-conf"' + more))


def test_plain_authentication_is_chosen_among_several():
    assert b"qop=auth" in example().respond(CHALLENGE.replace(b'"auth"', b'"auth-conf, auth-int, auth"'))


def layer(session=b"s" * 16, **changes):
    return DigestLayer(session, 65536, **{"is_private": True, **changes})


@pytest.mark.parametrize("is_private", [False, True])
def test_protected_messages_are_read_in_their_order_and_unchanged(is_private):
    server = DigestServerLayer(b"s" * 16, is_private)
    first, second, third = (server.wrap(each) for each in (b"first", b"", b"third" * 1000))
    assert (b"first" in first) is not is_private
    client = layer(is_private=is_private)
    assert client.unwrap(first) == b"first"
    assert client.unwrap(second) == b""
    assert client.unwrap(third) == b"third" * 1000
    for one in (b"a", b"b" * 5000):
        assert server.unwrap(client.wrap(one)) == one


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("at", [0, 4, -1, -3, -6, -10])
def test_a_changed_message_is_refused(is_private, at):
    token = bytearray(DigestServerLayer(b"s" * 16, is_private).wrap(b"content"))
    token[at] ^= 1
    with pytest.raises(RemoteProtocolError, match="protected message"):
        layer(is_private=is_private).unwrap(bytes(token))


def test_a_repeated_a_lost_and_a_foreign_message_are_refused():
    server = DigestServerLayer(b"s" * 16, True)
    first, second = server.wrap(b"first"), server.wrap(b"second")
    for token in (second, b"", first[:-1], DigestServerLayer(b"t" * 16, True).wrap(b"first")):
        with pytest.raises(RemoteProtocolError, match="protected message"):
            layer().unwrap(token)
    client = layer()
    client.unwrap(first)
    with pytest.raises(RemoteProtocolError, match="out of turn"):
        client.unwrap(first)


@pytest.mark.parametrize(
    "challenge",
    [
        *(b"", b"nonce", b'nonce="unclosed', b"nonce=a,nonce=b,algorithm=md5-sess"),
        *(b'realm="default",qop="auth",algorithm=md5-sess', b"nonce=a,algorithm=sha-256", b"nonce=a"),
        *(b"=,=,", b"a" * 5000, b'nonce="' + b"\\" * 4000),
        *(b"nonce=a,algorithm=md5-sess,maxbuf=" + each for each in (b"1", b"-5", b"x", b"99999999999")),
    ],
)
def test_a_challenge_that_is_none_is_refused(challenge):
    with pytest.raises(RemoteProtocolError):
        example().respond(challenge)


def test_quotes_survive():
    answer = example().respond(b'realm="a \\"b\\" \\\\ c",nonce="n",algorithm=md5-sess')
    assert b'realm="a \\"b\\" \\\\ c"' in answer


def negotiate(*auths):
    return SaslMessage(state=SaslState.NEGOTIATE, auths=auths)


def test_the_login_takes_the_token_among_the_offers():
    login = TokenLogin(TOKEN)
    assert login.begin() == SaslMessage(state=SaslState.NEGOTIATE)
    kerberos = SaslAuth("KERBEROS", "GSSAPI", "rm", "host")
    answer = login.receive(negotiate(kerberos, OFFER))
    assert answer.state is SaslState.INITIATE
    assert answer.auths == (SaslAuth("TOKEN", "DIGEST-MD5", "", "default"),)
    fields = dict(re.findall(rb'([a-z-]+)="([^"]*)"', answer.token or b""))
    assert base64.b64decode(fields[b"username"]) == TOKEN.identifier
    assert fields[b"digest-uri"] == b"/default"
    assert TOKEN.password not in (answer.token or b"")


def test_nonces_differ():
    answers = [TokenLogin(TOKEN).receive(negotiate(OFFER)) for _ in range(2)]
    assert answers[0] != answers[1]


@pytest.mark.parametrize(
    ("auths", "named"),
    [
        ((SaslAuth("KERBEROS", "GSSAPI", "rm", "host"),), "KERBEROS by GSSAPI"),
        ((SaslAuth("SIMPLE", ""),), "SIMPLE by nothing"),
        ((SaslAuth("TOKEN", "SCRAM-SHA-256", "", "default"),), "TOKEN by SCRAM-SHA-256"),
        ((), "nothing"),
    ],
)
def test_other_logins_are_refused(auths, named):
    with pytest.raises(
        UnsupportedLoginError, match=rf"offers {named}; .*TOKEN with DIGEST-MD5.*(never taken|no token)"
    ):
        TokenLogin(TOKEN).receive(negotiate(*auths))


def test_a_challenge_may_come_later():
    login = TokenLogin(TOKEN)
    first = login.receive(negotiate(SaslAuth("TOKEN", "DIGEST-MD5", "", "default")))
    assert first.token == b""
    second = login.receive(SaslMessage(state=SaslState.CHALLENGE, token=HADOOP))
    assert second.state is SaslState.RESPONSE
    assert b"response=" in (second.token or b"")


@pytest.mark.parametrize(
    "messages",
    [
        [SaslMessage(state=SaslState.SUCCESS)],
        [negotiate(OFFER), SaslMessage(state=SaslState.SUCCESS)],
        [negotiate(OFFER), negotiate(OFFER)],
        [SaslMessage(state=SaslState.CHALLENGE, token=HADOOP)],
        [negotiate(OFFER), SaslMessage(state=SaslState.WRAP)],
        [negotiate(OFFER), *[SaslMessage(state=SaslState.CHALLENGE, token=HADOOP)] * 20],
    ],
)
def test_messages_out_of_turn_are_refused(messages):
    """Above all a server that says "fine" without a proof."""
    login = TokenLogin(TOKEN)

    def play():
        for message in messages:
            assert login.receive(message) is not None

    with pytest.raises(AccelError):
        play()
