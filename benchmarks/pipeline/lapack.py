"""Bare LAPACK and operations alone, in a process without server: what the server is compared with.

Each process computes on one core with one BLAS thread. Two of them stand for two bare threads: scipy's LAPACK
holds Python's lock, so that two threads of one process would compute in turns.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from yarn_accel.errors import RejectedError
from yarn_accel.operations import Operation, Outcome, Place, allocate, get
from yarn_accel.wire import TensorSpec

# ---- Operations that only this benchmark needs: a factorization repeated, for a chosen compute intensity.
#
# ``repeat_lu`` with ``{"times": c}`` factors its input c times, each time from the same bytes, and returns
# the last factors: the payload of one factorization with the work of c. The copies it needs for that are part
# of the work, in the server and in what it is compared with.

Params = Mapping[str, Any]
Specs = Sequence[TensorSpec]
_MAX_TIMES = 1000
_scratch: dict[tuple[tuple[int, ...], str], Any] = {}
"""One work matrix per process, the last form asked for."""


def _repeat(name: str, arrays: list[Any], params: Params, place: Place = allocate) -> Outcome:
    """The operation of this name ``params["times"]`` times."""
    import numpy as np

    run = get(name).run
    inner = _inner(params)
    for _ in range(int(params["times"]) - 1):
        work = _work_like(arrays[0])
        np.copyto(work, arrays[0])
        run([work], inner)
    return run(arrays, inner, place)


def _work_like(matrix: Any) -> Any:
    import numpy as np

    key = (matrix.shape, matrix.dtype.str)
    if key not in _scratch:
        _scratch.clear()
        _scratch[key] = np.empty(matrix.shape, matrix.dtype, order="F")
    return _scratch[key]


def _inner(params: Params) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "times"}


def _repeated(name: str) -> Operation:
    base = get(name)

    def check(specs: Specs, params: Params) -> None:
        times = params.get("times")
        if not isinstance(times, int) or not 1 <= times <= _MAX_TIMES:
            raise RejectedError("bad-parameter", f"times: expected 1 to {_MAX_TIMES}, found {times!r}")
        base.check(specs, _inner(params))

    return replace(
        base,
        name=f"repeat_{name}",
        summary=f"{base.summary}, several times",
        check=check,
        run=globals()[f"repeat_{name}"],
        flops=lambda specs, params: int(params["times"]) * base.flops(specs, _inner(params)),
        output_bytes=lambda specs, params: base.output_bytes(specs, _inner(params)),
        forms={"cpu": f"benchmarks.pipeline.lapack:repeat_{name}"},
        batch={},
    )


#: By name, as the server finds them.
repeat_lu, repeat_qr, repeat_cholesky = (partial(_repeat, name) for name in ("lu", "qr", "cholesky"))
OPERATIONS = tuple(_repeated(name) for name in ("lu", "qr", "cholesky"))

Answer = Mapping[str, Any]


def order_of(n_bytes: int) -> int:
    """The order of the largest square matrix of float64 in that many bytes."""
    return int((n_bytes / 8) ** 0.5)


def matrix(operation: str, n: int) -> Any:
    """A matrix (n, n) in Fortran order that the factorization of that name likes."""
    import numpy as np

    found = np.asfortranarray(np.random.default_rng(n).standard_normal((n, n)))
    if operation.endswith("cholesky"):
        found += found.T.copy()
        found[np.diag_indices(n)] += 4 * n
    return found


def flops(operation: str, n: int) -> float:
    """Floating-point operations of LAPACK's routine by the usual count."""
    return {"lu": 2 / 3, "qr": 4 / 3, "cholesky": 1 / 3}[operation] * n**3


def _pin(cores: list[int]) -> None:
    os.sched_setaffinity(0, set(cores))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(os.getppid()))


def _timed(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def _alone(order: Mapping[str, Any]) -> Answer:
    """An operation as a worker runs it, ``n_times``; copying its input first does not count.

    The first of a kind of matrix goes before and does not count either: it loads the libraries and touches
    the memory.
    """
    import numpy as np

    from benchmarks.pipeline.lapack import OPERATIONS

    _pin(_cores()[:1])
    run = next(each for each in OPERATIONS if each.name == order["operation"]).run
    n_made = _pair.cache_info().misses
    pristine, work = _pair(order["operation"], int(order["n"]))
    if _pair.cache_info().misses > n_made:
        run([work], {**order["params"], "times": 1})
    seconds = []
    for _ in range(int(order["n_times"])):
        np.copyto(work, pristine)
        seconds.append(_timed(lambda: run([work], order["params"])))
    return {"seconds": seconds}


@functools.lru_cache(maxsize=1)
def _pair(operation: str, n: int) -> tuple[Any, Any]:
    """A matrix to copy from and one to work on; the last pair is kept, as large ones take long to make."""
    pristine = matrix(operation, n)
    return pristine, pristine.copy("F")


def _bare(operation: str, work: Any) -> Callable[[], object]:
    """LAPACK's routine on `work`, in place; its workspace is asked for before."""
    from scipy.linalg import lapack

    if operation == "qr":
        n_work = int(lapack.dgeqrf(work[:, :1], lwork=-1)[2][0])
        n_work = max(n_work, 64 * work.shape[1])
        return lambda: lapack.dgeqrf(work, lwork=n_work, overwrite_a=1)
    if operation == "cholesky":
        return lambda: lapack.dpotrf(work, lower=1, clean=1, overwrite_a=1)
    return lambda: lapack.dgetrf(work, overwrite_a=1)


def _routine(order: Mapping[str, Any]) -> Answer:
    """LAPACK's routine and nothing else, ``n_times``."""
    import numpy as np

    _pin(_cores()[:1])
    pristine = matrix(order["operation"], int(order["n"]))
    work = pristine.copy("F")
    run = _bare(order["operation"], work)
    seconds = []
    for at in range(int(order["n_times"]) + 1):
        np.copyto(work, pristine)
        seconds.append(_timed(run))
        if at == 0:
            seconds.clear()  # the first one only warms
    return {"seconds": seconds}


def _share(order: Mapping[str, Any]) -> Answer:
    """``n_times`` factorizations on one core from a moment on; when the last was done."""
    import numpy as np

    cores = _cores()
    _pin([cores[int(order["core"]) % len(cores)]])
    pristine = matrix(order["operation"], int(order["n"]))
    work = pristine.copy("F")
    run = _bare(order["operation"], work)
    run()
    time.sleep(max(0.0, float(order["start_s"]) - time.monotonic()))
    for _ in range(int(order["n_times"])):
        np.copyto(work, pristine)
        run()
    return {"end_s": time.monotonic()}


ACTS: Mapping[str, Callable[[Mapping[str, Any]], Answer]] = {
    "alone": _alone,
    "routine": _routine,
    "share": _share,
}
