"""The HTTP side: right answers, only GET, and a server that hangs or a crowd that scrapes changes nothing."""

import contextlib
import gc
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from tests.unit.pipeline.statistics_of_a_server import statistics
from yarn_accel.errors import StartupError
from yarn_accel.pipeline import http as http_module
from yarn_accel.pipeline.http import MAX_CONNECTIONS, HttpServer
from yarn_accel.pipeline.listeners import listen_http


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(http_module, "STATS_TIMEOUT_S", 60.0)
    servers = []

    def start(stats=statistics, port=0):
        server = HttpServer(stats, listen_http("127.0.0.1", port))
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()
        assert not server._thread.is_alive()
    gc.collect()


def ask(server, path, method="GET", data=None):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def test_metrics_are_what_prometheus_reads(serve):
    status, headers, text = ask(serve(), "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert (
        "# TYPE yarn_accel_pipeline_requests_total counter\nyarn_accel_pipeline_requests_total 20.0\n" in text
    )
    assert text.endswith("\n")


def test_a_healthy_server(serve):
    status, _, text = ask(serve(), "/healthz")
    assert (status, json.loads(text)) == (200, {"ok": True, "problems": [], "server": "w1"})


def test_a_sick_server_says_what_is_wrong(serve):
    sick = {"ok": False, "problems": ["cuda:0 is quarantined"]}
    status, _, text = ask(serve(lambda: statistics(health=sick)), "/healthz")
    assert (status, json.loads(text)) == (503, {**sick, "server": "w1"})


def test_a_draining_server_is_not_for_new_work(serve):
    status, _, text = ask(serve(lambda: statistics(is_draining=True)), "/healthz")
    assert status == 503
    assert json.loads(text)["problems"] == ["draining: the server takes nothing new"]


def test_statistics_without_health_are_no_good_news(serve):
    assert ask(serve(dict), "/healthz")[0] == 503


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get(serve, method):
    server = serve()
    assert ask(server, "/metrics", method, b"x" if method in {"POST", "PUT"} else None)[0] == 405


def test_agents_read_the_statistics_as_json(serve):
    status, headers, text = ask(serve(), "/stats.json")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(text) == json.loads(json.dumps(statistics()))


def test_without_statistics_there_is_no_document(serve):
    def broken():
        raise OSError("no loop")

    for path in ("/stats.json", "/metrics"):
        status, _, text = ask(serve(broken), path)
        assert (status, text) == (503, "no statistics: OSError: no loop\n")


def test_other_paths_do_not_exist(serve):
    assert ask(serve(), "/")[0] == 404


def test_statistics_that_break(serve):
    def broken():
        raise ValueError("boom")

    server = serve(broken)
    assert ask(server, "/metrics")[0] == 503
    status, _, text = ask(server, "/healthz")
    assert (status, json.loads(text)["problems"]) == (
        503,
        ["the server gives no statistics: ValueError: boom"],
    )


def test_a_server_that_hangs_is_reported_and_asked_only_once(serve, monkeypatch):
    monkeypatch.setattr(http_module, "STATS_TIMEOUT_S", 0.2)
    go_on = threading.Event()
    n_asked = []

    def hanging():
        n_asked.append(1)
        go_on.wait(60)
        return statistics()

    server = serve(hanging)
    for _ in range(3):
        status, _, text = ask(server, "/healthz")
        assert status == 503
        assert "no answer within 0.2 s" in text
    assert len(n_asked) == 1
    go_on.set()
    until_s = time.monotonic() + 60
    while ask(server, "/healthz")[0] != 200 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert ask(server, "/healthz")[0] == 200


def test_many_scrapers_cost_the_server_one_call(serve, monkeypatch):
    monkeypatch.setattr(http_module, "CACHE_S", 60.0)
    n_asked = []

    def counting():
        n_asked.append(1)
        time.sleep(0.05)
        return statistics()

    server = serve(counting)
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask(server, "/metrics")[0])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 20
    assert len(n_asked) == 1


def test_statistics_are_asked_again_after_a_moment(serve, monkeypatch):
    monkeypatch.setattr(http_module, "CACHE_S", 0.0)
    n_asked = []
    server = serve(lambda: statistics(n_done=n_asked.append(1) or len(n_asked)))
    for n_done in (1, 2, 3):
        assert f"yarn_accel_pipeline_requests_total {n_done}.0\n" in ask(server, "/metrics")[2]


def test_connections_are_bounded_in_number(serve, monkeypatch):
    monkeypatch.setattr(http_module, "_MAX_AGE_S", 3600.0)
    server = serve()
    with contextlib.ExitStack() as stack:

        def connect():
            return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))

        silent = [connect() for _ in range(MAX_CONNECTIONS)]
        assert connect().recv(1) == b"", "one more than allowed is closed at once"
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)


def test_connections_are_bounded_in_age(serve, monkeypatch):
    monkeypatch.setattr(http_module, "_MAX_AGE_S", 0.2)
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), 60) as silent:
        assert silent.recv(1) == b"", "one that never asks is closed after a while"
    monkeypatch.setattr(http_module, "_MAX_AGE_S", 3600.0)
    assert ask(server, "/healthz")[0] == 200


def test_a_taken_port_is_a_startup_error(serve):
    first = serve()
    with pytest.raises(StartupError, match="address already in use: choose another http_host or http_port"):
        serve(port=first.port)


def test_closing_twice_and_while_somebody_is_connected(serve):
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), 10):
        server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), 1)
