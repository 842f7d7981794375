"""Whatever bytes a peer sends: a message or a `ProtocolError`, at once, and never more memory than bounded.

``TEST_EXAMPLES=all`` draws 100,000 mutated and cut replies.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import ALL, examples
from tests.fixtures.torque_captures import recorded_replies, recorded_requests
from torque_sched.batch.torque import protocol as wire
from torque_sched.errors import ProtocolError

N_MUTATED = 100_000 if ALL else 2_000
REPLIES = sorted(recorded_replies().items())
REQUESTS = sorted(recorded_requests().items())
PIECES = (b"+", b"-", b"+0", b"9+999999999", b"220+99999999999999999999", b"1", b"+1", b"\0", b"\xff")
PIECES += (b"2+12", b"")
BOUNDS = wire.MessageBounds(message_bytes=1 << 20, string_bytes=1 << 16)
MOST_BYTES = 8 << 20
LONGEST_S = 60.0
"""For one decoding; a stuck one never ends."""


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The bytes with up to four places changed, doubled, cut out or cut off."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                changed[at:at] = draw.choice(PIECES)
            case 2:
                del changed[at : at + draw.randint(1, 20)]
            case 3:
                changed[at:at] = changed[at : at + draw.randint(1, 200)]
            case _:
                del changed[at:]
    return bytes(changed)


def decoded(
    decoder: wire.ReplyDecoder[wire.StatusObject] | wire.RequestDecoder, data: bytes, draw: random.Random
) -> None:
    """Feed the bytes in random pieces and take all messages, as the owner of a connection does."""
    at = 0
    while at < len(data):
        n = draw.choice((1, 7, 100, 4096))
        decoder.receive(data[at : at + n])
        at += n
        try:
            while decoder.next() is not None:
                pass
        except ProtocolError as error:
            assert error.message.startswith("byte "), error
            decoder.discard()
            return


def test_mutated_replies_never_surprise() -> None:
    draw = random.Random(18)
    tracemalloc.start()
    try:
        for _ in range(N_MUTATED):
            name, data = draw.choice(REPLIES)
            tracemalloc.reset_peak()
            began_bytes, began_s = tracemalloc.get_traced_memory()[0], time.monotonic()
            changed = mutated(data, draw)
            decoded(wire.ReplyDecoder(wire.as_they_are, wire.KnownObjects(), BOUNDS), changed, draw)
            assert time.monotonic() - began_s < LONGEST_S, (name, changed)
            assert tracemalloc.get_traced_memory()[1] - began_bytes < MOST_BYTES, (name, changed)
    finally:
        tracemalloc.stop()


def read_in_pieces_of(n: int, data: bytes) -> wire.Reply[wire.StatusObject] | str | None:
    """The first reply, or what is wrong with it."""
    decoder = wire.ReplyDecoder(wire.as_they_are, None, BOUNDS)
    for at in range(0, len(data), n):
        decoder.receive(data[at : at + n])
        try:
            reply = decoder.next()
        except ProtocolError as error:
            return error.message.partition(": b")[0]  # less the bytes, of which more may be there
        if reply is not None:
            return reply
    return None


def test_mutated_replies_are_read_the_same_in_one_piece_and_byte_by_byte() -> None:
    draw = random.Random(20)
    short = [data for _, data in REPLIES if len(data) < 4000]
    for _ in range(N_MUTATED // 4):
        data = mutated(draw.choice(short), draw)
        whole, in_bytes = read_in_pieces_of(len(data) + 1, data), read_in_pieces_of(1, data)
        # What was cut off may still be waited for where more bytes show that it is garbled.
        assert whole == in_bytes or (isinstance(whole, str) and in_bytes is None), data


def test_mutated_requests_never_surprise() -> None:
    draw = random.Random(19)
    for _ in range(N_MUTATED // 4):
        decoded(wire.RequestDecoder(BOUNDS), mutated(draw.choice(REQUESTS)[1], draw), draw)


@settings(max_examples=examples(1000))
@given(st.binary(max_size=200))
def test_any_bytes_are_a_line_of_trqauthds_or_an_error(data: bytes) -> None:
    for read in (wire.decode_answer, wire.decode_authorisation):
        with suppress(ProtocolError):
            read(data)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
words = st.text("abcxyz_.0123456789[]é", min_size=1, max_size=20)
attributes = st.lists(
    st.builds(wire.Attribute, words, st.none() | texts, texts, st.integers(0, 9)), max_size=6
).map(tuple)
extensions = st.none() | texts
status_types = st.sampled_from(
    [
        wire.RequestType.STATUS_JOB,
        wire.RequestType.STATUS_QUEUE,
        wire.RequestType.STATUS_SERVER,
        wire.RequestType.STATUS_NODE,
    ]
)
requests: st.SearchStrategy[wire.Request] = st.one_of(
    st.builds(wire.Status, status_types, words, texts, attributes, extensions),
    st.builds(wire.SelectStatus, words, attributes, attributes, extensions),
    st.builds(wire.SelectJobs, words, attributes, extensions),
    st.builds(wire.RunJob, words, words, texts, st.booleans(), extensions),
    st.builds(wire.ModifyJob, words, words, attributes, extensions),
    st.builds(wire.DeleteJob, words, words, attributes, extensions),
    st.builds(wire.AuthenticateUser, words, st.integers(0, 65535), extensions),
    st.builds(wire.Disconnect, words),
)
objects = st.lists(st.builds(wire.StatusObject, st.integers(0, 3), words, attributes), max_size=6).map(tuple)
codes = st.integers(-99999, 99999)
replies = st.one_of(
    st.builds(wire.Reply, codes, codes),
    st.builds(lambda c, t: wire.Reply(c, kind=wire.ReplyKind.TEXT, text=t), codes, texts),
    st.builds(
        lambda c, ids: wire.Reply(c, kind=wire.ReplyKind.JOB_IDS, job_ids=tuple(ids)), codes, st.lists(words)
    ),
    st.builds(lambda c, found: wire.Reply(c, kind=wire.ReplyKind.OBJECTS, objects=found), codes, objects),
)


def come_back(decoder: Any, stream: bytes, data: st.DataObject) -> list[Any]:
    """What is decoded of a stream that arrives in any pieces."""
    came = []
    while stream:
        n = data.draw(st.integers(1, len(stream)))
        decoder.receive(stream[:n])
        stream = stream[n:]
        while (message := decoder.next()) is not None:
            came.append(message)
    return came


@settings(max_examples=examples(500))
@given(st.lists(requests, min_size=1, max_size=3), st.data())
def test_requests_come_back_in_any_pieces(sent: list[wire.Request], data: st.DataObject) -> None:
    assert come_back(wire.RequestDecoder(), b"".join(map(wire.encode_request, sent)), data) == sent


@settings(max_examples=examples(500))
@given(st.lists(replies, min_size=1, max_size=3), st.data())
def test_replies_come_back_in_any_pieces_whatever_is_known(
    sent: list[wire.Reply[wire.StatusObject]], data: st.DataObject
) -> None:
    decoder = wire.ReplyDecoder(wire.as_they_are, wire.KnownObjects())
    assert come_back(decoder, b"".join(map(wire.encode_reply, sent)), data) == sent


@settings(max_examples=examples(300))
@given(objects, objects)
def test_what_is_known_changes_nothing(
    first: tuple[wire.StatusObject, ...], second: tuple[wire.StatusObject, ...]
) -> None:
    decoder = wire.ReplyDecoder(wire.as_they_are, wire.KnownObjects())
    for each in (first, second, first + second, second, second):
        decoder.receive(wire.encode_reply(wire.Reply(kind=wire.ReplyKind.OBJECTS, objects=each)))
        reply = decoder.next()
        assert reply is not None
        assert reply.objects == each


@settings(max_examples=examples(300))
@given(
    st.builds(
        wire.Authorisation,
        words,
        st.integers(1, 65535),
        words,
        st.integers(1, 2**31 - 1),
        st.integers(1, 65535),
    )
)
def test_the_line_to_trqauthd_comes_back(asked: wire.Authorisation) -> None:
    assert wire.decode_authorisation(wire.encode_authorisation(asked)) == asked


def test_ten_thousand_jobs_of_which_few_changed_are_stepped_over() -> None:
    built: list[str] = []

    def build(each: wire.StatusObject) -> str:
        built.append(each.name)
        return each.name

    jobs = [
        wire.StatusObject(
            2,
            f"{n}.head",
            (wire.Attribute("job_state", None, "Q"), wire.Attribute("comment", None, "x" * 80)),
        )
        for n in range(10_000)
    ]
    decoder = wire.ReplyDecoder(build, wire.KnownObjects())
    for expected in (10_000, 100, 0):
        built.clear()
        data = wire.encode_reply(wire.Reply(kind=wire.ReplyKind.OBJECTS, objects=tuple(jobs)))
        for at in range(0, len(data), 1 << 18):
            decoder.receive(data[at : at + (1 << 18)])
            reply = decoder.next()
        assert reply is not None
        assert len(reply.objects) == 10_000
        # One more where an object arrived in two pieces.
        assert expected <= len(built) <= expected + len(data) // (1 << 18) + 1
        if expected == 10_000:
            for n in range(0, 10_000, 100):
                jobs[n] = wire.StatusObject(2, jobs[n].name, (wire.Attribute("job_state", None, "R"),))
