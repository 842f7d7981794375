"""Shared memory between the client and a scripted server: who copies, who holds, what is given back."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.shared_memory import ReplyPool, SharedMemory
from yarn_accel.errors import RejectedError, RemoteProtocolError, UnavailableError
from yarn_accel.wire import Busy, Cancel, Cancelled, Lend, NamedTensor, Placement, Result, TensorSpec
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(range(32)), "alice", 2**40, "k1")
MIB = 1 << 20
SPEC = TensorSpec("|u1", (MIB,))


def n_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def large(fill=7):
    return Tensor(SPEC, bytes([fill]) * MIB)


def test_large_inputs_go_through_a_segment_that_is_used_again(serve):
    seen = []

    def script(peer):
        for fill in (7, 8, 9):
            request = peer.next_request()
            assert peer.inputs(request) == [bytes([fill]) * MIB]
            assert not request.keep_inputs
            seen.append(request.placement.segment)
            peer.answer(request)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        assert client.carrier == "memfd"
        for fill in (7, 8, 9):
            client.call(Call(f"k{fill}", "echo", {}, (large(fill),)))
        assert client.shared_memory.n_bytes >= MIB
    assert seen == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "n_bytes", "carrier"),
    [
        ({}, MIB, "tcp"),
        ({"unix": True}, MIB, "unix"),
        ({"unix": True, "max_lent_bytes": 8 * MIB}, 3, "memfd"),
    ],
)
def test_small_inputs_and_all_without_the_capability_go_through_the_socket(serve, options, n_bytes, carrier):
    def script(peer):
        request = peer.next_request()
        assert (request.placement, peer.payload) == (None, bytes([7]) * n_bytes)
        peer.answer(request, bytes(MIB))

    with Client(serve(script, **options), CREDENTIAL) as client:
        assert client.carrier == carrier
        client.call(Call("k", "echo", {}, (Tensor(TensorSpec("|u1", (n_bytes,)), bytes([7]) * n_bytes),)))


def test_results_are_views_and_their_segment_is_kept_until_the_last_one_dies(serve):
    used = []

    def script(peer):
        for fill in (1, 2, 3):
            request = peer.next_request()
            used.append(request.placement.segment)
            peer.answer_in(request.placement.segment, request, 0, bytes([fill]) * MIB)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        first = client.call(Call("k1", "echo", {}, (large(),))).tensors["out"].data
        part = first[100:200]
        second = client.call(Call("k2", "echo", {}, (large(),)))
        assert bytes(part) == bytes([1]) * 100
        assert bytes(second.tensors["out"].data[:3]) == b"\2\2\2"
        del part, first
        gc.collect()
        client.call(Call("k3", "echo", {}, (large(),)))
    assert used == [1, 2, 1]


def test_memory_the_server_lends_for_an_answer_is_given_back(serve):
    def script(peer):
        first = peer.next_request()
        segment = peer.lend(0, 2 * MIB)
        peer.answer_in(segment, first, 64, b"first")
        second = peer.next_request()
        assert peer.given_back == []
        peer.answer(second)
        third = peer.next_request()
        assert peer.given_back == [segment]
        peer.answer_in(segment, third, 0, b"third")  # without sending the descriptor again
        peer.answer(peer.next_request())
        assert peer.given_back == [segment, segment]

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        kept = client.call(Call("k1", "echo")).tensors["out"].data
        client.call(Call("k2", "echo"))
        assert bytes(kept) == b"first"
        del kept
        gc.collect()
        assert bytes(client.call(Call("k3", "echo")).tensors["out"].data) == b"third"
        gc.collect()
        client.call(Call("k4", "echo"))


def test_results_can_be_copied_out(serve):
    def script(peer):
        for _ in range(2):
            request = peer.next_request()
            assert request.placement.segment == 1
            peer.answer_in(1, request, 0, bytes([5]) * MIB)

    endpoint = serve(script, unix=True, max_lent_bytes=8 * MIB)
    with Client(endpoint, CREDENTIAL, copy_results=True) as client:
        replies = [client.call(Call(f"k{n}", "echo", {}, (large(),))) for n in range(2)]
    assert all(bytes(reply.tensors["out"].data) == bytes([5]) * MIB for reply in replies)


def test_allocated_memory_needs_no_copy_and_is_left_as_it_is(serve):
    def script(peer):
        for _ in range(2):
            request = peer.next_request()
            assert request.keep_inputs
            assert request.placement == Placement(1, (0, MIB))
            assert peer.inputs(request) == [b"a" * MIB, b"b" * MIB]
            peer.answer(request)
        apart = peer.next_request()
        assert apart.placement.segment == 2
        assert not apart.keep_inputs
        peer.answer(apart)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        both = client.empty(TensorSpec("|u1", (2, MIB))).array()
        both[0], both[1] = ord("a"), ord("b")
        for n in range(2):
            client.call(Call(f"k{n}", "gemm", {}, (both[0], both[1])))
        client.call(Call("k2", "gemm", {}, (both[0], large())))


def test_what_lies_elsewhere_or_unaligned_or_beyond_is_copied(serve):
    def script(peer):
        for expected in (b"a" * MIB, bytes([7]) * MIB, b"a" * (MIB - 8)):
            request = peer.next_request()
            assert not request.keep_inputs
            assert request.placement.segment != 1
            assert peer.inputs(request) == [expected]
            peer.answer(request)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        own = client.empty(SPEC).array()
        own[:] = ord("a")
        read_only = own[:]
        read_only.flags.writeable = False
        for n, given in enumerate((read_only, np.full(MIB, 7, "u1"), own[8:])):
            client.call(Call(f"k{n}", "echo", {}, (given,)))


def test_memory_that_a_child_may_see_serves_nobody_else(serve):
    def script(peer):
        seen = []
        for _ in range(3):
            request = peer.next_request()
            seen.append(request.placement.segment)
            peer.answer(request)
        assert seen == [1, 2, 2]

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        own = client.empty(SPEC).array()
        own[:] = 5
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        client.call(Call("k0", "echo", {}, (own,)))
        del own
        gc.collect()
        for n in (1, 2):
            client.call(Call(f"k{n}", "echo", {}, (large(),)))


def test_a_refused_loan_means_the_socket_and_is_not_asked_again_at_once(serve):
    def script(peer):
        asked = peer.next_event()
        assert isinstance(asked, Lend)
        peer.send(Busy(asked.id, 0.1, "no memory to lend"))
        for _ in range(2):
            request = peer.next_event()
            assert request.placement is None
            assert peer.payload == bytes([7]) * MIB
            peer.answer(request)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        for n in range(2):
            assert isinstance(client.call(Call(f"k{n}", "echo", {}, (large(),))), Reply)


def test_again_means_the_same_call_from_the_callers_own_bytes_at_once(serve):
    def script(peer):
        first = peer.next_request()
        peer.segments[first.placement.segment][:MIB] = bytes(MIB)
        peer.send(Busy(first.id, 0.0, "again: a worker was lost"))
        second = peer.next_request()
        assert (second.key, peer.inputs(second)) == (first.key, [bytes([7]) * MIB])
        peer.answer(second)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        assert isinstance(client.call(Call("k", "lu", {}, (large(),))), Reply)


def test_a_server_that_says_again_for_ever_is_busy(serve):
    def script(peer):
        for _ in range(9):
            peer.send(Busy(peer.next_request().id, 0.5, "again: a worker was lost"))

    with Client(serve(script), CREDENTIAL) as client, pytest.raises(UnavailableError, match="again"):
        client.call(Call("k", "lu"))


@pytest.mark.parametrize(
    ("segment", "offset", "text"), [(9, 0, "not granted"), (1, 2 * MIB, "beyond the end")]
)
def test_an_answer_outside_the_granted_memory_ends_the_connection(serve, segment, offset, text):
    def script(peer):
        tensors = (NamedTensor("out", TensorSpec("|u1", (1,))),)
        place = Placement(segment, (offset,))
        peer.send(Result(peer.next_request().id, {}, tensors, "w1", "cpu", {}, 1, 1, place))

    endpoint = serve(script, unix=True, max_lent_bytes=8 * MIB)
    with Client(endpoint, CREDENTIAL) as client, pytest.raises(UnavailableError, match=text):
        client.call(Call("k", "echo", {}, (large(),)))


def test_descriptors_are_closed(serve):
    def script(peer):
        for _ in range(3):
            peer.answer(peer.next_request())

    before = n_descriptors()
    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        while client.n_in_flight < 3:
            client.submit(Call("k", "echo", {}, (large(),)))
        while client.n_in_flight:
            client.next_outcome()
    del client
    gc.collect()
    assert n_descriptors() <= before + 6  # the script's own sockets and mappings


def test_a_segment_granted_again_while_in_use_is_refused():
    granted = SharedMemory(MIB)
    fd = os.memfd_create("segment")
    os.ftruncate(fd, 4096)
    try:
        segment = granted.add(1, fd, 4096, is_reusable=True)
        view = granted.hold(segment)
        with pytest.raises(RemoteProtocolError, match="in use"):
            granted.add(1, fd, 4096, is_reusable=True)
        del view
        assert granted.segments_to_return() == []
        assert granted.add(1, fd, 4096, is_reusable=False) is not segment
        with pytest.raises(RemoteProtocolError, match="cannot be mapped"):
            granted.add(2, fd, 8192, is_reusable=True)
    finally:
        os.close(fd)
    assert granted.n_bytes == 4096


@pytest.mark.parametrize(
    "part_of", [lambda view: view[5:10], lambda view: np.frombuffer(view, "<f8")[::2]], ids=["view", "numpy"]
)
def test_reply_memory_is_used_again_when_nothing_holds_it(part_of):
    pool = ReplyPool()
    first = pool.take(MIB)
    first[:] = b"x" * MIB
    held = part_of(first)
    del first
    gc.collect()
    assert bytes(pool.take(MIB)[:1]) == b"\0", "it is held still"
    del held
    gc.collect()
    assert b"x" in {bytes(view[:1]) for view in [pool.take(MIB - 5) for _ in range(2)]}


def test_idle_reply_memory_is_bounded():
    pool = ReplyPool(idle_bytes=3 * MIB)
    for view in [pool.take(MIB) for _ in range(6)]:
        view[:1] = b"x"
    del view
    gc.collect()
    assert sum(bytes(view[:1]) == b"x" for view in [pool.take(MIB) for _ in range(6)]) <= 4


def test_memory_of_a_cancelled_call_goes_back_to_the_server(serve):
    """Which may still be at work in it, so the next call must not write there before it is granted again."""
    seen = []

    def script(peer):
        for _ in range(2):
            first = peer.next_request()
            assert peer.next_event() == Cancel(first.id)
            peer.send(Cancelled(first.id))
            second = peer.next_request()
            seen.append((first.placement.segment, second.placement.segment, tuple(peer.given_back)))
            peer.answer(second)

    # One call's worth: what was given up may be asked for again.
    with Client(serve(script, unix=True, max_lent_bytes=MIB + MIB // 4), CREDENTIAL) as client:
        for number in range(2):
            call = Call(f"a{number}", "echo", {}, (large(),))
            client.submit(call)
            client.cancel(call)
            assert client.next_outcome()[1].code == "cancelled"
            client.call(Call(f"b{number}", "echo", {}, (large(),)))
    assert seen == [(1, 2, (1,)), (2, 3, (1, 2))]


def test_memory_of_calls_that_cannot_be_sent_is_free_again(serve):
    def script(peer):
        request = peer.next_request()
        assert request.placement.segment == 1
        peer.answer(request)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        tensor = client.empty(SPEC)
        for call in (Call("x" * 300, "lu", {}, (tensor,)), Call("x" * 300, "lu", {}, (large(),))):
            with pytest.raises(RejectedError, match="key"):
                client.call(call)
        del tensor, call
        gc.collect()
        client.call(Call("k", "lu", {}, (large(),)))


def test_a_server_lost_while_it_is_asked_for_memory(serve):
    def script(peer):
        assert isinstance(peer.next_event(), Lend)

    with Client(serve(script, unix=True, max_lent_bytes=8 * MIB), CREDENTIAL) as client:
        with pytest.raises(UnavailableError) as caught:
            client.call(Call("k", "lu", {}, (large(),)))
        assert str(caught.value).count("1 call(s) unanswered") == 1
        assert [call.key for call in client.unanswered()] == ["k"]
