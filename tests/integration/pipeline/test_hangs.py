"""Who hangs costs itself: stopped workers and stopped clients; who is only slow is left alone."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.integration.pipeline import bad_operations, barrier_operations
from tests.integration.pipeline.conftest import MASTER, ROOT
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client

MIB = 1 << 20
X = np.arange(6.0)
#: Whoever waited for it would wait for longer than a test may take.
NEVER_S = 7200.0


@pytest.fixture
def operator(issue_to):
    """The one who sees process ids."""
    return issue_to("operator")


@pytest.fixture
def server(spawn_server, tmp_path):
    """A server process whose patience is that of its defaults."""
    sizes = {"pool_bytes": 64 * MIB, "queue_bytes": 48 * MIB, "max_request_bytes": 8 * MIB}
    options = {**sizes, "max_shared_memory_bytes": 32 * MIB, "unix_path": str(tmp_path / "socket")}
    options["extra_operations"] = [bad_operations.PATH, barrier_operations.PATH]
    return spawn_server("w1", workers=2, standby_workers=1, **options).wait_ready()


def workers_of(client):
    return [each for each in client.stats()["workers"] if each["worker"] >= 0]


def test_a_worker_that_is_stopped_at_work_is_replaced_and_its_request_computed_elsewhere(
    server, credential, operator, wait_until, barrier
):
    """Nothing is answered twice, also when it goes on."""
    with Client(server.endpoint, operator) as watch, Client(server.endpoint, credential) as client:
        wait_until(lambda: len(workers_of(watch)) == 2, "both workers are there")
        client.submit(barrier.call("k", (Tensor.of(X),)))
        wait_until(lambda: barrier.n_started == 1, "one is at it")
        (pid,) = [each["pid"] for each in workers_of(watch) if each["state"] == "busy"]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: barrier.n_started == 2, "another one is at it")
        barrier.open()
        call, reply = client.next_outcome()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        assert isinstance(reply, Reply), reply
        assert reply.info["n"] == 2
        assert np.array_equal(next(iter(reply.tensors.values())).array(), call.inputs[0].array())
        wait_until(lambda: len(workers_of(watch)) == 2, "the standby has its place")
        client.call(Call("after", "echo", {}, (Tensor.of(X),)))
        stats = watch.stats()
    assert stats["done"] == stats["requests"] == 2
    assert sum(each["n_lost"] for each in stats["workers"] if each["worker"] >= 0) == 1
    assert all("stopped" in each["last_fault"] for each in stats["workers"] if each.get("n_lost"))


SPARE = """
import subprocess
subprocess.Popen.kill = lambda self: None
"""
"""A `sitecustomize`: no process is ended, as where the driver of a GPU never returns to the kernel."""


def test_the_request_of_a_worker_that_sigkill_does_not_end_is_computed_elsewhere(
    start_gated, credential, wait_until, barrier, monkeypatch
):
    """In other memory; what the worker may still write to is nobody's until it has ended."""
    server = start_gated(workers=1, standby_workers=1, kill_timeout_s=0.5)
    with Client(server.endpoint, credential, node="elsewhere") as client:
        client.submit(barrier.call("k", (Tensor.of(np.arange(50_000.0)),)))
        wait_until(lambda: barrier.n_started == 1, "it is under way")
        (pid,) = [each["pid"] for each in server.stats()["workers"] if each["state"] == "busy"]
        with monkeypatch.context() as patched:
            patched.setattr(subprocess.Popen, "kill", lambda self: None)
            os.kill(pid, signal.SIGSTOP)
            answers = []
            threading.Thread(target=lambda: answers.append(client.next_outcome())).start()
            wait_until(lambda: barrier.n_started == 2, "another one is at it")
            stats = server.stats()
            barrier.open()
            wait_until(lambda: answers, "it is answered")
            ((call, reply),) = answers
        assert isinstance(reply, Reply), reply
        assert np.array_equal(next(iter(reply.tensors.values())).array(), call.inputs[0].array())
        (left,) = [each for each in stats["workers"] if each["state"] == "unkillable"]
        assert left["pid"] == pid
        assert "goes on after SIGKILL" in left["last_fault"]
        assert any(str(pid) in problem for problem in stats["health"]["problems"])
        assert stats["health"]["ok"]
        assert stats["pool"]["leaked_bytes"] >= 400_000
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not server.stats()["pool"]["leaked_bytes"], "its memory comes back")
        assert "unkillable" not in [each["state"] for each in server.stats()["workers"]]


