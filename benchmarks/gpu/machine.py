"""The GPU that is measured, and the versions of all that is between it and us.

``python -m benchmarks.gpu.machine`` prints them.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.gpu.driver import NoGpuError, read_driver
from yarn_accel.adapters.nvml import CUDA_VARIABLE, Gpu, list_gpus, visible_gpus
from yarn_accel.errors import ConfigError

_EMULATED = "emulated"
"""How the emulated CUDA of tests/emulated_cuda names its device."""
#: By library, its package for CUDA 12, and for CUDA 13.
_PACKAGES = {
    "cuBLAS": ("nvidia-cublas-cu12", "nvidia-cublas"),
    "cuSOLVER": ("nvidia-cusolver-cu12", "nvidia-cusolver"),
    "NVRTC": ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"),
    "nvImageCodec": ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
    "nvJPEG": ("nvidia-nvjpeg-cu12", "nvidia-nvjpeg"),
}
_CUPY_CURE = (
    "`make gpu-test` installs it into .venv-gpu, then run `.venv-gpu/bin/python -m benchmarks gpu`; "
    "or pip install 'cluster-accel[gpu]'"
)


@dataclass(frozen=True)
class Machine:
    """The first GPU that this process may use, as its only one.

    Attributes:
        is_emulated: it is no GPU; no figure means anything for one.
        versions: of the driver, of CUDA and its libraries, of CuPy.
    """

    gpu: Gpu
    device: str
    is_emulated: bool
    versions: Mapping[str, str]

    def facts(self) -> dict[str, object]:
        """For the JSON's ``machine``."""
        return {
            "gpu": self.device,
            "gpu_name": self.gpu.name,
            "gpu_uuid": self.gpu.uuid,
            "gpu_memory_bytes": self.gpu.memory_bytes,
            "emulated": self.is_emulated,
            "versions": dict(self.versions),
        }

    def __str__(self) -> str:
        title = "EMULATED, no GPU: " if self.is_emulated else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{title}{self.gpu.name}: {self.device}, {self.gpu.uuid}, {versions}"


@functools.cache
def find() -> Machine:
    """The first GPU without a fault that the environment shows; from now on CUDA here sees it alone.

    Raises:
        NoGpuError: none can be used; says why, and what to do.
    """
    driver, _ = read_driver()
    shown = visible_gpus(list_gpus(), os.environ)
    usable = [gpu for gpu in shown if not gpu.fault]
    if not usable:
        faults = "; ".join(f"{gpu.name}: {gpu.fault}" for gpu in shown)
        raise NoGpuError(
            f"no GPU can be used: {faults or f'{CUDA_VARIABLE} and the like show none'}",
            cure="see docs/gpu.md",
        )
    gpu = usable[0]
    os.environ[CUDA_VARIABLE] = gpu.uuid
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise NoGpuError(f"CuPy cannot be imported: {error}", cure=_CUPY_CURE) from error
    try:
        runtime = cupy.cuda.runtime
        name = bytes(runtime.getDeviceProperties(0)["name"]).decode("utf-8", "replace")
        versions = _versions(driver, cupy)
    except Exception as error:
        # CuPy has several kinds of errors here, none of which it can do without.
        raise NoGpuError(f"{gpu.name}: {type(error).__name__}: {error}", cure="see docs/gpu.md") from error
    is_emulated = name == _EMULATED
    return Machine(gpu, name if is_emulated else gpu.product or name, is_emulated, versions)


def refuse_results(machine: Machine, path: Path | None) -> None:
    """Keep an emulated GPU's figures out of the folder of results.

    Raises:
        ConfigError: they would be written there.
    """
    if machine.is_emulated and path is not None and RESULTS in path.resolve().parents:
        raise ConfigError(
            f"{path}: this GPU is emulated", cure="write to another folder, such as out/gpu.json"
        )


def _versions(driver: str, cupy: Any) -> dict[str, str]:
    runtime = cupy.cuda.runtime
    found = {
        "driver": driver,
        "CUDA of the driver": _dotted(runtime.driverGetVersion()),
        "CUDA runtime": _dotted(runtime.runtimeGetVersion()),
        "CuPy": str(cupy.__version__),
    }
    of_cuda = {12: 0, 13: 1}.get(runtime.runtimeGetVersion() // 1000, 0)
    for name, packages in _PACKAGES.items():
        try:
            found[name] = metadata.version(packages[of_cuda])
        except metadata.PackageNotFoundError:
            found[name] = "not from a package"
    return found


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def main() -> int:
    """Print it; the exit code."""
    try:
        print(find())
    except NoGpuError as error:
        sys.stderr.write(f"no GPU to test on: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
