"""``yarn-accel launch clean``: removes environments from the cluster's storage that no application uses.

An environment is in use while the folder of an application names it.  `stage` writes the name before it
uploads anything, and the folder is deleted when its application is over, so a node that joins later still
finds what it fetches.  Nothing is removed while one folder does not say what its application uses.

What a killed upload left is unused when its file was uploaded by another start, or no application names it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from yarn_accel.errors import StartupError
from yarn_accel.launch.upload import ARCHIVE_PATTERN, SCRIPT_PATTERN
from yarn_accel.local_filesystem import unfinished_name
from yarn_accel.storage import Store

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
    """What is in the cluster's storage.

    Attributes:
        found: the newest of each kind first.
        silent: applications' folders that do not say what they use.
    """

    found: tuple[StoredFile, ...]
    silent: tuple[str, ...]

    @property
    def unused(self) -> tuple[StoredFile, ...]:
        """What no application names, and is not recent."""
        return tuple(each for each in self.found if not each.used_by and not each.is_recent)


def environments_uri(staging_uri: str) -> str:
    """The folder that all applications share."""
    return f"{staging_uri}/environments"


def uses_document(names: Sequence[str]) -> str:
    """What `USES_FILE` holds."""
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
