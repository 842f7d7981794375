"""The client against real servers: lost, stopped and busy ones, bursts, repeated attempts, its end.

Every outcome is checked for what it says, so an answer that went to another call is seen.
"""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.integration.pipeline.attackers import children_of, is_alive
from tests.integration.pipeline.conftest import MASTER, ROOT
from yarn_accel.adapters.credentials import issue_token_file
from yarn_accel.client import AsyncAccelerator, Binding, Call, Reply, StartupError, connect
from yarn_accel.client.archive import write_client_archive
from yarn_accel.client.binding import format_binding
from yarn_accel.client.shared_memory import SharedMemory

LIMIT_S = 120
SMALL = {"workers": 1, "standby_workers": 0, "calibrate": False}


def calls(n_calls):
    """Products that tell which call they belong to, and take a server some milliseconds."""
    factor = np.eye(300)
    return [Call.of("gemm", number * factor, factor, tag=number) for number in range(n_calls)]


def connected(servers, credential, environ=None, **options):
    options = {"fallback": False, "patience_s": 60.0, "window": 8, "silent_after_s": 3.0, **options}
    binding = Binding(tuple(server.endpoint for server in servers))
    return connect(environ=environ or {}, binding=binding, credential=credential, **options)


def check(pairs, n_calls):
    """One right answer for each call."""
    found = {tag: reply.arrays()["c"][0, 0] for tag, reply in pairs}
    assert len(pairs) == len(found) == n_calls
    assert all(tag == value for tag, value in found.items())


@pytest.fixture
def two(spawn_server):
    """Two servers; stopped ones go on at the end, so that they can be killed."""
    servers = [spawn_server(name) for name in ("w1", "w2")]
    yield [server.wait_ready() for server in servers]
    for server in servers:
        server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_map_and_submit_survive_the_loss_of_a_server(two, credential, blow):
    """A server that takes no connection within 1 s is passed over, so either may have the first calls."""
    processes = {server.endpoint.name: server.process for server in two}
    with connected(two, credential) as accel:
        submitted = [accel.submit(call) for call in calls(60)]
        pairs = []
        for call, outcome in accel.map(calls(60)):
            pairs.append((call.tag, outcome))
            if len(pairs) == 10:
                lost = outcome.server
                processes[lost].send_signal(blow)
        check(pairs, 60)
        check([(number, future.result(LIMIT_S)) for number, future in enumerate(submitted)], 60)
    totals = accel.reporter.total
    (other,) = processes.keys() - {lost}
    assert other in {reply.server for _, reply in pairs[10:]}
    assert totals("lost_servers") >= 1
    assert totals("resubmitted") >= 1
    assert totals("records_in") == totals("done") == 120


def test_a_repeated_attempt_computes_nothing_twice_and_another_order_does_no_harm(start_server, credential):
    server = start_server()
    attempts = []
    for order in (range(4), range(4), reversed(range(4))):
        with connected([server], credential, key_prefix="task_7") as accel:
            attempts.append([(call.tag, reply) for call, reply in accel.map(calls(4)[n] for n in order)])
    for pairs in attempts:
        check(pairs, 4)
    assert server.stats()["operations"]["gemm"]["done"] == 4 + 4, "the second attempt had its answers"
    with connected([server], credential, key_prefix="task_7") as accel:
        submitted = [accel.submit(calls(6)[n]) for n in (5, 4)]
        check([(n, future.result(LIMIT_S)) for n, future in zip((5, 4), submitted, strict=True)], 2)


def test_cancelling_a_future_or_a_task_recalls_its_call(start_gated, credential, barrier, wait_until):
    server = start_gated(workers=1)

    with connected([server], credential) as accel:
        held = accel.submit(barrier.call("held"))
        wait_until(lambda: barrier.n_started == 1, "the first call is being computed")
        future = accel.submit(barrier.call("future"))
        wait_until(lambda: server.stats()["requests"] == 2, "the second one is there")
        assert future.cancel()
        wait_until(lambda: server.stats()["cancelled"] == 1, "it is recalled")

        async def cancel_a_task():
            own = AsyncAccelerator(accel)
            task = asyncio.ensure_future(own.call(barrier.call("task")))
            while server.stats()["requests"] < 3:  # noqa: ASYNC110 -- it is no coroutine that counts
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel_a_task())
        wait_until(lambda: server.stats()["cancelled"] == 2, "it is recalled, too")
        barrier.open()
        assert isinstance(held.result(LIMIT_S), Reply)
        assert isinstance(accel.call("echo", b"x"), Reply)
    assert barrier.n_started == 1, "what was cancelled was never computed"
    assert accel.reporter.total("cancelled") == 2


