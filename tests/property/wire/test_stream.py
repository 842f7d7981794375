"""A stream cut anywhere means the same; damaged anywhere, it ends the connection at worst."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel import wire
from yarn_accel.errors import AuthenticationError, RemoteProtocolError, UnavailableError
from yarn_accel.wire import messages as msg
from yarn_accel.wire.credential import issue

MASTER = bytes(range(32))
CREDENTIAL = issue(MASTER, "alice", 2_000_000_000, "k1")
CHECKSUMS = [*wire.available_checksums(), "none"]

specs = st.builds(
    wire.TensorSpec,
    st.sampled_from(sorted(wire.ITEM_BYTES)),
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
json_objects = st.dictionaries(plain_text, json_values, max_size=3)
uris = plain_text.map(lambda text: "hdfs:///" + text)
ids = st.integers(0, 2**53)
seconds = st.floats(0, 1e9)


@st.composite
def requests(draw):
    inputs = draw(
        st.lists(specs | st.builds(wire.RemoteInput, uris, st.none() | specs), max_size=4).map(tuple)
    )
    n_by_value = sum(isinstance(item, wire.TensorSpec) for item in inputs)
    what = draw(plain_text.filter(bool)), draw(st.sampled_from(["lu", "echo"])), draw(json_objects), inputs
    how = draw(uris | st.just("")), draw(seconds), draw(st.integers(-8, 7))
    return wire.Request(draw(ids), *what, *how, draw(placements(n_by_value)), draw(st.booleans()))


@st.composite
def results(draw):
    tensors = draw(
        st.lists(st.builds(wire.NamedTensor, st.sampled_from("abc"), specs), max_size=4).map(tuple)
    )
    where = draw(plain_text), draw(plain_text)
    times = draw(st.dictionaries(st.sampled_from(["read", "queue", "total"]), seconds))
    sizes = draw(ids), draw(ids), draw(placements(len(tensors)))
    return wire.Result(draw(ids), draw(json_objects), tensors, *where, times, *sizes)


def placements(n_tensors):
    offsets = st.integers(0, 2**40).map(lambda index: 64 * index)
    return st.none() | st.builds(
        wire.Placement, ids, st.lists(offsets, min_size=n_tensors, max_size=n_tensors).map(tuple)
    )


client_messages = (
    requests()
    | st.builds(wire.Ping, ids)
    | st.builds(wire.Cancel, ids)
    | st.builds(wire.StatsRequest, ids)
    | st.builds(wire.Lend, ids, st.integers(1, 2**53))
    | st.builds(wire.GiveBack, ids)
)
server_messages = (
    results()
    | st.builds(wire.Failed, ids, st.sampled_from(msg.ERROR_KINDS), st.just("a-code"), plain_text, plain_text)
    | st.builds(wire.Busy, ids, seconds, plain_text)
    | st.builds(wire.Progress, ids, st.just("compute"), seconds)
    | st.builds(wire.Lent, ids, ids, st.integers(1, 2**53))
)


def open_pair(checksum="crc32"):
    """An open client and server, and what each of them sent for it."""
    client, server = fresh_client(checksum), fresh_server(checksum)
    streams = {client: b"", server: b""}
    for sender, receiver in ((client, server), (server, client)) * 2:
        data = b"".join(sender.data_to_send())
        streams[sender] += data
        receiver.receive_data(data)
        receiver.next_event()
    return client, server, streams


def fresh_server(checksum="crc32"):
    return wire.ServerConnection(MASTER, b"s" * 32, 1000.0, "w1", (checksum,), capabilities=(wire.MEMFD,))


def fresh_client(checksum="crc32"):
    return wire.ClientConnection(CREDENTIAL, b"c" * 32, (checksum,), capabilities=(wire.MEMFD,))


def payload_of(message, rng):
    if isinstance(message, wire.Request | wire.Result) and message.placement is None:
        named = message.inputs if isinstance(message, wire.Request) else [one.spec for one in message.tensors]
        return [rng.randbytes(item.nbytes) for item in named if isinstance(item, wire.TensorSpec)]
    return []


def stream_of(messages, checksum, role="client"):
    """All bytes that one end sends, those of the handshake, too."""
    client, server, streams = open_pair(checksum)
    sender = client if role == "client" else server
    rng = random.Random(5)
    stream = streams[sender]
    for message in messages:
        stream += b"".join(sender.send(message, payload_of(message, rng)))
    return stream


def put(receiver, piece, how):
    """Give a connection some of these bytes; returns how many."""
    if how == "receive_data":
        receiver.receive_data(piece)
        return len(piece)
    n_bytes = 0
    for view in [receiver.wanted()] if how == "wanted" else receiver.wanted_all():
        n_here = min(len(view), len(piece) - n_bytes)
        view[:n_here] = piece[n_bytes : n_bytes + n_here]
        n_bytes += n_here
    receiver.received(n_bytes)
    return n_bytes


def listen(receiver, data, cuts, how="receive_data"):
    """Feed the data in pieces; returns the events, payloads included."""
    events, buffers = [], []
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        piece = data[start:end]
        while piece:
            piece = piece[put(receiver, piece, how) :]
            while (event := receiver.next_event()) is not wire.NEED_DATA:
                receiver.data_to_send()
                events.append(type(event) if isinstance(event, wire.Opened | wire.PayloadComplete) else event)
                if isinstance(event, wire.PayloadComplete):
                    events.append(b"".join(buffers))
                elif receiver.payload_left:
                    half = receiver.payload_left // 2
                    buffers = [bytearray(half), bytearray(receiver.payload_left - half)]
                    receiver.take_payload([memoryview(buffer) for buffer in buffers])
            receiver.rest()
    return events


def listener(role, checksum):
    """The end that hears what this role sends; a client has said its Hello."""
    if role == "client":
        return fresh_server(checksum)
    client = fresh_client(checksum)
    client.data_to_send()
    return client


@given(client_messages | server_messages)
def test_decode_gives_back_what_encode_took(message):
    kind, varying_bytes, header, n_bytes = msg.encode(message)
    assert msg.decode(kind, varying_bytes, header) == (message, n_bytes)


@given(
    st.sampled_from(["client", "server"]),
    st.sampled_from(CHECKSUMS),
    st.sampled_from(["receive_data", "wanted", "wanted_all"]),
    st.data(),
)
def test_a_stream_cut_anywhere_gives_the_same_events(role, checksum, how, data):
    each = client_messages if role == "client" else server_messages
    messages = data.draw(st.lists(each, max_size=4))
    stream = stream_of(messages, checksum, role)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    whole = listen(listener(role, checksum), stream, [])
    assert [event for event in whole if isinstance(event, msg.Message.__args__)] == messages
    assert listen(listener(role, checksum), stream, cuts, how) == whole


def test_a_stream_byte_by_byte_gives_the_same_events():
    spec = wire.TensorSpec("<f8", (3, 4), "F")
    messages = [
        wire.Ping(1),
        wire.Request(2, "k", "lu", {}, (spec, wire.RemoteInput("hdfs:///x"), spec)),
        wire.Cancel(2),
    ]
    for checksum in CHECKSUMS:
        stream = stream_of(messages, checksum)
        whole = listen(fresh_server(checksum), stream, [])
        assert len(whole) == 1 + len(messages) + 2
        for how in ("receive_data", "wanted", "wanted_all"):
            assert listen(fresh_server(checksum), stream, range(len(stream)), how) == whole


@settings(max_examples=examples(300))
@given(st.data())
def test_a_damaged_stream_ends_the_connection_at_worst(data):
    """No crash, no other error, and never more memory than the stream's own bytes."""
    spec = wire.TensorSpec("<f4", (4, 4))
    stream = bytearray(stream_of([wire.Request(1, "k", "lu", {"a": 1}, (spec,)), wire.Ping(3)], "crc32"))
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
    requests_seen = [event for event in events if isinstance(event, wire.Request)]
    assert all(request == wire.Request(1, "k", "lu", {"a": 1}, (spec,)) for request in requests_seen)


@given(st.binary(max_size=300), st.sampled_from(["client", "server"]))
def test_random_bytes_never_open_a_connection(data, said_by):
    try:
        events = listen(listener(said_by, "crc32"), data, [])
    except (RemoteProtocolError, AuthenticationError, UnavailableError):
        return
    assert events == []


@given(st.binary(max_size=300), st.integers(0, 255), st.sampled_from(sorted(msg.BY_KIND)))
def test_random_headers_are_refused_or_understood(header, varying_bytes, kind):
    try:
        message, n_bytes = msg.decode(kind, varying_bytes, header)
    except RemoteProtocolError:
        return
    assert type(message) is msg.BY_KIND[kind].make
    assert msg.decode(*msg.encode(message)[:3]) == (message, n_bytes)
