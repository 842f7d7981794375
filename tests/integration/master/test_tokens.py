"""The master's tokens are renewed while it works: by the ResourceManager's clock, shortened to seconds.

YARN wants a key to live for more than three times the time after which a silent master, or node, is given up.
"""

import re

import pytest

from tests.fixtures.yarn_site import SiteOptions, site_up
from tests.integration.master.hadoop_settings import change, restart
from yarn_accel.errors import StartupError

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

N_ROLLS = 3
AM_EXPIRY_S, AM_ROLL_S = 6, 19
NM_EXPIRY_S, NM_ROLL_S = 9, 28
KEYS = {
    "yarn.am.liveness-monitor.expiry-interval-ms": str(1000 * AM_EXPIRY_S),
    "yarn.resourcemanager.am-rm-tokens.master-key-rolling-interval-secs": str(AM_ROLL_S),
    "yarn.nm.liveness-monitor.expiry-interval-ms": str(1000 * NM_EXPIRY_S),
    "yarn.resourcemanager.nm-tokens.master-key-rolling-interval-secs": str(NM_ROLL_S),
    "yarn.resourcemanager.container-tokens.master-key-rolling-interval-secs": str(NM_ROLL_S),
}
RENEWED = re.compile(r"a renewed YARN_AM_RM_TOKEN came")
ROLLED = re.compile(r"Rolling master-key for (nm|container)-tokens", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory, environment):
    options = SiteOptions("tokens", workers=2, accelerators=1, sections=environment)
    try:
        with site_up(options, tmp_path_factory.mktemp("tokens")) as found:
            found.start()
            # Only now: under these times a busy machine may lose every attempt before it has registered.
            change(found, KEYS)
            found.until("registered again", lambda: found.state().get("is_registered"))
            found.until("all as before", found.is_whole)
            yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")


def n_renewed(site):
    logs = site.cluster.conf_dir.parent.glob(f"nodes/*/nm-logs/{site.application}/*_000001/stderr")
    return sum(len(RENEWED.findall(log.read_text(errors="replace"))) for log in logs)


def failures(state):
    """Calls of the master that failed so far: to the ResourceManager and to NodeManagers."""
    return state["service"]["rm_failures"], state["service"]["nm_failures"]


def rolled(site):
    (log,) = site.cluster.log_files("master", "resourcemanager")
    return [each.lower() for each in ROLLED.findall(log.read_text(errors="replace"))]


def test_three_rolls_cost_no_call_and_no_container(site):
    (client,), (server,) = site.others, site.servers
    before = {(host, role): site.container(host, role) for host in site.names for role in ("server", "agent")}
    n_before = len(rolled(site))
    before_state = site.state()
    attempt, n_failed = before_state["attempt"], failures(before_state)
    with site.caller(client) as caller:
        site.until("a first answer", lambda: caller.answers)
        seen = n_renewed(site)
        for _ in range(N_ROLLS):
            site.until("a renewed token", lambda seen=seen: n_renewed(site) > seen)
            seen = n_renewed(site)
        state = site.state()
        assert caller.failures() == []
    assert failures(state) == n_failed, site.logs()
    assert state["attempt"] == attempt, site.logs()
    assert {key: site.container(*key) for key in before} == before
    rolls = rolled(site)[n_before:]
    assert min(rolls.count("nm"), rolls.count("container")) >= 1

    old = before[server, "server"]
    site.kill(old)
    site.until(
        "its replacement, by renewed tokens", lambda: site.container(server, "server") not in ("", old)
    )
    site.until("it serves", site.is_whole)
    assert failures(site.state()) == n_failed


def test_the_last_token_opens_the_next_connection(site):
    """An open connection outlives its key; only one that is made anew shows that the master kept up."""
    attempt, agent = site.state()["attempt"], site.container(site.others[0], "agent")
    restart(site)
    site.until("registered again", lambda: site.state().get("is_registered"))
    assert site.state()["attempt"] == attempt
    # Empty where the master cannot be asked just now; one that was forgotten comes back with another id.
    assert site.until("its agent is there", lambda: site.container(site.others[0], "agent")) == agent
    site.until("all as before", site.is_whole)
    site.stop()
