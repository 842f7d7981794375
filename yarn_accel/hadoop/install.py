"""Hadoop on this machine, resolved artifact by artifact from the Maven repositories it is set up for.

There is no binary tarball in Maven repositories, so a generated pom names the direct artifacts, Maven copies
them and all they need into one directory, and an empty jar whose manifest lists them all (by relative name:
class data sharing refuses absolute ones) is the one class path entry that every Hadoop process starts with.

A download is made in a directory of its own and renamed when complete, under a lock: a half download is never
used, and two commands at once download once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.adapters.commands import stream
from yarn_accel.errors import StartupError
from yarn_accel.hadoop.jdk import find_java, java_version

__all__ = [
    "HADOOP_VERSION",
    "HadoopInstall",
    "cache_dir",
    "class_path_names",
    "ensure_hadoop",
    "from_hadoop_home",
    "locked",
    "pom_text",
    "write_class_path_jar",
]

HADOOP_VERSION = "3.5.0"
# Later releases of this one artifact are not published; it runs unmodified on 3.5.0.
STREAMING_VERSION = "3.4.2"
PLUGIN_VERSION = "3.6.1"
NEEDED_BYTES = 600 * 1024 * 1024
MAVEN_CURE = "apt-get install -y maven"

ARTIFACTS = (
    "hadoop-common",
    "hadoop-hdfs",
    "hadoop-hdfs-client",
    "hadoop-yarn-server-resourcemanager",
    "hadoop-yarn-server-nodemanager",
    "hadoop-yarn-server-web-proxy",
    # The ResourceManager dies without TimelineCollectorManager, and nothing pulls it in.
    "hadoop-yarn-server-timelineservice",
    "hadoop-yarn-client",
    "hadoop-mapreduce-client-app",
    "hadoop-mapreduce-client-hs",
    "hadoop-mapreduce-client-jobclient",
    "hadoop-mapreduce-client-shuffle",
)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HadoopInstall:
    """A usable Hadoop: the jars of one version and a Java to run them.

    Attributes:
        java: the ``java`` program.
        lib_dir: directory of the jars (of the class path jar when they lie in several, as in a HADOOP_HOME).
        class_path_jar: an empty jar whose manifest names all the others: the one entry for ``-cp``.
        streaming_jar: the hadoop-streaming jar.
        version: Hadoop version, empty when unknown.
        n_jars: number of jars on the class path.
        n_bytes: their total size in bytes.
    """

    java: Path
    lib_dir: Path
    class_path_jar: Path
    streaming_jar: Path
    version: str
    n_jars: int
    n_bytes: int

    @property
    def java_home(self) -> Path:
        """The directory that JAVA_HOME should name."""
        return self.java.parent.parent


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Directory for what can be fetched or built again: ``$XDG_CACHE_HOME/cluster-accel``."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "cluster-accel"


def ensure_hadoop(report: Report, environ: Mapping[str, str] | None = None) -> HadoopInstall:
    """The Hadoop of this package, downloaded when it is not in the cache yet (about 100 MB, a minute).

    Args:
        report: gets one line per step of the download; silent when there is nothing to do.
        environ: environment to honour (JAVA_HOME, PATH, HOME, XDG_CACHE_HOME, Maven's own variables).

    Raises:
        StartupError: no Java 17, no Maven, no disk space, or Maven could not fetch; each with its cure.
    """
    environ = dict(os.environ if environ is None else environ)
    java = find_java(environ)
    home = cache_dir(environ) / f"hadoop-{HADOOP_VERSION}"
    installed = _load(home, java)
    if installed is not None:
        return installed
    java_version(java)
    _make_dir(home.parent)
    with locked(home.with_name(home.name + ".lock"), report):
        installed = _load(home, java)
        if installed is None:
            _resolve(home, environ, report)
            installed = _load(home, java)
    if installed is None:
        raise StartupError(f"{home} is not complete after the download", cure="remove it and try again")
    return installed


def from_hadoop_home(hadoop_home: Path, java: Path, cache: Path) -> HadoopInstall:
    """An unpacked Hadoop distribution (``share/hadoop/{common,hdfs,yarn,mapreduce}``) as an install.

    Nothing is written into ``hadoop_home``; the class path jar goes to ``cache``.

    Raises:
        StartupError: the layout is not that of a Hadoop distribution.
    """
    share = hadoop_home / "share" / "hadoop"
    jars: list[Path] = []
    for part in ("common", "hdfs", "yarn", "mapreduce"):
        found = sorted(share.glob(f"{part}/*.jar")) + sorted(share.glob(f"{part}/lib/*.jar"))
        jars += [jar for jar in found if not jar.name.endswith(("-tests.jar", "-sources.jar"))]
    streaming = sorted((share / "tools" / "lib").glob("hadoop-streaming*.jar"))
    if not jars or not streaming:
        missing = "share/hadoop/common/*.jar" if not jars else "share/hadoop/tools/lib/hadoop-streaming*.jar"
        raise StartupError(
            f"HADOOP_HOME={hadoop_home} has no {missing}",
            cure="let HADOOP_HOME name an unpacked Hadoop distribution, or unset it to use our own jars",
        )
    jars.append(streaming[-1])
    digest = hashlib.sha256(str(hadoop_home.resolve()).encode()).hexdigest()[:16]
    target = cache / f"home-{digest}" / "class-path.jar"
    _make_dir(target.parent)
    names = [os.path.relpath(jar.resolve(), target.parent.resolve()) for jar in jars]
    write_class_path_jar(target, names)
    version = _version_of(jars)
    return HadoopInstall(
        java, share, target, streaming[-1], version, len(jars), sum(jar.stat().st_size for jar in jars)
    )


def write_class_path_jar(target: Path, names: Sequence[str]) -> None:
    """Write an empty jar whose manifest's Class-Path lists ``names`` (relative to the jar), atomically.

    The same names give the same bytes, and an equal file is left alone: archives are keyed by its time stamp.
    """
    text = "Class-Path: " + " ".join(name.replace(" ", "%20") for name in names)
    lines = [text[:70]] + [" " + text[start : start + 69] for start in range(70, len(text), 69)]
    manifest = "Manifest-Version: 1.0\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    if target.exists():
        with contextlib.suppress(zipfile.BadZipFile, KeyError), zipfile.ZipFile(target) as old:
            if old.read("META-INF/MANIFEST.MF").decode() == manifest:
                return
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with zipfile.ZipFile(temporary, "w") as jar:
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", (1980, 1, 1, 0, 0, 0)), manifest)
    temporary.replace(target)


def class_path_names(class_path_jar: Path) -> list[str]:
    """The names that :func:`write_class_path_jar` wrote into a jar, in order."""
    with zipfile.ZipFile(class_path_jar) as jar:
        manifest = jar.read("META-INF/MANIFEST.MF").decode()
    text = manifest.replace("\r\n ", "").split("Class-Path: ")[1].split("\r\n")[0]
    return [name.replace("%20", " ") for name in text.split()]


@contextlib.contextmanager
def locked(path: Path, report: Report) -> Iterator[None]:
    """Hold an exclusive lock on a file; says so once when another process has it."""
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report(f"waiting for another process that works on {path.stem}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _load(home: Path, java: Path) -> HadoopInstall | None:
    try:
        record = json.loads((home / "install.json").read_text())
        sizes: dict[str, int] = record["jars"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    lib = home / "lib"
    for name, n_bytes in sizes.items():
        try:
            if (lib / name).stat().st_size != n_bytes:
                return None
        except OSError:
            return None
    class_path_jar = lib / "class-path.jar"
    if not class_path_jar.exists():
        return None
    streaming = lib / f"hadoop-streaming-{STREAMING_VERSION}.jar"
    return HadoopInstall(
        java, lib, class_path_jar, streaming, str(record["version"]), len(sizes), sum(sizes.values())
    )


def _resolve(home: Path, environ: Mapping[str, str], report: Report) -> None:
    maven = shutil.which("mvn", path=environ.get("PATH"))
    if maven is None:
        raise StartupError("Maven is not on this machine; it fetches Hadoop's jars", cure=MAVEN_CURE)
    free = shutil.disk_usage(home.parent).free
    if free < NEEDED_BYTES:
        raise StartupError(
            f"{home.parent} has {free // 2**20} MiB free, Hadoop's jars need {NEEDED_BYTES // 2**20} MiB",
            cure="free some space or let XDG_CACHE_HOME name a directory with more",
        )
    with tempfile.TemporaryDirectory(prefix=".hadoop-", dir=home.parent) as name:
        work = Path(name)
        (work / "pom.xml").write_text(pom_text())
        report(f"Hadoop {HADOOP_VERSION}: resolving its jars with Maven (about 100 MB when none are cached)")
        started_s = time.monotonic()
        _maven(maven, work, environ, report)
        jars = sorted((work / "lib").glob("*.jar"))
        sizes = {jar.name: jar.stat().st_size for jar in jars}
        if f"hadoop-streaming-{STREAMING_VERSION}.jar" not in sizes:
            raise StartupError("Maven left no hadoop-streaming jar", cure="see the settings of Maven")
        write_class_path_jar(work / "lib" / "class-path.jar", list(sizes))
        (work / "install.json").write_text(json.dumps({"version": HADOOP_VERSION, "jars": sizes}, indent=1))
        if home.exists():
            shutil.rmtree(home)
        ready = work / "ready"
        ready.mkdir()
        for part in ("pom.xml", "lib", "install.json"):
            (work / part).rename(ready / part)
        ready.rename(home)
    wall_s = time.monotonic() - started_s
    report(f"Hadoop {HADOOP_VERSION}: {len(sizes)} jars, {sum(sizes.values()) / 1e6:.0f} MB, {wall_s:.0f} s")


def pom_text() -> str:
    """The generated pom: the direct artifacts, and streaming without anything it would pull in."""
    dependencies = "".join(
        f"<dependency><groupId>org.apache.hadoop</groupId><artifactId>{name}</artifactId>"
        f"<version>{HADOOP_VERSION}</version></dependency>\n"
        for name in ARTIFACTS
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>cluster-accel</groupId><artifactId>hadoop</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}<dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-streaming</artifactId>
<version>{STREAMING_VERSION}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
</dependencies>
<build><plugins><plugin>
<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>
<version>{PLUGIN_VERSION}</version>
<executions><execution><phase>package</phase><goals><goal>copy-dependencies</goal></goals>
<configuration><includeScope>runtime</includeScope><outputDirectory>${{project.basedir}}/lib</outputDirectory>
</configuration></execution></executions>
</plugin></plugins></build>
</project>
"""


def _maven(maven: str, work: Path, environ: Mapping[str, str], report: Report) -> None:
    progress = _Progress(report)
    done = stream([maven, "-B", "-f", str(work / "pom.xml"), "package"], progress.line, env=environ, cwd=work)
    if not done.ok:
        errors = [line for line in done.stderr.splitlines() if line.startswith("[ERROR]")]
        first = errors[0][len("[ERROR]") :].strip() if errors else done.last_line()
        raise StartupError(
            f"Maven could not fetch Hadoop: {first[:300]}",
            cure="check the network, or the mirror and proxy in ~/.m2/settings.xml, and try again",
        )


class _Progress:
    """Turns Maven's download lines into one progress line every two seconds."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._n_files = 0
        self._next_s = time.monotonic() + 2

    def line(self, text: str) -> None:
        if "Downloaded from" not in text:
            return
        self._n_files += 1
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + 2
            name = text.rsplit("/", 2)[-2:] if "/s)" in text else [text]
            last = "/".join(name).split(" (")[0].rsplit("/", 1)[-1]
            self._report(f"Hadoop {HADOOP_VERSION}: {self._n_files} files fetched, last {last}")


def _make_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"{path} cannot be made: {error.strerror}", cure="let XDG_CACHE_HOME name a writable directory"
        ) from error


def _version_of(jars: Sequence[Path]) -> str:
    for jar in jars:
        if jar.name.startswith("hadoop-common-"):
            return jar.stem[len("hadoop-common-") :]
    return ""
