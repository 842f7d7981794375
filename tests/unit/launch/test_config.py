import pytest
import yaml
from click.testing import CliRunner

from yarn_accel.errors import ConfigError
from yarn_accel.launch.application_cli import launch_group
from yarn_accel.launch.config import LaunchConfig, load_launch_config
from yarn_accel.master.config import MasterConfig
from yarn_accel.node.config import AgentConfig
from yarn_accel.pipeline.config import PipelineConfig


def loaded(tmp_path, text):
    path = tmp_path / "launch.yaml"
    path.write_text(text)
    return load_launch_config(path)


def test_an_empty_file_means_the_defaults_and_one_that_is_not_there_is_named(tmp_path):
    assert loaded(tmp_path, "") == LaunchConfig.model_validate({})
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file"):
        load_launch_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "ap: {}",
            "ap: unknown key; known: agent, app, environment, kerberos, master, more_workers, pipeline",
        ),
        (
            "app: {quue: x}",
            r"app.quue: unknown key; known: attempt_failures_validity_interval_s, max_attempts, name",
        ),
        ("server: {gpu: 1}", r"server.gpu: unknown key; known: .*gpus.*worker_overhead_mib"),
        ("pipeline: {pool_byte: 1}", r"pipeline: pool_byte: unknown key; known: .*pool_bytes"),
        ("pipeline: {master_secret_file: x}", "containers get their secret through credentials"),
        ("server: {devices: some}", "server.devices"),
        ("server: {memory_mib: 64}", r"64 is less than pool_bytes.*\d{4}"),
        ("app: {queue: ''}", "app.queue"),
        ("agent: {enabled: false}", "agent.secret_file"),
        ("app: {priority: 99999999999}", "app.priority: must be at most 2147483647"),
        ("server: {gpus: yes}", 'server.gpus: must be a whole number or "auto", not true'),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        loaded(tmp_path, text)
    assert "launch.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ("", 9),
        ("server: {priority: 9}", 8),
        ("server: {priority: 9}\nworker: {priority: 8}", 7),
        ("worker: {priority: 9}", 8),
        ("server: {priority: 40}", 9),
        ("server: {priority: 0}", 1),
        ("server: {priority: 0}\nworker: {priority: 1}", 2),
        ("server: {priority: 9}\nagent: {priority: 12}", 12),
    ],
)
def test_agents_without_a_priority_are_served_before_servers(tmp_path, text, priority):
    assert loaded(tmp_path, text).agent.priority == priority


def test_two_roles_of_one_priority_are_refused_with_the_cure(tmp_path):
    with pytest.raises(ConfigError, match=r"server.priority and agent.*: both 9; .* give agent another"):
        loaded(tmp_path, "server: {priority: 9}\nagent: {priority: 9}")


def test_the_former_name_of_a_section_is_taken_with_a_warning(tmp_path, caplog):
    assert loaded(tmp_path, "acct: {vcores: 3}").server.vcores == 3
    assert "launch.yaml: `acct` is now called `server`" in caplog.text
    with pytest.raises(ConfigError, match="acct is the former name of server"):
        loaded(tmp_path, "acct: {}\nserver: {}")
    assert loaded(tmp_path, "pipeline: {max_lent_bytes: 7}").pipeline == {"max_shared_memory_bytes": 7}
    assert "launch.yaml: pipeline: `max_lent_bytes` is now called `max_shared_memory_bytes`" in caplog.text


@pytest.mark.parametrize(
    ("server", "memory_mib"),
    [
        ("buffers_counted: once, overhead_mib: 100, worker_overhead_mib: 10", 1024 + 1 + 100 + 4 * 10),
        ("overhead_mib: 100, worker_overhead_mib: 10", 4 * 1024 + 1 + 100 + 4 * 10),
        ("buffers_counted: once, memory_mib: 9000", 9000),
    ],
)
def test_an_accelerator_container_holds_its_buffers_and_its_processes(tmp_path, server, memory_mib):
    sizes = "pool_bytes: 1073741824, workers: 3, standby_workers: 1, reply_cache_bytes: 1048576"
    assert loaded(tmp_path, f"pipeline: {{{sizes}}}\nserver: {{{server}}}").server_memory_mib == memory_mib
    assert LaunchConfig.model_validate({}).server_memory_mib == 4096, "a node of 4 GiB takes the usual one"


def test_each_gpu_has_a_worker(tmp_path):
    one = loaded(tmp_path, "server: {gpus: 1, vcores: 1}").server_memory_mib
    four = loaded(tmp_path, "server: {gpus: 4, vcores: 1}").server_memory_mib
    assert four - one == 3 * (1024 + 256 + 256), "and each a standby"
    assert loaded(tmp_path, "server: {devices: '4', vcores: 1}").server_memory_mib == four


def test_check_config_prints_every_setting_in_a_form_that_can_be_read_back(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text("app: {queue: 'a: b # c', tags: [x, y]}\npipeline: {workers: 2}\n")
    result = CliRunner().invoke(launch_group, ["check-config", "--config", str(path)])
    assert result.exit_code == 0, result.output
    config = load_launch_config(path)
    assert LaunchConfig.model_validate(yaml.safe_load(result.output)) == config
    for name in ("app", "environment", "master", "server", "agent"):
        for key, field in type(getattr(config, name)).model_fields.items():
            assert field.description, key
            assert f"  {key}: " in result.output
    assert f"{config.server_memory_mib} MiB" in result.output


def test_check_config_prints_the_keys_of_the_masters_the_agents_and_the_servers_settings(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text("master: {settings: {policy: weighted}}\nagent: {settings: {interval_s: 2}}\n")
    reported = CliRunner().invoke(launch_group, ["check-config", "--config", str(path)]).output
    assert '#   policy: "weighted"  # who is bound to whom' in reported
    for model in (MasterConfig, AgentConfig, PipelineConfig):
        assert all(f"\n#   {key}:" in reported for key in model.model_fields)


@pytest.mark.parametrize(
    "text", ["master: {settings: {polic: x}}", "agent: {settings: {polic: x}}", "pipeline: {polic: x}"]
)
def test_check_config_finds_what_a_start_would_refuse(tmp_path, text):
    (tmp_path / "launch.yaml").write_text(text)
    result = CliRunner().invoke(launch_group, ["check-config", "--config", str(tmp_path / "launch.yaml")])
    assert isinstance(result.exception, ConfigError)
    assert "polic: unknown key; known: " in str(result.exception)


def test_a_container_grows_with_the_largest_request(tmp_path):
    usual = loaded(tmp_path, "")
    small = loaded(tmp_path, "pipeline: {pool_bytes: 134217728}")
    large = loaded(tmp_path, "pipeline: {max_request_bytes: 1073741824}")
    assert large.pipeline_settings.pool_bytes == 4 << 30
    assert small.server_memory_mib < usual.server_memory_mib < large.server_memory_mib
