"""Responses leave in order, a peer that does not read them blocks nobody, and TLS never waits."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import threading
import time

import pytest

from yarn_accel import wire
from yarn_accel.errors import StartupError
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.transport import ResponseWriter, SocketCarrier, TlsCarrier, server_context
from yarn_accel.wire.credential import issue

MASTER = bytes(32)
MIB = 1 << 20


class Pair:
    """A writer, and the client at the other end of its socket."""

    def __init__(self, checksum):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        credential = issue(MASTER, "alice", int(time.time()) + 3600, "k1")
        self.client = wire.ClientConnection(credential, os.urandom(32), (checksum,))
        server = wire.ServerConnection(MASTER, os.urandom(32), time.time(), "w1", (checksum, "none"))
        for _ in range(3):
            for here, there in ((self.client, server), (server, self.client)):
                for part in here.data_to_send():
                    there.receive_data(part)
                while not isinstance(event := there.next_event(), type(wire.NEED_DATA)):
                    assert isinstance(event, wire.Opened)
        self.over = []
        self.is_blocked = False
        self.writer = ResponseWriter(
            SocketCarrier(self.ours, "unix"), server, 0.2, 1 << 30, self._over, self._blocked
        )
        self.writer.is_open = True

    def _over(self, reply, was_sent):
        self.over.append((reply, was_sent))

    def _blocked(self, is_wanted):
        self.is_blocked = is_wanted

    def read(self, n_messages):
        """The next messages, with their payloads; the writer goes on whenever it can."""
        found = []
        buffer = None
        while len(found) < n_messages:
            event = self.client.next_event()
            if event is wire.NEED_DATA:
                if self.is_blocked:
                    self.writer.flush()
                self.client.receive_data(self.theirs.recv(1 << 16))
            elif isinstance(event, wire.Result) and self.client.payload_left:
                buffer = bytearray(self.client.payload_left)
                found.append((event, buffer))
                self.client.take_payload([memoryview(buffer)])
                while self.client.next_event() is wire.NEED_DATA:
                    self.writer.flush()
                    self.client.receive_data(self.theirs.recv(1 << 16))
            else:
                found.append((event, b""))
        return found


@pytest.fixture(params=["none", "crc32"])
def pair(request):
    pair = Pair(request.param)
    yield pair
    pair.ours.close()
    pair.theirs.close()


def result(number, n_bytes):
    tensors = (wire.NamedTensor("a", wire.TensorSpec("|u1", (n_bytes,))),)
    return wire.Result(number, {}, tensors, "w1", "cpu", {"total": 0.1}, 0, n_bytes)


def test_what_does_not_fit_waits_and_all_that_comes_after_it(pair):
    payload = memoryview(os.urandom(5 * MIB))
    pair.writer.post(result(1, len(payload)), (payload[:MIB], payload[MIB:]), 1)
    pair.writer.post(wire.Pong(3), reply=2)
    pair.writer.post(result(2, 3), (memoryview(b"xyz"),), 3)
    assert pair.over == []
    assert pair.is_blocked
    assert pair.writer.n_waiting == 3
    (_, first), (pong, _), (_, third) = pair.read(3)
    assert (first, pong, third) == (payload, wire.Pong(3), b"xyz")
    assert pair.over == [(1, True), (2, True), (3, True)]
    assert not pair.is_blocked


def test_what_cannot_be_said_is_said_as_a_failure(pair):
    pair.writer.post(result(5, 4), (memoryview(b"abcd"),))
    bad = wire.Result(9, {"a": {1, 2}}, (), "w1", "cpu", {}, 0, 0)
    pair.writer.post(bad, (), 4)
    (first, _), (second, _) = pair.read(2)
    assert (first.id, second.id, second.code) == (5, 9, "unsendable-result")
    assert pair.over == [(4, True)]


def test_a_lost_peer_is_an_error_and_nothing_is_forgotten(pair):
    pair.theirs.close()
    with pytest.raises(OSError):  # noqa: PT011 -- whichever it is
        pair.writer.post(wire.Pong(1), reply=1)
    pair.writer.close()
    pair.writer.post(wire.Pong(2), reply=2)
    assert pair.over == [(1, False), (2, False)]


def test_the_last_word_goes_only_where_no_other_is_half_said(pair):
    assert pair.writer.goodbye("protocol-error", "nonsense")
    pair.writer.post(result(1, 8 * MIB), (memoryview(bytes(8 * MIB)),))
    assert not pair.writer.goodbye("protocol-error", "nonsense")


def config(folder, **settings):
    return PipelineConfig(master_secret_file=folder / "secret", **settings)


@pytest.fixture
def ends(certificate):
    """The carrier, and the plain socket at its other end."""
    files = {"tls_cert_file": str(certificate / "cert.pem"), "tls_key_file": str(certificate / "key.pem")}
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    carrier = TlsCarrier(ours, server_context(config(certificate, **files)))
    theirs.settimeout(120)
    yield carrier, theirs
    carrier.close()
    theirs.close()


@contextlib.contextmanager
def client(theirs, certificate, work):
    """Do something with the client's TLS socket in a thread."""
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))

    def run():
        with context.wrap_socket(theirs, server_hostname="127.0.0.1") as sock:
            work(sock)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(120)
    assert not thread.is_alive()


