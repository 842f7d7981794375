"""DIGEST-MD5 against the example of RFC 2831, and logins that must fail."""

from __future__ import annotations

import base64
import re

import pytest

from yarn_accel.adapters.hadoop_rpc.rpc_errors import UnsupportedLoginError
from yarn_accel.adapters.hadoop_rpc.sasl import DigestMd5, SaslAuth, SaslMessage, SaslState, TokenLogin
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.errors import AccelError, AuthenticationError, RemoteProtocolError

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
HADOOP = b'realm="default",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'
TOKEN = Token(b"\x00identifier", b"\xffpassword", "YARN_AM_RM_TOKEN", "")
OFFER = SaslAuth("TOKEN", "DIGEST-MD5", "", "default", HADOOP)


def example() -> DigestMd5:
    return DigestMd5("chris", "secret", "imap/elwood.innosoft.com", "OA6MHXh6VqTrRk")


def test_the_example_of_the_rfc() -> None:
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
def test_the_server_must_prove_itself(final: bytes) -> None:
    client = example()
    client.respond(CHALLENGE)
    with pytest.raises(AuthenticationError, match="could not prove"):
        client.verify(final)


def test_a_proof_before_the_challenge_proves_nothing() -> None:
    with pytest.raises(AuthenticationError, match="could not prove"):
        example().verify(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize("qop", ["auth-conf", "auth-int", "auth-int,auth-conf"])
def test_integrity_and_privacy_are_refused(qop: str) -> None:
    with pytest.raises(
        UnsupportedLoginError, match=rf"hadoop.rpc.protection .*{qop.split(chr(44))[-1]}.*not supported"
    ):
        example().respond(CHALLENGE.replace(b'qop="auth"', f'qop="{qop}"'.encode()))


def test_plain_authentication_is_chosen_among_several() -> None:
    assert b"qop=auth" in example().respond(CHALLENGE.replace(b'"auth"', b'"auth-conf, auth-int, auth"'))


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"nonce",
        b'nonce="unclosed',
        b"nonce=a,nonce=b,algorithm=md5-sess",
        b'realm="default",qop="auth",algorithm=md5-sess',
        b"nonce=a,algorithm=sha-256",
        b"nonce=a",
        b"=,=,",
        b"a" * 5000,
        b'nonce="' + b"\\" * 4000,
    ],
)
def test_a_challenge_that_is_none_is_refused(challenge: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        example().respond(challenge)


def test_quotes_survive() -> None:
    answer = example().respond(b'realm="a \\"b\\" \\\\ c",nonce="n",algorithm=md5-sess')
    assert b'realm="a \\"b\\" \\\\ c"' in answer


def negotiate(*auths: SaslAuth) -> SaslMessage:
    return SaslMessage(state=SaslState.NEGOTIATE, auths=auths)


def test_the_login_takes_the_token_among_the_offers() -> None:
    login = TokenLogin(TOKEN)
    assert login.begin() == SaslMessage(state=SaslState.NEGOTIATE)
    kerberos = SaslAuth("KERBEROS", "GSSAPI", "rm", "host")
    answer = login.receive(negotiate(kerberos, OFFER))
    assert answer is not None
    assert answer.state is SaslState.INITIATE
    assert answer.auths == (SaslAuth("TOKEN", "DIGEST-MD5", "", "default"),)
    fields = dict(re.findall(rb'([a-z-]+)="([^"]*)"', answer.token or b""))
    assert base64.b64decode(fields[b"username"]) == TOKEN.identifier
    assert fields[b"digest-uri"] == b"/default"
    assert TOKEN.password not in (answer.token or b"")


def test_nonces_differ() -> None:
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
def test_other_logins_are_refused(auths: tuple[SaslAuth, ...], named: str) -> None:
    with pytest.raises(
        UnsupportedLoginError, match=rf"offers {named}; .*TOKEN with DIGEST-MD5.*not supported"
    ):
        TokenLogin(TOKEN).receive(negotiate(*auths))


def test_a_challenge_may_come_later() -> None:
    login = TokenLogin(TOKEN)
    first = login.receive(negotiate(SaslAuth("TOKEN", "DIGEST-MD5", "", "default")))
    assert first is not None
    assert first.token == b""
    second = login.receive(SaslMessage(state=SaslState.CHALLENGE, token=HADOOP))
    assert second is not None
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
def test_messages_out_of_turn_are_refused(messages: list[SaslMessage]) -> None:
    """Above all a server that says "fine" without a proof."""
    login = TokenLogin(TOKEN)

    def play() -> None:
        for message in messages:
            assert login.receive(message) is not None

    with pytest.raises(AccelError):
        play()
