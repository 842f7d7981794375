"""Matrix products on a GPU through CuPy: cuBLAS, same arguments and answers as on the CPU.

See `cuda_streams` for how requests get to the GPU and back.
"""

from __future__ import annotations

from functools import partial
from typing import Any, List, Sequence

from yarn_accel.operations.cuda_streams import (
    Item,
    Land,
    attempt,
    cupy_module,
    download,
    only,
    through_streams,
    upload,
)
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.operations.products import ProductPlan

Array = Any


def gemm(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `products.gemm`."""
    return only(gemm_batch([(arrays, params, place)]))


def gemm_batch(items: Sequence[Item]) -> List[Any]:
    """`gemm` of each; an `Outcome` or an `AccelError` for each."""
    return through_streams(items, _launch)


def multiplied(a: Array, b: Array) -> Array:
    """The products of two device stacks ``(b, m, k)`` and ``(b, k, n)``, C-ordered.

    A single pair of matrices goes to cuBLAS as it lies; CuPy copies whatever is not C-ordered in a stack.
    """
    cupy = cupy_module()
    if len(a) == 1:
        return cupy.ascontiguousarray(cupy.matmul(a[0], b[0]))[None]
    return cupy.matmul(a, b)


def _launch(items: List[Item]) -> Land:
    arrays, params, _ = items[0]
    plan = ProductPlan.of(arrays, params)
    a, b = (upload([item[0][i] for item in items], 2).astype(plan.dtype, copy=False) for i in (0, 1))
    a = a.swapaxes(-1, -2) if params.get("transpose_a", False) else a
    b = b.swapaxes(-1, -2) if params.get("transpose_b", False) else b
    if plan.order == "F":
        product = multiplied(b.swapaxes(-1, -2), a.swapaxes(-1, -2)).swapaxes(-1, -2)
    else:
        product = multiplied(a, b)
    n_each = len(product) // len(items)

    def finish(found: Array, place: Place) -> Outcome:
        target = place("c", plan.shape, plan.reply, plan.order)
        download(found, target)
        return Outcome({"c": target}, dict(plan.info))

    def land() -> List[Any]:
        return [
            attempt(partial(finish, product[i * n_each : (i + 1) * n_each], place))
            for i, (_, _, place) in enumerate(items)
        ]

    return land
