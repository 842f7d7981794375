"""Shared memory, TLS and idle connections: the carriers of one server, end to end."""

import os
import signal
import socket
import threading

import numpy as np
import pytest

from tests.integration.pipeline import barrier_operations
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError
from yarn_accel.wire import TensorSpec

RNG = np.random.default_rng(9)
N = 300


@pytest.fixture
def a():
    return np.asfortranarray(RNG.standard_normal((N, N)))


@pytest.fixture
def server(start_server, tmp_path):
    return start_server(unix_path=str(tmp_path / "socket"), workers=1)


def test_results_by_shared_memory_are_those_by_socket(server, credential, a):
    replies = {}
    for carrier in ("memfd", "unix", "tcp"):
        with Client(server.endpoint, credential, carriers=(carrier,)) as client:
            assert client.carrier == carrier
            for name in ("echo", "lu", "qr"):
                reply = client.call(Call(f"{carrier}-{name}", name, {}, (Tensor.of(a),)))
                arrays = [np.array(tensor.array()) for tensor in reply.tensors.values()]
                replies.setdefault(name, arrays)
                pairs = zip(arrays, replies[name], strict=True)
                assert all(np.array_equal(one, other) for one, other in pairs), (carrier, name)


def test_allocated_inputs_stay_as_they_are_and_cost_no_copy(server, credential, a):
    with Client(server.endpoint, credential) as client:
        tensor = client.empty(TensorSpec("<f8", (N, N), "F"))
        tensor.array()[:] = a
        for n in range(3):
            reply = client.call(Call(f"k{n}", "lu", {}, (tensor,)))
            assert np.array_equal(tensor.array(), a)
            del reply
        assert list(server.stats()["open_connections"]) == ["memfd/none"]
        assert server.stats()["pool"]["shared_bytes"] > 0
        del tensor


def test_granted_memory_returns_when_its_connection_ends(server, credential, a, wait_until):
    with Client(server.endpoint, credential) as client:
        client.call(Call("k", "qr", {}, (Tensor.of(a),)))
        assert server.stats()["pool"]["shared_bytes"] > 0
    wait_until(lambda: server.stats()["pool"]["shared_bytes"] == 0, "the loans ended")
    assert server.stats()["pool"]["used_bytes"] == 0


def test_who_may_borrow_nothing_more_is_served_by_the_socket(start_server, tmp_path, credential, a):
    server = start_server(unix_path=str(tmp_path / "socket"), workers=1, max_shared_memory_bytes=256 * 1024)
    with Client(server.endpoint, credential) as client:
        reply = client.call(Call("k", "qr", {}, (Tensor.of(a),)))
        q, r = (tensor.array() for tensor in reply.tensors.values())
        assert np.abs(q @ r - a).max() < 1e-10
    assert server.stats()["pool"]["shared_bytes"] <= 256 * 1024


def test_a_worker_killed_at_work_on_granted_memory_costs_nothing(
    start_server, tmp_path, credential, wait_until
):
    """The inputs survive in the client's own arrays, whoever wrote to the shared ones."""
    (tmp_path / "barrier").mkdir()
    server = start_server(
        unix_path=str(tmp_path / "socket"), workers=1, extra_operations=(barrier_operations.PATH,)
    )
    data = RNG.integers(0, 255, 1_000_000).astype("u1")
    with Client(server.endpoint, credential) as client:
        client.submit(Call("k", "wait", {"folder": str(tmp_path / "barrier")}, (Tensor.of(data),)))
        started = tmp_path / "barrier/started"
        wait_until(lambda: started.exists() and started.stat().st_size, "the worker is at it")
        os.kill(server.stats()["workers"][0]["pid"], signal.SIGKILL)
        (tmp_path / "barrier/opened").touch()
        reply = client.next_outcome()[1]
        assert not isinstance(reply, AccelError), reply
        assert np.array_equal(reply.tensors["a0"].array(), data)
        assert reply.info["n"] == 2
        del reply


@pytest.fixture
def tls_server(start_server, certificate):
    cert, key = (str(certificate / name) for name in ("cert.pem", "key.pem"))
    server = start_server(tls_cert_file=cert, tls_key_file=key, workers=1, handshake_timeout_s=1.0)
    return server, Endpoint("w1", "127.0.0.1", server.port, tls=True, ca_file=cert)


def test_tls_in_both_directions_at_once(tls_server, credential):
    server, endpoint = tls_server
    sizes = (10, 3_000_000, 70_000, 1) * 3
    calls = [
        Call(f"k{n}", "echo", {}, (Tensor.of(RNG.integers(0, 255, size).astype("u1")),))
        for n, size in enumerate(sizes)
    ]
    with Client(endpoint, credential) as client:
        assert client.carrier == "tls"
        for call, reply in client.map(calls, window=4):
            assert bytes(next(iter(reply.tensors.values())).data) == bytes(call.inputs[0].data)
        assert next(iter(server.stats()["open_connections"])).startswith("tls/")


def test_tls_refuses_who_does_not_speak_it_or_says_nothing(tls_server, credential, wait_until):
    server, _ = tls_server
    with pytest.raises(AccelError), Client(Endpoint("w1", "127.0.0.1", server.port), credential):
        pass
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(60)
        assert sock.recv(1) == b""
    wait_until(lambda: not server.stats()["open_connections"], "the connections ended")


def test_quiet_connections_cost_no_thread_and_wake_up(start_server, credential, wait_until):
    server = start_server(workers=1)
    wait_until(lambda: server.stats()["workers"][0]["worker"] >= 0, "its own threads run")
    n_threads = threading.active_count()
    clients = [Client(server.endpoint, credential) for _ in range(40)]
    try:
        for client in clients:
            client.__enter__()
        wait_until(lambda: server.stats()["idle_connections"] == 40, "all are parked")
        wait_until(lambda: threading.active_count() <= n_threads, "their threads ended")
        for n, client in enumerate(clients):
            assert client.call(Call(f"k{n}", "echo")).info == {"params": {}}
        assert server.stats()["done"] == 40
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: not server.stats()["open_connections"], "all ended")
