"""The GPUs of this machine as NVML sees them; none where there is no driver or no pynvml.

One GPU that is lost, or that this process may not use, is described with its fault and hides none of the
others.  A GPU that MIG divides is no device; its parts are.  A driver that is not there is asked for again
later: it may be loaded after this process was started.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

#: After nvmlInit failed: not tried again for so long.
_RETRY_S = 5.0
_MIG_ON = 1


@dataclass(slots=True)
class _Library:
    """pynvml, once it was initialised."""

    nvml: Any = None
    is_absent: bool = False
    not_before_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


_library = _Library()


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a part of one that MIG divides.

    Attributes:
        name: ``cuda:3``, numbered as ``nvidia-smi`` does; ``cuda:3:1`` for part 1 of GPU 3.
        uuid: as ``CUDA_VISIBLE_DEVICES`` takes it; empty where the driver does not tell.
        index: the number of the GPU.
        part: the number of the part; None: it is a whole GPU.
        parent_uuid: the UUID of the GPU that a part belongs to, else `uuid`.
        instance: of a part, the ids of its GPU instance and its compute instance.
        product: such as ``NVIDIA H100 80GB HBM3``.
        memory_bytes: all of its memory; 0: unknown.
        used_bytes: of that, in use, by whomever.
        fault: why it cannot be used; empty when it can.
    """

    name: str
    uuid: str
    index: int
    part: int | None = None
    parent_uuid: str = ""
    instance: tuple[int, int] | None = None
    product: str = ""
    memory_bytes: int = 0
    used_bytes: int = 0
    fault: str = ""


def load_nvml() -> Any:
    """The module ``pynvml``, initialised; None without package, library or driver (tried again later)."""
    with _library.lock:
        is_due = not _library.is_absent and time.monotonic() >= _library.not_before_s
        if _library.nvml is None and is_due:
            _library.not_before_s = time.monotonic() + _RETRY_S
            try:
                import pynvml
            except ImportError:
                _library.is_absent = True
                return None
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                _library.nvml = pynvml
        return _library.nvml


def list_gpus() -> list[Gpu]:
    """Every GPU, and in place of one that MIG divides its parts; in the order of their numbers."""
    nvml = load_nvml()
    return [] if nvml is None else [_gpu(nvml, *each) for each in _handles(nvml)]


def read_devices() -> list[dict[str, Any]]:
    """Name, temperature, memory and utilisation of every GPU, fit for JSON; empty without one.

    ``utilisation`` is the share of the last moment in which a kernel ran, 0 to 1; ``ecc_errors`` are the
    uncorrected ones since the driver was loaded.  A value that a device does not give is None; the part of a
    GPU has the temperature and errors of that GPU.  ``fault`` is empty or says why it cannot be used.  Costs
    some 0.1 ms per device.
    """
    nvml = load_nvml()
    return [] if nvml is None else [_figures(nvml, *each) for each in _handles(nvml)]


def list_processes() -> dict[str, dict[int, int]]:
    """Name of the device -> id of each process that computes on it -> bytes it uses there, 0: unknown.

    The ids are those of the node, whatever a container shows its processes.
    """
    nvml = load_nvml()
    found: dict[str, dict[int, int]] = {}
    for index, part, handle, _ in () if nvml is None else _handles(nvml):
        if isinstance(handle, nvml.NVMLError):
            continue
        with contextlib.suppress(nvml.NVMLError):
            rows = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            found[_name(index, part)] = {int(row.pid): int(row.usedGpuMemory or 0) for row in rows}
    return found


def _handles(nvml: Any) -> Iterator[tuple[int, int | None, Any, Any]]:
    """Number of the GPU, number of the part or None, handle, handle of the GPU; for a fault the error."""
    try:
        n_gpus = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        # The driver was unloaded or replaced: what is known of it is worth nothing.
        with _library.lock:
            _library.nvml = None
        return
    for index in range(n_gpus):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            yield index, None, error, error
            continue
        n_parts = _n_parts(nvml, gpu)
        if n_parts is None:
            yield index, None, gpu, gpu
        for part in range(n_parts or 0):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, part)
            except nvml.NVMLError_NotFound:
                continue  # the numbers have gaps
            except nvml.NVMLError as error:
                handle = error
            yield index, part, handle, gpu


def _n_parts(nvml: Any, gpu: Any) -> int | None:
    """How many parts a GPU may have; None: it is not divided."""
    try:
        if nvml.nvmlDeviceGetMigMode(gpu)[0] != _MIG_ON:
            return None
        return int(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
    except nvml.NVMLError:
        return None


def _gpu(nvml: Any, index: int, part: int | None, handle: Any, parent: Any) -> Gpu:
    name = _name(index, part)
    try:
        if isinstance(handle, nvml.NVMLError):
            raise handle
        total_bytes, used_bytes = _memory(nvml, handle)
        instance = None
        if part is not None:
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
        return Gpu(
            name=name,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            index=index,
            part=part,
            parent_uuid=_text(nvml.nvmlDeviceGetUUID(parent)),
            instance=instance,
            product=_text(nvml.nvmlDeviceGetName(handle)),
            memory_bytes=total_bytes,
            used_bytes=used_bytes,
        )
    except nvml.NVMLError as error:
        return Gpu(name, "", index, part, fault=str(error))


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """All of it and what is in use; zeros for a GPU that has none of its own."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError_NotSupported:
        return 0, 0
    return int(memory.total), int(memory.used)


def _figures(nvml: Any, index: int, part: int | None, handle: Any, parent: Any) -> dict[str, Any]:
    fault = str(handle) if isinstance(handle, nvml.NVMLError) else ""

    def asked(function: str, *arguments: Any) -> Any:
        nonlocal fault
        if isinstance(handle, nvml.NVMLError):
            return None
        try:
            return getattr(nvml, function)(*arguments)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            fault = str(error)
        except nvml.NVMLError:
            pass
        return None

    name, uuid = asked("nvmlDeviceGetName", handle), asked("nvmlDeviceGetUUID", handle)
    memory = asked("nvmlDeviceGetMemoryInfo", handle)
    rates = asked("nvmlDeviceGetUtilizationRates", handle)
    return {
        "device": _name(index, part),
        "name": None if name is None else _text(name),
        "uuid": None if uuid is None else _text(uuid),
        "temperature_c": asked("nvmlDeviceGetTemperature", parent, nvml.NVML_TEMPERATURE_GPU),
        "memory_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "utilisation": None if rates is None else rates.gpu / 100,
        "ecc_errors": asked(
            "nvmlDeviceGetTotalEccErrors",
            parent,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        "fault": fault,
    }


def _name(index: int, part: int | None) -> str:
    return f"cuda:{index}" if part is None else f"cuda:{index}:{part}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
