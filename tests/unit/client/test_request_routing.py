"""Servers and calls as a dispatcher knows them, and how a server is chosen for each call."""

import json
import math
from dataclasses import replace

import pytest

from yarn_accel.client.binding import Binding, Endpoint
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.discovery import DiscoveredServers, ServerWatch, parse_servers
from yarn_accel.client.request_routing import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    LONGEST_PAUSE_S,
    DispatchedCall,
    PerRequestPolicy,
    RateHistory,
    RoutingHints,
    ServerState,
    parse_routing_hints,
)
from yarn_accel.core.server_choice import ChooserSettings, RoutableRequest, ServerView
from yarn_accel.wire import TensorSpec

MB = 1_000_000
SERVERS = tuple(Endpoint(name, "10.0.0.1", port, "", name) for port, name in enumerate(("w1", "w2", "w3"), 1))
BINDING = Binding(SERVERS, {"w1": "/r", "w2": "/r", "w3": "/r", "m1": "/r"}, {"m1": ("w2",)})
LOAD = {"seq": 7, "queue_s": 1.5, "rates": {"lu": 3.0}, "weight": 2.0, "accepts": True}
REPORTED = {
    "policy": {"name": "container", "max_moves": 2},
    "loads": {"w1": LOAD, "w2": {**LOAD, "accepts": False}},
}


# How long a server that failed is passed over


def server():
    return ServerState(Endpoint("w1", "10.0.0.1", 7000, ""))


def test_the_backoff_doubles_with_every_failed_retry_up_to_the_longest():
    failing, now_s, seen = server(), 1000.0, []
    for _ in range(6):
        failing.record_failure(now_s)
        seen.append(failing.failed_until_s - now_s)
        now_s = failing.failed_until_s
    first = FIRST_BACKOFF_S
    assert seen == [first, 2 * first, 4 * first, 8 * first, LONGEST_BACKOFF_S, LONGEST_BACKOFF_S]


def test_a_failure_during_one_changes_nothing():
    failing = server()
    failing.record_failure(1000.0)
    failing.record_failure(1003.0)
    assert failing.failed_until_s == 1000.0 + FIRST_BACKOFF_S
    assert not failing.is_ready(1009.9)
    assert failing.is_ready(1010.0)


def test_an_answer_ends_it_and_so_does_time():
    failing = server()
    failing.record_failure(1000.0)
    failing.record_success()
    assert failing.is_ready(1000.0)
    failing.record_failure(1000.0)
    later_s = 1000.1 + FIRST_BACKOFF_S + LONGEST_BACKOFF_S
    failing.record_failure(later_s)
    assert failing.failed_until_s == later_s + FIRST_BACKOFF_S


def test_where_there_is_no_other_the_pauses_between_tries_grow_until_it_answers():
    failing, now_s, pauses = server(), 1000.0, []
    for _ in range(8):
        failing.failed(now_s, 1.25)
        pauses.append(failing.retry_s - now_s)
        now_s = failing.retry_s
    assert [round(pause, 4) for pause in pauses[:3]] == [0.0625, 0.125, 0.25]
    assert round(pauses[-1], 4) == 1.25 * LONGEST_PAUSE_S
    failing.connected()
    failing.failed(now_s, 1.0)
    assert failing.retry_s - now_s > 1.0, "it connected, but never answered"
    failing.record_success()
    failing.failed(now_s, 1.0)
    assert round(failing.retry_s - now_s, 4) == 0.05


def test_one_that_drains_is_not_ready():
    draining = server()
    draining.connected()
    assert draining.is_ready(0.0)
    draining.is_draining = True
    assert not draining.is_ready(0.0)


# The figures of an agent, read with care, and only while they are fresh


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
        *({"policy": policy} for policy in ({"name": "paper"}, {"name": "weighted"}, None, "container")),
        *({"loads": loads} for loads in (None, {}, {"stranger": LOAD})),
        *({"age_s": 11.0}, {"binding": Binding()}),
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


# The measurements of a client, which the figures of the agent go before


def tensor(n_bytes):
    return Tensor(TensorSpec("|u1", (n_bytes,)), bytes(n_bytes))


def reply(n_bytes=0, **seconds):
    return Reply({}, {"out": tensor(n_bytes)} if n_bytes else {}, "w1", "cpu", seconds, 0, 0)


def view(**changes):
    return ServerView(**{"server": "w1", "seq": 1, "queue_s": 3.0, **changes})


def test_the_rate_is_that_of_its_answers_where_the_agent_knows_none():
    known = RateHistory()
    for _ in range(20):
        known.record("w1", Call("k", "lu"), reply(compute=0.5), 0.6)
    assert known.with_own_rates(view()).rates["lu"] == pytest.approx(2.0)
    assert known.with_own_rates(view(rates={"lu": 9.0})).rates == {"lu": 9.0}
    assert known.with_own_rates(view(server="w2")).rates == {}
    assert known.expected_s(view(rates={"lu": 4.0}), RoutableRequest("lu", 1.0, MB)) == pytest.approx(0.25)


def test_the_link_is_as_fast_as_the_fastest_of_the_last_exchanges():
    known = RateHistory()
    call = Call("k", "echo", {}, (tensor(MB),))
    assert known.with_own_rates(view()).link_bytes_per_s == math.inf
    known.record("w1", call, reply(MB, compute=1.0, queue=5.0, read=0.1), 6.2)
    assert known.with_own_rates(view()).link_bytes_per_s == pytest.approx(10 * MB)
    known.record("w1", call, reply(MB, compute=1.0), 21.0)
    assert known.with_own_rates(view()).link_bytes_per_s == pytest.approx(10 * MB)
    for _ in range(8):
        known.record("w1", call, reply(MB, compute=1.0), 21.0)
    assert known.with_own_rates(view()).link_bytes_per_s == pytest.approx(0.1 * MB), (
        "a slowed link is noticed"
    )
    assert known.with_own_rates(view(server="w2")).link_bytes_per_s == math.inf


def test_small_answers_say_nothing_about_a_link_and_answers_in_storage_do_not_travel():
    known = RateHistory()
    known.record("w1", Call("k", "lu", {}, (tensor(100),)), reply(100, compute=1.0), 9.0)
    assert known.with_own_rates(view()).link_bytes_per_s == math.inf
    assert known.reply_bytes(Call("k", "lu")) == 100
    assert known.reply_bytes(Call("k", "lu", output_uri="file:/x")) == 0
    assert known.reply_bytes(Call("k", "qr")) == 0


# The choice


def test_what_was_sent_since_the_report_counts_once():
    servers = [ServerState(Endpoint(name, "host", 1)) for name in ("w1", "w2")]
    views = tuple(
        ServerView(name, seq=1, queue_s=queue_s, rates={"lu": 1.0})
        for name, queue_s in (("w1", 0.0), ("w2", 2.5))
    )
    policy = PerRequestPolicy(RoutingHints("", views), RateHistory())
    chosen = []
    for n in range(4):
        call = DispatchedCall(Call(f"k{n}", "lu"))
        call.server = policy.choose(call, servers, 0.0).server
        policy.note_sent(call, servers, 0.0)
        call.server.calls.append(call)
        chosen.append(call.server.endpoint.name)
    assert chosen == ["w1", "w1", "w1", "w2"]
