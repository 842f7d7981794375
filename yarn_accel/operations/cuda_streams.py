"""The way of a batch of requests through a GPU: neighbours of one shape together, three streams in turn.

Small requests of one shape are gathered in pinned memory, copied in at once and computed by one call. Large
ones go one by one: one is copied in and another copied out while a third is computed. Every stream that a
caller uses has three of its own, so the lanes of a worker, each on a stream, overlap in the same way.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from itertools import groupby
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import numpy as np

from yarn_accel.errors import AccelError, StartupError
from yarn_accel.operations.factorization import LETTERS
from yarn_accel.operations.operation import Outcome, Params, Place

__all__ = [
    "SMALL_ORDER",
    "Item",
    "Land",
    "addresses",
    "attempt",
    "cupy_module",
    "download",
    "library",
    "only",
    "through_streams",
    "triangle_indices",
    "upload",
]

Array = Any
Item = Tuple[List[Array], Params, Place]
Land = Callable[[], List[Any]]
"""Waits for a group's computation, starts copying its results out, and returns what became of each item."""
SMALL_ORDER = 512
_N_STREAMS = 3
_MAX_CALLERS = 64


def cupy_module() -> Any:
    """CuPy.

    Raises:
        StartupError: it is not installed or finds no CUDA.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise StartupError(
            "CuPy cannot be imported: {}".format(error),
            cure="pip install 'cluster-accel[gpu]' on a CUDA machine",
        ) from error


def through_streams(items: Sequence[Item], launch: Callable[[List[Item]], Land]) -> List[Any]:
    """Launch a group, and land the one launched ``_N_STREAMS - 1`` groups before it.

    Args:
        items: the requests.
        launch: starts copying a group in and computing it. It and the `Land` it returns are called with the
            group's stream as CuPy's current one.

    Returns:
        An `Outcome` or an `AccelError` for each item, in their order, with all results in place.
    """
    streams = _streams(cupy_module().cuda.get_current_stream().ptr)
    flights: List[Tuple[Any, Land]] = []
    outcomes: List[Any] = []
    try:
        for i, group in enumerate(_groups(items)):
            stream = streams[i % _N_STREAMS]
            with stream:
                flights.append((stream, launch(group)))
            if len(flights) == _N_STREAMS:
                outcomes += _land(*flights.pop(0))
        for flight in flights:
            outcomes += _land(*flight)
    finally:
        # After an error too: nothing may still be copied when the callers' memory is theirs again.
        for stream in streams:
            stream.synchronize()
    return outcomes


def upload(arrays: Sequence[Array], n_axes: int) -> Array:
    """Equal arrays of ``n_axes`` axes, or equal stacks of such, as one stack on the device.

    Rows come first as on the host, but columns lie together in memory where they do there.
    """
    cupy = cupy_module()
    first = arrays[0]
    is_columns = first.ndim == n_axes == 2 and first.flags.f_contiguous
    hosts = [array.T if is_columns else array for array in arrays]
    if len(hosts) == 1:
        on_device = cupy.empty(hosts[0].shape, dtype=first.dtype)
        on_device.set(np.ascontiguousarray(hosts[0]), stream=cupy.cuda.get_current_stream())
    else:
        pinned = importlib.import_module("cupyx").empty_pinned(
            (len(hosts), *hosts[0].shape), dtype=first.dtype
        )
        np.stack(hosts, out=pinned)
        # CuPy keeps pinned memory until the copy from it is done.
        on_device = cupy.asarray(pinned)
    stack = on_device.reshape(-1, *hosts[0].shape[-n_axes:])
    return stack.swapaxes(-1, -2) if is_columns else stack


def download(result: Array, target: Array) -> None:
    """Start copying a device stack ``(b, ...)`` to the host array of one request, on the current stream."""
    cupy = cupy_module()
    is_rows = target.flags.c_contiguous
    value = result.reshape(target.shape) if is_rows else result[0].T
    contiguous = cupy.ascontiguousarray(value, dtype=target.dtype)
    stream = cupy.cuda.get_current_stream()
    contiguous.get(stream=stream, out=target if is_rows else target.T, blocking=False)


def library(name: str, array: Array) -> Tuple[Any, int, str]:
    """CuPy's binding, this thread's handle (which follows the current stream), LAPACK's letter."""
    device = importlib.import_module("cupy.cuda.device")
    binding = importlib.import_module("cupy_backends.cuda.libs." + name)
    handle: int = getattr(device, "get_{}_handle".format(name))()
    return binding, handle, LETTERS[array.dtype.str]


def addresses(stack: Array) -> Array:
    """Where on the device each item of a contiguous stack begins, itself on the device."""
    step = stack[0].nbytes
    start = stack.data.ptr
    return cupy_module().arange(start, start + step * len(stack), step, dtype=np.uintp)


def triangle_indices(n: int) -> Tuple[Array, Array]:
    """Rows and columns of the elements of LAPACK's packed lower triangle, on the device."""
    cupy = cupy_module()
    columns, rows = np.triu_indices(n)
    return cupy.asarray(rows), cupy.asarray(columns)


def attempt(work: Callable[[], Outcome]) -> Any:
    """The outcome, or the error that says why there is none."""
    try:
        return work()
    except AccelError as error:
        return error


def only(outcomes: List[Any]) -> Outcome:
    """The outcome of the only request."""
    if isinstance(outcomes[0], AccelError):
        raise outcomes[0]
    outcome: Outcome = outcomes[0]
    return outcome


def _land(stream: Any, land: Land) -> List[Any]:
    with stream:
        return land()


@lru_cache(maxsize=_MAX_CALLERS)
def _streams(caller: int) -> Tuple[Any, ...]:
    return tuple(cupy_module().cuda.Stream(non_blocking=True) for _ in range(_N_STREAMS))


def _groups(items: Sequence[Item]) -> Iterator[List[Item]]:
    """Neighbours of one shape, element type, order and parameters together if they are small, else alone."""

    def key(numbered: Tuple[int, Item]) -> Tuple[Any, ...]:
        number, (arrays, params, _) = numbered
        is_small = all(max(array.shape[-2:]) <= SMALL_ORDER for array in arrays)
        looks = [(array.shape, array.dtype.str, array.flags.f_contiguous) for array in arrays]
        return (-1 if is_small else number, looks, sorted(params.items()))

    for _, group in groupby(enumerate(items), key):
        yield [item for _, item in group]
