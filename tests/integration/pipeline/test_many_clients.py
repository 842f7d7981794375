"""Many clients, and slow, silent or dying ones: each costs only itself; a killed server is replaced."""

import collections
import contextlib
import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.examples import examples
from tests.integration.pipeline import bad_operations
from tests.integration.pipeline.attackers import RawClient, assert_serves, children_of, footprint, is_alive
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.errors import UnavailableError
from yarn_accel.wire import Ping, Pong, Request, TensorSpec

MIB = 1 << 20
#: So many before anything is measured: tables grow with the first ones.
N_WARM = 20
N_IDLE = int(os.environ.get("YARN_ACCEL_IDLE_CONNECTIONS", examples(2000)))
SPEC = TensorSpec("|u1", (1_000_000,))
REQUEST = Request(1, "k", "echo", {}, (SPEC,))


@pytest.fixture
def many_files():
    """Space for descriptors here and, by inheritance, in a server process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * N_IDLE + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"RLIMIT_NOFILE is {hard} here, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_hundreds_of_idle_connections(spawn_server, credential, many_files, wait_until):
    """They cost descriptors and a little memory, no threads; among them work goes on as before."""
    server = spawn_server("w1", workers=1, max_connections=N_WARM + N_IDLE + 50).wait_ready()
    assert_serves(server, credential)
    wait_until(server.has_loaded_all, "it has loaded all")
    with contextlib.ExitStack() as stack:
        for _ in range(N_WARM):
            stack.enter_context(RawClient(server.endpoint, credential))
        before = footprint(server.process.pid)
        started_s = time.monotonic()
        idle = [stack.enter_context(RawClient(server.endpoint, credential)) for _ in range(N_IDLE)]
        took_s = time.monotonic() - started_s
        n_threads = lambda: footprint(server.process.pid).n_threads  # noqa: E731
        wait_until(lambda: n_threads() < before.n_threads + 20, "their threads end", 30)
        during = footprint(server.process.pid)
        with Client(server.endpoint, credential) as client:
            assert sum(client.stats()["open_connections"].values()) == N_WARM + N_IDLE + 1
            latencies_s = sorted(_timed(lambda: client.call(_echo())) for _ in range(200))
        for number, each in enumerate(idle[:: max(1, N_IDLE // 50)]):
            assert isinstance(each.answer(Ping(number)), Pong)
    per_connection = (during.own_bytes - before.own_bytes) / N_IDLE
    print(
        f"{N_IDLE} idle connections in {took_s:.1f} s: {per_connection / 1024:.1f} KiB each, "
        f"threads {before.n_threads} -> {during.n_threads}, echo among them {latencies_s[100] * 1e6:.0f} us"
    )
    assert per_connection < 64 * 1024
    wait_until(lambda: footprint(server.process.pid).n_fds <= before.n_fds + 12, "their descriptors go")
    assert_serves(server, credential)


def _timed(call):
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def _echo(n_bytes=64):
    data = np.frombuffer(os.urandom(n_bytes), "u1")
    return Call(f"e{time.monotonic_ns()}", "echo", {}, (Tensor.of(data),))


def test_connections_that_come_and_go(spawn_server, credential, wait_until):
    """Many that say nothing, and some that greet, ask and vanish: nothing of them is left."""
    server = spawn_server("w1", workers=1).wait_ready()
    assert_serves(server, credential)
    wait_until(server.has_loaded_all, "it has loaded all")
    before = footprint(server.process.pid)
    for _ in range(examples(2000)):
        socket.create_connection((server.endpoint.host, server.endpoint.port)).close()
    for _ in range(examples(500)):
        with RawClient(server.endpoint, credential) as client:
            client.send(REQUEST, [bytes(SPEC.nbytes)])
    wait_until(lambda: footprint(server.process.pid).n_threads <= before.n_threads + 3, "threads end")
    wait_until(lambda: footprint(server.process.pid).n_fds <= before.n_fds + 12, "descriptors go")
    with Client(server.endpoint, credential) as client:
        wait_until(lambda: client.stats()["in_flight"] == 0, "what they asked for is over")
        wait_until(lambda: client.stats()["queues"]["write"]["bytes"] == 0, "and its memory given back")
    after = footprint(server.process.pid)
    print(f"own memory {before.own_bytes / MIB:.1f} -> {after.own_bytes / MIB:.1f} MiB")
    assert after.own_bytes - before.own_bytes < 24 * MIB
    assert_serves(server, credential)


def test_calls_leave_nothing_behind(spawn_server, credential):
    """After the caches are full, thousands of calls more make neither server nor worker larger."""
    server = spawn_server("w1", workers=1, reply_cache_bytes=MIB).wait_ready()
    data = Tensor.of(np.arange(8.0))
    sizes = []
    for part in range(3):
        with Client(server.endpoint, credential) as client:
            calls = (Call(f"{part}/{number}", "echo", {}, (data,)) for number in range(2500))
            assert all(isinstance(outcome, Reply) for _, outcome in client.map(calls, window=16))
        sizes.append(footprint(server.process.pid))
    growth = sizes[2].own_bytes - sizes[1].own_bytes, sizes[2].children_bytes - sizes[1].children_bytes
    print(f"2,500 calls more: server {growth[0] / 1024:.0f} KiB, workers {growth[1] / 1024:.0f} KiB larger")
    assert max(growth) < 2 * MIB


def test_more_connections_than_allowed(start_server, credential):
    server = start_server(max_connections=2)
    with Client(server.endpoint, credential) as first, Client(server.endpoint, credential):
        with pytest.raises(UnavailableError, match="2 connections already") as caught:
            Client(server.endpoint, credential).connect()
        assert caught.value.retry_after_s > 0
        assert first.call(_echo()).server == "w1"


# Slow ones


@pytest.fixture
def connect(credential):
    with contextlib.ExitStack() as stack:
        yield lambda server, **options: stack.enter_context(RawClient(server.endpoint, credential, **options))


def send_slowly(sock, data):
    """Byte by byte, until the server closes; it must."""
    with pytest.raises(ConnectionError):  # noqa: PT012 -- sending goes on until the server closes
        for byte in data:
            sock.sendall(bytes([byte]))
            time.sleep(0.02)


def held_bytes(server):
    return sum(queue["bytes"] for queue in server.stats()["queues"].values())


def test_a_client_that_never_says_hello(start_server, credential):
    server = start_server(handshake_timeout_s=0.2)
    with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
        sock.settimeout(60)
        assert sock.recv(1) == b""
    assert_serves(server, credential)


def test_a_hello_byte_by_byte(start_server, credential):
    server = start_server(handshake_timeout_s=0.5)
    with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
        send_slowly(sock, b"Y" * 500)
    assert_serves(server, credential)


@pytest.mark.parametrize("start", [0, 300], ids=["in the header", "in the payload"])
def test_a_client_that_sends_byte_by_byte(start_server, credential, connect, wait_until, start):
    """One byte a second, in a time that is shorter by as much: it is given up, and holds nothing then."""
    server = start_server(stall_timeout_s=0.4, min_bytes_per_s=100_000_000)
    client = connect(server)
    frame = client.frame(REQUEST, [bytes(SPEC.nbytes)])
    client.push(frame[:start])
    send_slowly(client.sock, frame[start : start + 500])
    wait_until(lambda: server.stats()["broken"] == 1, "it was counted")
    wait_until(lambda: held_bytes(server) == 0, "its memory was given back")
    assert_serves(server, credential)


def test_a_client_that_stops_inside_a_payload(start_server, credential, connect, wait_until):
    """While it holds memory the others are served; then it is given up."""
    server = start_server(stall_timeout_s=3.0, queue_bytes=4 * MIB, max_request_bytes=2 * MIB)
    client = connect(server)
    client.push(client.frame(REQUEST, [bytes(SPEC.nbytes)])[:5000])
    wait_until(lambda: held_bytes(server) > 0, "memory is reserved for it")
    assert_serves(server, credential)
    wait_until(lambda: server.stats()["broken"] == 1, "the server gave it up")
    wait_until(lambda: held_bytes(server) == 0, "its memory was given back")


def test_one_client_that_never_reads_does_not_hold_up_the_others(
    start_server, credential, connect, wait_until
):
    """It may fill its own share of the queue of results, not the queue; and it is never given up here."""
    server = start_server(
        stall_timeout_s=600.0, queue_bytes=16 * MIB, max_request_bytes=2 * MIB, pool_bytes=64 * MIB
    )
    client = connect(server, unix=False)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sock.settimeout(2.0)
    spec = TensorSpec("|u1", (MIB,))
    with contextlib.suppress(OSError):
        for number in range(64):
            request = Request(number, f"f{number}", "echo", {}, (spec,))
            client.sock.sendall(client.frame(request, [bytes(MIB)]))
    with Client(server.endpoint, credential) as other:
        latencies_s = [_timed(lambda: other.call(_echo(MIB))) for _ in range(5)]
    print("echoes of 1 MiB beside it:", ", ".join(f"{each:.3f} s" for each in latencies_s))
    assert held_bytes(server) > 0, "its answers wait for it still"
    client.sock.close()
    wait_until(lambda: held_bytes(server) == 0, "its memory was given back")


def test_a_credential_that_expires_on_an_open_connection(start_server, issue_to):
    server = start_server()
    credential = issue_to("alice", 5)
    with Client(server.endpoint, credential) as client:
        assert client.call(Call("k", "echo")).info == {"params": {}}
        time.sleep(max(0.0, credential.expires_s - time.time()) + 0.1)
        with pytest.raises(UnavailableError, match="the connection"):
            client.call(Call("k2", "echo"))


def test_a_connection_that_still_hears_why_it_ends_goes_with_its_server(start_server):
    n_before = _n_sockets()
    server = start_server()
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 60) as client:
        client.sendall(b"nothing of this protocol")
        while client.recv(4096):
            pass
        # Closed by its peer, it may still send; the server waits for that for a moment.
        server.close()
    assert _n_sockets() == n_before


# A killed server


def test_sixteen_clients_outlive_a_server_killed_under_load(spawn_server, issue_to, wait_until):
    """Every call has exactly one outcome, by key, and each is right, whoever computed it."""
    servers = [spawn_server(name, workers=1) for name in ("w1", "w2")]
    for server in servers:
        server.wait_ready()
    n_clients, n_calls = 16, 40
    outcomes = collections.defaultdict(list)
    failures = []
    halfway, is_killed = threading.Event(), threading.Event()

    def work(number):
        try:
            for call, outcome in _converse(servers, issue_to(f"tenant{number % 4}"), number, n_calls):
                outcomes[call.key].append((call, outcome))
                if len(outcomes) >= n_clients * n_calls // 4:
                    # With a full window in flight: else all might be done before the test gets to run.
                    halfway.set()
                    is_killed.wait(300)
        except Exception as error:  # noqa: BLE001 -- reported by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(n_clients)]
    for thread in threads:
        thread.start()
    assert halfway.wait(300)
    children = children_of(servers[0].process.pid)
    servers[0].process.kill()
    is_killed.set()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert len(outcomes) == n_clients * n_calls
    where = collections.Counter()
    for found in outcomes.values():
        ((call, reply),) = found
        assert isinstance(reply, Reply), reply
        a = call.inputs[0].array()
        assert np.abs(next(iter(reply.tensors.values())).array() - a @ a).max() < 1e-10
        where[reply.server] += 1
    print(f"{sum(where.values())} calls of {n_clients} clients, each answered once: {dict(where)}")
    assert where["w1"] > 0
    assert where["w2"] > n_clients * n_calls // 4
    wait_until(lambda: not any(map(is_alive, children)), "its workers end with their server")


def _converse(servers, credential, number, n_calls):
    """The calls of one client with their outcomes."""
    rng = np.random.default_rng(number)
    calls = [
        Call(f"c{number}/{at}", "gemm", {}, (Tensor.of(rng.standard_normal((64, 64))),) * 2)
        for at in range(n_calls)
    ]
    with Dispatcher([each.endpoint for each in servers], credential, patience_s=30.0) as dispatcher:
        yield from dispatcher.map(iter(calls), window=8)


def _n_sockets():
    """How many sockets this process has."""
    n_sockets = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            n_sockets += str(link.readlink()).startswith("socket:")
    return n_sockets


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["a second SIGTERM", "SIGKILL"])
def test_a_server_that_is_ended_at_once_leaves_no_worker(spawn_server, credential, wait_until, how):
    """Also where an operation never ends."""
    options = {"workers": 2, "standby_workers": 1, "extra_operations": [bad_operations.PATH]}
    server = spawn_server("w1", **options).wait_ready()
    with Client(server.endpoint, credential) as client, Client(server.endpoint, credential) as other:
        client.submit(Call("hang", "bad-hang", {}, (Tensor.of(np.zeros(4)),)))
        wait_until(lambda: other.stats()["in_flight"], "it is under way")
        wait_until(lambda: len(children_of(server.process.pid)) >= 3, "all processes run")
        children = children_of(server.process.pid)
        if how == signal.SIGTERM:
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: other.stats()["is_draining"], "the first one waits for what is under way")
        server.process.send_signal(how)
        assert server.process.wait(300) == (1 if how == signal.SIGTERM else -signal.SIGKILL)
    assert how == signal.SIGKILL or not server.state_file.exists()
    wait_until(lambda: not any(map(is_alive, children)), "its workers end with their server")
