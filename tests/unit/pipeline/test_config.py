"""One file, one frozen object; what is wrong is named with its key."""

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.pipeline.config import PipelineConfig, load_config, parse_config

TENANTS = "master_secret_file: x\ntenants:\n  alice: "


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "pipeline.yaml"
        path.write_text(text)
        return path

    return write


def test_defaults_are_those_of_the_class(write):
    config = load_config(write("master_secret_file: /etc/secret\n"))
    assert config == PipelineConfig(master_secret_file="/etc/secret")
    assert config.tenant("anybody").read_prefixes == ()
    assert config.n_workers >= 1


def test_every_key_is_described():
    for name, field in PipelineConfig.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("colour: red\nmaster_secret_file: x\n", r"colour: unknown key; known: accounting_uri, calibrate"),
        ("name: w1\n", "master_secret_file: missing"),
        ("master_secret_file: x\nlisten_port: -1\n", "listen_port"),
        (f"{TENANTS}{{read_prefixes: ['etc']}}\n", "neither / nor hdfs:// nor file:///"),
        (f"{TENANTS}{{read_prefixes: ['/data/../etc']}}\n", "absolute and without '..'"),
        ("master_secret_file: x\ndefault_fs: nn:8020\n", "default_fs"),
        (f"{TENANTS}{{write_prefixes: ['file://host/x']}}\n", "neither / nor hdfs:// nor file:///"),
        (f"{TENANTS}{{weight: 0}}\n", "greater than 0"),
        (
            "master_secret_file: x\npool_bytes: 1048576\nqueue_bytes: 2097152\n",
            "must not be larger than pool_bytes",
        ),
        ("master_secret_file: x\ntls_cert_file: x\n", "go together"),
        ("master_secret_file: x\ntls_client_ca_file: x\n", "needs tls_cert_file"),
        ("master_secret_file: x\nchecksums: [md5]\n", "checksums"),
        ("master_secret_file: x\nlisten_host: ''\n", "listen_host or unix_path"),
        (
            "master_secret_file: x\nqueue_bytes: 1048576\nmax_request_bytes: 2097152\n",
            "must not be larger than queue_bytes",
        ),
        ("- 1\n", "not a mapping"),
        ("a: [\n", "not YAML"),
    ],
)
def test_what_is_wrong_is_named(write, text, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_config(write(text))
    assert "pipeline.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tenant_has_its_own_rights_or_those_of_everybody_or_none(write):
    rights = "{read_prefixes: ['hdfs://nn/alice'], weight: 4}"
    config = load_config(write(f"{TENANTS}{rights}\n"))
    assert config.tenant("alice").read_prefixes == ("hdfs://nn/alice",)
    assert config.tenant("alice").write_prefixes == ()
    assert (config.tenant("alice").weight, config.tenant("bob").weight) == (4.0, 1.0)
    assert config.tenant("bob").read_prefixes == ()
    config = load_config(write("master_secret_file: x\ntenants:\n  '*': " + rights + "\n"))
    assert config.tenant("bob").read_prefixes == ("hdfs://nn/alice",)


def test_a_former_name_is_taken_with_a_warning(write, caplog):
    config = load_config(write("master_secret_file: x\nmax_lent_bytes: 7\n"))
    assert config.max_shared_memory_bytes == 7
    assert "`max_lent_bytes` is now called `max_shared_memory_bytes`" in caplog.text
    with pytest.raises(ConfigError, match="max_lent_bytes is the former name"):
        load_config(write("master_secret_file: x\nmax_lent_bytes: 7\nmax_shared_memory_bytes: 7\n"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        ("00" * 32, 0o644, "others may read it"),
        ("00" * 31, 0o600, "31 bytes"),
        ("not hex", 0o600, "not hexadecimal"),
    ],
)
def test_a_master_secret_that_protects_nothing_is_refused(tmp_path, content, mode, complaint):
    secret = tmp_path / "secret"
    secret.write_text(content)
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=complaint) as caught:
        PipelineConfig(master_secret_file=secret).master_secret()
    assert "0000" not in str(caught.value)


def test_a_master_secret_is_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32 + "\n")
    secret.chmod(0o600)
    assert PipelineConfig(master_secret_file=secret).master_secret() == b"\xab" * 32


@pytest.mark.parametrize(
    ("given", "pool", "queue", "request_mib"),
    [
        ({}, 1024, 512, 256),
        ({"max_request_bytes": 3072}, 12288, 6144, 3072),
        ({"max_request_bytes": 1}, 1024, 512, 1),
        ({"pool_bytes": 128}, 128, 64, 32),
        ({"pool_bytes": 8192}, 8192, 4096, 2048),
        ({"pool_bytes": 1}, 1, 1, 0.25),
        ({"pool_bytes": 512, "max_request_bytes": 400}, 512, 400, 400),
        ({"pool_bytes": 512, "queue_bytes": 100}, 512, 100, 100),
        ({"queue_bytes": 2048}, 2048, 2048, 256),
    ],
)
def test_the_largest_request_follows_from_one_key(given, pool, queue, request_mib):
    config = parse_config({"master_secret_file": "x", **{key: n * 2**20 for key, n in given.items()}})
    assert (config.pool_bytes, config.queue_bytes) == (pool << 20, queue << 20)
    assert config.max_request_bytes == request_mib * 2**20
    assert parse_config(config.model_dump()) == config
