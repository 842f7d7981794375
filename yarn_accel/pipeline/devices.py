"""Which devices there are for the workers of a server: groups of CPU cores, and GPUs that it may use."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.adapters.nvml import (
    CUDA_VARIABLE,
    PACKAGE_MISSING,
    Gpu,
    doubtful_numbers,
    is_package_missing,
    list_gpus,
    list_processes,
    load_nvml,
    read_devices,
    visible_gpus,
)
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.operations.gpu_errors import Blame, xid_blame
from yarn_accel.pipeline.workers.launching import Device

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig


logger = logging.getLogger(__name__)

_ASK_S = 0.25
_MAX_ASK_S = 1.0
"""Longer than that nobody waits for what the driver says."""
_ASK_FOR_PROCESSES = 8
"""Each so many times."""
CUPY_MISSING = "CuPy is not installed: pip install 'cluster-accel[gpu]'"
_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version")
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_FOLDER = "/tmp/nvidia-mps"
_GPU_NAME = re.compile(r"cuda:\d+(:\d+)?")


def find_devices(config: PipelineConfig, environ: Mapping[str, str] | None = None) -> tuple[Device, ...]:
    """The devices of a server, one for each worker it shall have.

    ``auto`` is every GPU that can be used, with CPU workers beside it for operations without a CUDA form,
    else the CPU.

    Args:
        config: its `devices`.
        environ: says which GPUs may be used, see `visible_gpus`; None: this process's.

    Raises:
        ConfigError: a device that no machine has.
        StartupError: none of the devices can be used; says why of each.
    """
    gpus = _GpuTable(os.environ if environ is None else environ, config)
    found: list[Device] = []
    for name in config.devices:
        if name == "auto":
            on_gpus = config.workers_per_gpu * gpus.usable()
            found += [*on_gpus, *_beside(on_gpus, config)] if on_gpus else _cpus(config)
        elif name == "cpu":
            found += _cpus(config)
        elif _GPU_NAME.fullmatch(name):
            found += config.workers_per_gpu * gpus.named(name)
        else:
            raise ConfigError(f"devices: {name!r} is none of auto, cpu, cuda:0, cuda:1, ...")
    if found and all(device.fault for device in found):
        raise StartupError(
            "no device can be used: " + "; ".join(f"{device.name}: {device.fault}" for device in found),
            cure="`devices: [auto]` takes what there is, and the CPU where there is no GPU",
        )
    n_sharing = Counter(device.name for device in found)
    return tuple(replace(device, n_sharing=n_sharing[device.name]) for device in found)


def _beside(on_gpus: Sequence[Device], config: PipelineConfig) -> list[Device]:
    """CPU workers for what has no form for GPUs, no more of them than there would be without GPUs."""
    n_workers = min(len(on_gpus) * config.cpu_workers_per_gpu_worker, config.n_workers)
    return [Device("cpu", "cpu", is_for_rest=True)] * n_workers


def _cpus(config: PipelineConfig) -> list[Device]:
    groups = core_groups(config.n_workers, config.cores_per_worker)
    return [Device("cpu", "cpu", group if config.pin_workers else ()) for group in groups]


class _GpuTable:
    """The GPUs of this machine, those that the environment shows, and those that workers can use."""

    def __init__(self, environ: Mapping[str, str], config: PipelineConfig) -> None:
        self._gpus = list_gpus()
        self._n_workers = config.workers_per_gpu
        self._pins = config.pin_workers
        self._mps_folder = environ.get(MPS_VARIABLE) or _MPS_FOLDER
        self._visible = visible_gpus(self._gpus, environ)
        if doubtful_numbers(self._gpus, environ):
            logger.warning(
                "%s=%s: taken as the numbers of nvidia-smi; CUDA itself counts the fastest GPU first unless "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID: better name UUIDs",
                CUDA_VARIABLE,
                environ[CUDA_VARIABLE],
            )

    def usable(self) -> list[Device]:
        """Every GPU that can be used; what is left out is logged."""
        if is_package_missing() and any(Path(each).exists() for each in _DRIVER_FILES):
            logger.error("this node has NVIDIA's driver, but its GPUs are not used: %s", PACKAGE_MISSING)
        found = [self._device(gpu) for gpu in self._visible]
        for device in found:
            if device.fault:
                logger.warning("%s is not used: %s", device.name, device.fault)
        return [device for device in found if not device.fault]

    def named(self, name: str) -> list[Device]:
        """A GPU, or all of its parts; one with a fault where there is none."""
        gpus = [gpu for gpu in self._gpus if gpu.name == name or gpu.name.startswith(name + ":")]
        shown = [gpu for gpu in gpus if gpu in self._visible]
        if shown:
            return [self._device(gpu) for gpu in shown]
        if gpus:
            fault = f"it is not among the GPUs that {CUDA_VARIABLE} shows this server"
        elif self._gpus:
            fault = f"this machine has {', '.join(gpu.name for gpu in self._gpus)}"
        elif is_package_missing():
            fault = PACKAGE_MISSING
        elif load_nvml() is not None:
            fault = "the driver shows no GPU; of one that MIG divides only the parts count"
        else:
            fault = "there is no NVIDIA driver on this machine"
        return [Device(name, "cuda", fault=fault)]

    def _device(self, gpu: Gpu) -> Device:
        has_mps = Path(self._mps_folder, "control").exists()
        fault = gpu.fault or (CUPY_MISSING if importlib.util.find_spec("cupy") is None else "")
        near = sorted(os.sched_getaffinity(0).intersection(gpu.cores)) if self._pins else []
        return Device(
            gpu.name,
            "cuda",
            cores=tuple(near) if len(near) < len(os.sched_getaffinity(0)) else (),
            fault=fault or mode_fault(gpu, self._n_workers, has_mps),
            uuid=gpu.uuid,
            product=gpu.product,
            memory_bytes=gpu.memory_bytes,
            is_exclusive=gpu.compute_mode.startswith("exclusive"),
        )


def mode_fault(gpu: Gpu, n_workers: int, has_mps: bool) -> str:
    """Why the compute mode of a GPU keeps our workers off it, with the cure; empty: it does not.

    A worker that hangs is killed. A client of MPS that is killed inside a kernel takes the other clients with
    it, so our workers are none: beside MPS they get a GPU only in its default mode.

    Args:
        gpu: with its mode.
        n_workers: processes that shall share it.
        has_mps: whether the control daemon of MPS runs on this node.
    """
    cure = f"`nvidia-smi -i {gpu.index} -c DEFAULT`"
    if gpu.compute_mode == "prohibited":
        return f"its compute mode is PROHIBITED; cure: {cure}"
    if not gpu.compute_mode.startswith("exclusive"):
        return ""
    if has_mps:
        return (
            "its compute mode is EXCLUSIVE_PROCESS under MPS, whose clients fail together when a worker that "
            f"hangs is killed; cure: {cure}, beside which MPS may go on"
        )
    if n_workers > 1:
        return (
            f"its compute mode is EXCLUSIVE_PROCESS, and {n_workers} workers shall share it; cure: "
            f"`pipeline: {{workers_per_gpu: 1}}`, or {cure}"
        )
    return ""


def used_by_others(processes: Mapping[int, int], own: Collection[int]) -> int | None:
    """Bytes of a device that processes of others use; None: unknown.

    Args:
        processes: id and bytes of each process on the device, as the driver counts them.
        own: ids of our workers there. While the driver names none of them, it may count in another way than
            this container, so its ids say nothing.
    """
    if processes.keys().isdisjoint(own):
        return None
    return sum(n_bytes for pid, n_bytes in processes.items() if pid not in own)


class GpuMonitor:
    """Asks NVML how the GPUs are, in a thread of its own: a driver in trouble may take its time.

    Args:
        devices: those that workers compute on.
        on_fault: called with device and fault of each Xid, of each uncorrectable memory error, and at every
            look of a GPU that does not answer.
        call_soon: has a function called by the thread that `on_fault` belongs to.

    Attributes:
        latest: what `read_devices` said a moment ago.
        processes: what `list_processes` said some seconds ago.
        asked_s: when it last began to ask for faults, monotonic seconds; all it found was reported.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        on_fault: Callable[[str, str], None],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.latest: list[dict[str, Any]] = []
        self.processes: dict[str, dict[int, int]] = {}
        self._on_fault = on_fault
        self._call_soon = call_soon
        self._uuids = {d.name: d.uuid for d in devices if d.kind == "cuda" and not d.fault}
        self._events: Any = None
        self._registered: set[str] = set()
        self._seen: set[str] = set()
        self._places: dict[tuple[int, int | None], str] = {}
        self.asked_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        """Ask from now on, where there is something to ask."""
        if self._uuids:
            self._thread.start()

    def close(self) -> None:
        """Ask no more; a question that is not answered is left alone."""
        self._closing.set()

    def may_report(self, device: str, since_s: float) -> bool:
        """Whether the driver was not asked yet for faults of a device until then, monotonic seconds."""
        is_asked = self.asked_s >= since_s or time.monotonic() >= since_s + _MAX_ASK_S
        return device in self._uuids and self._thread.is_alive() and not is_asked

    def _note_asked(self, began_s: float) -> None:
        self.asked_s = began_s

    def _run(self) -> None:
        n_broken = 0
        for n_asked in itertools.count():
            began_s = time.monotonic()
            try:
                for name, fault in self.faults():
                    self._call_soon(functools.partial(self._on_fault, name, fault))
                if n_asked % _ASK_FOR_PROCESSES == 0:
                    self.processes = list_processes()
            except Exception:
                # Whatever the driver or its binding does, the GPUs are asked for again.
                n_broken += 1
                if n_broken & (n_broken - 1) == 0:
                    logger.exception(
                        "the GPUs could not be asked for their faults, %d times so far", n_broken
                    )
            self._call_soon(functools.partial(self._note_asked, began_s))
            if self._closing.wait(_ASK_S):
                return

    def faults(self) -> list[tuple[str, str]]:
        """Ask once; device and fault, of what was reported since and of each GPU that does not answer now."""
        nvml = load_nvml()
        found = self._reported(nvml)
        self.latest = read_devices()
        faults = {row["device"]: row["fault"] for row in self.latest}
        self._seen |= faults.keys()
        faults |= dict.fromkeys(self._seen - faults.keys(), "the driver no longer shows it")
        failed = {name: faults[name] for name in self._uuids if faults.get(name)}
        found += failed.items()
        # One GPU that fails has every wait for events fail: the others are registered anew without it.
        healthy = self._uuids.keys() - failed.keys()
        if nvml is not None and healthy != self._registered:
            self._register(nvml, healthy)
        return found

    def _reported(self, nvml: Any) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        while nvml is not None and self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                index = nvml.nvmlDeviceGetIndex(event.device)
            except nvml.NVMLError_Timeout:
                break
            except nvml.NVMLError as error:
                logger.warning("the GPUs' faults are asked for anew: %s", error)
                self._forget(nvml)
                break
            is_xid = event.eventType == nvml.nvmlEventTypeXidCriticalError
            fault = f"Xid {event.eventData}" if is_xid else "uncorrectable memory error"
            if is_xid and xid_blame(event.eventData) is not Blame.DEVICE:
                # CUDA gives the process that bears it an error of its own.
                logger.warning("GPU %d: %s, which is no fault of the device", index, fault)
                continue
            found += [(name, fault) for name in self._named(index, event.gpuInstanceId)]
        return found

    def _named(self, index: int, instance: int) -> list[str]:
        """The devices that an event is about: a GPU, one part of it, or all of its parts."""
        of_gpu = {part: name for (at, part), name in self._places.items() if at == index}
        return [of_gpu[instance]] if instance in of_gpu else list(of_gpu.values())

    def _forget(self, nvml: Any) -> None:
        if self._events is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(self._events)
        self._events = None
        self._registered = set()
        self._places = {}

    def _register(self, nvml: Any, healthy: set[str]) -> None:
        gpus = {gpu.uuid: gpu for gpu in list_gpus() if not gpu.fault}
        self._forget(nvml)
        self._registered = set(healthy)
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            logger.warning("GPUs report no faults: %s", error)
            return
        kinds = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        for name in sorted(healthy):
            gpu = gpus.get(self._uuids[name])
            if gpu is None:
                continue
            try:
                # A part has no events of its own: those of its GPU name it.
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.parent_uuid)
                nvml.nvmlDeviceRegisterEvents(handle, kinds, self._events)
            except nvml.NVMLError as error:
                logger.info("%s reports no faults: %s", name, error)
                continue
            self._places[gpu.index, gpu.instance[0] if gpu.instance else None] = name


_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"


def core_groups(n_groups: int, cores_per_group: int) -> tuple[tuple[int, ...], ...]:
    """Share the cores this process may use between workers.

    Whole cores come before their second hardware threads, and neighbours of one socket stay together.  With
    more groups than cores, groups share.
    """
    cores = sorted(os.sched_getaffinity(0), key=_position)
    group_size = min(cores_per_group, len(cores))
    n_distinct = len(cores) // group_size
    starts = [(i % n_distinct) * group_size for i in range(n_groups)]
    return tuple(tuple(sorted(cores[start : start + group_size])) for start in starts)


def _position(core: int) -> tuple[int, int, int]:
    siblings = _read(core, "thread_siblings_list")
    first = int(siblings.replace("-", ",").split(",")[0] or core)
    return (core != first, int(_read(core, "physical_package_id") or 0), core)


def _read(core: int, name: str) -> str:
    try:
        return Path(_TOPOLOGY.format(core, name)).read_text(encoding="ascii").strip()
    except OSError:
        return ""
