"""The Python environment of the containers as one file, named by its content.

It holds this package, from the folder that it was imported from, and the installed distributions that it
requires.  These declare what they require, so containers get the environment that this machine was tested
with, without the tools of developers.

It is a plain zip archive: sorted names, fixed times, no file of this machine's own, so that equal
installations give equal bytes.  It is made again only when a file it consists of has changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

import yarn_accel
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch.bootstrap import REQUIREMENT, content_digest, node_facts

_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Level 6 takes two and a half times as long for 6 % fewer bytes.
_LEVEL = 3
#: Symbol versions of the C library, as they stand in the string table of a shared library.
_GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])")
_OLDEST_GLIBC = (2, 17)
#: Environments kept in the cache folder of this machine.
_KEEP = 3


@dataclass(frozen=True, slots=True)
class Requirement:
    """The requirements of an environment to a node.

    Attributes:
        python: minor version of its interpreter, such as 3.11.
        extension_suffix: how compiled modules end there; names the interpreter's kind and the platform.
        machine: such as x86_64.
        glibc: the oldest C library that suffices, such as 2.28.
    """

    python: str
    extension_suffix: str
    machine: str
    glibc: str


@dataclass(frozen=True, slots=True)
class Environment:
    """One packed environment.

    Attributes:
        path: the archive on this machine, called ``accel-environment-DIGEST.zip``.
        digest: of its content, 32 hexadecimal digits.
        requirement: what a node must have.
        n_bytes: length of the archive.
        n_unpacked_bytes: what it takes on a node's disk.
        n_files: files in it.
    """

    path: Path
    digest: str
    requirement: Requirement
    n_bytes: int
    n_unpacked_bytes: int
    n_files: int


def cache_folder() -> Path:
    """The folder of packed environments on this machine, below ``XDG_CACHE_HOME``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "yarn-accel" / "environments"


def pack(
    extras: Sequence[str] = ("yarn",), more: Sequence[str] = (), folder: Path | None = None
) -> Environment:
    """Pack what the running interpreter uses, unless it is packed already.

    Args:
        extras: extras of our own distribution to take along.
        more: names of further installed distributions, such as a site's own operations.
        folder: where archives are kept; default `cache_folder`.

    Raises:
        StartupError: something needed is not installed, or the archive cannot be written.
    """
    folder = folder or cache_folder()
    named = {
        **files(distributions(extras, more).values()),
        **own_files(),
    }
    record = folder / f"{_stamp(named)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = _remembered(record)
        if known is None:
            known = _pack(named, folder)
            _remember(record, known)
            _sweep(folder, known)
    except OSError as error:
        raise StartupError(
            f"{folder}: {error.strerror}", cure="free disk space there, or set XDG_CACHE_HOME"
        ) from None
    return known


def _stamp(named: Mapping[str, Path]) -> str:
    """A digest that changes when any of the files does; costs one system call per file."""
    digest = hashlib.sha256(json.dumps(node_facts(), sort_keys=True).encode())
    for name in sorted(named):
        with _reading(named[name]):
            status = named[name].stat()
        digest.update(f"{name}\0{named[name]}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the installed file that cannot be read: an OSError would blame the cache's folder."""
    try:
        yield
    except OSError as error:
        raise StartupError(
            f"{path}, an installed file: {error.strerror}", cure="install its package again, then try again"
        ) from None


def _remembered(record: Path) -> Environment | None:
    try:
        values = json.loads(record.read_text(encoding="ascii"))
        path = record.parent / values.pop("path")
        requirement = Requirement(**values.pop("requirement"))
        known = Environment(path=path, requirement=requirement, **values)
        return known if path.stat().st_size == known.n_bytes else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _pack(named: Mapping[str, Path], folder: Path) -> Environment:
    """Write the archive under a temporary name and collect what it needs and contains."""
    temporary = folder / f".{os.getpid()}.tmp"
    glibc = _OLDEST_GLIBC
    entries: dict[str, tuple[str, bool]] = {}
    n_unpacked_bytes = 0

    def add(name: str, content: bytes, is_executable: bool) -> None:
        nonlocal n_unpacked_bytes
        entry = zipfile.ZipInfo(name, _EPOCH)
        entry.create_system = 3
        entry.external_attr = (0o755 if is_executable else 0o644) << 16
        archive.writestr(entry, content, zipfile.ZIP_DEFLATED, _LEVEL)
        entries[name] = hashlib.sha256(content).hexdigest(), is_executable
        n_unpacked_bytes += len(content)

    try:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, path in sorted(named.items()):
                with _reading(path):
                    content = path.read_bytes()
                add(name, content, os.access(path, os.X_OK) and path.suffix != ".py")
                glibc = max(glibc, _glibc_of(content))
            requirement = Requirement(**{**node_facts(), "glibc": "{}.{}".format(*glibc)})
            add(REQUIREMENT, json.dumps(asdict(requirement), sort_keys=True).encode(), False)
        digest = content_digest(entries)
        path = temporary.rename(folder / f"accel-environment-{digest}.zip")
    finally:
        temporary.unlink(missing_ok=True)
    return Environment(path, digest, requirement, path.stat().st_size, n_unpacked_bytes, len(entries))


def _glibc_of(content: bytes) -> tuple[int, int]:
    """The version of the C library that a shared library or program asks for."""
    if content[:4] != b"\x7fELF":
        return _OLDEST_GLIBC
    return max(((int(a), int(b)) for a, b in _GLIBC.findall(content)), default=_OLDEST_GLIBC)


def _remember(record: Path, known: Environment) -> None:
    temporary = record.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(asdict(known) | {"path": known.path.name}), encoding="ascii")
    temporary.rename(record)


