"""The launcher on the real cluster of all tests: look, enter, disturb, repair.

Its nodes are network namespaces, with ``--cluster-mode docker`` containers.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.programs import ran
from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.daemons import get_json
from yarn_accel.testbed.host_nodes import check_reach, namespaces
from yarn_accel.testbed.plan import DaemonRole, NetworkMode, namespace_prefix
from yarn_accel.testbed.processes import snapshot

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
REACH_MASTER = "import socket; socket.create_connection(('master', 8020), {}).close()"


def deletion(cluster: Cluster) -> list[str]:
    """What takes a node away, before its name."""
    if cluster.plan.mode is NetworkMode.DOCKER:
        return ["docker", "rm", "--force"]
    return ["ip", "netns", "delete"]


def pids(cluster: Cluster) -> dict[tuple[str, str], int]:
    return {(daemon.node, daemon.role): daemon.pid for daemon in cluster.status().daemons}


def test_every_daemon_is_healthy_and_has_its_figures(cluster: Cluster) -> None:
    status = cluster.status()
    assert status.is_healthy
    assert [(daemon.node, daemon.role) for daemon in status.daemons] == [
        *(("master", role) for role in ("namenode", "resourcemanager", "historyserver")),
        *(("w1", role) for role in ("datanode", "nodemanager", "pipeline")),
        *(("w2", role) for role in ("datanode", "nodemanager")),
        *(("w3", role) for role in ("datanode", "nodemanager", "pipeline")),
        *(("w4", role) for role in ("datanode", "nodemanager")),
    ]
    for daemon in status.daemons:
        assert daemon.pid > 1
        assert 0 < daemon.pss_bytes <= daemon.rss_bytes <= daemon.peak_bytes
    assert status.rss_bytes == sum(daemon.rss_bytes for daemon in status.daemons)


def test_status_as_json_and_as_a_table(cluster: Cluster, command: Run) -> None:
    done = command("status", cluster.name, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["is_healthy"]
    assert found["conf_dir"] == str(cluster.conf_dir)
    table = command("status", cluster.name).stdout
    for daemon in found["daemons"]:
        assert str(daemon["pid"]) in table
        assert daemon["web"] in table


def test_racks_slots_and_attributes_reach_the_resourcemanager(cluster: Cluster) -> None:
    answer = get_json(f"http://{cluster.plan.master.address}:8088/ws/v1/cluster/nodes")
    nodes = {node["nodeHostName"]: node for node in answer["nodes"]["node"]}
    assert {name: node["rack"] for name, node in nodes.items()} == {
        **dict.fromkeys(("w1", "w2"), "/rack1"),
        **dict.fromkeys(("w3", "w4"), "/rack2"),
    }
    for name, node in nodes.items():
        amounts = node["totalResource"]["resourceInformations"]["resourceInformation"]
        assert [amount["value"] for amount in amounts if amount["name"] == "acct/slot"] == [2]
        attributes = {each["name"]: each["value"] for each in node["nodeAttributesInfo"]["nodeAttributeInfo"]}
        assert attributes == {"accel": str(name in {"w1", "w3"}).lower(), "rack": node["rack"].strip("/")}


def test_exec_enters_the_node_and_hands_back_what_happened(cluster: Cluster, command: Run) -> None:
    script = "hostname; echo $HADOOP_CONF_DIR; cat; exit 7"
    done = command("exec", "-c", cluster.name, "w2", "--", "sh", "-c", script, input="from outside\n")
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == ["w2", str(cluster.node_conf_dir), "from outside"]
    ended = command("exec", "-c", cluster.name, "w1", "sh", "-c", "kill -TERM $$")
    # Docker's command reports a signal as shells do.
    is_docker = cluster.plan.mode is NetworkMode.DOCKER
    assert ended.returncode == (128 + signal.SIGTERM if is_docker else -signal.SIGTERM)
    own = ran(cluster.exec_argv("w1", ["hostname", "-i"]), check=True)
    assert own.stdout.strip() == cluster.plan.node("w1").address


def test_exec_explains_what_it_cannot_do(cluster: Cluster, command: Run) -> None:
    done = command("exec", "-c", cluster.name, "w9", "ls")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the nodes are master, w1, w2, w3, w4" in done.stderr
    assert command("exec", "-c", cluster.name, "w1", "no-such-program").returncode == 127


def test_up_on_a_healthy_cluster_says_so_and_touches_nothing(cluster: Cluster, command: Run) -> None:
    before = pids(cluster)
    done = command("up", cluster.name)
    assert done.returncode == 0, done.stderr
    assert "up and healthy; nothing to do" in done.stderr
    assert done.stdout == f"export HADOOP_CONF_DIR={cluster.conf_dir}\n"
    assert pids(cluster) == before


def test_up_says_which_servers_it_stops_and_starts(cluster: Cluster, command: Run) -> None:
    done = command("up", cluster.name, "--no-pipeline")
    assert "stopped pipeline on w1, w3\n" in done.stderr
    assert "nothing to do" not in done.stderr
    assert "nothing to do" in command("up", cluster.name, "--no-pipeline").stderr
    done = command("up", cluster.name, "--pipeline")
    assert "starting pipeline on w1, w3\n" in done.stderr
    assert cluster.status().is_healthy


def test_up_with_other_numbers_is_refused(cluster: Cluster, command: Run) -> None:
    done = command("up", cluster.name, "--nodes", "3")
    assert done.returncode == 2
    assert "exists with nodes 4, not 3" in done.stderr


@pytest.mark.slow
def test_killed_daemons_come_back_one_by_one_or_all_together(cluster: Cluster, command: Run) -> None:
    before = pids(cluster)
    assert command("kill", "-c", cluster.name, "w2", "datanode").returncode == 0
    assert cluster.kill("w1", "pipeline") == before["w1", "pipeline"]
    status = command("status", cluster.name, "--json")
    assert status.returncode == 1
    stopped = {
        (d["node"], d["role"]) for d in json.loads(status.stdout)["daemons"] if d["health"] == "stopped"
    }
    assert stopped == {("w2", "datanode"), ("w1", "pipeline")}
    with pytest.raises(ClusterError, match="does not run"):
        cluster.kill("w2", "datanode")
    cluster.start("w2", "datanode")
    after_start = pids(cluster)
    assert after_start["w2", "datanode"] not in (0, before["w2", "datanode"])
    assert after_start["w1", "pipeline"] == 0
    cluster.kill("master", "resourcemanager")
    done = command("up", cluster.name)
    assert done.returncode == 0, done.stderr
    assert "2 of 13 daemons do not run" in done.stderr
    assert cluster.status().is_healthy
    same = set(before) - {("w2", "datanode"), ("w1", "pipeline"), ("master", "resourcemanager")}
    assert {key: pids(cluster)[key] for key in same} == {key: before[key] for key in same}


@pytest.mark.slow
def test_start_names_the_daemon_that_is_waited_for_in_vain(cluster: Cluster, command: Run) -> None:
    cluster.kill("w2", "datanode")
    cluster.kill("master", "namenode")
    done = command("start", "-c", cluster.name, "w2", "datanode")
    assert done.returncode == 1
    assert "datanode of node w2 runs, but is not healthy" in done.stderr
    assert "it waits for namenode on master, not running: `yarn-accel cluster up`" in done.stderr
    assert pids(cluster)["w2", "datanode"] > 0
    assert command("up", cluster.name).returncode == 0
    assert cluster.status().is_healthy


def test_a_role_that_a_node_has_not_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="its daemons are datanode, nodemanager"):
        cluster.kill("w2", "pipeline")


@pytest.mark.slow
def test_a_deleted_node_is_made_anew_with_its_daemons(cluster: Cluster) -> None:
    before = pids(cluster)
    node = cluster.plan.node("w2")
    subprocess.run([*deletion(cluster), node.namespace], check=True, capture_output=True)
    lines: list[str] = []
    Cluster.up(cluster.plan.options, lines.append)
    assert any(line.startswith("restored ") and node.namespace in line for line in lines)
    after = pids(cluster)
    assert cluster.status().is_healthy
    assert {key for key in before if before[key] != after[key]} == {("w2", "datanode"), ("w2", "nodemanager")}
    alive = {process.pid for process in snapshot()}
    assert not alive & {before["w2", role.value] for role in (DaemonRole.DATANODE, DaemonRole.NODEMANAGER)}


def test_cut_and_heal(cluster: Cluster, command: Run) -> None:
    reach = cluster.exec_argv("w2", ["python3", "-c", REACH_MASTER.format(30)])
    assert subprocess.run(reach, check=False).returncode == 0
    reach_at_once = cluster.exec_argv("w2", ["python3", "-c", REACH_MASTER.format(2)])
    assert command("cut", "-c", cluster.name, "w2").returncode == 0
    assert subprocess.run(reach_at_once, check=False, capture_output=True).returncode != 0
    cut = {daemon.role: daemon.health for daemon in cluster.status().daemons if daemon.node == "w2"}
    assert cut == {"datanode": "cut off", "nodemanager": "cut off"}
    if cluster.plan.mode is NetworkMode.NETNS:
        with pytest.raises(ClusterError, match="packets from node w2 to node master"):
            check_reach(cluster.plan)
    assert command("heal", "-c", cluster.name, "w2").returncode == 0
    assert subprocess.run(reach, check=False).returncode == 0
    assert all(daemon.health != "cut off" for daemon in cluster.status().daemons)


def test_pause_and_resume(cluster: Cluster, command: Run) -> None:
    assert command("pause", "-c", cluster.name, "w2").returncode == 0
    health = {daemon.role: daemon.health for daemon in cluster.status().daemons if daemon.node == "w2"}
    assert health == {"datanode": "paused", "nodemanager": "paused"}
    assert command("pause", "-c", cluster.name, "w2").returncode == 0, "it may be said twice"
    assert command("resume", "-c", cluster.name, "w2").returncode == 0
    assert command("up", cluster.name).returncode == 0
    assert cluster.status().is_healthy


def test_up_heals_a_link(cluster: Cluster) -> None:
    cluster.cut("w1")
    lines: list[str] = []
    Cluster.up(cluster.plan.options, lines.append)
    assert "restored link of w1" in lines
    assert cluster.status().is_healthy


def disciplines(cluster: Cluster, name: str) -> list[str]:
    """What limits a node's link, inside and outside."""
    node = cluster.plan.node(name)
    outbound = cluster.exec_argv(name, ["tc", "qdisc", "show", "dev", "eth0"])
    inbound = ["tc", "qdisc", "show", "dev", node.interface]
    if cluster.plan.mode is NetworkMode.DOCKER:
        inbound = cluster.exec_argv(name, ["sh", "-c", "tc qdisc show | grep 'dev ifb0' || :"])
    return [
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        for argv in (outbound, inbound)
    ]


