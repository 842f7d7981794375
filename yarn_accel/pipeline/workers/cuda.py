"""A worker's GPU: made ready once, shared buffers pinned, every lane of computations on a stream of its own.

Imported only in a worker that takes the place of a GPU; needs CuPy.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from yarn_accel.errors import StartupError
from yarn_accel.operations.cuda_streams import set_memory_wait
from yarn_accel.operations.gpu_errors import Blame, blame_of, driver_fault
from yarn_accel.pipeline.nvml import load_nvml
from yarn_accel.pipeline.workers.devices import Device
from yarn_accel.pipeline.workers.execution import error_of
from yarn_accel.pipeline.workers.gpu_toolkit import CUDA_MAJOR, cuda_major, describe_toolkit, find_toolkit
from yarn_accel.pipeline.workers.jobs import JobFailure
from yarn_accel.pipeline.workers.memory import Mapping

logger = logging.getLogger(__name__)

_ON_CPU = "send it to a server that computes on its CPU, and report the message"
_PROBE_CURE = "do not use this GPU, or mend its driver and CuPy: see docs/gpu.md"
_IDENTITY_CURE = "compare CUDA_VISIBLE_DEVICES of the server with `nvidia-smi -L`: see docs/gpu.md"
_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Of a whole GPU: what CUDA's runtime says of a part that MIG made is not documented."""
_PORTABLE = 1
"""cudaHostRegisterPortable"""


class CudaDevice:
    """One GPU, the only one that CUDA shows this process, as its number 0.

    Args:
        device: which.
        memory_share: the part of its memory that all workers on it may take together, 0 to 1.
        memory_wait_s: how long a computation waits for memory that others use.

    Attributes:
        toolkit: which CUDA libraries it computes with, in one line; empty: unknown.
        fault: an error of the device itself, or of what is installed, once there was one: it rests.
        broken: an error that ended what this process has on the device, once there was one: another process
            may be well.

    Raises:
        StartupError: CuPy is missing, the device cannot be used, or CUDA opened another one.
    """

    def __init__(self, device: Device, memory_share: float = 1.0, memory_wait_s: float = 0.0) -> None:
        self._name = name = device.name
        self.fault = self.broken = ""
        self._is_proven = False
        major = CUDA_MAJOR
        try:
            import cupy

            # Two lanes that import it first, at a time, can get it half initialised.
            importlib.import_module("cupyx")
            self._cupy = cupy
            self._runtime = cupy.cuda.runtime
            major = cuda_major(str(cupy.__version__), self._runtime.runtimeGetVersion())
            facts = find_toolkit(str(Path(str(cupy.__file__)).parents[1]))
            self.toolkit = "" if facts is None else describe_toolkit(facts, major)
            _, total_bytes = self._runtime.memGetInfo()
            limit_bytes = int(total_bytes * memory_share / device.n_sharing)
            cupy.get_default_memory_pool().set_limit(size=limit_bytes)
            set_memory_wait(memory_wait_s, time.monotonic, time.sleep)
            with self.stream():
                cupy.zeros(64) @ cupy.zeros(64)
        except StartupError as error:
            raise StartupError(f"{name} cannot be used: {error.message}", cure=error.cure) from None
        except ImportError as error:
            raise StartupError(
                f"{name}: CuPy cannot be imported: {error}", cure="pip install 'cluster-accel[gpu]'"
            ) from error
        except Exception as error:
            text = f"{name} cannot be used: {type(error).__name__}: {error}"
            raise StartupError(text, cure=_driver_fault(major)) from error
        if _GPU_UUID.fullmatch(device.uuid):
            _reject_another(device, self._runtime.getDeviceProperties(0)["uuid"])

    def probe(self) -> None:
        """Compute a small case of each operation, which loads each library and compiles each kernel.

        Raises:
            StartupError: one cannot be computed, or is not what the CPU computes.
        """
        from yarn_accel.pipeline.workers.gpu_probe import probe

        try:
            with self.stream():
                probe()
        except Exception as error:
            text = error.message if isinstance(error, StartupError) else f"{type(error).__name__}: {error}"
            raise StartupError(f"{self._name} failed its start probe: {text}", cure=_PROBE_CURE) from error
        self._is_proven = True

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
        """What a failed computation means; who bears it is put down as `fault` or `broken`."""
        blame = blame_of(error)
        text = f"{type(error).__name__}: {error}"
        if blame is Blame.UNCLEAR:
            said = self._ask_cuda()
            blame = Blame.PROCESS if said is None else blame_of(said)
            text += f"; CUDA: {said or 'no error'}"
        if blame is Blame.SETUP and self._is_proven:
            # Everything is there: it is what this request brings along that cannot be built or loaded.
            blame = Blame.PROCESS
        if blame is Blame.MEMORY:
            self._cupy.get_default_memory_pool().free_all_blocks()
            free_bytes, total_bytes = self._runtime.memGetInfo()
            text = f"the GPU is out of memory: {free_bytes >> 20} MiB of {total_bytes >> 20} MiB are free"
            return JobFailure("unavailable", "out-of-memory", text, "", True)
        if blame is Blame.REQUEST:
            return JobFailure("rejected", "gpu-refused", f"the GPU's library refused it: {text}", _ON_CPU)
        if blame is Blame.PROCESS:
            self.broken = text
            return JobFailure("unavailable", "gpu-failed", text, "", True)
        if blame is not Blame.NONE:
            self.fault = text
            return JobFailure("unavailable", "sick-device", text, "", True)
        return error_of(error)

    def _ask_cuda(self) -> Exception | None:
        """The error that ended what this process has on the device; None: it can go on.

        Not ``cudaGetLastError``: cuBLAS and cuSOLVER each have a runtime of their own, which keeps theirs.
        """
        try:
            self._runtime.deviceSynchronize()
        except self._runtime.CUDARuntimeError as error:
            found: Exception = error
            return found
        return None

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


def _reject_another(device: Device, found: bytes) -> None:
    """Refuse a GPU with another UUID than NVML's; CuPy's bytes end before the first that is zero."""
    uuid = bytes.fromhex(device.uuid.removeprefix("GPU-").replace("-", ""))
    if uuid.partition(b"\0")[0] != found[: len(uuid)]:
        text = f"{device.name} is {device.uuid}, but CUDA opened the GPU whose UUID begins with "
        raise StartupError(text + (found[: len(uuid)].hex() or "00"), cure=_IDENTITY_CURE)


def _driver_fault(major: int) -> str:
    """Why the driver is too old for this CUDA, if NVML says which it is."""
    nvml = load_nvml()
    if nvml is None:
        return ""
    try:
        return driver_fault(nvml.nvmlSystemGetDriverVersion(), major)
    except nvml.NVMLError:
        return ""


def _nothing() -> None:
    """Nothing to undo."""
