"""Tens of thousands of mutated and truncated streams against both ends, before and after the handshake.

Two kinds of attacker.  One stands on the way and has no key: after the handshake not one changed header may
be understood.  The other is a peer gone bad: it has proved its credential and tags whatever it makes, so that
what is under the tag is reached too.  Whatever comes, an end says clean events or raises one of three errors,
and keeps less memory than it was sent bytes, plus one buffer.
"""

import collections
import functools
import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel import wire
from yarn_accel.errors import AuthenticationError, LocalProtocolError, RemoteProtocolError, UnavailableError
from yarn_accel.wire.credential import issue

MASTER = bytes(range(32))
CREDENTIAL = issue(MASTER, "alice", 2_000_000_000, "k1")
LIMITS = wire.Limits(header_bytes=1 << 20, payload_bytes=1 << 40)
BUFFER_BYTES = 32 * 1024
ERRORS = (RemoteProtocolError, AuthenticationError, UnavailableError)
SPEC = wire.TensorSpec("<f4", (4, 4))
DATA = [bytes(range(64))]

FROM_CLIENT = (
    (wire.Request(1, "k1", "lu", {"form": "packed"}, (SPEC,), "", 1.5), DATA),
    (wire.Request(2, "k2", "lu", {}, (SPEC,), placement=wire.Placement(1, (64,)), keep_inputs=True), ()),
    (wire.Request(3, "k3", "gemm", {}, (wire.RemoteInput("hdfs:///a"), SPEC), "hdfs:///out", 0.0, -3), DATA),
    (wire.Cancel(3), ()),
    (wire.Lend(4, 1 << 20), ()),
    (wire.GiveBack(1), ()),
    (wire.Ping(9), ()),
    (wire.Goodbye("bye", "done"), ()),
)
FROM_SERVER = (
    (wire.Result(1, {"n": 4}, (wire.NamedTensor("lu", SPEC),), "w1", "cpu", {"total": 0.5}, 64, 64), DATA),
    (
        wire.Result(2, {}, (wire.NamedTensor("q", SPEC),), "w1", "cpu", {}, 64, 64, wire.Placement(1, (64,))),
        (),
    ),
    (wire.Failed(3, "rejected", "singular", "order 3"), ()),
    (wire.Busy(4, 0.5, "again: worker 1 died"), ()),
    (wire.Progress(5, "compute", 1.0), ()),
    (wire.Lent(4, 1, 1 << 20), ()),
    (wire.Stats(6, {"done": 3, "by": {"lu": [1, 2.5, None]}}), ()),
    (wire.Drain("soon"), ()),
)
SAID = {"client": FROM_CLIENT, "server": FROM_SERVER}
OTHER = {"client": "server", "server": "client"}
#: What headers are broken with: numbers at the edges, other types, forbidden text, deep nesting.
ODD_JSON = (
    *b"-1 0 9007199254740993 99999999999999999999999 281474976710655 1e308 1e999 NaN true null".split(),
    *(b'""', b"[]", b"{}", b'"\\ud800"', b'"\\u0000"', b"[" * 40, b"[[[[1]]]]", b'{"uri":"hdfs:///x"}'),
)


def ends(checksum):
    options = {"limits": LIMITS, "capabilities": (wire.MEMFD,)}
    client = wire.ClientConnection(CREDENTIAL, b"c" * 32, (checksum,), **options)
    server = wire.ServerConnection(MASTER, b"s" * 32, 1000.0, "w1", (checksum,), **options)
    return {"client": client, "server": server}


@functools.lru_cache
def handshake(checksum="crc32"):
    """The frames that each role sends until the connection is open."""
    pair = ends(checksum)
    frames = {"client": [], "server": []}
    for sender in ("client", "server", "client", "server"):
        data = b"".join(pair[sender].data_to_send())
        frames[sender].append(data)
        pair[OTHER[sender]].receive_data(data)
        pair[OTHER[sender]].next_event()
    return frames


