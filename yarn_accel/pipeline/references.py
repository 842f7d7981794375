"""Inputs and outputs by URI: how a URI is compared with what is allowed, and what a file looked like."""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.adapters.hdfs import Stamp, Store, split_uri
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.wire import RemoteInput

__all__ = ["normalised", "read_unchanged", "stamp_or_none", "stamps_of"]


def normalised(uri: str) -> str:
    """A URI as ``scheme://authority/path``, without what a path may be written with twice.

    Raises:
        RejectedError: ``forbidden-uri``: this is none that could be allowed.
    """
    try:
        scheme, authority, path = split_uri(uri)
    except StorageError as error:
        raise RejectedError("forbidden-uri", error.message) from None
    return f"{scheme}://{authority}{path}"


def stamps_of(store: Store, inputs: Iterable[RemoteInput]) -> list[Stamp]:
    """What each referenced file looks like now.

    Raises:
        StorageError: one cannot be looked at.
        RejectedError: ``wrong-length``: one does not have the bytes its spec says.
    """
    stamps = []
    for item in inputs:
        stamp = store.stamp(item.uri)
        if item.spec is not None and stamp.n_bytes != item.spec.nbytes:
            raise RejectedError(
                "wrong-length",
                f"{item.uri}: {stamp.n_bytes} bytes, its spec says {item.spec.nbytes} ({item.spec})",
            )
        stamps.append(stamp)
    return stamps


def stamp_or_none(store: Store, uri: str) -> Stamp | None:
    """What a file looks like now; None when there is none.

    Raises:
        StorageError: nobody can say.
    """
    try:
        return store.stamp(uri)
    except StorageError:
        if store.exists(uri):
            raise
        return None


def read_unchanged(store: Store, uri: str, stamp: Stamp, view: memoryview) -> None:
    """Fill a buffer with a file that still looks as it did when the request was judged by it.

    Raises:
        StorageError: it cannot be read; transient when it has changed.
    """
    if view.nbytes == stamp.n_bytes:
        store.read_into(uri, view)
    if view.nbytes != stamp.n_bytes or store.stamp(uri) != stamp:
        raise StorageError(f"{uri}: it was changed while it was read", transient=True)
