"""A worker's GPU: with a fake CuPy, and on a GPU where there is one; its libraries; its start probe."""

from __future__ import annotations

import importlib
import mmap
import os
import sys
import types
from unittest.mock import Mock

import numpy as np
import pynvml
import pytest

from yarn_accel.errors import RejectedError, StartupError
from yarn_accel.operations import cuda_qr, cuda_source, get, pixels
from yarn_accel.operations.registry import OPERATIONS
from yarn_accel.pipeline.workers import cuda
from yarn_accel.pipeline.workers.cuda import CudaDevice, ToolkitFacts, cases, describe_toolkit, find_toolkit
from yarn_accel.pipeline.workers.execution import MappedSegment
from yarn_accel.pipeline.workers.launching import Device


def _has_gpu():
    try:
        return importlib.import_module("cupy").cuda.runtime.getDeviceCount() > 0
    except Exception:  # noqa: BLE001 -- whatever CuPy raises without a driver
        return False


class OutOfMemoryError(MemoryError):
    pass


def library_error(name, status):
    error = type(name, (RuntimeError,), {})(f"status {status}")
    error.status = status
    return error


class CudaError(RuntimeError):
    """As CuPy's: known by its name, made of a status."""

    def __init__(self, status):
        self.status = status
        super().__init__(f"CUDA says {status}")


CudaError.__name__ = "CUDARuntimeError"


@pytest.fixture
def fake(monkeypatch):
    """A device without a GPU; `log` has what was asked of it."""
    log = []

    class Stream:
        def __init__(self, non_blocking=False):
            log.append(("stream", non_blocking))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            log.append("left")

        def synchronize(self):
            log.append("synchronized")

    runtime = types.SimpleNamespace(
        CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
        hostRegister=lambda *arguments: log.append(arguments),
        hostUnregister=lambda address: log.append(address),
        memGetInfo=lambda: (3 << 30, 16 << 30),
        deviceSynchronize=lambda: None,
        runtimeGetVersion=lambda: 12090,
    )
    memory = types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    pool = types.SimpleNamespace(
        free_all_blocks=lambda: log.append("freed"),
        set_limit=lambda size: log.append(("limit", size)),
        total_bytes=lambda: 1 << 20,
    )
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(Stream=Stream, runtime=runtime, memory=memory)
    cupy.zeros = np.zeros
    cupy.__version__, cupy.__file__ = "14.2.0", "/packages/cupy/__init__.py"
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    cupy.get_default_memory_pool = lambda: pool
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", types.ModuleType("cupyx"))
    device = CudaDevice(Device("cuda:3", "cuda"), 0.25)
    log.clear()
    return device, log


@pytest.mark.parametrize(
    ("held_mib", "beside_mib"),
    [(701, 700), (0, 512), (1, 0), (8000, 2048)],
    ids=["known", "unknown to the driver", "nothing", "at most a half"],
)
def test_contexts_and_workspaces_count_in_the_share(fake, monkeypatch, held_mib, beside_mib):
    device, log = fake
    processes = {os.getpid(): held_mib << 20} if held_mib else {99: 5 << 30}
    monkeypatch.setattr(cuda, "list_processes", lambda: {"cuda:3": processes})
    device.share_memory()
    assert log == [("limit", (4 << 30) - (beside_mib << 20))]


