"""How loaded a server is: measured from counters, and believed only as far as it makes sense."""

import json
import math

import pytest

from yarn_accel.node.heartbeat_response import local_response, parse_response, response_document
from yarn_accel.node.loads import MAX_OPERATIONS, LoadMeter, ServerLoad, load_document, parse_load
from yarn_accel.node.server_stats import parse_stats


def figures(in_flight=0, workers=1, **operations):
    counts = {name: {"done": done, "compute_s": seconds} for name, (done, seconds) in operations.items()}
    return {"in_flight": in_flight, "workers": workers, "operations": counts}


def test_rates_are_of_what_was_computed_since_the_report_before():
    meter = LoadMeter()
    assert meter.measure(figures(3)) == {"queue_s": 0.0, "rates": {}}
    assert meter.measure(figures(3, lu=(10, 5.0))) == {"queue_s": 1.5, "rates": {"lu": 2.0}}
    # Nothing was done meanwhile: what is known stays.
    assert meter.measure(figures(1, lu=(10, 5.0))) == {"queue_s": 0.5, "rates": {"lu": 2.0}}
    # Ten more at 0.1 s: the newest counts half.
    assert meter.measure(figures(0, lu=(20, 6.0)))["rates"] == {"lu": pytest.approx(1 / 0.3, rel=1e-5)}


def test_several_workers_are_faster_together():
    assert LoadMeter().measure(figures(4, 2, lu=(10, 5.0))) == {"queue_s": 1.0, "rates": {"lu": 4.0}}


def test_a_standby_does_not_compute():
    workers = [{"state": "idle"}, {"state": "busy"}, {"state": "standby"}]
    found = parse_stats(json.dumps({"health": {"ok": True}, "workers": workers}))
    assert (found["workers"], found["computing_workers"]) == (3, 2)
    counts = {"operations": {"lu": {"done": 1, "compute_s": 1.0}}}
    assert LoadMeter().measure({**found, **counts})["rates"] == {"lu": 2.0}


def test_counters_that_fell_back_are_those_of_a_new_server():
    meter = LoadMeter()
    meter.measure(figures(lu=(1000, 1000.0)))
    assert meter.measure(figures(lu=(2, 0.5)))["rates"] == {"lu": 4.0}


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
