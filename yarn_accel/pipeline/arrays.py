"""Arrays as memory: where a payload is received into, and what is sent of a result.

numpy is loaded by what needs it: most servers never look into a tensor, and it is a fifth of their start.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from yarn_accel.wire import TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: Every tensor in a segment begins at a multiple of this.
ALIGNMENT_BYTES = 64


def lay_out(sizes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Aligned offsets for tensors of these bytes one behind the other, and the aligned end of the last."""
    offsets = []
    end = 0
    for n_bytes in sizes:
        offsets.append(end)
        end += -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(offsets), end


def array_at(view: memoryview, spec: TensorSpec) -> Array:
    """The array of that description whose memory begins at the beginning of `view`; no copy."""
    import numpy as np

    order: Any = spec.order
    array: Array = np.ndarray(spec.shape, spec.dtype, view, order=order)
    return array


def plain(value: Any) -> Any:
    """A value as JSON can say it: numpy's scalars become Python's, NaN and infinities become None."""
    numpy: Any = sys.modules.get("numpy")  # without it, or before it is whole, nothing is of its types
    if hasattr(numpy, "generic") and isinstance(value, numpy.ndarray | numpy.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
