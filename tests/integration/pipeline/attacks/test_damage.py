"""Damaged, oversized, foreign frames: each ends its connection or is answered, and nothing grows."""

import concurrent.futures
import os
import socket
import struct

import pytest

from tests.examples import examples
from tests.integration.pipeline.attackers import Mutator, bombard, footprint, read_to_the_end, settled
from yarn_accel.errors import AccelError
from yarn_accel.wire import ClientConnection, Closed, Failed, Goodbye, Request, TensorSpec

MIB = 1 << 20
N_FRAMES = int(os.environ.get("YARN_ACCEL_ATTACK_FRAMES", examples(10400)))
MATRIX = TensorSpec("<f8", (4, 4))


@pytest.mark.parametrize("carrier", ["tcp", "unix, none, lending"])
def test_thousands_of_damaged_frames(server, alice, unharmed, carrier):
    """Each goes over a connection that still lives, so each is really looked at."""
    options = {} if carrier == "tcp" else {"unix": True, "lending": True}
    n_each = N_FRAMES // 8

    def attack(seed):
        return bombard(server.endpoint, alice, Mutator(seed), n_each, **options)

    attack(99) if n_each < 100 else bombard(server.endpoint, alice, Mutator(99), 300, **options)
    before = footprint(server.process.pid)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        tallies = list(threads.map(attack, range(4)))
    for tally in tallies:
        print(tally)
        assert tally.wrong == []
    assert sum(tally.n_frames for tally in tallies) >= N_FRAMES // 2
    assert sum(tally.ended for tally in tallies) > n_each
    assert sum(tally.answered for tally in tallies) > n_each // 5
    assert carrier == "tcp" or sum(tally.echoes_right for tally in tallies) > n_each // 200
    settled(server, alice)
    after = footprint(server.process.pid)
    print(
        f"{carrier}: server {before.own_bytes / MIB:.1f} -> {after.own_bytes / MIB:.1f} MiB, "
        f"workers {before.children_bytes / MIB:.1f} -> {after.children_bytes / MIB:.1f} MiB"
    )
    assert after.own_bytes - before.own_bytes < 12 * MIB
    assert after.n_children >= before.n_children


def test_damaged_handshakes(server, alice):
    """Every byte of Hello and Proof is touched once; none gets in, none stays."""
    n_tried = 0
    for seed in range(40):
        mutator = Mutator(seed)
        connection = ClientConnection(alice, os.urandom(32), ("crc32",))
        hello = b"".join(connection.data_to_send())
        with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
            sock.settimeout(60)
            damaged = mutator._flipped(hello)
            sock.sendall(damaged)
            sock.shutdown(socket.SHUT_WR)
            connection.receive_data(read_to_the_end(sock))
            with pytest.raises(AccelError):
                _all_events(connection)
            assert connection.welcome is None
        n_tried += 1
    assert n_tried == 40


def _all_events(connection):
    while True:
        connection.next_event()
        connection.receive_data(b"")


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        (struct.pack("!2sBBIQ", b"YA", 16, 9, 1 << 31, 0), "header"),
        (struct.pack("!2sBBIQ", b"YA", 16, 9, 40, (1 << 64) - 1), "payload"),
        (struct.pack("!2sBBIQ", b"YB", 16, 9, 40, 0), "this protocol"),
        (struct.pack("!2sBBIQ", b"YA", 1, 0, 40, 0), "kind 1"),
        (struct.pack("!2sBBIQ", b"YA", 255, 0, 40, 0), "kind 255"),
        (struct.pack("!2sBBIQ", b"YA", 17, 0, 40, 0), "kind 17"),
    ],
)
def test_a_prefix_that_may_not_be(raw, prefix, text):
    """Lengths are looked at before memory is taken, kinds before headers are read."""
    client = raw()
    client.push(client.tagged(prefix, bytes(40)))
    (event,) = client.ends()
    assert isinstance(event, Goodbye)
    assert text in event.message


@pytest.mark.parametrize("depth", [40, 200_000])
def test_parameters_nested_too_deep(raw, depth):
    client = raw()
    header = client.frame(Request(1, "k", "echo", {"p": []}, (MATRIX,)), [bytes(128)])
    client.connection._send_tags._sequence -= 1
    n_header = int.from_bytes(header[4:8], "big")
    old = header[32 : 32 + n_header]
    new = old.replace(b"[]", b"[" * depth + b"]" * depth, 1) if old.count(b"[]") == 1 else old[::-1]
    prefix = header[:4] + len(new).to_bytes(4, "big") + header[8:16]
    client.push(client.tagged(prefix, new, header[32 + n_header :]))
    assert isinstance(client.event(), Goodbye | Closed)


@pytest.mark.parametrize(
    "spec",
    [TensorSpec("|u1", (33 * MIB,)), TensorSpec("<f8", (1 << 40,)), TensorSpec("<f8", (1 << 20, 1 << 15))],
)
def test_more_than_the_server_takes_is_said_before_it_comes(raw, spec):
    client = raw()
    kind_head = client.connection.send_head(Request(1, "k", "echo", {}, (spec,)))[0]
    client.push(kind_head)
    event = client.event()
    assert isinstance(event, Failed | Goodbye), event
    assert isinstance(event, Goodbye) or event.code == "request-too-large"
