"""Streaming jobs of two users share the GPUs of real nodes; mappers are killed and stopped, agents killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.yarn_site.site import ROOT
from yarn_accel.adapters.credentials import issue_token_file, read_master_secret
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop]

#: More than there are places on all nodes together, and containers for them.
N_TASKS = 8
#: Says what it was given, and holds it until it may end.
MAPPER = """
    import json, os, sys, time
    from yarn_accel.client import claim_device
    folder = sys.argv[1]
    attempt = os.environ["mapreduce_task_attempt_id"]
    with claim_device() as device:
        words = sys.stdin.read().split()
        device.computing()
        facts = [device.form, device.is_decided, device.reason, os.getpid(), os.environ["NM_HOST"]]
        with open(os.path.join(folder, attempt), "w") as file:
            json.dump(facts, file)
        while not os.path.exists(os.path.join(folder, "end")):
            time.sleep(0.1)
    for word in words:
        print(word.upper())
"""


class UserJob:
    """A job of one user, whose credential it has."""

    def __init__(self, site, user):
        self.site, self.user = site, user
        self.folder = site.folder / f"late-{user}"
        self.folder.mkdir()
        self.script = self.folder / "mapper.py"
        self.script.write_text(textwrap.dedent(MAPPER))
        secret = read_master_secret(site.cluster.master_secret_file)
        token = issue_token_file(self.folder / "token", secret, 3600.0, tenant=user)
        store = Store(site.cluster.conf_dir)
        lines = "".join(f"{user}{number}\n" for number in range(N_TASKS))
        store.write_atomic(f"hdfs:///late/{user}/in/words", [lines.encode()])
        self.result = self.folder / "result.json"
        properties = {
            "mapreduce.job.name": f"job of {user}",
            "mapreduce.job.reduces": "0",
            "mapreduce.map.speculative": "false",
            "mapreduce.input.lineinputformat.linespermap": "1",
            "mapreduce.map.env": f"ACCEL_AGENT={site.agent_socket('{{NM_HOST}}')}",
            "stream.map.input.ignoreKey": "true",
            "mapreduce.map.resource.acct/slot": "0",
        }
        words = ["streaming", "--credential", str(token), "--result", str(self.result)]
        words += [word for name, value in properties.items() for word in ("-D", f"{name}={value}")]
        words += ["-inputformat", "org.apache.hadoop.mapred.lib.NLineInputFormat"]
        words += ["-input", f"hdfs:///late/{user}/in", "-output", f"hdfs:///late/{user}/out"]
        # The launcher's own binding file is of its own pipeline servers, which do not run here.
        conf_dir = conf_without(site.cluster.conf_dir, self.folder / "conf", "binding_file")
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "yarn_accel", *words, "-mapper", f"{self.script} {self.folder}"],
                cwd=ROOT,
                env={**site.environ, "HADOOP_CONF_DIR": str(conf_dir), "TMPDIR": str(self.folder)},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def mappers(self):
        """Attempt -> form, whether an agent decided, reason, pid and node of those that were answered."""
        assert self.process.poll() is None, (self.folder / "log").read_text()
        found = {}
        for path in self.folder.glob("attempt_*"):
            text = path.read_text()
            if text.endswith("]"):
                found[path.name] = tuple(json.loads(text))
        return found

    def end(self):
        """Let its mappers end."""
        (self.folder / "end").touch()

    def counters(self):
        """When it is over, and all went well."""
        assert self.process.wait(300) == 0, (self.folder / "log").read_text()
        counters = json.loads(self.result.read_text())["counters"]["yarn-accel"]
        return counters

    def output(self):
        store = Store(self.site.cluster.conf_dir)
        parts = [uri for uri in store.list(f"hdfs:///late/{self.user}/out") if "/part-" in uri]
        return sorted(word for uri in parts for word in store.read_bytes(uri, 1 << 20).decode().split())


@pytest.fixture
def jobs(site):
    started = [UserJob(site, user) for user in ("alice", "bob")]
    yield started
    for each in started:
        each.end()
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(300)


def claims(site, host):
    """Those of a node, as its agent says; none while it has no agent."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(site.agent_socket(host))
            sock.sendall(b'{"v": 1, "want": "claims"}\n')
            with sock.makefile("rb") as file:
                found = json.loads(file.readline())["claims"]
    except (OSError, ValueError):
        return []
    return found


def crowded_node(site, jobs):
    """A node where one mapper computes in the place while another waits; the first one's attempt and pid.

    Its agent knows of a place that it gave long before the mapper, on a busy machine, has said its pid.
    """

    def found():
        pids = {attempt: facts[3] for job in jobs for attempt, facts in job.mappers().items()}
        for host in [*site.servers, *site.others]:
            claimed = claims(site, host)
            computing = [each["attempt"] for each in claimed if each["form"] and each["attempt"] in pids]
            if computing and not all(each["form"] for each in claimed):
                return host, computing[0], pids[computing[0]]
        return None

    return site.until("on some node one mapper waits for another", found)


def test_two_users_jobs_share_nodes_whoever_is_killed_or_stopped(site, jobs):
    site.until(
        "mappers of both users ask",
        lambda: {each["user"] for host in site.names for each in claims(site, host)} == {"alice", "bob"},
    )

    host, holder, pid = crowded_node(site, jobs)
    os.kill(pid, signal.SIGKILL)
    site.until("its place is another one's", lambda: _holders(site, host) - {holder})

    host, holder, pid = crowded_node(site, jobs)
    os.kill(pid, signal.SIGSTOP)
    site.until("the stopped one's place is another one's", lambda: _holders(site, host) - {holder})
    os.kill(pid, signal.SIGCONT)
    site.until("what it still uses is counted", lambda: holder in _holders(site, host))

    before = _holders(site, host)
    agent = site.container(host, "agent")
    site.kill(agent)
    site.until("YARN replaces the agent", lambda: site.container(host, "agent") not in ("", agent))
    site.until("the new agent knows who holds places", lambda: before <= _holders(site, host))

    for job in jobs:
        job.end()
    for job in jobs:
        counters = job.counters()
        assert job.output() == sorted(f"{job.user}{number}".upper() for number in range(N_TASKS))
        decided = counters.get("late_binding_gpu", 0) + counters.get("late_binding_cpu", 0)
        assert decided + counters.get("late_binding_undecided", 0) >= N_TASKS
    assert sum(job.counters().get("late_binding_lost", 0) for job in jobs) >= 1
    assert "GPU" in _explained(site, host)


def _holders(site, host):
    return {each["attempt"] for each in claims(site, host) if each["form"]}


def _explained(site, host):
    run_dir = str(Path(site.agent_socket(host)).parent)
    return site.run("node", "claims", "--node", host, "--run-dir", run_dir)
