"""The software of a test bed: Hadoop's jars, from Maven's repository, and a class data archive for every JVM.

Maven repositories hold no binary tarball of Hadoop. A generated pom names the direct artifacts, and Maven
copies them with all they need into one directory. That takes Maven up to a minute and a half, one request
after another. So a list in the folder `jars` names all of them for a version, with their sizes and SHA-256,
and they are fetched side by side from the repository that this machine's Maven names. Maven does the work
itself where there is no such list, where its settings name a mirror or a proxy, and where that fails.
A download goes to a directory of its own, which is renamed when it is complete, under a lock. So no process
sees half a download, and two commands at once download once.

A JVM maps the class data archive instead of reading and verifying thousands of classes. That halves the start
of a daemon and more than halves that of a task. The archive is dumped from a class list, which was recorded
once from runs of every role (`yarn_accel.testbed.single_node`). It holds for any class path that begins with
the class path jar: configuration directories come after that jar.

The JVM ignores an archive that does not fit its jars, and logs nothing. So the archive's name is a hash over
the JVM's version, the jars (name, size, time stamp) and the class list: a change of any of them gets a new
archive. After a dump the archive is tried, and thrown away unless the JVM takes Hadoop's classes from it.

The image of `docker/Dockerfile` is built with this module and the few that it imports.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import gzip
import hashlib
import http.client
import json
import os
import shutil
import tempfile
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from yarn_accel.adapters.commands import run, stream
from yarn_accel.errors import AccelError, StartupError
from yarn_accel.hadoop.java import (
    HADOOP_VERSION,
    LEAN_FLAGS,
    HadoopInstall,
    archive_options,
    check_hadoop_version,
    class_path_names,
    fetched,
    fetched_dir,
    find_java,
    java_version,
    make_cache_dir,
    write_class_path_jar,
)

# Other releases of this one artifact are not published; it runs unmodified on 3.3.6 and 3.5.0.
STREAMING_VERSION = "3.4.2"
# What that release of it was built with; 3.3.6 brings 1.2, which it does not run with.
COMMONS_CLI_VERSION = "1.9.0"
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

#: A line per jar: its path in a Maven repository, its bytes, its SHA-256. `write_jar_list` makes one.
JAR_LISTS = Path(__file__).resolve().parent / "jars"
N_DOWNLOADS = 8
DOWNLOAD_TRIES = 3
DOWNLOAD_TIMEOUT_S = 30
_PIECE_BYTES = 1 << 16

CLASS_LIST = Path(__file__).resolve().parent / "classes" / f"hadoop-{HADOOP_VERSION}.lst.gz"
KEPT_ARCHIVES = 2
#: A dump takes half a minute of CPU, and a busy machine may give it little.
DUMP_TIMEOUT_S = 3600

Report = Callable[[str], None]


@dataclass(frozen=True)
class Software:
    """The files that daemons run from.

    Attributes:
        install: the jars and the Java program.
        archive: the class data archive; None runs without.
    """

    install: HadoopInstall
    archive: Path | None


def ensure_software(report: Report, version: str = HADOOP_VERSION) -> Software:
    """Return the jars and the class data archive, made where they are missing; see `ensure_hadoop`."""
    install = ensure_hadoop(report, version=version)
    return Software(install, ensure_archive(install, report))


# ---- the jars


def ensure_hadoop(
    report: Report, environ: Mapping[str, str] | None = None, version: str = HADOOP_VERSION
) -> HadoopInstall:
    """Return Hadoop's jars, downloaded when they are not in the cache yet (about 100 MB, a minute).

    Args:
        report: gets one line per step of the download; silent when there is nothing to do.
        environ: environment to honour (JAVA_HOME, PATH, HOME, XDG_CACHE_HOME, Maven's own variables).
        version: of Hadoop.

    Raises:
        ConfigError: that is no version.
        StartupError: no Java 17, no Maven, no disk space, or Maven could not fetch; each with its cure.
    """
    check_hadoop_version(version)
    environ = dict(os.environ if environ is None else environ)
    java = find_java(environ)
    installed = fetched(java, environ, version)
    if installed is not None:
        return installed
    java_version(java)
    home = fetched_dir(environ, version)
    make_cache_dir(home.parent)
    with locked(home.with_name(home.name + ".lock"), report):
        installed = fetched(java, environ, version)
        if installed is None:
            _resolve(home, version, environ, report)
            installed = fetched(java, environ, version)
    if installed is None:
        raise StartupError(f"{home} is not complete after the download", cure="remove it and try again")
    return installed


@contextlib.contextmanager
def locked(path: Path, report: Report) -> Iterator[None]:
    """Hold an exclusive lock on a file; report once when another process holds it."""
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report(f"waiting for another process that works on {path.stem}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _resolve(home: Path, version: str, environ: Mapping[str, str], report: Report) -> None:
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
        (work / "pom.xml").write_text(pom_text(version))
        started_s = time.monotonic()
        if not _fetch_listed(Path(maven), work / "lib", version, environ, report):
            report(f"Hadoop {version}: resolving its jars with Maven (about 100 MB when none are cached)")
            _maven(maven, work, version, environ, report)
        jars = sorted((work / "lib").glob("*.jar"))
        sizes = {jar.name: jar.stat().st_size for jar in jars}
        if f"hadoop-streaming-{STREAMING_VERSION}.jar" not in sizes:
            raise StartupError("Maven left no hadoop-streaming jar", cure="see the settings of Maven")
        write_class_path_jar(work / "lib" / "class-path.jar", list(sizes))
        (work / "install.json").write_text(json.dumps({"version": version, "jars": sizes}, indent=1))
        if home.exists():
            shutil.rmtree(home)
        ready = work / "ready"
        ready.mkdir()
        for part in ("pom.xml", "lib", "install.json"):
            (work / part).rename(ready / part)
        ready.rename(home)
    wall_s = time.monotonic() - started_s
    report(f"Hadoop {version}: {len(sizes)} jars, {sum(sizes.values()) / 1e6:.0f} MB, {wall_s:.0f} s")


def pom_text(version: str) -> str:
    """The generated pom: the direct artifacts, and streaming without anything it would pull in but one."""
    dependencies = "".join(
        f"<dependency><groupId>org.apache.hadoop</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>\n"
        for name in ARTIFACTS
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>cluster-accel</groupId><artifactId>hadoop</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}<dependency><groupId>commons-cli</groupId><artifactId>commons-cli</artifactId>
<version>{COMMONS_CLI_VERSION}</version></dependency>
<dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-streaming</artifactId>
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


def _maven(maven: str, work: Path, version: str, environ: Mapping[str, str], report: Report) -> None:
    progress = _Progress(report, version)
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

    def __init__(self, report: Report, version: str) -> None:
        self._report, self._version = report, version
        self._n_files = 0
        self._next_s = time.monotonic() + 2

    def line(self, text: str) -> None:
        if "Downloaded from" in text:
            name = text.rsplit("/", 2)[-2:] if "/s)" in text else [text]
            self.fetched("/".join(name).split(" (")[0].rsplit("/", 1)[-1])

    def fetched(self, name: str) -> None:
        self._n_files += 1
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + 2
            self._report(f"Hadoop {self._version}: {self._n_files} files fetched, last {name}")


@dataclass(frozen=True, slots=True)
class ListedJar:
    """A jar that must be this very one.

    Attributes:
        path: in a Maven repository.
        n_bytes: its size.
        sha256: of its content, in hexadecimal.
    """

    path: str
    n_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """Its name in the folder of all jars."""
        return self.path.rsplit("/", 1)[-1]

    def is_at(self, place: Path) -> bool:
        """Whether a file is this jar."""
        try:
            if place.stat().st_size != self.n_bytes:
                return False
            return hashlib.sha256(place.read_bytes()).hexdigest() == self.sha256
        except OSError:
            return False


def jar_list(version: str) -> list[ListedJar]:
    """All jars of a version of Hadoop; none where the package has no list of it."""
    place = JAR_LISTS / f"hadoop-{version}.txt"
    if not place.exists():
        return []
    rows = (line.split() for line in place.read_text(encoding="ascii").splitlines())
    return [ListedJar(path, int(n_bytes), sha256) for path, n_bytes, sha256 in rows]


def write_jar_list(install: HadoopInstall, repository: Path) -> Path:
    """Write the list of the jars that Maven has fetched, for maintainers when the Hadoop version changes.

    Args:
        repository: Maven's own, usually ``~/.m2/repository``, which has the same files.
    """
    lines = []
    for name in class_path_names(install.class_path_jar):
        content = (install.lib_dir / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        path = next(each for each in repository.rglob(name) if each.read_bytes() == content)
        lines.append(f"{path.relative_to(repository)} {len(content)} {digest}\n")
    place = JAR_LISTS / f"hadoop-{install.version}.txt"
    place.write_text("".join(sorted(lines)), encoding="ascii")
    return place


def central_repository(maven: Path, environ: Mapping[str, str]) -> str | None:
    """The URL that Maven would fetch from; None where its settings, which it alone follows, may differ."""
    program = maven.resolve().parent.parent
    own = Path(environ.get("HOME") or Path.home()) / ".m2" / "settings.xml"
    if own.exists() or environ.get("MAVEN_ARGS") or environ.get("MAVEN_OPTS") or urllib.request.getproxies():
        return None
    try:
        for place in program.glob("conf/settings.xml"):
            settings = ElementTree.parse(place).getroot()
            # Maven's own settings have a mirror which does nothing but block.
            mirrors = [each.findtext("{*}blocked") for each in settings.iterfind("{*}mirrors/{*}mirror")]
            if set(mirrors) - {"true"} or settings.find("{*}proxies/{*}proxy") is not None:
                return None
        (models,) = program.glob("lib/maven-model-builder*.jar")
        with zipfile.ZipFile(models) as jar:
            model = ElementTree.fromstring(jar.read("org/apache/maven/model/pom-4.0.0.xml"))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, ElementTree.ParseError):
        return None
    url = model.findtext("{*}repositories/{*}repository/{*}url")
    return url.strip().rstrip("/") if url else None


def _fetch_listed(maven: Path, lib: Path, version: str, environ: Mapping[str, str], report: Report) -> bool:
    """Fetch the jars of the version's list; False, and nothing is left, where that cannot be done."""
    jars, url = jar_list(version), central_repository(maven, environ)
    if not jars or url is None:
        return False
    kept = Path(environ.get("HOME") or Path.home()) / ".m2" / "repository"
    n_bytes = sum(jar.n_bytes for jar in jars)
    report(f"Hadoop {version}: fetching {len(jars)} jars, {n_bytes / 1e6:.0f} MB, {N_DOWNLOADS} at a time")
    progress = _Progress(report, version)
    lib.mkdir()
    # The large ones first, so that none of them is the last one.
    waiting = collections.deque(sorted(jars, key=lambda jar: -jar.n_bytes))

    def work() -> None:
        with contextlib.closing(_RepositoryConnection(url)) as connection:
            while waiting:
                with contextlib.suppress(IndexError):  # another thread took the last one
                    jar = waiting.popleft()
                    if jar.is_at(kept / jar.path):
                        shutil.copyfile(kept / jar.path, lib / jar.name)
                    else:
                        connection.fetch(jar, lib / jar.name)
                    progress.fetched(jar.name)

    with ThreadPoolExecutor(N_DOWNLOADS) as pool:
        for done in [pool.submit(work) for _ in range(N_DOWNLOADS)]:
            try:
                done.result()
            except OSError as error:
                waiting.clear()
                failure = str(error)
                break
        else:
            return True
    shutil.rmtree(lib)
    report(f"Hadoop {version}: {failure}, so Maven tries")
    return False


class _RepositoryConnection:
    """To a Maven repository: a new one for each of 191 jars would take ten times as long."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        kind = http.client.HTTPConnection if self._url.scheme == "http" else http.client.HTTPSConnection
        self._http = kind(self._url.netloc, timeout=DOWNLOAD_TIMEOUT_S)

    def fetch(self, jar: ListedJar, target: Path) -> None:
        """Download a jar.

        Raises:
            OSError: the last try failed, or it is another one than the list says.
        """
        problem = "its size or SHA-256 is not as listed"
        for _ in range(DOWNLOAD_TRIES):
            try:
                self._try(jar, target)
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            else:
                if jar.is_at(target):
                    return
            self._http.close()
        raise OSError(f"{jar.name} cannot be fetched: {problem}")

    def _try(self, jar: ListedJar, target: Path) -> None:
        self._http.request("GET", f"{self._url.path}/{jar.path}")
        answer = self._http.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise OSError(f"the repository answers {answer.status} {answer.reason}")
        n_left = jar.n_bytes + 1
        with target.open("wb") as file:
            while n_left and (piece := answer.read(min(n_left, _PIECE_BYTES))):
                file.write(piece)
                n_left -= len(piece)

    def close(self) -> None:
        """End it."""
        self._http.close()


# ---- the class data archive


def ensure_archive(install: HadoopInstall, report: Report, class_list: Path = CLASS_LIST) -> Path | None:
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


def _build(install: HadoopInstall, target: Path, class_list: Path, report: Report) -> None:
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
