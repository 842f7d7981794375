"""Whole problems on a GPU: systems, least squares, inverses, determinants, eigenvalues, singular values.

Same arguments and answers as on the CPU. The matrix stays on the device beside its factors, for the residual.
Whatever goes wrong for a request (a number that is not finite, a matrix that is singular, not positive
definite or of lower rank, no convergence) is computed again by `systems` or `factorization` from the host's
inputs, so that its reason is the CPU's, word for word.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from yarn_accel.operations import factorization, linear, systems
from yarn_accel.operations.cuda_linalg import (
    cholesky_columns,
    lu_columns,
    mark_unsound,
    solved,
    upload_columns,
    upload_right,
)
from yarn_accel.operations.cuda_qr import qr_columns
from yarn_accel.operations.cuda_streams import (
    Item,
    Land,
    addresses,
    attempt,
    cupy_module,
    download,
    library,
    only,
    through_streams,
    upload,
    with_memory,
)
from yarn_accel.operations.dense import spec_of
from yarn_accel.operations.matrices import compute_dtype, real_dtype, reply_dtype
from yarn_accel.operations.operation import (
    SMALL_ORDER,
    Outcome,
    Params,
    Place,
    RunBatch,
    RunFunction,
    allocate,
)

Array = Any
_ORDER_OF_JACOBI = 32
"""Up to it cuSOLVER computes the eigenvalues of a whole stack by one call."""


def _forms(
    on_cpu: RunFunction, launch: Callable[[RunFunction, List[Item]], Land]
) -> Tuple[RunFunction, RunBatch]:
    """The two forms of an operation: for one request, and for many."""

    def batch(items: Sequence[Item]) -> List[Any]:
        return through_streams(items, partial(launch, on_cpu))

    def run(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
        return only(batch([(arrays, params, place)]))

    return run, batch


class _ProblemBatch(NamedTuple):
    """A group of requests of one shape whose computation is under way.

    Attributes:
        results: on the device, by name, ``(b, ...)`` with rows first.
        marks: on the device, ``(k, b)``: not 0 where something is wrong with an item.
        ratios: on the device, ``(b,)``: the residuals; None: there are none.
        precision: for ``info``; empty: it is not given.
    """

    on_cpu: RunFunction
    items: List[Item]
    results: Dict[str, Array]
    marks: Array
    ratios: Optional[Array] = None
    precision: str = ""

    def land(self) -> List[Any]:
        """See `Land`."""
        is_bad = self.marks.get().any(axis=0).reshape(len(self.items), -1).any(axis=1).tolist()
        ratios = None if self.ratios is None else self.ratios.get().reshape(len(self.items), -1)
        return [
            attempt(partial(self.on_cpu, *item) if is_bad[i] else partial(self._outcome, i, item, ratios))
            for i, item in enumerate(self.items)
        ]

    def _outcome(self, i: int, item: Item, ratios: Any) -> Outcome:
        arrays, params, place = item
        a, b = arrays[0], arrays[-1]
        is_stack = a.ndim == 3
        info = systems.system_info(a, b) if len(arrays) > 1 else factorization.sizes_info(a)
        if self.precision:
            info.update(precision=self.precision, residual=systems.residual_facts(ratios[i], a))
        reply = reply_dtype(spec_of(a), params)
        found = {}
        for name, result in self.results.items():
            n_each = len(result) // len(self.items)
            mine = result[i * n_each : (i + 1) * n_each]
            is_vector = name == "x" and b.ndim < a.ndim
            shape = mine.shape[1:-1] if is_vector else mine.shape[1:]
            dtype = real_dtype(reply) if mine.dtype.kind == "f" else reply
            found[name] = place(
                name, (n_each, *shape) if is_stack else shape, dtype, "C" if is_stack else "F"
            )
            download(mine, found[name])
        return Outcome(found, info)


# ---- systems


def _launch_system(on_cpu: RunFunction, items: List[Item]) -> Land:
    cupy = cupy_module()
    arrays, params, _ = items[0]
    columns, marks = _uploaded(items, params.get("positive_definite", False))
    a = columns.copy().transpose(0, 2, 1)
    n_items, n, n_rows = columns.shape
    precision = systems.precision_name(columns)
    if len(arrays) > 1:
        n_axes = arrays[1].ndim - int(arrays[0].ndim == 3)
        b = upload_right([item[0][1] for item in items], n_axes, columns.dtype.str)
    else:
        b = cupy.zeros((n_items, n, n), dtype=columns.dtype) + cupy.eye(n, dtype=columns.dtype)
    if on_cpu is systems.lstsq:
        factors = qr_columns(columns, {"form": "packed"}, marks[2])
        diagonal = abs(cupy.diagonal(factors["qr"], 0, 1, 2))
        least = diagonal.max(axis=1)[:, None] * (n_rows * float(np.finfo(columns.dtype).eps))
        marks[2] = (diagonal <= least).any(axis=1)
        x = solved(factors, b.copy())
    elif params.get("positive_definite", False):
        x = solved(cholesky_columns(columns, {}, marks[2]), b.copy())
    elif len(arrays) > 1 and systems.is_refined(arrays[0], params):
        x, is_refined = _refined(columns, b, marks[2])
        precision = systems.REFINED if is_refined else precision
    else:
        x = _solved_by_lu(columns, b.copy(), marks[2])
    mark_unsound(cupy.ascontiguousarray(x), marks[1])
    x = x.transpose(0, 2, 1)
    if len(arrays) > 1:
        ratios = systems.error_ratios(a, x, b.transpose(0, 2, 1))
        return _ProblemBatch(on_cpu, items, {"x": x}, marks, ratios, precision).land
    ones = cupy.zeros((n_items, n, 1), dtype=columns.dtype) + 1
    ratios = systems.error_ratios(a, cupy.matmul(x, ones), ones)
    return _ProblemBatch(on_cpu, items, {"inv": x}, marks, ratios, precision).land


def _uploaded(items: List[Item], is_symmetric: bool) -> Tuple[Array, Array]:
    """The matrices of all requests as columns, and marks ``(3, b)``, of which the first are set."""
    columns = upload_columns([arrays[0] for arrays, _, _ in items], items[0][1])
    marks = cupy_module().zeros((3, len(columns)), dtype=np.int32)
    mark_unsound(columns, marks[0], float(np.finfo(items[0][0][0].dtype).eps) if is_symmetric else None)
    return columns, marks


def _solved_by_lu(columns: Array, b: Array, status: Array) -> Array:
    """x in place of b; the factors in place of the columns."""
    pivots = (lu_columns(columns, {}, status)["piv"] + 1).astype(np.int32)
    n_items, n_right, n = b.shape
    blas, handle, letter = library("cublas", b)
    no_turn = blas.CUBLAS_OP_N
    if n_items > 1 and n <= SMALL_ORDER:
        factors, right = addresses(columns), addresses(b)
        places = factors.data.ptr, n, pivots.data.ptr, right.data.ptr, n
        code = np.zeros(1, dtype=np.int32)
        getattr(blas, letter + "getrsBatched")(
            handle, no_turn, n, n_right, *places, code.ctypes.data, n_items
        )
        return b
    solver, handle, _ = library("cusolver", b)
    code = cupy_module().empty(1, dtype=np.int32)
    for i in range(n_items):
        places = columns[i].data.ptr, n, pivots[i].data.ptr, b[i].data.ptr, n
        getattr(solver, letter + "getrs")(handle, no_turn, n, n_right, *places, code.data.ptr)
    return b


def _refined(columns: Array, b: Array, status: Array) -> Tuple[Array, bool]:
    """x by cuSOLVER's factorization in single precision and refinement, or in double where that fails."""
    cupy = cupy_module()
    solver, handle, letter = library("cusolver", b)
    n_right, n = b.shape[1:]
    x, pivots = cupy.empty(b.shape, dtype=b.dtype), cupy.empty(n, dtype=np.int32)
    right = b.copy()
    places = columns.data.ptr, n, pivots.data.ptr, right.data.ptr, n, x.data.ptr, n
    routine = {"d": "dsgesv", "z": "zcgesv"}[letter]
    no_work = 0
    n_work = getattr(solver, routine + "_bufferSize")(handle, n, n_right, *places, no_work)
    work = cupy.empty(n_work, dtype=np.uint8)
    n_iterations = getattr(solver, routine)(
        handle, n, n_right, *places, work.data.ptr, n_work, status.data.ptr
    )
    return x, n_iterations >= 0


