"""Signed requests: what is genuine gets in once, and nothing else does."""

import asyncio
import json
import time

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.adapters.signed_http import (
    MAX_BODY_BYTES,
    NONCE,
    SENDER,
    SIGNATURE,
    TIME,
    RequestVerifier,
    Signer,
    check_response,
    decode_json,
    exchange,
    guarded,
    sender_key,
    sign_response,
)
from yarn_accel.errors import AuthenticationError, RejectedError, RemoteProtocolError, UnavailableError

SECRET = b"0123456789abcdef0123456789abcdef"
NOW_S = 1_800_000_000.0
PATH = "/v1/heartbeat"


def signer(sender="agent:w1", secret=SECRET):
    return Signer(sender_key(secret, sender), sender)


def verifier(**options):
    return RequestVerifier(lambda sender: sender_key(SECRET, sender), **options)


def verify(verifier, sent, body=b"{}", now_s=NOW_S, **changes):
    headers = {**sent.headers, **changes.pop("headers", {})}
    return verifier.verify(
        changes.get("method", sent.method), changes.get("path", sent.path), headers, body, now_s=now_s
    )


def test_a_genuine_request_gets_in():
    verified = verify(verifier(), signer().sign("POST", PATH, b"{}", now_s=NOW_S))
    assert (verified.sender, verified.path) == ("agent:w1", PATH)


@pytest.mark.parametrize(
    "changes",
    [
        {"body": b"{ }"},
        {"method": "PUT"},
        {"path": "/v1/drain"},
        {"path": PATH + "?force=1"},
        {"headers": {SENDER: "agent:w2"}},
        {"headers": {TIME: str(int(NOW_S * 1e6) + 1)}},
        {"headers": {NONCE: "0" * 32}},
        {"headers": {SIGNATURE: "0" * 64}},
        {"headers": {SIGNATURE: ""}},
        {"headers": {SENDER: ""}},
        {"headers": {SENDER: "agent:w1\nx"}},
        {"headers": {TIME: "-5"}},
        {"headers": {TIME: "1e9"}},
        {"headers": {TIME: "٣"}},
        {"headers": {NONCE: "xyz"}},
    ],
)
def test_whatever_is_changed_on_the_way_is_noticed(changes):
    with pytest.raises(AuthenticationError):
        verify(verifier(), signer().sign("POST", PATH, b"{}", now_s=NOW_S), **changes)


def test_nobody_reports_for_another_node():
    thief = Signer(sender_key(SECRET, "agent:w1"), "agent:w2")
    with pytest.raises(AuthenticationError, match="not one of agent:w2"):
        verify(verifier(), thief.sign("POST", PATH, b"{}", now_s=NOW_S))


def test_another_secret_opens_nothing():
    with pytest.raises(AuthenticationError):
        verify(verifier(), signer(secret=b"x" * 32).sign("POST", PATH, b"{}", now_s=NOW_S))


def test_a_request_gets_in_once():
    receiver, sent = verifier(), signer().sign("POST", PATH, b"{}", now_s=NOW_S)
    verify(receiver, sent)
    with pytest.raises(AuthenticationError, match="received before"):
        verify(receiver, sent)


def test_an_older_request_of_the_same_sender_comes_too_late():
    receiver, mine = verifier(), signer()
    older = mine.sign("POST", PATH, b"{}", now_s=NOW_S)
    newer = mine.sign("POST", PATH, b"{}", now_s=NOW_S + 1)
    verify(receiver, newer)
    with pytest.raises(AuthenticationError, match="received before"):
        verify(receiver, older)
    verify(receiver, signer("agent:w2").sign("POST", PATH, b"{}", now_s=NOW_S))


@pytest.mark.parametrize("off_s", [-61, 61, -1e6])
def test_a_clock_that_is_off_is_named(off_s):
    with pytest.raises(AuthenticationError, match=r"clocks .* differ by [+-]"):
        verify(verifier(), signer().sign("POST", PATH, b"{}", now_s=NOW_S + off_s))


def test_a_new_attempt_does_not_hear_what_was_said_to_the_one_before():
    receiver = verifier(not_before_s=NOW_S - 1)
    with pytest.raises(AuthenticationError, match="older than this master"):
        verify(receiver, signer().sign("POST", PATH, b"{}", now_s=NOW_S - 2))
    verify(receiver, signer().sign("POST", PATH, b"{}", now_s=NOW_S))


