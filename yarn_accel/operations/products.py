"""Matrix products through BLAS. NaN and infinity are numbers like others here, as in BLAS itself."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from yarn_accel.operations.factorization import spec_of
from yarn_accel.operations.matrices import compute_dtype, product_sizes, reply_dtype
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any


class ProductPlan(NamedTuple):
    """One request: the element types of computation and reply, and the shape and order of the product."""

    dtype: str
    reply: str
    shape: Tuple[int, ...]
    order: str
    info: Dict[str, Any]

    @classmethod
    def of(cls, arrays: List[Array], params: Params) -> ProductPlan:
        """The plan for the inputs a and b."""
        specs = [spec_of(array) for array in arrays]
        rows, inner, _, columns = product_sizes(specs, params)
        # BLAS takes any mixture of orders; the product gets that of its factors when they agree on columns.
        is_columns = arrays[0].ndim == 2 and all(array.flags.f_contiguous for array in arrays)
        return cls(
            compute_dtype(specs[0], params),
            reply_dtype(specs[0], params),
            (*specs[0].shape[:-2], rows, columns),
            "F" if is_columns else "C",
            {"m": rows, "n": columns, "k": inner},
        )


def gemm(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """C = AB of ``(m, k)`` and ``(k, n)``, each read transposed when ``transpose_a`` or ``transpose_b``.

    Args:
        arrays: a, b.
        params: ``transpose_a``, ``transpose_b``, ``compute``, ``reply``.
        place: see `Operation`.

    Returns:
        ``c`` (m, n), or (b, m, n) for stacks of b matrices each.
    """
    plan = ProductPlan.of(arrays, params)
    a, b = (_readable(array, plan.dtype) for array in arrays)
    final = place("c", plan.shape, plan.reply, plan.order)
    product = final if plan.dtype == plan.reply else allocate("c", plan.shape, plan.dtype, plan.order)
    np.matmul(
        a.swapaxes(-1, -2) if params.get("transpose_a", False) else a,
        b.swapaxes(-1, -2) if params.get("transpose_b", False) else b,
        out=product,
    )
    if product is not final:
        np.copyto(final, product, casting="same_kind")
    return Outcome({"c": final}, plan.info)


def _readable(array: Array, dtype: str) -> Array:
    """An array of that element type whose matrices BLAS can read where they lie."""
    if array.ndim == 3 and not array.flags.c_contiguous:
        return np.array(array, dtype=dtype, order="C")
    return array.astype(dtype, copy=False)