def _launch_determinants(on_cpu: RunFunction, items: List[Item]) -> Land:
    params = items[0][1]
    is_definite = params.get("positive_definite", False)
    columns, marks = _uploaded(items, is_definite)
    cupy = cupy_module()
    if is_definite:
        diagonal = cupy.diagonal(cholesky_columns(columns, {}, marks[2])["l"], 0, 1, 2) ** 2
        pivots = None
    else:
        factors = lu_columns(
            columns, {}, marks[1]
        )  # A singular one has a determinant: its status is no mark.
        marks[1] = 0
        diagonal, pivots = cupy.diagonal(factors["lu"], 0, 1, 2), factors["piv"]

    def outcome(item: Item, mine: slice, diagonals: Array, n_swaps: Array) -> Outcome:
        a, shape = item[0][0], item[0][0].shape
        found = diagonals[mine].reshape(*shape[:-2], shape[-1]), n_swaps[mine].reshape(shape[:-2])
        return systems.determinant(*found, a, item[1], item[2])

    def land() -> List[Any]:
        is_bad = marks.get().any(axis=0).reshape(len(items), -1).any(axis=1).tolist()
        diagonals, n_each = diagonal.get(), len(columns) // len(items)
        swaps = np.zeros(len(columns), int)
        if pivots is not None:
            swaps = (pivots.get() != np.arange(columns.shape[-1])).sum(axis=-1)
        mine = [slice(i * n_each, (i + 1) * n_each) for i in range(len(items))]
        return [
            attempt(
                partial(on_cpu, *item) if is_bad[i] else partial(outcome, item, mine[i], diagonals, swaps)
            )
            for i, item in enumerate(items)
        ]

    return land


