"""Faults on a real cluster: what is left of bindings, containers and a job's output; times are printed.

One application lives through all of them, in this order; none is judged by its times.
"""

import time

import pytest

from tests.examples import ALL
from tests.fixtures.yarn_site.performing import why_not
from tests.integration.master.conftest import SLOTS, struck
from tests.integration.master.hadoop_settings import write

pytestmark = [pytest.mark.hadoop]

N_MASTERS = 5 if ALL else 2
#: Its container has 256 by default; the imports alone take 58.
MAX_MASTER_MIB = 96
#: A NodeManager that is killed or cut off is back before it is given up, on a busy machine too.
PATIENT = {"yarn.nm.liveness-monitor.expiry-interval-ms": "600000"}


def servers(site):
    """The container of each server; while the master does not answer, nobody can tell."""

    def container(host):
        return site.until(f"the server of {host}", lambda: site.container(host, "server"))

    return {host: container(host) for host in site.servers}


def test_the_master_is_small_and_says_who_serves_whom(site):
    state = site.state()
    assert state["service"]["rss_bytes"] < MAX_MASTER_MIB << 20
    assert sorted(state["nodes"][host]["bound"] for host in site.others) == sorted(site.servers)
    site.until("attributes", lambda: all(site.attribute(host) for host in site.others))
    site.until("slots", lambda: all(site.slots()[host] != SLOTS for host in (*site.servers, *site.others)))


def test_a_job_finds_the_servers_by_itself(site, batch, undisturbed):
    outcome = undisturbed.outcome
    assert len({row.key for row in outcome.results}) == len(outcome.results) == batch.n_records
    assert outcome.counters.get("cpu_fallback", 0) == 0
    assert undisturbed.factors.keys() == {row.key for row in outcome.results}


def test_a_server_is_killed(site, batch, undisturbed):
    before = servers(site)
    performed = struck(site, batch, undisturbed, "server")
    changed = {host for host, container in servers(site).items() if container != before[host]}
    assert len(changed) == 1, "only the killed server was replaced"
    assert performed.struck[0].n_failed >= 1, "it was in use"


@pytest.mark.slow
def test_a_mapper_is_killed(site, batch, undisturbed):
    performed = struck(site, batch, undisturbed, "mapper")
    assert performed.results[0].n_attempts > batch.n_tasks, "the task of the killed mapper was tried again"


def test_masters_die_again_and_again_and_what_runs_is_adopted(site, caller):
    roles = [(host, "server") for host in site.servers]
    roles += [(host, "agent") for host in (*site.servers, *site.others)]
    before = {role: site.container(*role) for role in roles}
    for _ in range(N_MASTERS):
        attempt = site.state()["attempt"]
        site.kill(what="master run")
        site.until("the next attempt", lambda attempt=attempt: site.state()["attempt"] > attempt)
        site.until("it has bound all", site.is_whole)
    assert {role: site.container(*role) for role in roles} == before
    assert caller.failures() == []


@pytest.mark.slow
def test_daemons_are_killed_and_what_runs_stays(site, batch, undisturbed):
    before = servers(site)
    write(site, PATIENT)
    struck(site, batch, undisturbed, "resourcemanager", "nodemanager")
    assert servers(site) == before
    old = before[site.servers[0]]
    site.kill(old)
    site.until("it is replaced as before", lambda: servers(site)[site.servers[0]] not in ("", old))
    site.until("all as before", site.is_whole)


@pytest.mark.slow
def test_a_slow_link_and_a_killed_data_node(site, batch, undisturbed):
    names = [name for name in ("slow", "datanode") if not why_not(site, name)]
    before = servers(site)
    struck(site, batch, undisturbed, *names)
    assert servers(site) == before
    if "slow" not in names:
        pytest.skip(why_not(site, "slow"))


@pytest.mark.slow
def test_a_master_and_an_agent_are_killed_and_a_node_is_cut_off(site, batch, undisturbed):
    names = [name for name in ("master", "agent", "cut") if not why_not(site, name)]
    before = servers(site)
    struck(site, batch, undisturbed, *names)
    assert servers(site) == before, "none was lost"
    if "cut" not in names:
        pytest.skip(why_not(site, "cut"))


def test_a_drained_node_ends_what_it_has(site, caller):
    host = str(site.until("it is bound", lambda: site.bound(site.others[0])))
    other = next(each for each in site.servers if each != host)
    at = time.time()
    old = site.container(host, "server")
    site.run("drain", host)
    site.until("no server there", lambda: not site.processes(old))
    site.until("the mapper calls the other", lambda: caller.after(at, node=other))
    assert caller.failures() == [], "it had moved on before the server ended"
    attempt = site.state()["attempt"]
    site.kill(what="master run")
    site.until("the next attempt", lambda: site.state()["attempt"] > attempt)
    site.until("it knows of the drain", lambda: site.state()["nodes"].get(host, {}).get("is_drained"))
    site.run("undrain", host)
    site.until("all as before", site.is_whole)


@pytest.mark.slow
def test_an_accelerator_node_joins_while_a_job_runs(site, batch, undisturbed):
    host = site.late[0]
    performed = struck(site, batch, undisturbed, "join")
    assert host in site.servers
    assert site.serves(host)
    (result,) = performed.results
    n_records = result.n_by_server.get(host, 0)
    assert 0 < n_records < batch.n_records, "the job began without it and used it"
