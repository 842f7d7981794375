"""Modules as zip files that travel with a DAG: made of a package, or given and checked.

Workers import from them and never unpack them. They are refused all the same where a name in them leads out
of the folder that somebody might unpack them into.
"""

from __future__ import annotations

import importlib.util
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

from yarn_accel.client.archive import write_archive
from yarn_accel.errors import ConfigError

#: Of an archive, and of what is in it.
MAX_ARCHIVE_BYTES = 64 << 20
_MAX_ENTRIES = 10_000
_LEFT_OUT = (".pyc", ".pyo")


def package_archive(packages: Iterable[str], target: Path) -> Path:
    """Write packages or modules of this interpreter to the zip file `target`; equal sources give equal bytes.

    A package inside another one travels with the `__init__.py` above it, and nothing else of that.

    Args:
        packages: their names, such as ``mypackage`` or ``mypackage.steps``. None is imported, but those that
            have others in them.

    Raises:
        ConfigError: one is not there, is not of plain files, or all are too large.
    """
    content: dict[str, bytes] = {}
    n_bytes = 0
    for name, path in sorted(_sources(packages).items()):
        n_bytes += path.stat().st_size
        if n_bytes > MAX_ARCHIVE_BYTES or len(content) >= _MAX_ENTRIES:
            raise ConfigError(
                f"{', '.join(packages)}: more than {MAX_ARCHIVE_BYTES >> 20} MiB or {_MAX_ENTRIES} files",
                cure="name the package inside it that has the functions; ship data as `files`",
            )
        content[name] = path.read_bytes()
    return write_archive(target, content, is_compressed=True)


def check_archive(path: Path) -> None:
    """Refuse what is no zip file, is too large, or has absolute names, `..` or links in it.

    Raises:
        ConfigError: names the file and the entry.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"{path}: no zip file: {error}", cure="make it with `python -m zipfile -c`"
        ) from None
    if len(entries) > _MAX_ENTRIES or sum(each.file_size for each in entries) > MAX_ARCHIVE_BYTES:
        raise ConfigError(
            f"{path}: more than {MAX_ARCHIVE_BYTES >> 20} MiB or {_MAX_ENTRIES} files", cure="ship less"
        )
    for entry in entries:
        # `filename` has been cut at a NUL, with this system's separators replaced; the original says more.
        name = entry.orig_filename.replace("\\", "/")
        if name.startswith("/") or name[1:2] == ":" or ".." in name.split("/") or "\0" in name:
            raise ConfigError(
                f"{path}: {entry.orig_filename[:200]!r} is absolute or has `..`",
                cure="make the archive in the folder that has the packages",
            )
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise ConfigError(
                f"{path}: {name[:200]!r} is a symbolic link", cure="put the file itself into the archive"
            )


def archived_modules(path: Path) -> set[str]:
    """The modules and packages that can be imported from an archive, without those inside others."""
    with zipfile.ZipFile(path) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    return {each.removesuffix(".py") for each in tops}


def _sources(packages: Iterable[str]) -> dict[str, Path]:
    """Name inside the archive -> file."""
    found: dict[str, Path] = {}
    for package in packages:
        path = _place(package)
        parents = package.split(".")[:-1]
        prefix = "/".join(parents)
        for depth in range(len(parents)):
            above = path.parents[len(parents) - 1 - depth] / "__init__.py"
            if above.is_file():
                found["/".join([*parents[: depth + 1], "__init__.py"])] = above
        for file in [path] if path.is_file() else path.rglob("*"):
            inner = file.relative_to(path.parent)
            if file.is_file() and "__pycache__" not in inner.parts and file.suffix not in _LEFT_OUT:
                found[f"{prefix}/{inner.as_posix()}" if prefix else inner.as_posix()] = file
    return found


def _place(package: str) -> Path:
    """The folder of a package, or the file of a module."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigError(
            f"package {package!r} is not here, or is not of plain files",
            cure="name one that can be imported here, or give a zip file",
        )
    origin = Path(spec.origin)
    if origin.suffix != ".py":
        raise ConfigError(
            f"module {package!r} is {origin.name}, which no zip file takes",
            cure="let the workers have it: `environment: {packages: ...}` of launch.yaml",
        )
    return origin.parent if spec.submodule_search_locations is not None else origin
