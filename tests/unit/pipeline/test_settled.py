"""Settings that were checked before are the same settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.settled import settled

SITE = {
    "master_secret_file": "secret",
    "name": "w1",
    "checksums": ["crc32", "none"],
    "devices": ["cuda:0", "cpu"],
    "extra_operations": ["site.ops:table"],
    "hang_min_s": 2.5,
    "tenants": {
        "alice": {"weight": 3.0, "read_prefixes": ["hdfs://nn/a"], "write_prefixes": ["file:///b"]},
        "*": {},
    },
}


def both(**values: object) -> tuple[PipelineConfig, PipelineConfig]:
    """The settings as they were checked, and after their journey as JSON."""
    config = PipelineConfig.model_validate({**SITE, **values})
    return config, settled(json.loads(json.dumps(config.model_dump(mode="json"))))


@pytest.mark.parametrize("values", [{}, {"tenants": {}}, {"workers": 3, "cores_per_worker": 2}])
def test_every_setting_is_there_and_the_same(values) -> None:
    config, ours = both(**values)
    for name in PipelineConfig.model_fields.keys() - {"tenants"}:
        given, taken = getattr(config, name), getattr(ours, name)
        assert (taken, type(taken)) == (given, type(given)), name
    assert ours.tenants.keys() == config.tenants.keys()
    assert ours.n_workers == config.n_workers


@pytest.mark.parametrize("tenants", [SITE["tenants"], {"alice": {"weight": 2.0}}])
@pytest.mark.parametrize("name", ["alice", "bob"])
def test_tenants_have_the_same_terms(tenants, name) -> None:
    given, taken = (each.tenant(name) for each in both(tenants=tenants))
    for what in ("weight", "read_prefixes", "write_prefixes"):
        assert getattr(taken, what) == getattr(given, what)


def test_a_copy_differs_where_it_should() -> None:
    _, ours = both()
    copy = ours.model_copy(update={"name": "other"})
    assert (copy.name, ours.name, copy.pool_bytes) == ("other", "w1", ours.pool_bytes)
    assert copy.tenant("alice") == ours.tenant("alice")


def test_the_secret_is_read_with_the_same_care(tmp_path) -> None:
    path = tmp_path / "secret"
    path.write_text("ab" * 32)
    path.chmod(0o644)
    for each in both(master_secret_file=str(path)):
        with pytest.raises(ConfigError, match="secret"):
            each.master_secret()
    path.chmod(0o600)
    assert {each.master_secret() for each in both(master_secret_file=str(path))} == {bytes.fromhex("ab" * 32)}
    assert both()[1].master_secret_file == Path("secret")
