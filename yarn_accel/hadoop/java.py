"""Hadoop's Java programs: where Java is, which jars there are, and the argument list of one process.

Jars come from a HADOOP_HOME, or were fetched by ``yarn-accel hadoop fetch``.  Every Hadoop process starts
with one class path entry: an empty jar whose manifest lists all the others.  It lists them by relative name,
because class data sharing refuses absolute ones.

The flags make a dozen JVMs bearable on two cores: only the first compiler tier, the serial collector, and a
class data archive that holds the parsed classes of all jars.

Jars from Maven come without Hadoop's scripts ``yarn``, ``mapred``, ``hdfs`` and ``hadoop``.  `PROGRAMS` says
what stands behind their commands; those that start daemons are not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.adapters.commands import run
from yarn_accel.errors import ConfigError, StartupError

OLDEST_JAVA = 17
"""Hadoop 3.5 is Java 17 byte code."""
JAVA_CURE = "apt-get install -y openjdk-17-jdk-headless (or set JAVA_HOME to a JDK 17 or newer)"
_INSTALLED = Path("/usr/lib/jvm")


def find_java(environ: Mapping[str, str] | None = None, installed: Path = _INSTALLED) -> Path:
    """The ``java`` program, with links resolved.

    JAVA_HOME decides. Otherwise the one on PATH is taken, unless it is too old and ``installed``, where
    distributions put their JDKs, has one that is not.

    Raises:
        StartupError: there is none.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME", "")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise StartupError(f"JAVA_HOME={home} has no bin/java", cure=JAVA_CURE)
        return java.resolve()
    candidates = list(_candidates(environ, installed))
    if not candidates:
        raise StartupError("Java is not on this machine", cure=JAVA_CURE)
    return next((java for java in candidates if not _is_too_old(java)), candidates[0])


def _candidates(environ: Mapping[str, str], installed: Path) -> Iterator[Path]:
    found = shutil.which("java", path=environ.get("PATH"))
    if found is not None:
        yield Path(found).resolve()
    for java in sorted(installed.glob(f"*{OLDEST_JAVA}*/bin/java")):
        yield java.resolve()


