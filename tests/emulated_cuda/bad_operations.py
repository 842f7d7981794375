"""An operation whose form for GPUs breaks what its process has there, for ``extra_operations``."""

import ctypes
import importlib

from yarn_accel.operations.operation import Operation, Outcome, allocate

#: What goes into the configuration.
PATH = "tests.emulated_cuda.bad_operations:OPERATIONS"


def run(arrays, params, place=allocate):
    """On a CPU: nothing is broken."""
    return Outcome({"x": arrays[0]}, {})


def break_gpu(arrays, params, place=allocate):
    """Have CUDA fail from now on with ``params["error"]``: a copy sees it, or cuSOLVER has an error."""
    linalg = importlib.import_module("yarn_accel.operations.cuda_linalg")
    memory = linalg.cupy_module().zeros(64).data.ptr
    solver, handle, _ = linalg.library("cusolver", arrays[0])
    ctypes.CDLL("libcuda.so.1").emulated_fail(params["error"])
    if params["in_library"]:
        solver.dgetrf(handle, 1, 1, memory, 1, memory, memory, memory)
    return linalg.lu(arrays, {}, place)


OPERATIONS = (
    Operation(
        "break-gpu",
        "break-gpu",
        1,
        lambda shapes, params: None,
        run,
        lambda shapes, params: 0,
        forms={"cuda": "tests.emulated_cuda.bad_operations:break_gpu"},
    ),
)
