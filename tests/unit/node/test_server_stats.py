"""What a pipeline server says about itself."""

import json

import prometheus_client
import pytest

from tests.unit.pipeline.statistics_of_a_server import statistics
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.node.server_stats import ServerState, endpoint_of, is_local_only, parse_metrics, parse_state
from yarn_accel.pipeline.observe import StatsCollector

STATE = {
    "pid": 4711,
    "name": "w1",
    "host": "0.0.0.0",
    "port": 7070,
    "unix_path": "/run/p.sock",
    "http_host": "127.0.0.1",
    "http_port": 9100,
    "started_at": "2026-11-21T09:00:00+00:00",
}


def metrics(**changes):
    registry = prometheus_client.CollectorRegistry()
    registry.register(StatsCollector(lambda: statistics(**changes)))
    return prometheus_client.generate_latest(registry).decode()


def test_figures_from_what_the_server_really_writes():
    figures = parse_metrics(metrics())
    stats = statistics()
    assert figures["is_healthy"] is True
    assert figures["is_draining"] is False
    assert figures["in_flight"] == stats["in_flight"]
    assert figures["requests"] == stats["requests"]
    assert figures["done"] == stats["done"]
    assert figures["queue_bytes"] == sum(queue["bytes"] for queue in stats["queues"].values())
    assert figures["queued"] == sum(each["queued"] for each in stats["tenants"].values())
    assert figures["pool_used_bytes"] == stats["pool"]["used_bytes"]
    for operation, counts in stats["operations"].items():
        assert figures["operations"][operation]["done"] == counts["done"]
        assert figures["operations"][operation]["compute_s"] == pytest.approx(counts["compute_s"])


def test_a_sick_and_a_draining_server():
    assert parse_metrics(metrics(health={"ok": False, "problems": ["x"]}))["is_healthy"] is False
    assert parse_metrics(metrics(is_draining=True))["is_draining"] is True


@pytest.mark.parametrize("text", ["", "<html>", "node_load1 0.5\n", "yarn_accel_pipeline_requests_total 3\n"])
def test_metrics_of_somebody_else(text):
    with pytest.raises(RemoteProtocolError, match="not the metrics of a pipeline server"):
        parse_metrics(text)


def test_numbers_that_are_none_are_left_out():
    text = "yarn_accel_pipeline_healthy_servers 1\nyarn_accel_pipeline_in_flight_requests NaN\n"
    text += "yarn_accel_pipeline_requests_total x\nyarn_accel_pipeline_worker_processes +Inf\n"
    assert parse_metrics(text) == {"is_healthy": True, "is_draining": False, "operations": {}}


def test_operations_are_bounded_and_may_be_called_anything():
    text = "yarn_accel_pipeline_healthy_servers 1\n"
    for n in range(100):
        text += f'yarn_accel_pipeline_operation_requests_total{{operation="o{n}\\"}}",outcome="done"}} {n}\n'
    assert len(parse_metrics(text)["operations"]) == 32


def test_a_state_file():
    state = parse_state(json.dumps(STATE))
    assert (state.pid, state.http_port, state.tls) == (4711, 9100, False)
    assert parse_state(json.dumps({**STATE, "tls": True})).tls


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "not JSON"),
        ("[]", "not an object"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({**STATE, "pid": 0}), "pid"),
        (json.dumps({**STATE, "pid": "4711"}), "pid"),
        (json.dumps({**STATE, "pid": -1}), "pid"),
        (json.dumps({**STATE, "port": 65536}), "port"),
        (json.dumps({**STATE, "http_port": True}), "http_port"),
        (json.dumps({**STATE, "host": None}), "host"),
        (json.dumps({**STATE, "name": "x" * 256}), "name"),
        ("{}", "pid"),
    ],
)
def test_state_files_that_are_none(text, place):
    with pytest.raises(RemoteProtocolError, match=place):
        parse_state(text)


def state(host="0.0.0.0", port=7070, name="w1", unix_path=""):
    return ServerState(1, name, host, port, unix_path)


@pytest.mark.parametrize(
    ("host", "told", "is_local"),
    [
        ("0.0.0.0", "node1.example.org", False),
        ("::", "node1.example.org", False),
        ("10.0.0.1", "10.0.0.1", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("localhost", "localhost", True),
        ("other.example.org", "other.example.org", False),
    ],
)
def test_where_others_reach_it(host, told, is_local):
    endpoint = endpoint_of(state(host), "node1", "node1.example.org")
    assert (endpoint.host, endpoint.port, endpoint.node) == (told, 7070, "node1")
    assert is_local_only(endpoint, "node1.example.org") is is_local


def test_a_node_that_is_itself_on_a_loopback_address():
    assert not is_local_only(endpoint_of(state("127.0.0.2"), "w2", "127.0.0.2"), "127.0.0.2")


def test_only_a_unix_socket():
    endpoint = endpoint_of(state("", port=0, name="", unix_path="/run/p.sock"), "w1", "10.0.0.1")
    assert (endpoint.name, endpoint.host, endpoint.unix_path) == ("w1:0", "", "/run/p.sock")
    assert is_local_only(endpoint, "10.0.0.1")
