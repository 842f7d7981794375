"""URIs and prefixes are written in one way, and a prefix allows whole components of a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.refusals import refused
from yarn_accel.client import Call
from yarn_accel.core.requests.machine import forbidden
from yarn_accel.core.requests.settings import TenantSettings
from yarn_accel.errors import RejectedError
from yarn_accel.pipeline import own_filesystem
from yarn_accel.pipeline.config import parse_config
from yarn_accel.pipeline.own_filesystem import OwnFilesystem, other_names, site_properties
from yarn_accel.uris import file_uri, normalised, normalised_prefix, split_member, split_uri

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
        ("file:///a%20b", "file:///a%20b"),
        ("FILE:///a b", "file:///a b"),
        ("HDFS://NN:8020/a#b?c\\d", "hdfs://nn/a#b?c\\d"),
        ("hdfs://nn/a\tb\nc\r", "hdfs://nn/a\tb\nc\r"),
        ("hdfs://[::1]:8020/a", "hdfs://[::1]/a"),
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
        "file://host/scratch/x",
        "/etc/passwd",
        "http://nn/data",
        "hdfs://me@nn/data/x",
        "hdfs://nn:99999/data/x",
        "hdfs://nn:/data/x",
        "hdfs://a b/data/x",
        "hdfs://nn",
        "file:///data/",
        "file:///data/.",
        "file:data",
        "data/x",
        "s3a://bucket/x",
        "file:///\udcff",
        "hdfs://nn/data/a\0b",
        "",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(uri: str) -> None:
    with refused("forbidden-uri"):
        normalised(uri)


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
        ("/data", "hdfs://nn:9000/data/x", False),
        ("/data", "file:///data/x", False),
        ("/data", "hdfs:///%64ata/x", False),
        ("file:///a%20b", "file:///a%20b/c", True),
        ("file:///", "hdfs:///data/x", False),
        ("hdfs://*", "hdfs://elsewhere:9000/data/x", True),
        ("hdfs://*/", "hdfs://ns1/data/x", True),
        ("hdfs://*", "hdfs:///data/x", True),
        ("hdfs://*", "file:///data/x", False),
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


def filesystem(tenants: dict[str, Any] | None = None, **settings: str) -> OwnFilesystem:
    config = parse_config({"master_secret_file": "none", "tenants": tenants or {}, **settings})
    return OwnFilesystem.of(config, site_properties(config))


def test_the_setting_or_core_site_says_what_has_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    folder = str(tmp_path)
    assert filesystem().default_fs == ""
    site = "<configuration><property><name>fs.defaultFS</name><value>{}</value></property></configuration>"
    (tmp_path / "core-site.xml").write_text(site.format("hdfs://mine:8020/"))
    assert filesystem(hdfs_conf_dir=folder).default_fs == "hdfs://mine:8020"
    assert filesystem(default_fs="hdfs://other", hdfs_conf_dir=folder).default_fs == "hdfs://other"
    (tmp_path / "core-site.xml").write_text(site.format("file:///"))
    assert filesystem(hdfs_conf_dir=folder).default_fs == ""
    (tmp_path / "core-site.xml").write_text(site.format("hdfs://mine:8020/"))
    monkeypatch.setenv("HADOOP_CONF_DIR", folder)
    assert filesystem().default_fs == "hdfs://mine:8020"


def test_a_namenode_has_the_names_of_the_hosts_file_and_of_dns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {"10.0.0.1": ["10.0.0.1"], "master": ["10.0.0.1"], "liar": ["10.0.0.9"]}
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.0.0.1 Master liar gone # other\n")
    monkeypatch.setattr(own_filesystem, "_HOSTS", hosts)

    def resolved(name: str) -> tuple[str, list[str], list[str]]:
        if name.lower() not in addresses:
            raise OSError
        return name, [], addresses[name.lower()]

    monkeypatch.setattr(own_filesystem.socket, "gethostbyname_ex", resolved)
    found = filesystem({"*": {"read_prefixes": ["hdfs://"]}}, default_fs="hdfs://10.0.0.1:8020")
    assert found.names == {"master": "10.0.0.1"}
    rights = TenantSettings(1.0, (found.normalised_prefix("/data"),), ())
    assert forbidden(rights, (found.normalised("hdfs://master:8020/data/x"),), "") is None
    assert forbidden(rights, (found.normalised("hdfs://MASTER/data/x"),), "") is None
    failure = forbidden(rights, (found.normalised("hdfs://master:9000/data/x"),), "")
    assert failure is not None
    assert "its authority master:9000 differs from those allowed (10.0.0.1)" in failure.message
    # Where each may read all, nobody asks.
    assert not filesystem({"*": {"read_prefixes": ["hdfs://*"]}}, default_fs="hdfs://10.0.0.1:8020").names


def test_the_namenodes_of_a_name_service_are_the_name_service() -> None:
    site = {
        "dfs.ha.namenodes.ns1": "a, b",
        "dfs.namenode.rpc-address.ns1.a": "nn1:8020",
        "dfs.namenode.rpc-address.ns1.b": "nn2:9000",
    }
    assert other_names("hdfs://ns1", site) == {"nn1", "nn2:9000"}


def test_each_hdfs_of_jobs_users_has_one_name() -> None:
    """Else a key or a right by one name would not hold for the other."""
    config = parse_config({"master_secret_file": "none"})
    site = {
        "fs.defaultFS": "hdfs://ns1",
        **{f"dfs.ha.namenodes.{each}": "a" for each in ("ns1", "NS2")},
        "dfs.namenode.rpc-address.ns1.a": "10.9.9.1:8020",
        "dfs.namenode.rpc-address.NS2.a": "10.9.9.2:9000",
    }
    found = OwnFilesystem.of(config, site, ["hdfs://ns1", "hdfs://NS2", "hdfs://10.9.9.3:9000"])
    assert found.users_roots == ("hdfs://ns1/", "hdfs://ns2/", "hdfs://10.9.9.3:9000/")
    for uri, name in (
        ("hdfs:///x", "hdfs://ns1/x"),
        ("hdfs://10.9.9.1/x", "hdfs://ns1/x"),
        ("hdfs://10.9.9.2:9000/x", "hdfs://ns2/x"),
        ("hdfs://Ns2/x", "hdfs://ns2/x"),
        ("hdfs://10.9.9.3:9000/x", "hdfs://10.9.9.3:9000/x"),
        ("hdfs://10.9.9.2/x", "hdfs://10.9.9.2/x"),
    ):
        assert found.normalised(uri) == name
    assert not OwnFilesystem.of(config, site).users_roots


def test_a_path_names_exactly_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "sub")
    monkeypatch.chdir(tmp_path)
    assert file_uri(Path("a b%20#?.npy")) == f"file://{tmp_path}/a b%20#?.npy"
    assert file_uri(Path("link/../x")) == f"file://{tmp_path}/real/x"
    assert split_uri(file_uri(Path("real/./x"))).path == f"{tmp_path}/real/x"
    error = Call.of("lu", Path("a.npz#b")).error
    assert isinstance(error, RejectedError)
    assert error.code == "forbidden-uri"
    assert "rename" in error.cure
    assert split_member(file_uri(Path("a.npz#"))) == (f"file://{tmp_path}/a.npz#", "")
