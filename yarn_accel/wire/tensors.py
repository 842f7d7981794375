"""How an array is described on the wire: element type, shape and memory order, but no data."""

import functools
from dataclasses import dataclass
from typing import Tuple

#: Bytes per element of every element type that may travel; numpy's names, little-endian only, no objects.
ITEM_BYTES = {
    "|b1": 1,
    "|i1": 1,
    "|u1": 1,
    "<i2": 2,
    "<u2": 2,
    "<f2": 2,
    "<i4": 4,
    "<u4": 4,
    "<f4": 4,
    "<i8": 8,
    "<u8": 8,
    "<f8": 8,
    "<c8": 8,
    "<c16": 16,
}
MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class TensorSpec:
    """Element type (a key of `ITEM_BYTES`), shape, and order: ``C`` (last index fastest) or ``F`` (first
    fastest).

    Raises:
        ValueError: one of the three is not allowed; the message names it.
    """

    dtype: str
    shape: Tuple[int, ...]
    order: str = "C"

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError("dtype {!r} is not one of {}".format(self.dtype, ", ".join(ITEM_BYTES)))
        if self.order not in ("C", "F"):
            raise ValueError("order {!r} is neither 'C' nor 'F'".format(self.order))
        if len(self.shape) > MAX_DIMENSIONS:
            raise ValueError(
                "shape has {} dimensions, at most {} allowed".format(len(self.shape), MAX_DIMENSIONS)
            )
        for size in self.shape:
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**48:
                raise ValueError("shape {!r} has an entry that is not a size".format(self.shape))

    @property
    def size(self) -> int:
        """Number of elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.size * ITEM_BYTES[self.dtype]
