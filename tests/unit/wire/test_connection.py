"""An open connection: payloads in place, order kept, everything that breaks a rule ends it."""

import pytest

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import (
    NEED_DATA,
    Busy,
    Closed,
    Goodbye,
    Limits,
    PayloadComplete,
    Ping,
    Request,
    State,
    TensorSpec,
)
from yarn_accel.wire.connection import PREFIX_BYTES, pack_prefix
from yarn_accel.wire.messages import encode

SPECS = (TensorSpec("|u1", (5,)), TensorSpec("|u1", (0,)), TensorSpec("<f8", (2, 2), "F"))
DATA = (b"abcde", b"", bytes(range(32)))


def request(n=1, specs=SPECS):
    return Request(n, "k", "echo", {}, specs)


def wire(connection, message, payload=()):
    return b"".join(bytes(part) for part in connection.send(message, payload))


def test_a_payload_lands_in_the_owners_buffers_without_a_copy(pair):
    pair.server.receive_data(wire(pair.client, request(), DATA)[:-30])
    assert pair.server.next_event() == request()
    assert pair.server.payload_left == 37
    buffers = [bytearray(5), bytearray(0), bytearray(32)]
    pair.server.take_payload([memoryview(buffer) for buffer in buffers])
    view = pair.server.wanted()
    assert len(view) == 22
    assert pair.server.is_mid_frame
    view[:] = DATA[2][10:]
    assert bytes(buffers[2][10:]) == DATA[2][10:]


def test_payload_parts_are_sent_as_they_are(pair):
    parts = pair.client.send(request(), DATA)
    assert any(part is DATA[2] for part in parts)


def test_what_follows_a_payload_is_not_lost(pair):
    buffers = [memoryview(bytearray(spec.nbytes)) for spec in SPECS]
    pair.server.receive_data(
        wire(pair.client, request(1), DATA) + wire(pair.client, request(2), DATA) + wire(pair.client, Ping(5))
    )
    for number in (1, 2):
        assert pair.server.next_event().id == number
        pair.server.take_payload(buffers)
        assert isinstance(pair.server.next_event(), PayloadComplete)
        assert [bytes(buffer) for buffer in buffers] == list(DATA)
    assert pair.server.next_event() == Ping(5)
    assert pair.server.next_event() is NEED_DATA


def test_an_unwanted_payload_takes_no_memory(pair):
    huge = Request(1, "k", "echo", {}, (TensorSpec("|u1", (1 << 39,)),))
    pair.server.receive_data(pair.client.send_head(huge)[0])
    assert pair.server.next_event() == huge
    pair.server.skip_payload()
    assert len(pair.server.wanted()) <= 65536
    pair.server.received(1000)
    assert pair.server.payload_left == (1 << 39) - 1000


def test_a_payload_must_be_taken_or_skipped(pair):
    pair.server.receive_data(wire(pair.client, request(), DATA))
    pair.server.next_event()
    with pytest.raises(LocalProtocolError, match="to be taken"):
        pair.server.next_event()
    with pytest.raises(LocalProtocolError, match="another length"):
        pair.server.take_payload([memoryview(bytearray(36))])
    pair.server.skip_payload()
    with pytest.raises(LocalProtocolError, match="no payload"):
        pair.server.skip_payload()


def test_a_payload_that_came_with_its_header_can_be_had_at_once(pair):
    data = wire(pair.client, request(), DATA)
    pair.server.receive_data(data + wire(pair.client, Ping(7)))
    assert pair.server.next_event() == request()
    assert bytes(pair.server.arrived_payload()) == b"".join(DATA)
    assert pair.server.payload_left == 0
    assert pair.server.next_event() == Ping(7)
    assert pair.server.next_event() is NEED_DATA


@pytest.mark.parametrize("n_missing", [1, 8, 20])
def test_a_payload_of_which_something_is_missing_must_be_taken(pair, n_missing):
    data = wire(pair.client, request(), DATA)
    pair.server.receive_data(data[:-n_missing])
    pair.server.next_event()
    assert pair.server.arrived_payload() is None
    whole = bytearray(37)
    pair.server.take_payload([memoryview(whole)])
    assert pair.server.arrived_payload() is None
    pair.server.receive_data(data[-n_missing:])
    assert isinstance(pair.server.next_event(), PayloadComplete)
    assert bytes(whole) == b"".join(DATA)
    assert pair.server.arrived_payload() is None


