"""Signed requests: what is genuine gets in once, and nothing else does."""

import asyncio
import contextlib
import json
import time

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.adapters import signed_http
from yarn_accel.errors import AuthenticationError, RejectedError, RemoteProtocolError, UnavailableError

SECRET = b"0123456789abcdef0123456789abcdef"
NOW_S = 1_800_000_000.0
PATH = "/v1/heartbeat"


def signer(sender="agent:w1", secret=SECRET):
    return signed_http.Signer(signed_http.sender_key(secret, sender), sender)


def verifier(**options):
    return signed_http.RequestVerifier(lambda sender: signed_http.sender_key(SECRET, sender), **options)


def signed(now_s=NOW_S, mine=None):
    return (mine or signer()).sign("POST", PATH, b"{}", now_s=now_s)


def verify(verifier, sent, body=b"{}", now_s=NOW_S, **changes):
    headers = {**sent.headers, **changes.pop("headers", {})}
    return verifier.verify(
        changes.get("method", sent.method), changes.get("path", sent.path), headers, body, now_s=now_s
    )


def test_a_genuine_request_gets_in():
    verified = verify(verifier(), signed())
    assert (verified.sender, verified.path) == ("agent:w1", PATH)


@pytest.mark.parametrize(
    "changes",
    [
        {"body": b"{ }"},
        {"method": "PUT"},
        {"path": "/v1/drain"},
        {"path": PATH + "?force=1"},
        {"headers": {signed_http.SENDER: "agent:w2"}},
        {"headers": {signed_http.TIME: str(int(NOW_S * 1e6) + 1)}},
        {"headers": {signed_http.NONCE: "0" * 32}},
        {"headers": {signed_http.SIGNATURE: "0" * 64}},
        {"headers": {signed_http.SIGNATURE: ""}},
        {"headers": {signed_http.SENDER: ""}},
        {"headers": {signed_http.SENDER: "agent:w1\nx"}},
        {"headers": {signed_http.TIME: "-5"}},
        {"headers": {signed_http.TIME: "1e9"}},
        {"headers": {signed_http.TIME: "٣"}},
        {"headers": {signed_http.NONCE: "xyz"}},
    ],
)
def test_whatever_is_changed_on_the_way_is_noticed(changes):
    with pytest.raises(AuthenticationError):
        verify(verifier(), signed(), **changes)


@pytest.mark.parametrize(
    ("mine", "complaint"),
    [
        (signed_http.Signer(signed_http.sender_key(SECRET, "agent:w1"), "agent:w2"), "not one of agent:w2"),
        (signer(secret=b"x" * 32), "not one of agent:w1"),
    ],
    ids=["of another node", "of another secret"],
)
def test_nobody_reports_for_another_node_or_without_the_secret(mine, complaint):
    with pytest.raises(AuthenticationError, match=complaint):
        verify(verifier(), signed(mine=mine))


def test_a_request_gets_in_once():
    receiver, sent = verifier(), signed()
    verify(receiver, sent)
    with pytest.raises(AuthenticationError, match="received before"):
        verify(receiver, sent)


def test_an_older_request_of_the_same_sender_comes_too_late():
    receiver, mine = verifier(), signer()
    older = signed(mine=mine)
    newer = signed(NOW_S + 1, mine)
    verify(receiver, newer)
    with pytest.raises(AuthenticationError, match="received before"):
        verify(receiver, older)
    verify(receiver, signed(NOW_S, signer("agent:w2")))


@pytest.mark.parametrize("off_s", [-61, 61, -1e6])
def test_a_clock_that_is_off_is_named(off_s):
    with pytest.raises(AuthenticationError, match=r"clocks .* differ by [+-]"):
        verify(verifier(), signed(NOW_S + off_s))


def test_a_new_attempt_does_not_hear_what_was_said_to_the_one_before():
    receiver = verifier(not_before_s=NOW_S - 1)
    with pytest.raises(AuthenticationError, match="older than this master"):
        verify(receiver, signed(NOW_S - 2))
    verify(receiver, signed())