@pytest.mark.parametrize(
    ("beside", "mib"),
    [({5: 300, 6: 200}, 500), ({5: None, 6: 200}, 712), ({5: 9000}, 2048)],
    ids=["known", "one unknown to the driver", "at most a half"],
)
def test_what_standbys_hold_is_taken_off_before_the_share_is_divided(fake, monkeypatch, beside, mib):
    device, log = fake
    device._n_sharing = 2
    processes = {pid: held << 20 for pid, held in beside.items() if held}
    monkeypatch.setattr(cuda, "list_processes", lambda: {"cuda:3": {os.getpid(): 1 << 20, **processes}})
    device.share_memory(list(beside))
    assert log == [("limit", ((4 << 30) - (mib << 20)) // 2)]


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError(),
        library_error("CUDARuntimeError", 2),
        library_error("CUDADriverError", 2),
        library_error("CUSOLVERError", 2),
        library_error("CUBLASError", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_is_short_is_no_fault_of_the_device(fake, error):
    device, log = fake
    assert device.explain(error).code == "out-of-memory"
    assert device.fault == ""
    assert log == ["freed"]


@pytest.mark.parametrize(
    ("error", "code", "fault", "broken"),
    [
        (library_error("CUDARuntimeError", 214), "sick-device", True, False),
        (RuntimeError("CuPy failed to load libcuda.so.1: OSError: ..."), "sick-device", True, False),
        (library_error("CUSOLVERError", 4), "sick-device", True, False),
        (library_error("CUDARuntimeError", 700), "gpu-failed", False, True),
        (library_error("CUDARuntimeError", 719), "gpu-failed", False, True),
        (library_error("CUSOLVERError", 6), "gpu-failed", False, True),
        (library_error("CUBLASError", 13), "gpu-failed", False, True),
        (library_error("CUBLASError", 7), "gpu-refused", False, False),
        (library_error("CUDARuntimeError", 1), "gpu-refused", False, False),
    ],
)
def test_who_bears_an_error_is_put_down(fake, error, code, fault, broken):
    """The device rests, the process is replaced, or nobody but the request pays."""
    device, _ = fake
    failure = device.explain(error)
    assert (failure.code, failure.transient) == (code, fault or broken)
    assert (type(error).__name__ in device.fault, type(error).__name__ in device.broken) == (fault, broken)


@pytest.mark.parametrize("error", [library_error("CUSOLVERError", 6), library_error("CUBLASError", 14)])
@pytest.mark.parametrize(
    ("lasting", "code"),
    [(0, "gpu-failed"), (700, "gpu-failed"), (719, "gpu-failed"), (214, "sick-device"), (2, "out-of-memory")],
)
def test_of_an_error_inside_a_library_cuda_is_asked(fake, error, lasting, code):
    device, _ = fake
    runtime = sys.modules["cupy"].cuda.runtime
    runtime.CUDARuntimeError = CudaError

    def wait():
        if lasting:
            raise CudaError(lasting)

    runtime.deviceSynchronize = wait
    assert device.explain(error).code == code
    assert (bool(device.broken), bool(device.fault)) == (code == "gpu-failed", code == "sick-device")
    assert ("CUDA: no error" in device.broken) == (lasting == 0)


def test_a_kernel_that_cannot_be_built_after_the_probe_is_not_the_devices_fault(fake, monkeypatch):
    device, _ = fake
    error = library_error("CompileException", None)
    monkeypatch.setattr("yarn_accel.pipeline.workers.cuda.probe", lambda: None)
    device.probe()
    assert device.explain(error).code == "gpu-failed"
    assert device.fault == ""


def test_an_error_of_the_request_is_its_own(fake):
    device, _ = fake
    assert device.explain(RejectedError("not-finite", "nan")).code == "not-finite"
    assert device.explain(ValueError("x")).code == "internal-error"
    assert device.fault == ""


def test_a_stream_is_waited_for_unless_its_work_failed(fake):
    device, log = fake
    with device.stream():
        pass
    with pytest.raises(ValueError, match="x"), device.stream():
        raise ValueError("x")
    assert log == [("stream", True), "synchronized", "left", ("stream", True), "left"]


def test_a_gpu_that_cannot_be_used_says_why(fake, monkeypatch):
    monkeypatch.setattr(sys.modules["cupy"], "zeros", lambda n: 1 / 0)
    with pytest.raises(StartupError, match=r"^cuda:1 cannot be used: ZeroDivisionError"):
        CudaDevice(Device("cuda:1", "cuda"))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (StartupError("lu on the GPU is not what the CPU computes", cure="none"), "lu on the GPU"),
        (RuntimeError("no kernel"), "RuntimeError: no kernel"),
    ],
)
def test_a_gpu_that_fails_its_probe_says_why(fake, monkeypatch, error, why):
    monkeypatch.setattr("yarn_accel.pipeline.workers.cuda.probe", Mock(side_effect=error))
    with pytest.raises(StartupError, match=f"^cuda:3 failed its start probe: {why}"):
        fake[0].probe()


@pytest.mark.parametrize(
    ("driver", "cuda", "cure"),
    [
        ("470.82.01", 12090, "470.82.01; CUDA 12 needs 525 or newer: update the driver"),
        ("570.10", 13020, "570.10; CUDA 13 needs 580 or newer: update the driver"),
        ("550.54.15", 12090, ""),
    ],
)
def test_a_driver_that_is_too_old_for_the_cuda_of_cupy_is_named(
    fake, monkeypatch, eight_gpus, driver, cuda, cure
):
    eight_gpus.driver = driver
    eight_gpus.write()
    sys.modules["cupy"].cuda.runtime.runtimeGetVersion = lambda: cuda
    monkeypatch.setattr(sys.modules["cupy"], "zeros", lambda n: (_ for _ in ()).throw(CudaError(35)))
    with pytest.raises(StartupError, match="cuda:1 cannot be used: ") as caught:
        CudaDevice(Device("cuda:1", "cuda"))
    assert cure in caught.value.cure
    assert bool(cure) == bool(caught.value.cure)


def test_a_driver_that_says_nothing_of_itself_is_not_blamed(fake, monkeypatch, eight_gpus):
    def refused():
        raise pynvml.NVMLError_Unknown()

    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", refused)
    monkeypatch.setattr(sys.modules["cupy"], "zeros", lambda n: 1 / 0)
    with pytest.raises(StartupError) as caught:
        CudaDevice(Device("cuda:1", "cuda"))
    assert caught.value.cure == ""


UUID = "GPU-12345678-9abc-def0-1234-56789abcdef0"


def opened_as(monkeypatch, given, found):
    """A device that was given by a UUID, where CUDA opened another."""
    runtime = sys.modules["cupy"].cuda.runtime
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda number: {"uuid": found}, raising=False)
    return CudaDevice(Device("cuda:1", "cuda", uuid=given))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (UUID, bytes.fromhex(UUID[4:].replace("-", ""))),
        (UUID, bytes.fromhex(UUID[4:].replace("-", "")) + b"what lies behind it"),
        ("GPU-12345678-9a00-def0-1234-56789abcdef0", bytes.fromhex("123456789a")),
        ("MIG-12345678-9abc-def0-1234-56789abcdef0", b"of the GPU, or of the part"),
        ("", b"nobody said which it is"),
    ],
)
def test_the_gpu_that_was_given_is_used(fake, monkeypatch, given, found):
    """CuPy takes a UUID for a text: it ends before the first zero."""
    opened_as(monkeypatch, given, found)


