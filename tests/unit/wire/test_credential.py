"""A credential is derived from the master secret; change anything in it and its key is wrong."""

import json

import pytest

from yarn_accel.errors import AuthenticationError
from yarn_accel.wire.credential import Credential, decode, derive_key, encode, issue, parse_identifier

MASTER = bytes(range(32))


def test_decode_gives_back_what_encode_took():
    credential = issue(MASTER, "alice", 2_000_000_000, "k1")
    assert decode(encode(credential)) == credential


def test_the_server_derives_the_same_key_from_the_identifier():
    credential = issue(MASTER, "alice", 2_000_000_000, "k1")
    assert derive_key(MASTER, credential.identifier()) == credential.key
    assert parse_identifier(credential.identifier()).tenant == "alice"


def test_another_tenant_expiry_or_master_has_another_key():
    names = [("alice", 2_000_000_000, "k1"), ("bob", 2_000_000_000, "k1"), ("alice", 2_000_000_001, "k1")]
    keys = {issue(MASTER, *name).key for name in (*names, ("alice", 2_000_000_000, "k2"))}
    assert len(keys | {issue(bytes(32), *names[0]).key}) == 5


def test_the_key_is_never_shown():
    credential = issue(MASTER, "alice", 2_000_000_000, "k1")
    assert credential.key.hex() not in repr(credential)
    assert repr(credential.key) not in repr(credential)


@pytest.mark.parametrize("tenant", ["", "a b", "../x", "a\n", "x" * 129, "é"])
def test_a_tenant_is_a_plain_name(tenant):
    with pytest.raises(AuthenticationError, match="tenant"):
        issue(MASTER, tenant, 2_000_000_000, "k1")


@pytest.mark.parametrize("expires_s", [0, -1, 2**53, True])
def test_an_expiry_is_a_time(expires_s):
    with pytest.raises(AuthenticationError, match="expires_s"):
        issue(MASTER, "alice", expires_s, "k1")


def test_only_the_canonical_identifier_is_taken():
    identifier = issue(MASTER, "alice", 2_000_000_000, "k1").identifier()
    loose = json.dumps(json.loads(identifier), indent=1).encode()
    with pytest.raises(AuthenticationError, match="canonical"):
        parse_identifier(loose)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{", b"[" * 3000, b"{}", b"x" * 5000])
def test_garbage_is_refused_without_repeating_it(data):
    with pytest.raises(AuthenticationError) as caught:
        decode(data)
    assert len(str(caught.value)) < 200


def test_a_short_master_secret_is_refused():
    with pytest.raises(AuthenticationError, match="16"):
        issue(b"short", "alice", 2_000_000_000, "k1")


def test_a_wrong_key_length_is_refused():
    with pytest.raises(AuthenticationError, match="32 bytes"):
        decode(encode(Credential("alice", 2_000_000_000, "k1", b"abc")))