def test_times_grow_though_the_clock_does_not():
    receiver, mine = verifier(), signer()
    for now_s in (NOW_S, NOW_S, NOW_S - 3):
        verify(receiver, signed(now_s, mine))


def test_a_refused_request_leaves_no_trace():
    receiver, mine = verifier(), signer()
    ahead = signed(NOW_S + 30, mine)
    with pytest.raises(AuthenticationError):
        verify(receiver, ahead, body=b"forged")
    verify(receiver, ahead)


def test_senders_are_forgotten_when_the_window_protects_and_never_before():
    receiver = verifier(max_clock_skew_s=10.0, max_senders=2)
    old = signed(NOW_S, signer("agent:a"))
    verify(receiver, old)
    verify(receiver, signed(NOW_S + 5, signer("agent:b")), now_s=NOW_S + 5)
    with pytest.raises(AuthenticationError, match="2 senders"):
        verify(receiver, signed(NOW_S + 6, signer("agent:c")), now_s=NOW_S + 6)
    verify(receiver, signed(NOW_S + 11, signer("agent:c")), now_s=NOW_S + 11)
    with pytest.raises(AuthenticationError, match="differ"):
        verify(receiver, old, now_s=NOW_S + 11)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-30, 30)), max_size=30))
def test_no_order_of_arrival_lets_a_request_in_twice(arrivals):
    receiver = verifier(max_clock_skew_s=20.0, max_senders=10)
    admitted = set()
    signers = {name: signer(f"agent:{name}") for name in "abc"}
    sent = [signed(NOW_S + off_s, signers[name]) for name, off_s in arrivals]
    for at, now in enumerate([*sent, *reversed(sent)]):
        try:
            verify(receiver, now, now_s=NOW_S + at / 10)
        except AuthenticationError:
            continue
        assert now.nonce not in admitted
        admitted.add(now.nonce)


def answered(sent, key=None, status=200, body=b"[]"):
    verified = verify(verifier(), sent)
    return key or verified.key, signed_http.sign_response(verified, status, body)


def test_an_answer_belongs_to_its_request():
    mine = signer()
    first = signed(mine=mine)
    second = signed(NOW_S + 1, mine)
    key, headers = answered(first)
    signed_http.check_response(key, first, 200, headers, b"[]")
    for sent, status, body in ((second, 200, b"[]"), (first, 503, b"[]"), (first, 200, b"[1]")):
        with pytest.raises(AuthenticationError, match="not signed by the master"):
            signed_http.check_response(key, sent, status, headers, body)
    with pytest.raises(AuthenticationError):
        signed_http.check_response(key, first, 200, {}, b"[]")
    with pytest.raises(AuthenticationError):
        signed_http.check_response(key, first, 200, {signed_http.SIGNATURE: "ü"}, b"[]")


def test_a_request_is_no_answer():
    """An attacker who reflects the agent's own signature has nothing."""
    sent = signed()
    with pytest.raises(AuthenticationError):
        signed_http.check_response(signed_http.sender_key(SECRET, "agent:w1"), sent, 200, sent.headers, b"{}")


@pytest.mark.parametrize("name", ["", "a b", "a\n", "-a", "a" * 300, "ä"])
def test_names_that_are_none(name):
    with pytest.raises(AuthenticationError):
        signed_http.sender_key(SECRET, name)


def test_weak_secrets_are_refused():
    with pytest.raises(AuthenticationError, match="3 bytes"):
        signed_http.sender_key(b"abc", "agent:w1")
    with pytest.raises(AuthenticationError, match="0 bytes"):
        signed_http.Signer(b"", "agent:w1")


def test_keys_do_not_show_in_representations():
    verified = verify(verifier(), signed())
    assert verified.key.hex()[:8] not in repr(verified)
    assert repr(verified.key) not in repr(verified)


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b'{"a": Infinity}', b"[" * 100_000, b"\xff"])
def test_json_that_is_none(raw):
    with pytest.raises(RemoteProtocolError, match="somebody did not send JSON"):
        signed_http.decode_json(raw, "somebody")


# ---- over HTTP


