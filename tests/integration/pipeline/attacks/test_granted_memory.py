"""Shared memory in the wrong hands: sealed, bounded, its connection's alone, and never trusted."""

import collections
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import threading

import numpy as np
import pytest

from tests.integration.pipeline.attackers import assert_serves, footprint, settled, statistics
from yarn_accel.wire import (
    Busy,
    Closed,
    Failed,
    GiveBack,
    Goodbye,
    Lend,
    Ping,
    Placement,
    Pong,
    Request,
    Result,
    TensorSpec,
)

MIB = 1 << 20


@pytest.fixture
def lender(raw):
    return lambda credential=None: raw(credential, unix=True, lending=True)


def echo_at(client, segment, offset, n_bytes=4096):
    number, spec = client.new_id(), TensorSpec("|u1", (n_bytes,))
    place = Placement(segment, (offset,))
    return Request(number, f"e{id(client)}-{number}", "echo", {}, (spec,), placement=place)


@contextlib.contextmanager
def written_all_the_time(fd, n_bytes, write):
    """Something writes into shared memory as long as the block runs."""
    stop = threading.Event()
    with mmap.mmap(fd, n_bytes) as shared:

        def scribble():
            while not stop.is_set():
                write(shared)

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            yield shared
        finally:
            stop.set()
            thread.join()
    os.close(fd)


def event_of(client, request):
    """The answer; descriptors that come with it are closed."""
    event = client.answer(request)
    while client.fds:
        os.close(client.fds.pop())
    return event


def test_a_granted_memfd_cannot_be_shrunk_grown_or_unsealed(lender):
    client = lender()
    segment, fd, n_bytes = client.lend(MIB)
    try:
        for length in (0, 4096, n_bytes - 1, n_bytes + 4096):
            with pytest.raises(OSError) as caught:  # noqa: PT011 -- the number is looked at
                os.ftruncate(fd, length)
            assert caught.value.errno == errno.EPERM
        with pytest.raises(OSError):  # noqa: PT011 -- either reason is fine
            os.posix_fallocate(fd, 0, n_bytes + MIB)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        # Holes may be punched: the server then reads zeros, and goes on.
        client.send(echo_at(client, segment, 0, MIB))
        os.pwrite(fd, b"x" * 4096, 0)
        libc_fallocate(fd, n_bytes)
        assert isinstance(client.event(), Result)
    finally:
        os.close(fd)


def libc_fallocate(fd, n_bytes):
    """Punch the whole file out (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(n_bytes))


def test_memory_written_while_it_is_computed_on(server, alice, lender):
    """Nonsense in, nonsense or an error out; what others get is right."""
    client, rng, n = lender(), np.random.default_rng(1), 400
    segment, fd, n_bytes = client.lend(n * n * 8)

    def write(shared):
        at = 8 * int(rng.integers(0, n * n))
        shared[at : at + 8] = rng.bytes(8)

    with written_all_the_time(fd, n_bytes, write):
        for turn, operation in enumerate(("lu", "qr", "cholesky", "echo") * 5):
            number, spec = client.new_id(), TensorSpec("<f8", (n, n), "F")
            place = Placement(segment, (0,))
            event = event_of(client, Request(number, f"w{number}", operation, {}, (spec,), placement=place))
            assert isinstance(event, Result | Failed | Busy), event
            if turn % 4 == 0:
                assert_serves(server, alice)


def test_indices_changed_between_their_check_and_their_use(server, operator, lender):
    """Pivots that are checked must be those that are used, or rows far outside of the matrix are swapped."""
    client, n, seen = lender(), 64, collections.Counter()
    specs = (TensorSpec("<f8", (n, n), "F"), TensorSpec("<i4", (n,)), TensorSpec("<f8", (n,)))
    offsets = (0, n * n * 8, n * n * 8 + 4096)
    segment, fd, n_bytes = client.lend(64 * 1024)
    # A worker that has not started yet has the pid 0.
    workers = {each["pid"] for each in statistics(server, operator)["workers"]} - {0}
    good, bad = np.arange(n, dtype="<i4").tobytes(), np.full(n, 1 << 28, dtype="<i4").tobytes()

    def write(shared):
        for content in (good, bad, good):
            shared[offsets[1] : offsets[1] + n * 4] = content

    with written_all_the_time(fd, n_bytes, write) as shared:
        shared[: n * n * 8] = np.eye(n).tobytes()
        for _ in range(300):
            number, place = client.new_id(), Placement(segment, offsets)
            event = event_of(client, Request(number, f"p{number}", "solve", {}, specs, placement=place))
            seen[type(event).__name__, getattr(event, "code", "")] += 1
            assert isinstance(event, Result) or getattr(event, "code", "") == "bad-pivot", event
    print(dict(seen))
    assert len(seen) == 2, "it was changed in between at least once"
    assert workers <= {each["pid"] for each in statistics(server, operator)["workers"]}, "a worker was lost"


@pytest.mark.parametrize(
    ("offset_of", "n_bytes"),
    [
        (lambda size: size, 4096),
        (lambda size: size - 64, 128),
        (lambda size: size + 64, 4096),
        (lambda size: 1 << 40, 4096),
        (lambda size: (1 << 53) - 64, 4096),
        (lambda size: 0, 16 * MIB),
    ],
    ids=["end", "last line", "behind", "far", "largest", "zero"],
)
def test_placements_outside_of_the_segment(lender, offset_of, n_bytes):
    client = lender()
    segment, fd, size = client.lend(MIB)
    os.close(fd)
    event = client.answer(echo_at(client, segment, offset_of(size), n_bytes))
    assert isinstance(event, Failed | Goodbye), event
    assert isinstance(event, Goodbye) or event.kind == "rejected"


def test_placements_that_are_not_aligned(lender):
    client = lender()
    segment, fd, _ = client.lend(MIB)
    os.close(fd)
    good = client.frame(echo_at(client, segment, 64))
    client.connection._send_tags._sequence -= 1
    n_header = int.from_bytes(good[4:8], "big")
    header = good[32 : 32 + n_header].replace(b"64", b"63")
    assert header != good[32 : 32 + n_header]
    client.push(client.tagged(good[:16], header))
    assert isinstance(client.event(), Goodbye | Closed)


def test_segments_of_others_can_be_neither_named_nor_given_back(lender, bob):
    """Another connection's number, of the same tenant or not, names nothing."""
    owner = lender(bob)
    segment, fd, n_bytes = owner.lend(MIB)
    with mmap.mmap(fd, n_bytes) as shared:
        shared[:6] = b"secret"
        for thief in (lender(), lender(bob)):
            for number in {segment, segment - 1, segment + 1, 0, 1 << 50}:
                event = thief.answer(echo_at(thief, number, 0))
                assert isinstance(event, Failed), event
                assert event.kind == "rejected"
                thief.send(GiveBack(number))
            assert isinstance(thief.answer(Ping(1)), Pong)
        event = owner.answer(echo_at(owner, segment, 0))
        assert isinstance(event, Result)
        assert shared[:6] == b"secret"
        owner.send(GiveBack(segment))
        for _ in range(3):
            owner.send(GiveBack(segment))
        assert isinstance(owner.answer(echo_at(owner, segment, 0)), Failed)
    os.close(fd)


