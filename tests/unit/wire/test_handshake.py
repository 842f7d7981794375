"""Nobody gets in, or makes a client talk to him, without the key; nothing in a handshake can be changed."""

import json

import pytest

from yarn_accel.errors import AuthenticationError, LocalProtocolError, RemoteProtocolError, UnavailableError
from yarn_accel.wire import (
    NEED_DATA,
    ClientConnection,
    Credential,
    Ping,
    ServerConnection,
    State,
    available_checksums,
)
from yarn_accel.wire.connection import PREFIX_BYTES, pack_prefix
from yarn_accel.wire.credential import issue

MASTER = bytes(range(32))
NOW_S = 1_000_000.0


def rewrite(change):
    """A man in the middle who changes the header of a single frame."""

    def rewritten(data):
        header = json.loads(data[PREFIX_BYTES:])
        change(header)
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return pack_prefix(data[2], len(text), 0) + data[16:PREFIX_BYTES] + text

    return rewritten


def refusal_at_client(pair, error):
    """The error that the client makes of the server's refusal."""
    with pytest.raises(error) as caught:
        pair.move(pair.server, pair.client)
    return str(caught.value)


def test_both_ends_know_each_other(pair):
    assert pair.server.credential.tenant == "alice"
    assert pair.client.server == "w1"
    assert pair.client.welcome.max_in_flight == 64
    assert pair.client.checksum == pair.server.checksum == available_checksums()[0]


def test_the_key_never_crosses_the_wire(pair):
    everything = b"".join(pair.sent.values())
    assert pair.credential.key not in everything
    assert pair.credential.key.hex().encode() not in everything


EXPIRED = issue(MASTER, "alice", int(NOW_S) - 1, "k1")
STOLEN = issue(MASTER, "alice", int(NOW_S) + 100, "k1")


@pytest.mark.parametrize(
    "credential",
    [
        issue(b"x" * 32, "alice", int(NOW_S) + 100, "k1"),
        Credential("root", STOLEN.expires_s, STOLEN.key_id, STOLEN.key),
        Credential("alice", int(NOW_S) + 10_000, EXPIRED.key_id, EXPIRED.key),
    ],
    ids=["another master secret", "a forged tenant", "prolonged"],
)
def test_a_credential_that_was_not_issued_so_is_noticed_by_the_client(make_pair, credential):
    pair = make_pair(credential=credential)
    pair.move(pair.client, pair.server)
    assert "does not know the secret" in refusal_at_client(pair, AuthenticationError)


def test_a_client_that_ignores_the_servers_wrong_proof_is_refused(make_pair):
    """The attacker's client carries on with a made-up key; the server must see through it on its own."""
    pair = make_pair()
    pair.move(pair.client, pair.server)
    pair.client._key = b"z" * 32
    with pytest.raises(AuthenticationError):
        pair.move(pair.server, pair.client)
    forged = pack_prefix(3, 76, 0) + bytes(16) + b'{"proof":"' + b"0" * 64 + b'"}'
    with pytest.raises(AuthenticationError, match="not issued"):
        pair.move(pair.client, pair.server, lambda _: forged)
    assert pair.server.state is State.CLOSED


def test_an_expired_credential_is_refused_and_both_are_reported(make_pair):
    pair = make_pair(credential=issue(MASTER, "alice", int(NOW_S), "k1"))
    with pytest.raises(AuthenticationError, match="expired"):
        pair.move(pair.client, pair.server)
    assert "expired" in refusal_at_client(pair, AuthenticationError)


def as_of_version_1(hello):
    """Without capabilities."""
    hello.update(versions=[1], checksums=["crc32"])
    del hello["capabilities"]


@pytest.mark.parametrize(
    ("version", "change"), [(7, lambda hello: hello.update(versions=[7])), (1, as_of_version_1)]
)
def test_another_version_is_refused_and_both_are_reported(make_pair, version, change):
    """In a message that version 1 has, too."""
    pair = make_pair()
    with pytest.raises(RemoteProtocolError, match=f"uses protocol version 2, the client {version}"):
        pair.move(pair.client, pair.server, rewrite(change))
    assert "same release" in refusal_at_client(pair, RemoteProtocolError)
    assert pair.sent[pair.server][:3] == b"YA\x05"


def test_a_changed_welcome_is_noticed(make_pair):
    pair = make_pair()
    pair.move(pair.client, pair.server)
    pair.move(pair.server, pair.client)
    pair.move(pair.client, pair.server)
    with pytest.raises(RemoteProtocolError, match="tag"):
        pair.move(pair.server, pair.client, rewrite(lambda welcome: welcome.update(capabilities=["memfd"])))


def test_only_what_both_ends_can_do_is_agreed(make_pair):
    pair = make_pair(
        client_options={"capabilities": ("memfd", "future-thing")},
        server_options={"capabilities": ("tls", "memfd"), "max_lent_bytes": 1 << 20},
    ).open()
    assert pair.client.capabilities == pair.server.capabilities == {"memfd"}
    assert pair.client.welcome.capabilities == ("tls", "memfd")
    assert pair.client.welcome.max_lent_bytes == 1 << 20


