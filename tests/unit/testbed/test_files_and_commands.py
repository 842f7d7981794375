"""The files that a cluster is configured by, and the commands that start it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from yarn_accel.client.binding import choose, parse_binding
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.hadoop.java import HadoopInstall
from yarn_accel.hadoop.site import SiteSettings, read_properties, read_site
from yarn_accel.testbed import daemons, netns
from yarn_accel.testbed.allocation import allocate, ports_of
from yarn_accel.testbed.backend import Software
from yarn_accel.testbed.backends import open_backend
from yarn_accel.testbed.cluster_cli import group
from yarn_accel.testbed.links import shape_argvs
from yarn_accel.testbed.plan import ClusterPlan, DaemonRole, NetworkMode, UpOptions, make_plan
from yarn_accel.testbed.settings import write_settings
from yarn_accel.testbed.state import ClusterPaths, ClusterSpec, load


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return ClusterPaths.of("demo", tmp_path / "clusters")


@pytest.fixture
def software(tmp_path: Path) -> Software:
    lib = tmp_path / "lib"
    jar = lib / "class-path.jar"
    return Software(
        HadoopInstall(
            java=Path("/usr/lib/jvm/x/bin/java"),
            lib_dir=lib,
            class_path_jar=jar,
            streaming_jar=lib / "hadoop-streaming.jar",
            version="3.5.0",
            n_jars=1,
            n_bytes=1,
        ),
        archive=None,
    )


def plan_of(paths: ClusterPaths, mode: NetworkMode, **options: object) -> ClusterPlan:
    wanted = UpOptions(name="demo", **options)  # type: ignore[arg-type]
    return make_plan(wanted, mode, paths.scope, subnet=9, port_base=13000)


@pytest.mark.parametrize("mode", NetworkMode)
def test_clients_reach_everything_by_address(
    paths: ClusterPaths, software: Software, mode: NetworkMode
) -> None:
    plan = plan_of(paths, mode)
    write_settings(plan, paths, software.install, None)
    site = read_site(paths.client_conf_dir)
    address = plan.master.address
    assert site["fs.defaultFS"] == f"hdfs://{address}:{plan.ports.namenode}"
    assert site["yarn.resourcemanager.address"] == f"{address}:{plan.ports.rm}"
    assert site["mapreduce.jobhistory.address"] == f"{address}:{plan.ports.history}"
    assert read_site(paths.conf_dir)["fs.defaultFS"] == f"hdfs://{plan.master.host}:{plan.ports.namenode}"
    own = yaml.safe_load((paths.client_conf_dir / "yarn-accel-site.yaml").read_text())
    assert {Path(own[key]).name for key in ("binding_file", "master_secret_file", "client_hosts_file")} == {
        "binding.json",
        "master-secret",
        "hosts",
    }
    assert f"-Dyarn.accel.cluster=demo:{plan.tag}" in own["client_jvm_options"]
    assert not [option for option in own["client_jvm_options"] if "SharedArchiveFile" in option]
    write_settings(plan, paths, software.install, Path("/a.jsa"))
    assert (
        "-XX:SharedArchiveFile=/a.jsa"
        in SiteSettings.read({"HADOOP_CONF_DIR": str(paths.client_conf_dir)}).client_jvm_options
    )


@pytest.mark.parametrize("mode", NetworkMode)
def test_every_name_and_address_has_its_rack(
    paths: ClusterPaths, software: Software, mode: NetworkMode
) -> None:
    plan = plan_of(paths, mode)
    write_settings(plan, paths, software.install, None)
    table = dict(line.split() for line in (paths.root / "topology.table").read_text().splitlines())
    for node in plan.workers:
        assert {table[node.address], table[node.host], table[node.name]} == {node.rack}


def test_each_node_offers_its_slots(paths: ClusterPaths, software: Software) -> None:
    plan = plan_of(paths, NetworkMode.NETNS, slots=3)
    write_settings(plan, paths, software.install, None)
    for node in plan.workers:
        own = read_properties(paths.node_dir(node.name) / "conf" / "node-resources.xml")
        assert own["yarn.nodemanager.resource-type.acct/slot"] == "3"


def test_a_mapper_finds_its_server_in_the_binding_and_the_server_its_settings(
    paths: ClusterPaths, software: Software
) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    write_settings(plan, paths, software.install, None)
    binding = parse_binding(paths.binding_file.read_text())
    assert [server.name for server in choose(binding, "w2")] == ["w1", "w3"]
    assert [server.name for server in choose(binding, "w3")] == ["w3", "w1"]
    first = choose(binding, "w2")[0]
    own = yaml.safe_load(paths.pipeline_config("w1").read_text())
    assert (own["listen_host"], own["listen_port"], own["unix_path"]) == (
        first.host,
        first.port,
        first.unix_path,
    )
    assert own["master_secret_file"] == str(paths.master_secret_file)


@pytest.mark.parametrize("mode", NetworkMode)
def test_only_servers_whose_cache_outlives_them_measure_how_fast_they_are(
    paths: ClusterPaths, software: Software, mode: NetworkMode
) -> None:
    write_settings(plan_of(paths, mode), paths, software.install, None)
    own = yaml.safe_load(paths.pipeline_config("w1").read_text())
    assert own["calibrate"] is (mode is not NetworkMode.DOCKER)


def test_without_pipeline_servers_nobody_is_sent_to_one(paths: ClusterPaths, software: Software) -> None:
    write_settings(plan_of(paths, NetworkMode.NETNS, pipeline=False), paths, software.install, None)
    assert parse_binding(paths.binding_file.read_text()).servers == ()


def test_the_master_secret_is_made_once_and_for_the_owner(paths: ClusterPaths, software: Software) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    write_settings(plan, paths, software.install, None)
    first = paths.master_secret_file.read_text()
    write_settings(plan, paths, software.install, None)
    assert paths.master_secret_file.read_text() == first
    assert len(bytes.fromhex(first.strip())) == 32
    assert paths.master_secret_file.stat().st_mode & 0o777 == 0o600


def test_the_attribute_script_prints_its_nodes_attributes(paths: ClusterPaths, software: Software) -> None:
    write_settings(plan_of(paths, NetworkMode.NETNS), paths, software.install, None)
    script = paths.root / "node-attributes.sh"
    printed = {}
    for node in ("w1", "w2"):
        env = {"YARN_ACCEL_NODE": node, "PATH": "/usr/bin:/bin"}
        printed[node] = subprocess.run([script], env=env, capture_output=True, text=True, check=True).stdout
    assert printed["w1"] == "NODE_ATTRIBUTE:accel,STRING,true\nNODE_ATTRIBUTE:rack,STRING,rack1\n"
    assert "accel,STRING,false" in printed["w2"]


def test_loopback_daemons_listen_on_the_loopback_only_and_resolve_nothing(
    paths: ClusterPaths, software: Software
) -> None:
    plan = plan_of(paths, NetworkMode.LOOPBACK)
    argv = daemons.daemon_argv(plan, paths, plan.node("w2"), DaemonRole.DATANODE, software)
    assert "-Daccel.bind=127.0.0.12" in argv
    assert "-Daccel.bind.data=127.0.0.1" in argv
    assert f"-Djdk.net.hosts.file={paths.hosts_file}" in argv
    assert open_backend(plan, paths).exec_argv(plan.node("w2"), ["ls"]) == ["ls"]


def test_a_node_command_enters_both_namespaces_and_stays_one_process(paths: ClusterPaths) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    node = plan.node("w2")
    assert open_backend(plan, paths).exec_argv(node, ["ls", "-l"]) == [
        *("ip", "netns", "exec", node.namespace),
        *("nsenter", f"--uts={paths.uts_file('w2')}", "--", "ls", "-l"),
    ]


def test_a_worker_reads_its_own_folder_first(paths: ClusterPaths, software: Software) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    argv = daemons.daemon_argv(plan, paths, plan.node("w1"), DaemonRole.NODEMANAGER, software)
    entries = argv[argv.index("-cp") + 1].split(":")
    own, shared = str(paths.node_dir("w1") / "conf"), str(paths.conf_dir)
    assert entries[0] == str(software.install.class_path_jar)
    assert entries.index(own) < entries.index(shared)
    assert "-Xmx256m" in argv
    assert daemons.signature(paths, plan.node("w1"), DaemonRole.NODEMANAGER) in argv


def test_the_callers_hadoop_does_not_leak_into_a_node(paths: ClusterPaths) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    caller = {
        "HADOOP_HOME": "/opt/h",
        "HADOOP_OPTS": "-Dx",
        "YARN_CONF_DIR": "/etc",
        "JAVA_HOME": "/j",
        "LANG": "C",
    }
    environ = daemons.node_environ(paths, plan.node("w1"), None, caller)
    assert environ["HADOOP_CONF_DIR"] == str(paths.conf_dir)
    assert environ["YARN_ACCEL_CLUSTER"] == f"demo:{plan.tag}"
    assert (environ["JAVA_HOME"], environ["LANG"]) == ("/j", "C")
    assert not {"HADOOP_HOME", "HADOOP_OPTS", "YARN_CONF_DIR"} & set(environ)


def test_the_last_error_of_a_log_is_what_a_failure_shows(tmp_path: Path) -> None:
    log = tmp_path / "datanode.log"
    assert daemons.describe_log(log).endswith("it is empty")
    log.write_text("10:00 INFO a: fine\n")
    assert daemons.describe_log(log).endswith("10:00 INFO a: fine")
    log.write_text("10:00 ERROR a: first\n10:01 FATAL b: second\n10:02 INFO c: SHUTDOWN_MSG\n")
    assert daemons.describe_log(log) == f"see {log}: 10:01 FATAL b: second"
    assert daemons.tail(log, 1) == ["10:02 INFO c: SHUTDOWN_MSG"]
    assert daemons.tail(log, 0) == []
    trace = "java.io.IOException: no\n\tat a.B.c\nCaused by: java.net.BindException: in use\n\tat d.E\n"
    log.write_text(f"10:00 ERROR a: failed\n{trace}10:01 WARN b: other\nx.OtherException: later\n")
    assert daemons.describe_log(log).endswith("ERROR a: failed: Caused by: java.net.BindException: in use")


def test_hosts_hold_all_nodes_and_this_machine(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    lines = netns.hosts_text(plan).splitlines()
    assert lines[0] == "127.0.0.1 localhost"
    assert {"10.231.9.1 master", "10.231.9.2 w1", "10.231.9.254 laptop"} <= set(lines)
    monkeypatch.setattr("socket.gethostname", lambda: "w1")  # a machine that is called like a node
    assert netns.hosts_text(plan).count("w1") == 1


def test_links_are_shaped_by_rate_behind_delay() -> None:
    (rate,) = shape_argvs("eth0", "1gbit", "", "ns")
    assert rate[:8] == ["tc", "-n", "ns", "qdisc", "replace", "dev", "eth0", "root"]
    assert rate[rate.index("rate") + 1] == "1gbit"
    assert int(rate[rate.index("burst") + 1]) >= 256 * 1024
    delay, behind = shape_argvs("eth0", "1gbit", "2ms")
    assert "netem" in delay
    assert behind[behind.index("parent") + 1] == "1:1"
    assert shape_argvs("eth0", "", "") == []


def test_mount_points_are_listed_below_a_directory_only() -> None:
    assert Path("/proc") in netns.mount_points(Path("/proc"))
    assert Path("/proc") not in netns.mount_points(Path("/pro"))


def test_a_new_loopback_cluster_gets_ports_that_another_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with contextlib.ExitStack() as held:
        intents = [
            allocate(
                ClusterPaths.of(name), None, UpOptions(name, mode="loopback"), NetworkMode.LOOPBACK, held
            )
            for name in ("a", "b")
        ]
    assert abs(intents[0].port_base - intents[1].port_base) >= 42
    assert load(ClusterPaths.of("b")) == intents[1]
    wanted = ports_of(intents[0].plan(ClusterPaths.of("a")), intents[0].plan(ClusterPaths.of("a")).daemons())
    assert len({port for _, port in wanted}) == len(wanted)


def test_what_cannot_change_is_refused_and_what_can_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    paths = ClusterPaths.of("a")
    first = ClusterSpec(UpOptions(name="a"), NetworkMode.NETNS, 4, 0, 1.0)
    with pytest.raises(ConfigError, match=r"nodes 4, not 3.*cluster down a"):
        allocate(paths, first, UpOptions(name="a", nodes=3), NetworkMode.NETNS, contextlib.ExitStack())
    with pytest.raises(ConfigError, match="netns mode, not loopback"):
        allocate(
            paths, first, UpOptions(name="a", mode="loopback"), NetworkMode.LOOPBACK, contextlib.ExitStack()
        )
    changed = allocate(
        paths,
        first,
        UpOptions(name="a", link="1gbit", pipeline=False),
        NetworkMode.NETNS,
        contextlib.ExitStack(),
    )
    assert changed.subnet == 4
    assert json.loads(paths.state_file.read_text())["options"]["link"] == "1gbit"


def status_error(*words: str) -> str:
    """What ``cluster status`` says when it cannot open the cluster it takes to be meant."""
    error = CliRunner().invoke(group, ["status", *words]).exception
    assert isinstance(error, AccelError), error
    return str(error)


def test_without_a_name_the_only_cluster_is_meant(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    clusters = tmp_path / "cluster-accel" / "clusters"
    assert "default" in status_error()
    (clusters / "demo").mkdir(parents=True)
    assert "demo" in status_error()
    (clusters / "other").mkdir()
    assert "name one of demo, other" in status_error()
    assert "other" in status_error("other")
    (clusters / "default").mkdir()
    assert "default" in status_error()
    assert not CliRunner().invoke(group, ["down", "--all"]).exception
    assert not any(clusters.glob("*"))
