from pathlib import Path

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.hadoop.jars import HadoopInstall
from yarn_accel.hadoop.java import MAIN_CLASSES, java_argv
from yarn_accel.hadoop.jdk import find_java, java_version

INSTALL = HadoopInstall(
    Path("/jdk/bin/java"), Path("/jars"), Path("/jars/class-path.jar"), Path("/jars/s.jar"), "3.5.0", 2, 9
)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_the_argument_list_is_pure_and_complete():
    def build() -> list[str]:
        return java_argv(
            INSTALL,
            "namenode",
            Path("/conf"),
            heap_mib=128,
            properties={"accel.node": "w1"},
            archive=Path("/a.jsa"),
            extra_class_path=["/node"],
            jvm_options=["-XX:Late"],
            arguments=["-format"],
        )

    argv = build()
    assert argv == build()
    assert argv[0] == "/jdk/bin/java"
    assert argv[-2:] == [MAIN_CLASSES["namenode"], "-format"]
    assert argv[argv.index("-cp") + 1] == "/jars/class-path.jar:/node:/conf"
    for flag in ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Daccel.node=w1", "-XX:Late"):
        assert flag in argv
    assert sum(part.startswith("--add-opens=java.base/") for part in argv) == 11
    assert "-Djava.net.preferIPv4Stack=true" in argv


def test_the_archive_is_mapped_where_it_was_made_for_and_only_when_given():
    argv = java_argv(INSTALL, "x.Y", Path("/c"), archive=Path("/a.jsa"))
    unlock = argv.index("-XX:+UnlockDiagnosticVMOptions")
    assert unlock < argv.index("-XX:ArchiveRelocationMode=0")
    assert "-XX:SharedArchiveFile=/a.jsa" in argv
    assert not any("Archive" in part for part in java_argv(INSTALL, "x.Y", Path("/c")))
    assert "x.Y" in argv


def test_the_first_heap_never_exceeds_the_largest():
    assert "-Xms16m" in java_argv(INSTALL, "x.Y", Path("/c"), heap_mib=16)


def test_java_home_wins_over_path(tmp_path: Path):
    ours = program(tmp_path / "jdk" / "bin" / "java", "exit 0\n")
    other = program(tmp_path / "bin" / "java", "exit 0\n")
    path = str(other.parent)
    assert find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": path}) == ours
    assert find_java({"PATH": path}) == other


def test_missing_java_names_the_package_to_install(tmp_path: Path):
    with pytest.raises(StartupError, match=r"Java is not on this machine: apt-get install") as caught:
        find_java({"PATH": str(tmp_path)}, installed=tmp_path)
    assert caught.value.exit_code == 3
    with pytest.raises(StartupError, match=r"JAVA_HOME=.* has no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_newer_installed_java_is_taken_when_the_one_on_the_path_is_too_old(tmp_path: Path):
    old = program(tmp_path / "jdk-11" / "bin" / "java", "exit 0\n")
    (tmp_path / "jdk-11" / "release").write_text('JAVA_VERSION="11.0.2"\n')
    new = program(tmp_path / "java-17-openjdk" / "bin" / "java", "exit 0\n")
    environ = {"PATH": str(old.parent)}
    assert find_java(environ, installed=tmp_path) == new
    assert find_java(environ, installed=tmp_path / "nowhere") == old
    assert find_java({"PATH": ""}, installed=tmp_path) == new


def test_an_old_java_is_refused(tmp_path: Path):
    old = program(tmp_path / "java", "echo 'openjdk version \"11.0.2\" 2019' >&2\n")
    with pytest.raises(StartupError, match=r"is version 11, Hadoop 3.5 needs 17"):
        java_version(old)


def test_a_java_that_does_not_run_is_named(tmp_path: Path):
    with pytest.raises(StartupError, match="libjvm is broken"):
        java_version(program(tmp_path / "java", "echo libjvm is broken >&2; exit 1\n"))
