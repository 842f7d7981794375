"""A start by keytab: what it refuses, what it uploads, and to whom."""

import os

import pytest
import yaml
from click.testing import CliRunner

from tests.fixtures.kdc import REALM
from tests.unit.launch.test_staging import APPLICATION, config, content
from tests.unit.launch.yarn import rm_client
from yarn_accel.adapters.hadoop_rpc import Kerberos, KerberosError
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch.application_cli import start
from yarn_accel.launch.config import LaunchConfig, with_kerberos
from yarn_accel.launch.keytab import log_in
from yarn_accel.launch.staging import check_settings, stage, stage_dry_run
from yarn_accel.master.config import load_config
from yarn_accel.storage import Store

SECURE = {
    "hadoop.security.authentication": "kerberos",
    "hadoop.rpc.protection": "privacy",
    "dfs.data.transfer.protection": "privacy",
    "fs.defaultFS": "hdfs://nn:8020",
    "yarn.resourcemanager.principal": "rm/_HOST@R",
    "hadoop.security.credential.provider.path": "jceks://secret",
}


@pytest.fixture
def keytab(tmp_path):
    path = tmp_path / "service.keytab"
    path.write_bytes(b"the keys of a service")
    return path


@pytest.fixture
def secure(tmp_path):
    found = rm_client(tmp_path, **SECURE)
    object.__setattr__(found, "kerberos", Kerberos())
    return found


def by_keytab(tmp_path, keytab, **more):
    return config(tmp_path, kerberos={"principal": "alice@R", "keytab": str(keytab), **more})


def test_the_keytab_goes_to_the_master_alone_and_nobody_else_can_read_it(secure, keytab, tmp_path, packed):
    ours = by_keytab(tmp_path, keytab, hdfs_servers=["hdfs://nn2"])
    check_settings(secure, ours)
    staged = stage(secure, Store(), ours, packed, APPLICATION, {"nn2:8020": "10.0.0.2:8020"})
    having = [
        (role.name, each)
        for role in staged.plan.roles.values()
        for each in role.resources
        if content(each.uri).read_bytes() == keytab.read_bytes()
    ]
    ((role, resource),) = having
    assert (role, resource.name, resource.visibility) == ("master", "master.keytab", "APPLICATION")
    assert content(resource.uri).stat().st_mode & 0o777 == 0o400
    assert content(staged.folder_uri).stat().st_mode & 0o777 == 0o700
    (tmp_path / "master.json").write_text(staged.delivered["master.json"])
    master = load_config(tmp_path / "master.json")
    assert (master.principal, master.keytab) == ("alice@R", "master.keytab")
    assert master.hdfs_servers == ("hdfs://nn2",)
    assert master.hdfs_names == {"nn2:8020": "10.0.0.2:8020"}
    assert "fs.defaultFS" in master.hadoop
    assert not [key for key in master.hadoop if "credential" in key], "only what it needs"
    places = {name: plan.environment.get("ACCEL_TOKENS_LOCATION") for name, plan in staged.plan.roles.items()}
    assert places == {
        "master": None,
        "server": f"{staged.folder_uri}/tokens",
        "agent": f"{staged.folder_uri}/tokens",
    }


def test_a_keytab_that_lies_on_the_nodes_is_not_uploaded(secure, keytab, tmp_path, packed):
    ours = by_keytab(tmp_path, keytab, keytab_on_nodes="/etc/security/accel.keytab")
    staged = stage(secure, Store(), ours, packed, APPLICATION)
    assert not list(content(staged.folder_uri).glob("*keytab*"))
    assert '"keytab": "/etc/security/accel.keytab"' in staged.delivered["master.json"]
    names = {each.name for each in staged.plan.roles["master"].resources}
    dry = stage_dry_run(secure, by_keytab(tmp_path, keytab), packed)
    assert {each.name for each in dry.plan.roles["master"].resources} - names == {"master.keytab"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hadoop.rpc.protection", "authentication"),
        ("hadoop.rpc.protection", ""),
        ("hadoop.rpc.protection", "privacy,authentication"),
        ("dfs.data.transfer.protection", "integrity"),
        ("dfs.data.transfer.protection", ""),
    ],
)
def test_it_is_refused_where_others_could_read_it_on_its_way(keytab, tmp_path, key, value):
    client = rm_client(tmp_path, **{**SECURE, key: value})
    with pytest.raises(ConfigError, match=f"{key} is .*clear text") as caught:
        check_settings(client, by_keytab(tmp_path, keytab))
    assert "clear_text: true" in str(caught.value)
    check_settings(client, by_keytab(tmp_path, keytab, clear_text=True))
    check_settings(client, config(tmp_path))


def test_data_that_is_encrypted_otherwise_will_do(keytab, tmp_path):
    changes = {"dfs.data.transfer.protection": "", "dfs.encrypt.data.transfer": "true"}
    check_settings(rm_client(tmp_path, **{**SECURE, **changes}), by_keytab(tmp_path, keytab))


def test_a_keytab_is_of_no_use_without_kerberos(keytab, tmp_path):
    with pytest.raises(ConfigError, match="has no Kerberos"):
        check_settings(rm_client(tmp_path), by_keytab(tmp_path, keytab))


def test_a_keytab_that_cannot_be_read_ends_the_start(secure, tmp_path, packed):
    with pytest.raises(StartupError, match=r"keytab .*none: No such file"):
        stage(secure, Store(), by_keytab(tmp_path, tmp_path / "none"), packed, "x")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"principal": "alice"}, "principal and keytab go together"),
        ({"keytab": "x"}, "principal and keytab go together"),
        ({"keytab_on_nodes": "/x"}, "name the keytab of this machine"),
        ({"principal": "a", "keytab": "x", "keytab_on_nodes": "relative"}, "keytab_on_nodes"),
    ],
)
def test_half_of_a_login_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        with_kerberos(LaunchConfig.model_validate({}), given)


def test_the_command_line_says_more_than_the_file(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(
        yaml.safe_dump({"kerberos": {"principal": "file", "keytab": "/of/file", "clear_text": True}})
    )
    said = with_kerberos(LaunchConfig.model_validate(yaml.safe_load(path.read_text())), {"principal": "line"})
    assert (said.kerberos.principal, said.kerberos.keytab, said.kerberos.clear_text) == (
        "line",
        "/of/file",
        True,
    )
    done = CliRunner().invoke(start, ["--config", str(path), "--keytab", ""])
    assert isinstance(done.exception, KerberosError), done.output


def test_a_login_by_keytab_needs_no_kinit_and_leaves_no_file(keytabs, monkeypatch):
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nonexistent/cache")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "FILE:/nonexistent/keytab")
    settings = with_kerberos(
        LaunchConfig.model_validate({}), {"principal": "bob", "keytab": str(keytabs["alice"])}
    ).kerberos
    log_in(settings, os.environ)
    assert os.environ["KRB5CCNAME"].startswith("MEMORY:")
    assert Kerberos().ticket().principal == f"bob@{REALM}", "not the first one in the keytab"
    carol = settings.model_copy(update={"principal": "carol"})
    with pytest.raises(KerberosError, match="carol"):
        log_in(carol, os.environ)
