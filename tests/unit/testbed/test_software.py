"""The software of a test bed: jars by a stand-in of Maven, and which class data archive is used."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import shutil
import sys
import threading
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.java import (
    HADOOP_VERSION,
    HadoopInstall,
    cache_dir,
    class_path_names,
    write_class_path_jar,
)
from yarn_accel.testbed import software
from yarn_accel.testbed.single_node import merge_class_lists
from yarn_accel.testbed.software import (
    ARTIFACTS,
    CLASS_LIST,
    STREAMING_VERSION,
    archive_key,
    ensure_archive,
    ensure_hadoop,
    find_archive,
    jar_list,
    pom_text,
    write_jar_list,
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


class Repository:
    """A Maven repository on this machine, which the stand-in of Maven names, and a list of two jars in it."""

    def __init__(self, machine: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.paths = [
            f"org/{name}/1/{name}.jar" for name in ("hadoop-common-3.5.0", "hadoop-streaming-3.4.2")
        ]
        asked = self.asked

        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(folder))

            def do_GET(self) -> None:
                asked.append(self.path)
                super().do_GET()

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        lines = []
        for path in self.paths:
            content = f"listed {path}".encode() * 9999
            (folder / path).parent.mkdir(parents=True)
            (folder / path).write_bytes(content)
            lines.append(f"{path} {len(content)} {hashlib.sha256(content).hexdigest()}\n")
        (folder / "hadoop-3.5.0.txt").write_text("".join(lines))
        monkeypatch.setattr(software, "JAR_LISTS", folder)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever).start()
        url = f"http://127.0.0.1:{self.server.server_port}"
        lib = Path(machine["PATH"]).parent / "lib"
        lib.mkdir()
        with zipfile.ZipFile(lib / "maven-model-builder-3.8.jar", "w") as jar:
            model = (
                f"<project><repositories><repository><url>{url}/</url></repository></repositories></project>"
            )
            jar.writestr("org/apache/maven/model/pom-4.0.0.xml", model)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def repository(
    machine: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Repository]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    made = Repository(machine, tmp_path / "repository", monkeypatch)
    yield made
    made.close()


def test_listed_jars_are_fetched_without_maven(machine: dict[str, str], repository: Repository):
    kept = Path(machine["HOME"]) / ".m2" / "repository" / repository.paths[0]
    kept.parent.mkdir(parents=True)
    shutil.copyfile(repository.folder / repository.paths[0], kept)
    lines: list[str] = []
    found = ensure_hadoop(lines.append, machine)
    assert calls(machine) == 0
    assert repository.asked == [f"/{repository.paths[1]}"]
    assert "2 jars" in lines[0]
    for path in repository.paths:
        assert (found.lib_dir / Path(path).name).read_bytes() == (repository.folder / path).read_bytes()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", "the repository answers 404"),
        ("longer", "its size or SHA-256 is not as listed"),
        ("other", "its size or SHA-256 is not as listed"),
        ("gone", "cannot be fetched"),
    ],
)
def test_a_jar_that_is_not_as_listed_is_never_used_and_maven_fetches_all(
    machine: dict[str, str], repository: Repository, damage: str, words: str
):
    jar = repository.folder / repository.paths[1]
    content = jar.read_bytes()
    if damage == "missing":
        jar.unlink()
    elif damage == "longer":
        jar.write_bytes(content * 2)
    elif damage == "other":
        jar.write_bytes(content[::-1])
    else:
        repository.server.server_close()
    lines: list[str] = []
    found = ensure_hadoop(lines.append, machine)
    assert calls(machine) == 1
    assert (found.lib_dir / jar.name).read_bytes() == b"jar of hadoop-streaming-3.4.2"
    assert [line for line in lines if words in line and "so Maven tries" in line], lines


@pytest.mark.parametrize("where", ["settings of the user", "MAVEN_ARGS", "mirror", "proxy", "no list"])
def test_maven_fetches_where_its_settings_may_name_another_repository(
    machine: dict[str, str], repository: Repository, where: str
):
    if where == "settings of the user":
        own = Path(machine["HOME"]) / ".m2" / "settings.xml"
        own.parent.mkdir(parents=True)
        own.write_text("<settings/>")
    elif where == "MAVEN_ARGS":
        machine["MAVEN_ARGS"] = "-s other.xml"
    elif where == "no list":
        (repository.folder / "hadoop-3.5.0.txt").unlink()
    else:
        settings = Path(machine["PATH"]).parent / "conf" / "settings.xml"
        settings.parent.mkdir()
        many = {"mirror": "mirrors", "proxy": "proxies"}[where]
        settings.write_text(f"<settings><{many}><{where}><url>x</url></{where}></{many}></settings>")
    ensure_hadoop(lambda _: None, machine)
    assert calls(machine) == 1
    assert repository.asked == []


def test_a_list_is_made_from_what_maven_has_fetched(machine: dict[str, str], repository: Repository):
    before = (repository.folder / "hadoop-3.5.0.txt").read_text()
    install = ensure_hadoop(lambda _: None, machine)
    (repository.folder / "hadoop-3.5.0.txt").unlink()
    assert write_jar_list(install, repository.folder) == repository.folder / "hadoop-3.5.0.txt"
    assert (repository.folder / "hadoop-3.5.0.txt").read_text() == before


@pytest.mark.parametrize("version", ["3.3.6", "3.4.2", HADOOP_VERSION])
def test_a_list_has_what_the_pom_names(version: str):
    names = {jar.name for jar in jar_list(version)}
    assert {f"{name}-{version}.jar" for name in ARTIFACTS} <= names
    assert f"hadoop-streaming-{STREAMING_VERSION}.jar" in names
    assert len(names) == len(jar_list(version)) > 100


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
