"""A worker's GPU: made ready once, shared buffers pinned, every lane of computations on a stream of its own.

Imported only in a worker that takes the place of a GPU; needs CuPy.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

from yarn_accel.errors import StartupError
from yarn_accel.pipeline.workers.execution import error_of
from yarn_accel.pipeline.workers.jobs import JobFailure
from yarn_accel.pipeline.workers.memory import Mapping

__all__ = ["CudaDevice", "CudaStream"]

logger = logging.getLogger(__name__)

_PORTABLE = 1
"""cudaHostRegisterPortable"""
_OUT_OF_MEMORY = {"CUDARuntimeError": 2, "CUDADriverError": 2, "CUSOLVERError": 2, "CUBLASError": 3}
"""CuPy's exceptions for errors of the device, and the status of each that only says that memory is short."""


class CudaDevice:
    """One GPU.

    Attributes:
        fault: an error of the device itself, once there was one.

    Raises:
        StartupError: CuPy is missing, or the device cannot be used.
    """

    def __init__(self, name: str) -> None:
        # Numbers as NVML counts; read when CUDA starts, which it has not done in a standby process.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = name.partition(":")[2]
        self.fault = ""
        try:
            import cupy

            self._cupy = cupy
            self._runtime = cupy.cuda.runtime
            with self.stream():
                cupy.zeros(64) @ cupy.zeros(64)
        except ImportError as error:
            raise StartupError(
                f"{name}: CuPy cannot be imported: {error}", cure="pip install 'cluster-accel[gpu]'"
            ) from error
        except Exception as error:
            raise StartupError(f"{name} cannot be used: {type(error).__name__}: {error}") from error

    def stream(self) -> CudaStream:
        """A stream for one lane: what is asked for within it is complete when it is left."""
        return CudaStream(self._cupy.cuda.Stream(non_blocking=True))

    def versions(self) -> dict[str, str]:
        """What the speed of this device depends on."""
        properties = self._runtime.getDeviceProperties(0)
        return {
            "cupy": str(self._cupy.__version__),
            "cuda": str(self._runtime.runtimeGetVersion()),
            "gpu": bytes(properties["name"]).decode("utf-8", "replace"),
        }

    def pin(self, mapping: Mapping) -> Callable[[], None]:
        """Let the GPU copy from and to a shared buffer directly; without that it is only slower."""
        try:
            self._runtime.hostRegister(mapping.address, len(mapping.memory), _PORTABLE)
        except self._runtime.CUDARuntimeError as error:
            logger.warning("a buffer of %d bytes is not pinned: %s", len(mapping.memory), error)
            return _nothing
        return lambda: self._unpin(mapping.address)

    def explain(self, error: BaseException) -> JobFailure:
        """What a failed computation means; an error of the device itself is also put down as `fault`."""
        kind = type(error).__name__
        is_out = isinstance(error, self._cupy.cuda.memory.OutOfMemoryError)
        if is_out or _OUT_OF_MEMORY.get(kind, -1) == getattr(error, "status", None):
            self._cupy.get_default_memory_pool().free_all_blocks()
            return JobFailure("unavailable", "out-of-memory", "the GPU is out of memory", "", True)
        if kind in _OUT_OF_MEMORY:
            self.fault = f"{kind}: {error}"
            return JobFailure("unavailable", "sick-device", self.fault, "", True)
        return error_of(error)

    def _unpin(self, address: int) -> None:
        with contextlib.suppress(self._runtime.CUDARuntimeError):
            self._runtime.hostUnregister(address)


class CudaStream:
    """A context manager around a stream of CuPy: also waits for what was begun on it, unless that failed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> CudaStream:
        self._stream.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._stream.synchronize()
        finally:
            self._stream.__exit__(kind, error, trace)


def _nothing() -> None:
    """Nothing to undo."""
