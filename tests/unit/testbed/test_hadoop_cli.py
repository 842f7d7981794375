from pathlib import Path

from click.testing import CliRunner

from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.site import read_properties
from yarn_accel.testbed.hadoop_cli import group
from yarn_accel.testbed.settings import PLACEHOLDERS


def test_every_placeholder_is_listed():
    shown = CliRunner().invoke(group, ["placeholders"])
    assert shown.exit_code == 0
    assert [line.split(":")[0] for line in shown.output.splitlines()] == list(PLACEHOLDERS)
    assert "namenode_host: host of the NameNode" in shown.output
    assert "[required]" in shown.output


def test_a_site_renders_its_configuration(tmp_path: Path):
    required = [name for name, placeholder in PLACEHOLDERS.items() if placeholder.default is None]
    values = tmp_path / "site.yaml"
    values.write_text("".join(f"{name}: x-{name}\n" for name in required) + "replication: 5\n")
    done = CliRunner().invoke(group, ["render", str(values), str(tmp_path / "conf")])
    assert done.exit_code == 0, done.output
    assert read_properties(tmp_path / "conf" / "hdfs-site.xml")["dfs.replication"] == "5"


def test_wrong_values_are_named(tmp_path: Path):
    values = tmp_path / "site.yaml"
    for text in ("- a\n", "a: [\n", "nope: 1\n"):
        values.write_text(text)
        done = CliRunner().invoke(group, ["render", str(values), str(tmp_path / "conf")])
        assert isinstance(done.exception, ConfigError)
