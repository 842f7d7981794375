"""Inputs and outputs by URI: what a file looked like, and whether it still does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.formats import describe, is_array_file, load
from yarn_accel.pipeline.plans import ReferencedFile
from yarn_accel.storage import Stamp, Store
from yarn_accel.uris import split_member
from yarn_accel.wire import RemoteInput, TensorSpec


def look_at(store: Store, inputs: Iterable[RemoteInput]) -> tuple[list[Stamp], list[ReferencedFile]]:
    """What each referenced file looks like now, and what it holds by its headers; no element is read.

    Raises:
        StorageError: one cannot be looked at; transient when it changes meanwhile.
        RejectedError: ``wrong-length``: one does not have the bytes its spec says; or as `describe`.
    """
    stamps, files = [], []
    for item in inputs:
        uri = item.uri if item.spec is not None else split_member(item.uri)[0]
        stamp = store.stamp(uri)
        stamps.append(stamp)
        if item.spec is not None:
            if stamp.n_bytes != item.spec.nbytes:
                raise RejectedError(
                    "wrong-length",
                    f"{uri}: {stamp.n_bytes} bytes, its spec says {item.spec.nbytes} ({item.spec})",
                )
            files.append(ReferencedFile((item.spec,)))
        elif is_array_file(item.uri):
            with _unless_changed(store, uri, stamp), store.opened(uri) as source:
                arrays = describe(source, item.uri)
            files.append(ReferencedFile(tuple([array.spec for array in arrays]), arrays))
        else:
            files.append(ReferencedFile((TensorSpec("|u1", (stamp.n_bytes,)),)))
    return stamps, files


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


def read_unchanged(
    store: Store, uri: str, stamp: Stamp, file: ReferencedFile, views: Sequence[memoryview]
) -> None:
    """Fill a buffer for each array of a file that still looks as it did when the request was judged by it.

    Raises:
        StorageError: it cannot be read; transient when it has changed.
        RejectedError: as `load`.
    """
    with _unless_changed(store, uri, stamp), store.opened(uri) as source:
        if source.n_bytes != stamp.n_bytes:
            raise _changed(uri)
        for number, view in enumerate(views):
            if file.arrays:
                load(file.arrays[number], source, view)
            else:
                source.read_into(0, view)
    if store.stamp(uri) != stamp:
        raise _changed(uri)


@contextlib.contextmanager
def _unless_changed(store: Store, uri: str, stamp: Stamp) -> Iterator[None]:
    """What goes wrong with a file is its own fault only if it is still the one that was stamped."""
    try:
        yield
    except (RejectedError, StorageError):
        if store.stamp(uri) == stamp:
            raise
        raise _changed(uri) from None


def _changed(uri: str) -> StorageError:
    return StorageError(f"{uri}: it was changed while it was read", transient=True)
