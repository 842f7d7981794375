"""A worker's GPU: made ready once, shared buffers pinned, every lane of computations on a stream of its own.

Imported only in a worker that takes the place of a GPU; needs CuPy. The CUDA libraries come with the
environment (`gpu: bundled`) or are the node's own (`gpu: site`); they are found as CuPy finds them. Before a
GPU computes for anybody it computes small cases (`probe`), each library and kernel once, and the CPU judges
the results.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from yarn_accel.adapters.nvml import list_processes, load_nvml
from yarn_accel.core.requests.records import Failure
from yarn_accel.errors import StartupError
from yarn_accel.operations import allocate, get
from yarn_accel.operations.cuda_streams import set_memory_wait
from yarn_accel.operations.gpu_errors import Blame, blame_of, driver_fault
from yarn_accel.operations.operation import SMALL_ORDER, Outcome
from yarn_accel.pipeline.workers.execution import MappedSegment, error_of
from yarn_accel.pipeline.workers.launching import Device
from yarn_accel.pipeline.workers.measuring import png_of

logger = logging.getLogger(__name__)

_ON_CPU = "send it to a server that computes on its CPU, and report the message"
_PROBE_CURE = "do not use this GPU, or mend its driver and CuPy: see docs/gpu.md"
_IDENTITY_CURE = "compare CUDA_VISIBLE_DEVICES of the server with `nvidia-smi -L`: see docs/gpu.md"
_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Of a whole GPU: what CUDA's runtime says of a part that MIG made is not documented."""
_BESIDE_BYTES = 512 << 20
"""Of context, kernels and workspaces, where the driver does not name this process (a container's own process
ids): as was seen on an H200."""
_PORTABLE = 1
"""cudaHostRegisterPortable"""


class CudaDevice:
    """One GPU, the only one that CUDA shows this process, as its number 0.

    Args:
        device: which.
        memory_share: the part of its memory that all processes of the server may take together, 0 to 1, with
            CUDA's contexts and the libraries' workspaces.
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
        self._memory_share, self._n_sharing = memory_share, device.n_sharing
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
            set_memory_wait(memory_wait_s, time.monotonic, time.sleep)
            with self.stream():
                cupy.zeros(64) @ cupy.zeros(64)
            self.share_memory()
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
        try:
            with self.stream():
                probe()
        except Exception as error:
            text = error.message if isinstance(error, StartupError) else f"{type(error).__name__}: {error}"
            raise StartupError(f"{self._name} failed its start probe: {text}", cure=_PROBE_CURE) from error
        self._is_proven = True
        # By now all libraries are loaded, and have their workspaces.
        self.share_memory()

    def share_memory(self, beside: Sequence[int] = ()) -> None:
        """Let the pool have this worker's part, less what the process holds beside it.

        Args:
            beside: processes of the server on this GPU that have no part: their memory is taken off first.
        """
        pool = self._cupy.get_default_memory_pool()
        _, total_bytes = self._runtime.memGetInfo()
        held = list_processes().get(self._name, {})
        shared_bytes = total_bytes * self._memory_share
        # As below, what is beside the parts takes at most a half of them.
        shared_bytes -= min(sum(held.get(pid) or _BESIDE_BYTES for pid in beside), shared_bytes / 2)
        part_bytes = int(shared_bytes / self._n_sharing)
        own_bytes = held.get(os.getpid(), 0)
        beside_bytes = own_bytes - pool.total_bytes() if own_bytes else _BESIDE_BYTES
        pool.set_limit(size=part_bytes - min(max(beside_bytes, 0), part_bytes // 2))

    def free_memory(self) -> None:
        """Give back what the pool keeps for later."""
        self._cupy.get_default_memory_pool().free_all_blocks()

    def stream(self) -> CudaStream:
        """A stream for one lane: what is asked for within it is complete when it is left."""
        return CudaStream(self._cupy.cuda.Stream(non_blocking=True))

    def versions(self) -> dict[str, str]:
        """The versions and model that the speed of this device depends on."""
        properties = self._runtime.getDeviceProperties(0)
        return {
            "cupy": str(self._cupy.__version__),
            "cuda": str(self._runtime.runtimeGetVersion()),
            "gpu": bytes(properties["name"]).decode("utf-8", "replace"),
        }

    def pin(self, mapping: MappedSegment) -> Callable[[], None]:
        """Let the GPU copy from and to a shared buffer directly; without that it is only slower."""
        try:
            self._runtime.hostRegister(mapping.address, len(mapping.memory), _PORTABLE)
        except self._runtime.CUDARuntimeError as error:
            logger.warning("a buffer of %d bytes is not pinned: %s", len(mapping.memory), error)
            return _nothing
        return lambda: self._unpin(mapping.address)

    def explain(self, error: BaseException) -> Failure:
        """The failure to report for an error; who bears it is put down as `fault` or `broken`."""
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
            return Failure("unavailable", "out-of-memory", text, "", True)
        if blame is Blame.REQUEST:
            return Failure("rejected", "gpu-refused", f"the GPU's library refused it: {text}", _ON_CPU)
        if blame is Blame.PROCESS:
            self.broken = text
            return Failure("unavailable", "gpu-failed", text, "", True)
        if blame is not Blame.NONE:
            self.fault = text
            return Failure("unavailable", "sick-device", text, "", True)
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


Array = Any
Case = tuple[str, list[Array], dict[str, Any]]
_FACTORIZATIONS = ("lu", "qr", "cholesky", "svd", "eigh")
_LIBRARY = 1e-8
"""How far a product, a solution or a distance may be from the CPU's."""