def take_tickets(sock):
    """Receive what the server says after the handshake: closing with unread bytes resets the connection."""
    sock.settimeout(0.0)
    with contextlib.suppress(ssl.SSLWantReadError):
        sock.recv(1)


def received(carrier, n_bytes):
    """So many bytes, or those until the peer's end."""
    data = bytearray()
    scratch = memoryview(bytearray(1000))
    while len(data) < n_bytes:
        try:
            n = carrier.receive_into(scratch)
        except BlockingIOError:
            continue
        if not n:
            break
        data += scratch[:n]
    return bytes(data)


def taken(carrier):
    """How much of 1 MiB is taken at once; 0: nothing goes now."""
    try:
        return carrier.send([bytes(MIB)])
    except BlockingIOError:
        return 0


def sent(carrier, data):
    left = memoryview(data)
    while len(left) or carrier.has_unsent:
        with contextlib.suppress(BlockingIOError):
            left = left[carrier.send([left]) :]
            carrier.flush()


def test_what_was_decrypted_and_not_taken_is_at_hand(ends, certificate):
    """No descriptor tells of it: who waits for one would wait for ever."""
    carrier, theirs = ends
    release = threading.Event()

    def work(sock):
        sock.sendall(bytes(5000))
        assert release.wait(120)
        take_tickets(sock)

    with client(theirs, certificate, work):
        assert len(received(carrier, 1000)) == 1000
        assert carrier.has_received
        assert len(received(carrier, 4000)) == 4000
        release.set()
        assert received(carrier, 1) == b""


def test_a_peer_that_does_not_read_holds_no_more_than_a_bound(ends, certificate):
    carrier, theirs = ends
    release = threading.Event()

    def work(sock):
        sock.sendall(b"!")
        release.wait(120)

    with client(theirs, certificate, work):
        assert received(carrier, 1) == b"!"
        n_taken = sum(itertools.takewhile(bool, (taken(carrier) for _ in range(64))))
        assert carrier.has_unsent
        assert n_taken < 2 * MIB
        release.set()


def test_an_end_without_goodbye_is_an_end(ends, certificate):
    carrier, theirs = ends
    release = threading.Event()

    def work(sock):
        sock.sendall(b"last")
        assert release.wait(120)
        take_tickets(sock)
        # Without close_notify.
        socket.socket(fileno=sock.detach()).close()

    with client(theirs, certificate, work):
        assert received(carrier, 4) == b"last"
        release.set()
        assert received(carrier, 1) == b""


def test_a_certificate_that_cannot_be_used_is_named(certificate, tmp_path):
    assert server_context(config(tmp_path)) is None
    (tmp_path / "cert.pem").write_text("nonsense")
    files = {"tls_cert_file": str(tmp_path / "cert.pem"), "tls_key_file": str(certificate / "key.pem")}
    with pytest.raises(StartupError, match="TLS cannot be used"):
        server_context(config(tmp_path, **files))
