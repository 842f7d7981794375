"""The launcher in netns mode on a real cluster of two workers: look, enter, disturb, repair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from yarn_accel.errors import ClusterError, ConfigError
from yarn_accel.testbed import Cluster
from yarn_accel.testbed.health import get_json
from yarn_accel.testbed.netns import check_reach, namespaces
from yarn_accel.testbed.plan import DaemonRole, namespace_prefix
from yarn_accel.testbed.processes import snapshot

pytestmark = [pytest.mark.hadoop, pytest.mark.root]
Run = Callable[..., subprocess.CompletedProcess[str]]
REACH_MASTER = "import socket; socket.create_connection(('master', 8020), {}).close()"


def pids(cluster: Cluster) -> dict[tuple[str, str], int]:
    return {(daemon.node, daemon.role): daemon.pid for daemon in cluster.status().daemons}


def test_every_daemon_is_healthy_and_has_its_figures(cluster: Cluster) -> None:
    status = cluster.status()
    assert status.is_healthy
    assert [(daemon.node, daemon.role) for daemon in status.daemons] == [
        *(("master", role) for role in ("namenode", "resourcemanager", "historyserver")),
        *(("w1", role) for role in ("datanode", "nodemanager", "pipeline")),
        *(("w2", role) for role in ("datanode", "nodemanager")),
    ]
    for daemon in status.daemons:
        assert daemon.pid > 1
        assert 0 < daemon.pss_bytes <= daemon.rss_bytes <= daemon.peak_bytes
    assert status.rss_bytes == sum(daemon.rss_bytes for daemon in status.daemons)


def test_status_as_json_and_as_a_table(cluster: Cluster, command: Run) -> None:
    done = command("status", "it", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["is_healthy"]
    assert found["conf_dir"] == str(cluster.conf_dir)
    table = command("status", "it").stdout
    for daemon in found["daemons"]:
        assert str(daemon["pid"]) in table
        assert daemon["web"] in table


def test_racks_slots_and_attributes_reach_the_resourcemanager(cluster: Cluster) -> None:
    answer = get_json(f"http://{cluster.plan.master.address}:8088/ws/v1/cluster/nodes")
    nodes = {node["nodeHostName"]: node for node in answer["nodes"]["node"]}
    assert {name: node["rack"] for name, node in nodes.items()} == {"w1": "/rack1", "w2": "/rack2"}
    for name, node in nodes.items():
        amounts = node["totalResource"]["resourceInformations"]["resourceInformation"]
        assert [amount["value"] for amount in amounts if amount["name"] == "acct/slot"] == [2]
        attributes = {each["name"]: each["value"] for each in node["nodeAttributesInfo"]["nodeAttributeInfo"]}
        assert attributes == {"accel": str(name == "w1").lower(), "rack": node["rack"].strip("/")}


def test_exec_enters_the_node_and_hands_back_what_happened(cluster: Cluster, command: Run) -> None:
    script = "hostname; echo $HADOOP_CONF_DIR; cat; exit 7"
    done = command("exec", "-c", "it", "w2", "--", "sh", "-c", script, input="from outside\n")
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == ["w2", str(cluster.node_conf_dir), "from outside"]
    assert command("exec", "-c", "it", "w1", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    own = subprocess.run(
        cluster.exec_argv("w1", ["hostname", "-i"]), capture_output=True, text=True, check=True
    )
    assert own.stdout.strip() == cluster.plan.node("w1").address


def test_exec_explains_what_it_cannot_do(cluster: Cluster, command: Run) -> None:
    done = command("exec", "-c", "it", "w9", "ls")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the nodes are master, w1, w2" in done.stderr
    assert command("exec", "-c", "it", "w1", "no-such-program").returncode == 127


def test_up_on_a_healthy_cluster_says_so_and_touches_nothing(cluster: Cluster, command: Run) -> None:
    before = pids(cluster)
    done = command("up", "it")
    assert done.returncode == 0, done.stderr
    assert "up and healthy; nothing to do" in done.stderr
    assert done.stdout == f"export HADOOP_CONF_DIR={cluster.conf_dir}\n"
    assert pids(cluster) == before


def test_up_says_which_servers_it_stops_and_starts(cluster: Cluster, command: Run) -> None:
    done = command("up", "it", "--no-pipeline")
    assert "stopped pipeline on w1\n" in done.stderr
    assert "nothing to do" not in done.stderr
    assert "nothing to do" in command("up", "it", "--no-pipeline").stderr
    done = command("up", "it", "--pipeline")
    assert "starting pipeline on w1\n" in done.stderr
    assert cluster.status().is_healthy


def test_up_with_other_numbers_is_refused(cluster: Cluster, command: Run) -> None:
    done = command("up", "it", "--nodes", "3")
    assert done.returncode == 2
    assert "exists with nodes 2, not 3" in done.stderr


def test_killed_daemons_come_back_one_by_one_or_all_together(cluster: Cluster, command: Run) -> None:
    before = pids(cluster)
    assert command("kill", "-c", "it", "w2", "datanode").returncode == 0
    assert cluster.kill("w1", "pipeline") == before["w1", "pipeline"]
    status = command("status", "it", "--json")
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
    done = command("up", "it")
    assert done.returncode == 0, done.stderr
    assert "2 of 8 daemons do not run" in done.stderr
    assert cluster.status().is_healthy
    same = set(before) - {("w2", "datanode"), ("w1", "pipeline"), ("master", "resourcemanager")}
    assert {key: pids(cluster)[key] for key in same} == {key: before[key] for key in same}


@pytest.mark.slow
def test_start_names_the_daemon_that_is_waited_for_in_vain(cluster: Cluster, command: Run) -> None:
    cluster.kill("w2", "datanode")
    cluster.kill("master", "namenode")
    done = command("start", "-c", "it", "w2", "datanode")
    assert done.returncode == 1
    assert "datanode of node w2 runs, but is not healthy" in done.stderr
    assert "it waits for namenode on master, not running: `yarn-accel cluster up`" in done.stderr
    assert pids(cluster)["w2", "datanode"] > 0
    assert command("up", "it").returncode == 0
    assert cluster.status().is_healthy


def test_a_role_that_a_node_has_not_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="its daemons are datanode, nodemanager"):
        cluster.kill("w2", "pipeline")


def test_a_deleted_namespace_is_made_anew_with_its_daemons(cluster: Cluster) -> None:
    before = pids(cluster)
    node = cluster.plan.node("w2")
    subprocess.run(["ip", "netns", "delete", node.namespace], check=True)
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
    assert command("cut", "-c", "it", "w2").returncode == 0
    assert subprocess.run(reach_at_once, check=False, capture_output=True).returncode != 0
    cut = {daemon.role: daemon.health for daemon in cluster.status().daemons if daemon.node == "w2"}
    assert cut == {"datanode": "cut off", "nodemanager": "cut off"}
    with pytest.raises(ClusterError, match="packets from node w2 to node master"):
        check_reach(cluster.plan)
    assert command("heal", "-c", "it", "w2").returncode == 0
    assert subprocess.run(reach, check=False).returncode == 0
    check_reach(cluster.plan)


def test_up_heals_a_link(cluster: Cluster) -> None:
    cluster.cut("w1")
    lines: list[str] = []
    Cluster.up(cluster.plan.options, lines.append)
    assert "restored link of w1" in lines
    assert cluster.status().is_healthy


def disciplines(cluster: Cluster, name: str) -> list[str]:
    """What limits a node's link, inside and outside."""
    node = cluster.plan.node(name)
    inside = ["tc", "-n", node.namespace, "qdisc", "show", "dev", "eth0"]
    outside = ["tc", "qdisc", "show", "dev", node.interface]
    return [
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout for argv in (inside, outside)
    ]


