"""The files that a cluster is configured by, and the templates they are rendered from."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.testbed.conftest import plan_of
from yarn_accel.client.binding import choose, parse_binding
from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.java import HadoopInstall
from yarn_accel.hadoop.site import SITE_KEYS, SiteSettings, read_properties, read_site
from yarn_accel.testbed import settings
from yarn_accel.testbed.plan import NetworkMode
from yarn_accel.testbed.settings import (
    ONE_MACHINE,
    PER_NODE,
    PLACEHOLDERS,
    render,
    render_node_resources,
    render_topology,
    task_values,
    templates_dir,
    write_settings,
)
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths

TEMPLATES = sorted(templates_dir().glob("*.xml"))
REQUIRED = {name: f"value-of-{name}" for name, p in PLACEHOLDERS.items() if p.default is None}
INSTALL = HadoopInstall(
    Path("/jdk/bin/java"), Path("/jars"), Path("/jars/class-path.jar"), Path("/jars/s.jar"), "3.5.0", 2, 9
)


def properties(path: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(path).getroot().iter("property"))


ALL = [(path.name, p) for path in TEMPLATES for p in properties(path)]


def test_there_are_the_templates_a_cluster_needs():
    assert {path.name for path in TEMPLATES} == {
        "capacity-scheduler.xml",
        "core-site.xml",
        "hdfs-site.xml",
        "mapred-site.xml",
        "node-resources.xml",
        "resource-types.xml",
        "yarn-site.xml",
    }


@pytest.mark.parametrize(("name", "element"), ALL, ids=[f"{n}:{p.findtext('name')}" for n, p in ALL])
def test_every_property_has_one_line_of_reason(name: str, element: ElementTree.Element):
    reason = (element.findtext("description") or "").strip()
    assert len(reason.split()) >= 3
    assert "\n" not in reason
    assert reason.endswith(".")
    assert [child.tag for child in element] == ["name", "value", "description"]


def test_no_property_is_set_twice():
    for path in TEMPLATES:
        names = [element.findtext("name") for element in properties(path)]
        assert len(names) == len(set(names))


def test_every_placeholder_is_known_and_every_known_one_is_used():
    used = {word for path in TEMPLATES for word in re.findall(r"@([a-z0-9_]+)@", path.read_text())} - {"name"}
    assert used - set(PLACEHOLDERS) == {"attribute_provider"}
    assert set(PLACEHOLDERS) <= used
    assert set(ONE_MACHINE) <= set(PLACEHOLDERS)
    assert set(PER_NODE) <= set(PLACEHOLDERS)


def test_every_property_of_every_template_is_rendered(tmp_path: Path):
    render({**{name: "x" for name in PLACEHOLDERS}}, tmp_path)
    for path in TEMPLATES:
        expected = {element.findtext("name") for element in properties(path)}
        assert set(read_properties(tmp_path / path.name)) == expected
        assert "@" not in "".join(read_properties(tmp_path / path.name).values())
        assert all(element.findtext("description") for element in properties(tmp_path / path.name))


def test_an_empty_value_leaves_its_property_out(tmp_path: Path):
    render(REQUIRED, tmp_path)
    yarn = read_properties(tmp_path / "yarn-site.xml")
    assert "yarn.nodemanager.hostname" not in yarn
    assert "yarn.nodemanager.node-attributes.provider" not in yarn
    render({**REQUIRED, "attribute_script": "/bin/attributes"}, tmp_path)
    yarn = read_properties(tmp_path / "yarn-site.xml")
    assert yarn["yarn.nodemanager.node-attributes.provider"] == "script"
    assert yarn["yarn.nodemanager.node-attributes.provider.script.path"] == "/bin/attributes"


def test_the_issue_s_demands_are_in_the_configuration(tmp_path: Path):
    render(REQUIRED, tmp_path)
    site = read_site(tmp_path)
    assert site["yarn.resourcemanager.scheduler.class"].endswith("CapacityScheduler")
    assert site["yarn.resourcemanager.recovery.enabled"] == "true"
    assert site["yarn.nodemanager.recovery.enabled"] == "true"
    assert site["yarn.log-aggregation-enable"] == "true"
    scheduler = read_properties(tmp_path / "capacity-scheduler.xml")
    assert scheduler["yarn.scheduler.capacity.resource-calculator"].endswith("DominantResourceCalculator")
    assert read_properties(tmp_path / "resource-types.xml") == {"yarn.resource-types": "acct/slot"}


def test_what_the_namenode_and_datanode_look_up_is_there_and_empty(tmp_path: Path):
    render(REQUIRED, tmp_path)
    for name in ("hdfs", "datanode", "secondary"):
        assert list((tmp_path / "webapps" / name).iterdir()) == []
    assert (tmp_path / "log4j.properties").read_text().startswith("#")
    assert not list(tmp_path.glob("*.tmp"))


def test_hadoops_own_variables_stay(tmp_path: Path):
    render({**REQUIRED, **PER_NODE}, tmp_path)
    site = read_site(tmp_path)
    assert site["yarn.nodemanager.address"] == "${accel.bind}:${accel.port.nm}"
    assert site["dfs.datanode.data.dir"] == "file://${accel.node.dir}/datanode"


def test_unknown_and_missing_values_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"unknown template value nn_port; known: .*namenode_port"):
        render({**REQUIRED, "nn_port": "1"}, tmp_path)
    with pytest.raises(ConfigError, match="template value namenode_host is missing"):
        render({name: value for name, value in REQUIRED.items() if name != "namenode_host"}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_placeholder_in_a_template_is_named(tmp_path: Path):
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "log4j.properties").write_text("")
    (folder / "core-site.xml").write_text(
        "<configuration><property><name>a</name><value>@nope@</value></property></configuration>"
    )
    with pytest.raises(ConfigError, match="unknown placeholder @nope@"):
        render(REQUIRED, tmp_path / "conf", templates=folder)


@given(value=st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="@${}")))
def test_any_value_survives_xml(tmp_path_factory: pytest.TempPathFactory, value: str):
    target = tmp_path_factory.mktemp("conf")
    render({**REQUIRED, "topology_file": f"x{value}x"}, target)
    assert read_properties(target / "core-site.xml")["net.topology.table.file.name"] == f"x{value}x".strip()


def test_node_resources_and_topology(tmp_path: Path):
    folder = render_node_resources(3, tmp_path / "w1")
    assert read_properties(folder / "node-resources.xml") == {"yarn.nodemanager.resource-type.acct/slot": "3"}
    table = render_topology({"10.0.0.1": "/rack1", "w1": "/rack1"}, tmp_path / "topology.table")
    assert table.read_text() == "10.0.0.1 /rack1\nw1 /rack1\n"


def test_tasks_start_with_the_archived_class_path():
    values = task_values(INSTALL, Path("/a.jsa"), "/conf", ["-Dx=y"])
    options = values["task_jvm_options"].split(" ")
    path = options[options.index("-cp") + 1].split(":")
    assert path[:3] == ["/jars/class-path.jar", "/conf", "."]
    assert "-XX:SharedArchiveFile=/a.jsa" in options
    assert "-Dx=y" in options
    assert values["task_class_path"] == "/jars/class-path.jar,/conf"
    assert "Shared" not in task_values(INSTALL, None, "/conf")["task_jvm_options"]


def test_properties_refer_to_each_other(tmp_path: Path):
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>a.dir</name><value>/x</value></property>"
        "<property><name>b</name><value>${a.dir}/${user.name}</value></property></configuration>"
    )
    assert read_site(tmp_path)["b"] == "/x/${user.name}"


def test_a_file_that_is_not_xml_is_named(tmp_path: Path):
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"yarn-site.xml cannot be read"):
        read_site(tmp_path)


def test_the_readme_names_every_key_of_a_site_and_every_template():
    text = (templates_dir() / "README.md").read_text()
    assert all(f"`{key}`" in text for key in SITE_KEYS)
    assert all(path.name in text for path in TEMPLATES)
    assert all(f"{name}: " in text for name in REQUIRED)


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


def test_hosts_hold_all_nodes_and_this_machine(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    lines = settings.hosts_text(plan).splitlines()
    assert lines[0] == "127.0.0.1 localhost"
    assert {"10.231.9.1 master", "10.231.9.2 w1", "10.231.9.254 laptop"} <= set(lines)
    monkeypatch.setattr("socket.gethostname", lambda: "w1")  # a machine that is called like a node
    assert settings.hosts_text(plan).count("w1") == 1
