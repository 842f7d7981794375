"""The policy `container` on real servers: counts say where requests went, and that each was answered once.

What the agents and the master do between servers and mappers is done here by the functions they use: figures
are read off ``/stats.json``, measured, written as JSON, and parsed by the mapper's side.
"""

import collections
import contextlib
import dataclasses
import json
import time
import urllib.request

import pytest

from yarn_accel.client.binding import Binding
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.discovery import parse_servers
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.client.dispatch_state import ServersFound
from yarn_accel.node.heartbeat_response import HeartbeatResponse, local_response, parse_load
from yarn_accel.node.server_stats import LoadMeter, parse_stats

HOME = "w1"
POLICY = {"name": "container", "min_gain_s": 0.001, "min_gain_share": 0.1, "max_moves": 1}


class Site:
    """Servers of one rack and what is known of them, as fresh as a second of heartbeats would be."""

    def __init__(self, servers, every_s=0.3):
        self.servers = {server.endpoint.name: server for server in servers}
        self.policy = POLICY
        self.given = None
        self._meters = {name: LoadMeter() for name in self.servers}
        self._loads = {}
        self._every_s, self._until_s, self._seq = every_s, 0.0, 0

    def found(self, is_urgent=False):
        servers = tuple(dataclasses.replace(each.endpoint, node=name) for name, each in self.servers.items())
        binding = Binding(servers, dict.fromkeys([*self.servers, "m1"], "/r"), {"m1": (HOME,)})
        answer = HeartbeatResponse(binding, policy=self.policy, loads=self.loads())
        document = local_response(
            "m1", answer, age_s=0.5, reason="", own=None, is_own_down=False, stale_s=10.0
        )
        return parse_servers(json.dumps(document).encode(), "m1")

    def find(self, is_urgent):
        found = self.found(is_urgent)
        return ServersFound(found.endpoints(), found.routing_hints)

    def loads(self):
        """As reported, or as a test says (`given`)."""
        if self.given is not None:
            return self.given()
        if self.policy and time.monotonic() >= self._until_s:
            self._until_s, self._seq = time.monotonic() + self._every_s, self._seq + 1
            self._loads = {}
            for name in self.servers:
                with contextlib.suppress(OSError):  # killed by the test
                    figures = self._meters[name].measure(parse_stats(self.stats(name)))
                    self._loads[name] = parse_load(figures, self._seq)
        return self._loads

    def stats(self, name):
        port = json.loads(self.servers[name].state_file.read_text())["http_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats.json", timeout=300) as page:
            return page.read().decode()

    def dispatcher(self, credential, **options):
        return Dispatcher(self.found().endpoints(), credential, find_servers=self.find, **options)


@pytest.fixture
def site(spawn_server):
    """A function that starts one server per speed, each with one worker."""

    def make(*speeds):
        place = "tests.integration.pipeline.timed_operations:SPEED_"
        servers = [
            spawn_server(f"w{number}", extra_operations=[f"{place}{speed}"], http_port=0, devices=["cpu"])
            for number, speed in enumerate(speeds, 1)
        ]
        return Site([server.wait_ready() for server in servers])

    return make


def run(site, credential, n_calls, seconds, window=6):
    """Where every call was answered; and each was, once."""
    calls = [Call(f"{time.time()}/{number}", "timed", {"seconds": seconds}) for number in range(n_calls)]
    with site.dispatcher(credential) as dispatcher:
        answers = list(dispatcher.map(iter(calls), window=window))
        counts = dispatcher.counts
    assert sorted(call.key for call, _ in answers) == sorted(call.key for call in calls)
    assert all(isinstance(reply, Reply) for _, reply in answers), answers[:3]
    return collections.Counter(reply.server for _, reply in answers), counts


def longest(shares, speeds):
    """Device time of the server that ends last, in requests of speed 1."""
    return max(shares[f"w{number}"] / speed for number, speed in enumerate(speeds, 1))


def test_requests_spread_over_equal_servers_instead_of_waiting_at_home(site, credential):
    speeds = (1, 1, 1)
    rack = site(*speeds)
    shares, _ = run(rack, credential, 60, 0.03)
    rack.policy = {}
    at_home, counts = run(rack, credential, 60, 0.03)
    print(f"\n{dict(shares)} with container, {dict(at_home)} without")
    assert at_home == {HOME: 60}
    assert set(counts.values()) == {0}
    assert longest(shares, speeds) <= longest(at_home, speeds) / 2


@pytest.mark.slow
def test_faster_servers_get_more(site, credential):
    speeds = (1, 2, 4)
    rack = site(*speeds)
    shares, _ = run(rack, credential, 140, 0.06)
    print(f"\n{dict(shares)} of speeds 1, 2, 4")
    assert shares["w3"] > shares["w2"] > shares["w1"] > 0
    assert longest(shares, speeds) <= 140 / 7 * 2, "home alone: 140"


def test_what_waits_is_moved_once_its_cancellation_is_confirmed(site, credential):
    rack = site(1, 4)

    def n_at_home():
        return json.loads(rack.stats(HOME))["requests"]

    def loads():
        if n_at_home() < 4:
            return {HOME: parse_load({}, 1), "w2": parse_load({"accepts": False}, 1)}
        busy = {"queue_s": 6.0, "rates": {"timed": 0.67}}
        return {HOME: parse_load(busy, 2), "w2": parse_load({"rates": {"timed": 2.7}}, 2)}

    rack.given = loads
    shares, counts = run(rack, credential, 4, 1.5, window=4)
    assert shares[HOME] >= 1, "the first is being computed"
    assert shares["w2"] == counts["moved"] >= 2
    assert json.loads(rack.stats(HOME))["cancelled"] == counts["moved"]


def test_what_may_not_move_waits_at_home(site, credential):
    rack = site(1, 4)
    rack.policy = {**POLICY, "max_moves": 0}
    shares, counts = run(rack, credential, 4, 0.5, window=4)
    assert (shares, counts["moved"]) == ({HOME: 4}, 0), "nothing was known when they were sent"


def test_a_killed_server_costs_its_requests_another_sending(site, credential):
    rack = site(1, 1)
    calls = [Call(f"lost/{number}", "timed", {"seconds": 0.2}) for number in range(40)]
    outcomes = []
    process = rack.servers["w2"].process
    with rack.dispatcher(credential) as dispatcher:
        for call, outcome in dispatcher.map(iter(calls), window=6):
            assert isinstance(outcome, Reply), outcome
            outcomes.append((call.key, outcome.server))
            # Of two that are there its worker has not finished both when it is killed.
            is_due = len(outcomes) >= 15 and process.poll() is None
            if is_due and json.loads(rack.stats("w2"))["in_flight"] >= 2:
                process.kill()
                process.wait()
        counts = dispatcher.counts
    print(f"\n{counts}")
    assert sorted(key for key, _ in outcomes) == sorted(call.key for call in calls)
    assert counts["lost_servers"] == 1
    assert counts["resubmitted"] >= 1
    assert {server for _, server in outcomes[:15]} == {HOME, "w2"}
