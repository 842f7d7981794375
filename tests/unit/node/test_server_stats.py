"""A pipeline server's reports: what is read from them, its load, and whether it hangs."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.pipeline.statistics_of_a_server import statistics
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.node import server_stats
from yarn_accel.node.heartbeat_response import (
    MAX_OPERATIONS,
    ServerLoad,
    load_document,
    local_response,
    parse_load,
    parse_response,
    response_document,
)

STATE = {"pid": 4711, "name": "w1", "host": "0.0.0.0", "port": 7070, "unix_path": "/run/p.sock"}
STATE |= {"http_host": "127.0.0.1", "http_port": 9100, "started_at": "2026-11-21T09:00:00+00:00"}


def figures(**changes):
    """Of what the server really says."""
    return server_stats.parse_stats(json.dumps(statistics(**changes)))


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
        server_stats.parse_stats(text)


def test_values_that_make_no_sense_are_left_out():
    odd = {"health": {"ok": "yes", "problems": 7}, "in_flight": "3", "requests": float("inf"), "done": True}
    odd |= {"pool": [], "tenants": {"a": {"queued": None}, "b": 4}, "workers": 3, "operations": [1]}
    nothing = {"is_healthy": False, "is_draining": False, "problems": [], "operations": {}}
    assert server_stats.parse_stats(json.dumps(odd)) == nothing


def test_operations_are_bounded_and_may_be_called_anything():
    table = {f'o{n}"}}': {"done": n} for n in range(100)}
    found = server_stats.parse_stats(json.dumps({"health": {"ok": True}, "operations": table}))["operations"]
    assert len(found) == 32
    assert found['o7"}'] == {"done": 7, "compute_s": 0.0}


def test_the_applications_of_its_sessions():
    assert "applications" not in figures()
    named = ["application_1_2", "../x", 7]
    assert figures(applications=named)["applications"] == ["application_1_2"]


def test_a_state_file():
    state = server_stats.parse_state(json.dumps(STATE))
    assert (state.pid, state.http_port, state.tls) == (4711, 9100, False)
    assert server_stats.parse_state(json.dumps({**STATE, "tls": True})).tls


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
        server_stats.parse_state(text)


def state(host="0.0.0.0", port=7070, name="w1", unix_path=""):
    return server_stats.ServerStateFile(1, name, host, port, unix_path)


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
    endpoint = server_stats.endpoint_of(state(host), "node1", "node1.example.org")
    assert (endpoint.host, endpoint.port, endpoint.node) == (reported, 7070, "node1")
    assert server_stats.is_local_only(endpoint, "node1.example.org") is is_local


def test_a_node_that_is_itself_on_a_loopback_address():
    assert not server_stats.is_local_only(
        server_stats.endpoint_of(state("127.0.0.2"), "w2", "127.0.0.2"), "127.0.0.2"
    )


def test_only_a_unix_socket():
    endpoint = server_stats.endpoint_of(state("", port=0, name="", unix_path="/run/p.sock"), "w1", "10.0.0.1")
    assert (endpoint.name, endpoint.host, endpoint.unix_path) == ("w1:0", "", "/run/p.sock")
    assert server_stats.is_local_only(endpoint, "10.0.0.1")


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


def measured(in_flight=0, workers=1, **operations):
    counts = {name: {"done": done, "compute_s": seconds} for name, (done, seconds) in operations.items()}
    return {"in_flight": in_flight, "workers": workers, "operations": counts}


def test_rates_are_of_what_was_computed_since_the_report_before():
    meter = server_stats.LoadMeter()
    assert meter.measure(measured(3)) == {"queue_s": 0.0, "rates": {}}
    assert meter.measure(measured(3, lu=(10, 5.0))) == {"queue_s": 1.5, "rates": {"lu": 2.0}}
    # Nothing was done meanwhile: what is known stays.
    assert meter.measure(measured(1, lu=(10, 5.0))) == {"queue_s": 0.5, "rates": {"lu": 2.0}}
    # Ten more at 0.1 s: the newest counts half.
    assert meter.measure(measured(0, lu=(20, 6.0)))["rates"] == {"lu": pytest.approx(1 / 0.3, rel=1e-5)}


def test_several_workers_are_faster_together_and_a_standby_does_not_compute():
    assert server_stats.LoadMeter().measure(measured(4, 2, lu=(10, 5.0))) == {
        "queue_s": 1.0,
        "rates": {"lu": 4.0},
    }
    workers = [{"state": "idle"}, {"state": "busy"}, {"state": "standby"}]
    found = server_stats.parse_stats(json.dumps({"health": {"ok": True}, "workers": workers}))
    assert (found["workers"], found["computing_workers"]) == (3, 2)
    counts = measured(lu=(1, 1.0))["operations"]
    assert server_stats.LoadMeter().measure({**found, "operations": counts})["rates"] == {"lu": 2.0}


def test_counters_that_fell_back_are_those_of_a_new_server():
    meter = server_stats.LoadMeter()
    meter.measure(measured(lu=(1000, 1000.0)))
    assert meter.measure(measured(lu=(2, 0.5)))["rates"] == {"lu": 4.0}


def test_a_load_is_read_as_it_was_written():
    load = ServerLoad(7, 1.5, {"lu": 3.0}, 2.0, accepts=False)
    assert parse_load(json.loads(json.dumps(load_document(load)))) == load
    assert parse_load({"queue_s": 1.5}, 9, 4.0) == ServerLoad(9, 1.5, {}, 4.0)


@pytest.mark.parametrize(
    "odd", [None, "x", [], -1, True, math.nan, math.inf, {"lu": math.nan}, {"lu": 0}, 1e300]
)
def test_odd_values_are_left_out(odd):
    load = parse_load({"seq": odd, "queue_s": odd, "rates": odd, "accepts": True}, 3)
    assert (load.seq, load.rates, load.weight) == (3, {}, 1.0)
    assert 0 <= load.queue_s <= 1e6
    assert parse_load(odd) == ServerLoad()
    assert parse_load({"weight": "x"}).weight == 1.0


def test_a_server_does_not_make_anybody_remember_much():
    load = parse_load({"rates": {"x" * 200 + str(number): 1.0 for number in range(1000)}})
    assert len(load.rates) <= MAX_OPERATIONS
    assert all(len(name) <= 100 for name in load.rates)


def test_the_agent_hands_on_policy_and_loads_of_the_servers_it_names():
    servers = [{"name": name, "host": "h", "port": 1, "node": name} for name in ("w1", "w2")]
    loads = {"w1": {"seq": 3, "queue_s": 0.5}, "stranger": {"seq": 1}}
    policy = {"name": "container", "max_moves": 1, "odd": [1], "worse": math.inf}
    document = {"version": 1, "servers": servers, "bound": ["w1"], "policy": policy, "loads": loads}
    answer = parse_response(document, "m1")
    assert parse_response(response_document(answer, "m1"), "m1").loads == {"w1": ServerLoad(3, 0.5)}
    facts = {"age_s": 0.1, "reason": "", "own": None, "stale_s": 10.0}
    said = local_response("m1", answer, is_own_down=False, **facts)
    json.dumps(said, allow_nan=False)
    assert said["policy"] == {"name": "container", "max_moves": 1}
    assert list(said["loads"]) == ["w1"]
    assert local_response("w1", answer, is_own_down=True, **facts)["loads"] == {}
    assert "policy" not in local_response(
        "m1", parse_response({**document, "policy": None}, "m1"), is_own_down=False, **facts
    )


TICK_S = 0.2


def watched(seconds, ticks=lambda i: 7, has_answered=True):
    """The first time of each verdict, in seconds since the probe that is not answered."""
    liveness, first = server_stats.Liveness(), {}
    if has_answered:
        liveness.asked()
        liveness.answered()
    liveness.asked()
    for i in range(1, round(seconds / TICK_S) + 1):
        liveness.tick(TICK_S, ticks(i))
        first.setdefault(liveness.verdict(), i * TICK_S)
    return first


def test_a_stopped_process_is_silent_in_two_seconds_and_hung_in_some_more():
    first = watched(20.0)
    assert first[server_stats.Verdict.SILENT] == pytest.approx(server_stats.SILENT_S, abs=TICK_S)
    assert first[server_stats.Verdict.HUNG] == pytest.approx(server_stats.HUNG_IDLE_S, abs=3 * TICK_S)


def test_a_process_that_computes_is_given_more_time_and_a_minute():
    first = watched(120.0, ticks=lambda i: i)
    assert first[server_stats.Verdict.SILENT] == pytest.approx(server_stats.SILENT_BUSY_S, abs=TICK_S)
    assert first[server_stats.Verdict.HUNG] == pytest.approx(server_stats.HUNG_BUSY_S, abs=TICK_S)


@pytest.mark.parametrize(("ticks", "has_answered"), [(lambda i: None, True), (lambda i: 7, False)])
def test_one_that_starts_or_cannot_be_seen_is_silent_as_soon_and_hung_later(ticks, has_answered):
    first = watched(60.0, ticks, has_answered)
    assert first[server_stats.Verdict.SILENT] == pytest.approx(server_stats.SILENT_S, abs=TICK_S)
    assert first[server_stats.Verdict.HUNG] == pytest.approx(server_stats.HUNG_UNSURE_S, abs=3 * TICK_S)


def test_who_is_not_asked_is_not_silent():
    liveness = server_stats.Liveness()
    for _ in range(1000):
        liveness.tick(1.0, 7)
    assert liveness.verdict() is server_stats.Verdict.RESPONSIVE


def test_an_answer_ends_it():
    liveness = server_stats.Liveness()
    liveness.asked()
    for _ in range(200):
        liveness.tick(0.5, 7)
    assert liveness.verdict() is server_stats.Verdict.HUNG
    liveness.answered()
    assert liveness.verdict() is server_stats.Verdict.RESPONSIVE
    assert not liveness.is_asked


def test_a_stall_of_the_agent_itself_is_not_the_servers_silence():
    liveness = server_stats.Liveness()
    liveness.asked()
    liveness.tick(3600.0, 7)
    assert liveness.verdict() is server_stats.Verdict.RESPONSIVE


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), max_size=200))
def test_who_answers_each_probe_in_time_is_never_silent(steps):
    """However long each pause is, and whether the process computes or not."""
    liveness, unanswered_s, cpu = server_stats.Liveness(), 0.0, 0
    for elapsed_s, computes in steps:
        step_s = min(elapsed_s, server_stats.MAX_TICK_S)
        if unanswered_s + step_s >= server_stats.SILENT_S:
            liveness.answered()
            unanswered_s = 0.0
        liveness.asked()
        cpu += computes
        liveness.tick(elapsed_s, cpu)
        unanswered_s += step_s
        assert liveness.verdict() is server_stats.Verdict.RESPONSIVE
