"""What a pipeline server says about itself."""

import json

import pytest

from tests.unit.pipeline.statistics_of_a_server import statistics
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.node.server_stats import ServerStateFile, endpoint_of, is_local_only, parse_state, parse_stats

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


def figures(**changes):
    """Of what the server really says."""
    return parse_stats(json.dumps(statistics(**changes)))


def test_figures_from_what_the_server_really_writes():
    found, stats = figures(), statistics()
    assert found["is_healthy"] is True
    assert found["is_draining"] is False
    assert found["problems"] == []
    for name in ("in_flight", "requests", "done"):
        assert found[name] == stats[name]
    assert found["queue_bytes"] == sum(queue["bytes"] for queue in stats["queues"].values())
    assert found["queue_bound_bytes"] == sum(queue["bound_bytes"] for queue in stats["queues"].values())
    assert found["queued"] == sum(each["queued"] for each in stats["tenants"].values())
    assert found["device_s"] == pytest.approx(sum(each["device_s"] for each in stats["tenants"].values()))
    assert found["pool_used_bytes"] == stats["pool"]["used_bytes"]
    assert found["compute_busy_s"] == stats["stage_busy"]["compute"]
    assert (found["workers"], found["computing_workers"], found["computes_on"]) == (3, 1, "cpu:0")
    assert found["gpu_other_bytes"] == 1 << 30
    assert stats["operations"]
    for operation, counts in stats["operations"].items():
        assert found["operations"][operation]["done"] == counts["done"]
        assert found["operations"][operation]["compute_s"] == pytest.approx(counts["compute_s"])


def test_a_sick_and_a_draining_server():
    sick = figures(health={"ok": False, "problems": ["x" * 999] * 99})
    assert sick["is_healthy"] is False
    assert sick["problems"] == ["x" * 200] * 8
    assert figures(is_draining=True)["is_draining"] is True


@pytest.mark.parametrize("text", ["", "<html>", "[" * 100_000, "[]", "{}", '{"health": 1}'])
def test_statistics_of_somebody_else(text):
    with pytest.raises(RemoteProtocolError, match="not the statistics of a pipeline server"):
        parse_stats(text)


def test_values_that_make_no_sense_are_left_out():
    odd = {"health": {"ok": "yes", "problems": 7}, "in_flight": "3", "requests": float("inf"), "done": True}
    odd |= {"pool": [], "tenants": {"a": {"queued": None}, "b": 4}, "workers": 3, "operations": [1]}
    nothing = {"is_healthy": False, "is_draining": False, "problems": [], "operations": {}}
    assert parse_stats(json.dumps(odd)) == nothing


def test_operations_are_bounded_and_may_be_called_anything():
    table = {f'o{n}"}}': {"done": n} for n in range(100)}
    found = parse_stats(json.dumps({"health": {"ok": True}, "operations": table}))["operations"]
    assert len(found) == 32
    assert found['o7"}'] == {"done": 7, "compute_s": 0.0}


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
    return ServerStateFile(1, name, host, port, unix_path)


@pytest.mark.parametrize(
    ("host", "reported", "is_local"),
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
def test_where_others_reach_it(host, reported, is_local):
    endpoint = endpoint_of(state(host), "node1", "node1.example.org")
    assert (endpoint.host, endpoint.port, endpoint.node) == (reported, 7070, "node1")
    assert is_local_only(endpoint, "node1.example.org") is is_local


def test_a_node_that_is_itself_on_a_loopback_address():
    assert not is_local_only(endpoint_of(state("127.0.0.2"), "w2", "127.0.0.2"), "127.0.0.2")


def test_only_a_unix_socket():
    endpoint = endpoint_of(state("", port=0, name="", unix_path="/run/p.sock"), "w1", "10.0.0.1")
    assert (endpoint.name, endpoint.host, endpoint.unix_path) == ("w1:0", "", "/run/p.sock")
    assert is_local_only(endpoint, "10.0.0.1")


def test_what_it_computes_on_is_what_works():
    states = (
        ("cuda:0", "idle"),
        ("cuda:1", "quarantined"),
        ("cuda:2", "absent"),
        ("cuda:0", "busy"),
        ("", "standby"),
    )
    workers = [{"device": device, "state": state} for device, state in (*states, ("cuda:3:1", "starting"))]
    found = figures(workers=[*workers, 7])
    assert (found["computes_on"], found["computing_workers"]) == ("cuda:0 cuda:3:1", 3)
