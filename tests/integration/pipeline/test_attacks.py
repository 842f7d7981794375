"""Clients that lie, stall, leave or talk nonsense: the server ends them and serves the others."""

import contextlib
import random
import socket
import time

import numpy as np
import pytest

from yarn_accel.client.client import Call, Client, Tensor
from yarn_accel.errors import AuthenticationError, UnavailableError
from yarn_accel.wire import NEED_DATA, ClientConnection, Goodbye, Request, TensorSpec
from yarn_accel.wire.credential import Credential, issue

SPEC = TensorSpec("|u1", (1_000_000,))
REQUEST = Request(1, "k", "echo", {}, (SPEC,))


class RawClient:
    """The protocol object on a plain socket, so that a test decides which bytes go."""

    def __init__(self, server, credential, checksum="crc32"):
        self.sock = socket.create_connection((server.endpoint.host, server.endpoint.port))
        self.sock.settimeout(20)
        self.connection = ClientConnection(credential, b"n" * 32, (checksum,))
        while self.connection.welcome is None:
            self.flush()
            self.connection.receive_data(self.sock.recv(65536))
            self.connection.next_event()
            self.flush()

    def flush(self):
        for part in self.connection.data_to_send():
            self.sock.sendall(part)

    def send(self, message, payload=(), n_bytes=None):
        self.sock.sendall(b"".join(bytes(part) for part in self.connection.send(message, payload))[:n_bytes])

    def next_event(self):
        while (event := self.connection.next_event()) is NEED_DATA:
            self.connection.receive_data(self.sock.recv(65536))
        return event

    def is_closed_by_server(self):
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True


