"""Files that all applications share in the cluster's storage: environments and bootstraps, by content.

`upload` brings one there, once, where every NodeManager can fetch it.  `look` and `remove` are ``yarn-accel
launch clean``: they remove what no application uses.  A file is in use while the folder of an application
names it.  `stage` writes the name before it uploads anything, and the folder is deleted when its application
is over, so a node that joins later still finds what it fetches.  Nothing is removed while one folder does
not say what its application uses.

A file that a killed upload left is unused when another start uploaded it, or no application names it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from yarn_accel.errors import StartupError, StorageError
from yarn_accel.launch import bootstrap
from yarn_accel.local_filesystem import pieces, unfinished_name
from yarn_accel.storage import Store
from yarn_accel.uris import split_uri

#: The bootstrap's name in a container's folder.
SCRIPT_NAME = "accel-start.py"
ARCHIVE_PATTERN = re.compile(r"accel-environment-[0-9a-f]{32}\.zip")
SCRIPT_PATTERN = re.compile(r"accel-start-[0-9a-f]{32}\.py")
Visibility = Literal["PUBLIC", "PRIVATE", "APPLICATION"]


@dataclass(frozen=True, slots=True)
class FileResource:
    """A LocalResource of type FILE, the only type we use.

    An ARCHIVE together with a retry in place ruins the localized copy: the second start links into it.

    Attributes:
        name: in the container's folder.
        uri: where NodeManagers fetch it.
        n_bytes: its length; a NodeManager refuses another one.
        modified_ms: its modification time in milliseconds; likewise.
        visibility: whose cache of a node it goes to; PRIVATE is kept for the user's next application.
    """

    name: str
    uri: str
    n_bytes: int
    modified_ms: int
    visibility: Visibility = "PRIVATE"


def upload(store: Store, path: Path, folder_uri: str) -> FileResource:
    """Upload a file named by its content, unless it is there already.

    Args:
        store: the cluster's storage.
        path: such as the archive of an `Environment`.
        folder_uri: a folder that only its owner can write, or others could make us run their code.

    Raises:
        StorageError: it cannot be written.
        StartupError: the local file cannot be read.
    """
    uri = f"{folder_uri.rstrip('/')}/{path.name}"
    try:
        n_bytes = path.stat().st_size
        _put(store, uri, n_bytes, lambda: pieces(path))
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror}", cure="pack the environment again") from None
    return stored_file(store, path.name, uri)


class _IsThere(Exception):
    """Another start has uploaded the same file meanwhile."""


def _put(store: Store, uri: str, n_bytes: int, parts: Callable[[], Iterator[bytes]]) -> None:
    """Upload a file unless it is there, also if it comes while this one is written.

    YARN starts no container whose files are younger than its application says.
    """

    def written() -> Iterator[bytes]:
        yield from parts()
        if _is_there(store, uri, n_bytes):
            raise _IsThere

    if not _is_there(store, uri, n_bytes):
        with contextlib.suppress(_IsThere):
            store.write_atomic(uri, written)


def stored_script_name() -> str:
    """The bootstrap's name in the cluster's storage, by its content."""
    return f"accel-start-{hashlib.sha256(_script()).hexdigest()[:32]}.py"


def upload_script(store: Store, folder_uri: str) -> FileResource:
    """Upload the bootstrap, unless it is there already."""
    content = _script()
    uri = f"{folder_uri.rstrip('/')}/{stored_script_name()}"
    _put(store, uri, len(content), lambda: iter([content]))
    return stored_file(store, SCRIPT_NAME, uri)


def _script() -> bytes:
    return Path(bootstrap.__file__).read_bytes()


def _is_there(store: Store, uri: str, n_bytes: int) -> bool:
    """Whether a file of that name and length exists: names tell the content, so it is the same."""
    return store.exists(uri) and store.stamp(uri).n_bytes == n_bytes


def stored_file(store: Store, name: str, uri: str, visibility: Visibility = "PRIVATE") -> FileResource:
    """A file of the storage, as containers get it under `name`."""
    stamp = store.stamp(uri)
    scheme, _, _ = split_uri(uri)
    # The storage's own units: HDFS milliseconds, a local file nanoseconds.
    modified_ms = stamp.modified if scheme == "hdfs" else stamp.modified // 1_000_000
    if not stamp.n_bytes:
        raise StorageError(f"{uri}: empty", cure="delete it and try again")
    return FileResource(name, uri, stamp.n_bytes, modified_ms, visibility)


#: In an application's folder: the names of the shared files it was started with.
USES_FILE = "uses.json"
_VERSION = 1
_MAX_BYTES = 1 << 16
_KINDS: tuple[re.Pattern[str], ...] = (ARCHIVE_PATTERN, SCRIPT_PATTERN)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A packed environment or a bootstrap in the cluster's storage.

    Attributes:
        uri: where it is; a temporary name for one whose upload has not ended.
        n_bytes: its length.
        used_by: ids of the applications whose folders name it.
        is_recent: one of the newest of its kind, kept for the next start.
    """

    uri: str
    n_bytes: int
    used_by: tuple[str, ...]
    is_recent: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """The shared files in the cluster's storage.

    Attributes:
        found: the newest of each kind first.
        silent: applications' folders that do not say what they use.
    """

    found: tuple[StoredFile, ...]
    silent: tuple[str, ...]

    @property
    def unused(self) -> tuple[StoredFile, ...]:
        """Files that no application names, and that are not recent."""
        return tuple(each for each in self.found if not each.used_by and not each.is_recent)


