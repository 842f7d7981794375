"""Who does not have the key, or repeats what somebody with it said, gets nowhere."""

import os
import socket
import time

import pytest

from tests.integration.pipeline.attackers import read_to_the_end, statistics
from tests.integration.pipeline.conftest import MASTER
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError, AuthenticationError
from yarn_accel.wire import ClientConnection, Goodbye, Ping, Request, TensorSpec
from yarn_accel.wire.credential import Credential, issue

SPEC = TensorSpec("|u1", (1_000_000,))
MATRIX = TensorSpec("<f8", (4, 4))


def test_wrong_secret_forged_tenant_and_expired(server, alice, unharmed):
    stolen = issue(b"another master secret of 32 bytes", "alice", alice.expires_s, "k1")
    forged = Credential("root", alice.expires_s, "k1", alice.key)
    longer = Credential("alice", alice.expires_s + 10**6, "k1", alice.key)
    expired = issue(MASTER, "alice", int(time.time()) - 5, "k1")
    before = statistics(server, alice)["refused"]
    for wrong, text in (*((each, "not know") for each in (stolen, forged, longer)), (expired, "expired")):
        with pytest.raises(AuthenticationError, match=text), Client(server.endpoint, wrong):
            pass
    # Three saw by themselves that the server's proof is wrong; the last one is notified before it is counted.
    until_s = time.monotonic() + 60
    while statistics(server, alice)["refused"] <= before:
        assert time.monotonic() < until_s, "the expired one was never counted"
        time.sleep(0.05)


def test_a_replayed_handshake(server, alice):
    """What was sent once opens nothing again: the server's nonce is another one."""
    connection = ClientConnection(alice, os.urandom(32), ("crc32",))
    sent = []
    with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
        while connection.welcome is None:
            for part in connection.data_to_send():
                sent.append(bytes(part))
                sock.sendall(part)
            connection.receive_data(sock.recv(65536))
            connection.next_event()
        request = connection.send(Request(1, "stolen", "echo", {}, (MATRIX,)), [bytes(128)])
        sent.append(b"".join(bytes(part) for part in request))
    assert len(sent) == 3
    done = statistics(server, alice)["done"]
    with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
        sock.settimeout(60)
        sock.sendall(sent[0])
        assert len(sock.recv(65536)) > 100, "a Challenge"
        sock.sendall(sent[1] + sent[2])
        answer = read_to_the_end(sock)
    assert b"max_in_flight" not in answer, "no Welcome"
    assert statistics(server, alice)["done"] == done


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"versions":[2]', b'"versions":[1]'),
        (b'"versions":[2]', b'"versions":[2,1]'),
        (b'"checksums":["xxh3","crc32"]', b'"checksums":["crc32"]'),
        (b'"capabilities":["memfd"]', b'"capabilities":[]'),
        (b'"tenant', b'"Tenant'),
    ],
)
def test_somebody_in_between_who_changes_the_hello(server, alice, old, new):
    """A downgrade of version, checksum or capabilities makes the proofs fail, or there is no such version."""
    connection = ClientConnection(alice, os.urandom(32), ("xxh3", "crc32"), capabilities=("memfd",))
    hello = b"".join(connection.data_to_send()).replace(b'\\"', b'\\"')
    changed = hello.replace(old, new, 1)
    if changed == hello:
        changed = hello.replace(old.replace(b":", b": "), new, 1)
    assert changed != hello, hello
    n_header = len(changed) - 32
    changed = changed[:4] + n_header.to_bytes(4, "big") + changed[8:]
    with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
        sock.settimeout(60)
        sock.sendall(changed)
        connection.receive_data(sock.recv(65536))
        with pytest.raises(AccelError, match=r"secret|version|credential|not know|refuse"):
            connection.next_event()
    assert connection.welcome is None


@pytest.mark.parametrize("at", range(16))
def test_each_byte_of_a_tag_counts(raw, at):
    client = raw()
    frame = bytearray(client.frame(Ping(7)))
    frame[16 + at] ^= 1
    client.push(frame)
    (event,) = client.ends()
    assert "tag" in event.message


def test_a_frame_sent_twice_and_a_frame_of_another_connection(raw):
    first, second = raw(), raw()
    frame = first.frame(Request(1, "twice", "echo", {}, (MATRIX,)), [bytes(128)])
    first.push(frame + frame)
    events = first.ends()
    assert isinstance(events[-1], Goodbye)
    assert "replayed" in events[-1].message
    second.push(frame)
    (event,) = second.ends()
    assert "tag" in event.message


def test_a_damaged_payload_is_not_computed(server, alice, raw):
    done = statistics(server, alice)["done"]
    for checksum in ("crc32", "crc32c", "xxh3"):
        client = raw(checksum=checksum)
        frame = bytearray(client.frame(Request(1, "k", "echo", {}, (SPEC,)), [bytes(SPEC.nbytes)]))
        frame[-1000] = 1
        client.push(frame)
        (event,) = client.ends()
        assert "checksum" in event.message
    assert statistics(server, alice)["done"] == done
