"""Which devices there are: groups of CPU cores, and GPUs as NVML counts them."""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from yarn_accel.errors import ConfigError
from yarn_accel.pipeline.nvml import read_devices
from yarn_accel.pipeline.workers.affinity import core_groups

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["Device", "GpuMonitor", "find_devices"]

logger = logging.getLogger(__name__)

_ASK_S = 0.25
CUPY_MISSING = "CuPy is not installed: pip install 'cluster-accel[gpu]'"


@dataclass(frozen=True, slots=True)
class Device:
    """What one worker computes with.

    Attributes:
        name: ``cpu`` or ``cuda:0``, as results name it.
        kind: ``cpu`` or ``cuda``.
        cores: bound to these; empty: to none.
        fault: why it cannot be used; empty when it can.
    """

    name: str
    kind: str
    cores: tuple[int, ...] = ()
    fault: str = ""

    @property
    def index(self) -> int:
        """The number of a GPU, as NVML counts them."""
        return int(self.name.partition(":")[2] or 0)


def find_devices(config: PipelineConfig) -> tuple[Device, ...]:
    """The devices of a server, one for each worker it shall have.

    ``auto`` is every GPU that can be used, else the CPU.

    Raises:
        ConfigError: a device that no machine has.
    """
    found: list[Device] = []
    for name in config.devices:
        if name == "auto":
            gpus = [gpu for gpu in _gpus() if not gpu.fault]
            found += gpus or _cpus(config)
        elif name == "cpu":
            found += _cpus(config)
        elif name.startswith("cuda:") and name[5:].isdigit():
            found.append(_gpu(name))
        else:
            raise ConfigError(f"devices: {name!r} is none of auto, cpu, cuda:0, cuda:1, ...")
    return tuple(found)


def _cpus(config: PipelineConfig) -> list[Device]:
    groups = core_groups(config.n_workers, config.cores_per_worker)
    return [Device("cpu", "cpu", group if config.pin_workers else ()) for group in groups]


def _gpus() -> list[Device]:
    nvml = _nvml()
    if nvml is None:
        return []
    gpus = [_gpu(f"cuda:{i}") for i in range(nvml.nvmlDeviceGetCount())]
    for gpu in gpus:
        if gpu.fault:
            logger.warning("%s is not used: %s", gpu.name, gpu.fault)
    return gpus


def _gpu(name: str) -> Device:
    nvml = _nvml()
    if nvml is None:
        return Device(name, "cuda", fault="there is no NVIDIA driver on this machine")
    if int(name[5:]) >= nvml.nvmlDeviceGetCount():
        return Device(name, "cuda", fault=f"this machine has {nvml.nvmlDeviceGetCount()} GPUs")
    if importlib.util.find_spec("cupy") is None:
        return Device(name, "cuda", fault=CUPY_MISSING)
    return Device(name, "cuda")


def _nvml() -> Any:
    """NVML ready for use, or None where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 -- no package, no library, no driver: all mean no GPU
        return None
    return pynvml


class GpuMonitor:
    """Asks NVML how the GPUs are, in a thread of its own: a driver in trouble may take its time.

    Args:
        devices: those that workers compute on.
        on_fault: called with device and fault of each Xid or uncorrectable memory error.
        call_soon: has a function called by the thread that `on_fault` belongs to.

    Attributes:
        latest: what `read_devices` said a moment ago.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        on_fault: Callable[[str, str], None],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.latest: list[dict[str, Any]] = []
        self._on_fault = on_fault
        self._call_soon = call_soon
        self._nvml: Any = _nvml() if any(device.kind == "cuda" for device in devices) else None
        self._devices = [device for device in devices if device.kind == "cuda" and not device.fault]
        self._names: dict[int, str] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        """Ask from now on, where there is something to ask."""
        if self._nvml is not None:
            self._thread.start()

    def close(self) -> None:
        """Ask no more; a question that is not answered is left alone."""
        self._closing.set()

    def _run(self) -> None:
        self._register()
        while True:
            for name, fault in self.faults():
                self._call_soon(functools.partial(self._on_fault, name, fault))
            self.latest = read_devices()
            if self._closing.wait(_ASK_S):
                return

    def _register(self) -> None:
        nvml = self._nvml
        self._events = nvml.nvmlEventSetCreate()
        kinds = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        for device in self._devices:
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(device.index)
                nvml.nvmlDeviceRegisterEvents(handle, kinds, self._events)
                self._names[nvml.nvmlDeviceGetIndex(handle)] = device.name
            except nvml.NVMLError as error:
                logger.info("%s reports no faults: %s", device.name, error)

    def faults(self) -> list[tuple[str, str]]:
        """Device and fault, of everything new."""
        found: list[tuple[str, str]] = []
        nvml = self._nvml
        while nvml is not None and self._names:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                break
            name = self._names.get(nvml.nvmlDeviceGetIndex(event.device), "")
            is_xid = event.eventType == nvml.nvmlEventTypeXidCriticalError
            found.append((name, f"Xid {event.eventData}" if is_xid else "uncorrectable memory error"))
        return found