@pytest.mark.parametrize("from_end", [1, 10])
def test_a_damaged_payload_that_came_with_its_header_is_noticed(pair, from_end):
    data = bytearray(wire(pair.client, request(), DATA))
    data[-from_end] ^= 1
    pair.server.receive_data(data)
    pair.server.next_event()
    with pytest.raises(RemoteProtocolError, match="checksum"):
        pair.server.arrived_payload()
    assert pair.server.state is State.CLOSED


@pytest.mark.parametrize("at", [3, 20, PREFIX_BYTES + 4], ids=["varying", "tag", "header"])
def test_a_changed_head_is_noticed(pair, at):
    data = bytearray(wire(pair.client, Ping(1)))
    data[at] ^= 1
    pair.server.receive_data(data)
    with pytest.raises(RemoteProtocolError):
        pair.server.next_event()


@pytest.mark.parametrize("said", [(1, 1), (2,), (2, 1)], ids=["replayed", "lost", "in another order"])
def test_frames_that_come_otherwise_than_they_were_sent_are_noticed(pair, said):
    frames = {number: wire(pair.client, Ping(number)) for number in (1, 2)}
    pair.server.receive_data(b"".join(frames[number] for number in said))
    with pytest.raises(RemoteProtocolError, match="tag"):  # noqa: PT012 -- the first may be good
        for _ in said:
            pair.server.next_event()


def test_a_frame_reflected_to_its_sender_is_noticed(pair):
    pair.client.receive_data(wire(pair.client, Ping(1)))
    with pytest.raises(RemoteProtocolError, match="tag"):
        pair.client.next_event()


def test_a_payload_of_another_length_than_the_tensors_is_refused(pair):
    kind, varying_bytes, header, _ = encode(request())
    pair.server.receive_data(pair.forge(pair.client, kind, header, 38, varying_bytes))
    with pytest.raises(RemoteProtocolError, match="37 bytes but its payload has 38"):
        pair.server.next_event()


def test_messages_of_the_other_side_are_refused(pair):
    with pytest.raises(LocalProtocolError, match="a client does not send Busy"):
        pair.client.send(Busy(1, 0, ""))
    kind, _, header, _ = encode(Busy(1, 0.0, ""))
    pair.server.receive_data(pair.forge(pair.client, kind, header))
    with pytest.raises(RemoteProtocolError, match="not accepted"):
        pair.server.next_event()


@pytest.mark.parametrize(("n_header", "n_payload", "text"), [(1001, 0, "header of 1001"), (10, 5001, "5001")])
def test_limits_are_checked_before_the_bytes_arrive(make_pair, n_header, n_payload, text):
    pair = make_pair(server_options={"limits": Limits(header_bytes=1000, payload_bytes=5000)}).open()
    pair.server.receive_data(pack_prefix(16, n_header, n_payload) + bytes(16))
    with pytest.raises(RemoteProtocolError, match=text):
        pair.server.next_event()


def test_a_closed_connection_is_distinguished_from_one_cut_off(pair, make_pair):
    pair.server.receive_data(b"")
    assert isinstance(pair.server.next_event(), Closed)
    with pytest.raises(LocalProtocolError, match="closed"):
        pair.server.next_event()
    cut = make_pair().open()
    cut.server.receive_data(wire(cut.client, Ping(1))[:-1])
    cut.server.receive_data(b"")
    with pytest.raises(RemoteProtocolError, match="in the middle"):
        cut.server.next_event()


def test_another_protocol_is_noticed_at_its_first_bytes(make_pair):
    pair = make_pair()
    pair.server.receive_data(b"G")
    with pytest.raises(RemoteProtocolError, match="does not speak"):
        pair.server.next_event()


def test_a_goodbye_reaches_the_peer(pair):
    pair.client.receive_data(b"".join(pair.server.goodbye("protocol-error", "x" * 9000)))
    event = pair.client.next_event()
    assert isinstance(event, Goodbye)
    assert event.code == "protocol-error"


def test_a_payload_of_the_wrong_length_never_leaves(pair):
    with pytest.raises(LocalProtocolError, match="37 bytes but 5 were given"):
        pair.client.send(request(), [b"abcde"])


def test_a_header_beyond_the_limit_never_leaves(pair):
    with pytest.raises(LocalProtocolError, match="header of"):
        pair.client.send(Request(1, "k", "echo", {"x": "y" * (1 << 20)}, ()))
    pair.server.receive_data(wire(pair.client, Ping(1)))
    assert pair.server.next_event() == Ping(1)
