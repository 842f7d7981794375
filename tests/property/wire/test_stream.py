"""A stream cut anywhere means the same; damaged anywhere, it ends the connection at worst."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from yarn_accel.errors import AuthenticationError, RemoteProtocolError
from yarn_accel.wire import (
    NEED_DATA,
    Cancel,
    ClientConnection,
    Opened,
    PayloadComplete,
    Ping,
    RemoteInput,
    Request,
    ServerConnection,
    StatsRequest,
    TensorSpec,
)
from yarn_accel.wire import messages as msg
from yarn_accel.wire.credential import issue
from yarn_accel.wire.tensors import ITEM_BYTES

MASTER = bytes(range(32))
CREDENTIAL = issue(MASTER, "alice", 2_000_000_000, "k1")

specs = st.builds(
    TensorSpec,
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(["C", "F"]),
)
plain_text = st.text(
    st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_characters="\x7f"), max_size=20
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=5,
)
uris = plain_text.map(lambda text: "hdfs:///" + text)
ids = st.integers(0, 2**53)
requests = st.builds(
    Request,
    ids,
    plain_text.filter(bool),
    st.sampled_from(["lu", "echo"]),
    st.dictionaries(plain_text, json_values, max_size=3),
    st.lists(specs | st.builds(RemoteInput, uris, st.none() | specs), max_size=4).map(tuple),
    uris,
    st.floats(0, 1000),
)
client_messages = requests | st.builds(Ping, ids) | st.builds(Cancel, ids) | st.builds(StatsRequest, ids)


def open_pair(checksum="crc32"):
    client = ClientConnection(CREDENTIAL, b"c" * 32, (checksum,))
    server = ServerConnection(MASTER, b"s" * 32, 1000.0, "w1", (checksum,))
    stream = b""
    for sender, receiver in ((client, server), (server, client)) * 2:
        data = b"".join(sender.data_to_send())
        if sender is client:
            stream += data
        receiver.receive_data(data)
        receiver.next_event()
    return client, stream


def fresh_server(checksum="crc32"):
    return ServerConnection(MASTER, b"s" * 32, 1000.0, "w1", (checksum,))


def payload_of(message, rng):
    if not isinstance(message, Request):
        return []
    return [rng.randbytes(item.nbytes) for item in message.inputs if isinstance(item, TensorSpec)]


def stream_of(messages, checksum):
    client, stream = open_pair(checksum)
    rng = random.Random(5)
    for message in messages:
        stream += b"".join(client.send(message, payload_of(message, rng)))
    return stream


def listen(server, data, cuts, into_wanted=False):
    """Feed the data in pieces; returns the events, payloads included."""
    events, buffers = [], []
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        piece = data[start:end]
        while piece:
            if into_wanted:
                view = server.wanted()
                n_bytes = min(len(view), len(piece))
                view[:n_bytes] = piece[:n_bytes]
                server.received(n_bytes)
            else:
                n_bytes = len(piece)
                server.receive_data(piece)
            piece = piece[n_bytes:]
            while (event := server.next_event()) is not NEED_DATA:
                server.data_to_send()
                events.append(type(event) if isinstance(event, Opened | PayloadComplete) else event)
                if isinstance(event, PayloadComplete):
                    events.append(b"".join(buffers))
                elif server.payload_left:
                    buffers = [bytearray(server.payload_left)]
                    server.take_payload([memoryview(buffers[0])])
    return events


@given(client_messages)
def test_decode_gives_back_what_encode_took(message):
    assert msg.decode(*msg.encode(message)) == message


@given(st.lists(client_messages, max_size=4), st.sampled_from(["crc32", "none"]), st.booleans(), st.data())
def test_a_stream_cut_anywhere_gives_the_same_events(messages, checksum, into_wanted, data):
    stream = stream_of(messages, checksum)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    whole = listen(fresh_server(checksum), stream, [])
    assert [event for event in whole if isinstance(event, msg.Message.__args__)] == messages
    assert listen(fresh_server(checksum), stream, cuts, into_wanted) == whole


def test_a_stream_byte_by_byte_gives_the_same_events():
    spec = TensorSpec("<f8", (3, 4), "F")
    messages = [Ping(1), Request(2, "k", "lu", {}, (spec, RemoteInput("hdfs:///x"), spec)), Cancel(2)]
    stream = stream_of(messages, "crc32")
    whole = listen(fresh_server(), stream, [])
    assert len(whole) == 1 + len(messages) + 2
    assert listen(fresh_server(), stream, range(len(stream))) == whole


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_stream_ends_the_connection_at_worst(data):
    """No crash, no other error, and never more memory than the stream's own bytes."""
    spec = TensorSpec("<f4", (4, 4))
    stream = bytearray(stream_of([Request(1, "k", "lu", {"a": 1}, (spec,)), Ping(3)], "crc32"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if kind == "flip":
            stream[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del stream[at : at + data.draw(st.integers(1, 50))]
        elif kind == "insert":
            stream[at:at] = data.draw(st.binary(max_size=20))
        else:
            stream[at:at] = stream[max(0, at - 60) : at]
        if not stream:
            return
    server = fresh_server()
    try:
        events = listen(server, bytes(stream), [])
    except (RemoteProtocolError, AuthenticationError):
        return
    requests_seen = [event for event in events if isinstance(event, Request)]
    assert all(request == Request(1, "k", "lu", {"a": 1}, (spec,)) for request in requests_seen)


@given(st.binary(max_size=300))
def test_random_bytes_never_open_a_connection(data):
    server = fresh_server()
    try:
        events = listen(server, data, [])
    except (RemoteProtocolError, AuthenticationError):
        return
    assert events == []


@given(st.binary(max_size=300), st.sampled_from(sorted(msg.KINDS)))
def test_random_headers_are_refused_or_understood(header, kind):
    try:
        message = msg.decode(kind, header)
    except RemoteProtocolError:
        return
    assert type(message) is msg.KINDS[kind]
