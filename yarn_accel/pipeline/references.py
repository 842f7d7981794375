"""Inputs and outputs by URI: what a tenant may touch, and what a file looked like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from yarn_accel.adapters.hdfs import Stamp, Store, split_uri
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.wire import RemoteInput

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import Tenant

__all__ = ["Prefixes", "Rights", "read_unchanged", "sizes_of", "stamp_or_none", "stamps_of"]


class Prefixes:
    """The URIs that requests may name: nothing but what begins with one of the prefixes.

    A prefix ends at a path border: ``hdfs://nn/data`` allows ``hdfs://nn/data/a`` but not
    ``hdfs://nn/database``.  Without prefixes nothing is allowed.

    Args:
        prefixes: what is allowed.
        setting: where they come from, for the error.
    """

    def __init__(self, prefixes: Iterable[str], setting: str = "prefixes") -> None:
        self._prefixes = tuple(prefixes)
        self._setting = setting

    def check(self, uri: str) -> None:
        """Refuse a URI that is not allowed.

        Raises:
            RejectedError: ``forbidden-uri``, naming the URI.
        """
        try:
            scheme, authority, path = split_uri(uri)
        except StorageError as error:
            raise RejectedError("forbidden-uri", error.message) from None
        plain = f"{scheme}://{authority}{path}"
        if not any(_is_below(plain, prefix) for prefix in self._prefixes):
            raise RejectedError(
                "forbidden-uri",
                f"{uri}: not below any allowed prefix",
                cure=f"see {self._setting} of the tenant in the server's configuration",
            )


class Rights:
    """What a tenant may read and write."""

    def __init__(self, tenant: Tenant) -> None:
        self._read = Prefixes(tenant.read_prefixes, "read_prefixes")
        self._write = Prefixes(tenant.write_prefixes, "write_prefixes")

    def check(self, inputs: Iterable[RemoteInput], output_uri: str) -> None:
        """Refuse a request that names something else; an empty `output_uri` names nothing.

        Raises:
            RejectedError: ``forbidden-uri``, naming the URI.
        """
        for item in inputs:
            self._read.check(item.uri)
        if output_uri:
            self._write.check(output_uri)


def _is_below(uri: str, prefix: str) -> bool:
    if prefix == "hdfs://" or prefix.endswith("/"):
        return uri.startswith(prefix)
    return uri == prefix or uri.startswith(prefix + "/")


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


def sizes_of(store: Store, inputs: Iterable[RemoteInput]) -> list[int]:
    """The bytes of each referenced file; raises what `stamps_of` raises."""
    return [stamp.n_bytes for stamp in stamps_of(store, inputs)]


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