@pytest.fixture
def connect(credential):
    clients = []

    def connect(server, **options):
        clients.append(RawClient(server, credential, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.sock.close()


def assert_serves(server, credential):
    with Client(server.endpoint, credential) as client:
        reply = client.call(Call("proof-of-life", "lu", {}, (Tensor.of(np.eye(4)),)))
    assert reply.info["n"] == 4


def test_a_client_that_stops_inside_a_payload(start_server, credential, connect, wait_until):
    server = start_server(stall_timeout_s=0.2, queue_bytes=1 << 20, max_request_bytes=1 << 20)
    client = connect(server)
    client.send(REQUEST, [bytes(SPEC.nbytes)], n_bytes=5000)
    wait_until(lambda: server.stats()["queues"]["read"]["bytes"] == SPEC.nbytes, "memory is reserved for it")
    assert_serves(server, credential)
    wait_until(lambda: server.stats()["broken"] == 1, "the server gave it up", 60)
    assert server.stats()["queues"]["read"]["bytes"] == 0


def test_a_client_that_sends_a_header_byte_by_byte(start_server, credential, connect, wait_until):
    server = start_server(stall_timeout_s=0.3)
    client = connect(server)
    frame = b"".join(bytes(part) for part in client.connection.send(REQUEST, [bytes(SPEC.nbytes)]))
    with pytest.raises(ConnectionError):  # noqa: PT012 -- sending goes on until the server closes
        for byte in frame[:500]:
            client.sock.sendall(bytes([byte]))
            time.sleep(0.02)
    assert server.stats()["broken"] == 1
    assert_serves(server, credential)


def test_a_client_that_dies_inside_a_frame(start_server, credential, connect, wait_until):
    server = start_server()
    client = connect(server)
    client.send(REQUEST, [bytes(SPEC.nbytes)], n_bytes=5000)
    client.sock.close()
    wait_until(lambda: server.stats()["abandoned"] == 1, "the loss was noticed")
    wait_until(lambda: server.stats()["queues"]["read"]["bytes"] == 0, "its memory was given back")
    assert_serves(server, credential)


def test_a_client_that_never_reads(start_server, credential, connect, wait_until):
    server = start_server(stall_timeout_s=0.3, write_threads=1)
    client = connect(server)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    data = bytes(8 << 20)
    client.send(Request(1, "k", "echo", {}, (TensorSpec("|u1", (8 << 20,)),)), [data])
    wait_until(lambda: server.stats()["queues"]["write"]["peak_bytes"] == 8 << 20, "the answer is on its way")
    assert_serves(server, credential)
    wait_until(lambda: server.stats()["queues"]["write"]["bytes"] == 0, "its memory was given back", 60)


def test_a_client_that_never_says_hello(start_server, credential, wait_until):
    server = start_server(handshake_timeout_s=0.2)
    with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
        sock.settimeout(20)
        assert sock.recv(1) == b""
    assert_serves(server, credential)


def test_a_payload_longer_than_its_tensors(start_server, credential, connect):
    server = start_server()
    client = connect(server)
    from yarn_accel.wire import messages

    kind, header = messages.encode(REQUEST)
    client.sock.sendall(client.connection._head(kind, header, SPEC.nbytes + 1))
    event = client.next_event()
    assert isinstance(event, Goodbye)
    assert "1000000 bytes but its payload has 1000001" in event.message
    assert client.is_closed_by_server()
    assert_serves(server, credential)


def test_a_damaged_payload_ends_the_connection_and_is_not_computed(start_server, credential, connect):
    server = start_server()
    client = connect(server)
    frame = bytearray(b"".join(bytes(part) for part in client.connection.send(REQUEST, [bytes(SPEC.nbytes)])))
    frame[-1000] = 1
    client.sock.sendall(frame)
    event = client.next_event()
    assert isinstance(event, Goodbye)
    assert "crc32" in event.message
    assert server.stats()["done"] == 0


def test_another_protocol(start_server, credential, wait_until):
    server = start_server()
    with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
        sock.settimeout(20)
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(100) == b""
    wait_until(lambda: server.stats()["broken"] == 1, "it was counted")
    assert_serves(server, credential)


def test_a_thousand_damaged_streams(start_server, credential, connect, wait_until):
    """Every stream is one good conversation with a few bytes changed; memory is given back each time."""
    server = start_server(stall_timeout_s=2.0)
    rng = random.Random(11)
    spec = TensorSpec("<f8", (4, 4))
    for _ in range(1000):
        client = RawClient(server, credential)
        frames = bytearray()
        for number in range(3):
            request = Request(number, f"k{number}", "lu", {}, (spec,))
            frames += b"".join(bytes(part) for part in client.connection.send(request, [bytes(128)]))
        for _ in range(rng.randint(1, 4)):
            frames[rng.randrange(len(frames))] = rng.randrange(256)
        client.sock.sendall(frames[: rng.randint(1, len(frames))])
        client.sock.close()
    wait_until(lambda: not server.stats()["open_connections"], "all connections ended", 60)
    stats = server.stats()
    assert stats["in_flight"] == 0
    assert stats["connections"] == 1000
    assert stats["queues"]["read"]["bytes"] == stats["queues"]["write"]["bytes"] == 0
    assert_serves(server, credential)


def test_wrong_credentials_get_one_clear_error(start_server, credential, issue_to):
    server = start_server()
    stolen = issue(b"another master secret of 32 bytes", "alice", credential.expires_s, "k1")
    forged = Credential("root", credential.expires_s, "k1", credential.key)
    expired = issue_to("alice", -5)
    for wrong, text in ((stolen, "not know the secret"), (forged, "not know"), (expired, "has expired")):
        with pytest.raises(AuthenticationError, match=text) as caught, Client(server.endpoint, wrong):
            pass
        assert "w1 (127.0.0.1:" in str(caught.value)
    assert_serves(server, credential)


def test_a_credential_that_expires_on_an_open_connection(start_server, issue_to):
    server = start_server()
    with Client(server.endpoint, issue_to("alice", 2)) as client:
        assert client.call(Call("k", "echo")).info == {"params": {}}
        time.sleep(2.2)
        with pytest.raises(UnavailableError, match="the connection"):
            client.call(Call("k2", "echo"))


def test_more_connections_than_allowed(start_server, credential):
    server = start_server(max_connections=2)
    with Client(server.endpoint, credential) as first, Client(server.endpoint, credential):
        with pytest.raises(UnavailableError, match="2 connections already") as caught:
            Client(server.endpoint, credential).connect()
        assert caught.value.retry_after_s > 0
        assert first.call(Call("k", "echo")).server == "w1"
