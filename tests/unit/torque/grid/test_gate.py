"""The door for peers: who gets in, and what everybody else is told."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.grid.linked import (
    config_of,
    echo_route,
    links_of,
    listening,
    make_certificate,
    make_key,
    make_signed_certificate,
)
from torque_sched.errors import ConfigError
from torque_sched.grid.site.authentication import (
    BODY,
    FROM,
    NONCE,
    SIGNATURE,
    TIME,
    NonceMemory,
    body_hash,
    read_shared_key,
    sign,
    verify,
)
from torque_sched.grid.site.config import SiteConfig
from torque_sched.grid.site.messages import Gossip
from torque_sched.grid.site.peers import LinkError, Links, RequestRefused

EMPTY = Gossip(claims=())


def told(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.read_text().splitlines()]


def with_port(config: SiteConfig, peer: str, port: int) -> SiteConfig:
    peers = [each.model_copy(update={"port": port}) if each.name == peer else each for each in config.peers]
    return config.model_copy(update={"peers": tuple(peers)})


@pytest.fixture(params=["certificate", "shared key", "ca"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SiteConfig, SiteConfig]:
    """alpha and beta that know each other, in one of the ways."""
    more: dict[str, Any] = {"port": 1}
    own = {}
    if request.param == "ca":
        for name in ("alpha", "beta"):
            make_signed_certificate(tmp_path, name)
        own, more["certificate"] = {"ca": str(tmp_path / "authority.crt")}, ""
    elif request.param == "shared key":
        more["shared_key"] = make_key(tmp_path, "ab")
    alpha = config_of(tmp_path, "alpha", 0, {"beta": more}, **own)
    return alpha, config_of(tmp_path, "beta", 0, {"alpha": more}, **own)


@dataclass
class Door:
    """Beta listens; who calls it, and what it heard."""

    port: int
    links: Links
    heard: list[tuple[str, Any]]


@asynccontextmanager
async def door(folder: Path, owner: SiteConfig, caller: SiteConfig | None = None) -> AsyncIterator[Door]:
    """The door of a site, for a caller who believes it is beta's."""
    heard: list[tuple[str, Any]] = []
    async with listening(owner, echo_route(heard), folder / "audit") as gate:
        calls = with_port(caller, "beta", gate.port) if caller is not None else owner
        async with links_of(calls) as links:
            yield Door(gate.port, links, heard)


async def test_peers_talk(pair: tuple[SiteConfig, SiteConfig], tmp_path: Path) -> None:
    alpha, beta = pair
    async with door(tmp_path, beta, alpha) as there:
        for _ in range(3):
            assert await there.links.ask("beta", EMPTY, Gossip) == EMPTY
        assert there.links.skew_s("beta") < 0.01  # a millisecond is lost in writing the time
    assert [peer for peer, _ in there.heard] == ["alpha"] * 3
    assert [line["answer"] for line in told(tmp_path / "audit")] == ["answered"] * 3


async def refused(folder: Path, owner: SiteConfig, caller: SiteConfig, words: str) -> tuple[LinkError, str]:
    """Nobody hears the caller; what he is told, and what he noted as trouble with the link."""
    async with door(folder, owner, caller) as there:
        with pytest.raises(LinkError, match=words) as caught:
            await there.links.ask("beta", EMPTY, Gossip)
        assert not there.heard
        return caught.value, there.links.last_error("beta")


async def test_a_certificate_of_nobody_we_know_gets_nowhere(tmp_path: Path) -> None:
    mallory = config_of(tmp_path, "mallory", 0, {"beta": 1})
    await refused(tmp_path, config_of(tmp_path, "beta", 0, {"alpha": 1}), mallory, "^beta ")


async def test_a_peer_cannot_speak_for_another(tmp_path: Path) -> None:
    """gamma has a certificate beta believes, and calls itself alpha."""
    beta = config_of(tmp_path, "beta", 0, {"alpha": 1, "gamma": 1})
    gamma = config_of(tmp_path, "gamma", 0, {"beta": 1}).model_copy(update={"name": "alpha"})
    assert isinstance((await refused(tmp_path, beta, gamma, "not authorised"))[0], RequestRefused)
    assert "gamma calls itself 'alpha'" in told(tmp_path / "audit")[-1]["answer"]


