"""Singular values and eigenvalues through LAPACK's divide-and-conquer routines, on the CPU.

Each matrix is copied into Fortran order once and destroyed there; inputs stay as they are. Inputs are looked
at first: see `soundness`. Every function takes one matrix or a stack ``(b, m, n)``; the first bad item of a
stack rejects the request and is named.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from yarn_accel.errors import RejectedError
from yarn_accel.operations.factorization import lapack_routine, sizes_info, spec_of
from yarn_accel.operations.matrices import compute_dtype, real_dtype, reply_dtype
from yarn_accel.operations.operation import Outcome, Params, Place, allocate
from yarn_accel.operations.soundness import AtItem, reject_asymmetric, reject_not_finite

Array = Any
Solve = Callable[[Array, bool], Tuple[Array, ...]]
"""``solve(work, with_vectors)`` destroys ``work`` and gives the results in their order."""


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
    return _each(matrix, params, place, _gesdd, shapes if params.get("vectors", True) else {"s": (least,)})


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
    return _each(matrix, params, place, _evd, shapes if params.get("vectors", True) else {"w": (n,)})


def _each(
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