@pytest.mark.parametrize("found", [bytes(range(1, 17)), bytes.fromhex("123456789abd"), b""])
def test_no_other_gpu_is_computed_on(fake, monkeypatch, found):
    said = f"^cuda:1 is {UUID}, but CUDA opened .* {found.hex() or 0}"
    with pytest.raises(StartupError, match=said) as caught:
        opened_as(monkeypatch, UUID, found)
    assert "nvidia-smi -L" in caught.value.cure


def test_a_cupy_of_another_cuda_is_refused_by_name(fake):
    sys.modules["cupy"].cuda.runtime.runtimeGetVersion = lambda: 14000
    with pytest.raises(
        StartupError, match=r"cuda:1 cannot be used: CuPy 14\.2\.0 \(cupy-cuda14x\)"
    ) as caught:
        CudaDevice(Device("cuda:1", "cuda"))
    assert "cupy-cuda12x" in caught.value.cure


def test_a_toolkit_that_is_not_all_there_is_named_with_the_cure(fake, monkeypatch):
    from yarn_accel.pipeline.workers import cuda
    from yarn_accel.pipeline.workers.cuda import ToolkitFacts

    monkeypatch.setattr(cuda, "find_toolkit", lambda _: ToolkitFacts(missing={"cublas": "it is not there"}))
    with pytest.raises(StartupError, match="cuda:1 cannot be used: libraries of CUDA 12 are missing: cublas"):
        CudaDevice(Device("cuda:1", "cuda"))


def test_the_workers_of_a_gpu_share_what_they_may_take(fake):
    _, log = fake
    CudaDevice(Device("cuda:1", "cuda", n_sharing=4), 0.5)
    assert ("limit", (2 << 30) - (512 << 20)) in log


def test_a_buffer_that_cannot_be_pinned_is_used_as_it_is(fake, monkeypatch, caplog):
    device, log = fake
    runtime = sys.modules["cupy"].cuda.runtime

    def refuse(*_):
        raise runtime.CUDARuntimeError("refused")

    monkeypatch.setattr(runtime, "hostRegister", refuse)
    device.pin(MappedSegment(mmap.mmap(-1, 4096), 1))()
    assert "a buffer of 4096 bytes is not pinned: refused" in caplog.text
    assert log == []


