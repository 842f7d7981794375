"""Answers leave in order, nobody waits for a slow peer but its writer, and memory always comes back."""

import os
import socket
import struct
import threading
import time

import pytest

from yarn_accel.errors import LocalProtocolError
from yarn_accel.pipeline.budget import ByteBudget
from yarn_accel.pipeline.sending import Parcel, Sender
from yarn_accel.wire import Failed, State

MIB = 1 << 20


class Sum:
    """A checksum that is the number of bytes."""

    def __init__(self):
        self.n_bytes = 0

    def update(self, part):
        self.n_bytes += len(part)

    def digest(self):
        return struct.pack("!Q", self.n_bytes)


class Connection:
    """The protocol object as far as a sender needs it: a header is the message's text."""

    state = State.OPEN

    def __init__(self, is_summed):
        self.is_summed = is_summed

    def send_head(self, message):
        if isinstance(message, Failed):
            return b"F" + message.code.encode(), None
        if message == "bad":
            raise LocalProtocolError("not to be said")
        return message.encode(), Sum() if self.is_summed else None

    def goodbye(self, code, message):
        return [b"bye"]


class Ends:
    def __init__(self, is_summed=False, is_direct=True, stall_timeout_s=60.0):
        self.near, self.far = socket.socketpair()
        self.far.settimeout(60)
        timeout = struct.pack("@ll", 0, int(min(stall_timeout_s, 0.9) * 1e6))
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self.writing = ByteBudget(1 << 40)
        self.gone = []
        self.unsent = []
        self.lost = threading.Event()
        self.sender = Sender(
            self.near,
            Connection(is_summed),
            is_direct,
            stall_timeout_s,
            1 << 40,
            self.writing,
            lambda: None,
            self.lost.set,
        )
        self.sender.is_open = True

    def post(self, name, n_bytes=0):
        payload = (memoryview(os.urandom(n_bytes)),) if n_bytes else ()
        on_gone, on_unsent = (lambda: self.gone.append(name)), (lambda: self._note_unsent(name))
        self.sender.post(Parcel(name, payload, on_gone, on_unsent=on_unsent))
        return payload

    def _note_unsent(self, name):
        assert name not in self.gone, "its memory was given back before"
        self.unsent.append(name)

    def read(self, n_bytes):
        content = bytearray()
        while len(content) < n_bytes:
            piece = self.far.recv(n_bytes - len(content))
            assert piece
            content += piece
        return bytes(content)

    def wait(self, is_true):
        until_s = time.monotonic() + 60
        while not is_true():
            assert time.monotonic() < until_s
            time.sleep(0.002)


@pytest.fixture
def ends():
    made = []

    def make(**options):
        made.append(Ends(**options))
        return made[-1]

    yield make
    for one in made:
        one.sender.close()
        one.far.close()
        one.wait(lambda one=one: not one.sender.has_outgoing)
        one.near.close()
        assert one.writing.used_bytes == 0


def test_what_fits_has_left_when_post_returns(ends):
    one = ends()
    (payload,) = one.post("a", 1000)
    assert (one.gone, one.unsent) == (["a"], [])
    assert one.read(1001) == b"a" + bytes(payload)


@pytest.mark.parametrize("is_summed", [False, True])
@pytest.mark.parametrize("is_direct", [False, True])
def test_large_and_small_ones_arrive_whole_and_in_order(ends, is_summed, is_direct):
    one = ends(is_summed=is_summed, is_direct=is_direct)
    expected = b""
    for index, n_bytes in enumerate((10, 9 * MIB + 7, 0, 3 * MIB, 1)):
        name = f"m{index}"
        payload = one.post(name, n_bytes)
        expected += name.encode() + b"".join(map(bytes, payload))
        expected += struct.pack("!Q", n_bytes) if is_summed else b""
    assert one.writing.used_bytes >= 12 * MIB
    assert one.read(len(expected)) == expected
    one.wait(lambda: len(one.gone) == 5)
    assert (one.gone, one.unsent) == ([f"m{index}" for index in range(5)], [])


def post_much(one):
    """More than fits between the ends; whoever posted by then has waited for nobody."""
    data = memoryview(bytes(4 * MIB))
    posting = threading.Thread(
        target=lambda: [
            one.sender.post(Parcel(f"m{index}", (data,), lambda: one.gone.append(""))) for index in range(5)
        ],
        daemon=True,
    )
    posting.start()
    posting.join(60)
    assert not posting.is_alive(), "who posts waits for the peer"


def test_nobody_waits_for_a_peer_that_never_reads(ends):
    one = ends(stall_timeout_s=600.0)
    post_much(one)
    assert not one.lost.is_set()
    assert one.gone == [], "all of it waits"


def test_a_peer_that_never_reads_is_given_up_and_its_memory_returns(ends):
    one = ends(stall_timeout_s=0.2)
    post_much(one)
    assert one.lost.wait(60)
    one.wait(lambda: len(one.gone) == 5)


@pytest.mark.parametrize("is_direct", [False, True])
def test_what_was_under_way_when_the_connection_broke_is_known_to_be_unsent(ends, is_direct):
    """One that had left, one that was half sent, one that waited behind it."""
    one = ends(is_direct=is_direct)
    one.post("whole", 100)
    one.read(105)
    one.wait(lambda: one.gone == ["whole"])
    one.post("half", 9 * MIB)
    one.post("next", 100)
    one.read(MIB)
    assert one.unsent == []
    one.far.close()
    assert one.lost.wait(60)
    one.wait(lambda: len(one.gone) == 3)
    assert one.unsent == ["half", "next"]


def test_what_follows_a_goodbye_is_unsent(ends):
    one = ends()
    one.sender._connection.state = State.CLOSED
    one.sender._connection.send_head = lambda message: (_ for _ in ()).throw(LocalProtocolError("closed"))
    one.post("late")
    assert one.gone == one.unsent == ["late"]


def test_an_outbox_that_overflows_ends_the_connection(ends):
    one = ends()
    for number in range(1100):
        one.post(f"m{number}", MIB // 4)
    assert one.lost.is_set()
    one.wait(lambda: len(one.gone) == 1100)
    assert len(one.unsent) == 1100


def test_what_cannot_be_said_becomes_a_failure_without_payload(ends):
    one = ends()
    one.post("bad", 1000)
    assert one.read(18) == b"Funsendable-result"
    assert (one.gone, one.unsent) == (["bad"], [])


def test_after_closing_and_before_opening_nothing_is_sent(ends):
    one = ends()
    one.sender.is_open = False
    one.post("early")
    one.sender.is_open = True
    one.sender.close()
    one.post("late")
    assert one.gone == one.unsent == ["early", "late"]
    one.far.setblocking(False)
    with pytest.raises(BlockingIOError):
        one.far.recv(1)


def test_goodbye_is_not_said_in_the_middle_of_a_frame(ends):
    one = ends()
    assert one.sender.goodbye("code", "text")
    assert one.read(3) == b"bye"
    one.post("m", 4 * MIB)
    assert not one.sender.goodbye("code", "text")
    one.read(1 + 4 * MIB)


def test_a_descriptor_travels_with_the_first_byte(ends):
    one = ends()
    reading, writing = os.pipe()
    one.sender.post(Parcel("fd", (), None, reading))
    content, fds, _, _ = socket.recv_fds(one.far, 100, 1)
    assert content == b"fd"
    os.write(writing, b"!")
    assert os.read(fds[0], 1) == b"!"
    for fd in (reading, writing, *fds):
        os.close(fd)
