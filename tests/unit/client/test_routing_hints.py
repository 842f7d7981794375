"""What an agent tells for choosing servers: read with care, and only while it is fresh."""

import json
import math
from dataclasses import replace

import pytest

from yarn_accel.client.binding import Binding, Endpoint
from yarn_accel.client.discovery import DiscoveredServers, ServerWatch, parse_servers
from yarn_accel.client.request_routing import parse_routing_hints
from yarn_accel.core.server_choice import ChooserSettings

SERVERS = tuple(Endpoint(name, "10.0.0.1", port, "", name) for port, name in enumerate(("w1", "w2", "w3"), 1))
BINDING = Binding(SERVERS, {"w1": "/r", "w2": "/r", "w3": "/r", "m1": "/r"}, {"m1": ("w2",)})
LOAD = {"seq": 7, "queue_s": 1.5, "rates": {"lu": 3.0}, "weight": 2.0, "accepts": True}
REPORTED = {
    "policy": {"name": "container", "max_moves": 2},
    "loads": {"w1": LOAD, "w2": {**LOAD, "accepts": False}},
}


def routing_hints(node="m1", age_s=1.0, binding=BINDING, **changes):
    return parse_routing_hints({**REPORTED, **changes}, binding, node, age_s)


def test_home_settings_and_figures():
    found = routing_hints()
    assert found.home == "w2"
    assert found.settings == ChooserSettings(max_moves=2)
    assert [(view.server, view.accepts) for view in found.views] == [("w2", False), ("w1", True)]
    view = found.views[1]
    assert (view.seq, view.queue_s, view.rates, view.weight) == (7, 1.5, {"lu": 3.0}, 2.0)
    assert routing_hints("w1").home == "w1", "an accelerator node is its own home"
    assert routing_hints("x9").home == "", "no server of another rack is a home"


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"name": "paper"}},
        {"policy": {"name": "weighted"}},
        {"policy": None},
        {"policy": "container"},
        {"loads": None},
        {"loads": {}},
        {"loads": {"stranger": LOAD}},
        {"age_s": 11.0},
        {"binding": Binding()},
    ],
)
def test_without_fresh_figures_of_that_policy_there_is_none(changes):
    assert routing_hints(**changes) is None


@pytest.mark.parametrize("odd", [None, "x", [], -1, True, math.nan, math.inf, {"lu": "fast"}, {"lu": -1.0}])
def test_odd_values_are_left_out(odd):
    load = {"seq": odd, "queue_s": odd, "rates": odd, "weight": odd, "accepts": True}
    policy = {"name": "container", "min_gain_s": odd, "min_gain_share": odd, "max_moves": odd}
    found = routing_hints(loads={"w1": load}, policy=policy)
    assert found.settings == ChooserSettings()
    (view,) = found.views
    assert (view.seq, view.queue_s, view.rates, view.weight) == (0, 0.0, {}, 1.0)
    assert routing_hints(loads={"w1": odd}).views[0].queue_s == 0.0


def test_it_comes_with_the_agents_answer_and_is_asked_for_more_often():
    binding = {
        "version": 1,
        "servers": [{"name": "w1", "host": "h", "port": 1, "node": "w1"}],
        "bound": {"m1": ["w1"]},
    }
    document = {"v": 1, "node": "m1", "binding": binding, "age_s": 0.5, **REPORTED}
    found = replace(parse_servers(json.dumps(document).encode(), "m1"), source="agent")
    assert found.routing_hints.home == "w1"
    answers, now_s = [DiscoveredServers(), found, found], [0.0]
    watch = ServerWatch({}, 5.0, lambda environ: answers.pop(0), lambda: now_s[0])
    assert watch.now().routing_hints is None
    now_s[0] = 4.9
    assert watch.now().routing_hints is None
    now_s[0] = 5.1
    assert watch.now().routing_hints is found.routing_hints
    now_s[0] = 6.2
    assert watch.now().routing_hints is found.routing_hints
    assert answers == []
