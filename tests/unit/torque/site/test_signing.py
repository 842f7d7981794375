"""Signed requests: what was signed is what counts, once, and only for a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torque_sched.errors import ConfigError
from torque_sched.site.secret_files import read_shared_key
from torque_sched.site.signing import BODY, FROM, NONCE, SIGNATURE, TIME, NonceMemory, body_hash, sign, verify

KEY = bytes(range(32))
NOW_S = 1_800_000_000.0


def signed(nonce: str = "0" * 32, at_s: float = NOW_S, key: bytes = KEY) -> dict[str, str]:
    return sign(
        key,
        "POST",
        "/v1/engine",
        sender="alpha",
        receiver="beta",
        body=body_hash(b"{}"),
        nonce=nonce,
        at_s=at_s,
    )


def told(
    headers: dict[str, str],
    *,
    now_s: float = NOW_S,
    seen: NonceMemory | None = None,
    path: str = "/v1/engine",
    receiver: str = "beta",
) -> str:
    seen = seen or NonceMemory()
    refusal = verify(KEY, headers, "POST", path, receiver=receiver, now_s=now_s, seen=seen)
    return "" if refusal is None else refusal.why


def test_a_signed_request_is_believed_once() -> None:
    seen = NonceMemory()
    assert told(signed(), seen=seen) == ""
    assert "replayed" in told(signed(), seen=seen)
    assert told(signed("1" * 32), seen=seen) == ""


@pytest.mark.parametrize("name", [FROM, TIME, NONCE, BODY, SIGNATURE])
def test_each_header_is_covered(name: str) -> None:
    for value in ("", "f" * 32, signed()[name] + "0", "1800000001.000"):
        if value != signed()[name]:
            assert told(signed() | {name: value})
    assert told({key: text for key, text in signed().items() if key != name})


def test_path_and_receiver_are_covered() -> None:
    assert told(signed(), path="/v1/gossip") == "wrong signature"
    assert told(signed(), receiver="gamma") == "wrong signature"
    assert told(signed(key=b"x" * 32)) == "wrong signature"


@pytest.mark.parametrize("at_s", [NOW_S - 31, NOW_S + 31, float("nan"), float("inf")])
def test_old_and_future_requests_are_refused(at_s: float) -> None:
    assert "from ours" in told(signed(at_s=at_s))


def test_a_restart_does_not_open_the_door_to_replays() -> None:
    assert (
        told(signed(), seen=NonceMemory(not_before_s=NOW_S + 1), now_s=NOW_S + 2)
        == "sent before this site was started"
    )


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


def test_keys_come_from_private_files_only(tmp_path) -> None:  # type: ignore[no-untyped-def]
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
