"""The Python environment of the containers as one file, named by its content.

It is a plain zip archive: sorted names, fixed times, no file of this machine's own, so that equal
installations give equal bytes.  It is made again only when a file it consists of has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from yarn_accel.errors import StartupError
from yarn_accel.launch import import_closure
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
        **import_closure.files(import_closure.distributions(extras, more).values()),
        **import_closure.own_files(),
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
        status = named[name].stat()
        digest.update(f"{name}\0{named[name]}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


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
