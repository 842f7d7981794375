"""The files of this interpreter's installation that containers need: this package and its dependencies.

Installed distributions declare what they require, so containers get the environment that this machine was
tested with, without the tools of developers.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import yarn_accel
from yarn_accel.errors import ConfigError, StartupError

DISTRIBUTION = "cluster-accel"
_CURE = "install it with pip into the environment of {}"
#: Never read when our programs run.  Metadata that differs between machines is left out too.
_UNUSED_FOLDERS = frozenset({"__pycache__", "tests"})
_UNUSED_SUFFIXES = frozenset({".a", ".nbc", ".nbi", ".pyc", ".pyi"})
_MACHINE_METADATA = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"})


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
        raise StartupError(f"{name} is not installed", cure=_CURE.format(sys.executable)) from None


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
                cure=_CURE.format(sys.executable),
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
    if path.parent.suffix == ".dist-info" and path.name in _MACHINE_METADATA:
        return False
    return not _UNUSED_FOLDERS.intersection(path.parts[:-1])
