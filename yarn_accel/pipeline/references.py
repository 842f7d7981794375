"""Inputs and outputs by URI: what may be touched, and how a file becomes arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from yarn_accel.adapters.hdfs import Store, split_uri
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.pipeline.arrays import Array, empty, flat_bytes
from yarn_accel.pipeline.npz import read_npy, read_npz
from yarn_accel.wire import RemoteInput

__all__ = ["Prefixes", "read_reference", "sizes_of"]


class Prefixes:
    """The URIs that requests may name: nothing but what begins with one of the prefixes.

    A prefix ends at a path border: ``hdfs://nn/data`` allows ``hdfs://nn/data/a`` but not
    ``hdfs://nn/database``.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._prefixes = tuple(prefixes)

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
                cure="see allowed_prefixes of the server",
            )


def _is_below(uri: str, prefix: str) -> bool:
    if prefix == "hdfs://" or prefix.endswith("/"):
        return uri.startswith(prefix)
    return uri == prefix or uri.startswith(prefix + "/")


def sizes_of(store: Store, inputs: Iterable[RemoteInput]) -> list[int]:
    """The bytes of each referenced file.

    Raises:
        StorageError: one cannot be looked at.
        RejectedError: ``wrong-length``: one does not have the bytes its spec says.
    """
    sizes = []
    for item in inputs:
        n_bytes = store.size(item.uri)
        if item.spec is not None and n_bytes != item.spec.nbytes:
            raise RejectedError(
                "wrong-length", f"{item.uri}: {n_bytes} bytes, its spec says {item.spec.nbytes} ({item.spec})"
            )
        sizes.append(n_bytes)
    return sizes


def read_reference(store: Store, item: RemoteInput, n_bytes: int) -> list[Array]:
    """The arrays of one referenced file of that size: all of an .npz, else one.

    Raises:
        StorageError: it cannot be read.
        RejectedError: it is not what its name says.
    """
    if item.spec is not None:
        array = empty(item.spec)
        store.read_into(item.uri, flat_bytes(array))
        return [array]
    content = np.empty(n_bytes, np.uint8)
    store.read_into(item.uri, flat_bytes(content))
    if item.uri.endswith(".npz"):
        return list(read_npz(flat_bytes(content), item.uri).values())
    if item.uri.endswith(".npy"):
        return [read_npy(flat_bytes(content), item.uri)]
    return [content]