@pytest.mark.parametrize(("asked", "named"), [(("packing",), ("lu", "site.sums")), ((), ())])
def test_what_takes_stacks_is_said_to_who_asks(make_pair, asked, named):
    names = ["lu", "site.sums", "x" * 65, *map(str, range(64))]
    pair = make_pair(client_options={"capabilities": asked}, server_options={"packable": names}).open()
    assert pair.client.welcome.packable[:2] == named
    assert len(pair.client.welcome.packable) == (64 if asked else 0)


def test_a_hello_of_a_newer_client_may_say_more(make_pair):
    pair = make_pair()
    assert pair.move(pair.client, pair.server, rewrite(lambda hello: hello.update(future=1))) is NEED_DATA


@pytest.mark.parametrize(
    "change",
    [
        lambda hello: hello.update(checksums=["none"]),
        lambda hello: hello.update(nonce="0" * 64),
        lambda hello: hello.update(capabilities=[]),
        lambda hello: hello.update(versions=[2, 1]),
    ],
    ids=["checksum", "nonce", "capabilities", "versions"],
)
def test_a_changed_hello_makes_the_proofs_fail(make_pair, change):
    pair = make_pair(
        client_options={"checksums": ("crc32", "none"), "capabilities": ("memfd",)},
        server_options={"checksums": ("none", "crc32"), "capabilities": ("memfd",)},
    )
    pair.move(pair.client, pair.server, rewrite(change))
    refusal_at_client(pair, AuthenticationError)


@pytest.mark.parametrize(
    "change",
    [
        lambda challenge: challenge.update(checksum="none"),
        lambda challenge: challenge.update(server="other"),
        lambda challenge: challenge.update(nonce="0" * 64),
        lambda challenge: challenge.update(version=0),
    ],
    ids=["checksum", "server", "nonce", "version"],
)
def test_a_changed_challenge_makes_the_proofs_fail(make_pair, change):
    pair = make_pair(client_options={"checksums": ("crc32", "none")})
    pair.move(pair.client, pair.server)
    with pytest.raises(AuthenticationError):
        pair.move(pair.server, pair.client, rewrite(change))


def test_a_recorded_client_is_refused_by_a_server_with_another_nonce(make_pair):
    recorded = make_pair().open().sent
    second = make_pair(nonces=(b"c" * 32, b"t" * 32))
    client_bytes = recorded[next(iter(recorded))]
    second.server.receive_data(client_bytes)
    with pytest.raises(AuthenticationError):
        second.server.next_event()


def test_a_recorded_server_is_refused_by_a_client_with_another_nonce(make_pair):
    recorded = make_pair().open().sent
    server_bytes = recorded[list(recorded)[1]]
    pair = make_pair(nonces=(b"d" * 32, b"s" * 32))
    pair.client.receive_data(server_bytes)
    with pytest.raises(AuthenticationError):
        pair.client.next_event()


def test_the_servers_proof_cannot_be_used_as_the_clients(make_pair):
    """Reflection: the attacker has no key and sends the server its own proof back."""
    pair = make_pair()
    pair.move(pair.client, pair.server)
    challenge = json.loads(b"".join(pair.server.data_to_send())[PREFIX_BYTES:])
    text = json.dumps({"proof": challenge["proof"]}).encode()
    pair.server.receive_data(pack_prefix(3, len(text), 0) + bytes(16) + text)
    with pytest.raises(AuthenticationError):
        pair.server.next_event()


def test_no_checksum_in_common(make_pair):
    pair = make_pair(client_options={"checksums": ("none",)})
    with pytest.raises(RemoteProtocolError, match="no checksum in common"):
        pair.move(pair.client, pair.server)
    refusal_at_client(pair, RemoteProtocolError)


def test_a_full_server_says_so(make_pair):
    pair = make_pair()
    pair.server.refuse("too-many-connections", "512 already", 3)
    with pytest.raises(UnavailableError) as caught:
        pair.move(pair.server, pair.client)
    assert caught.value.retry_after_s == 3


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pack_prefix(23, 8, 0) + bytes(24), "does not belong to the handshake"),
        (pack_prefix(1, 8193, 0) + bytes(16), "8193"),
        (pack_prefix(1, 10, 1) + bytes(16), "payload"),
        (b"", "in the middle"),
    ],
    ids=["a request", "a large header, before it arrives", "a payload", "the end"],
)
def test_what_does_not_belong_to_a_handshake_is_refused(make_pair, data, text):
    server = make_pair().server
    server.receive_data(data)
    with pytest.raises(RemoteProtocolError, match=text):
        server.next_event()


def test_nonces_have_their_length():
    credential = issue(MASTER, "alice", 2_000_000_000, "k1")
    with pytest.raises(LocalProtocolError):
        ClientConnection(credential, b"short")
    with pytest.raises(LocalProtocolError):
        ServerConnection(MASTER, b"short", NOW_S, "w1")


def test_nothing_can_be_sent_before_it_is_open(make_pair):
    with pytest.raises(LocalProtocolError, match="not open"):
        make_pair().client.send(Ping(1))
    assert make_pair().server.goodbye("x", "y") == []
