"""Heartbeats of agents: what they become, and what answers them."""

import pytest

from yarn_accel.client.binding import Endpoint
from yarn_accel.core.application import NodeAssignment
from yarn_accel.core.binding import DeviceWeights
from yarn_accel.errors import RejectedError
from yarn_accel.master.agents import MAX_SERVERS, load_of, parse_heartbeat, response_document, status_events
from yarn_accel.node.heartbeat_response import ServerLoad, parse_response

CONTAINER = "container_e01_1763700000000_0001_01_000007"
OURS = "application_1763700000000_0001"
ENDPOINT = {"name": "w1", "host": "10.0.0.1", "port": 7070, "unix_path": "/run/s", "node": "elsewhere"}
WEIGHTS = DeviceWeights.from_mapping({"default": 1, "devices": {"NVIDIA H200": 10, "w2": 3}})


def heartbeat(**values):
    return {"version": 1, "node": "w1", "devices": [], "server": None, **values}


def server(**values):
    return {
        "endpoint": ENDPOINT,
        "container": CONTAINER,
        "health": "ok",
        "workers": 2.0,
        "in_flight": 3.0,
        **values,
    }


def events(document, before=None, node="w1"):
    last = parse_heartbeat("agent:w1", heartbeat(server=before), OURS).server if before is not None else None
    parsed = parse_heartbeat(f"agent:{node}", document, OURS)
    return list(status_events(parsed, last, 5.0, WEIGHTS, mappers_per_worker=4))


@pytest.mark.parametrize(
    ("sender", "document"),
    [
        ("agent:w2", heartbeat()),
        ("control:w1", heartbeat()),
        ("agent:w1", None),
        ("agent:w1", []),
        ("agent:w1", heartbeat(version=2)),
        ("agent:w1", heartbeat(server={})),
        ("agent:w1", heartbeat(server=server(endpoint="x"))),
        ("agent:w1", heartbeat(server=server(endpoint={**ENDPOINT, "port": "7"}))),
    ],
)
def test_who_reports_for_another_or_makes_no_sense_is_refused(sender, document):
    with pytest.raises(RejectedError):
        parse_heartbeat(sender, document, OURS)


def test_the_applications_of_a_server_are_ids():
    named = server(applications=["application_1_2", "../x", 7, "application_1_2", "application_1_3"])
    found = parse_heartbeat("agent:w1", heartbeat(server=named), OURS)
    assert found.applications == ("application_1_2", "application_1_3")
    for other in (server(), server(applications="x"), server(applications=[[]])):
        assert parse_heartbeat("agent:w1", heartbeat(server=other), OURS).applications == ()


def test_a_server_is_that_of_the_node_that_signed():
    agent, heard = events(heartbeat(server=server()))
    assert (agent.node, agent.role) == ("w1", "agent")
    assert (heard.endpoint, heard.container) == (Endpoint("w1", "10.0.0.1", 7070, "/run/s", "w1"), CONTAINER)
    assert heard.is_healthy
    assert (heard.gauges.capacity, heard.gauges.n_open, heard.gauges.weight) == (8, 3, 1.0)


@pytest.mark.parametrize(
    ("container", "is_ours"),
    [
        ("container_1763700000000_0001_02_000003", True),
        ("container_e17_1763700000000_0001_01_000007", True),
        ("container_1763700000000_0002_01_000007", False),
        ("container_e01_1763700000009_0001_01_000007", False),
        ("no id of YARN's", True),
    ],
)
def test_a_server_that_another_application_left_behind_is_not_adopted(container, is_ours):
    found = events(heartbeat(server=server(container=container)))
    assert len(found) == 1 + is_ours


def test_weights_are_those_of_the_devices_else_of_the_node():
    devices = [{"name": "NVIDIA H200", "health": "ok"}, {"name": "NVIDIA H200", "health": "hot"}]
    assert events(heartbeat(server=server(), devices=devices))[1].gauges.weight == 20
    assert events(heartbeat(node="w2", server=server()), node="w2")[1].gauges.weight == 3


@pytest.mark.parametrize("health", ["starting", "draining", "unhealthy", "silent", "gone", "anything", None])
def test_only_a_well_server_serves(health):
    _, heard = events(heartbeat(server=server(health=health, problems=["no space"])))
    assert not heard.is_healthy
    assert heard.endpoint is None
    assert "no space" in heard.detail


def test_a_server_that_no_other_node_can_reach_does_not_serve():
    assert not events(heartbeat(server=server(is_local_only=True)))[1].is_healthy
    assert events(heartbeat(server=server(health="unwatched")))[1].is_healthy


def test_a_draining_server_still_says_what_is_open():
    nameless = {**ENDPOINT, "name": "s"}
    draining = server(endpoint=nameless, health="draining")
    assert events(heartbeat(server=draining), before=draining)[1].gauges.n_open == 3


