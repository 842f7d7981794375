"""The master's settings, plan and credentials, and a dry run of them."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from tests.unit.master.fake_yarn import PLAN, FakeYarn, config_for
from yarn_accel.adapters.hadoop_rpc import Token, TokenFile, User, read_token_file, write_token_file
from yarn_accel.adapters.hadoop_rpc.records import LocalResourceType, LocalResourceVisibility, RetryPolicy
from yarn_accel.adapters.signed_http import sender_key
from yarn_accel.client.token_file import read_secrets
from yarn_accel.core.application import NodeSelector
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, StartupError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_entry import MASTER_ALIAS
from yarn_accel.launch.plan import make_plan
from yarn_accel.launch.uploads import FileResource
from yarn_accel.master.cli import group
from yarn_accel.master.config import MasterConfig, load_config, parse_config
from yarn_accel.master.credentials import AGENTS_ALIAS, NODE_KEY_ALIAS, SERVER_ALIAS, read_credentials
from yarn_accel.master.environment import load_plan, parse_plan, preview
from yarn_accel.node.config import KEY_ALIAS

SITE = {"rm_client": ["rm:8032"], "rm_scheduler": ["rm:8030"], "rm_admin": ["rm:8033"]}
CONTROL = b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"polcy": "paper"}, "polcy: unknown key; known: accelerator_nodes"),
        ({"policy": "best"}, "paper"),
        ({"policy": "paper", "policy_settings": {"cross_rack": "allow"}}, "cross_rack"),
        ({"timing": {"silence": 3}}, "silence_s"),
        ({"timing": {"silence_s": -1}}, "silence_s"),
        ({"timing": {"n_history": 500}}, "unknown key n_history"),
        ({"weights": {"devices": {"a*b": 2}}}, "weights"),
        ({"rm_client": ["rm"]}, "rm_client"),
        ({"rm_admin": []}, "rm_admin"),
        ({"heartbeat_interval_s": 0}, "heartbeat_interval_s"),
        ({"version": 2}, "version"),
    ],
)
def test_wrong_settings_are_named(values, words):
    with pytest.raises(ConfigError, match=words.replace("*", r"\*")):
        parse_config({**SITE, **values})


def test_settings_reach_the_core():
    config = parse_config({**SITE, "timing": {"silence_s": 9}, "slots": False, "policy": "weighted"})
    assert (config.core_settings.silence_s, config.core_settings.has_slots) == (9, False)
    assert [str(each) for each in config.addresses.admin] == ["rm:8033"]


def test_a_file_that_is_none_is_named(tmp_path):
    for content in ("[1]", "a: [", "policy: worst"):
        (tmp_path / "master.json").write_text(content)
        with pytest.raises(ConfigError, match=r"master\.json"):
            load_config(tmp_path / "master.json")
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none")


def test_settings_in_effect_are_shown(tmp_path):
    path = tmp_path / "master.json"
    path.write_text(json.dumps({**SITE, "policy": "container"}))
    shown = CliRunner().invoke(group, ["check-config", "--config", str(path)])
    assert shown.exit_code == 0, shown.output
    assert 'policy: "container"  # who is bound to whom' in shown.output


def test_without_a_file_all_settings_are_shown_with_their_defaults():
    shown = CliRunner().invoke(group, ["check-config"])
    assert shown.exit_code == 0, shown.output
    assert {line.split(":")[0] for line in shown.output.splitlines()} == MasterConfig.model_fields.keys()


def test_the_plan_that_launch_writes_is_read(tmp_path):
    archive = FileResource(f"accel-environment-{'0' * 32}.zip", "hdfs://nn:8020/e.zip", 10, 20)
    script = FileResource("accel-start.py", "hdfs://nn:8020/s.py", 11, 21)
    settings = FileResource("agent.yaml", "hdfs://nn:8020/a", 12, 22, "APPLICATION")
    config = LaunchConfig.model_validate({"server": {"gpus": 2}})
    written = make_plan(config, archive, script, {"agent": [settings]})
    (tmp_path / "plan.json").write_text(written.to_json())
    plan = load_plan(tmp_path / "plan.json")
    rows = {row.name: row for row in plan.roles}
    assert rows.keys() == plan.launches.keys() == {"server", "agent"}
    assert (rows["server"].where, rows["agent"].where) == (NodeSelector.ACCELERATOR, NodeSelector.EVERY)
    assert rows["server"].is_server
    assert not rows["agent"].is_server
    assert rows["server"].resource.on({})["yarn.io/gpu"] == 2
    assert rows["server"].resource.memory_mib == config.server_memory_mib
    assert rows["server"].resource.whole == (), "a number was asked for"
    every = parse_plan(make_plan(LaunchConfig.model_validate({}), archive, script).to_json())
    assert {row.name: row.resource.whole for row in every.roles} == {"server": ("yarn.io/gpu",), "agent": ()}
    assert plan.exit_reasons == written.exit_reasons
    launch = plan.launches["agent"].context(b"secrets", retries=3)
    assert launch.command == (written.roles["agent"].command,), "it is quoted already"
    files = {each.key: each.value for each in launch.files}
    assert files.keys() == {archive.name, script.name, settings.name}
    assert files["agent.yaml"].visibility is LocalResourceVisibility.APPLICATION
    assert files[archive.name].visibility is LocalResourceVisibility.PRIVATE
    assert {each.type for each in files.values()} == {LocalResourceType.FILE}
    assert launch.retry.policy is RetryPolicy.RETRY_ON_SPECIFIC_ERROR_CODES
    assert not {0, 112, 137, 143} & set(launch.retry.error_codes)
    assert plan.launches["agent"].context(b"", retries=0).retry is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"accelerator"', '"some"'),
        ('"memory_mib": 512', '"memory_mib": "much"'),
        ('"n_bytes": 5, ', ""),
        ('"PRIVATE"', '"SECRET"'),
        ("hdfs://nn:8020", ""),
        ('{"112"', '{"x"'),
        ('"server": {', '"other": {'),
        ('"priority": 20', '"priority": 10'),
        ('{"roles"', '["roles"'),
    ],
)
def test_a_damaged_plan_is_refused(old, new):
    assert old in PLAN
    parse_plan(PLAN)
    with pytest.raises(ConfigError):
        parse_plan(PLAN.replace(old, new))


def token_file(path, *, kind="YARN_AM_RM_TOKEN", control=CONTROL):
    tokens = {"rm": Token(b"i", b"p", kind, "")}
    secrets = {"yarn-accel.control": control, SERVER_ALIAS: b"pipeline"} if control else {}
    path.write_bytes(write_token_file(TokenFile(tokens, secrets)))
    return {"HADOOP_TOKEN_FILE_LOCATION": str(path)}


def test_secrets_go_where_they_belong(tmp_path):
    assert (NODE_KEY_ALIAS, SERVER_ALIAS) == (KEY_ALIAS, MASTER_ALIAS), "the aliases of the readers"
    credentials = read_credentials(token_file(tmp_path / "tokens"))
    assert read_secrets(credentials.of_container("server", "w1")) == {MASTER_ALIAS: b"pipeline"}
    keys = [read_secrets(credentials.of_container("agent", node)) for node in ("w1", "w2")]
    assert keys[0] == {KEY_ALIAS: credentials.key_of("agent:w1")}
    assert keys[0] != keys[1]
    assert credentials.identity("ann") == User("ann")
    assert "0123" not in repr(credentials)
    assert "pipeline" not in repr(credentials)


def test_containers_get_the_hdfs_tokens_and_agents_that_of_the_resource_manager(tmp_path):
    """YARN localizes a container's files with them; agents and workers look for the master."""
    environ = token_file(tmp_path / "tokens")
    files = read_token_file((tmp_path / "tokens").read_bytes())
    hdfs = Token(b"h", b"hush", "HDFS_DELEGATION_TOKEN", "10.0.0.1:8020")
    of_rm = Token(b"d", b"hush", "RM_DELEGATION_TOKEN", "10.0.0.1:8032")
    tokens = {**files.tokens, "10.0.0.1:8020": hdfs, "10.0.0.1:8032": of_rm}
    (tmp_path / "tokens").write_bytes(write_token_file(TokenFile(tokens, files.secrets)))
    credentials = read_credentials(environ)
    for role in ("server", "agent", "worker", "worker-large"):
        asking = {} if role == "server" else {"RM_DELEGATION_TOKEN": of_rm}
        given = read_token_file(credentials.of_container(role, "w1")).tokens
        assert given == {"10.0.0.1:8020": hdfs, **asking}
    assert credentials.identity("ann") == of_rm
    assert "hush" not in repr(credentials)


