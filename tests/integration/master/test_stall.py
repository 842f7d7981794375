"""The master stands still for twice as long as it lets a server be silent: nobody is moved or replaced."""

import signal
import time

import pytest

from yarn_accel.core.application import Settings

pytestmark = [pytest.mark.hadoop]

STALL_S = 2 * Settings().silence_s


def unserved(state):
    return [note for note in state["notes"] if note["what"] == "server serves no more"]


def stalled_s(state):
    """0 as well while the master does not answer."""
    found = state.get("service", {}).get("stalled_s", 0.0)
    return found


def test_a_master_that_stood_still_marks_nobody_as_lost(site):
    site.until("all serve", site.is_whole)
    roles = [(host, "server") for host in site.servers]
    roles += [(host, "agent") for host in (*site.servers, *site.others)]
    before, n_unserved = site.state(), len(unserved(site.state()))
    containers = {role: site.container(*role) for role in roles}
    bound = {host: site.attribute(host) for host in site.others}
    site.kill(what="master run", signum=signal.SIGSTOP)
    time.sleep(STALL_S)
    woke = site.kill(what="master run", signum=signal.SIGCONT)
    site.until("it knows that it stood still", lambda: stalled_s(site.state()) > 0)
    # By then the agents are back, or would be marked as lost.
    excused_s = Settings().recall_s + Settings().silence_s + 1.0
    site.until("silence counts again", lambda: time.time() > woke + excused_s)
    after = site.state()
    assert after["attempt"] == before["attempt"]
    assert after["version"] == before["version"], "nothing was published anew"
    assert len(unserved(after)) == n_unserved
    assert {role: site.container(*role) for role in roles} == containers
    assert {host: site.attribute(host) for host in site.others} == bound
    assert site.is_whole()
