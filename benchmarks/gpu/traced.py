"""The factorizations with a note of when each request was copied in, computed and copied out.

Loaded into the server's worker by ``extra_operations``. Each is the worker's own operation: only events are
recorded around its copies, on its streams, and read when all is done. Their times are milliseconds after an
event that this process recorded first, which all its streams share.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from yarn_accel.operations import Operation, Outcome, Place, allocate, get
from yarn_accel.operations.operation import Params

PREFIX = "traced_"
STAGES_KEY = "gpu_stages"
_BEGIN, _END = 0, 1
_thread = threading.local()
_lock = threading.Lock()
Marks = list[tuple[str, Any, Any]]
"""Stage, event at its begin, event at its end."""


def _only(name: str, arrays: list[Any], params: Params, place: Place = allocate) -> Outcome:
    """As the operation of this name; `info` has the times."""
    from yarn_accel.operations.cuda_streams import only

    return only(_batch(name, [(arrays, params, place)]))


def _batch(name: str, items: Sequence[Any]) -> list[Any]:
    """As that of the operation of this name."""
    form = get(name).batch_form("cuda")
    assert form is not None
    with _lock:
        _watch()
        origin = _origin()
    _thread.is_traced = True
    try:
        outcomes = form(items)
    finally:
        _thread.is_traced = False
    for outcome in outcomes:
        if isinstance(outcome, Outcome):
            outcome.info[STAGES_KEY] = {"process": os.getpid(), **_times(outcome.info[STAGES_KEY], origin)}
    return outcomes


def _times(marks: Marks, origin: Any) -> dict[str, list[list[float]]]:
    """By stage the begin and end of each span; all events have passed."""
    elapsed_ms = _cupy().cuda.get_elapsed_time
    found: dict[str, list[list[float]]] = {}
    for stage, *events in marks:
        found.setdefault(stage, []).append([round(elapsed_ms(origin, event), 4) for event in events])
    return found


@functools.cache
def _origin() -> Any:
    event = _cupy().cuda.Event()
    event.record()
    event.synchronize()
    return event


@functools.cache
def _watch() -> None:
    """Have the operations' copies noted, in threads that trace."""
    from yarn_accel.operations import cuda_linalg

    for name, watched in (
        ("upload", partial(_noted, "h2d")),
        ("download_each", partial(_noted, "d2h")),
        ("through_streams", _through),
    ):
        setattr(cuda_linalg, name, watched(getattr(cuda_linalg, name)))


def _noted(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        marks: Marks | None = getattr(_thread, "marks", None)
        if marks is None:
            return function(*arguments)
        begin = _event()
        found = function(*arguments)
        marks.append((stage, begin, _event()))
        return found

    return run


def _through(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(items: Sequence[Any], launch: Callable[..., Any]) -> Any:
        is_traced = getattr(_thread, "is_traced", False)
        return function(items, partial(_launched, launch) if is_traced else launch)

    return run


def _launched(launch: Callable[..., Any], group: list[Any]) -> Callable[[], Any]:
    marks: Marks = []
    with _marking(marks):
        land = launch(group)
    copied = marks[-1][1 + _END]
    marks.append(("kernel", copied, _event()))
    return partial(_landed, land, marks)


def _landed(land: Callable[[], list[Any]], marks: Marks) -> list[Any]:
    with _marking(marks):
        outcomes = land()
    for outcome in outcomes:
        if isinstance(outcome, Outcome):
            outcome.info[STAGES_KEY] = marks
    return outcomes


@contextmanager
def _marking(marks: Marks) -> Iterator[None]:
    _thread.marks = marks
    try:
        yield
    finally:
        _thread.marks = None


def _event() -> Any:
    event = _cupy().cuda.Event()
    event.record()
    return event


def _cupy() -> Any:
    from yarn_accel.operations.cuda_streams import cupy_module

    return cupy_module()


def _traced(name: str) -> Operation:
    base = get(name)
    return replace(
        base,
        name=PREFIX + name,
        forms={"cpu": base.forms["cpu"], "cuda": f"{__name__}:{name}"},
        batch={"cuda": f"{__name__}:{name}_batch"},
    )


_NAMES = ("lu", "qr", "cholesky")
#: By name, as the worker finds them.
lu, qr, cholesky = (partial(_only, name) for name in _NAMES)
lu_batch, qr_batch, cholesky_batch = (partial(_batch, name) for name in _NAMES)
OPERATIONS = tuple(map(_traced, _NAMES))