def test_times_grow_though_the_clock_does_not():
    receiver, mine = verifier(), signer()
    for now_s in (NOW_S, NOW_S, NOW_S - 3):
        verify(receiver, mine.sign("POST", PATH, b"{}", now_s=now_s))


def test_a_refused_request_leaves_no_trace():
    receiver, mine = verifier(), signer()
    ahead = mine.sign("POST", PATH, b"{}", now_s=NOW_S + 30)
    with pytest.raises(AuthenticationError):
        verify(receiver, ahead, body=b"forged")
    verify(receiver, ahead)


def test_senders_are_forgotten_when_the_window_protects_and_never_before():
    receiver = verifier(max_clock_skew_s=10.0, max_senders=2)
    old = signer("agent:a").sign("POST", PATH, b"{}", now_s=NOW_S)
    verify(receiver, old)
    verify(receiver, signer("agent:b").sign("POST", PATH, b"{}", now_s=NOW_S + 5), now_s=NOW_S + 5)
    with pytest.raises(AuthenticationError, match="2 senders"):
        verify(receiver, signer("agent:c").sign("POST", PATH, b"{}", now_s=NOW_S + 6), now_s=NOW_S + 6)
    verify(receiver, signer("agent:c").sign("POST", PATH, b"{}", now_s=NOW_S + 11), now_s=NOW_S + 11)
    with pytest.raises(AuthenticationError, match="differ"):
        verify(receiver, old, now_s=NOW_S + 11)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-30, 30)), max_size=30))
def test_no_order_of_arrival_lets_a_request_in_twice(arrivals):
    receiver = verifier(max_clock_skew_s=20.0, max_senders=10)
    admitted = set()
    signers = {name: signer(f"agent:{name}") for name in "abc"}
    sent = [signers[name].sign("POST", PATH, b"{}", now_s=NOW_S + off_s) for name, off_s in arrivals]
    for at, now in enumerate([*sent, *reversed(sent)]):
        try:
            verify(receiver, now, now_s=NOW_S + at / 10)
        except AuthenticationError:
            continue
        assert now.nonce not in admitted
        admitted.add(now.nonce)


def answered(sent, key=None, status=200, body=b"[]"):
    verified = verify(verifier(), sent)
    return key or verified.key, sign_response(verified, status, body)


def test_an_answer_belongs_to_its_request():
    mine = signer()
    first = mine.sign("POST", PATH, b"{}", now_s=NOW_S)
    second = mine.sign("POST", PATH, b"{}", now_s=NOW_S + 1)
    key, headers = answered(first)
    check_response(key, first, 200, headers, b"[]")
    for sent, status, body in ((second, 200, b"[]"), (first, 503, b"[]"), (first, 200, b"[1]")):
        with pytest.raises(AuthenticationError, match="not signed by the master"):
            check_response(key, sent, status, headers, body)
    with pytest.raises(AuthenticationError):
        check_response(key, first, 200, {}, b"[]")
    with pytest.raises(AuthenticationError):
        check_response(key, first, 200, {SIGNATURE: "ü"}, b"[]")


def test_a_request_is_no_answer():
    """An attacker who reflects the agent's own signature has nothing."""
    sent = signer().sign("POST", PATH, b"{}", now_s=NOW_S)
    with pytest.raises(AuthenticationError):
        check_response(sender_key(SECRET, "agent:w1"), sent, 200, sent.headers, b"{}")


@pytest.mark.parametrize("name", ["", "a b", "a\n", "-a", "a" * 300, "ä"])
def test_names_that_are_none(name):
    with pytest.raises(AuthenticationError):
        sender_key(SECRET, name)


def test_weak_secrets_are_refused():
    with pytest.raises(AuthenticationError, match="3 bytes"):
        sender_key(b"abc", "agent:w1")
    with pytest.raises(AuthenticationError, match="0 bytes"):
        Signer(b"", "agent:w1")


def test_keys_do_not_show_in_representations():
    verified = verify(verifier(), signer().sign("POST", PATH, b"{}", now_s=NOW_S))
    assert verified.key.hex()[:8] not in repr(verified)
    assert repr(verified.key) not in repr(verified)


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b'{"a": Infinity}', b"[" * 100_000, b"\xff"])
def test_json_that_is_none(raw):
    with pytest.raises(RemoteProtocolError, match="somebody did not send JSON"):
        decode_json(raw, "somebody")


# ---- over HTTP


async def serving(application, act):
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession() as session:
            return await act(session, url)
    finally:
        await runner.cleanup()


def talk(handler, act, receiver=None):
    application = web.Application()
    application.router.add_post(PATH, guarded(receiver or verifier(), handler))
    return asyncio.run(serving(application, act))


