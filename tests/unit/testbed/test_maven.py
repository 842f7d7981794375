import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.hadoop.java import cache_dir, class_path_names
from yarn_accel.testbed import maven as module
from yarn_accel.testbed.maven import ensure_hadoop, pom_text

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
