"""Operations that do what no operation should; loaded by workers as ``extra_operations`` in tests."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.operations.operation import Operation, Outcome, Params, Place
from yarn_accel.pipeline.workers.launching import N_LANES

Arrays = list[Any]
KEPT: list[Any] = []
#: Computations that are under way at a time meet here; fewer wait in vain, which is an error.
MEETING = threading.Barrier(N_LANES)


def fail(arrays: Arrays, params: Params, place: Place) -> Outcome:
    raise {
        "rejected": RejectedError("not-finite", "input 0: nan at index [0]", cure="look at it"),
        "storage": StorageError("the disk is full", transient=True),
        "memory": MemoryError(),
        "exit": SystemExit(3),
        "broken": ZeroDivisionError("division by zero"),
    }[params["how"]]


def hang(arrays: Arrays, params: Params, place: Place) -> Outcome:
    arrays[0][:] = -1.0
    while True:
        time.sleep(1)


def die(arrays: Arrays, params: Params, place: Place) -> Outcome:
    """If its first number is `value`, and not before the file `barrier` is there."""
    while "barrier" in params and not Path(params["barrier"]).exists():
        time.sleep(0.001)
    if params.get("value", 0.0) == arrays[0].flat[0]:
        os.kill(os.getpid(), signal.SIGSEGV)
    return Outcome({"a": arrays[0]})


def fault(arrays: Arrays, params: Params, place: Place) -> Outcome:
    ctypes.string_at(8)
    raise AssertionError


def leave(arrays: Arrays, params: Params, place: Place) -> Outcome:
    os._exit(7)


def double(arrays: Arrays, params: Params, place: Place) -> Outcome:
    """In place where it may, else through the output area."""
    if arrays[0].flags.writeable:
        arrays[0] *= 2
        return Outcome({"a": arrays[0]})
    output = place("a", arrays[0].shape, arrays[0].dtype.str, "C")
    np.multiply(arrays[0], 2, out=output)
    return Outcome({"a": output}, {"nan": float("nan"), "n": np.int64(3)})


def write_anyway(arrays: Arrays, params: Params, place: Place) -> Outcome:
    arrays[0][:] = 0
    return Outcome()


def odd(arrays: Arrays, params: Params, place: Place) -> Outcome:
    a = arrays[0]
    makers = {
        "big-endian": lambda: a.astype(">f8"),
        "strided": lambda: a.reshape(2, -1)[:, ::2],
        "middle": lambda: a[2:5],
        "empty": lambda: np.empty((0, 3)),
        "scalar": lambda: np.array(4.0),
    }
    return Outcome({"a": makers[params["what"]]()})


def keep(arrays: Arrays, params: Params, place: Place) -> Outcome:
    KEPT.append(arrays[0])
    return Outcome()


def wait(arrays: Arrays, params: Params, place: Place) -> Outcome:
    """For some seconds, or until the file `barrier` is there."""
    while "barrier" in params and not Path(params["barrier"]).exists():
        time.sleep(0.01)
    time.sleep(params.get("seconds", 0.0 if "barrier" in params else 0.2))
    return Outcome({}, {"affinity": sorted(os.sched_getaffinity(0)), "modules": "numba" in sys.modules})


def maps(arrays: Arrays, params: Params, place: Place) -> Outcome:
    return Outcome({}, {"segments": Path("/proc/self/maps").read_text().count("test-segment")})


def lie(arrays: Arrays, params: Params, place: Place) -> Outcome:
    """Answer by itself, and not the truth."""
    frame: Any = sys._getframe()
    while "_channel" not in dir(frame.f_locals.get("self")):
        frame = frame.f_back
    frame.f_locals["self"]._channel.send(bytes.fromhex(params["message"]))
    time.sleep(30)
    return Outcome()


def run_batch(items: Any) -> list[Any]:
    """As `double`, but for many; an item that begins with 0 is bad, one that begins with -1 is the end."""
    outcomes: list[Any] = []
    for arrays, params, place in items:
        if arrays[0][0] == -1:
            os.kill(os.getpid(), signal.SIGKILL)
        bad = RejectedError("zero", "begins with zero")
        outcomes.append(bad if arrays[0][0] == 0 else double(arrays, params, place))
        outcomes[-1] = bad if arrays[0][0] == 0 else outcomes[-1]
    for outcome in outcomes:
        if isinstance(outcome, Outcome):
            outcome.info["n_together"] = len(items)
    return outcomes


def _entry(name: str, run: Any, overwrites: bool = False, **more: Any) -> Operation:
    return Operation(name, name, 1, lambda s, p: None, run, lambda s, p: 0, overwrites=overwrites, **more)


def on_gpu(arrays: Arrays, params: Params, place: Place) -> Outcome:
    """On a GPU that is not there: see `fake_cupy`."""
    import cupy

    if "meets_others" in params:
        MEETING.wait(timeout=60.0)
    if "error" in params:
        errors = {**vars(cupy.cuda.runtime), **vars(cupy.cuda.memory)}
        error = errors[params["error"]]("it broke")
        error.status = params.get("status", 214)
        raise error
    time.sleep(params.get("seconds", 0.0))
    output = place("a", arrays[0].shape, "<f8", "C")
    np.multiply(arrays[0], 3, out=output)
    cuda = cupy.cuda
    seen = {"pinned": len(cuda.runtime._PINNED), "n_streams": cuda._n_entered, "visible": cuda._VISIBLE}
    return Outcome({"a": output}, seen)


OPERATIONS = (
    _entry("gpu", on_gpu, True, forms={"cuda": "tests.unit.pipeline.workers.faulty:on_gpu"}),
    _entry("fail", fail),
    _entry("hang", hang, True),
    _entry("die", die, True),
    _entry("fault", fault),
    _entry("leave", leave),
    _entry("double", double, True),
    _entry("together", double, True, batch={"cpu": "tests.unit.pipeline.workers.faulty:run_batch"}),
    _entry("write_anyway", write_anyway),
    _entry("odd", odd),
    _entry("keep", keep),
    _entry("wait", wait),
    _entry("maps", maps),
    _entry("lie", lie),
)