def test_lending_has_a_bound(server, alice, lender):
    client = lender()
    event = client.answer(Lend(client.new_id(), 9 * MIB))
    assert isinstance(event, Busy | Failed)
    n_granted = 0
    for _ in range(200):
        event = client.answer(Lend(client.new_id(), MIB))
        if isinstance(event, Busy | Failed):
            continue
        os.close(client.fds.pop())
        n_granted += event.n_bytes
    assert 7 * MIB <= n_granted <= 8 * MIB
    for n_bytes in (1, 1 << 53):
        event = client.answer(Lend(client.new_id(), n_bytes))
        assert not isinstance(event, Result)
        while client.fds:
            os.close(client.fds.pop())
        if isinstance(event, Goodbye | Closed):
            client = lender()
    stats = statistics(server, alice)
    assert stats["pool"]["shared_bytes"] <= 17 * MIB


def test_one_segment_for_two_requests_at_once(lender):
    client = lender()
    segment, fd, _ = client.lend(MIB)
    os.close(fd)
    place, spec = Placement(segment, (0,)), TensorSpec("|u1", (4096,))
    number = client.new_id()
    slow = Request(number, f"slow{id(client)}", "bad-slow", {"seconds": 2.0}, (spec,), placement=place)
    # In one piece, so that the second is read while the first is computed.
    client.push(client.frame(slow) + client.frame(echo_at(client, segment, 0)))
    second = client.event()
    assert isinstance(second, Failed)
    assert second.kind == "rejected"
    assert isinstance(client.event(), Result)


def test_memory_is_not_granted_where_it_was_not_agreed(raw):
    for options in ({}, {"unix": True}):
        client = raw(**options)
        client.connection._may_lend = True
        client.send(Lend(1, MIB))
        (event,) = client.ends()
        assert isinstance(event, Goodbye)


def test_a_segment_dies_with_its_connection(server, alice, lender):
    client = lender()
    segment, fd, n_bytes = client.lend(4 * MIB)
    with mmap.mmap(fd, n_bytes) as shared:
        shared[:4] = b"mine"
        client.close()
        settled(server, alice)
        other = lender()
        found = other.lend(4 * MIB)
        assert found[0] != segment
        with mmap.mmap(found[1], found[2]) as fresh:
            assert not any(fresh[:65536]), "granted memory shows nothing of others"
            fresh[:4] = b"new!"
            assert shared[:4] == b"mine"
        os.close(found[1])
    os.close(fd)


def test_descriptors_nobody_asked_for(server, unharmed, raw):
    """A client that sends descriptors along does not fill the server's table."""
    client = raw(unix=True, lending=True)
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(60)]
    try:
        for number in range(200):
            socket.send_fds(client.sock, [client.frame(Ping(number))], files)
            assert isinstance(client.event(), Pong)
    finally:
        for fd in files:
            os.close(fd)
    assert footprint(server.process.pid).n_fds < unharmed.n_fds + 12
