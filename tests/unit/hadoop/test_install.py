import os
import shutil
import stat
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import StartupError
from yarn_accel.hadoop import install as module
from yarn_accel.hadoop.install import (
    cache_dir,
    class_path_names,
    ensure_hadoop,
    from_hadoop_home,
    pom_text,
    write_class_path_jar,
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
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: nearly_full)
    with pytest.raises(StartupError, match=r"has 5 MiB free.*XDG_CACHE_HOME"):
        ensure_hadoop(lambda _: None, machine)
    assert calls(machine) == 0


def test_a_cache_that_cannot_be_made_is_named(machine: dict[str, str], tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="XDG_CACHE_HOME name a writable directory"):
        ensure_hadoop(lambda _: None, {**machine, "XDG_CACHE_HOME": str(tmp_path / "file")})


def test_the_pom_excludes_what_streaming_pulls_in_and_has_the_timeline_service():
    root = ElementTree.fromstring(pom_text())
    ns = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = {
        d.findtext("m:artifactId", namespaces=ns): (
            d.findtext("m:version", namespaces=ns),
            d.findtext("m:exclusions/m:exclusion/m:artifactId", namespaces=ns),
        )
        for d in root.iterfind("m:dependencies/m:dependency", ns)
    }
    assert found["hadoop-streaming"] == ("3.4.2", "*")
    assert found["hadoop-yarn-server-timelineservice"] == ("3.5.0", None)
    assert {version for version, _ in found.values()} == {"3.5.0", "3.4.2"}


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-. _/", min_size=1, max_size=90).map(
    lambda s: f"x{s}x.jar"
)


@given(names=st.lists(NAMES, max_size=40))
def test_the_class_path_jar_says_what_was_written(tmp_path_factory: pytest.TempPathFactory, names: list[str]):
    jar = tmp_path_factory.mktemp("jar") / "cp.jar"
    write_class_path_jar(jar, names)
    assert class_path_names(jar) == names
    with zipfile.ZipFile(jar) as opened:
        lines = opened.read("META-INF/MANIFEST.MF").split(b"\r\n")
    assert max(map(len, lines)) <= 72


def test_an_equal_class_path_jar_is_left_alone_and_another_one_replaced(tmp_path: Path):
    jar = tmp_path / "cp.jar"
    write_class_path_jar(jar, ["a.jar"])
    os.utime(jar, (1, 1))
    write_class_path_jar(jar, ["a.jar"])
    assert jar.stat()[stat.ST_MTIME] == 1
    write_class_path_jar(jar, ["b.jar"])
    assert class_path_names(jar) == ["b.jar"]


def distribution(home: Path) -> Path:
    for name in (
        "common/hadoop-common-3.4.9.jar",
        "common/hadoop-common-3.4.9-tests.jar",
        "common/lib/guava-1.jar",
        "hdfs/hadoop-hdfs-3.4.9.jar",
        "yarn/hadoop-yarn-api-3.4.9.jar",
        "mapreduce/hadoop-mapreduce-client-core-3.4.9.jar",
        "tools/lib/hadoop-streaming-3.4.9.jar",
    ):
        path = home / "share" / "hadoop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    return home


def test_a_hadoop_home_is_honoured(tmp_path: Path):
    home = distribution(tmp_path / "opt" / "hadoop")
    before = sorted(path for path in home.rglob("*"))
    found = from_hadoop_home(home, Path("/jdk/bin/java"), tmp_path / "cache")
    assert (found.version, found.n_jars, found.n_bytes) == ("3.4.9", 6, 30)
    assert found.streaming_jar.name == "hadoop-streaming-3.4.9.jar"
    folder = found.class_path_jar.parent
    listed = [(folder / name).resolve() for name in class_path_names(found.class_path_jar)]
    assert all(path.exists() for path in listed)
    assert not any("tests" in path.name for path in listed)
    assert sorted(path for path in home.rglob("*")) == before


@pytest.mark.parametrize("missing", ["share/hadoop/tools", "share"])
def test_what_is_not_a_hadoop_home_is_refused(tmp_path: Path, missing: str):
    home = distribution(tmp_path / "hadoop")
    shutil.rmtree(home / missing)
    with pytest.raises(StartupError, match=r"HADOOP_HOME=.* has no share/hadoop/"):
        from_hadoop_home(home, Path("/jdk/bin/java"), tmp_path / "cache")


def test_the_cache_honours_xdg():
    assert cache_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/cluster-accel")
    assert cache_dir({"HOME": "/h"}) == Path("/h/.cache/cluster-accel")
