"""Responses leave in order, and a peer that does not read them blocks nobody."""

import os
import socket
import time

import pytest

from yarn_accel.pipeline.carriers import SocketCarrier
from yarn_accel.pipeline.response_writer import ResponseWriter
from yarn_accel.wire import (
    NEED_DATA,
    ClientConnection,
    NamedTensor,
    Opened,
    Ping,
    Pong,
    Result,
    ServerConnection,
    TensorSpec,
)
from yarn_accel.wire.credential import issue

MASTER = bytes(32)
MIB = 1 << 20


class Pair:
    """A writer, and the client at the other end of its socket."""

    def __init__(self, checksum):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        credential = issue(MASTER, "alice", int(time.time()) + 3600, "k1")
        self.client = ClientConnection(credential, os.urandom(32), (checksum,))
        server = ServerConnection(MASTER, os.urandom(32), time.time(), "w1", (checksum, "none"))
        for _ in range(3):
            for here, there in ((self.client, server), (server, self.client)):
                for part in here.data_to_send():
                    there.receive_data(part)
                while not isinstance(event := there.next_event(), type(NEED_DATA)):
                    assert isinstance(event, Opened)
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
            if event is NEED_DATA:
                if self.is_blocked:
                    self.writer.flush()
                self.client.receive_data(self.theirs.recv(1 << 16))
            elif isinstance(event, Result) and self.client.payload_left:
                buffer = bytearray(self.client.payload_left)
                found.append((event, buffer))
                self.client.take_payload([memoryview(buffer)])
                while self.client.next_event() is NEED_DATA:
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
    tensors = (NamedTensor("a", TensorSpec("|u1", (n_bytes,))),)
    return Result(number, {}, tensors, "w1", "cpu", {"total": 0.1}, 0, n_bytes)


def test_what_fits_goes_at_once(pair):
    payload = memoryview(b"abcd")
    pair.writer.post(result(1, 4), (payload,), 7)
    pair.writer.post(Pong(3))
    assert pair.over == [(7, True)]
    assert not pair.is_blocked
    (first, data), (second, _) = pair.read(2)
    assert (first.id, bytes(data), second) == (1, b"abcd", Pong(3))


def test_what_does_not_fit_waits_and_all_that_comes_after_it(pair):
    payload = memoryview(os.urandom(5 * MIB))
    pair.writer.post(result(1, len(payload)), (payload[:MIB], payload[MIB:]), 1)
    pair.writer.post(Pong(3), reply=2)
    pair.writer.post(result(2, 3), (memoryview(b"xyz"),), 3)
    assert pair.over == []
    assert pair.is_blocked
    assert pair.writer.n_waiting == 3
    (_, first), (pong, _), (_, third) = pair.read(3)
    assert (first, pong, third) == (payload, Pong(3), b"xyz")
    assert pair.over == [(1, True), (2, True), (3, True)]
    assert not pair.is_blocked


def test_a_descriptor_travels_with_the_first_byte(pair):
    with open("/dev/null") as file:  # noqa: PTH123
        pair.writer.post(Pong(1), fd=file.fileno())
        _, fds, _, _ = socket.recv_fds(pair.theirs, 1000, 4)
        assert os.fstat(fds[0]).st_rdev == os.fstat(file.fileno()).st_rdev
        os.close(fds[0])


def test_what_cannot_be_said_is_said_as_a_failure(pair):
    pair.writer.post(result(5, 4), (memoryview(b"abcd"),))
    bad = Result(9, {"a": {1, 2}}, (), "w1", "cpu", {}, 0, 0)
    pair.writer.post(bad, (), 4)
    (first, _), (second, _) = pair.read(2)
    assert (first.id, second.id, second.code) == (5, 9, "unsendable-result")
    assert pair.over == [(4, True)]


def test_who_does_not_read_is_given_up(pair):
    pair.writer.post(result(1, 8 * MIB), (memoryview(bytes(8 * MIB)),), 1)
    pair.writer.check_pace(100.0)
    pair.writer.check_pace(100.1)
    with pytest.raises(TimeoutError):
        pair.writer.check_pace(101.0)
    pair.writer.close()
    assert pair.over == [(1, False)]


def test_a_lost_peer_is_an_error_and_nothing_is_forgotten(pair):
    pair.theirs.close()
    with pytest.raises(OSError):  # noqa: PT011 -- whichever it is
        pair.writer.post(Pong(1), reply=1)
    pair.writer.close()
    pair.writer.post(Pong(2), reply=2)
    assert pair.over == [(1, False), (2, False)]


def test_the_last_word_goes_only_where_no_other_is_half_said(pair):
    assert pair.writer.goodbye("protocol-error", "nonsense")
    pair.writer.post(result(1, 8 * MIB), (memoryview(bytes(8 * MIB)),))
    assert not pair.writer.goodbye("protocol-error", "nonsense")


def test_before_the_handshake_is_over_nothing_is_sent(pair):
    pair.writer.is_open = False
    pair.writer.post(Ping(1), reply=1)
    assert pair.over == [(1, False)]
    assert not pair.writer.goodbye("x", "y")
