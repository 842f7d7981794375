"""Uploads what containers need to where every NodeManager can fetch it, once, named by its content."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from yarn_accel.errors import StartupError, StorageError
from yarn_accel.launch import bootstrap
from yarn_accel.local_filesystem import pieces
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
        if not _is_there(store, uri, n_bytes):
            store.write_atomic(uri, lambda: pieces(path))
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror}", cure="pack the environment again") from None
    return _resource(store, path.name, uri)


def stored_script_name() -> str:
    """The bootstrap's name in the cluster's storage, by its content."""
    return f"accel-start-{hashlib.sha256(_script()).hexdigest()[:32]}.py"


def upload_script(store: Store, folder_uri: str) -> FileResource:
    """Upload the bootstrap, unless it is there already."""
    content = _script()
    uri = f"{folder_uri.rstrip('/')}/{stored_script_name()}"
    if not _is_there(store, uri, len(content)):
        store.write_atomic(uri, lambda: iter([content]))
    return _resource(store, SCRIPT_NAME, uri)


def _script() -> bytes:
    return Path(bootstrap.__file__).read_bytes()


def _is_there(store: Store, uri: str, n_bytes: int) -> bool:
    """Whether a file of that name and length exists: names tell the content, so it is the same."""
    return store.exists(uri) and store.stamp(uri).n_bytes == n_bytes


def _resource(store: Store, name: str, uri: str) -> FileResource:
    stamp = store.stamp(uri)
    scheme, _, _ = split_uri(uri)
    # The storage's own units: HDFS milliseconds, a local file nanoseconds.
    modified_ms = stamp.modified if scheme == "hdfs" else stamp.modified // 1_000_000
    if not stamp.n_bytes:
        raise StorageError(f"{uri}: empty", cure="delete it and try again")
    return FileResource(name, uri, stamp.n_bytes, modified_ms)
