"""Whether this machine has an NVIDIA driver with a GPU, asked of the driver; standard library.

``python3 -m benchmarks.gpu.driver`` names both, or says in one line what is missing and ends with 1: before
`make gpu-test` installs anything.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

from yarn_accel.errors import AccelError
from yarn_accel.operations.gpu_errors import driver_fault

CUDA_MAJOR = 12
"""Of the CuPy that the extra `gpu` brings."""
_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_DRIVER_CURE = f"install NVIDIA's driver, 525 or newer; in a container, start it with the GPUs ({_LIBRARY})"


class NoGpuError(AccelError):
    """There is no GPU that can be used here."""

    code = "no-gpu"


def read_driver() -> tuple[str, list[str]]:
    """The driver's version, and a line for each GPU, one with a fault included.

    Raises:
        NoGpuError: no driver, one that is not loaded or too old, or no GPU.
    """
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise NoGpuError("there is no NVIDIA driver on this machine", cure=_DRIVER_CURE) from error
    status = nvml.nvmlInitWithFlags(0)
    if status:
        raise NoGpuError(
            f"the NVIDIA driver does not answer (nvmlInit: {status})",
            cure="load it (nvidia-smi -L says more), or boot the kernel that it was built for",
        )
    version = _text(nvml.nvmlSystemGetDriverVersion)
    if fault := driver_fault(version, CUDA_MAJOR):
        raise NoGpuError(fault)
    gpus = list(_gpus(nvml))
    if not gpus:
        raise NoGpuError(
            f"the NVIDIA driver {version} shows no GPU",
            cure="nvidia-smi -L lists them for root; in a container, start it with the GPUs",
        )
    return version, gpus


def _gpus(nvml: ctypes.CDLL) -> Iterator[str]:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle = ctypes.c_void_p()
        status = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if status:
            yield f"GPU {index}: error {status} of the driver"
        else:
            name, uuid = _text(nvml.nvmlDeviceGetName, handle), _text(nvml.nvmlDeviceGetUUID, handle)
            yield f"GPU {index}: {name}, {uuid}"


def _text(function: ctypes._NamedFuncPointer, *arguments: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    status = function(*arguments, buffer, _TEXT_BYTES)
    return f"error {status} of the driver" if status else buffer.value.decode("utf-8", "replace")


def main() -> int:
    """Print what there is; the exit code."""
    try:
        version, gpus = read_driver()
    except NoGpuError as error:
        sys.stderr.write(f"no GPU to test on: {error}\n")
        return error.exit_code
    print("\n".join([f"NVIDIA driver {version}", *gpus]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
