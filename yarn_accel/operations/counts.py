"""The work of a request and the memory of its results, from the description of its inputs alone.

Standard library only. Flops are the usual counts of numerical linear algebra (Golub and Van Loan), so rates
are comparable with others'. Bytes of results are upper bounds of what does not fit into the inputs' memory; a
Fortran-ordered matrix is factored in place and counts nothing.
"""

from __future__ import annotations

from typing import Sequence

from yarn_accel.operations import checks, matrices
from yarn_accel.operations.matrices import Sizes, array_bytes
from yarn_accel.operations.operation import Params
from yarn_accel.wire import TensorSpec

Specs = Sequence[TensorSpec]
_PASSES = 10
"""Iterations of Lloyd that one start is taken to need; the true number is known afterwards."""


def none(specs: Specs, params: Params) -> int:
    """Nothing to count, or nothing beyond the inputs' memory."""
    return 0


def moved(specs: Specs, params: Params) -> int:
    """Every input read once; results are as large as the inputs or smaller."""
    return 2 * sum(spec.nbytes for spec in specs)


def lu_flops(specs: Specs, params: Params) -> int:
    """2/3 n^3 for a square matrix."""
    size = matrices.sizes(specs[0], params)
    return size.n_items * _lu_flops(size)


def qr_flops(specs: Specs, params: Params) -> int:
    """4/3 n^3 for Householder's form, and as much again for q written out."""
    size = matrices.sizes(specs[0], params)
    least = size.n_least
    written_out = 2 * size.n_rows * least**2 - 2 * least**3 // 3
    if matrices.factor_form("qr", params) == "packed":
        written_out = 0
    return size.n_items * (2 * _lu_flops(size) + written_out)


