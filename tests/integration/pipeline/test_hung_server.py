"""A server that hangs without dying costs seconds, and one that is only slow costs nothing.

Texts say why a server was left, so no test judges by time: by silence alone (`timeout_s`, an hour here) none
of these servers would ever be left.
"""

import collections
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.integration.pipeline.conftest import MASTER, ROOT
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch import FALLBACK_DEVICE, Dispatcher
from yarn_accel.errors import UnavailableError

PLACE = "tests.integration.pipeline.timed_operations:SPEED_1"
SILENT = "has been silent for 3 s"


@pytest.fixture
def start_servers(spawn_server):
    """A function that starts servers; stopped ones go on at the end, so that they can be killed."""
    started = []

    def start(*names):
        started.extend(spawn_server(name, extra_operations=[PLACE], devices=["cpu"]) for name in names)
        return [server.wait_ready() for server in started]

    yield start
    for server in started:
        server.process.send_signal(signal.SIGCONT)


@pytest.fixture
def servers(start_servers):
    return start_servers("w1", "w2")


class Fallback:
    """Stands in for this node's CPU."""

    def call(self, call):
        return Reply({}, {}, "here", "cpu", {}, 0, 0)


def dispatcher(servers, credential, texts, **options):
    endpoints = [server.endpoint for server in servers]
    return Dispatcher(endpoints, credential, on_wait=texts.append, timeout_s=3600.0, **options)


@pytest.mark.parametrize("n_bytes", [8, 32 << 20], ids=["waiting", "sending"])
def test_the_calls_of_a_hung_server_go_to_another_and_its_late_answers_are_dropped(
    servers, credential, n_bytes
):
    hung = servers[0]
    tensor = Tensor.of(np.arange(n_bytes // 8, dtype="u8"))
    calls = [Call(f"hung/{number}", "echo", {}, (tensor,)) for number in range(12)]
    texts, where = [], collections.Counter()
    with dispatcher(servers, credential, texts) as calling:
        for call, outcome in calling.map(iter(calls), window=4):
            assert isinstance(outcome, Reply), outcome
            where[outcome.server, call.key] += 1
            if len(where) == 2:
                hung.process.send_signal(signal.SIGSTOP)
        assert calling.counts["lost_servers"] == 1
        hung.process.send_signal(signal.SIGCONT)
        # It answers again, and what it says to the connection of before concerns nobody.
        after = [
            outcome for _, outcome in calling.map([Call(f"after/{n}", "echo", {}, (tensor,)) for n in "abc"])
        ]
    assert sorted(key for _, key in where) == sorted(call.key for call in calls)
    assert set(where.values()) == {1}
    assert {server for server, _ in where} == {"w1", "w2"}
    assert all(isinstance(outcome, Reply) for outcome in after)
    assert any(SILENT in text for text in texts), texts


def test_where_two_of_three_servers_hang_the_third_answers(start_servers, credential):
    """The connection to the second is given up after a second, as there is a third."""
    servers = start_servers("w1", "w2", "w3")
    texts, answers = [], []
    calls = [Call(f"third/{number}", "timed", {"seconds": 0.05}) for number in range(16)]
    stopped_s = 0.0
    with dispatcher(servers, credential, texts) as calling:
        for _, outcome in calling.map(iter(calls), window=4):
            answers.append((outcome.server, time.monotonic() - stopped_s))
            if len(answers) == 4:
                stopped_s = time.monotonic()
                for server in servers[:2]:
                    server.process.send_signal(signal.SIGSTOP)
    after_s = next(after_s for server, after_s in answers if server == "w3")
    print(f"the third answered {after_s:.1f} s after the others were stopped")
    assert len(answers) == 16
    assert sum(server == "w1" for server, _ in answers) >= 4
    assert {server for server, _ in answers} == {"w1", "w3"}
    assert any(SILENT in text for text in texts), texts


def test_where_all_servers_hang_the_own_cpu_answers_when_the_patience_is_over(servers, credential):
    texts = []
    calls = [Call(f"all/{number}", "timed", {"seconds": 0.01}) for number in range(8)]
    devices = []
    with dispatcher(servers, credential, texts, fallback=Fallback(), patience_s=1.0) as calling:
        for _, outcome in calling.map(iter(calls), window=2):
            devices.append(outcome.device)
            if len(devices) == 2:
                for server in servers:
                    server.process.send_signal(signal.SIGSTOP)
    assert len(devices) == 8
    assert devices[:2] == ["cpu", "cpu"]
    assert devices[-1] == FALLBACK_DEVICE
    assert any(SILENT in text for text in texts), texts


def test_without_a_fallback_the_error_says_that_the_servers_are_silent(servers, credential):
    texts = []
    with dispatcher(servers[:1], credential, texts, patience_s=0.5) as calling:
        calling.call(Call("before", "timed", {"seconds": 0.01}))
        servers[0].process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError, match=r"server answers|were lost"):
            calling.call(Call("after", "timed", {"seconds": 0.01}))
    assert any(SILENT in text for text in texts), texts


def test_a_server_that_computes_for_long_is_waited_for(servers, credential):
    texts = []
    with dispatcher(servers, credential, texts) as calling:
        reply = calling.call(Call("long", "timed", {"seconds": 9.0}))
    assert (reply.server, calling.counts["lost_servers"], texts) == ("w1", 0, [])


@pytest.mark.slow
def test_a_long_factorization_on_a_very_busy_machine_is_left_alone(servers, credential, issue_to):
    """A minute of it, with fifteen busy processes beside it for most of the time."""
    order = 5600
    matrix = Tensor.of(np.asfortranarray(np.random.default_rng(7).standard_normal((order, order))))
    texts = []
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(15)]
    try:
        timer = threading.Timer(45.0, lambda: [process.kill() for process in busy])
        timer.start()
        with dispatcher(servers, credential, texts) as calling:
            reply = calling.call(Call("long", "qr", {}, (matrix,)))
            assert calling.counts["lost_servers"] == 0
    finally:
        timer.cancel()
        for process in busy:
            process.kill()
            process.wait()
    with Client(servers[0].endpoint, issue_to("operator")) as client:
        workers = client.stats()["workers"]
    print(f"took {reply.seconds['compute']:.1f} s")
    assert (reply.server, texts) == ("w1", [])
    assert sum(worker.get("n_lost", 0) for worker in workers) == 0


