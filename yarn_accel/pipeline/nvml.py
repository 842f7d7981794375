"""The GPUs of this machine as NVML sees them; none where there is no driver or no pynvml."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["read_devices"]

_lock = threading.Lock()
#: pynvml once it was initialised, None when there is nothing to ask; not tried again.
_nvml: list[Any] = []


def read_devices() -> list[dict[str, Any]]:
    """Name, temperature, memory and utilisation of every GPU, fit for JSON; empty without one.

    ``utilisation`` is the share of the last moment in which a kernel ran, 0 to 1; ``ecc_errors`` are the
    uncorrected ones since the driver was loaded.  A value that a device does not give is None.  Costs some
    0.1 ms per device.
    """
    nvml = _library()
    if nvml is None:
        return []
    try:
        return [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []


def _library() -> Any:
    with _lock:
        if not _nvml:
            _nvml.append(_initialised())
        return _nvml[0]


def _initialised() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _device(nvml: Any, index: int) -> dict[str, Any]:
    def asked(function: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, function)(*arguments)
        except nvml.NVMLError:
            return None

    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name, uuid = asked("nvmlDeviceGetName", handle), asked("nvmlDeviceGetUUID", handle)
    memory = asked("nvmlDeviceGetMemoryInfo", handle)
    rates = asked("nvmlDeviceGetUtilizationRates", handle)
    return {
        "device": f"cuda:{index}",
        "name": name.decode() if isinstance(name, bytes) else name,
        "uuid": uuid.decode() if isinstance(uuid, bytes) else uuid,
        "temperature_c": asked("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        "memory_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "utilisation": None if rates is None else rates.gpu / 100,
        "ecc_errors": asked(
            "nvmlDeviceGetTotalEccErrors",
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
    }
