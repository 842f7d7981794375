"""The GPUs of this machine as NVML sees them; none where there is no driver or no pynvml.

One GPU that is lost, or that this process may not use, is described with its fault and hides none of the
others.  A GPU that MIG divides is no device; its parts are.  A driver that is not there is asked for again
later: it may be loaded after this process was started.

Which of them a process may use is said by its environment. ``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it:
numbers, UUIDs, the beginning of a UUID that only one has, MIG ids; what follows an entry that names nothing
does not count, so empty and ``-1`` are none at all. A UUID that may be that of a lost GPU is passed over.
Numbers are those of ``nvidia-smi``; CUDA itself counts so where ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID`` or
all GPUs are of one model.

``NVIDIA_VISIBLE_DEVICES`` is a word to the container runtime, which has acted on it before a process starts:
what it names by UUID or ``none`` holds here, too.  Its numbers count the node's GPUs; where NVML shows no
more GPUs than it names, the runtime has hidden the others and renumbered the rest.  ``void`` says that
another way of handing out devices is used, and nothing about which.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
NVIDIA_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
#: After nvmlInit failed: not tried again for so long.
_RETRY_S = 5.0
_MIG_ON = 1
PACKAGE_MISSING = "nvidia-ml-py is not installed: pip install 'cluster-accel[yarn]'"
#: Of a question that a healthy device does not answer; any other error is a fault where it answers always.
_NO_ANSWER = ("NotSupported", "NotFound", "FunctionNotFound", "NoPermission", "InvalidArgument", "Timeout")
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


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
        compute_mode: ``default``, ``exclusive process``, ``prohibited``; empty: unknown.
        cores: of the node that are nearest; empty: unknown.
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
    compute_mode: str = ""
    cores: tuple[int, ...] = ()
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


def is_package_missing() -> bool:
    """Whether GPUs cannot be seen because pynvml is not installed."""
    load_nvml()
    return _library.is_absent


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
            compute_mode=_compute_mode(nvml, parent),
            cores=_nearest_cores(nvml, parent),
        )
    except nvml.NVMLError as error:
        return Gpu(name, "", index, part, fault=str(error))


def _compute_mode(nvml: Any, gpu: Any) -> str:
    try:
        return _COMPUTE_MODES[nvml.nvmlDeviceGetComputeMode(gpu)]
    except (nvml.NVMLError, IndexError):
        return ""


def _nearest_cores(nvml: Any, gpu: Any) -> tuple[int, ...]:
    """The cores of the GPU's NUMA node."""
    n_words = -(-(os.cpu_count() or 1) // 64)
    try:
        words = [int(word) for word in nvml.nvmlDeviceGetCpuAffinity(gpu, n_words)]
    except nvml.NVMLError:
        return ()
    return tuple(64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """All of it and what is in use; zeros for a GPU that has none of its own."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError_NotSupported:
        return 0, 0
    return int(memory.total), int(memory.used)


def _figures(nvml: Any, index: int, part: int | None, handle: Any, parent: Any) -> dict[str, Any]:
    fault = str(handle) if isinstance(handle, nvml.NVMLError) else ""
    always = ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo")

    def asked(function: str, *arguments: Any) -> Any:
        nonlocal fault
        if isinstance(handle, nvml.NVMLError):
            return None
        try:
            return getattr(nvml, function)(*arguments)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            fault = str(error)
        except nvml.NVMLError as error:
            if function in always and not _is_no_answer(nvml, error):
                # Such as "Unknown Error", in a container that lost its devices.
                fault = fault or str(error)
        return None

    name, uuid, memory = (asked(function, handle) for function in always)
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


def _is_no_answer(nvml: Any, error: Exception) -> bool:
    kinds = [getattr(nvml, f"NVMLError_{name}", None) for name in _NO_ANSWER]
    return isinstance(error, tuple(kind for kind in kinds if kind is not None))


def _name(index: int, part: int | None) -> str:
    return f"cuda:{index}" if part is None else f"cuda:{index}:{part}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Those of the GPUs that may be used, in the order of the variable that names them; with their faults.

    The number or UUID of a GPU that MIG divides stands for all of its parts.
    """
    seen = _named_to_runtime(gpus, environ.get(NVIDIA_VARIABLE, ""))
    names = environ.get(CUDA_VARIABLE)
    if names is None:
        return seen
    found: list[Gpu] = []
    for name in names.split(","):
        # Numbers are the node's, whatever the other variable hides.
        matching = [gpu for gpu in _matching(gpus, name.strip()) if gpu not in found]
        if not matching and not _may_be_silent(gpus, name.strip()):
            break
        found += matching
    return [gpu for gpu in found if gpu in seen]


def doubtful_numbers(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> bool:
    """Whether the environment names GPUs by numbers that CUDA may count in another order than we do."""
    names = environ.get(CUDA_VARIABLE, "").split(",")
    is_ordered = environ.get(_ORDER_VARIABLE) == "PCI_BUS_ID"
    models = {gpu.product for gpu in gpus if not gpu.fault}
    return not is_ordered and len(models) > 1 and any(name.strip().isdecimal() for name in names)


def _named_to_runtime(gpus: Sequence[Gpu], text: str) -> list[Gpu]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or names in (["all"], ["void"]):
        return list(gpus)
    if names == ["none"]:
        return []
    n_gpus = len({gpu.index for gpu in gpus})
    if all(name.replace(":", "").isdecimal() for name in names) and n_gpus <= len(names):
        return list(gpus)
    found: list[Gpu] = []
    for name in names:
        found += [gpu for gpu in _matching(gpus, name) if gpu not in found]
    return found


def _matching(gpus: Sequence[Gpu], name: str) -> list[Gpu]:
    """The GPUs that one entry names; a UUID may be cut short where only one GPU begins so."""
    if name.isdecimal():
        return [gpu for gpu in gpus if gpu.index == int(name)]
    if name.replace(":", "").isdecimal():
        return [gpu for gpu in gpus if gpu.name == f"cuda:{name}"]
    if not name.startswith(("GPU-", "MIG-")):
        return []
    parts = [gpu for gpu in gpus if gpu.uuid.startswith(name) or _former_id(gpu) == name]
    if parts:
        return parts if len(parts) == 1 else []
    parents = {gpu.parent_uuid for gpu in gpus if gpu.parent_uuid.startswith(name)}
    return [gpu for gpu in gpus if gpu.parent_uuid in parents] if len(parents) == 1 else []


def _may_be_silent(gpus: Sequence[Gpu], name: str) -> bool:
    """Whether the entry may name a GPU that no longer tells its UUID: it hides none of those that follow."""
    return name.startswith(("GPU-", "MIG-")) and any(not gpu.uuid for gpu in gpus)


def _former_id(gpu: Gpu) -> str:
    """How drivers before 470 named a part; CUDA still takes it."""
    if gpu.instance is None:
        return ""
    return f"MIG-{gpu.parent_uuid}/{gpu.instance[0]}/{gpu.instance[1]}"
