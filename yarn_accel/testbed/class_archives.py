"""One class data archive for every JVM of the cluster: daemons, application masters, tasks and job clients.

The JVM maps the archive instead of reading and verifying thousands of classes, which halves the start of a
daemon and more than halves that of a task. It is dumped from a class list that was recorded once from runs of
every role (:mod:`yarn_accel.testbed.class_lists`), and holds for any class path that begins with the class
path jar: configuration directories come after it.

The JVM ignores an archive that does not fit its jars, and logs nothing. So the file's name is a hash over the
JVM's version, the jars (name, size, time stamp) and the class list: what changed gets a new archive, what is
stale is not found. After a dump the archive is tried, and thrown away unless the JVM really takes Hadoop's
classes from it.
"""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from yarn_accel.adapters.commands import run
from yarn_accel.errors import AccelError
from yarn_accel.hadoop.java import (
    HADOOP_VERSION,
    LEAN_FLAGS,
    HadoopInstall,
    archive_options,
    class_path_names,
    java_version,
)
from yarn_accel.testbed.maven import locked

CLASS_LIST = Path(__file__).resolve().parent / "classes" / f"hadoop-{HADOOP_VERSION}.lst.gz"
KEPT_ARCHIVES = 2
#: A dump takes half a minute of CPU, of which a busy machine gives it little.
DUMP_TIMEOUT_S = 3600


def ensure_archive(
    install: HadoopInstall, report: Callable[[str], None], class_list: Path = CLASS_LIST
) -> Path | None:
    """The archive for these jars and this JVM; built when it is not there (about half a minute, once).

    Returns:
        The archive, or None when this JVM cannot make one (then everything starts slower, and ``report``
        has said why).
    """
    found = find_archive(install, class_list)
    if found is not None or not class_list.exists():
        return found
    target = _target(install, class_list)
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent / "lock", report):
        if not target.exists():
            try:
                _build(install, target, class_list, report)
            except (AccelError, OSError) as error:
                report(f"no class data archive, Java starts slower: {error}")
                return None
    return target


def find_archive(install: HadoopInstall, class_list: Path = CLASS_LIST) -> Path | None:
    """The archive for exactly these jars, this JVM and this class list, when it was built already."""
    if not class_list.exists():
        return None
    target = _target(install, class_list)
    return target if target.exists() else None


def archive_key(install: HadoopInstall, class_list: Path) -> str:
    """Hash over all that an archive depends on."""
    digest = hashlib.sha256(java_version(install.java)[1].encode())
    digest.update(str(install.class_path_jar).encode())
    folder = install.class_path_jar.parent
    for name in [install.class_path_jar.name, *class_path_names(install.class_path_jar)]:
        stat = (folder / name).stat()
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    digest.update(class_list.read_bytes())
    return digest.hexdigest()[:20]


def shared_classes(install: HadoopInstall, archive: Path) -> tuple[int, int]:
    """How many Hadoop classes a small Hadoop program takes from the archive, and how many it loads at all.

    Raises:
        StartupError: the program does not run.
    """
    argv = [str(install.java), *LEAN_FLAGS, *archive_options(archive)]
    argv += ["-Xlog:class+load", "-cp", str(install.class_path_jar), "org.apache.hadoop.util.VersionInfo"]
    lines = [line for line in run(argv, 60).stdout.splitlines() if " org.apache.hadoop." in line]
    return sum("source: shared objects file" in line for line in lines), len(lines)


def _target(install: HadoopInstall, class_list: Path) -> Path:
    folder = install.class_path_jar.parent.parent / "archives"
    return folder / f"{archive_key(install, class_list)}.jsa"


def _build(install: HadoopInstall, target: Path, class_list: Path, report: Callable[[str], None]) -> None:
    report("building the class data archive that makes Java start fast (once, about half a minute)")
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".dump-", dir=target.parent) as name:
        names = Path(name) / "classes.lst"
        names.write_bytes(gzip.decompress(class_list.read_bytes()))
        draft = Path(name) / "draft.jsa"
        dump(install, names, draft)
        shared, loaded = shared_classes(install, draft)
        if not loaded or shared < 0.9 * loaded:
            raise AccelError(f"this JVM took {shared} of {loaded} classes from it")
        draft.replace(target)
    _prune(target)
    wall_s = time.monotonic() - started_s
    report(f"class data archive: {target.stat().st_size / 1e6:.0f} MB, {wall_s:.0f} s")


def dump(install: HadoopInstall, class_list: Path, target: Path) -> None:
    """Dump an archive of the classes in a (plain text) list.

    Raises:
        AccelError: the JVM could not.
    """
    argv = [str(install.java), "-Xmx1g", *LEAN_FLAGS[:1], "-Xshare:dump", "-Xlog:cds=error"]
    argv += [f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={target}"]
    done = run([*argv, "-cp", str(install.class_path_jar)], DUMP_TIMEOUT_S)
    if not done.ok or not target.exists():
        raise AccelError(f"java -Xshare:dump failed: {done.last_line()}")


def _prune(newest: Path) -> None:
    """Drop old archives; a JVM that has one mapped keeps it."""
    others = [path for path in newest.parent.glob("*.jsa") if path != newest]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT_ARCHIVES - 1 :]:
        path.unlink()
