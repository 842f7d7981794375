"""Pipeline servers and workers that hang without dying, on a real cluster; times are printed, none is judged.

A hung server is replaced, and runs again afterwards (SIGCONT) as far as it is still there.
"""

import os
import signal
import time
from collections import Counter

import pytest

from tests.fixtures.yarn_site.faults import send, server_processes
from tests.integration.master.conftest import struck
from yarn_accel.client.discovery import discover_servers

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]


def containers(site):
    return {host: site.until(host, lambda host=host: site.container(host, "server")) for host in site.servers}


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def assert_one_server_per_node(site):
    """As YARN's processes have it, not as the master does."""

    def counted():
        found = Counter(len(server_processes(site, each)[0]) for each in containers(site).values())
        return found == {1: len(site.servers)}

    site.until("one server runs on each node", counted)


@pytest.mark.parametrize("name", ["server stopped", "both stopped"])
def test_a_hung_server_is_replaced_and_records_are_exact(site, batch, undisturbed, name):
    before = containers(site)
    struck(site, batch, undisturbed, name)
    after = containers(site)
    assert sum(after[host] != before[host] for host in before) == 1, "the hung one is replaced, no other"
    assert_one_server_per_node(site)


def test_hung_workers_are_replaced_by_their_server(site, batch, undisturbed):
    struck(site, batch, undisturbed, "worker stopped")
    assert_one_server_per_node(site)


def test_all_servers_of_a_rack_hang_and_are_replaced(site, caller):
    before = containers(site)
    pids = [pid for each in before.values() for some in server_processes(site, each) for pid in some]
    send(pids, signal.SIGSTOP)
    site.until("no server serves", lambda: not any(site.serves(host) for host in site.servers))
    site.until("all are replaced", lambda: set(containers(site).values()).isdisjoint(before.values()))
    site.until("all as before", site.is_whole)
    send(pids, signal.SIGCONT)
    site.until("their processes ended", lambda: not any(map(is_running, pids)))
    site.until("the mapper has an answer", lambda: caller.after(time.time() - 1.0))
    assert_one_server_per_node(site)


def test_a_hung_server_that_yarn_cannot_stop_is_not_used_when_it_goes_on(site):
    host = site.servers[0]
    old = site.container(host, "server")
    pids, _ = server_processes(site, old)
    site.cluster.kill(site.names[host], "nodemanager", signal.SIGSTOP)
    try:
        send(pids, signal.SIGSTOP)
        site.until("it is ordered to stop", lambda: _phase(site, host, old) == "retiring")
        send(pids, signal.SIGCONT)
        seen = site.state()["nodes"][host]["heard"]["seq"]
        site.until("its agent looked again", lambda: site.state()["nodes"][host]["heard"]["seq"] >= seen + 3)
        assert not site.serves(host)
        found = discover_servers({"NM_HOST": host, "ACCEL_AGENT": site.agent_socket(host)}).endpoints()
        assert host not in [each.node for each in found]
    finally:
        site.cluster.kill(site.names[host], "nodemanager", signal.SIGCONT)
    site.until("it is replaced", lambda: site.container(host, "server") not in ("", old))
    site.until("all as before", site.is_whole)
    site.until("its process ended", lambda: not any(map(is_running, pids)))


def _phase(site, host, container):
    found = site.state()["nodes"][host]["places"]["server"]["containers"]
    return next((str(each["phase"]) for each in found if each["id"] == container), "")
