"""More than anybody may ask for, and other protocols: bounded, and the others are served."""

import socket
import threading
import time

import pytest

from tests.integration.pipeline.attackers import assert_serves, footprint, read_to_the_end, statistics
from yarn_accel.wire import Busy, Ping, Request, Result, StatsRequest, TensorSpec

MIB = 1 << 20


def request(client, operation, *specs):
    return Request(client.new_id(), f"{operation}{client.next_id}", operation, {}, specs)


@pytest.mark.parametrize(
    "message",
    [
        lambda client: client.frame(Ping(1)),
        lambda client: client.frame(StatsRequest(client.new_id())),
        lambda client: client.frame(request(client, "echo", TensorSpec("|u1", (65536,))), [bytes(65536)]),
        lambda client: client.frame(request(client, "nonsense")),
    ],
    ids=["pings", "statistics", "echoes", "nonsense"],
)
def test_a_flood_from_a_client_that_never_reads(server, alice, unharmed, raw, message):
    """Its answers are not kept without bound, and it stops nobody else."""
    client = raw(unix=True)
    client.sock.settimeout(0.3)
    until_s, n_sent = time.monotonic() + 2.0, 0
    while time.monotonic() < until_s:
        try:
            client.sock.sendall(message(client))
        except OSError:
            break
        n_sent += 1
        if n_sent % 500 == 0:
            assert footprint(server.process.pid).rss_bytes < unharmed.rss_bytes + 150 * MIB
    assert_serves(server, alice)
    print(f"{n_sent} messages before it was stopped")
    client.close()


def test_answers_of_a_connection_beyond_its_window(raw):
    """More requests at once than allowed get Busy, and the rest their results: each exactly one answer."""
    client = raw(unix=True)
    n_requests = 300
    spec = TensorSpec("|u1", (64,))
    frames = b"".join(
        client.frame(Request(number, f"win{number}", "echo", {}, (spec,)), [bytes(64)])
        for number in range(1, n_requests + 1)
    )
    threading.Thread(target=client.push, args=(frames,)).start()
    answered = {}
    while len(answered) < n_requests:
        event = client.event()
        assert isinstance(event, Result | Busy), event
        assert event.id not in answered
        answered[event.id] = type(event)
    assert sorted(answered) == list(range(1, n_requests + 1))


def test_another_protocol(server, alice):
    broken = statistics(server, alice)["broken"]
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
    for text in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", hello, bytes(64), b"SSH-2.0-x\r\n"):
        with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
            sock.settimeout(60)
            sock.sendall(text)
            sock.shutdown(socket.SHUT_WR)
            assert not read_to_the_end(sock).startswith(b"HTTP")
    until_s = time.monotonic() + 60
    while statistics(server, alice)["broken"] < broken + 4:
        assert time.monotonic() < until_s
        time.sleep(0.05)