def test_a_caller_that_was_away_blames_nobody(servers, credential):
    texts = []
    calls = [Call(f"away/{number}", "timed", {"seconds": 4.0}) for number in range(3)]
    with dispatcher(servers, credential, texts) as calling:
        answers = calling.map(iter(calls), window=3)
        replies = [next(answers)[1]]
        time.sleep(7.0)
        replies += [outcome for _, outcome in answers]
    assert [reply.server for reply in replies] == ["w1"] * 3
    assert texts == []


def test_a_mapper_that_was_stopped_itself_blames_nobody(servers, credential):
    program = f"""
import sys, time
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.wire.credential import issue
endpoint = Endpoint("w1", {servers[0].endpoint.host!r}, {servers[0].endpoint.port})
credential = issue(bytes.fromhex({MASTER.hex()!r}), "alice", int(time.time()) + 3600, "k1")
with Dispatcher([endpoint], credential, on_wait=print, timeout_s=3600.0) as calling:
    calling.call(Call("first", "timed", {{"seconds": 0.01}}))
    print("ready", flush=True)
    print(calling.call(Call("second", "timed", {{"seconds": 9.0}})).server, calling.counts["lost_servers"])
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as mapper:
        assert mapper.stdout.readline() == "ready\n"
        time.sleep(1.0)
        mapper.send_signal(signal.SIGSTOP)
        time.sleep(5.0)
        mapper.send_signal(signal.SIGCONT)
        assert mapper.stdout.read() == "w1 0\n"
