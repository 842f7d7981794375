"""The software of a test bed: jars by a stand-in of Maven, and which class data archive is used."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.java import HadoopInstall, cache_dir, class_path_names, write_class_path_jar
from yarn_accel.testbed import software
from yarn_accel.testbed.single_node import merge_class_lists
from yarn_accel.testbed.software import (
    CLASS_LIST,
    archive_key,
    ensure_archive,
    ensure_hadoop,
    find_archive,
    pom_text,
)

MAVEN = """#!{python}
import os, pathlib, sys
work = pathlib.Path(sys.argv[sys.argv.index("-f") + 1]).parent
with open(os.environ["CALLS"], "a") as calls:
    calls.write("called\\n")
print("Downloaded from somewhere: (1.2 kB at 3 kB/s)")
if os.environ.get("FAIL"):
    print("[ERROR] Could not transfer artifact x:y:1 from/to somewhere")
    sys.exit(1)
lib = work / "lib"
lib.mkdir()
for name in ("hadoop-common-3.5.0", "hadoop-streaming-3.4.2"):
    (lib / (name + ".jar")).write_bytes(b"jar of " + name.encode())
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """An environment with a java and a Maven that stand in for the real ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    (folder / "mvn").write_text(MAVEN.format(python=sys.executable))
    for name in ("java", "mvn"):
        (folder / name).chmod(0o755)
    return {
        "PATH": str(folder),
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "CALLS": str(tmp_path / "calls"),
    }


def calls(machine: dict[str, str]) -> int:
    path = Path(machine["CALLS"])
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_it_is_fetched_once_and_found_afterwards(machine: dict[str, str]):
    lines: list[str] = []
    first = ensure_hadoop(lines.append, machine)
    assert first.n_jars == 2
    assert first.n_bytes == sum(path.stat().st_size for path in first.lib_dir.glob("hadoop-*.jar"))
    assert first.streaming_jar.exists()
    assert class_path_names(first.class_path_jar) == ["hadoop-common-3.5.0.jar", "hadoop-streaming-3.4.2.jar"]
    assert "resolving its jars" in lines[0]
    assert "2 jars" in lines[-1]
    lines.clear()
    assert ensure_hadoop(lines.append, machine) == first
    assert lines == []
    assert calls(machine) == 1
    assert [path.name for path in first.lib_dir.parent.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("damage", ["remove", "truncate", "record"])
def test_a_damaged_install_is_fetched_again(machine: dict[str, str], damage: str):
    first = ensure_hadoop(lambda _: None, machine)
    if damage == "remove":
        first.streaming_jar.unlink()
    elif damage == "truncate":
        first.streaming_jar.write_bytes(b"")
    else:
        (first.lib_dir.parent / "install.json").write_text('{"version": "3.5.0", "jars"')
    assert ensure_hadoop(lambda _: None, machine) == first
    assert first.streaming_jar.stat().st_size > 0
    assert calls(machine) == 2


def test_a_failed_download_leaves_nothing_and_says_why(machine: dict[str, str]):
    with pytest.raises(StartupError, match=r"Could not transfer artifact x:y:1.*check the network") as caught:
        ensure_hadoop(lambda _: None, {**machine, "FAIL": "1"})
    assert caught.value.exit_code == 3
    left = [path.name for path in cache_dir(machine).iterdir() if not path.name.endswith(".lock")]
    assert left == []
    assert ensure_hadoop(lambda _: None, machine).n_jars == 2


def test_versions_lie_beside_each_other(machine: dict[str, str]):
    older = ensure_hadoop(lambda _: None, machine, "3.3.6")
    assert older.version == "3.3.6"
    assert older.lib_dir != ensure_hadoop(lambda _: None, machine).lib_dir
    with pytest.raises(ConfigError, match=r"'../x' is no version of Hadoop: give one such as 3.5.0"):
        ensure_hadoop(lambda _: None, machine, "../x")


def test_missing_maven_names_the_package(machine: dict[str, str]):
    (Path(machine["PATH"]) / "mvn").unlink()
    with pytest.raises(StartupError, match="apt-get install -y maven") as caught:
        ensure_hadoop(lambda _: None, machine)
    assert caught.value.exit_code == 3


def test_missing_java_comes_first(machine: dict[str, str]):
    machine["JAVA_HOME"] = machine["HOME"]  # so that no JDK of this machine is found instead
    with pytest.raises(StartupError, match="openjdk-17"):
        ensure_hadoop(lambda _: None, machine)
    assert calls(machine) == 0


def test_a_full_disk_is_seen_before_the_download(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    nearly_full = shutil.disk_usage("/")._replace(free=5 * 2**20)
    monkeypatch.setattr(software.shutil, "disk_usage", lambda path: nearly_full)
    with pytest.raises(StartupError, match=r"has 5 MiB free.*XDG_CACHE_HOME"):
        ensure_hadoop(lambda _: None, machine)
    assert calls(machine) == 0


def test_a_cache_that_cannot_be_made_is_named(machine: dict[str, str], tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="XDG_CACHE_HOME name a writable directory"):
        ensure_hadoop(lambda _: None, {**machine, "XDG_CACHE_HOME": str(tmp_path / "file")})


def test_the_pom_excludes_what_streaming_pulls_in_and_has_the_timeline_service():
    root = ElementTree.fromstring(pom_text("3.3.6"))
    ns = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = {
        d.findtext("m:artifactId", namespaces=ns): (
            d.findtext("m:version", namespaces=ns),
            d.findtext("m:exclusions/m:exclusion/m:artifactId", namespaces=ns),
        )
        for d in root.iterfind("m:dependencies/m:dependency", ns)
    }
    assert found["hadoop-streaming"] == ("3.4.2", "*")
    assert found["hadoop-yarn-server-timelineservice"] == ("3.3.6", None)
    assert found["commons-cli"] == ("1.9.0", None)
    assert {version for version, _ in found.values()} == {"3.3.6", "3.4.2", "1.9.0"}


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


NAMES = st.lists(st.text("abcXYZ/", min_size=1, max_size=8), max_size=10)


def test_numbers_generated_classes_and_other_loaders_are_dropped():
    one = "# comment\njava/lang/Object id: 0\na/B$$Lambda$1 id: 4\nc/D id: 7 super: 0 source: /x.jar\n"
    two = "java/lang/String\n@lambda-proxy a/B run ()V a/B$$x\n\n"
    assert merge_class_lists([one, two]).splitlines() == [
        "@lambda-proxy a/B run ()V a/B$$x",
        "java/lang/Object",
        "java/lang/String",
    ]


@given(first=NAMES, second=NAMES)
def test_the_merge_is_a_sorted_union_in_any_order(first: list[str], second: list[str]):
    texts = ["\n".join(first), "\n".join(second)]
    merged = merge_class_lists(texts)
    assert merged == merge_class_lists(texts[::-1])
    assert merged.split() == sorted(set(first) | set(second))