def test_links_are_shaped_in_both_directions_and_set_free(cluster: Cluster, command: Run) -> None:
    done = command("up", cluster.name, "--link", "1gbit")
    assert done.returncode == 0, done.stderr
    assert all("tbf" in text and "rate 1Gbit" in text for text in disciplines(cluster, "w1"))
    assert command("up", cluster.name, "--link", "").returncode == 0
    assert not any("tbf" in text for text in disciplines(cluster, "w1"))


def test_one_link_is_slowed_and_set_free(cluster: Cluster, command: Run) -> None:
    assert command("slow", "-c", cluster.name, "w1", "10mbit").returncode == 0
    assert all("tbf" in text and "rate 10Mbit" in text for text in disciplines(cluster, "w1"))
    assert not any("tbf" in text for text in disciplines(cluster, "w2"))
    assert command("slow", "-c", cluster.name, "w1", "fast").returncode == 2
    assert command("slow", "-c", cluster.name, "w1").returncode == 0
    assert not any("tbf" in text for text in disciplines(cluster, "w1"))


def test_delay_works_or_is_refused_in_one_line(cluster: Cluster, command: Run) -> None:
    probe = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    has_netem = subprocess.run(probe, check=False, capture_output=True).returncode == 0
    done = command("up", cluster.name, "--delay", "1ms")
    if has_netem:
        assert done.returncode == 0, done.stderr
        assert command("up", cluster.name, "--delay", "").returncode == 0
    else:
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert "--delay needs the kernel's netem" in done.stderr