def environments_uri(staging_uri: str) -> str:
    """The folder that all applications share."""
    return f"{staging_uri}/environments"


def uses_document(names: Sequence[str]) -> str:
    """The content of `USES_FILE`."""
    return json.dumps({"version": _VERSION, "uses": list(names)})


def look(store: Store, staging_uri: str, n_keep: int) -> Survey:
    """List the stored files and who uses them; change nothing.

    Args:
        staging_uri: as in `RmClient.staging_uri`.
        n_keep: so many of the newest packed environments, and of the bootstraps, count as recent.

    Raises:
        StorageError: the storage does not answer.
    """
    used: dict[str, list[str]] = {}
    silent = []
    for folder in _entries(store, f"{staging_uri}/applications"):
        names = _named(store, f"{folder}/{USES_FILE}")
        if names is None:
            silent.append(folder)
        for name in names or ():
            used.setdefault(name, []).append(posixpath.basename(folder))
    uris = _entries(store, environments_uri(staging_uri))
    kinds = [[uri for uri in uris if is_ours.fullmatch(posixpath.basename(uri))] for is_ours in _KINDS]
    found = [each for kind in kinds for each in _of_kind(store, kind, used, n_keep)]
    return Survey((*found, *_unfinished(store, uris, used)), tuple(silent))


def remove(store: Store, survey: Survey) -> int:
    """Remove what is unused; returns the number of files.

    Raises:
        StartupError: it is not known of every application what it uses; nothing is removed.
        StorageError: the storage refuses, or does not answer; what was removed before is gone.
    """
    if survey.silent:
        raise StartupError(
            f"nothing is removed: {survey.silent[0]} does not say what its application uses",
            cure="end the application with `yarn-accel stop` (an older version started it), or remove the "
            "folder if it is over",
        )
    return sum(store.delete(each.uri) for each in survey.unused)


def _entries(store: Store, folder_uri: str) -> list[str]:
    return store.list(folder_uri) if store.exists(folder_uri) else []


def _named(store: Store, uri: str) -> list[str] | None:
    """The names in one application's file; None: it has no such file."""
    if not store.exists(uri):
        return None
    try:
        names = json.loads(store.read_bytes(uri, _MAX_BYTES))["uses"]
    except (ValueError, KeyError, TypeError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _of_kind(
    store: Store, uris: Sequence[str], used: dict[str, list[str]], n_keep: int
) -> Iterator[StoredFile]:
    stamps = {uri: store.stamp(uri) for uri in uris}
    newest_first = sorted(uris, key=lambda uri: (-stamps[uri].modified, uri))
    for place, uri in enumerate(newest_first):
        users = tuple(used.get(posixpath.basename(uri), ()))
        yield StoredFile(uri, stamps[uri].n_bytes, users, is_recent=place < n_keep)


def _unfinished(store: Store, uris: Sequence[str], used: dict[str, list[str]]) -> Iterator[StoredFile]:
    names = {posixpath.basename(uri) for uri in uris}
    for uri in uris:
        name = unfinished_name(posixpath.basename(uri))
        if name is not None and any(is_ours.fullmatch(name) for is_ours in _KINDS):
            # Once the file is there, who uses it needs no upload any more.
            users = () if name in names else tuple(used.get(name, ()))
            yield StoredFile(uri, store.stamp(uri).n_bytes, users, is_recent=False)
