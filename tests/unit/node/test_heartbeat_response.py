"""The master's word: what is believed of it, and what mappers get."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.client.binding import Endpoint, choose, parse_binding
from yarn_accel.client.discovery import parse_servers
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.node.heartbeat_response import (
    MAX_SERVERS,
    HeartbeatResponse,
    local_response,
    parse_response,
    response_document,
)

W1 = {"name": "w1", "host": "10.0.0.1", "port": 7070, "unix_path": "/run/a.sock", "node": "w1"}
W3 = {"name": "w3", "host": "10.0.0.3", "port": 7070, "node": "w3"}
GOOD = {"version": 1, "servers": [W1, W3], "bound": ["w3"], "interval_s": 0.5, "slots": 4, "attempt": 2}


def test_a_whole_answer():
    answer = parse_response(GOOD, "w2")
    assert [server.name for server in choose(answer.binding, "w2")] == ["w3", "w1"]
    assert (answer.interval_s, answer.slots, answer.attempt) == (0.5, 4, 2)


def test_the_least_answer():
    answer = parse_response({"version": 1, "servers": []}, "w2")
    assert answer.ended == ()
    assert answer.binding.servers == ()
    assert (answer.interval_s, answer.slots) == (0.0, None)


def test_it_survives_the_state_file():
    answer = parse_response({**GOOD, "racks": {"w1": "/r1"}, "application": "application_1_0001"}, "w2")
    assert parse_response(response_document(answer, "w2"), "w2") == answer


def test_unix_sockets_of_other_nodes_are_not_ours():
    seen = parse_response(GOOD, "w2").binding.servers[0]
    assert (seen.unix_path, seen.host) == ("", "10.0.0.1")
    assert parse_response(GOOD, "w1").binding.servers[0].unix_path == "/run/a.sock"
    only_unix = {"name": "w1", "unix_path": "/run/a.sock", "node": "w1"}
    answer = parse_response({"version": 1, "servers": [only_unix], "bound": ["w1"]}, "w2")
    assert (answer.binding.servers, answer.binding.bound) == ((), {"w2": ()})


@pytest.mark.parametrize("interval_s", [1e-9, 1e9, 0, -1])
def test_no_master_makes_us_hurry_or_fall_asleep(interval_s):
    assert 0.1 <= parse_response({**GOOD, "interval_s": interval_s}, "w2").interval_s <= 60


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ([], "not an object"),
        ({}, "version"),
        ({"version": 2, "servers": []}, "version 2"),
        ({"version": 1}, "servers"),
        ({"version": 1, "servers": {}}, "servers"),
        ({"version": 1, "servers": [W1] * (MAX_SERVERS + 1)}, "at most"),
        ({"version": 1, "servers": [W1, W1]}, "used twice"),
        ({"version": 1, "servers": [{**W1, "port": 70000}]}, "port"),
        ({"version": 1, "servers": [{**W1, "shell": "rm"}]}, "unknown key"),
        ({**GOOD, "bound": ["w9"]}, "no server is named"),
        ({**GOOD, "bound": "w1"}, "expected a list"),
        ({**GOOD, "racks": []}, "expected an object"),
        ({**GOOD, "interval_s": "soon"}, "interval_s"),
        ({**GOOD, "interval_s": float("nan")}, "interval_s"),
        ({**GOOD, "slots": -1}, "slots"),
        ({**GOOD, "slots": True}, "slots"),
        ({**GOOD, "attempt": 1.5}, "attempt"),
        ({**GOOD, "revision": 2**60}, "revision"),
    ],
)
def test_answers_that_are_none(document, place):
    with pytest.raises(RemoteProtocolError, match=place):
        parse_response(document, "w2")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([*GOOD, "racks", "application", "revision"]), _JSON)
def test_whatever_stands_somewhere_it_is_an_answer_or_a_protocol_error(key, value):
    try:
        answer = parse_response({**GOOD, key: value}, "w2")
    except RemoteProtocolError:
        return
    assert parse_response(response_document(answer, "w2"), "w2") == answer


def test_an_earlier_attempt_is_over():
    second = parse_response({**GOOD, "application": "application_1_0001"}, "w2")
    first = parse_response({**GOOD, "application": "application_1_0001", "attempt": 1}, "w2")
    other = parse_response({**GOOD, "application": "application_1_0002", "attempt": 1}, "w2")
    assert first.is_older_than(second)
    assert not second.is_older_than(second)
    assert not other.is_older_than(second)
    assert not first.is_older_than(None)


# ---- what mappers get

OWN = Endpoint("w2", "10.0.0.2", 7070, "/run/yarn-accel/p.sock", "w2")


def tell(answer=None, **changes):
    facts = {"age_s": 0.5, "reason": "", "own": None, "is_own_down": False, "stale_s": 10.0, **changes}
    return local_response("w2", answer, **facts)


def names(document):
    return [server["name"] for server in document["binding"]["servers"]]


def test_the_masters_word_is_passed_on():
    document = tell(parse_response(GOOD, "w2"))
    assert (document["v"], document["node"], document["slots"], document["reason"]) == (1, "w2", 4, "")
    found = parse_servers(json.dumps(document).encode(), "w2")
    binding, node, age_s, reason = found.binding, found.node, found.age_s, found.reason
    assert binding == parse_response(GOOD, "w2").binding
    assert (node, age_s, reason) == ("w2", 0.5, "")


def test_no_server_always_has_a_reason():
    assert "bound no server" in tell(HeartbeatResponse(parse_binding('{"version": 1}')))["reason"]
    assert tell(None, reason="the master was not asked yet")["reason"] == "the master was not asked yet"


def test_without_a_master_this_nodes_own_server_is_there():
    assert names(tell(None, own=OWN, reason="nobody answers")) == ["w2"]
    assert names(tell(parse_response(GOOD, "w2"), own=OWN, age_s=11.0)) == ["w2", "w1", "w3"]


def test_a_master_that_reports_decides_about_our_own_server():
    """It may be draining it."""
    assert names(tell(parse_response(GOOD, "w2"), own=OWN, age_s=9.0)) == ["w1", "w3"]


def test_a_server_named_already_is_not_added_again():
    answer = parse_response({**GOOD, "servers": [{**W1, "name": "w2", "node": "w2"}], "bound": []}, "w2")
    assert names(tell(answer, own=OWN, age_s=99.0)) == ["w2"]


def test_a_dead_server_of_this_node_is_named_to_nobody():
    answer = parse_response({**GOOD, "bound": ["w1", "w3"]}, "w1")
    facts = {"age_s": 0.1, "reason": "", "own": None, "is_own_down": True, "stale_s": 10.0}
    document = local_response("w1", answer, **facts)
    assert names(document) == ["w3"]
    assert document["binding"]["bound"] == {"w1": ["w3"]}


@pytest.mark.parametrize(
    ("sent", "ended"),
    [
        (["application_1_2", "application_1_3"], ("application_1_2", "application_1_3")),
        (["../x", 7, None], ()),
        ("application_1_2", ()),
        (["application_1_2"] * 1000, ("application_1_2",)),
    ],
)
def test_what_has_ended_are_ids_of_applications(sent, ended):
    assert parse_response({**GOOD, "ended_applications": sent}, "w2").ended == ended
