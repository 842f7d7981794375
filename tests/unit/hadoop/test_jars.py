import os
import shutil
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import StartupError
from yarn_accel.hadoop.jars import cache_dir, class_path_names, from_hadoop_home, write_class_path_jar

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
