"""Operations that misbehave in every way we could think of, for ``extra_operations``.

They run in worker processes only: each costs its worker at most, never the server.
"""

import ctypes
import os
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np

from yarn_accel.operations.operation import Operation, Outcome, allocate

#: What goes into the configuration.
PATH = "tests.integration.pipeline.bad_operations:OPERATIONS"
_MIB = 1024 * 1024


def _raise(arrays, params, place=allocate):
    raise ValueError("boom")


def _raise_exit(arrays, params, place=allocate):
    raise SystemExit(3)


def _raise_memory(arrays, params, place=allocate):
    raise MemoryError


def _slow(arrays, params, place=allocate):
    time.sleep(params.get("seconds", 0.2))
    return Outcome({"x": arrays[0]}, {"pid": os.getpid()})


def _native(arrays, params, place=allocate):
    """Native code that does not let any other thread of its process run."""
    sum(range(params["n"]))
    return Outcome({"x": arrays[0]}, {"pid": os.getpid()})


def _hang(arrays, params, place=allocate):
    time.sleep(3600)


def _spin(arrays, params, place=allocate):
    while True:
        pass


def _segfault(arrays, params, place=allocate):
    """Crash; with a `marker` only the first time, so that a second attempt succeeds."""
    marker = params.get("marker")
    if marker is None or not Path(marker).exists():
        if marker is not None:
            Path(marker).touch()
        ctypes.string_at(0)
    return Outcome({"x": arrays[0] + 1}, {"pid": os.getpid()})


def _segfault_after_writing(arrays, params, place=allocate):
    """Destroy the inputs, then crash; with the marker there, add one."""
    if not Path(params["marker"]).exists():
        arrays[0][...] = -1
        Path(params["marker"]).touch()
        ctypes.string_at(0)
    return Outcome({"x": arrays[0] + 1}, {})


def _exit(arrays, params, place=allocate):
    os._exit(0)


def _scribble(arrays, params, place=allocate):
    arrays[0][...] = 77
    return Outcome({"x": arrays[0]}, {})


def _none(arrays, params, place=allocate):
    return None


def _objects(arrays, params, place=allocate):
    return Outcome({"x": np.array([object()])}, {})


def _list(arrays, params, place=allocate):
    return Outcome({"x": [1, 2, 3]}, {})


def _too_large(arrays, params, place=allocate):
    return Outcome({"x": np.ones(4 * _MIB)}, {})


def _place_too_large(arrays, params, place=allocate):
    return Outcome({"x": place("x", (4 * _MIB,), "<f8", "C")}, {})


def _place_negative(arrays, params, place=allocate):
    return Outcome({"x": place("x", (-5, 8), "<f8", "C")}, {})


def _too_many(arrays, params, place=allocate):
    return Outcome({f"x{number}": np.ones(1) for number in range(100)}, {})


def _bad_names(arrays, params, place=allocate):
    return Outcome({"x" * 100_000: np.ones(1), 7: np.ones(1)}, {})


def _bad_info(arrays, params, place=allocate):
    return Outcome({}, {"x": {1, 2}, "nan": float("nan"), "self": object()})


def _large_info(arrays, params, place=allocate):
    return Outcome({}, {"x": "y" * (8 * _MIB)})


def _lie(arrays, params, place=allocate):
    """Say something senseless to the server behind the worker's back."""
    for number in range(3, 256):
        try:
            sock = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        with sock:
            try:
                sock.send(params["text"].encode() * params.get("times", 1), socket.MSG_DONTWAIT)
            except OSError:
                continue
    return Outcome({"x": arrays[0]}, {})


def _close_everything(arrays, params, place=allocate):
    os.closerange(3, 256)
    return Outcome({"x": arrays[0]}, {})


def _forge(arrays, params, place=allocate):
    """Have the worker's next answer changed on its way out."""
    frame = sys._getframe()
    while "_channel" not in vars(frame.f_locals.get("self", frame.f_code.__class__)):
        frame = frame.f_back
    worker = frame.f_locals["self"]
    channel = worker._channel

    class Forger:
        receive = channel.receive

        def send(self, message, fds=()):
            if message[0] == 2:
                worker._channel = channel
                message = FORGERIES[params["what"]](bytearray(message))
            channel.send(bytes(message), fds)

    worker._channel = Forger()
    return Outcome({"x": arrays[0]}, {})


def _put(layout, at, *values):
    def forge(message):
        struct.pack_into(layout, message, at, *values)
        return message

    return forge


#: Changes of an answer, by name; see `protocol.HEAD` and `DONE_HEAD` for the places.
FORGERIES = {
    "no change": lambda message: message,
    "two answers": _put("<I", 4, 2),
    "no answers": _put("<I", 4, 0),
    "another job": _put("<Q", 8, 1 << 40),
    "many tensors": _put("<H", 18, 60000),
    "no tensors": _put("<H", 18, 0),
    "unknown layout": _put("<I", 20, 999),
    "long text": _put("<I", 24, 1 << 31),
    "endless": _put("<d", 28, float("inf")),
    "not a number": _put("<dd", 28, float("nan"), float("nan")),
    "negative": _put("<d", 28, -1e12),
    "another segment": _put("<Q", 44, 1 << 33),
    "far away": _put("<Q", 52, (1 << 64) - 64),
    "a bit further": _put("<Q", 52, 1 << 21),
    "cut short": lambda message: message[:30],
    "twice": lambda message: message + message,
}

#: What `lie` says.
LIES = ("", "garbage", "[]", '{"layout": 0, "tensors": [["x", "<f8", [1e9], "C"]]}', "\0" * 64, "1e999")


def _operation(name, run, *, output_bytes=_MIB, overwrites=False):
    options = {"output_bytes": lambda specs, params: output_bytes, "overwrites": overwrites}
    fits, counts = (lambda specs, params: None), (lambda specs, params: 0)
    return Operation(f"bad-{name}", "misbehaves", None, fits, run, counts, **options)


_PLAIN = (_raise, _raise_exit, _raise_memory, _slow, _native, _hang, _spin, _segfault, _exit, _scribble)
_PLAIN += (_none, _objects, _list, _place_negative, _too_many, _bad_names, _bad_info, _large_info, _lie)
_PLAIN += (_forge, _close_everything)

OPERATIONS = (
    *(_operation(run.__name__[1:].replace("_", "-"), run) for run in _PLAIN),
    _operation("segfault-after-writing", _segfault_after_writing, overwrites=True),
    _operation("too-large", _too_large, output_bytes=64),
    _operation("place-too-large", _place_too_large, output_bytes=64),
)
