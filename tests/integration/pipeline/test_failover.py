"""Servers as processes: started, drained, killed under load; every call still gets exactly one outcome."""

import collections
import json
import signal
import socket

import numpy as np
import pytest

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch import FALLBACK_DEVICE, Dispatcher
from yarn_accel.client.fallback import LocalExecutor
from yarn_accel.errors import RejectedError
from yarn_accel.launch.outcomes import accounted
from yarn_accel.storage import Store

RNG = np.random.default_rng(3)


def calls(n_calls, n=250):
    tensors = [Tensor.of(np.asfortranarray(RNG.standard_normal((n, n)))) for _ in range(4)]
    return [Call(f"job/{index}", "qr", {}, (tensors[index % 4],)) for index in range(n_calls)]


def test_a_server_killed_under_load_then_the_next_then_the_own_cpu(spawn_server, credential):
    servers = [spawn_server("w1"), spawn_server("w2")]
    for server in servers:
        server.wait_ready()
    texts = []
    outcomes = []
    todo = calls(60)
    with Dispatcher(
        [server.endpoint for server in servers], credential, LocalExecutor(), texts.append, patience_s=1.0
    ) as dispatcher:
        for call, outcome in dispatcher.map(iter(todo), window=8):
            outcomes.append((call, outcome))
            if len(outcomes) in (10, 30):
                # In the middle of a full window: most of its calls are on their way or being computed.
                servers[len(outcomes) // 20].process.kill()
    assert collections.Counter(call.key for call, _ in outcomes) == dict.fromkeys((c.key for c in todo), 1)
    assert all(isinstance(outcome, Reply) for _, outcome in outcomes)
    for call, reply in outcomes:
        a = call.inputs[0].array()
        assert np.abs(reply.tensors["q"].array() @ reply.tensors["r"].array() - a).max() < 1e-10
    replies = [reply for _, reply in outcomes]
    where = collections.Counter(it.device if it.device == FALLBACK_DEVICE else it.server for it in replies)
    assert where["w1"] >= 10
    # A killed server's last answers are still under way: at most the window, so w1 has 10 to 18.
    assert where["w1"] <= 18
    assert where["w1"] + where["w2"] >= 30
    assert where[FALLBACK_DEVICE] >= 60 - 38
    assert sum(where.values()) == 60
    assert any("w1" in text for text in texts)


def test_sigterm_drains_and_exits_with_zero(spawn_server, credential):
    server = spawn_server("w1").wait_ready()
    with Client(server.endpoint, credential) as client:
        for call in calls(3):
            client.submit(call)
        # A connection is read in order: with this answer the server has taken all three.
        client.ping()
        server.process.send_signal(signal.SIGTERM)
        answered = [client.next_outcome() for _ in range(3)]
    assert all(isinstance(outcome, Reply) for _, outcome in answered)
    assert server.process.wait(300) == 0
    assert "stopped" in server.process.stdout.read()
    assert not server.state_file.exists()


def test_the_command_line_shows_counters_and_settings(spawn_server, credential):
    server = spawn_server("w1", stall_timeout_s=7).wait_ready()
    with Client(server.endpoint, credential) as client:
        client.call(calls(1)[0])
    shown = server.command("stats")
    assert shown.returncode == 0, shown.stderr
    stats = json.loads(shown.stdout)
    assert stats["operations"]["qr"]["done"] == 1
    assert stats["pid"] == server.process.pid
    checked = server.command("check-config")
    assert "stall_timeout_s: 7.0  # " in checked.stdout
    assert "00010203" not in checked.stdout


def test_a_port_in_use_is_one_line_and_exit_code_3(spawn_server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = spawn_server("w1", listen_port=taken.getsockname()[1])
        assert server.process.wait(120) == 3
    log = (server.folder / "log").read_text().strip()
    assert "address already in use" in log
    assert "listen_port" in log
    assert len(log.splitlines()) == 1
    assert not server.state_file.exists()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"colour": "red"}, "colour: unknown key; known: accounting_uri"),
        ({"master_secret_file": "missing"}, "master_secret_file missing"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(spawn_server, settings, text):
    server = spawn_server("w1", **settings)
    assert server.process.wait(120) == 2
    log = (server.folder / "log").read_text().strip()
    assert text in log
    assert len(log.splitlines()) == 1


def test_a_socket_left_by_a_killed_server_is_taken_over(spawn_server, credential, tmp_path):
    path = str(tmp_path / "socket")
    first = spawn_server("w1", unix_path=path).wait_ready()
    first.process.kill()
    first.process.wait(300)
    spawn_server("w2", unix_path=path).wait_ready()
    with Client(Endpoint("w2", "", 0, path), credential) as client:
        assert client.carrier == "memfd"
        assert client.call(calls(1)[0]).server == "w2"


def test_what_a_job_used_outlives_its_server(spawn_server, credential, tmp_path, monkeypatch):
    """By user, application and job: what was answered, and what failed; in the metrics by user."""
    monkeypatch.setenv("CONTAINER_ID", "container_e3_1764_0002_01_000004")
    folder = tmp_path / "accounting"
    server = spawn_server("w1", accounting_uri=f"file://{folder}").wait_ready()
    matrix = Tensor.of(np.eye(64) * 4)
    with Client(server.endpoint, credential) as client:
        for number in range(3):
            client.call(Call(f"task_1764_0001_m_00000{number}/1/lu", "lu", {}, (matrix,)))
        with pytest.raises(RejectedError):
            client.call(Call("task_1764_0001_m_000000/2/cholesky", "cholesky", {}, (Tensor.of(-np.eye(2)),)))
        tenant = client.stats()["tenants"]["alice"]
        assert tenant["core_s"] > 0 == tenant["gpu_s"]
    with Client(server.endpoint, credential) as client:
        client.call(Call("local-1f/1/lu", "lu", {}, (matrix,)))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(300) == 0
    owner = ("alice", "application_1764_0002")
    found = {each["job"]: each for each in accounted(Store(), f"file://{folder}")}
    assert {(each["user"], each["application"]) for each in found.values()} == {owner}
    job = found["job_1764_0001"]
    assert (job["attempts"], job["failed"], job["gpu_s"]) == (4, 1, 0.0)
    assert job["core_s"] == pytest.approx(tenant["core_s"], abs=1e-3)
    assert job["read_bytes"] == 3 * 64 * 64 * 8
    assert job["written_bytes"] > job["read_bytes"]
    assert found[""]["attempts"] == 1