def test_logs_of_a_daemon_and_of_all(cluster: Cluster, command: Run) -> None:
    one = command("logs", "-c", cluster.name, "w1", "datanode", "-n", "3")
    assert one.returncode == 0
    assert len(one.stdout.splitlines()) == 3
    everything = command("logs", "-c", cluster.name, "-n", "1").stdout
    for label in ("master/namenode: ", "w1/nodemanager: ", "w2/datanode: "):
        assert label in everything


@pytest.mark.slow
def test_two_launchers_of_one_cluster_and_two_clusters_side_by_side(
    cluster: Cluster, command: Run, trace: Callable[[str], set[str]]
) -> None:
    mode = cluster.plan.mode.value
    words = ["up", "second", "--nodes", "1", "--racks", "1", "--accel-nodes", "0", "--mode", mode]
    words += ["--image", cluster.plan.options.image] if cluster.plan.options.image else []
    launchers = [
        subprocess.Popen(
            argv,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).resolve().parents[3],
        )
        for argv in [[sys.executable, "-m", "yarn_accel", "cluster", *words]] * 2
    ]
    said = [launcher.communicate(timeout=200)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    assert sum("another command is working on cluster second" in text for text in said) == 1
    assert sum("nothing to do" in text for text in said) == 1
    second = Cluster.open("second")
    assert second.status().is_healthy
    assert cluster.status().is_healthy
    assert second.plan.gateway != cluster.plan.gateway
    assert trace("second")
    if cluster.plan.mode is NetworkMode.NETNS:
        assert second.plan.node("w1").namespace in namespaces(namespace_prefix("second", second.plan.tag))
    done = command("down", "second")
    assert done.returncode == 0, done.stderr
    assert trace("second") == set()
    assert cluster.status().is_healthy


def test_commands_for_a_cluster_that_is_not_there(command: Run, cluster: Cluster) -> None:
    done = command("down", "nobody")
    assert (done.returncode, done.stderr) == (0, "there is no cluster nobody; nothing to do\n")
    done = command("status", "nobody")
    assert done.returncode == 1
    assert re.search(r"there is no cluster nobody \(known: .*\btest\b", done.stderr)