def cases() -> Iterator[Case]:
    """Operation, inputs and parameters: in batches and alone, real and complex, images, and points."""
    random = np.random.default_rng(0)
    for dtype, order in (("f8", 9), ("f4", 9), ("c16", 9), ("f8", SMALL_ORDER + 1)):
        matrix = random.standard_normal((order, order))
        matrix = (matrix + 1j * matrix.T if dtype == "c16" else matrix).astype(dtype)
        yield "lu", [np.asfortranarray(matrix)], {}
        yield "qr", [np.asfortranarray(matrix[:, : order - 2])], {}
        definite = matrix @ matrix.conj().T + order * np.eye(order, dtype=dtype)
        yield "cholesky", [np.asfortranarray(definite.astype(dtype))], {}
    # More shared memory than a block has without asking.
    yield "qr", [random.standard_normal((4, 80, 80))], {}
    left, right = random.standard_normal((2, 9, 9))
    for name in ("linsolve", "lstsq"):
        yield name, [left, right], {}
    yield "linsolve", [left @ left.T + 9 * np.eye(9), right], {"positive_definite": True}
    for name in ("inv", "slogdet", "svd"):
        yield name, [left], {}
    yield "eigh", [left + left.T], {}
    for n_items in (1, 2):
        yield "svd", [random.standard_normal((n_items, 40, 40))], {"vectors": False}
    yield "gemm", [left, right], {}
    factors = get("lu").run([left.copy()], {}).arrays
    yield "solve", [factors["lu"], factors["piv"], right], {}
    yield "residual", [left, *factors.values()], {"operation": "lu"}
    picture = np.frombuffer(png_of(random.integers(0, 256, (16, 16, 3), np.uint8)), np.uint8)
    yield "features", [picture, np.array([picture.size], np.int64)], {}
    picture = np.frombuffer(_jpeg(np.full((16, 16, 3), 99, np.uint8)), np.uint8)
    yield "features", [picture, np.array([picture.size], np.int64)], {}
    points, others = random.standard_normal((2, 17, 3))
    yield "knn", [points, others, np.arange(17) % 3], {}
    yield "kmeans_step", [points, others[:4]], {}
    for name in ("kmeans", "kmeans_seed"):
        yield name, [np.concatenate([points, others + 50.0])], {"k": 2}


def probe() -> None:
    """Compute all cases on the GPU that this process sees.

    Raises:
        StartupError: a result is not the CPU's; the message names the operation and the input.
    """
    for name, arrays, params in cases():
        operation = get(name)
        form, batch = operation.form("cuda"), operation.batch_form("cuda")
        assert form is not None, name
        found = [form(_copies(arrays), params)]
        if batch is not None and max(array.shape[0] for array in arrays) <= SMALL_ORDER:
            found += batch([(_copies(arrays), params, allocate) for _ in range(2)])
        for outcome in found:
            if isinstance(outcome, Exception) or not _is_right(name, arrays, params, outcome):
                what = f"{name} of {arrays[0].dtype} {arrays[0].shape}"
                raise StartupError(f"{what} on the GPU is not what the CPU computes")


def _copies(arrays: list[Array]) -> list[Array]:
    return [array.copy(order="K") for array in arrays]


def _jpeg(picture: Array) -> bytes:
    file = io.BytesIO()
    importlib.import_module("PIL.Image").fromarray(picture).save(file, "JPEG")
    return file.getvalue()


