"""Factorizations through LAPACK: LU, QR and Cholesky in place; singular values and eigenvalues.

LAPACK stores columns, so a Fortran-ordered matrix is factored where it lies and its factor is sent from
there; any other is copied into that order once (a symmetric one need not be: its rows are its columns). Of
two separate factors one keeps the matrix's memory, and the other, which is square, is placed. For singular
values and eigenvalues each matrix is copied into Fortran order and destroyed there.

Inputs are checked first: see `dense.reject_not_finite`. Every function takes one matrix or a stack
``(b, m, n)``; for a stack, ``info`` has a list where values differ from item to item, and the first bad item
rejects the request and is named.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations import dense
from yarn_accel.operations.dense import AtItem, lapack_routine, reject_asymmetric, reject_not_finite, spec_of
from yarn_accel.operations.matrices import Sizes, compute_dtype, factor_form, real_dtype, reply_dtype, sizes
from yarn_accel.operations.operation import Outcome, Params, Place, allocate

Array = Any
_SMALL_ORDER = 512
_ALIAS_BYTES = 1024
Factor = Callable[[Array, Optional[Array], Array], int]
"""``factor(work, square, vector)`` leaves in ``work`` the factor that has its shape, in ``square`` (if there
is one) the other, in ``vector`` pivots or scalars; it returns LAPACK's status when that is positive."""
Solve = Callable[[Array, bool], Tuple[Array, ...]]
"""``solve(work, with_vectors)`` destroys ``work`` and gives the results in their order."""


class FactorizationPlan(NamedTuple):
    """One request: the routine, the names of its results, the element types of computation and reply."""

    factor: Factor
    names: Tuple[str, ...]
    vector: Tuple[str, str]
    size: Sizes
    dtype: str
    reply: str

    @property
    def home(self) -> str:
        """The result that has the matrix's own shape and can take its memory."""
        return self.names[0] if self.size.n_rows >= self.size.n_columns else self.names[-1]

    def targets(self, matrix: Array, place: Place) -> Dict[str, Array]:
        """Memory for the results by name, in the order in which they are sent: the matrix's own for one."""
        least, order = self.size.n_least, "C" if self.size.is_stack else "F"
        stack = (self.size.n_items,) if self.size.is_stack else ()
        is_kept = self.dtype == self.reply and dense.is_ours(matrix, self.reply, order)
        found = {}
        for name in self.names:
            if name != self.home:
                found[name] = place(name, (*stack, least, least), self.reply, order)
            elif is_kept:
                found[name] = matrix
            else:
                found[name] = place(name, matrix.shape, self.reply, order)
        name, dtype = self.vector
        if name:
            found[name] = place(name, (*stack, least), dtype, "C")
        return found