def test_a_server_ends_in_time_though_sigkill_ends_none_of_its_workers(
    spawn_server, credential, tmp_path, monkeypatch, wait_until, barrier
):
    folder = tmp_path / "spare"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SPARE)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    options = {"drain_timeout_s": 0.5, "kill_timeout_s": 0.5, "extra_operations": [barrier_operations.PATH]}
    server = spawn_server("w1", **options).wait_ready()
    with Client(server.endpoint, credential) as client:
        client.submit(barrier.call("k"))
        wait_until(lambda: barrier.n_started == 1, "it is under way")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 1
    said = server.process.stdout.read()
    assert "left worker processes that SIGKILL does not end" in said, said


@pytest.mark.parametrize(
    ("operation", "params"),
    [("bad-slow", {"seconds": 6.0}), pytest.param("bad-native", {"n": 250_000_000}, marks=pytest.mark.slow)],
    ids=["waits", "keeps all other threads from running"],
)
def test_a_slow_operation_is_left_alone(server, credential, operator, operation, params):
    with Client(server.endpoint, operator) as watch, Client(server.endpoint, credential) as client:
        before = [each["pid"] for each in workers_of(watch)]
        reply = client.call(Call("k", operation, params, (Tensor.of(X),)))
        print(f"took {reply.seconds['compute']:.1f} s")
        assert reply.info["pid"] in before or not before
        assert sum(each["n_lost"] for each in workers_of(watch)) == 0


@pytest.fixture
def start_greedy():
    """A function that starts six clients of one tenant that take all they get of a server, and stops them."""
    clients = []

    def start(server, how):
        for _ in range(6):
            words = [sys.executable, "-m", "tests.integration.pipeline.greedy_client"]
            words += [server.endpoint.unix_path, MASTER.hex(), "greedy", how]
            clients.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        taken = [int(client.stdout.readline()) for client in clients]
        for client in clients:
            client.send_signal(signal.SIGSTOP)
        return sum(taken)

    yield start
    for client in clients:
        client.kill()
        client.stdout.close()
        client.wait(300)


@pytest.mark.parametrize("how", [pytest.param("unread", marks=pytest.mark.slow), "shared"])
def test_stopped_clients_of_one_tenant_hold_up_no_other(
    spawn_server, credential, operator, start_greedy, tmp_path, how
):
    """Six take what they can of the default pool, and neither read nor give back: others get memory."""
    path = str(tmp_path / "socket")
    server = spawn_server("w1", unix_path=path, workers=2, stall_timeout_s=NEVER_S).wait_ready()
    n_bytes = start_greedy(server, how)
    with Client(server.endpoint, operator) as watch:
        pool = watch.stats()["pool"]
    print(f"taken: {n_bytes / MIB:.0f} MiB; pool: {pool}")
    assert pool["bound_bytes"] == 1024 * MIB
    assert pool["used_bytes"] >= 512 * MIB
    # The larger ones fit only when connections of the others are ended.
    for n_mib in (8, 64, 200):
        data = Tensor.of(np.zeros(n_mib * MIB, "u1"))
        for node in ("elsewhere", None):
            with Client(server.endpoint, credential, node=node) as client:
                for number in range(2):
                    reply = client.call(Call(f"{n_mib}{node}{number}", "echo", {}, (data,)))
                    assert reply.bytes_out == n_mib * MIB
                    del reply
    with Client(server.endpoint, operator) as watch:
        assert how == "shared" or watch.stats()["cut_off"] > 0
