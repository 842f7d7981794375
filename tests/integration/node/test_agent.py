"""A real agent against a master that lives, dies, moves, lies and is silent."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.integration.node.conftest import ROOT, listening_port, resource_manager
from tests.integration.node.master import W9, Master
from yarn_accel.client.discovery import discover_servers


def names(found):
    return [endpoint.name for endpoint in found.endpoints()]


def test_heartbeats_go_out_and_servers_come_in(agents):
    with Master() as master:
        agent = agents(master_url=master.url).start()
        beat = master.wait_for(2)
        assert (beat["node"], beat["address"], beat["server"]) == ("w1", "127.0.0.1", None)
        assert "asked_age_s" not in beat, "no task has asked"
        assert beat["agent"]["rss_bytes"] > 1_000_000
        assert master.wait_for(1)["seq"] > beat["seq"]
        agent.until(lambda: names(agent.ask()) == ["w9"], "mappers are informed of w9")
        master.answer = {"servers": [{**W9, "name": "w3"}, W9], "bound": ["w9", "w3"], "slots": 5}
        agent.until(lambda: names(agent.ask()) == ["w9", "w3"], "mappers are informed of the change")
        agent.until(lambda: agent.state()["slots"] == 5, "the slots are in the state")
        assert master.wait_for(1)["asked_age_s"] >= 0
        assert agent.kill(signal.SIGTERM) == 0
        assert not (agent.run_dir / "agent.sock").exists()
        assert "stopped" in agent.log.read_text()


def test_a_second_agent_on_the_node_says_so_and_ends(agents):
    with Master() as master:
        agent = agents(master_url=master.url).start()
        completed = subprocess.run(
            [sys.executable, "-m", "yarn_accel.node", "agent", "--config", agent.config],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 3
        assert f"another agent (pid {agent.process.pid}) serves this node" in completed.stderr
        agent.until(lambda: names(agent.ask()) == ["w9"], "the first one goes on")


def test_killed_five_times_it_comes_back_with_what_it_knew(agents):
    with Master() as master:
        agent = agents(master_url=master.url).start()
        agent.until(lambda: names(agent.ask()) == ["w9"], "the first answer")
        epochs = {agent.state()["epoch"]}
        for _ in range(4):
            agent.kill()
            assert (agent.run_dir / "agent.sock").exists()
            assert json.loads((agent.run_dir / "state.json").read_text())["version"] == 1
            agent.start()
            master.wait_for(2)
            epochs.add(agent.state()["epoch"])
        assert len(epochs) == 5
    agent.kill()
    agent.start()
    found = agent.ask()
    assert names(found) == ["w9"]
    assert found.age_s > 0
    assert "Cannot connect" in found.reason


def test_the_master_goes_and_a_new_attempt_is_found_elsewhere(agents):
    def report(master):
        return {"app": {"state": "RUNNING", "amRPCAddress": f"127.0.0.1:{master.port}"}}

    with resource_manager() as (rm_url, rm):
        with Master(attempt=1) as first:
            rm["report"] = report(first)
            agent = agents(rm_urls=[rm_url], application_id="application_1_0001").start()
            first.wait_for(2)
            agent.until(lambda: names(agent.ask()) == ["w9"], "the first answer")
        rm["report"] = {"app": {"state": "RUNNING"}}
        agent.until(lambda: "without a master's address" in agent.state()["master"]["silence"], "it says so")
        assert names(agent.ask()) == ["w9"]
        with Master(attempt=2) as second:
            second.answer = {"servers": [{**W9, "name": "w4"}], "bound": ["w4"], "interval_s": 0.1}
            rm["report"] = report(second)
            second.wait_for(2)
            agent.until(lambda: names(agent.ask()) == ["w4"], "the second attempt is heard")
            heard = {"url": second.url, "silence": ""}
            agent.until(lambda: agent.state()["master"] == heard, "the state says so")
            with Master(attempt=1) as zombie:
                zombie.answer = {"servers": [{**W9, "name": "old"}], "bound": ["old"], "interval_s": 0.1}
                rm["report"] = report(zombie)
                second.mode = "garbage"
                zombie.wait_for(2)
                over = "attempt 1, which is over"
                agent.until(lambda: over in agent.state()["master"]["silence"], "it is not believed")
                assert names(agent.ask()) == ["w4"]


@pytest.mark.parametrize(
    ("mode", "reported"),
    [
        ("silent", "no answer within 0.5 s"),
        ("garbage", "unsigned: <html>login please</html>"),
        ("unsigned", "answers 200, unsigned"),
        ("replay", "not signed by the master, or belongs to another request"),
        ("huge", "sent more than"),
        ("refuse", "who are you?"),
    ],
)
def test_whatever_the_master_does_costs_nothing_but_age(agents, mode, reported):
    with Master() as master:
        timing = {"timeout_s": 0.5} if mode == "silent" else {}
        agent = agents(master_url=master.url, **timing).start()
        agent.until(lambda: names(agent.ask()) == ["w9"], "a first good answer")
        master.mode = mode
        agent.until(lambda: reported in agent.state()["master"]["silence"], reported)
        before = agent.ask()
        agent.until(lambda: agent.ask().age_s > before.age_s, "the age grows")
        assert names(agent.ask()) == ["w9"]
        agent.until(lambda: reported in agent.ask().reason, "mappers get the reason")
        master.mode = "honest"
        agent.until(lambda: agent.ask().reason == "", "all is well again")


@pytest.mark.parametrize("answer", [{"servers": [W9], "bound": ["w8"]}, {"version": 7}])
def test_a_signed_lie_is_refused_as_well(agents, answer):
    with Master() as master:
        agent = agents(master_url=master.url).start()
        agent.until(lambda: names(agent.ask()) == ["w9"], "a first good answer")
        good, master.answer = master.answer, {**master.answer, **answer}
        agent.until(lambda: "the master's answer" in agent.state()["master"]["silence"], "it is refused")
        assert names(agent.ask()) == ["w9"]
        master.answer = good
        agent.until(lambda: agent.ask().reason == "", "all is well again")


def post(url, headers, body):
    request = urllib.request.Request(url + "/v1/heartbeat", body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_heartbeats_replayed_forged_or_late_are_not_heard(agents):
    with Master() as master:
        agent = agents(master_url=master.url).start()
        master.wait_for(3)
        agent.kill()
        taken = [
            (headers, body) for headers, body in master.raw if headers.get("X-Accel-Sender") == "agent:w1"
        ]
        for headers, body in taken:
            assert post(master.url, headers, body)[0] == 401
        headers, body = taken[-1]
        later = {**headers, "X-Accel-Time": str(int(time.time() * 1e6))}
        assert b"signature" in post(master.url, later, body)[1]
        assert post(master.url, {**headers, "X-Accel-Sender": "agent:w2"}, body)[0] == 401
        assert post(master.url, {}, body)[0] == 401
        # The last one may have been on its way when its agent was killed: it counts, but once.
        seqs = [beat["seq"] for _, beat in master.heard]
        assert len(seqs) == len(set(seqs))
    time.sleep(0.01)
    with Master(attempt=2) as second:
        assert b"older than this master" in post(second.url, headers, body)[1]
        assert second.heard == []


def test_an_agent_with_the_key_of_another_site_gets_nowhere(agents):
    with Master(secret=b"another secret altogether") as master:
        agent = agents(master_url=master.url).start()
        agent.until(lambda: "401" in agent.state()["master"]["silence"], "it is refused")
        assert master.heard == []
        found = agent.ask()
        assert names(found) == []
        assert "the signature is not one of agent:w1" in found.reason


def test_a_wrong_key_is_named_and_read_again_until_it_is_right(agents):
    with Master() as master:
        agent = agents(master_url=master.url)
        right = agent.key_file.read_text()
        agent.key_file.write_text("ab" * 32)
        agent.start()
        refused = f"the master refuses the key of w1, from key_file {agent.key_file}"
        agent.until(lambda: refused in agent.state()["master"]["silence"], "it is refused")
        assert "make-key --secret-file SECRET w1 FILE" in agent.ask().reason
        n_beats = agent.state()["seq"]
        agent.until(lambda: agent.state()["seq"] > n_beats + 2, "it goes on trying")
        assert agent.log.read_text().count(refused) == 1, "said once, not at each heartbeat"
        agent.key_file.write_text("nothing")
        agent.until(lambda: "cannot be read any more" in agent.state()["master"]["silence"], "it says so")
        agent.until(lambda: "not hexadecimal" in agent.state()["master"]["silence"], "and why")
        agent.key_file.write_text(right)
        agent.until(lambda: names(agent.ask()) == ["w9"], "the key is right")
        assert agent.state()["master"]["silence"] == ""
        reported = agent.log.read_text()
        assert "is away" not in reported
        assert "answers again" in reported


def test_a_crowd_of_callers_costs_no_heartbeat(agents):
    with Master() as master:
        agent = agents(master_url=master.url).start()
        agent.until(lambda: names(agent.ask()) == ["w9"], "the first answer")
        crowd = []
        try:
            for n in range(300):
                visitor = socket.socket(socket.AF_UNIX)
                visitor.setblocking(False)
                crowd.append(visitor)
                with contextlib.suppress(OSError):
                    visitor.connect(str(agent.run_dir / "agent.sock"))
                    visitor.send(b"x" * (n * 50))
            master.wait_for(10)
        finally:
            for visitor in crowd:
                visitor.close()
        agent.until(lambda: names(agent.ask()) == ["w9"], "mappers are answered again")


def test_without_any_master_the_node_serves_itself(agents):
    agent = agents().start()
    found = agent.ask()
    assert (found.source, names(found)) == ("agent", [])
    assert "no master is configured" in found.reason


def test_a_mapper_without_an_agent_asks_the_master(tmp_path):
    with Master() as master:
        environ = {"ACCEL_AGENT": str(tmp_path / "none"), "NM_HOST": "w1", "ACCEL_MASTER": master.url}
        found = discover_servers(environ)
    assert (found.source, names(found)) == ("master", ["w9"])


def test_metrics(agents):
    with Master() as master:
        agent = agents(master_url=master.url, http_port=0).start()
        master.wait_for(2)
        port = listening_port(agent.process.pid)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
            text = answer.read().decode()
    assert 'yarn_accel_node_heartbeats_total{outcome="ok"}' in text
    assert "yarn_accel_node_silent_masters 0.0" in text