def lu(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """PA = LU of ``(m, n)`` with partial pivoting; k = min(m, n).

    Returns:
        packed: ``lu`` (m, n): U in the upper triangle, L below it (its unit diagonal is not stored); ``piv``
        (k,): row i was swapped with row ``piv[i]``, counted from 0. separate: ``l`` (m, k), ``u`` (k, n),
        ``piv``. ``info["singular_at"]`` is the first k with U[k, k] = 0, counted from 1, or 0: a singular
        matrix has an LU factorization all the same.

    Raises:
        RejectedError: ``not-finite``, with the index.
    """
    results, status = _factor(arrays[0], lu_plan(arrays[0], params), place)
    is_stack = arrays[0].ndim == 3
    return Outcome(results, {**sizes_info(arrays[0]), "singular_at": status if is_stack else status[0]})


def qr(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """A = QR of ``(m, n)`` in the economic form; k = min(m, n).

    Returns:
        separate: ``q`` (m, k) with orthonormal columns, ``r`` (k, n) upper triangular. packed: ``qr`` (m, n):
        R in the upper triangle, Householder's vectors below it; ``tau`` (k,): their scalars.

    Raises:
        RejectedError: ``not-finite``, with the index.
    """
    results, _ = _factor(arrays[0], qr_plan(arrays[0], params), place)
    return Outcome(results, sizes_info(arrays[0]))


def cholesky(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """A = LL' of a symmetric (Hermitian) positive definite matrix ``(n, n)`` or its lower triangle.

    Returns:
        ``l``: (n, n) lower triangular, or (n (n + 1) / 2,) in LAPACK's packed storage.

    Raises:
        RejectedError: ``not-finite`` with the index, ``not-symmetric`` with the index, or
            ``not-positive-definite`` with the order of the first leading minor that is not.
    """
    is_triangle = params.get("triangle") == "lower"
    (reject_not_finite if is_triangle else reject_asymmetric)(arrays[0], "input 0")
    spec = spec_of(arrays[0])
    size, dtype = sizes(spec, params), compute_dtype(spec, params)
    items = arrays[0] if size.is_stack else arrays[0][None]
    targets = cholesky_targets(items, size, params, place)
    for i in range(size.n_items):
        item = items[i]
        target = item if targets is items else targets[i]
        if size.is_stack:
            with AtItem(i):
                _cholesky_one(item, target, dtype, size.n_rows)
        else:
            _cholesky_one(item, target, dtype, size.n_rows)
    n = size.n_rows
    return Outcome({"l": targets if size.is_stack else targets[0]}, {"n": n, "m": n})


def lu_plan(matrix: Array, params: Params) -> FactorizationPlan:
    """The plan of lu for that matrix or stack."""
    names = ("lu",) if factor_form("lu", params) == "packed" else ("l", "u")
    return _plan(_lu_one, names, ("piv", "<i4"), matrix, params)


def qr_plan(matrix: Array, params: Params) -> FactorizationPlan:
    """The plan of qr for that matrix or stack."""
    is_packed = factor_form("qr", params) == "packed"
    tau = ("tau" if is_packed else "", reply_dtype(spec_of(matrix), params))
    return _plan(_qr_one, ("qr",) if is_packed else ("q", "r"), tau, matrix, params)


def sizes_info(matrix: Array) -> Dict[str, Any]:
    """The sizes of a matrix or of each in a stack, as ``info`` names them."""
    return {"n": int(matrix.shape[-1]), "m": int(matrix.shape[-2])}


def _plan(
    factor: Factor, names: Tuple[str, ...], vector: Tuple[str, str], matrix: Array, params: Params
) -> FactorizationPlan:
    spec = spec_of(matrix)
    dtypes = compute_dtype(spec, params), reply_dtype(spec, params)
    return FactorizationPlan(factor, names, vector, sizes(spec, params), *dtypes)


def _factor(matrix: Array, plan: FactorizationPlan, place: Place) -> Tuple[Dict[str, Array], List[int]]:
    """The results by name in the order of the plan, and LAPACK's status of each item."""
    reject_not_finite(matrix, "input 0")
    results = plan.targets(matrix, place)
    square = next((results[name] for name in plan.names if name != plan.home), None)
    shape = (plan.size.n_items, plan.size.n_least) if plan.size.is_stack else (plan.size.n_least,)
    vector = results[plan.vector[0]] if plan.vector[0] else np.empty(shape, dtype=plan.vector[1])
    if plan.size.is_stack:
        return results, _factor_stack(matrix, plan, results[plan.home], square, vector)
    return results, [_factor_matrix(matrix, plan, results[plan.home], square, vector)]


def _factor_matrix(
    matrix: Array, plan: FactorizationPlan, home: Array, square: Optional[Array], vector: Array
) -> int:
    """In the memory of the result; if that has another element type, in the matrix's own or in scratch."""
    work, work_square = home, square
    if plan.dtype != plan.reply:
        is_ours = dense.is_ours(matrix, plan.dtype, "F")
        work = matrix if is_ours else np.empty(matrix.shape, dtype=plan.dtype, order="F")
        if square is not None:
            work_square = np.empty(square.shape, dtype=plan.dtype, order="F")
    if work is not matrix:
        dense.copy_across(work, matrix)
    status = plan.factor(work, work_square, vector)
    if work is not home:
        np.copyto(home, work, casting="same_kind")
        if square is not None and work_square is not None:
            np.copyto(square, work_square, casting="same_kind")
    return status


def _factor_stack(
    stack: Array, plan: FactorizationPlan, home: Array, squares: Optional[Array], vectors: Array
) -> List[int]:
    """Item by item through one scratch matrix, and back to where the item came from."""
    _, n_rows, n_columns, _ = plan.size
    least = plan.size.n_least
    work = np.empty((n_rows, n_columns), dtype=plan.dtype, order="F")
    square = None if squares is None else np.empty((least, least), dtype=plan.dtype, order="F")
    status = []
    for i in range(plan.size.n_items):
        dense.copy_across(work, stack[i])
        status.append(plan.factor(work, square, vectors[i]))
        dense.copy_across(home[i], work)
        if squares is not None:
            dense.copy_across(squares[i], square)
    return status


def _lu_one(work: Array, square: Optional[Array], vector: Array) -> int:
    _, pivots, status = lapack_routine("getrf", work.dtype)(work, overwrite_a=1)
    _check_arguments("getrf", status)
    vector[:] = pivots
    if square is not None:
        least = square.shape[0]
        if work.shape[0] >= work.shape[1]:
            dense.copy_upper(square, work[:least])
            dense.blank_upper(work)
            np.fill_diagonal(work, 1.0)
        else:
            dense.copy_lower(square, work[:, :least])
            np.fill_diagonal(square, 1.0)
            dense.blank_lower(work)
    return int(status)


def _qr_one(work: Array, square: Optional[Array], vector: Array) -> int:
    geqrf = lapack_routine("geqrf", work.dtype)
    n_work = int(geqrf(work, lwork=-1, overwrite_a=1)[2][0].real)
    _, tau, _, status = geqrf(work, lwork=n_work, overwrite_a=1)
    _check_arguments("geqrf", status)
    vector[:] = tau
    if square is not None:
        least = square.shape[0]
        if work.shape[0] >= work.shape[1]:
            dense.copy_upper(square, work[:least])
            _write_out(work, tau)
        else:
            dense.copy_lower(square, work[:, :least])
            dense.blank_lower(work)
            _write_out(square, tau)
    return 0


def _write_out(reflectors: Array, tau: Array) -> None:
    """Q with all its elements in place of Householder's vectors."""
    orgqr = lapack_routine("orgqr", reflectors.dtype)
    n_work = int(orgqr(reflectors, tau, lwork=-1, overwrite_a=1)[1][0].real)
    _check_arguments("orgqr", orgqr(reflectors, tau, lwork=n_work, overwrite_a=1)[2])


def cholesky_targets(items: Array, size: Sizes, params: Params, place: Place) -> Array:
    """Memory for the factors with an axis of items first: that of the inputs when it has the right form."""
    spec = spec_of(items)
    reply = reply_dtype(spec, params)
    form = factor_form("cholesky", params)
    form_in = "packed" if params.get("triangle") == "lower" else "separate"
    if form == form_in and compute_dtype(spec, params) == reply and items.dtype == np.dtype(reply):
        is_columns = not size.is_stack and form == "separate" and dense.is_ours(items[0], reply, "F")
        if is_columns or dense.is_ours(items, reply, "C"):
            return items
    n = size.n_rows
    shape: Tuple[int, ...] = (n * (n + 1) // 2,) if form == "packed" else (n, n)
    if size.is_stack:
        return place("l", (size.n_items, *shape), reply, "C")
    return place("l", shape, reply, "F")[None]


def _cholesky_one(item: Array, target: Array, dtype: str, n: int) -> None:
    """The factor of one item, left in ``target``, which may be the item itself."""
    if target.ndim == 2 and target.dtype == np.dtype(dtype):
        work = target
    elif item.ndim == 2 and (dense.is_ours(item, dtype, "F") or dense.is_ours(item, dtype, "C")):
        work = item
    else:
        work = np.empty((n, n), dtype=dtype, order="F")
    if item.ndim == 1:
        np.copyto(work, lapack_routine("tpttr", dtype)(n, item, uplo="L")[0])
    elif work is not item:
        # The transpose of a symmetric matrix is itself, and one of the two lies in the order wanted.
        is_turned = item.flags.f_contiguous != work.flags.f_contiguous and item.dtype.kind == "f"
        np.copyto(work, item.T if is_turned else item, casting="same_kind")
    _potrf(work)
    if target.ndim == 1:
        columns, side = (work, "L") if work.flags.f_contiguous else (work.T, "U")
        target[:] = _packed(columns, side)
    elif work is not target:
        np.copyto(target, work, casting="same_kind")


def _potrf(work: Array) -> None:
    """L in place of a symmetric matrix that is contiguous in either order; zeros above it."""
    is_columns = work.flags.f_contiguous
    columns = work if is_columns else work.T
    potrf = lapack_routine("potrf", work.dtype)
    # LAPACK's wrapper blanks the other triangle across columns: fine for small matrices, but where columns
    # share lines of the cache it takes longer than the factorization (n = 128, 256). LAPACK never reads that
    # triangle, so it is blanked before, while the cache still has it from the look at the input.
    is_blanked = work.shape[0] <= _SMALL_ORDER and max(work.strides) % _ALIAS_BYTES != 0
    if not is_blanked:
        (dense.blank_upper if is_columns else dense.blank_lower)(columns)
    _, status = potrf(columns, lower=int(is_columns), clean=int(is_blanked), overwrite_a=1)
    _check_arguments("potrf", status)
    if status > 0:
        raise RejectedError(
            "not-positive-definite",
            "the leading minor of order {} of {} is not positive definite".format(status, work.shape[0]),
        )


def _packed(columns: Array, side: str) -> Array:
    """The lower triangle column after column; that of the transpose when ``side`` is "U"."""
    if side == "U":
        columns = np.asfortranarray(columns.T)
    return lapack_routine("trttp", columns.dtype)(columns, uplo="L")[0]


def _check_arguments(routine: str, status: int) -> None:
    if status < 0:
        raise RejectedError("wrong-shape", "{}: argument {} is not acceptable".format(routine, -status))


def svd(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """A = U S V' of ``(m, n)`` in the economic form; k = min(m, n).

    Returns:
        ``u`` (m, k) and ``vh`` (k, n) with orthonormal columns and rows, ``s`` (k,): the singular values, the
        largest first, real and not negative. With ``vectors`` false ``s`` alone.

    Raises:
        RejectedError: ``not-finite`` with the index, or ``no-convergence``.
    """
    matrix = arrays[0]
    reject_not_finite(matrix, "input 0")
    rows, columns = matrix.shape[-2:]
    least = min(rows, columns)
    shapes = {"u": (rows, least), "s": (least,), "vh": (least, columns)}
    return _decomposed(
        matrix, params, place, _gesdd, shapes if params.get("vectors", True) else {"s": (least,)}
    )


def eigh(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """A = V W V' of a symmetric (Hermitian) matrix ``(n, n)``.

    Returns:
        ``w`` (n,): the eigenvalues, the smallest first, real; ``v`` (n, n): their orthonormal vectors, one in
        each column. With ``vectors`` false ``w`` alone.

    Raises:
        RejectedError: ``not-finite`` or ``not-symmetric`` with the index, or ``no-convergence``.
    """
    matrix = arrays[0]
    reject_asymmetric(matrix, "input 0")
    n = matrix.shape[-1]
    shapes = {"w": (n,), "v": (n, n)}
    return _decomposed(matrix, params, place, _evd, shapes if params.get("vectors", True) else {"w": (n,)})


def _decomposed(
    matrix: Array, params: Params, place: Place, solve: Solve, shapes: Dict[str, Tuple[int, ...]]
) -> Outcome:
    """The results of every item in placed memory; an item comes and goes through one scratch matrix."""
    spec = spec_of(matrix)
    dtype, reply = compute_dtype(spec, params), reply_dtype(spec, params)
    is_stack = matrix.ndim == 3
    stack, order = ((len(matrix),), "C") if is_stack else ((), "F")
    targets = {
        name: place(name, (*stack, *shape), real_dtype(reply) if len(shape) == 1 else reply, order)
        for name, shape in shapes.items()
    }
    work = np.empty(matrix.shape[-2:], dtype=dtype, order="F")
    for i, item in enumerate(matrix if is_stack else matrix[None]):
        np.copyto(work, item)
        if is_stack:
            with AtItem(i):
                found = solve(work, len(shapes) > 1)
        else:
            found = solve(work, len(shapes) > 1)
        for target, array in zip(targets.values(), found):  # noqa: B905 -- Python 3.8
            np.copyto(target[i] if is_stack else target, array, casting="same_kind")
    return Outcome(targets, sizes_info(matrix))


def _gesdd(work: Array, with_vectors: bool) -> Tuple[Array, ...]:
    options = {"compute_uv": int(with_vectors), "full_matrices": 0}
    n_work, _ = lapack_routine("gesdd_lwork", work.dtype)(*work.shape, **options)
    gesdd = lapack_routine("gesdd", work.dtype)
    u, values, vh, status = gesdd(work, lwork=int(n_work.real), overwrite_a=1, **options)
    _check_convergence("gesdd", status)
    return (u, values, vh) if with_vectors else (values,)


def _evd(work: Array, with_vectors: bool) -> Tuple[Array, ...]:
    evd = lapack_routine("syevd", work.dtype)
    values, vectors, status = evd(work, compute_v=int(with_vectors), lower=1, overwrite_a=1)
    _check_convergence("evd", status)
    return (values, vectors) if with_vectors else (values,)


def _check_convergence(routine: str, status: int) -> None:
    if status:
        raise RejectedError("no-convergence", "{} did not converge (status {})".format(routine, status))