def test_agents_of_the_site_have_keys_of_the_sites_secret(tmp_path):
    token_file(tmp_path / "tokens")
    files = read_token_file((tmp_path / "tokens").read_bytes())
    secrets = {**files.secrets, AGENTS_ALIAS: b"s" * 32}
    (tmp_path / "tokens").write_bytes(write_token_file(TokenFile(files.tokens, secrets)))
    credentials = read_credentials({"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens")})
    assert credentials.key_of("agent:w1") == sender_key(b"s" * 32, "agent:w1")
    assert credentials.key_of("admin:ann") == sender_key(CONTROL, "admin:ann"), "who has it gives no orders"
    assert read_secrets(credentials.of_container("agent", "w1")) == {
        KEY_ALIAS: credentials.key_of("agent:w1")
    }
    assert "sssss" not in repr(credentials)


def test_without_its_secrets_no_master_starts(tmp_path):
    with pytest.raises(StartupError, match="HADOOP_TOKEN_FILE_LOCATION"):
        read_credentials({})
    with pytest.raises(StartupError, match="No such file"):
        read_credentials({"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "none")})
    with pytest.raises(StartupError, match=r"yarn-accel\.control"):
        read_credentials(token_file(tmp_path / "tokens", control=b""))
    with pytest.raises(AuthenticationError, match="YARN_AM_RM_TOKEN"):
        read_credentials(token_file(tmp_path / "tokens", kind="another"))
    (tmp_path / "tokens").write_bytes(b"HDTS?")
    with pytest.raises(AccelError):
        read_credentials({"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens")})


RACKS = {"a1": "/r1", "n1": "/r1", "n2": "/r1", "n3": "/r2"}


def written(yarn, folder, **settings):
    file = folder / "master.json"
    file.write_text(config_for(yarn, folder, **settings).model_dump_json())
    return file


async def test_every_container_and_binding_is_reported_and_none_is_made(tmp_path):
    async with FakeYarn(RACKS) as yarn:
        found = await preview(written(yarn, tmp_path))
    asked = [(each["node"], each["role"]) for each in found["containers"]]
    assert asked == [("a1", "agent"), ("a1", "server"), ("n1", "agent"), ("n2", "agent"), ("n3", "agent")]
    assert all(each["resource"]["memory-mb"] > 0 for each in found["containers"])
    assert found["bound"] == {"n1": "a1", "n2": "a1"}, "n3 has no accelerator node in its rack"
    assert not any(node.runs(role) for node in yarn.nodes.values() for role in ("serve", "agent"))
    assert not any(node.attributes for node in yarn.nodes.values())


async def test_many_nodes_take_several_steps(tmp_path):
    racks = {**{f"a{i}": "/r" for i in range(3)}, **{f"n{i}": "/r" for i in range(70)}}

    async with FakeYarn(racks) as yarn:
        found = await preview(written(yarn, tmp_path, policy="weighted"))
    assert (found["policy"], len(found["containers"]), len(found["bound"])) == ("weighted", 76, 70)


def test_the_command_prints_it_and_a_wrong_plan_is_named(tmp_path):
    async def act():
        async with FakeYarn(RACKS) as yarn:
            file = written(yarn, tmp_path)
            command = ["run", "--dry-run", "--config", str(file)]
            out = await asyncio.to_thread(lambda: CliRunner().invoke(group, command, catch_exceptions=False))
            (tmp_path / "plan.json").write_text("{}")
            with pytest.raises(ConfigError, match=r"plan\.json: plan: roles"):
                await preview(file)
            return out.output

    assert json.loads(asyncio.run(act()))["bound"] == {"n1": "a1", "n2": "a1"}