def test_without_cupy_it_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(StartupError, match="CuPy cannot be imported"):
        CudaDevice(Device("cuda:0", "cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not _has_gpu(), reason="no CUDA device")
def test_a_gpu_copies_from_and_to_pinned_memory(monkeypatch):
    import cupy

    device = CudaDevice(Device("cuda:0", "cuda"))
    assert {"cupy", "cuda", "gpu"} <= set(device.versions())
    memory = mmap.mmap(-1, 1 << 20)
    values = np.frombuffer(memory, np.float64)
    values[:] = np.arange(values.size)
    unpin = device.pin(MappedSegment(memory, values.ctypes.data))
    assert cupy.cuda.pinned_memory.is_memory_pinned(values.ctypes.data)
    with device.stream():
        on_device = cupy.empty(values.shape)
        on_device.set(values)
        (on_device * 2).get(out=values, blocking=False)
    np.testing.assert_array_equal(values, 2.0 * np.arange(values.size))
    unpin()
    assert not cupy.cuda.pinned_memory.is_memory_pinned(values.ctypes.data)


NAMES = {"nvrtc": 12, "cublas": 12, "cusolver": 11, "cusparse": 12}


def facts(root="/usr/local/cuda-12.4/lib64", headers="/usr/local/cuda-12.4/include", **more):
    paths = {name: f"{root}/lib{name}.so.{number}" for name, number in NAMES.items()}
    return ToolkitFacts(**{"paths": paths, "headers": headers, "version": "12.4", **more})


def test_the_nodes_own_toolkit_is_named_by_path_and_version():
    assert describe_toolkit(facts(), 12) == "CUDA 12.4: the node's toolkit in /usr/local/cuda-12.4"
    assert describe_toolkit(facts(version=""), 12) == "CUDA 12: the node's toolkit in /usr/local/cuda-12.4"


def test_libraries_of_both_kinds_are_named():
    found = facts("/cache/abc/nvidia/cublas/lib", packages="/cache/abc")
    mixed = ToolkitFacts(
        {**found.paths, "nvrtc": "/usr/lib64/libnvrtc.so.12"}, {}, "/usr/include", "12.9", "/cache/abc"
    )
    assert describe_toolkit(mixed, 12) == "CUDA 12.9: packages in /cache/abc and the node's toolkit in /usr"


@pytest.mark.parametrize(("number", "major"), [(11, 12), (13, 12), (12, 13)])
def test_a_toolkit_of_another_cuda_than_cupys_is_refused_by_name(number, major):
    other = facts(f"/usr/local/cuda-{number}.0/lib64")
    where = f"/usr/local/cuda-{number}.0/lib64/libcublas.so.{number}"
    paths = {**other.paths, "nvrtc": f"/usr/lib/libnvrtc.so.{major}", "cublas": where}
    with pytest.raises(StartupError) as caught:
        describe_toolkit(ToolkitFacts(paths, {}, other.headers), major)
    assert f"{where} is of CUDA {number}, but CuPy here is of CUDA {major}" in caught.value.message
    assert f"a CUDA {major} toolkit" in caught.value.cure
    assert "gpu: bundled" in caught.value.cure


def test_what_is_missing_is_named_with_the_cure():
    with pytest.raises(StartupError, match=r"cusolver: Failure finding libnvJitLink\.so\.12") as caught:
        describe_toolkit(facts(missing={"cusolver": "Failure finding libnvJitLink.so.12"}), 12)
    assert "CUDA_PATH" in caught.value.cure
    with pytest.raises(StartupError, match="headers of the CUDA toolkit"):
        describe_toolkit(facts(headers=""), 12)


class NotFoundError(RuntimeError):
    pass


def test_libraries_are_looked_for_as_cupy_does(monkeypatch):
    def load(name):
        if name == "cusolver":
            raise NotFoundError('Failure finding "libcusolver.so.11": No such file: x, No such file: y\n')
        return types.SimpleNamespace(abs_path=f"/usr/local/cuda/lib64/lib{name}.so.12")

    module = types.ModuleType("cuda.pathfinder")
    module.load_nvidia_dynamic_lib = load
    module.find_nvidia_header_directory = lambda name: None
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", module)
    found = find_toolkit("/cache/abc")
    assert found.paths["cublas"] == "/usr/local/cuda/lib64/libcublas.so.12"
    assert found.missing == {"cusolver": 'Failure finding "libcusolver.so.11"'}
    assert (found.headers, found.version, found.packages) == ("", "", "/cache/abc")


def test_a_cupy_that_does_not_look_for_libraries_itself_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    assert find_toolkit("/x") is None


def test_every_operation_with_a_form_for_gpus_is_probed():
    with_form = {name for name, operation in OPERATIONS.items() if operation.form("cuda") is not None}
    left = with_form - {name for name, _, _ in cases()}
    assert left == {"lbp", "colour", "infer", "chain"}, "features computes both"


def test_the_cpu_computes_every_case():
    for name, arrays, params in cases():
        outcome = get(name).run([array.copy(order="K") for array in arrays], params)
        assert outcome.arrays or outcome.info["passed"], name


def test_the_probe_touches_nvjpeg_and_qr_with_more_shared_memory():
    qr = [arrays[0] for name, arrays, _ in cases() if name == "qr" and arrays[0].ndim == 3]
    assert any(a.shape[2] * (a.shape[1] | 1) * a.itemsize > cuda_source.HOUSEHOLDER_SHARED_BYTES for a in qr)
    assert all(len(a) >= cuda_qr._LEAST_FOR_MORE_SHARED for a in qr)
    pictures = [bytes(arrays[0]) for name, arrays, _ in cases() if name == "features"]
    assert [picture for picture in pictures if pixels.jpeg_size(picture, 1 << 20)]