def test_closing_settles_every_future(start_gated, credential, barrier, wait_until):
    server = start_gated(workers=1)
    accel = connected([server], credential)
    futures = [accel.submit(barrier.call(str(number))) for number in range(50)]
    wait_until(lambda: barrier.n_started == 1, "the first call is being computed")
    accel.__exit__(KeyError, KeyError("the mapper's own"), None)
    assert all(future.cancelled() for future in futures)
    barrier.open()
    with connected([server], credential) as accel:
        futures = [accel.submit(barrier.call(f"more/{number}")) for number in range(50)]
    assert all(future.result(0).info for future in futures)


OLD_PYTHON = """
import array, asyncio, sys
sys.path.insert(0, sys.argv[1])
from yarn_accel.client import RejectedError, connect, connect_async

options = {"binding": sys.argv[2], "credential": sys.argv[3], "environ": {}, "fallback": False}
a = memoryview(array.array("d", [4.0, 3.0, 6.0, 3.0])).cast("B").cast("d", (2, 2))

async def main():
    async with connect_async(**options) as accel:
        return (await accel.lu(a)).reply.server

with connect(**options) as accel:
    found = accel.lu(a)
    print(found.lu.spec.shape, memoryview(found.piv.data).cast("B").cast("i").tolist())
    print([future.result().server for future in [accel.submit("lu", a) for _ in range(3)]])
    try:
        accel.cholesky(a)
    except RejectedError as error:
        print(error.code)
print(asyncio.run(main()), sys.modules.get("numpy"))
"""


def test_an_old_python_with_nothing_installed_is_enough(spawn_server, tmp_path, find_python):
    python = find_python("3.8")
    server = spawn_server("w1").wait_ready()
    archive = write_client_archive(tmp_path / "client.zip")
    (tmp_path / "binding.json").write_text(format_binding(Binding((server.endpoint,))))
    token = issue_token_file(tmp_path / "token", MASTER, 3600, "alice")
    command = [python, "-I", "-S", "-c", OLD_PYTHON, archive, tmp_path / "binding.json", token]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=LIMIT_S)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["(2, 2) [1, 1]", "['w1', 'w1', 'w1']", "not-symmetric", "w1 None"]


# A server of one's own


def test_arrays_too_large_for_the_socket_travel_beside_a_reference(tmp_path):
    matrix = np.random.default_rng(0).standard_normal((400, 400))
    np.save(tmp_path / "a.npy", matrix)
    with connect("local", fallback=False, server_settings=SMALL) as accel:
        assert accel.residual(tmp_path / "a.npy", accel.lu(matrix)).residual < 30


def test_a_local_server_is_private_and_ends_with_the_block():
    with connect("local", server_settings=SMALL, tenant="alice") as accel:
        reply = accel.call("gemm", [[2.0]], [[3.0]])
        (dispatcher,) = accel._free
        (client,) = dispatcher._clients
        folder = Path(client.endpoint.unix_path).parent
        assert (reply.server, reply.device) == ("local", "cpu")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
        pid = json.loads((folder / "state.json").read_text())["pid"]
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert not folder.exists()
    assert not is_alive(pid)


