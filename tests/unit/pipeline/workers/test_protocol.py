"""Messages between owner and worker: sizes, descriptors, numbering."""

import gc
import os
import socket
from pathlib import Path

import pytest

from yarn_accel.pipeline.workers import protocol
from yarn_accel.pipeline.workers.protocol import (
    MAX_SLOTS,
    Channel,
    Numbering,
    encode_object,
    specs_from,
    specs_to,
)
from yarn_accel.wire import TensorSpec


@pytest.fixture
def pair():
    ours, theirs = (Channel(sock) for sock in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield ours, theirs
    ours.close()
    theirs.close()


def n_fds():
    gc.collect()  # what earlier tests left must not go while we count
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("n_bytes", [1, 32768, 32769, 5_000_000])
def test_a_message_of_any_length_arrives_without_a_reader(pair, n_bytes):
    message = b"{" + bytes(n_bytes - 1)
    before = n_fds()
    for _ in range(3):
        pair[0].send(message)
    for _ in range(3):
        assert pair[1].receive() == (message, [])
    assert n_fds() == before


def test_descriptors_travel_beside_a_message(pair):
    fds = [os.memfd_create(f"test-{i}") for i in range(100)]
    pair[0].send(encode_object(map=1), fds)
    message, received = pair[1].receive()
    assert message == b'{"map":1}'
    assert [os.fstat(fd).st_ino for fd in received] == [os.fstat(fd).st_ino for fd in fds]
    assert not any(os.get_inheritable(fd) for fd in received)
    for fd in fds + received:
        os.close(fd)


def test_what_was_sent_before_the_end_arrives_though_something_was_left_unread(pair):
    """A worker says why it ends while orders to it are on their way."""
    ours, theirs = pair
    ours.send(b"an order")
    theirs.send(b"why it ends")
    theirs.close()
    assert ours.receive() == (b"why it ends", [])
    assert ours.receive() == (b"", [])


def test_the_end_is_an_empty_message(pair):
    assert not pair[1].is_readable(0.0)
    pair[0].send(b"{}")
    pair[0].close()
    assert pair[1].is_readable(0.0)
    assert pair[1].receive() == (b"{}", [])
    assert pair[1].receive() == (b"", [])
    with pytest.raises(OSError, match="Broken pipe"):
        pair[1].send(b"{}")


def test_a_message_that_is_too_long_is_refused(pair, monkeypatch):
    pair[0].send(b"{" + bytes(100_000))
    monkeypatch.setattr(protocol, "_MAX_MESSAGE_BYTES", 50_000)
    before = n_fds()
    with pytest.raises(ValueError, match="too long"):
        pair[1].receive()
    assert n_fds() == before


def test_a_message_elsewhere_without_its_memfd_is_refused(pair):
    fds = [os.memfd_create("one"), os.memfd_create("two")]
    pair[0].send(bytes([protocol.ELSEWHERE]), fds)
    with pytest.raises(ValueError, match="too long"):
        pair[1].receive()
    for fd in fds:
        os.close(fd)


def test_numbers_stay_as_long_as_they_are_used():
    numbering = Numbering()
    assert numbering.number("a") == (0, True)
    for i in range(3 * MAX_SLOTS):
        number, is_new = numbering.number(i)
        assert is_new
        assert 0 < number < MAX_SLOTS
        assert numbering.number("a") == (0, False)
    assert numbering.number(3 * MAX_SLOTS - 1)[1] is False
    assert numbering.number(5) == (numbering.number(5)[0], True)


def test_descriptions_survive_json():
    specs = (TensorSpec("<f8", (2, 3), "F"), TensorSpec("|u1", ()))
    text = protocol.encode(specs_to(specs))
    assert specs_from(protocol.decode(text)) == specs
    with pytest.raises(ValueError, match="dtype"):
        specs_from([["|O8", [1], "C"]])
