"""Faults on a real cluster, each with what is left of the bindings, and printed times; not judged by them.

One application lives through all of them, in this order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.master.conftest import SLOTS, Caller, Site
from yarn_accel.cluster.plan import Mode

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

N_MASTERS = 5
MAX_MASTER_MIB = 64


@pytest.fixture
def caller(site: Site) -> Iterator[Caller]:
    """A mapper on the first node without accelerator."""
    found = site.caller(site.others[0])
    try:
        site.until("a first answer", lambda: found.answers)
        yield found
    finally:
        found.close()


def facts(**seconds: float) -> None:
    print("\n" + "  ".join(f"{what} {value:.2f} s" for what, value in seconds.items()))


def test_the_master_is_small_and_says_who_serves_whom(site: Site) -> None:
    state = site.state()
    print(f"\nmaster: {state['service']['rss_bytes'] / 2**20:.1f} MiB")
    assert state["service"]["rss_bytes"] < MAX_MASTER_MIB << 20
    assert sorted(state["nodes"][host]["bound"] for host in site.others) == sorted(site.servers)
    site.until("attributes", lambda: all(site.attribute(host) for host in site.others))
    site.until("slots", lambda: all(_slots(site, host) != SLOTS for host in site.names))


def test_a_killed_server_costs_a_moment(site: Site, caller: Caller) -> None:
    host = site.state()["nodes"][site.others[0]]["bound"]
    other = next(each for each in site.servers if each != host)
    old = site.container(host, "acct")
    at = site.kill(old)
    answer = site.until("another server answers", lambda: caller.after(at, node=other), 0.01)
    published = site.until("it is bound there", lambda: _when(site.attribute(site.others[0]) == other), 0.01)
    served = site.until("the replacement serves", lambda: _when(_serves(site, host)), 0.01)
    facts(next_answer=answer["at"] - at, published=published - at, replaced=served - at)
    assert answer["failed"] >= 1
    assert site.container(host, "acct") != old
    site.until("both have a node again", site.is_whole)


def test_a_killed_agent_is_replaced(site: Site, caller: Caller) -> None:
    host = site.others[0]
    old = site.container(host, "agent")
    at = site.kill(old)
    site.until("another agent", lambda: site.container(host, "agent") not in ("", old))
    facts(replaced=time.time() - at)
    site.until("the mapper goes on", lambda: caller.after(time.time() - 0.1))
    assert caller.failures() == [], "the servers were not touched"


def test_masters_die_five_times_and_what_runs_is_adopted(site: Site, caller: Caller) -> None:
    roles = [(host, "acct") for host in site.servers] + [(host, "agent") for host in site.names]
    before = {role: site.container(*role) for role in roles}
    for _ in range(N_MASTERS):
        attempt = site.state()["attempt"]
        at = site.kill(what="master run")
        site.until("the next attempt", lambda attempt=attempt: site.state()["attempt"] > attempt)
        registered = time.time()
        site.until("it has bound all", site.is_whole)
        facts(answers=registered - at, bound=time.time() - at)
    assert {role: site.container(*role) for role in roles} == before
    assert caller.failures() == []
    print(f"{len(caller.answers)} answers meanwhile, none failed")


def test_a_killed_resource_manager_is_missed_and_found(site: Site, caller: Caller) -> None:
    before = {host: site.container(host, "acct") for host in site.servers}
    at = time.time()
    site.cluster.kill("master", "resourcemanager")
    site.cluster.start("master", "resourcemanager")
    site.until("the master answers, registered again", lambda: site.state().get("is_registered"))
    site.until("all nodes are back", lambda: len(site.nodes()) == len(site.names))
    facts(back=time.time() - at)
    assert {host: site.container(host, "acct") for host in site.servers} == before
    assert caller.failures() == []
    old = before[site.servers[0]]
    site.kill(old)
    site.until("it is replaced as before", lambda: site.container(site.servers[0], "acct") not in ("", old))
    site.until("all as before", site.is_whole)


def test_a_killed_node_manager_is_not_even_noticed(site: Site, caller: Caller) -> None:
    host = site.servers[0]
    before = site.container(host, "acct")
    at = time.time()
    site.cluster.kill(site.names[host], "nodemanager")
    site.cluster.start(site.names[host], "nodemanager")
    site.until("all nodes are there", lambda: len(site.nodes()) == len(site.names))
    facts(back=time.time() - at)
    site.until("slots are ours again", lambda: _slots(site, host) != SLOTS)
    assert site.container(host, "acct") == before
    assert caller.failures() == []


def test_a_node_that_is_cut_off_is_left_and_found_again(site: Site) -> None:
    if site.cluster.plan.mode is not Mode.NETNS:
        pytest.skip("nodes share one network in loopback mode: no link can be cut")
    bound = {host: node["bound"] for host, node in site.state()["nodes"].items() if node["bound"]}
    master = site.master_node()
    client, host = next((c, s) for c, s in bound.items() if s != master)
    other = next(each for each in site.servers if each != host)
    before = site.container(host, "acct")
    caller = site.caller(client)
    try:
        site.until("it calls the one that will be cut", lambda: caller.after(0.0, node=host))
        at = time.time()
        site.cluster.cut(site.names[host])
        answer = site.until("another server answers", lambda: caller.after(at, node=other), 0.01)
        published = site.until("it is bound there", lambda: _when(site.attribute(client) == other), 0.01)
        healed = time.time()
        site.cluster.heal(site.names[host])
        site.until("all as before", site.is_whole)
        facts(next_answer=answer["at"] - at, published=published - at, whole_after_heal=time.time() - healed)
        assert site.container(host, "acct") == before, "it was never lost"
    finally:
        site.cluster.heal(site.names[host])
        caller.close()


def test_a_drained_node_ends_what_it_has(site: Site, caller: Caller) -> None:
    host = site.state()["nodes"][site.others[0]]["bound"]
    other = next(each for each in site.servers if each != host)
    at = time.time()
    old = site.container(host, "acct")
    site.verb("drain", host)
    site.until("no server there", lambda: not site.processes(old))
    site.until("the mapper calls the other", lambda: caller.after(at, node=other))
    assert caller.failures() == [], "it had moved on before the server ended"
    attempt = site.state()["attempt"]
    site.kill(what="master run")
    site.until("the next attempt", lambda: site.state()["attempt"] > attempt)
    site.until("it knows of the drain", lambda: site.state()["nodes"].get(host, {}).get("is_drained"))
    site.verb("undrain", host)
    site.until("all as before", site.is_whole)


def test_an_admin_changes_memory_and_stop_restores_the_slots(site: Site) -> None:
    host = site.others[0]
    report = site.nodes()[host]
    size = type(report.capability)(report.capability.memory_mib + 256, 7, report.capability.amounts)
    site.ask(lambda manager: manager.update_node_resource(report.node, size))
    site.until("the change", lambda: site.nodes()[host].capability.vcores == 7)
    assert site.processes()
    site.verb("stop")
    site.until("no process of a container", lambda: not site.processes())
    after = site.nodes()
    assert {each.capability.other["acct/slot"] for each in after.values()} == {SLOTS}
    assert (after[host].capability.memory_mib, after[host].capability.vcores) == (size.memory_mib, 7)
    named = {each.key.name for node in after.values() for each in node.attributes}
    assert not named & {"accel-bind", "accel-slots", "accel-drained"}


def _slots(site: Site, host: str) -> Any:
    return site.nodes()[host].capability.other["acct/slot"]


def _serves(site: Site, host: str) -> bool:
    return bool(site.state()["nodes"].get(host, {}).get("is_serving"))


def _when(is_so: bool) -> float:
    return time.time() if is_so else 0.0
