"""Where received bytes go: into the owner's memory, with one bounded buffer for everything else."""

import socket

import pytest

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import NEED_DATA, Limits, PayloadComplete, Ping, Request, TensorSpec, available_checksums
from yarn_accel.wire.connection import FrameReceiver, pack_prefix

BUFFER_BYTES = 32 * 1024
NO_TAG = bytes(16)


def frame(header=b"{}", payload=b"", kind=23):
    return pack_prefix(kind, len(header), len(payload)) + NO_TAG + header + payload


def fill(receiver, data):
    """Give the receiver as many of these bytes as it wants at once; returns the rest."""
    view = receiver.wanted()
    n_bytes = min(len(view), len(data))
    view[:n_bytes] = data[:n_bytes]
    receiver.received(n_bytes)
    return data[n_bytes:]


def test_a_large_header_takes_memory_only_as_it_arrives():
    receiver = FrameReceiver(Limits(header_bytes=1 << 20))
    rest = frame(b"x" * (1 << 20))
    n_received = 0
    while rest:
        before = len(rest)
        rest = fill(receiver, rest)
        n_received += before - len(rest)
        if rest:
            assert receiver.next_frame() is None
        assert len(receiver._buffer) <= max(BUFFER_BYTES, 2 * n_received)
    assert len(receiver.next_frame().header) == 1 << 20
    receiver.wanted()
    assert len(receiver._buffer) == BUFFER_BYTES


def test_events_must_be_taken_before_more_is_received():
    receiver = FrameReceiver(Limits(header_bytes=100))
    fill(receiver, bytes(BUFFER_BYTES))
    with pytest.raises(LocalProtocolError, match="taken"):
        receiver.wanted()


def test_more_than_was_wanted_cannot_be_reported():
    receiver = FrameReceiver(Limits())
    with pytest.raises(LocalProtocolError, match="wanted"):
        receiver.received(len(receiver.wanted()) + 1)
    skipping = FrameReceiver(Limits())
    skipping.receive_data(frame(payload=b"abc")[:-2])
    skipping.next_frame()
    skipping.skip_payload()
    assert len(skipping.wanted()) == 2
    with pytest.raises(LocalProtocolError, match="wanted"):
        skipping.received(3)


def test_only_what_came_with_the_header_is_copied():
    receiver = FrameReceiver(Limits())
    payload = bytes(range(256)) * 1024
    rest = fill(receiver, frame(payload=payload))
    assert len(rest) == len(frame(payload=payload)) - BUFFER_BYTES
    receiver.next_frame()
    target = bytearray(len(payload))
    receiver.take_payload([memoryview(target)])
    view = receiver.wanted()
    assert view.obj is target
    assert len(view) == len(rest)
    assert not fill(receiver, rest)
    assert receiver.payload_done()
    assert target == payload


def test_views_of_other_element_types_are_filled_too():
    receiver = FrameReceiver(Limits())
    receiver.receive_data(frame(payload=bytes(range(16))))
    receiver.next_frame()
    target = bytearray(16)
    receiver.take_payload([memoryview(target).cast("d")])
    assert receiver.payload_done()
    assert target == bytes(range(16))


def test_a_silent_connection_holds_no_buffer():
    receiver = FrameReceiver(Limits())
    fill(receiver, frame()[:10])
    receiver.rest()
    assert len(receiver._buffer) == BUFFER_BYTES
    fill(receiver, frame()[10:])
    assert receiver.next_frame() is not None
    receiver.rest()
    assert len(receiver._buffer) == 0
    assert not fill(receiver, frame())
    assert receiver.next_frame() is not None


def test_a_header_at_the_edge_of_the_buffer_is_put_together():
    receiver = FrameReceiver(Limits())
    one = frame(b"y" * 1000)
    rest = one * 100
    n_frames = 0
    while rest:
        rest = fill(receiver, rest)
        while receiver.next_frame() is not None:
            n_frames += 1
    assert n_frames == 100
    assert not receiver.is_mid_frame


def opened(make_pair, checksum):
    options = {"checksums": (checksum,)}
    return make_pair(client_options=options, server_options=options).open()


@pytest.mark.parametrize("checksum", [*available_checksums(), "none"])
def test_a_payload_its_trailer_and_the_next_frame_in_one_call(make_pair, checksum):
    pair = opened(make_pair, checksum)
    specs = (TensorSpec("|u1", (50_000,)), TensorSpec("|u1", (70_000,)))
    data = [b"a" * 50_000, b"b" * 70_000]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            ours.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
        ours.sendall(pair.say(pair.client, Request(1, "k", "echo", {}, specs), data))
        ours.sendall(pair.say(pair.client, Ping(2)))
        pair.server.received(theirs.recvmsg_into(pair.server.wanted_all())[0])
        assert pair.server.next_event().id == 1
        targets = [bytearray(len(part)) for part in data]
        pair.server.take_payload([memoryview(target) for target in targets])
        assert pair.server.next_event() is NEED_DATA
        pair.server.received(theirs.recvmsg_into(pair.server.wanted_all())[0])
    assert isinstance(pair.server.next_event(), PayloadComplete)
    assert targets == data
    assert pair.server.next_event() == Ping(2)


@pytest.mark.parametrize("checksum", available_checksums())
@pytest.mark.parametrize("at", [0, -1], ids=["payload", "trailer"])
def test_every_checksum_finds_damage(make_pair, checksum, at):
    pair = opened(make_pair, checksum)
    parts = pair.client.send(Request(1, "k", "echo", {}, (TensorSpec("|u1", (200_000,)),)), [bytes(200_000)])
    stream = bytearray(b"".join(parts))
    stream[len(parts[0]) if at == 0 else -1] ^= 1
    pair.server.receive_data(stream)
    pair.server.next_event()
    pair.server.take_payload([memoryview(bytearray(200_000))])
    with pytest.raises(RemoteProtocolError, match="damaged"):
        pair.server.next_event()


@pytest.mark.parametrize("checksum", [*available_checksums(), "none"])
def test_a_payload_may_be_sent_piece_by_piece(make_pair, checksum):
    pair = opened(make_pair, checksum)
    data = bytes(range(256)) * 1000
    head, running = pair.client.send_head(Request(1, "k", "echo", {}, (TensorSpec("|u1", (256_000,)),)))
    assert (running is None) == (checksum == "none")
    pair.server.receive_data(head)
    pair.server.next_event()
    target = bytearray(256_000)
    pair.server.take_payload([memoryview(target)])
    for at in range(0, len(data), 100_000):
        piece = data[at : at + 100_000]
        if running is not None:
            running.update(piece)
        pair.server.receive_data(piece)
    if running is not None:
        assert pair.server.next_event() is NEED_DATA
        pair.server.receive_data(running.digest())
    assert isinstance(pair.server.next_event(), PayloadComplete)
    assert target == data