@contextlib.asynccontextmanager
async def serving(handler):
    """Behind this handler: a session, and the address."""
    application = web.Application()
    application.router.add_post(PATH, handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            yield session, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def talk(handler):
    return serving(signed_http.guarded(verifier(), handler))


async def post(session, url, document=None, mine=None, **options):
    return await signed_http.exchange(
        session, mine or signer(), "POST", url, PATH, {} if document is None else document, **options
    )


async def echo(sender, document):
    return {"sender": sender, "document": document}


async def test_a_conversation():
    async with talk(echo) as reached:
        assert await post(*reached, {"n": 1}) == {"sender": "agent:w1", "document": {"n": 1}}


@pytest.mark.parametrize(
    "raised", [RejectedError("other-node", "you are not w1"), UnavailableError("not yet registered")]
)
async def test_what_the_handler_raises_reaches_the_caller(raised):
    async def refuse(sender, document):
        raise raised

    async with talk(refuse) as reached:
        with pytest.raises(type(raised), match=raised.message) as caught:
            await post(*reached)
    assert getattr(caught.value, "code", "") == getattr(raised, "code", "")


async def test_who_is_not_admitted_learns_why():
    async with talk(echo) as reached:
        with pytest.raises(AuthenticationError, match=r"401.*clocks"):
            await post(*reached, clock=lambda: NOW_S)


@pytest.mark.parametrize("headers", [{}, {signed_http.SIGNATURE: "0" * 64}], ids=["unsigned", "forged"])
async def test_a_master_without_the_secret_is_not_believed(headers):
    async def answer(request):
        return web.json_response({"servers": []}, headers=headers)

    async with serving(answer) as reached:
        with pytest.raises(AuthenticationError):
            await post(*reached)


async def test_a_replayed_answer_is_not_believed():
    kept = []

    async def replaying(request):
        kept.append(await signed_http.guarded(verifier(), echo)(request))
        headers = {signed_http.SIGNATURE: kept[0].headers[signed_http.SIGNATURE]}
        return web.Response(body=kept[0].body, headers=headers, content_type="application/json")

    async with serving(replaying) as reached:
        mine = signer()
        await post(*reached, mine=mine)
        with pytest.raises(AuthenticationError, match="another request"):
            await post(*reached, mine=mine)


async def test_no_redirect_is_followed():
    async def away(request):
        raise web.HTTPFound("http://127.0.0.1:1/")

    async with serving(away) as reached:
        with pytest.raises(AuthenticationError, match="302"):
            await post(*reached)


async def test_long_bodies_are_refused_at_both_ends():
    async with talk(echo) as reached:
        with pytest.raises(AuthenticationError, match="413"):
            await post(*reached, "x" * signed_http.MAX_BODY_BYTES)
        with pytest.raises(RemoteProtocolError, match="sent more than 10 bytes"):
            await post(*reached, max_bytes=10)


async def test_a_body_that_never_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("yarn_accel.adapters.signed_http._BODY_S", 0.05)

    async def endless():
        yield b"{"
        await asyncio.Event().wait()

    async with (
        talk(echo) as (session, url),
        session.post(url + PATH, data=endless(), headers={"Content-Length": "9"}) as answer,
    ):
        assert answer.status == 408


async def test_nobody_there_and_nobody_answering():
    async def never(sender, document):
        await asyncio.sleep(30)

    async with talk(never) as (session, url):
        with pytest.raises(UnavailableError, match=r"within 0\.2 s"):
            await post(session, url, timeout_s=0.2)
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
            await post(session, "http://127.0.0.1:1")
        with pytest.raises(UnavailableError):
            await post(session, "http://")


async def test_a_body_that_is_not_json_is_refused_after_it_is_known_whose_it_is():
    async with talk(echo) as (session, url):
        mine, body = signer(), b"not json"
        sent = mine.sign("POST", PATH, body, now_s=time.time())
        async with session.post(url + PATH, data=body, headers=sent.headers) as answer:
            assert (answer.status, json.loads(await answer.read())["code"]) == (400, "not-json")