# ---- eigenvalues and singular values


def _launch_decomposition(on_cpu: RunFunction, items: List[Item]) -> Land:
    cupy, cupyx = cupy_module(), importlib.import_module("cupyx")
    arrays, params, _ = items[0]
    is_symmetric = on_cpu is factorization.eigh
    dtype = compute_dtype(spec_of(arrays[0]), params)
    stack = cupy.ascontiguousarray(upload([each[0][0] for each in items], 2).astype(dtype, copy=False))
    marks = cupy.zeros((1, len(stack)), dtype=np.int32)
    mark_unsound(stack, marks[0], float(np.finfo(arrays[0].dtype).eps) if is_symmetric else None)
    compute = _eigenvalues if is_symmetric else _singular_values
    try:
        with cupyx.errstate(linalg="raise"):
            results = compute(stack, params.get("vectors", True))
    except np.linalg.LinAlgError:
        return lambda: [attempt(partial(on_cpu, *item)) for item in items]
    return _ProblemBatch(on_cpu, items, results, marks).land


def _eigenvalues(stack: Array, with_vectors: bool) -> Dict[str, Array]:
    cupy = cupy_module()
    compute = cupy.linalg.eigh if with_vectors else cupy.linalg.eigvalsh
    if len(stack) > 1 and stack.shape[-1] <= _ORDER_OF_JACOBI:
        found = compute(stack)
    else:
        each = [compute(one) for one in stack]
        found = tuple(map(cupy.stack, zip(*each))) if with_vectors else cupy.stack(each)  # noqa: B905
    return dict(zip(("w", "v"), found if with_vectors else (found,)))  # noqa: B905 -- Python 3.8


def _singular_values(stack: Array, with_vectors: bool) -> Dict[str, Array]:
    found = cupy_module().linalg.svd(stack, full_matrices=False, compute_uv=with_vectors)
    return dict(zip(("u", "s", "vh") if with_vectors else ("s",), found if with_vectors else (found,)))  # noqa: B905


linsolve, linsolve_batch = _forms(systems.linsolve, _launch_system)
lstsq, lstsq_batch = _forms(systems.lstsq, _launch_system)
inv, inv_batch = _forms(systems.inv, _launch_system)
slogdet, slogdet_batch = _forms(systems.slogdet, _launch_determinants)
eigh, eigh_batch = _forms(factorization.eigh, _launch_decomposition)
svd, svd_batch = _forms(factorization.svd, _launch_decomposition)


def residual(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """As `linear.residual`: the very same products and norms, on the device. Pivots stay on the host."""
    cupy = cupy_module()

    def compute() -> Outcome:
        given = [cupy.asarray(array) if array.dtype.kind in "fc" else array for array in arrays]
        return linear.residual(given, params, place)

    return with_memory(compute)
