"""Operations whose kernel is a timed wait: on a server as long as a device takes, in a mapper as a CPU does.

Everything around the kernel is real. The same file serves twice: packed as the distribution `accel-emulation`
it gives a pipeline server its `DEVICE_OPERATIONS` (entry point); in the mapper's zipapp it gives the
fallback its `CPU_OPERATIONS`, of the same names.

Parameters of a request: ``cpu_s`` and ``device_s``, the seconds of one task (for images: of one image), and
``speeds``, how many times faster the device of a node is (``cpu_speeds``: its CPU).

A node has one CPU: mappers that wait on the same node wait one after the other, by a lock below
`LOCK_FOLDER_VARIABLE`. A device is exclusive because its server has one worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from yarn_accel.errors import RejectedError
from yarn_accel.operations.operation import Operation, Outcome, aligned_bytes, allocate

PREFIX = "emulated-"
KERNELS = ("lu", "qr", "cholesky", "features")
#: Values in a row of features that takes no computing to speak of.
N_FEATURES = 32
#: The folder of the locks that make a node's CPU one; without it nothing is locked.
LOCK_FOLDER_VARIABLE = "accel_paper_folder"
_NODE = "NM_HOST"
_UNITS_PER_S = 1e9
_KNOWN = ("bins", "cpu_s", "cpu_speeds", "device_s", "root", "speeds")


def seconds_of(params: Mapping[str, Any], n_items: int, node: str, *, is_device: bool) -> float:
    """How long a kernel takes on this node: by the speed of its device, or of its CPU."""
    seconds, speeds = ("device_s", "speeds") if is_device else ("cpu_s", "cpu_speeds")
    return float(params[seconds]) * n_items / float(params.get(speeds, {}).get(node, 1.0))


def _check(specs: Sequence[Any], params: Mapping[str, Any]) -> None:
    for name in params:
        if name not in _KNOWN:
            raise RejectedError("bad-parameter", f"unknown parameter {name!r}; known: {', '.join(_KNOWN)}")
    for name in ("cpu_s", "device_s"):
        value = params.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
            raise RejectedError("bad-parameter", f"{name}: expected seconds up to 3600, found {value!r}")


def _work(specs: Sequence[Any], params: Mapping[str, Any]) -> int:
    """Units of work: what a device of speed 1 does in a billionth of a second each."""
    n_items = specs[1].shape[0] if len(specs) > 1 else 1
    return int(float(params.get("device_s", 0.0)) * n_items * _UNITS_PER_S)


def _output_bytes(specs: Sequence[Any], params: Mapping[str, Any]) -> int:
    n_rows = int(specs[1].shape[0]) if len(specs) > 1 else 0
    return int(aligned_bytes(n_rows * N_FEATURES * 4 + 64))


def device_kernel(arrays: Sequence[Any], params: Mapping[str, Any], place: Any = allocate) -> Outcome:
    """Wait as long as this node's device would compute."""
    return _wait(arrays, params, place, is_device=True)


def cpu_kernel(arrays: Sequence[Any], params: Mapping[str, Any], place: Any = allocate) -> Outcome:
    """Wait as long as this node's CPU would compute, alone on it."""
    with _whole_cpu():
        return _wait(arrays, params, place, is_device=False)


def _wait(arrays: Sequence[Any], params: Mapping[str, Any], place: Any, *, is_device: bool) -> Outcome:
    node = os.environ.get(_NODE, "")
    n_items = len(arrays[1]) if len(arrays) > 1 else 1
    wait_s = seconds_of(params, n_items, node, is_device=is_device)
    until_s = time.monotonic() + wait_s
    outputs = _features(arrays[0], arrays[1], place) if len(arrays) > 1 else {}
    time.sleep(max(0.0, until_s - time.monotonic()))
    return Outcome(outputs, {"node": node, "waited_s": wait_s, "rejected": []})


def _features(blob: Any, lengths: Any, place: Any) -> dict[str, Any]:
    """A row for each image from a few of its bytes: equal images give equal rows, and that is all."""
    import numpy as np

    rows = place("features", (len(lengths), N_FEATURES), "<f4", "C")
    ends = np.cumsum(lengths)
    for row, end in zip(rows, ends, strict=True):
        row[:] = blob[max(0, int(end) - 2 * N_FEATURES) : int(end) - N_FEATURES]
    return {"features": rows}


@contextlib.contextmanager
def _whole_cpu() -> Iterator[None]:
    folder = os.environ.get(LOCK_FOLDER_VARIABLE, "")
    if not folder:
        yield
        return
    with (Path(folder) / f"cpu-{os.environ.get(_NODE, 'node')}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _operation(name: str, run: Any) -> Operation:
    n_inputs = 2 if name == "features" else 1
    return Operation(
        name=PREFIX + name,
        summary=f"emulated: a wait as long as {name} takes",
        n_inputs=n_inputs,
        check=_check,
        run=run,
        flops=_work,
        output_bytes=_output_bytes,
        forms={"cpu": f"{__name__}:{run.__name__}"},
    )


DEVICE_OPERATIONS = tuple(_operation(name, device_kernel) for name in KERNELS)
CPU_OPERATIONS = tuple(_operation(name, cpu_kernel) for name in KERNELS)