async def test_a_server_with_another_certificate_is_not_spoken_to(tmp_path: Path) -> None:
    """Somebody else listens where beta should."""
    impostor = config_of(tmp_path, "impostor", 0, {"alpha": 1})
    alpha = config_of(tmp_path, "alpha", 0, {"beta": 1})
    assert (await refused(tmp_path, impostor, alpha, "certificate"))[1]


def raw(folder: Path, name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=make_certificate(folder, "beta")[0])
    context.check_hostname = False
    if name:
        context.load_cert_chain(*make_certificate(folder, name))
    return context


async def post(
    port: int, context: ssl.SSLContext, body: bytes, path: str = "/v1/gossip", **headers: str
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"https://127.0.0.1:{port}{path}", data=body, headers=headers, ssl=context) as response,
    ):
        return response.status, await response.text()


def by_key(folder: Path) -> SiteConfig:
    """beta, who shares a key with alpha."""
    return config_of(folder, "beta", 0, {"alpha": {"shared_key": make_key(folder, "ab")}})


def signed(folder: Path, body: bytes, nonce: str) -> dict[str, str]:
    """The headers of a request of alpha with this body."""
    key = read_shared_key(Path(make_key(folder, "ab")))
    to = {"sender": "alpha", "receiver": "beta", "nonce": nonce * 16, "at_s": time.time()}
    return sign(key, "POST", "/v1/gossip", body=body_hash(body), **to)  # type: ignore[arg-type]


async def test_a_replayed_or_altered_signed_request_is_refused(tmp_path: Path) -> None:
    body = EMPTY.model_dump_json().encode()
    async with door(tmp_path, by_key(tmp_path)) as there:
        await asyncio.sleep(0.01)  # a request of before the start would be refused for that
        headers = signed(tmp_path, body, "ab")
        context = raw(tmp_path, None)
        assert (await post(there.port, context, body, **headers))[0] == 200
        assert (await post(there.port, context, body, **headers))[0] == 401
        assert (await post(there.port, context, body + b" ", **headers))[0] == 401
        assert (await post(there.port, context, body, path="/v1/engine", **headers))[0] == 401
        assert (await post(there.port, context, body))[0] == 401
    assert len(there.heard) == 1
    answers = [line["answer"] for line in told(tmp_path / "audit")]
    assert "replayed" in answers[1]
    assert "no certificate" in answers[-1]


async def test_a_signed_body_is_the_one_that_arrives(tmp_path: Path) -> None:
    async with door(tmp_path, by_key(tmp_path)) as there:
        await asyncio.sleep(0.01)
        headers, body = signed(tmp_path, b"{}", "cd"), EMPTY.model_dump_json().encode()
        answer = await post(there.port, raw(tmp_path, None), body, **headers)
        assert answer == (401, "not authorised")
    assert not there.heard
    assert "not the one that was signed" in told(tmp_path / "audit")[-1]["answer"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"{", {}, 400, "Invalid JSON"),
        (b'{"claims": [], "more": 1}', {}, 400, "more: Extra inputs"),
        (b'{"claims": [{"name": "../x", "incarnation": 1, "state": "alive"}]}', {}, 400, "claims.0.name"),
        (b'{"claims": []}', {"Content-Encoding": "gzip"}, 415, "as it is"),
        (b"x" * 5000, {}, 413, "at most 4096"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    beta = config_of(tmp_path, "beta", 0, {"alpha": 1}, max_body_bytes=4096)
    async with door(tmp_path, beta) as there:
        context = raw(tmp_path, "alpha")
        answer = await post(there.port, context, body, **{"X-Site-From": "alpha", **headers})
        assert answer[0] == status
        assert words in answer[1]
        assert (await post(there.port, context, b"{}", path="/v1/none", **{"X-Site-From": "alpha"}))[0] == 404
    assert told(tmp_path / "audit")[0]["status"] == status


async def test_a_body_that_does_not_come_and_silence_cost_time_only(tmp_path: Path) -> None:
    beta = config_of(tmp_path, "beta", 0, {"alpha": 1}, timeout_s=0.3, max_connections=2)
    async with door(tmp_path, beta) as there:
        context = raw(tmp_path, "alpha")
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port, ssl=context)
        writer.write(
            b"POST /v1/gossip HTTP/1.1\r\nHost: b\r\nX-Site-From: alpha\r\nContent-Length: 99\r\n\r\n{"
        )
        assert b"408" in await reader.readline()
        _, second = await asyncio.open_connection("127.0.0.1", there.port, ssl=context)
        third, writer3 = await asyncio.open_connection("127.0.0.1", there.port, ssl=context)
        with suppress(OSError):  # cut in whatever way
            assert await third.read(1) == b""
        for each in (writer, second, writer3):
            each.transport.abort()