def test_links_are_shaped_in_both_directions_and_set_free(cluster: Cluster, command: Run) -> None:
    done = command("up", "it", "--link", "1gbit")
    assert done.returncode == 0, done.stderr
    assert all("tbf" in text and "rate 1Gbit" in text for text in disciplines(cluster, "w1"))
    assert command("up", "it", "--link", "").returncode == 0
    assert not any("tbf" in text for text in disciplines(cluster, "w1"))


def test_one_link_is_slowed_and_set_free(cluster: Cluster, command: Run) -> None:
    assert command("slow", "-c", "it", "w1", "10mbit").returncode == 0
    assert all("tbf" in text and "rate 10Mbit" in text for text in disciplines(cluster, "w1"))
    assert not any("tbf" in text for text in disciplines(cluster, "w2"))
    assert command("slow", "-c", "it", "w1", "fast").returncode == 2
    assert command("slow", "-c", "it", "w1").returncode == 0
    assert not any("tbf" in text for text in disciplines(cluster, "w1"))


def test_delay_works_or_is_refused_in_one_line(cluster: Cluster, command: Run) -> None:
    probe = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    has_netem = subprocess.run(probe, check=False, capture_output=True).returncode == 0
    done = command("up", "it", "--delay", "1ms")
    if has_netem:
        assert done.returncode == 0, done.stderr
        assert command("up", "it", "--delay", "").returncode == 0
    else:
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert "--delay needs the kernel's netem" in done.stderr


def test_logs_of_a_daemon_and_of_all(cluster: Cluster, command: Run) -> None:
    one = command("logs", "-c", "it", "w1", "datanode", "-n", "3")
    assert one.returncode == 0
    assert len(one.stdout.splitlines()) == 3
    everything = command("logs", "-c", "it", "-n", "1").stdout
    for label in ("master/namenode: ", "w1/nodemanager: ", "w2/datanode: "):
        assert label in everything


@pytest.mark.slow
def test_two_launchers_of_one_cluster_and_two_clusters_side_by_side(
    cluster: Cluster, command: Run, trace: Callable[[str], set[str]], state_home: Path
) -> None:
    words = ["up", "second", "--nodes", "1", "--racks", "1", "--accel-nodes", "0"]
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
    assert "there is no cluster nobody (known: it)" in done.stderr
