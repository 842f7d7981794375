"""URIs and prefixes are written in one way, and a prefix allows whole components of a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from yarn_accel.core.requests.admission import forbidden
from yarn_accel.core.requests.settings import TenantSettings
from yarn_accel.errors import RejectedError
from yarn_accel.pipeline.uris import default_filesystem, normalised, normalised_prefix

DEFAULT = "hdfs://nn:8020"


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("hdfs://nn/data", "hdfs://nn/data"),
        ("hdfs://nn:8020/data", "hdfs://nn/data"),
        ("hdfs://nn/data//a/./b", "hdfs://nn/data/a/b"),
        ("hdfs://nn//data/a", "hdfs://nn/data/a"),
        ("hdfs:////data/a", "hdfs:///data/a"),
        ("file:///scratch/x", "file:///scratch/x"),
        ("file:///a%20b", "file:///a b"),
        ("hdfs:///data/x", "hdfs:///data/x"),
        ("hdfs://other:9000/exact", "hdfs://other:9000/exact"),
        ("file:/etc/passwd", "file:///etc/passwd"),
    ],
)
def test_a_uri_is_written_in_one_way(uri: str, plain: str) -> None:
    assert normalised(uri) == plain


@pytest.mark.parametrize(
    "uri",
    [
        "hdfs://nn/data/../secret",
        "file:///scratch/../etc/passwd",
        "file:///scratch/%2e%2e/etc/passwd",
        "file://host/scratch/x",
        "/etc/passwd",
        "http://nn/data",
        "hdfs://nn/data/x?op=DELETE",
        "hdfs://nn/data/x#y",
        "hdfs://nn/data/a\0b",
        "",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(uri: str) -> None:
    with pytest.raises(RejectedError) as caught:
        normalised(uri)
    assert caught.value.code == "forbidden-uri"


@pytest.mark.parametrize(
    ("prefix", "uri", "is_allowed"),
    [
        ("/data", "hdfs:///data/x", True),
        ("/data", "hdfs://nn:8020/data/x", True),
        ("/data/", "hdfs://nn/data/x", True),
        ("hdfs:///data/", "hdfs://nn//data//x", True),
        ("hdfs://nn/data", "hdfs:///data/x", True),
        ("hdfs://", "hdfs://nn/any/thing", True),
        ("/", "hdfs:///any/thing", True),
        ("/data", "hdfs:///database/x", False),
        ("/data/", "hdfs:///database/x", False),
        ("/data", "hdfs://elsewhere/data/x", False),
        ("hdfs://", "hdfs://elsewhere/any/thing", False),
        ("/data", "hdfs://nn@elsewhere/data/x", False),
        ("/data", "hdfs://nn:9000/data/x", False),
        ("/data", "file:///data/x", False),
        ("/data", "hdfs:///%64ata/x", False),
        ("file:///a%20b", "file:///a%20b/c", True),
        ("file:///", "hdfs:///data/x", False),
    ],
)
def test_a_prefix_allows_what_lies_below_it(prefix: str, uri: str, is_allowed: bool) -> None:
    rights = (normalised_prefix(prefix, DEFAULT),)
    tenant = TenantSettings(1.0, rights, rights)
    for failure in (
        forbidden(tenant, (normalised(uri, DEFAULT),), ""),
        forbidden(tenant, (), normalised(uri, DEFAULT)),
    ):
        assert (failure is None) is is_allowed, failure


def test_without_a_known_filesystem_a_prefix_without_host_allows_no_host() -> None:
    tenant = TenantSettings(1.0, (normalised_prefix("hdfs://"), normalised_prefix("/data")))
    assert forbidden(tenant, (normalised("hdfs:///data/x"),), "") is None
    assert forbidden(tenant, (normalised("hdfs://nn/data/x"),), "") is not None


def test_the_setting_or_core_site_says_what_has_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert default_filesystem("", "") == ""
    site = "<configuration><property><name>fs.defaultFS</name><value>{}</value></property></configuration>"
    (tmp_path / "core-site.xml").write_text(site.format("hdfs://mine:8020/"))
    assert default_filesystem("", str(tmp_path)) == "hdfs://mine:8020"
    assert default_filesystem("hdfs://other", str(tmp_path)) == "hdfs://other"
    (tmp_path / "core-site.xml").write_text(site.format("file:///"))
    assert default_filesystem("", str(tmp_path)) == ""
    (tmp_path / "core-site.xml").write_text(site.format("hdfs://mine:8020/"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert default_filesystem("", "") == "hdfs://mine:8020"