def _sweep(folder: Path, known: Environment) -> None:
    """Remove all but the newest archives, and the records of archives that are gone."""
    archives = sorted(folder.glob("accel-environment-*.zip"), key=lambda path: -path.stat().st_mtime)
    for path in archives[_KEEP:]:
        if path != known.path:
            path.unlink(missing_ok=True)
    for record in folder.glob("*.json"):
        if _remembered(record) is None:
            record.unlink(missing_ok=True)


DISTRIBUTION = "cluster-accel"
REINSTALL_CURE = "install it with pip into the environment of {}"
#: Never read when our programs run.  Metadata that differs between machines is left out too.
_UNUSED_FOLDERS = frozenset({"__pycache__", "tests"})
_UNUSED_SUFFIXES = frozenset({".a", ".nbc", ".nbi", ".pyc", ".pyi"})
MACHINE_METADATA = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"})


def distributions(
    extras: Sequence[str] = ("yarn",), more: Sequence[str] = ()
) -> dict[str, importlib.metadata.Distribution]:
    """The installed distributions our package needs with some of its extras, by name, without itself.

    Args:
        extras: extras of our own distribution.
        more: names of further distributions, with whatever they need.

    Raises:
        ConfigError: no such extra.
        StartupError: one that is needed is not installed.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    _check_extras(extras)
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = [Requirement(name) for name in (f"{DISTRIBUTION}[{','.join(extras)}]", *more)]
    done: set[tuple[str, str]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in done:
                done.add((name, extra))
                found[name] = _installed(name)
                asked = [Requirement(text) for text in found[name].requires or ()]
                todo += [r for r in asked if r.marker is None or r.marker.evaluate({"extra": extra})]
    del found[DISTRIBUTION]
    return dict(sorted(found.items()))


def _check_extras(extras: Iterable[str]) -> None:
    """Refuse extras that nobody defines: they would pack nothing, and fail on the nodes only."""
    known = _installed(DISTRIBUTION).metadata.get_all("Provides-Extra") or ()
    for extra in extras:
        if extra not in known:
            raise ConfigError(f"environment.extras: unknown extra {extra}; known: {', '.join(known)}")


def _installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise StartupError(f"{name} is not installed", cure=REINSTALL_CURE.format(sys.executable)) from None


def files(found: Iterable[importlib.metadata.Distribution]) -> dict[str, Path]:
    """Name below the environment's folder -> file, for the files of distributions that are read at run time.

    Raises:
        StartupError: a distribution does not list its files, or a file it lists is gone.
    """
    named: dict[str, Path] = {}
    for distribution in found:
        name = distribution.metadata["Name"]
        listed = [path for path in distribution.files or () if _is_used(path)]
        if not any(path.parent.suffix != ".dist-info" for path in listed):
            raise StartupError(
                f"{name} does not say which files it consists of (an editable or a system package?)",
                cure=REINSTALL_CURE.format(sys.executable),
            )
        for path in listed:
            source = Path(str(path.locate()))
            if not source.is_file():
                raise StartupError(f"{name}: {source} is gone", cure=f"install {name} again")
            named[path.as_posix()] = source
    return named


def own_files() -> dict[str, Path]:
    """The same for this package, from the folder that it was imported from."""
    return dict(_walk(Path(yarn_accel.__file__).parent))


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder.parent).as_posix()
        if path.is_file() and _is_used(PurePosixPath(name)):
            yield name, path


def _is_used(path: PurePosixPath) -> bool:
    if path.is_absolute() or ".." in path.parts or path.suffix in _UNUSED_SUFFIXES:
        return False
    if path.parent.suffix == ".dist-info" and path.name in MACHINE_METADATA:
        return False
    return not _UNUSED_FOLDERS.intersection(path.parts[:-1])
