"""Tells what a caller's signal handler raises from what this client's own system calls raise.

Python runs the handler of a signal in the main thread, between two instructions or within the system call
that the signal interrupts. So a TimeoutError of a handler comes out of the very call that waits for a server,
and looks as if the server were lost. It belongs to the caller, as `KeyboardInterrupt` does: every place that
catches errors of sockets, files or servers calls `reraise_from_signal` first.

The traceback tells: Python gives a handler the interrupted frame, which is also the one that it returns to.
Standard library only, Python 3.8.
"""

from __future__ import annotations

import signal
from types import CodeType, FrameType
from typing import Any, Optional, Set


def reraise_from_signal(error: BaseException) -> None:
    """Raise `error` again if a signal handler raised it; the first statement of an ``except`` clause.

    Raises:
        BaseException: `error` itself, unchanged.
    """
    # The first entry is the function that catches: what it raised by itself, or its system call did, is not
    # from a handler.
    trace = None if error.__traceback__ is None else error.__traceback__.tb_next
    registered: Optional[Set[CodeType]] = None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if frame.f_globals.get("__name__", "").startswith(("yarn_accel.client.", "yarn_accel.wire.")):
            continue
        if registered is None:
            registered = _registered()
        if frame.f_code in registered or _has_interrupted_frame(frame):
            raise error


def _has_interrupted_frame(frame: FrameType) -> bool:
    """Whether one argument of the function is the frame that it returns to, as in a handler's call."""
    back = frame.f_back
    if back is None:
        return False
    return any(
        value is back or (type(value) is tuple and any(item is back for item in value))
        for value in frame.f_locals.values()
    )


def _registered() -> Set[CodeType]:
    """The code of the handlers of now: one may have dropped its arguments before it raised."""
    found = set()
    for number in signal.valid_signals():
        code = _code_of(signal.getsignal(number))
        if code is not None:
            found.add(code)
    return found


def _code_of(handler: Any) -> Optional[CodeType]:
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = vars(type(handler)).get("__call__")
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