async def test_an_answer_that_is_too_long_or_no_answer_at_all(tmp_path: Path) -> None:
    """The peer lies, stalls or vanishes: the caller gets a clear error in time."""
    alpha = config_of(tmp_path, "alpha", 0, {"beta": 1}, timeout_s=3.0, max_body_bytes=4096)
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    answers = [long, b"", b"HTTP/1.1 200", b"garbage\r\n\r\n"]

    async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        said = answers.pop(0)
        writer.write(said)
        if said.startswith(b"HTTP/1.1 200") and len(said) < 20:
            await reader.read()  # until the caller has had enough
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "beta"))
    server = await asyncio.start_server(liar, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with links_of(with_port(alpha, "beta", port)) as links:
        complaints = []
        while answers:
            with pytest.raises(LinkError) as caught:
                await links.ask("beta", EMPTY, Gossip)
            complaints.append(str(caught.value))
        assert "more than 4096 bytes" in complaints[0]
        assert "within 3 s" in complaints[2]
    server.close()


# Signed requests: what was signed is what counts, once, and only for a time.


KEY = bytes(range(32))
NOW_S = 1_800_000_000.0


def signed_by(nonce: str = "0" * 32, at_s: float = NOW_S, key: bytes = KEY) -> dict[str, str]:
    to = {"sender": "alpha", "receiver": "beta", "nonce": nonce, "at_s": at_s}
    return sign(key, "POST", "/v1/engine", body=body_hash(b"{}"), **to)  # type: ignore[arg-type]


def told_of(headers: dict[str, str], path: str = "/v1/engine", **more: Any) -> str:
    how = {"receiver": "beta", "now_s": NOW_S, "seen": NonceMemory(), **more}
    refusal = verify(KEY, headers, "POST", path, **how)
    return "" if refusal is None else refusal.why


@pytest.mark.parametrize("name", [FROM, TIME, NONCE, BODY, SIGNATURE])
def test_each_header_is_covered(name: str) -> None:
    for value in ("", "f" * 32, signed_by()[name] + "0", "1800000001.000"):
        if value != signed_by()[name]:
            assert told_of(signed_by() | {name: value})
    assert told_of({key: text for key, text in signed_by().items() if key != name})


def test_path_and_receiver_are_covered() -> None:
    assert told_of(signed_by(), path="/v1/gossip") == "wrong signature"
    assert told_of(signed_by(), receiver="gamma") == "wrong signature"
    assert told_of(signed_by(key=b"x" * 32)) == "wrong signature"


@pytest.mark.parametrize("at_s", [NOW_S - 31, NOW_S + 31, float("nan"), float("inf")])
def test_old_and_future_requests_are_refused(at_s: float) -> None:
    assert "from ours" in told_of(signed_by(at_s=at_s))


def test_a_restart_does_not_open_the_door_to_replays() -> None:
    seen = NonceMemory(not_before_s=NOW_S + 1)
    assert told_of(signed_by(), seen=seen, now_s=NOW_S + 2) == "sent before this site was started"


def test_nonces_are_bounded_for_each_sender_and_forgotten_in_time() -> None:
    seen = NonceMemory(window_s=10.0, most=2)
    assert seen.use("alpha", "1", 0.0) is None
    assert seen.use("alpha", "2", 0.0) is None
    full = seen.use("alpha", "3", 1.0)
    assert full is not None
    assert full.why == "too many requests"
    assert seen.use("beta", "1", 1.0) is None
    assert seen.use("alpha", "3", 21.0) is None


@given(st.lists(st.integers(0, 5), max_size=40))
def test_no_nonce_is_ever_taken_twice_while_its_time_counts(nonces: list[int]) -> None:
    seen = NonceMemory(window_s=1e9)
    taken = [nonce for nonce in nonces if seen.use("a", str(nonce), 0.0) is None]
    assert sorted(taken) == sorted(set(nonces))


def test_keys_come_from_private_files_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("ab" * 32)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 0600"):
        read_shared_key(path)
    path.chmod(0o600)
    assert read_shared_key(path) == bytes.fromhex("ab" * 32)
    for text, complaint in (("ab" * 8, "too short"), ("not hexadecimal", "hexadecimal")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=complaint) as caught:
            read_shared_key(path)
        assert text not in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_shared_key(tmp_path / "none")
