"""Fewer bytes for the same answer: calls rewritten so that less travels.

Pure functions from call to call; what comes back is undone by their counterparts.  They need numpy.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any, List, Union

from yarn_accel.client.calls import Call, Reference, Reply, Tensor
from yarn_accel.errors import RejectedError

__all__ = ["full_matrix", "in_single_precision", "one_triangle"]


def in_single_precision(call: Call, *, reply: bool = True) -> Call:
    """The call with its float64 inputs as float32 on the wire; the server still computes in float64.

    Args:
        reply: the results come back as float32, too.

    For the operations of linear algebra, which know the parameters ``compute`` and ``reply``. The result is
    that of the rounded inputs: about seven digits are kept.
    """
    import numpy as np

    inputs: List[Union[Tensor, Reference]] = []
    for item in call.inputs:
        if isinstance(item, Tensor) and item.spec.dtype == "<f8":
            # 'K' keeps the order of the axes in memory.
            item = Tensor.of(item.array().astype(np.float32, order="K"))
        inputs.append(item)
    params = {**call.params, "compute": "f64"}
    if reply:
        params["reply"] = "f32"
    return replace(call, inputs=tuple(inputs), params=params)


def one_triangle(call: Call) -> Call:
    """A Cholesky call that sends one triangle of its matrix and gets one back: half the bytes each way.

    Raises:
        RejectedError: the input is not one square matrix by value.
    """
    import numpy as np

    from yarn_accel.operations.layout import pack_lower

    matrix = call.inputs[0] if len(call.inputs) == 1 else None
    if call.operation != "cholesky" or not isinstance(matrix, Tensor):
        raise RejectedError("wrong-inputs", "one matrix by value for cholesky expected")
    array = matrix.array()
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise RejectedError("wrong-shape", "a square matrix expected, found {}".format(array.shape))
    n = array.shape[0]
    packed = np.empty(n * (n + 1) // 2, dtype=array.dtype)
    pack_lower(packed, array)
    return replace(call, inputs=(Tensor.of(packed),), params={**call.params, "triangle": "lower"})


def full_matrix(reply: Reply) -> Any:
    """The factor of a reply to `one_triangle` as a lower triangular matrix, a new numpy array."""
    import numpy as np

    from yarn_accel.operations.layout import unpack_lower

    packed = reply.tensors["l"].array()
    n = (isqrt(8 * packed.size + 1) - 1) // 2
    factor = np.zeros((n, n), dtype=packed.dtype, order="F")
    unpack_lower(factor, packed)
    return factor
