"""Matrix products through BLAS. NaN and infinity are numbers like others here, as in BLAS itself."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np

from yarn_accel.operations.factorization import spec_of
from yarn_accel.operations.matrices import compute_dtype, product_sizes, reply_dtype
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

__all__ = ["gemm"]

Array = Any
Multiply = Callable[..., Any]
"""``multiply(a, b, out=c)``."""


def gemm(
    arrays: List[Array], params: Params, place: Place = allocate, multiply: Multiply = np.matmul
) -> Outcome:
    """C = AB of ``(m, k)`` and ``(k, n)``, each read transposed when ``transpose_a`` or ``transpose_b``.

    Args:
        arrays: a, b.
        params: ``transpose_a``, ``transpose_b``, ``compute``, ``reply``.
        place: see `Operation`.
        multiply: who multiplies.

    Returns:
        ``c`` (m, n), or (b, m, n) for stacks of b matrices each.
    """
    specs = [spec_of(array) for array in arrays]
    dtype, reply = compute_dtype(specs[0], params), reply_dtype(specs[0], params)
    rows, inner, _, columns = product_sizes(specs, params)
    a, b = (_readable(array, dtype) for array in arrays)
    # BLAS takes any mixture of orders; the product gets that of its factors when they agree on columns.
    order = "F" if a.ndim == 2 and a.flags.f_contiguous and b.flags.f_contiguous else "C"
    shape = (*specs[0].shape[:-2], rows, columns)
    final = place("c", shape, reply, order)
    product = final if dtype == reply else allocate("c", shape, dtype, order)
    multiply(
        a.swapaxes(-1, -2) if params.get("transpose_a", False) else a,
        b.swapaxes(-1, -2) if params.get("transpose_b", False) else b,
        out=product,
    )
    if product is not final:
        np.copyto(final, product, casting="same_kind")
    return Outcome({"c": final}, {"m": rows, "n": columns, "k": inner})


def _readable(array: Array, dtype: str) -> Array:
    """An array of that element type whose matrices BLAS can read where they lie."""
    if array.ndim == 3 and not array.flags.c_contiguous:
        return np.array(array, dtype=dtype, order="C")
    return array.astype(dtype, copy=False)
