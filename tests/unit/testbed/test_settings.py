"""The files that a cluster is configured by, and the templates they are rendered from."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.testbed.conftest import plan_of
from yarn_accel.client.binding import choose, parse_binding
from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.java import MAIN_CLASSES, HadoopInstall
from yarn_accel.hadoop.site import SITE_KEYS, SiteSettings, read_properties, read_site
from yarn_accel.testbed import settings
from yarn_accel.testbed.plan import NetworkMode
from yarn_accel.testbed.processes import MARK_PROPERTY, mark_of
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

LAYERS = ("kerberos", "ha")
DEADLINE_S = 120.0
TEMPLATES = sorted(templates_dir().rglob("*.xml"))
REQUIRED = {name: f"value-of-{name}" for name, p in PLACEHOLDERS.items() if p.default is None}
INSTALL = HadoopInstall(
    Path("/jdk/bin/java"), Path("/jars"), Path("/jars/class-path.jar"), Path("/jars/s.jar"), "3.5.0", 2, 9
)


def properties(path: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(path).getroot().iter("property"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_property_is_set_once_and_has_one_line_of_reason(path: Path):
    for element in properties(path):
        reason = (element.findtext("description") or "").strip()
        assert re.fullmatch(r"\S+ \S+ .*\.", reason), element.findtext("name")
        assert [child.tag for child in element] == ["name", "value", "description"]
    names = [element.findtext("name") for element in properties(path)]
    assert len(names) == len(set(names))


def test_every_placeholder_is_known_and_every_known_one_is_used():
    used = {word for path in TEMPLATES for word in re.findall(r"@([a-z0-9_]+)@", path.read_text())} - {"name"}
    assert used - set(PLACEHOLDERS) == {"attribute_provider"}
    assert set(PLACEHOLDERS) <= used
    assert set(ONE_MACHINE) <= set(PLACEHOLDERS)
    assert set(PER_NODE) <= set(PLACEHOLDERS)


def test_every_property_of_every_template_is_rendered(tmp_path: Path):
    render({**{name: "x" for name in PLACEHOLDERS}}, tmp_path, layers=LAYERS)
    for path in TEMPLATES:
        parts = [each for each in TEMPLATES if each.name == path.name]
        expected = {element.findtext("name") for each in parts for element in properties(each)}
        assert set(read_properties(tmp_path / path.name)) == expected
        rendered = "".join(read_properties(tmp_path / path.name).values())
        assert not re.findall(r"@([a-z0-9_]+)@", rendered)
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
def test_clients_reach_everything_by_address_and_each_name_and_address_has_its_rack(
    paths: ClusterPaths, software: Software, mode: NetworkMode
) -> None:
    plan = plan_of(paths, mode, slots=3)
    write_settings(plan, paths, software.install, None)
    site = read_site(paths.client_conf_dir)
    address = plan.master.address
    assert site["fs.defaultFS"] == f"hdfs://{address}:{plan.ports.namenode}"
    assert site["yarn.resourcemanager.address"] == f"{address}:{plan.ports.rm}"
    assert site["mapreduce.jobhistory.address"] == f"{address}:{plan.ports.history}"
    assert read_site(paths.conf_dir)["fs.defaultFS"] == f"hdfs://{plan.master.host}:{plan.ports.namenode}"
    own = yaml.safe_load((paths.client_conf_dir / "yarn-accel-site.yaml").read_text())
    keys = ("binding_file", "master_secret_file", "client_hosts_file")
    assert [Path(own[key]).name for key in keys] == ["binding.json", "master-secret", "hosts"]
    assert f"-Dyarn.accel.cluster=demo:{plan.tag}" in own["client_jvm_options"]
    assert not [option for option in own["client_jvm_options"] if "SharedArchiveFile" in option]
    write_settings(plan, paths, software.install, Path("/a.jsa"))
    again = SiteSettings.read({"HADOOP_CONF_DIR": str(paths.client_conf_dir)})
    assert "-XX:SharedArchiveFile=/a.jsa" in again.client_jvm_options

    table = dict(line.split() for line in (paths.root / "topology.table").read_text().splitlines())
    for node in plan.workers:
        assert {table[node.address], table[node.host], table[node.name]} == {node.rack}
        resources = read_properties(paths.node_dir(node.name) / "conf" / "node-resources.xml")
        assert resources["yarn.nodemanager.resource-type.acct/slot"] == "3"
    # A server measures how fast it is where its cache outlives it.
    server = yaml.safe_load(paths.pipeline_config("w1").read_text())
    assert server["calibrate"] is (mode is not NetworkMode.DOCKER)


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
    listens = (own["listen_host"], own["listen_port"], own["unix_path"])
    assert listens == (first.host, first.port, first.unix_path)
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


def test_the_fencing_script_ends_the_namenode_of_its_host_alone(
    paths: ClusterPaths, software: Software
) -> None:
    write_settings(plan_of(paths, NetworkMode.NETNS, ha=True), paths, software.install, None)
    script = read_site(paths.conf_dir)["dfs.ha.fencing.methods"].removeprefix("shell(").removesuffix(")")
    mark, namenode = f"-D{MARK_PROPERTY}={mark_of(paths.name, paths.tag)}", MAIN_CLASSES["namenode"]
    words = [
        ["-Daccel.node=master", mark, namenode],
        ["-Daccel.node=master2", mark, namenode],
        ["-Daccel.node=master", f"{mark}x", namenode],
        ["-Daccel.node=master", mark, MAIN_CLASSES["zkfc"]],
    ]
    sleeping = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with contextlib.ExitStack() as opened:
        found = [
            opened.enter_context(
                subprocess.Popen([*sleeping, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for each in words
        ]
        for process in found:
            assert process.stdout is not None
            process.stdout.readline()
        found[0].send_signal(signal.SIGSTOP)
        environ = {"PATH": "/usr/bin:/bin", "target_host": "master"}
        subprocess.run([script], env=environ, check=True)
        assert found[0].wait(DEADLINE_S) == -signal.SIGKILL
        subprocess.run([script], env=environ, check=True)
        assert [process.poll() for process in found[1:]] == [None, None, None]


def test_hosts_hold_all_nodes_and_this_machine(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(paths, NetworkMode.NETNS)
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    lines = settings.hosts_text(plan).splitlines()
    assert lines[0] == "127.0.0.1 localhost"
    assert {"10.231.9.1 master", "10.231.9.2 w1", "10.231.9.254 laptop"} <= set(lines)
    monkeypatch.setattr("socket.gethostname", lambda: "w1")  # a machine that is called like a node
    assert settings.hosts_text(plan).count("w1") == 1
