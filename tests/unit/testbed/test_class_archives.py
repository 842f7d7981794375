"""Which archive is used; that the JVM really uses it is for the integration test."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from yarn_accel.hadoop.java import HadoopInstall, write_class_path_jar
from yarn_accel.testbed.class_archives import CLASS_LIST, archive_key, ensure_archive, find_archive

VERSION = 'openjdk version "17.0.1"'


@pytest.fixture
def install(tmp_path: Path) -> HadoopInstall:
    """Two jars and a java that claims a version, and that cannot dump."""
    lib = tmp_path / "lib"
    lib.mkdir()
    for name in ("a.jar", "b.jar"):
        (lib / name).write_bytes(b"content")
    write_class_path_jar(lib / "class-path.jar", ["a.jar", "b.jar"])
    java = tmp_path / "java"
    answer = f"*-version*) echo '{VERSION}' >&2;; *) echo cannot dump >&2; exit 1;;"
    java.write_text(f'#!/bin/sh\ncase "$*" in {answer} esac\n')
    java.chmod(0o755)
    return HadoopInstall(java, lib, lib / "class-path.jar", lib / "b.jar", "3.5.0", 2, 14)


@pytest.fixture
def class_list(tmp_path: Path) -> Path:
    path = tmp_path / "classes.lst.gz"
    path.write_bytes(gzip.compress(b"java/lang/Object\n"))
    return path


def put_archive(install: HadoopInstall, class_list: Path) -> Path:
    folder = install.class_path_jar.parent.parent / "archives"
    folder.mkdir(exist_ok=True)
    path = folder / f"{archive_key(install, class_list)}.jsa"
    path.write_bytes(b"archive")
    return path


def touch(install: HadoopInstall) -> None:
    os.utime(install.lib_dir / "a.jar", (1, 1))


def grow(install: HadoopInstall) -> None:
    (install.lib_dir / "a.jar").write_bytes(b"longer content")


def add(install: HadoopInstall) -> None:
    shutil.copy(install.lib_dir / "a.jar", install.lib_dir / "c.jar")
    write_class_path_jar(install.class_path_jar, ["a.jar", "b.jar", "c.jar"])


def upgrade(install: HadoopInstall) -> None:
    install.java.write_text(install.java.read_text().replace("17.0.1", "17.0.2"))


def test_the_archive_that_fits_is_found_without_building(install: HadoopInstall, class_list: Path):
    assert find_archive(install, class_list) is None
    path = put_archive(install, class_list)
    lines: list[str] = []
    assert find_archive(install, class_list) == path
    assert ensure_archive(install, lines.append, class_list) == path
    assert lines == []


@pytest.mark.parametrize("change", [touch, grow, add, upgrade])
def test_a_stale_archive_is_not_used(install: HadoopInstall, class_list: Path, change):
    path = put_archive(install, class_list)
    change(install)
    assert find_archive(install, class_list) is None
    assert path.exists()


def test_another_class_list_wants_another_archive(install: HadoopInstall, class_list: Path):
    put_archive(install, class_list)
    class_list.write_bytes(gzip.compress(b"java/lang/String\n"))
    assert find_archive(install, class_list) is None


def test_a_java_that_cannot_dump_costs_speed_and_not_the_cluster(install: HadoopInstall, class_list: Path):
    lines: list[str] = []
    assert ensure_archive(install, lines.append, class_list) is None
    assert "no class data archive, Java starts slower" in lines[-1]
    assert "cannot dump" in lines[-1]
    left = sorted(path.name for path in (install.lib_dir.parent / "archives").iterdir())
    assert left == ["lock"]


def test_no_class_list_no_archive(install: HadoopInstall, tmp_path: Path):
    assert ensure_archive(install, lambda _: None, tmp_path / "none.gz") is None


def test_the_shipped_list_is_sorted_names_nothing_of_a_machine_and_knows_every_role():
    lines = gzip.decompress(CLASS_LIST.read_bytes()).decode().splitlines()
    assert lines == sorted(set(lines))
    names = set(lines)
    for name in (
        "org/apache/hadoop/hdfs/server/namenode/NameNode",
        "org/apache/hadoop/hdfs/server/datanode/DataNode",
        "org/apache/hadoop/yarn/server/resourcemanager/ResourceManager",
        "org/apache/hadoop/yarn/server/nodemanager/NodeManager",
        "org/apache/hadoop/mapreduce/v2/hs/JobHistoryServer",
        "org/apache/hadoop/mapreduce/v2/app/MRAppMaster",
        "org/apache/hadoop/mapred/YarnChild",
        "org/apache/hadoop/streaming/PipeMapper",
        "org/apache/hadoop/streaming/StreamJob",
        "org/apache/hadoop/typedbytes/TypedBytesWritable",
    ):
        assert name in names
    assert not any(" source: " in line or " id: " in line for line in lines)
