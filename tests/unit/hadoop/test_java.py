"""Java, the jars, argument lists, and the commands of Hadoop's scripts."""

import os
import shutil
import stat
import zipfile
from pathlib import Path
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop import java

INSTALL = java.HadoopInstall(
    Path("/jdk/bin/java"), Path("/jars"), Path("/jars/class-path.jar"), Path("/jars/s.jar"), "3.5.0", 2, 9
)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_the_argument_list_is_complete():
    argv = java.java_argv(
        INSTALL,
        "namenode",
        Path("/conf"),
        heap_mib=128,
        properties={"accel.node": "w1"},
        extra_class_path=["/node"],
        jvm_options=["-XX:Late"],
        arguments=["-format"],
    )
    assert (argv[0], argv[-2:]) == ("/jdk/bin/java", [java.MAIN_CLASSES["namenode"], "-format"])
    assert argv[argv.index("-cp") + 1] == "/jars/class-path.jar:/node:/conf"
    flags = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Daccel.node=w1", "-XX:Late")
    assert {*flags, "-Djava.net.preferIPv4Stack=true"} <= set(argv)
    assert sum(part.startswith("--add-opens=java.base/") for part in argv) == 11


def test_the_archive_is_mapped_where_it_was_made_for_and_only_when_given():
    argv = java.java_argv(INSTALL, "x.Y", Path("/c"), archive=Path("/a.jsa"))
    unlock = argv.index("-XX:+UnlockDiagnosticVMOptions")
    assert unlock < argv.index("-XX:ArchiveRelocationMode=0")
    assert "-XX:SharedArchiveFile=/a.jsa" in argv
    assert not any("Archive" in part for part in java.java_argv(INSTALL, "x.Y", Path("/c")))
    assert "x.Y" in argv


def test_the_first_heap_never_exceeds_the_largest():
    assert "-Xms16m" in java.java_argv(INSTALL, "x.Y", Path("/c"), heap_mib=16)


def test_java_home_wins_over_path(tmp_path):
    ours = program(tmp_path / "jdk" / "bin" / "java", "exit 0\n")
    other = program(tmp_path / "bin" / "java", "exit 0\n")
    path = str(other.parent)
    assert java.find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": path}) == ours
    assert java.find_java({"PATH": path}) == other


def test_missing_java_names_the_package_to_install(tmp_path):
    with pytest.raises(StartupError, match=r"Java is not on this machine: apt-get install") as caught:
        java.find_java({"PATH": str(tmp_path)}, installed=tmp_path)
    assert caught.value.exit_code == 3
    with pytest.raises(StartupError, match=r"JAVA_HOME=.* has no bin/java"):
        java.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_newer_installed_java_is_taken_when_the_one_on_the_path_is_too_old(tmp_path):
    old = program(tmp_path / "jdk-11" / "bin" / "java", "exit 0\n")
    (tmp_path / "jdk-11" / "release").write_text('JAVA_VERSION="11.0.2"\n')
    new = program(tmp_path / "java-17-openjdk" / "bin" / "java", "exit 0\n")
    environ = {"PATH": str(old.parent)}
    assert java.find_java(environ, installed=tmp_path) == new
    assert java.find_java(environ, installed=tmp_path / "nowhere") == old
    assert java.find_java({"PATH": ""}, installed=tmp_path) == new


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019' >&2\n", r"is version 11, Hadoop 3.5 needs 17"),
        ("echo libjvm is broken >&2; exit 1\n", "libjvm is broken"),
    ],
    ids=["old", "broken"],
)
def test_a_java_that_will_not_do_is_refused(tmp_path, script, complaint):
    with pytest.raises(StartupError, match=complaint):
        java.java_version(program(tmp_path / "java", script))


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-. _/", min_size=1, max_size=90).map(
    lambda s: f"x{s}x.jar"
)


@given(names=st.lists(NAMES, max_size=40))
def test_the_class_path_jar_says_what_was_written(tmp_path_factory, names):
    jar = tmp_path_factory.mktemp("jar") / "cp.jar"
    java.write_class_path_jar(jar, names)
    assert java.class_path_names(jar) == names
    with zipfile.ZipFile(jar) as opened:
        lines = opened.read("META-INF/MANIFEST.MF").split(b"\r\n")
    assert max(map(len, lines)) <= 72


def test_an_equal_class_path_jar_is_left_alone_and_another_one_replaced(tmp_path):
    jar = tmp_path / "cp.jar"
    java.write_class_path_jar(jar, ["a.jar"])
    os.utime(jar, (1, 1))
    java.write_class_path_jar(jar, ["a.jar"])
    assert jar.stat()[stat.ST_MTIME] == 1
    java.write_class_path_jar(jar, ["b.jar"])
    assert java.class_path_names(jar) == ["b.jar"]


def distribution(home):
    for name in (
        *("common/hadoop-common-3.4.9.jar", "common/hadoop-common-3.4.9-tests.jar", "common/lib/guava-1.jar"),
        *("hdfs/hadoop-hdfs-3.4.9.jar", "yarn/hadoop-yarn-api-3.4.9.jar"),
        *("mapreduce/hadoop-mapreduce-client-core-3.4.9.jar", "tools/lib/hadoop-streaming-3.4.9.jar"),
    ):
        path = home / "share" / "hadoop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    return home


def test_a_hadoop_home_is_honoured(tmp_path):
    home = distribution(tmp_path / "opt" / "hadoop")
    before = sorted(path for path in home.rglob("*"))
    found = java.from_hadoop_home(home, Path("/jdk/bin/java"), tmp_path / "cache")
    assert (found.version, found.n_jars, found.n_bytes) == ("3.4.9", 6, 30)
    assert found.streaming_jar.name == "hadoop-streaming-3.4.9.jar"
    folder = found.class_path_jar.parent
    listed = [(folder / name).resolve() for name in java.class_path_names(found.class_path_jar)]
    assert all(path.exists() for path in listed)
    assert not any("tests" in path.name for path in listed)
    assert sorted(path for path in home.rglob("*")) == before


@pytest.mark.parametrize("missing", ["share/hadoop/tools", "share"])
def test_what_is_not_a_hadoop_home_is_refused(tmp_path, missing):
    home = distribution(tmp_path / "hadoop")
    shutil.rmtree(home / missing)
    with pytest.raises(StartupError, match=r"HADOOP_HOME=.* has no share/hadoop/"):
        java.from_hadoop_home(home, Path("/jdk/bin/java"), tmp_path / "cache")


def test_the_cache_honours_xdg():
    assert java.cache_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/cluster-accel")
    assert java.cache_dir({"HOME": "/h"}) == Path("/h/.cache/cluster-accel")


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("yarn jar my.jar -x", ("org.apache.hadoop.util.RunJar", ["my.jar", "-x"])),
        ("mapred streaming -input /a", ("org.apache.hadoop.streaming.HadoopStreaming", ["-input", "/a"])),
        ("yarn application -list", (ANY, ["application", "-list"])),
        ("yarn node -list", (ANY, ["-list"])),
        ("hadoop my.Tool a", ("my.Tool", ["a"])),
    ],
)
def test_a_command_becomes_its_class_and_the_rest_its_arguments(command, called):
    program, *words = command.split()
    assert java.main_class(program, words) == called


@pytest.mark.parametrize("program", sorted(java.PROGRAMS))
@pytest.mark.parametrize("words", [[], ["nosuch"], ["-help"], [""]])
def test_others_are_refused_with_a_list(program, words):
    with pytest.raises(ConfigError) as raised:
        java.main_class(program, words)
    assert all(name in str(raised.value.cure) for name in java.PROGRAMS[program])
