"""Hadoop's jars and the Java that runs them: of a HADOOP_HOME, or fetched by ``yarn-accel hadoop fetch``.

Every Hadoop process starts with one class path entry: an empty jar whose manifest lists all the others. It
lists them by relative name, because class data sharing refuses absolute ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.errors import StartupError

HADOOP_VERSION = "3.5.0"
"""The version that ``yarn-accel hadoop fetch`` fetches."""


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


def fetched_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The directory that fetched jars lie in, whether they were fetched or not."""
    return cache_dir(environ) / f"hadoop-{HADOOP_VERSION}"


def fetched(java: Path, environ: Mapping[str, str] | None = None) -> HadoopInstall | None:
    """The jars in the cache; None unless all are there in full size."""
    home = fetched_dir(environ)
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