def cholesky_flops(specs: Specs, params: Params) -> int:
    """1/3 n^3."""
    size = matrices.sizes(specs[0], params)
    return size.n_items * (size.n_rows**3 // 3)


def gemm_flops(specs: Specs, params: Params) -> int:
    """2 m n k."""
    rows, inner, _, columns = matrices.product_sizes(specs, params)
    return 2 * rows * inner * columns * _n_items(specs[0])


def solve_flops(specs: Specs, params: Params) -> int:
    """2 n^2 for each right-hand side, and 4 m n more where q is applied by reflectors, 2 m n as a matrix."""
    n_values = specs[-1].size
    if params.get("factors") == "cholesky" and matrices.factor_form("cholesky", params) == "packed":
        return 2 * n_values * matrices.triangle_order(specs[0].shape[-1], "input 0")
    columns = specs[0].shape[-1]
    if params.get("factors") == "qr":
        per_value = 4 if matrices.factor_form("qr", params) == "packed" else 2
        return n_values * columns * (per_value + 1)
    return 2 * n_values * columns


def step_flops(specs: Specs, params: Params) -> int:
    """3 n d k: a product, a square and a sum for each point, coordinate and centroid."""
    n, d = specs[0].shape
    return 3 * n * d * (specs[1].shape[0] if len(specs) > 1 else int(params["k"]))


def knn_flops(specs: Specs, params: Params) -> int:
    """3 n d m: a product, a square and a sum for each point, coordinate and reference point."""
    n, d = specs[0].shape
    return 3 * n * d * specs[1].shape[0]


def knn_output(specs: Specs, params: Params) -> int:
    """Neighbours and distances, and a label for each point."""
    n, k = specs[0].shape[0], params.get("k", checks.DEFAULT_NEIGHBOURS)
    return array_bytes((n, k), "<i4") + array_bytes((n, k), "<f8") + array_bytes((n,), "<i8")


def kmeans_flops(specs: Specs, params: Params) -> int:
    """That of ten passes for each restart, which is only a guess: the data decide."""
    passes: int = min(_PASSES, params.get("max_iterations", _PASSES)) * params.get(
        "restarts", checks.DEFAULT_RESTARTS
    )
    return passes * step_flops(specs, params)


def lu_output(specs: Specs, params: Params) -> int:
    """Pivots; the matrix unless it is factored where it lies; what the separate form takes beyond it."""
    spec = specs[0]
    size = matrices.sizes(spec, params)
    pivots = array_bytes((size.n_items, size.n_least), "<i4")
    return pivots + _general_output(spec, params, matrices.factor_form("lu", params) == "separate")


def qr_output(specs: Specs, params: Params) -> int:
    """As for `lu_output`, with reflectors' factors in place of pivots."""
    spec = specs[0]
    size = matrices.sizes(spec, params)
    is_separate = matrices.factor_form("qr", params) == "separate"
    tau = 0 if is_separate else array_bytes((size.n_items, size.n_least), matrices.reply_dtype(spec, params))
    return tau + _general_output(spec, params, is_separate)


def cholesky_output(specs: Specs, params: Params) -> int:
    """Nothing when the factor has the form of the input and its element type."""
    spec = specs[0]
    size = matrices.sizes(spec, params)
    form_in = "packed" if params.get("triangle") == "lower" else "separate"
    form_out = matrices.factor_form("cholesky", params)
    is_stack_of_columns = size.is_stack and spec.order == "F"
    if form_in == form_out and _is_kept(spec, params) and not is_stack_of_columns:
        return 0
    n = size.n_rows
    shape = (size.n_items, n * (n + 1) // 2) if form_out == "packed" else (size.n_items, n, n)
    return array_bytes(shape, matrices.reply_dtype(spec, params))


def gemm_output(specs: Specs, params: Params) -> int:
    """The product."""
    rows, _, _, columns = matrices.product_sizes(specs, params)
    return array_bytes((_n_items(specs[0]), rows, columns), matrices.reply_dtype(specs[0], params))


def solve_output(specs: Specs, params: Params) -> int:
    """The solution, unless it takes the place of b."""
    b = specs[-1]
    return array_bytes(tuple(b.shape), matrices.reply_dtype(b, params))


def linsolve_flops(specs: Specs, params: Params) -> int:
    """2/3 n^3, half of it where the matrix is positive definite, and 2 n^2 for each right-hand side."""
    return slogdet_flops(specs, params) + 2 * specs[0].shape[-1] * specs[1].size


def lstsq_flops(specs: Specs, params: Params) -> int:
    """4/3 n^3 for a square matrix, and 5 m n for each right-hand side."""
    size = matrices.sizes(specs[0], params)
    return size.n_items * 2 * _lu_flops(size) + 5 * size.n_columns * specs[1].size


def lstsq_output(specs: Specs, params: Params) -> int:
    """The solutions."""
    size = matrices.sizes(specs[0], params)
    n_values = specs[1].size // size.n_rows * size.n_columns
    return array_bytes((n_values,), matrices.reply_dtype(specs[1], params))


def inv_flops(specs: Specs, params: Params) -> int:
    """2 n^3."""
    return _n_items(specs[0]) * 2 * specs[0].shape[-1] ** 3


def inv_output(specs: Specs, params: Params) -> int:
    """The inverse."""
    return array_bytes(tuple(specs[0].shape), matrices.reply_dtype(specs[0], params))


def slogdet_flops(specs: Specs, params: Params) -> int:
    """2/3 n^3, half of it where the matrix is positive definite."""
    n = specs[0].shape[-1]
    return _n_items(specs[0]) * n**3 * (1 if params.get("positive_definite", False) else 2) // 3


def slogdet_output(specs: Specs, params: Params) -> int:
    """Signs and logarithms."""
    n, dtype = _n_items(specs[0]), matrices.reply_dtype(specs[0], params)
    return array_bytes((n,), dtype) + array_bytes((n,), matrices.real_dtype(dtype))


def svd_flops(specs: Specs, params: Params) -> int:
    """6 m n^2 + 20 n^3 with vectors, 2 m n^2 + 2 n^3 without, for m rows and n columns, m the larger."""
    size = matrices.sizes(specs[0], params)
    least, most = size.n_least, max(size.n_rows, size.n_columns)
    by_rows, by_columns = (6, 20) if params.get("vectors", True) else (2, 2)
    return size.n_items * (by_rows * most * least**2 + by_columns * least**3)


def eigh_flops(specs: Specs, params: Params) -> int:
    """9 n^3 with vectors, 4/3 n^3 without."""
    size = matrices.sizes(specs[0], params)
    per_item = 9 * size.n_rows**3 if params.get("vectors", True) else 4 * size.n_rows**3 // 3
    return size.n_items * per_item


def svd_output(specs: Specs, params: Params) -> int:
    """Values, and vectors of both sides."""
    size, dtype = matrices.sizes(specs[0], params), matrices.reply_dtype(specs[0], params)
    n_bytes = array_bytes((size.n_items, size.n_least), matrices.real_dtype(dtype))
    if params.get("vectors", True):
        n_bytes += array_bytes((size.n_items, size.n_rows, size.n_least), dtype)
        n_bytes += array_bytes((size.n_items, size.n_least, size.n_columns), dtype)
    return n_bytes


def eigh_output(specs: Specs, params: Params) -> int:
    """Values and vectors."""
    size, dtype = matrices.sizes(specs[0], params), matrices.reply_dtype(specs[0], params)
    n_bytes = array_bytes((size.n_items, size.n_rows), matrices.real_dtype(dtype))
    if params.get("vectors", True):
        n_bytes += array_bytes((size.n_items, size.n_rows, size.n_rows), dtype)
    return n_bytes


def images_output(specs: Specs, params: Params, texture: bool, colour: bool) -> int:
    """A row of features for each image."""
    n_bins = params.get("bins", checks.DEFAULT_TEXTURE_BINS) if texture else 0
    if colour:
        hue, saturation, value = params.get("hsv_bins", checks.DEFAULT_COLOUR_BINS)
        n_bins += hue * saturation * value
    return array_bytes((specs[1].shape[0], n_bins), "<f4")


def kmeans_output(specs: Specs, params: Params) -> int:
    """Labels and centroids."""
    return array_bytes((specs[0].shape[0],), "<i4") + seed_output(specs, params)


def seed_output(specs: Specs, params: Params) -> int:
    """Centroids."""
    return array_bytes((params["k"], specs[0].shape[1]), "<f8")


def step_output(specs: Specs, params: Params) -> int:
    """Labels; sums, counts and inertias of each cluster."""
    k, d = specs[1].shape
    return (
        array_bytes((specs[0].shape[0],), "<i4") + array_bytes((k, d), "<f8") + 2 * array_bytes((k,), "<f8")
    )


def _lu_flops(size: Sizes) -> int:
    rows, columns, least = size.n_rows, size.n_columns, size.n_least
    return 2 * rows * columns * least - (rows + columns) * least**2 + 2 * least**3 // 3


def _general_output(spec: TensorSpec, params: Params, is_separate: bool) -> int:
    """The matrix if it cannot stay where it is, and the square part that a second factor takes."""
    size, dtype = matrices.sizes(spec, params), matrices.reply_dtype(spec, params)
    n_bytes = 0
    if not _is_kept(spec, params) or spec.order != ("C" if size.is_stack else "F"):
        n_bytes += array_bytes((size.n_items, size.n_rows, size.n_columns), dtype)
    if is_separate:
        n_bytes += array_bytes((size.n_items, size.n_least, size.n_least), dtype)
    return n_bytes


def _is_kept(spec: TensorSpec, params: Params) -> bool:
    """Whether results have the element type of the input all the way."""
    return spec.dtype == matrices.compute_dtype(spec, params) == matrices.reply_dtype(spec, params)


def _n_items(spec: TensorSpec) -> int:
    return spec.shape[0] if len(spec.shape) == 3 else 1