OWNER = """
import json, sys
from yarn_accel.client.local_server import LocalServer
server = LocalServer(json.loads(sys.argv[1]))
server.__enter__()
print(server._guard.pid, server.endpoint.unix_path, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["owner", "guard"])
def test_a_local_server_ends_with_its_owner_whatever_ends_it(victim, wait_until, tmp_path):
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    argv, pipes = [sys.executable, "-c", OWNER, json.dumps(SMALL)], {"stdin": subprocess.PIPE, "text": True}
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ, cwd=tmp_path, **pipes)
    with owner:
        guard, path = owner.stdout.readline().split()
        pid = json.loads((Path(path).parent / "state.json").read_text())["pid"]
        workers = children_of(pid)
        os.kill(owner.pid if victim == "owner" else int(guard), signal.SIGKILL)
        gone = [int(guard), pid, *workers]
        wait_until(lambda: not any(map(is_alive, gone)), "all processes end", LIMIT_S)
        if victim == "owner":
            assert not Path(path).parent.exists(), "the guard removes the folder before it ends"
        owner.kill()
    assert len(gone) >= 3


def test_a_local_server_that_does_not_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(StartupError, match="colour: unknown key; known: accounting_uri") as caught:
        connect("local", server_settings={"colour": 1})
    assert "connect('inline')" in caught.value.cure
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.executable", "no-such-python")
    with pytest.raises(StartupError, match="'no-such-python' cannot be started"):
        connect("local")


def test_when_a_local_server_is_killed_this_process_computes():
    with connect("local", server_settings=SMALL, patience_s=0.0) as accel:
        assert accel.call("gemm", [[2.0]], [[3.0]]).server == "local"
        (client,) = accel._free[0]._clients
        os.kill(
            json.loads((Path(client.endpoint.unix_path).parent / "state.json").read_text())["pid"],
            signal.SIGKILL,
        )
        futures = [accel.submit("gemm", [[2.0]], [[float(number)]]) for number in range(20)]
        assert not wait(futures, LIMIT_S).not_done
        assert [future.result().arrays()["c"].item() for future in futures] == [2.0 * n for n in range(20)]
        assert futures[-1].result().device == "cpu:fallback"


@pytest.fixture
def local_server(spawn_server, tmp_path):
    server = spawn_server("w1", unix_path=str(tmp_path / "socket")).wait_ready()
    server.endpoint = replace(server.endpoint, node="here")
    return server


def filled(accel, number, n=300):
    """An array of `Accelerator.empty` that tells its number."""
    array = accel.empty((n, n))
    array[...] = number * np.eye(n)
    return array


def test_arrays_of_the_accelerator_are_sent_as_they_lie_and_answers_keep_their_numbers(
    local_server, credential, monkeypatch
):
    copied = []
    place = SharedMemory.place
    monkeypatch.setattr(
        SharedMemory,
        "place",
        lambda self, payload, segment: copied.append(1) or place(self, payload, segment),
    )
    with connected([local_server], credential, {"NM_HOST": "here"}) as accel:
        given = [filled(accel, number) for number in range(6)]
        found = [accel.lu(array).lu for array in given]
        work = (Call.of("lu", filled(accel, number), tag=number) for number in range(6, 40))
        found += [reply.arrays()["lu"] for _, reply in accel.map(work, ordered=True)]
        both = accel.empty((2, 320, 320))
        both[...] = np.eye(320)
        product = accel.gemm(both[0], 3.0 * both[1]).c
        assert copied == [1], "only the second factor, which numpy made, and the first with it"
        product = accel.gemm(both[0], both[1]).c
        assert copied == [1]
    assert all(np.array_equal(array, number * np.eye(300)) for number, array in enumerate(given))
    assert [array[7, 7] for array in found] == list(range(40))
    assert np.array_equal(product, np.eye(320))


def test_views_outlive_the_accelerator_the_server_and_a_fork(local_server, credential):
    options = {"environ": {"NM_HOST": "here"}, "fallback": True, "patience_s": 1.0}
    with connected([local_server], credential, **options) as accel:
        array = filled(accel, 3)
        answer = accel.lu(array).lu
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            is_right = array[5, 5] == 3.0 and answer[5, 5] == 3.0 and array[5, 6] == answer[5, 6] == 0.0
            os._exit(0 if is_right else 1)
        os.close(read)
        del answer
        kept = [accel.lu(filled(accel, number)).lu for number in range(10, 20)]
        local_server.process.kill()
        assert accel.lu(array).reply.device == "cpu:fallback"
        assert np.array_equal(accel.empty((2, 2)).shape, (2, 2))
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0, "the child sees what it had, not what came after"
    assert np.array_equal(array, 3 * np.eye(300))
    assert [each[7, 7] for each in kept] == list(range(10, 20))
