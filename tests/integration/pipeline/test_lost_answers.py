"""Answers that nobody took, and work that came too late: computed once, or not at all, and counted."""

import socket
import struct
import time

import numpy as np
import pytest

from tests.integration.pipeline.attackers import RawClient
from tests.integration.pipeline.conftest import Barrier
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.wire import Request

MIB = 1 << 20
#: More than sockets take unread, and computed in less time than it takes to copy.
ARRAY = np.arange(4.0 * MIB)


@pytest.fixture(params=["tcp", "unix"])
def carrier(request):
    return request.param


@pytest.fixture
def server(start_gated, tmp_path):
    return start_gated(workers=1, unix_path=str(tmp_path / "socket"), pool_bytes=1024 * MIB)


def raw(server, credential, carrier):
    return RawClient(server.endpoint, credential, unix=carrier == "unix")


def begin(client, call):
    """Send a call, and no more."""
    specs = tuple(tensor.spec for tensor in call.inputs)
    payload = [memoryview(tensor.data) for tensor in call.inputs]
    assert client.send(Request(client.new_id(), call.key, call.operation, call.params, specs), payload)


def die(client):
    """End a connection as a killed process on a crashed host does: no goodbye, nothing read any more."""
    if client.sock.family == socket.AF_INET:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("is_on_its_way", [True, False], ids=["in the middle of", "right before"])
def test_a_client_that_dies_with_its_answer(server, credential, carrier, barrier, wait_until, is_on_its_way):
    call = barrier.call("same", (Tensor.of(ARRAY),))
    client = raw(server, credential, carrier)
    if is_on_its_way:
        barrier.open()
    begin(client, call)
    if is_on_its_way:
        assert client.sock.recv(1000), "the answer is on its way"
        assert server.stats()["done"] == 1
    wait_until(lambda: barrier.n_started == 1, "it is computed")
    die(client)
    barrier.open()
    wait_until(lambda: server.stats()["pool"]["kept_bytes"] >= ARRAY.nbytes, "the answer is kept")
    with Client(server.endpoint, credential) as client:
        reply = client.call(call)
    assert np.array_equal(reply.tensors["a0"].array(), ARRAY)
    assert barrier.n_started == 1, "nothing is computed again"
    stats = server.stats()
    assert stats["duplicates"] == 1
    assert stats["requests"] == stats["done"] + stats["abandoned"] == 2


def test_what_is_kept_is_bounded_and_makes_space(start_gated, credential, barrier, wait_until):
    """A quarter of the memory at most, and none of it as soon as somebody needs it."""
    server = start_gated(workers=1, pool_bytes=256 * MIB, queue_bytes=256 * MIB, max_request_bytes=224 * MIB)
    barrier.open()
    for number in range(4):
        client = raw(server, credential, "tcp")
        begin(client, barrier.call(f"k{number}", (Tensor.of(ARRAY),)))
        assert client.sock.recv(1000)
        die(client)
        wait_until(lambda: server.stats()["queues"]["write"]["bytes"] == 0, "its end was noticed")
        assert server.stats()["pool"]["kept_bytes"] <= 64 * MIB
    assert server.stats()["pool"]["kept_bytes"] > 0
    with Client(server.endpoint, credential) as client:
        large = client.call(Call("large", "echo", {}, (Tensor.of(np.zeros(224 * MIB, "u1")),)))
    assert large.bytes_in == 224 * MIB


def test_a_deadline_that_passes_at_the_worker_is_kept_to(
    start_gated, credential, tmp_path, barrier, wait_until
):
    """Two equal requests go to the worker together; while it is at one, the time of the other is over."""
    server = start_gated(workers=1)
    second_barrier = Barrier(tmp_path / "second")
    with Client(server.endpoint, credential) as client:
        client.submit(barrier.call("first"))
        wait_until(lambda: barrier.n_started == 1, "the worker is busy")
        client.submit(second_barrier.call("long"))
        client.submit(second_barrier.call("late", deadline_s=1.0))
        wait_until(lambda: server.stats()["requests"] == 3, "both wait")
        # The server counts from when it read the request, which was before this.
        due_s = time.monotonic() + 1.0
        barrier.open()
        wait_until(lambda: second_barrier.n_started == 1, "both are with the worker")
        time.sleep(max(0.0, due_s - time.monotonic()) + 0.1)
        second_barrier.open()
        outcomes = {call.key: outcome for call, outcome in (client.next_outcome() for _ in range(3))}
        assert isinstance(outcomes["first"], Reply)
        assert isinstance(outcomes["long"], Reply)
        assert outcomes["late"].code == "deadline-exceeded"
        assert client.call(second_barrier.call("late")).info["n"] == 2, "and may be asked for again"
    assert second_barrier.n_started == 2
    stats = server.stats()
    assert (stats["requests"], stats["done"], stats["rejected"], stats["failed"]) == (4, 3, 1, 0)
    assert (stats["in_flight"], stats["tenants"]["alice"]["rejected"]) == (0, 1)
