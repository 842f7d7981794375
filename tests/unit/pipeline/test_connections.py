"""One connection of the server: a real socket, a real loop, and a client that decides which bytes go."""

import os
import socket
import threading
import time

import pytest

from yarn_accel.adapters.credentials import RevocationList
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.connections import Session
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.pipeline.transport import SocketCarrier
from yarn_accel.wire import (
    NEED_DATA,
    ClientConnection,
    Closed,
    Goodbye,
    Opened,
    PayloadComplete,
    Ping,
    Pong,
    Request,
    TensorSpec,
)
from yarn_accel.wire.credential import issue

MASTER = bytes(32)
LARGE = TensorSpec("|u1", (1 << 20,))
LONG_S = 1e6


class Server:
    """What is behind the sessions: notes what it hears, and answers nothing by itself."""

    def __init__(self):
        self.heard = []
        self.is_broken = False

        self.handlers = {
            Request: self.requested,
            Closed: lambda session, _: self.heard.append(session.how_ended),
            PayloadComplete: lambda session, _: self.heard.append("arrived"),
            Opened: lambda session, _: None,
        }

    def requested(self, session, request):
        if self.is_broken:
            raise TypeError("broken by the test")
        self.heard.append(request.key)


class Ends:
    """A session, and the client at its other end."""

    def __init__(self, loop, folder, lifetime_s=3600, refusal=None):
        ours, theirs = socket.socketpair()
        self.loop, self.theirs, self.server = loop, theirs, Server()
        self.theirs.settimeout(120)
        settings = PipelineConfig(master_secret_file=folder / "secret", name="w1")
        carrier = SocketCarrier(ours, "unix")
        calls = self.server.handlers, lambda session: None, lambda reply, was_sent: None
        rest = loop, *calls, set(), refusal, RevocationList("")
        self.session = loop.ask(lambda: Session(carrier, settings, MASTER, *rest), 120.0)
        credential = issue(MASTER, "alice", int(time.time()) + lifetime_s, "k1")
        self.client = ClientConnection(credential, os.urandom(32), ("none",))

    def open(self):
        while self.client.welcome is None:
            self.event()
        return self

    def flush(self):
        for part in self.client.data_to_send():
            self.theirs.sendall(part)

    def send(self, message, payload=(), n_bytes=None):
        frame = b"".join(bytes(part) for part in self.client.send(message, payload))
        self.theirs.sendall(frame[:n_bytes])

    def event(self):
        while (event := self.client.next_event()) is NEED_DATA:
            self.flush()
            data = self.theirs.recv(65536)
            self.client.receive_data(data)
            if not data:
                return Closed()
        return event

    def in_loop(self, call):
        return self.loop.ask(call, 120.0)

    def wait_heard(self, what):
        until_s = time.monotonic() + 120
        while what not in self.server.heard:
            assert time.monotonic() < until_s, self.server.heard
            time.sleep(0.002)


@pytest.fixture
def connect(tmp_path):
    """A function that makes both ends of a connection."""
    loop = EventLoop()
    thread = threading.Thread(target=loop.run)
    thread.start()
    made = []

    def make(**options):
        made.append(Ends(loop, tmp_path, **options))
        return made[-1]

    yield make
    for ends in made:
        ends.in_loop(ends.session.close)
        ends.theirs.close()
    loop.stop()
    thread.join()
    loop.close()


def request(number, key, *inputs):
    return Request(number, key, "echo", {}, inputs)


def test_a_payload_waits_until_its_request_has_memory(connect):
    ends = connect().open()
    payload = os.urandom(LARGE.nbytes)
    sender = threading.Thread(target=lambda: ends.send(request(1, "first", LARGE), [payload]), daemon=True)
    sender.start()
    ends.wait_heard("first")
    assert sender.is_alive(), "the socket holds less than the payload"
    memory = bytearray(LARGE.nbytes)
    ends.in_loop(lambda: ends.session.receive(1, [memoryview(memory)]))
    ends.wait_heard("arrived")
    assert memory == payload


def test_the_next_request_is_heard_when_the_one_before_is_seen_to(connect):
    ends = connect().open()
    for number, key in enumerate(("first", "second"), 1):
        ends.send(request(number, key))
    ends.wait_heard("first")
    assert ends.in_loop(lambda: list(ends.server.heard)) == ["first"]
    ends.in_loop(lambda: ends.session.go_on(1))
    ends.wait_heard("second")


def test_a_payload_nobody_wants_is_read_past(connect):
    ends = connect().open()
    sender = threading.Thread(
        target=lambda: ends.send(request(1, "first", LARGE), [bytes(LARGE.nbytes)]), daemon=True
    )
    sender.start()
    ends.wait_heard("first")
    ends.in_loop(ends.session.skip)
    sender.join(120)
    ends.send(request(2, "second"))
    ends.wait_heard("second")
    assert "arrived" not in ends.server.heard


@pytest.mark.parametrize("is_open", [False, True], ids=["in the handshake", "in a frame"])
def test_a_peer_that_stops_in_the_middle_is_ended_when_its_time_is_over(connect, is_open):
    ends = connect()
    if is_open:
        ends.open().send(Ping(1), n_bytes=5)
        until_s = time.monotonic() + 120
        while ends.in_loop(lambda: ends.session.is_idle):
            assert time.monotonic() < until_s
    now_s = time.monotonic()
    ends.in_loop(lambda: ends.session.check(now_s))
    assert ends.server.heard == []
    ends.in_loop(lambda: ends.session.check(now_s + LONG_S))
    ends.wait_heard("broken")


def test_a_quiet_peer_is_never_ended(connect):
    ends = connect().open()
    ends.in_loop(lambda: ends.session.check(time.monotonic() + LONG_S))
    ends.send(Ping(7))
    assert ends.event() == Pong(7)


def test_a_fault_of_the_server_ends_the_connection_with_a_reason(connect):
    """Whoever waits for an answer here would wait for ever."""
    ends = connect().open()
    ends.server.is_broken = True
    ends.send(request(1, "first"))
    event = ends.event()
    assert isinstance(event, Goodbye)
    assert "the server broke" in event.message


def test_damaged_bytes_end_the_connection_with_a_reason(connect):
    ends = connect().open()
    ends.theirs.sendall(bytes(64))
    assert isinstance(ends.event(), Goodbye)
    ends.wait_heard("broken")


def test_a_client_that_goes_is_noted_once(connect):
    ends = connect().open()
    ends.theirs.close()
    ends.wait_heard("closed")
    ends.in_loop(ends.session.close)
    assert ends.server.heard == ["closed"]
