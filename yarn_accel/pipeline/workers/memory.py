"""The worker's view of the shared segments: mapped once, arrays in them without copy, space for outputs."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


class OutputTooLargeError(Exception):
    """The outputs need more space than the operation had announced."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A segment in this process: its memory, and the address of its first byte."""

    memory: mmap.mmap
    address: int


class Segments:
    """The segments this worker has mapped, by id.

    Attributes:
        on_map: called with a new mapping (a GPU worker pins it); what it returns undoes that.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Mapping] = {}
        self.on_map: Callable[[Mapping], Callable[[], None]] | None = None
        self._undo: dict[int, Callable[[], None]] = {}

    def map(self, segment: int, fd: int, n_bytes: int) -> None:
        """Map a segment, and close its descriptor."""
        try:
            memory = mmap.mmap(fd, n_bytes)
        finally:
            os.close(fd)
        mapping = Mapping(memory, _address(np.frombuffer(memory, np.uint8)))
        self.by_id[segment] = mapping
        if self.on_map is not None:
            self._undo[segment] = self.on_map(mapping)

    def drop(self, segment: int) -> None:
        """Unmap a segment; should an operation have kept an array in it, as soon as that is gone."""
        mapping = self.by_id.pop(segment, None)
        undo = self._undo.pop(segment, None)
        if undo is not None:
            undo()
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.memory.close()

    def array(
        self, segment: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any
    ) -> Array:
        """An array in a mapped segment."""
        if 0 in shape:
            return np.empty(shape, dtype, order)
        made: Array = np.ndarray(shape, dtype, self.by_id[segment].memory, offset, None, order)
        return made


class OutputArea:
    """Where one job puts its outputs: space in a segment, handed out in pieces aligned to 64 bytes."""

    __slots__ = ("_free", "_segments", "_stop", "placed", "segment")

    def __init__(self, segments: Segments, segment: int, offset: int, n_bytes: int) -> None:
        self._segments = segments
        self.segment = segment
        self._free = offset
        self._stop = offset + n_bytes
        self.placed: list[tuple[Array, int, int]] = []

    def place(self, name: str, shape: tuple[int, ...], dtype: Any, order: str = "C") -> Array:
        """A writable array of undefined content for the output of that name.

        Raises:
            OutputTooLargeError: no space.
        """
        kind = np.dtype(dtype)
        n_bytes = kind.itemsize
        for size in shape:
            n_bytes *= int(size)
        offset = -(-self._free // _ALIGNMENT) * _ALIGNMENT
        if offset + n_bytes > self._stop:
            raise OutputTooLargeError(
                f"output {name!r} needs {n_bytes} bytes, {max(0, self._stop - offset)} are left"
            )
        self._free = offset + n_bytes
        array = self._segments.array(self.segment, offset, tuple(int(n) for n in shape), kind, order)
        self.placed.append((array, self.segment, offset))
        return array


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
