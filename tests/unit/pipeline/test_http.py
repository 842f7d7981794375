"""The HTTP side: right answers, only GET, a metric for every figure; no hang and no crowd changes that."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request

import prometheus_client
import pytest

from tests.unit.pipeline.statistics_of_a_server import statistics
from yarn_accel.errors import StartupError
from yarn_accel.pipeline import http as http_module
from yarn_accel.pipeline.http import MAX_CONNECTIONS, PREFIX, HttpServer, StatsCollector, families
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


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"health": {"ok": False, "problems": ["cuda:0 is quarantined"]}}, "cuda:0 is quarantined"),
        ({"is_draining": True}, "draining: the server takes nothing new"),
    ],
)
def test_a_sick_or_draining_server_says_so(serve, more, problem):
    status, _, text = ask(serve(lambda: statistics(**more)), "/healthz")
    assert (status, json.loads(text)) == (503, {"ok": False, "problems": [problem], "server": "w1"})


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

    server = serve(broken)
    for path in ("/stats.json", "/metrics"):
        assert ask(server, path)[::2] == (503, "no statistics: OSError: no loop\n")
    status, _, text = ask(server, "/healthz")
    assert status == 503
    assert json.loads(text)["problems"] == ["the server gives no statistics: OSError: no loop"]
    assert ask(server, "/")[0] == 404


def test_a_server_that_hangs_is_reported_and_asked_only_once(serve, monkeypatch):
    monkeypatch.setattr(http_module, "STATS_TIMEOUT_S", 0.2)
    go_on = threading.Event()
    n_asked = []

    def hanging():
        n_asked.append(1)
        go_on.wait(300)
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
    monkeypatch.setattr(http_module, "STATS_AGE_S", 60.0)
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
    monkeypatch.setattr(http_module, "STATS_AGE_S", 0.0)
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


UNITS = ("_seconds", "_bytes", "_requests", "_answers", "_connections", "_servers", "_jobs")
UNITS += ("_processes", "_celsius", "_ratio", "_server")


@pytest.fixture
def exposed():
    registry = prometheus_client.CollectorRegistry()
    registry.register(StatsCollector(statistics))
    return registry.get_sample_value, prometheus_client.generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("requests_total", {}, 20),
        ("answers_total", {"outcome": "done"}, 20),
        ("answers_total", {"outcome": "busy"}, 0),
        ("operation_requests_total", {"operation": "lu", "outcome": "done"}, 20),
        ("operation_compute_seconds_total", {"operation": "lu"}, 4.0),
        ("tenant_requests_total", {"tenant": "alice"}, 20),
        ("tenant_device_seconds_total", {"tenant": "alice"}, 4.0),
        ("tenant_received_bytes_total", {"tenant": "alice"}, 16000),
        ("tenant_queued_requests", {"tenant": "alice"}, 2),
        ("received_bytes_total", {}, 16000),
        ("healthy_servers", {}, 1),
        ("draining_servers", {}, 0),
        ("in_flight_requests", {}, 3),
        ("open_connections", {"carrier": "tcp", "checksum": "xxh3"}, 3),
        ("open_connections", {"carrier": "memfd", "checksum": "none"}, 1),
        ("queue_bytes", {"queue": "read"}, 1 << 20),
        ("queue_bound_bytes", {"queue": "write"}, 4 << 20),
        ("pool_bytes", {"state": "shared"}, 2 << 20),
        ("pool_bound_bytes", {}, 8 << 20),
        ("pool_waiting_requests", {}, 1),
        ("stage_busy_seconds_total", {"stage": "compute"}, 4.0),
        ("worker_busy_seconds_total", {"worker": "0", "device": "cpu:0"}, 4.0),
        ("worker_resident_bytes", {"worker": "0", "device": "cpu:0"}, 50 << 20),
        ("worker_processes", {"device": "cpu:0", "state": "busy"}, 1),
        ("worker_processes", {"device": "", "state": "standby"}, 2),
        ("device_temperature_celsius", {"device": "cuda:0"}, 41),
        ("device_other_memory_bytes", {"device": "cuda:0"}, 1 << 30),
        ("device_utilisation_ratio", {"device": "cuda:0"}, 0.5),
        ("request_seconds_bucket", {"operation": "lu", "le": "0.1"}, 0),
        ("request_seconds_bucket", {"operation": "lu", "le": "0.3"}, 20),
        ("request_seconds_bucket", {"operation": "lu", "le": "+Inf"}, 20),
        ("request_seconds_sum", {"operation": "lu"}, 5.0),
    ],
)
def test_a_figure_and_its_metric(exposed, name, labels, value):
    sample, _ = exposed
    assert sample(PREFIX + name, labels) == pytest.approx(value)


def test_no_sample_is_reported_twice():
    for family in families(statistics()):
        reported = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(reported) == len(set(reported))


def test_names_say_noun_and_unit():
    for family in families(statistics()):
        assert re.fullmatch(r"yarn_accel_pipeline_[a-z_]+", family.name)
        assert family.name.endswith(UNITS), family.name
        assert family.documentation


def test_the_text_carries_who_it_is(exposed):
    _, text = exposed
    assert 'yarn_accel_pipeline_server_info{protocol="2",server="w1"} 1.0' in text


def test_labels_never_name_a_request_or_a_process():
    allowed = (
        "tenant operation outcome stage queue carrier checksum fate worker device state le server protocol"
    )
    samples = [sample for family in families(statistics()) for sample in family.samples]
    assert {label for sample in samples for label in sample.labels} <= set(allowed.split())


def test_missing_parts_give_no_samples_and_no_error():
    samples = [sample for family in families({}) for sample in family.samples]
    assert [sample.name for sample in samples] == [PREFIX + "server_info"]