def opened(checksum="crc32"):
    """Both ends of an open connection, without the cost of a handshake."""
    pair = ends(checksum)
    for end in pair.values():
        end.data_to_send()
        end.checksum = checksum
        end._use_keys(b"k" * 32, b"t" * 32)
        end._open((wire.MEMFD,), (wire.MEMFD,))
    return pair


def frame_of(sender, message, payload):
    return b"".join(bytes(part) for part in sender.send(message, payload))


def mutate(rng, data):
    """One to three random changes; the result may be of any length, even 0."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        change = rng.randrange(8)
        if change <= 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif change == 2 and at < len(data):
            data[at] = rng.randrange(256)
        elif change == 3:
            del data[at:]
        elif change == 4:
            del data[at : at + rng.randrange(1, 40)]
        elif change == 5:
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif change == 6:
            data[at:at] = data[: rng.randrange(len(data) + 1)]
        elif len(data) >= 16:
            # The two lengths of the prefix, at their edges.
            length = rng.choice((0, 1, 8, 8192, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 40) - 1, 1 << 63))
            place, form = rng.choice(((4, "!I"), (8, "!Q")))
            struct.pack_into(form, data, place, length & (0xFFFFFFFF if form == "!I" else (1 << 64) - 1))
    return bytes(data)


def break_header(rng, header):
    """A header with a JSON value, or anything else, replaced."""
    if rng.random() < 0.4:
        return mutate(rng, header)
    places = [index for index, byte in enumerate(header) if byte in b":[,"]
    if not places:
        return header + rng.choice(ODD_JSON)
    at = rng.choice(places) + 1
    end = min((index for index in range(at, len(header)) if header[index] in b",}]"), default=len(header))
    return header[:at] + rng.choice(ODD_JSON) + header[end:]


def put(rng, end, data):
    """Give an end the data in pieces of random length, through its own memory or ours."""
    while data:
        piece = data[: rng.choice((1, 7, 32, 40, 1000, 100_000))]
        if rng.random() < 0.5:
            end.receive_data(piece)
        else:
            view = end.wanted()
            piece = piece[: len(view)]
            view[: len(piece)] = piece
            end.received(len(piece))
        data = data[len(piece) :]
        yield


class Listener:
    """Takes the events of an end, and every payload up to 4 KiB."""

    def __init__(self, end):
        self.end = end
        self.events = []
        self._payload = None

    def hear(self):
        while not self.is_closed and (event := self.end.next_event()) is not wire.NEED_DATA:
            self.end.data_to_send()
            if isinstance(event, wire.PayloadComplete):
                event, self._payload = self._payload, None
            self.events.append(event)
            if self.end.payload_left > 4096:
                self.end.skip_payload()
            elif self.end.payload_left:
                self._payload = bytearray(self.end.payload_left)
                self.end.take_payload([memoryview(self._payload)])

    @property
    def is_closed(self):
        return bool(self.events) and isinstance(self.events[-1], wire.Closed)


def attack(rng, end, data, outcomes):
    """Feed an end these bytes and then the end of the stream; returns its events."""
    listener = Listener(end)
    try:
        for _ in put(rng, end, data):
            listener.hear()
        end.receive_data(b"")
        listener.hear()
        outcomes["closed cleanly"] += 1
    except ERRORS as error:
        outcomes[type(error).__name__] += 1
        assert end.state is wire.State.CLOSED
        assert len(str(error)) < 4000
        with pytest.raises(LocalProtocolError):
            end.next_event()
    assert len(end._buffer) <= max(BUFFER_BYTES, 2 * len(data))
    return [event for event in listener.events if not isinstance(event, wire.Closed)]


def run_handshake(rng, n_cases):
    """Mutated handshakes against both ends."""
    outcomes = collections.Counter()
    frames = handshake()
    for case in range(n_cases):
        attacked = ("server", "client")[case % 2]
        said = list(frames[OTHER[attacked]])
        at = rng.randrange(len(said))
        said[at] = mutate(rng, said[at])
        end = ends("crc32")[attacked]
        end.data_to_send()
        data = b"".join(said)
        if attack(rng, end, data, outcomes):
            assert data.startswith(b"".join(frames[OTHER[attacked]]))
            outcomes["opened by the unchanged handshake"] += 1
    return outcomes


def run_on_the_way(rng, n_cases):
    """Mutated frames without the key, against both open ends."""
    outcomes = collections.Counter()
    for case in range(n_cases):
        attacked = ("server", "client")[case % 2]
        pair = opened(rng.choice(("xxh3", "crc32", "none")))
        message, payload = rng.choice(SAID[OTHER[attacked]])
        good = b"".join(pair[OTHER[attacked]].send(message, payload))
        events = attack(rng, pair[attacked], mutate(rng, good), outcomes)
        assert len(events) <= 2
        assert events[:1] in ([], [message])
        if pair[attacked].checksum != "none":
            assert events[1:] in ([], [b"".join(payload)])
        outcomes["understood"] += len(events) > 0
    return outcomes


def run_gone_bad(rng, n_cases):
    """Broken headers with the right tag, against both open ends."""
    outcomes = collections.Counter()
    for case in range(n_cases):
        attacked = ("server", "client")[case % 2]
        pair = opened("none")
        message, payload = rng.choice(SAID[OTHER[attacked]])
        head = pair[OTHER[attacked]].send_head(message)[0]
        header = break_header(rng, head[32:])
        kind = head[2] if rng.random() < 0.9 else rng.randrange(256)
        varying = head[3] if rng.random() < 0.9 else rng.randrange(256)
        n_bytes = sum(map(len, payload)) if rng.random() < 0.8 else rng.choice((0, 1, 1 << 30, 1 << 39))
        forged = opened("none")[OTHER[attacked]]._tagged(kind, varying, header, n_bytes)
        outcomes["understood"] += bool(attack(rng, pair[attacked], forged + b"".join(payload), outcomes))
    return outcomes


@pytest.mark.parametrize(
    ("run", "n_cases"),
    [(run_handshake, examples(20_000)), *((run, examples(40_000)) for run in (run_on_the_way, run_gone_bad))],
)
def test_mutations_end_the_connection_at_worst(run, n_cases):
    outcomes = run(random.Random(2026), n_cases)
    assert outcomes["RemoteProtocolError"] > n_cases / 4
    assert outcomes["closed cleanly"] > n_cases / 400


@pytest.mark.parametrize("run", [run_handshake, run_on_the_way, run_gone_bad])
def test_mutations_take_no_memory(run):
    """Lengths up to 2**63 are announced; what is allocated at any time stays below a few buffers."""
    run(random.Random(1), 200)
    tracemalloc.start()
    try:
        run(random.Random(2), 200)
        first_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run(random.Random(3), examples(1500))
        now_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < first_bytes + (4 << 20)
    assert now_bytes < first_bytes + (2 << 20)


@settings(max_examples=examples(500))
@given(st.data())
def test_a_header_broken_by_hypothesis_is_refused_or_understood(data):
    """The same from a search that learns where the branches are: any header bytes under a right tag."""
    attacked = data.draw(st.sampled_from(["server", "client"]))
    pair = opened("none")
    message, _ = data.draw(st.sampled_from(SAID[OTHER[attacked]]))
    head = pair[OTHER[attacked]].send_head(message)[0]
    start = data.draw(st.integers(32, len(head)))
    end = data.draw(st.integers(start, len(head)))
    header = head[32:start] + data.draw(st.binary(max_size=30)) + head[end:]
    forged = opened("none")[OTHER[attacked]]._tagged(head[2], head[3], header, data.draw(st.integers(0, 100)))
    attack(random.Random(0), pair[attacked], forged, collections.Counter())