def _is_right(name: str, arrays: list[Array], params: dict[str, Any], outcome: Outcome) -> bool:
    found = outcome.arrays
    if name == "residual":
        return bool(outcome.info["passed"])
    if name in _FACTORIZATIONS and arrays[0].ndim == 2:
        judged = get("residual").run([*_copies(arrays), *found.values()], {"operation": name})
        return bool(judged.info["passed"])
    expected = get(name).run(_copies(arrays), params).arrays
    if name == "features" and bytes(arrays[0][:2]) == b"\xff\xd8":
        # Levels may differ by a few from libjpeg's. A decoder that fails is in the log; the CPU does without.
        return all(found[key].shape == array.shape for key, array in expected.items())
    if name == "features":
        return all(np.array_equal(found[key], array) for key, array in expected.items())
    return all(
        np.allclose(found[key], array, rtol=_LIBRARY, atol=_LIBRARY) for key, array in expected.items()
    )


CUDA_MAJOR = 12
"""Of the CuPy that the extras `gpu` and `gpu-site` bring."""
_SUPPORTED = (CUDA_MAJOR, 13)
"""Of the CuPys that are used where they are installed."""
_LIBRARIES = ("nvrtc", "cublas", "cusolver", "cusparse")
_NUMBERED = ("nvrtc", "cublas")
"""Those whose file has CUDA's number."""
_SONAME = re.compile(r"\.so\.(\d+)")
_CURE = (
    "install the libraries of a CUDA {} toolkit on the node and name its folder by `server: {{environment: "
    "{{CUDA_PATH: FOLDER}}}}`, or have those of CUDA 12 travel: `environment: {{gpu: bundled}}`"
)


@dataclass(frozen=True)
class ToolkitFacts:
    """The CUDA libraries found on this node.

    Attributes:
        paths: by name of the library, its file.
        missing: by name of the library, why it could not be loaded.
        headers: the folder of CUDA's headers; empty: there is none.
        version: such as 12.4; empty: unknown.
        packages: the folder that CuPy lies in.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    headers: str = ""
    version: str = ""
    packages: str = ""


def describe_toolkit(facts: ToolkitFacts, major: int) -> str:
    """One line: CUDA's version, and where it is.

    Args:
        facts: what was found.
        major: of the CUDA that CuPy here was built with.

    Raises:
        StartupError: a library or the headers are missing, or of another CUDA; with the cure.
    """
    cure = _CURE.format(major)
    roots = dict.fromkeys(str(Path(path).parents[1]) for path in facts.paths.values())
    for name in _NUMBERED:
        found = _SONAME.search(facts.paths.get(name, ""))
        if found and int(found[1]) != major:
            text = f"{facts.paths[name]} is of CUDA {found[1]}, but CuPy here is of CUDA {major}"
            raise StartupError(text, cure=cure)
    if facts.missing:
        reasons = "; ".join(f"{name}: {why}" for name, why in facts.missing.items())
        raise StartupError(f"libraries of CUDA {major} are missing: {reasons}", cure=cure)
    if not facts.headers:
        raise StartupError("the headers of the CUDA toolkit (cuda_runtime.h) are missing", cure=cure)
    own = [root for root in roots if not (facts.packages and Path(root).is_relative_to(facts.packages))]
    places = [f"packages in {facts.packages}"] if len(own) < len(roots) else []
    places += [f"the node's toolkit in {', '.join(own)}"] if own else []
    return f"CUDA {facts.version or major}: {' and '.join(places)}"


def cuda_major(cupy_version: str, runtime_version: int) -> int:
    """Of the CUDA that CuPy was built with: 12 or 13.

    Args:
        cupy_version: such as 14.2.0.
        runtime_version: of the CUDA it was built with, such as 12090.

    Raises:
        StartupError: it is of another.
    """
    major = runtime_version // 1000
    if major not in _SUPPORTED:
        raise StartupError(
            f"CuPy {cupy_version} (cupy-cuda{major}x) is of CUDA {major}, which is not supported",
            cure=f"uninstall it and pip install 'cluster-accel[gpu]', which brings cupy-cuda{CUDA_MAJOR}x",
        )
    return major


def find_toolkit(packages: str) -> ToolkitFacts | None:
    """Load the libraries as CuPy does; None where that does not look for them itself."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return None
    paths: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            paths[name] = str(pathfinder.load_nvidia_dynamic_lib(name).abs_path)
        except (RuntimeError, OSError) as error:
            missing[name] = str(error).partition(": No such")[0]
    headers = pathfinder.find_nvidia_header_directory("cudart") or ""
    version = _nvrtc_version(paths["nvrtc"]) if "nvrtc" in paths else ""
    return ToolkitFacts(paths, missing, headers, version, packages)


def _nvrtc_version(path: str) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        status = ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError):
        return ""
    return "" if status else f"{major.value}.{minor.value}"