@pytest.mark.parametrize(
    ("health", "detail", "is_hung"),
    [("silent", "it does not answer", False), ("hung", "it hangs and is replaced", True)],
)
def test_a_server_that_does_not_answer_serves_nobody(health, detail, is_hung):
    _, found = events(heartbeat(server=server(health=health)))
    assert (found.is_healthy, found.endpoint, found.is_gone) == (False, None, False)
    assert (found.detail, found.is_hung) == (detail, is_hung)


def test_a_server_that_ended_is_reported_once():
    (_, ended) = events(heartbeat(), before=server())
    assert (ended.container, ended.is_healthy) == (CONTAINER, False)
    assert len(events(heartbeat())) == 1


def test_the_dead_without_a_name_are_not_taken_for_their_replacements():
    gone = server(container="", health="gone")
    assert len(events(heartbeat(server=gone), before=server(container=""))) == 2
    assert len(events(heartbeat(server=gone), before=gone)) == 1
    named = server(health="gone")
    assert len(events(heartbeat(server=named), before=named)) == 2


@pytest.mark.parametrize(
    ("healths", "expected"),
    [
        ((), None),
        (("ok",), True),
        (("failed", "hot"), True),
        (("failed", "lost"), False),
        (("silent",), None),
        (("lost", "silent"), None),
    ],
)
def test_whether_a_device_works(healths, expected):
    devices = [{"name": "d", "health": health} for health in healths]
    assert parse_heartbeat("agent:w1", heartbeat(devices=devices), OURS).has_device is expected


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -1, "7", None, True, 1e300, [1]])
def test_figures_that_are_none_count_as_nothing(figure):
    _, heard = events(heartbeat(server=server(workers=figure, in_flight=figure)))
    assert (heard.gauges.capacity, heard.gauges.n_open) == (4, 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (0.25, 0.25), (-1, None), ("now", None), (True, None), (1e300, None)],
)
def test_when_a_task_last_asked_for_servers(value, expected):
    assert parse_heartbeat("agent:w1", heartbeat(asked_age_s=value), OURS).asked_age_s == expected


def test_requests_that_came_and_went_are_counted():
    _, heard = events(heartbeat(server=server(requests=17.0)))
    assert heard.gauges.n_taken == 17


def test_agents_read_what_they_are_answered():
    servers = tuple((f"a{i}", Endpoint(f"a{i}", "10.0.0.1", 7000 + i, "", f"a{i}")) for i in range(300))
    document = response_document(
        NodeAssignment(7, servers, ("a3", "a299"), 4),
        "w1",
        {"w1": "/r1", "a3": "/r1"}.get,
        interval_s=2.0,
        application="application_1_0001",
        attempt=3,
    )
    answer = parse_response(document, "w1")
    assert len(answer.binding.servers) == MAX_SERVERS
    assert answer.binding.bound["w1"] == ("a3",), "none that was left out"
    assert answer.binding.racks == {"w1": "/r1", "a3": "/r1"}
    assert (answer.slots, answer.interval_s, answer.attempt, answer.revision) == (4, 2.0, 3, 7)


def test_who_chooses_for_every_request_gets_how_loaded_servers_are():
    parsed = parse_heartbeat("agent:w2", {**heartbeat(node="w2", server=busy()), "seq": 41}, OURS)
    load = load_of(parsed, WEIGHTS)
    assert load == ServerLoad(41, 1.25, {"lu": 3.1}, 3.0, accepts=False), "its own seq and the admin's weight"
    servers = tuple((name, Endpoint(name, "10.0.0.1", 7000, "", name)) for name in ("w2", "w3"))

    def answer(**choice):
        known = NodeAssignment(1, servers, ("w2",), 4)
        return response_document(known, "w1", {}.get, interval_s=1.0, application=OURS, attempt=1, **choice)

    policy = {"name": "container", "max_moves": 1}
    read = parse_response(answer(policy=policy, loads={"w2": load, "w3": None, "w9": load}), "w1")
    assert (dict(read.policy), dict(read.loads)) == (policy, {"w2": load}), "of servers it may use"
    assert not {"policy", "loads"} & answer(loads={"w2": load}).keys()
    assert load_of(parse_heartbeat("agent:w1", heartbeat(), OURS), WEIGHTS) is None


def busy():
    """An agent may claim a weight or a seq of its server: nobody listens."""
    load = {"queue_s": 1.25, "rates": {"lu": 3.1, "qr": -1}, "weight": 1e9, "seq": 10**9, "accepts": True}
    return server(health="stuck", load=load)


def test_workers_that_stand_by_feed_nobody():
    _, heard = events(heartbeat(server=server(workers=4.0, computing_workers=3.0)))
    assert heard.gauges.capacity == 12
    _, heard = events(heartbeat(server=server(workers=4.0)))
    assert heard.gauges.capacity == 16, "an agent that does not tell them apart"


@pytest.mark.parametrize("load", [None, [], "x", {"queue_s": "1"}, {"queue_s": float("inf"), "rates": []}])
def test_a_load_that_makes_no_sense_is_none(load):
    parsed = parse_heartbeat("agent:w1", heartbeat(server=server(load=load)), OURS)
    assert (parsed.server.load.queue_s, dict(parsed.server.load.rates)) == (0.0, {})
