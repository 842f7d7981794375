"""Operations that only this benchmark needs: a factorization repeated, for a chosen compute intensity.

``repeat_lu`` with ``{"times": c}`` factors its input c times, each time from the same bytes, and returns the
last factors: the payload of one factorization with the work of c. The copies it needs for that are part of
the work, in the server and in what it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from yarn_accel.errors import RejectedError
from yarn_accel.operations import Operation, Outcome, Place, allocate, get
from yarn_accel.wire import TensorSpec

Params = Mapping[str, Any]
Specs = Sequence[TensorSpec]
_MAX_TIMES = 1000
_scratch: dict[tuple[tuple[int, ...], str], Any] = {}
"""One work matrix per process, the last form asked for."""


def repeat_lu(arrays: list[Any], params: Params, place: Place = allocate) -> Outcome:
    """``lu`` ``params["times"]`` times."""
    return _repeat("lu", arrays, params, place)


def repeat_qr(arrays: list[Any], params: Params, place: Place = allocate) -> Outcome:
    """``qr`` ``params["times"]`` times."""
    return _repeat("qr", arrays, params, place)


def repeat_cholesky(arrays: list[Any], params: Params, place: Place = allocate) -> Outcome:
    """``cholesky`` ``params["times"]`` times."""
    return _repeat("cholesky", arrays, params, place)


def _repeat(name: str, arrays: list[Any], params: Params, place: Place) -> Outcome:
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
        forms={"cpu": f"benchmarks.pipeline.operations:repeat_{name}"},
        batch={},
    )


OPERATIONS = tuple(_repeated(name) for name in ("lu", "qr", "cholesky"))
