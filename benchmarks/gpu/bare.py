"""cuSOLVER and cuBLAS called bare, through CuPy's bindings, timed by CUDA's own events.

A small stack is factored by one call (getrfBatched, potrfBatched); CuPy binds no geqrfBatched, so QR goes
matrix by matrix there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from statistics import median
from typing import Any

from yarn_accel.operations.cuda_streams import addresses, cupy_module, library

Array = Any


def pinned(shape: tuple[int, ...], dtype: str = "f8") -> Array:
    """Host memory, C-ordered, that the GPU copies from and to directly."""
    return importlib.import_module("cupyx").empty_pinned(shape, dtype=dtype)


class Bare:
    """One factorization of a stack of equal matrices.

    Args:
        operation: ``lu``, ``qr`` or ``cholesky``.
        columns: host array ``(b, n, n)`` of float64, C-ordered: columns of each matrix, as LAPACK wants them.
    """

    def __init__(self, operation: str, columns: Array) -> None:
        self._cupy = cupy = cupy_module()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._given, self._taken = pinned(columns.shape), pinned(columns.shape)
        self._given[...] = columns
        with self._stream:
            self._pristine = cupy.asarray(columns)
            self._work = cupy.empty_like(self._pristine)
            self._factor = _ROUTINES[operation](self._work)

    def on_device_s(self, n_times: int) -> float:
        """Median seconds of the routine alone; the matrices lie on the device before and after."""
        return median(self._once(copies=False) for _ in range(n_times))

    def with_copies_s(self, n_times: int) -> float:
        """Median seconds of copying in from pinned memory, the routine, copying out, one by one."""
        return median(self._once(copies=True) for _ in range(n_times))

    def product_s(self, n_times: int) -> float:
        """Median seconds of cuBLAS's product of matrices of this order: what the device can do."""
        with self._stream:
            out = self._cupy.empty_like(self._pristine)
            return median(
                self._timed(lambda: self._cupy.matmul(self._pristine, self._pristine, out=out))
                for _ in range(n_times)
            )

    def _once(self, copies: bool) -> float:
        with self._stream:
            if copies:
                return self._timed(self._in_and_out)
            self._work[...] = self._pristine
            return self._timed(self._factor)

    def _in_and_out(self) -> None:
        self._work.set(self._given, stream=self._stream)
        self._factor()
        self._work.get(stream=self._stream, out=self._taken, blocking=False)

    def _timed(self, work: Callable[[], object]) -> float:
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record(self._stream)
        work()
        end.record(self._stream)
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3


def _lu(stack: Array) -> Callable[[], None]:
    cupy = cupy_module()
    n_items, n, _ = stack.shape
    pivots, status = cupy.empty((n_items, n), dtype="i4"), cupy.empty(n_items, dtype="i4")
    if n_items > 1:
        blas, handle, _ = library("cublas", stack)
        places = addresses(stack)
        return lambda: blas.dgetrfBatched(
            handle, n, places.data.ptr, n, pivots.data.ptr, status.data.ptr, n_items
        )
    solver, handle, _ = library("cusolver", stack)
    work = cupy.empty(solver.dgetrf_bufferSize(handle, n, n, stack.data.ptr, n), dtype="f8")
    return lambda: solver.dgetrf(
        handle, n, n, stack.data.ptr, n, work.data.ptr, pivots.data.ptr, status.data.ptr
    )


def _qr(stack: Array) -> Callable[[], None]:
    cupy = cupy_module()
    n_items, n, _ = stack.shape
    scalars, status = cupy.empty((n_items, n), dtype="f8"), cupy.empty(1, dtype="i4")
    solver, handle, _ = library("cusolver", stack)
    n_work = solver.dgeqrf_bufferSize(handle, n, n, stack.data.ptr, n)
    work = cupy.empty(n_work, dtype="f8")

    def run() -> None:
        for item, tau in zip(stack, scalars, strict=True):
            places = item.data.ptr, n, tau.data.ptr, work.data.ptr, n_work, status.data.ptr
            solver.dgeqrf(handle, n, n, *places)

    return run


def _cholesky(stack: Array) -> Callable[[], None]:
    cupy = cupy_module()
    n_items, n, _ = stack.shape
    status = cupy.empty(n_items, dtype="i4")
    solver, handle, _ = library("cusolver", stack)
    lower = importlib.import_module("cupy_backends.cuda.libs.cublas").CUBLAS_FILL_MODE_LOWER
    if n_items > 1:
        places = addresses(stack)
        return lambda: solver.dpotrfBatched(handle, lower, n, places.data.ptr, n, status.data.ptr, n_items)
    n_work = solver.dpotrf_bufferSize(handle, lower, n, stack.data.ptr, n)
    work = cupy.empty(n_work, dtype="f8")
    return lambda: solver.dpotrf(handle, lower, n, stack.data.ptr, n, work.data.ptr, n_work, status.data.ptr)


_ROUTINES: dict[str, Callable[[Array], Callable[[], None]]] = {"lu": _lu, "qr": _qr, "cholesky": _cholesky}