def _is_too_old(java: Path) -> bool:
    """By the ``release`` file of its JDK; a JDK without one gets the benefit of the doubt."""
    try:
        release = (java.parents[1] / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    match = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return match is not None and int(match.group(1)) < OLDEST_JAVA


def java_version(java: Path) -> tuple[int, str]:
    """Major version and the full version text of a ``java`` program (about 0.1 s).

    Raises:
        StartupError: it does not run, or it is older than 17.
    """
    done = run([str(java), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-version"], 60)
    match = re.search(r'version "(\d+)[^"]*"', done.stderr)
    if not done.ok or match is None:
        raise StartupError(f"{java} -version failed: {done.last_line()}", cure=JAVA_CURE)
    major = int(match.group(1))
    if major < OLDEST_JAVA:
        raise StartupError(f"{java} is version {major}, Hadoop 3.5 needs {OLDEST_JAVA}", cure=JAVA_CURE)
    return major, done.stderr.strip()


# ---- the jars

HADOOP_VERSION = "3.5.0"
"""The version that ``yarn-accel hadoop fetch`` fetches unless it is given another one."""
_VERSION_TEXT = re.compile(r"\d+\.\d+\.\d+")


def check_hadoop_version(version: str) -> None:
    """Refuse a text that is no version of Hadoop.

    Raises:
        ConfigError: it is none.
    """
    if not _VERSION_TEXT.fullmatch(version):
        raise ConfigError(f"{version!r} is no version of Hadoop", cure=f"give one such as {HADOOP_VERSION}")


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


def make_cache_dir(path: Path) -> None:
    """Make a directory in the cache.

    Raises:
        StartupError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"{path} cannot be made: {error.strerror}", cure="let XDG_CACHE_HOME name a writable directory"
        ) from error


def fetched_dir(environ: Mapping[str, str] | None = None, version: str = HADOOP_VERSION) -> Path:
    """The directory that fetched jars of a version lie in, whether they were fetched or not."""
    return cache_dir(environ) / f"hadoop-{version}"


def fetched(
    java: Path, environ: Mapping[str, str] | None = None, version: str = HADOOP_VERSION
) -> HadoopInstall | None:
    """The jars of a version in the cache; None unless all are there in full size."""
    home = fetched_dir(environ, version)
    try:
        record = json.loads((home / "install.json").read_text())
        sizes: dict[str, int] = record["jars"]
        streaming = next(name for name in sizes if name.startswith("hadoop-streaming-"))
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
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
    return HadoopInstall(
        java, lib, class_path_jar, lib / streaming, str(record["version"]), len(sizes), sum(sizes.values())
    )


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
            cure="let HADOOP_HOME name an unpacked Hadoop distribution, or unset it to use fetched jars",
        )
    jars.append(streaming[-1])
    digest = hashlib.sha256(str(hadoop_home.resolve()).encode()).hexdigest()[:16]
    target = cache / f"home-{digest}" / "class-path.jar"
    make_cache_dir(target.parent)
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


def _version_of(jars: Sequence[Path]) -> str:
    for jar in jars:
        if jar.name.startswith("hadoop-common-"):
            return jar.stem[len("hadoop-common-") :]
    return ""


# ---- the argument list of a process

MAIN_CLASSES: Mapping[str, str] = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "zkfc": "org.apache.hadoop.hdfs.tools.DFSZKFailoverController",
    "zookeeper": "org.apache.zookeeper.server.ZooKeeperServerMain",
    "historyserver": "org.apache.hadoop.mapreduce.v2.hs.JobHistoryServer",
    "streaming": "org.apache.hadoop.streaming.HadoopStreaming",
}
# The set which Hadoop's own launcher opens (HADOOP-19310, hadoop-functions.sh).
_OPENED = (
    "java.io",
    "java.lang",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.text",
    "java.util",
    "java.util.concurrent",
    "java.util.zip",
    "sun.security.util",
    "sun.security.x509",
)
ADD_OPENS: tuple[str, ...] = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)
LEAN_FLAGS: tuple[str, ...] = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Without libhadoop a NodeManager runs chmod 18 times before each container; so each is one exec, not two.
    "-Djdk.lang.Process.launchMechanism=VFORK",
)
# By default the first heap is 1/64 of the machine's memory, all of which an idle daemon would have touched.
FIRST_HEAP_MIB = 48


def class_path(install: HadoopInstall, conf_dir: Path, extra: Sequence[str | Path] = ()) -> str:
    """Class path text: the jars first (the archive matches a prefix), then ``extra``, then ``conf_dir``."""
    return os.pathsep.join(str(entry) for entry in (install.class_path_jar, *extra, conf_dir))


def archive_options(archive: Path | None) -> list[str]:
    """The JVM options that use a class data archive; none without one.

    The archive is mapped where it was made for: by default JDK 17.0.15 moves it to a random address, which
    writes to nearly all of its pages, so that every JVM has its own copy of 115 MB.
    """
    if archive is None:
        return []
    mapping = ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]
    return ["-XX:+IgnoreUnrecognizedVMOptions", *mapping, f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]


def java_argv(
    install: HadoopInstall,
    main_class: str,
    conf_dir: Path,
    *,
    heap_mib: int = 256,
    properties: Mapping[str, str] | None = None,
    archive: Path | None = None,
    extra_class_path: Sequence[str | Path] = (),
    jvm_options: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> list[str]:
    """The argument list that starts one Hadoop process. Pure.

    Args:
        install: the jars and the ``java`` program.
        main_class: a role of :data:`MAIN_CLASSES` or a full class name.
        conf_dir: directory with the ``*-site.xml`` files.
        heap_mib: largest heap in MiB.
        properties: ``-D`` system properties, in order; Hadoop expands ``${name}`` in its settings from them.
        archive: a class data archive that fits the jars, or None.
        extra_class_path: directories or jars that win over ``conf_dir`` (a node's ``node-resources.xml``).
        jvm_options: further options for the JVM, placed last so that they win.
        arguments: arguments of the main class.
    """
    argv = [str(install.java), f"-Xmx{heap_mib}m", *LEAN_FLAGS, *ADD_OPENS, "-Djava.net.preferIPv4Stack=true"]
    argv += [f"-Xms{min(FIRST_HEAP_MIB, heap_mib)}m", *archive_options(archive)]
    argv += [f"-D{name}={value}" for name, value in (properties or {}).items()]
    argv += [*jvm_options, "-cp", class_path(install, conf_dir, extra_class_path)]
    argv += [MAIN_CLASSES.get(main_class, main_class), *arguments]
    return argv


# ---- the commands of Hadoop's scripts

_RUN_JAR = "org.apache.hadoop.util.RunJar"
_VERSION = "org.apache.hadoop.util.VersionInfo"
_YARN = "org.apache.hadoop.yarn.client.cli."
_HDFS = "org.apache.hadoop.hdfs.tools."
_SHELL = "org.apache.hadoop.fs.FsShell"
PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "hadoop": {"fs": _SHELL, "jar": _RUN_JAR, "version": _VERSION},
    "hdfs": {
        "balancer": "org.apache.hadoop.hdfs.server.balancer.Balancer",
        "dfs": _SHELL,
        "dfsadmin": _HDFS + "DFSAdmin",
        "ec": _HDFS + "ECAdmin",
        "fsck": _HDFS + "DFSck",
        "getconf": _HDFS + "GetConf",
        "storagepolicies": _HDFS + "StoragePolicyAdmin",
        "version": _VERSION,
    },
    "mapred": {
        "job": "org.apache.hadoop.mapred.JobClient",
        "queue": "org.apache.hadoop.mapred.JobQueueClient",
        "streaming": "org.apache.hadoop.streaming.HadoopStreaming",
        "version": _VERSION,
    },
    "yarn": {
        "app": _YARN + "ApplicationCLI",
        "application": _YARN + "ApplicationCLI",
        "applicationattempt": _YARN + "ApplicationCLI",
        "container": _YARN + "ApplicationCLI",
        "jar": _RUN_JAR,
        "logs": _YARN + "LogsCLI",
        "node": _YARN + "NodeCLI",
        "queue": _YARN + "QueueCLI",
        "rmadmin": _YARN + "RMAdminCLI",
        "top": _YARN + "TopCLI",
        "version": _VERSION,
    },
}
#: The class of these serves several commands and needs its name as the first argument.
_NAMED_FIRST = ("app", "application", "applicationattempt", "container")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_$][\w$]*)+")


def main_class(program: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the class that a command line of Hadoop's stands for, and the arguments of that class.

    >>> main_class("hdfs", ["dfs", "-ls", "/"])
    ('org.apache.hadoop.fs.FsShell', ['-ls', '/'])

    As with Hadoop's own scripts, the full name of a class does for a command.

    Raises:
        ConfigError: no such command; the cure lists those there are.
    """
    commands = PROGRAMS[program]
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if name in commands:
        name_first = [name] if program == "yarn" and name in _NAMED_FIRST else []
        return commands[name], name_first + rest
    if _CLASS.fullmatch(name):
        return name, rest
    problem = f"there is no command {program} {name}" if name else f"{program} needs a command"
    raise ConfigError(problem, cure=f"the commands are {', '.join(commands)}, or the full name of a class")