async def echo(sender, document):
    return {"sender": sender, "document": document}


def test_a_conversation():
    async def act(session, url):
        return await exchange(session, signer(), "POST", url, PATH, {"n": 1})

    assert talk(echo, act) == {"sender": "agent:w1", "document": {"n": 1}}


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (RejectedError("other-node", "you are not w1"), RejectedError),
        (UnavailableError("not yet registered"), UnavailableError),
    ],
)
def test_what_the_handler_raises_reaches_the_caller(raised, expected):
    async def refuse(sender, document):
        raise raised

    async def act(session, url):
        await exchange(session, signer(), "POST", url, PATH, {})

    with pytest.raises(expected, match=raised.message) as caught:
        talk(refuse, act)
    assert getattr(caught.value, "code", "") == getattr(raised, "code", "")


def test_who_is_not_admitted_learns_why():
    async def act(session, url):
        await exchange(session, signer(), "POST", url, PATH, {}, clock=lambda: NOW_S)

    with pytest.raises(AuthenticationError, match=r"401.*clocks"):
        talk(echo, act, verifier())


def test_a_master_without_the_secret_is_not_believed():
    async def forged(request):
        return web.json_response({"servers": []}, headers={SIGNATURE: "0" * 64})

    async def unsigned(request):
        return web.json_response({"servers": []})

    for handler in (forged, unsigned):
        application = web.Application()
        application.router.add_post(PATH, handler)

        async def act(session, url):
            await exchange(session, signer(), "POST", url, PATH, {})

        with pytest.raises(AuthenticationError):
            asyncio.run(serving(application, act))


def test_a_replayed_answer_is_not_believed():
    kept = []

    async def replaying(request):
        if not kept:
            genuine = await guarded(verifier(), echo)(request)
            kept.append((genuine.body, dict(genuine.headers)))
        body, headers = kept[0]
        return web.Response(
            body=body, headers={SIGNATURE: headers[SIGNATURE]}, content_type="application/json"
        )

    application = web.Application()
    application.router.add_post(PATH, replaying)

    async def act(session, url):
        mine = signer()
        await exchange(session, mine, "POST", url, PATH, {})
        with pytest.raises(AuthenticationError, match="another request"):
            await exchange(session, mine, "POST", url, PATH, {})

    asyncio.run(serving(application, act))


def test_no_redirect_is_followed():
    async def away(request):
        raise web.HTTPFound("http://127.0.0.1:1/")

    application = web.Application()
    application.router.add_post(PATH, away)

    async def act(session, url):
        await exchange(session, signer(), "POST", url, PATH, {})

    with pytest.raises(AuthenticationError, match="302"):
        asyncio.run(serving(application, act))


def test_long_bodies_are_refused_at_both_ends():
    async def act(session, url):
        with pytest.raises(AuthenticationError, match="413"):
            await exchange(session, signer(), "POST", url, PATH, "x" * MAX_BODY_BYTES)
        with pytest.raises(RemoteProtocolError, match="sent more than 10 bytes"):
            await exchange(session, signer(), "POST", url, PATH, {}, max_bytes=10)

    talk(echo, act)


def test_a_body_that_never_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("yarn_accel.adapters.signed_http._BODY_S", 0.05)

    async def act(session, url):
        async def endless():
            yield b"{"
            await asyncio.Event().wait()

        async with session.post(url + PATH, data=endless(), headers={"Content-Length": "9"}) as answer:
            return answer.status

    assert talk(echo, act) == 408


def test_nobody_there_and_nobody_answering():
    async def never(sender, document):
        await asyncio.sleep(30)

    async def act(session, url):
        with pytest.raises(UnavailableError, match=r"within 0\.2 s"):
            await exchange(session, signer(), "POST", url, PATH, {}, timeout_s=0.2)
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
            await exchange(session, signer(), "POST", "http://127.0.0.1:1", PATH, {})
        with pytest.raises(UnavailableError):
            await exchange(session, signer(), "POST", "http://", PATH, {})

    talk(never, act)


def test_a_body_that_is_not_json_is_refused_after_it_is_known_whose_it_is():
    async def act(session, url):
        mine, body = signer(), b"not json"
        sent = mine.sign("POST", PATH, body, now_s=time.time())
        async with session.post(url + PATH, data=body, headers=sent.headers) as answer:
            return answer.status, json.loads(await answer.read())["code"]

    assert talk(echo, act) == (400, "not-json")
