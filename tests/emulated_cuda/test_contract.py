"""The file of what CuPy has, to which `make test` holds our modules and the stand-ins, is the real CuPy's."""

import contextlib
import importlib
import inspect
import os
import re
from pathlib import Path

import pytest

from tests.unit.operations.cupy_contract import GOLDEN, wanted
from tests.unit.operations.test_cupy_contract import stand_ins
from yarn_accel.operations import gpu_errors
from yarn_accel.operations.gpu_errors import Blame, asked_bytes, blame_of
from yarn_accel.pipeline.workers import cuda

INSTANCES = {"cupy.ndarray.data": "cupy.cuda.MemoryPointer", "cupy.ndarray.dtype": "numpy.dtype"}
"""What an attribute is, where its class does not say so."""
ERRORS = {
    "CUDARuntimeError": "cupy_backends.cuda.api.runtime",
    "CUDADriverError": "cupy_backends.cuda.api.driver",
    "CUBLASError": "cupy_backends.cuda.libs.cublas",
    "CUSOLVERError": "cupy_backends.cuda.libs.cusolver",
    "NVRTCError": "cupy_backends.cuda.libs.nvrtc",
    "CompileException": "cupy.cuda.compiler",
    "DynamicLibNotFoundError": "cuda.pathfinder",
    "DynamicLibNotAvailableError": "cuda.pathfinder",
    "OutOfMemoryError": "cupy.cuda.memory",
}
"""Where each error is whose name decides who bears it."""
NUMBERS = {
    Blame.REQUEST: "InvalidValue InvalidConfiguration InvalidPitchValue InvalidHostPointer"
    " InvalidChannelDescriptor InvalidMemcpyDirection LaunchOutOfResources CooperativeLaunchTooLarge"
    " NotSupported",
    Blame.MEMORY: "MemoryAllocation",
    Blame.SETUP: "InitializationError StubLibrary InsufficientDriver CallRequiresNewerDriver"
    " InvalidDeviceFunction NoDevice InvalidDevice InvalidKernelImage NoKernelImageForDevice InvalidPtx"
    " JitCompilerNotFound UnsupportedPtxVersion JitCompilationDisabled UnsupportedExecAffinity"
    " InvalidSource FileNotFound SharedObjectSymbolNotFound SharedObjectInitFailed OperatingSystem"
    " NotPermitted SystemNotReady SystemDriverMismatch CompatNotSupportedOnDevice MpsConnectionFailed",
    Blame.DEVICE: "DevicesUnavailable ECCUncorrectable NvlinkUncorrectable Contained HardwareStackError",
}
STATUSES = {
    "CUBLASError": {
        Blame.REQUEST: "INVALID_VALUE NOT_SUPPORTED",
        Blame.MEMORY: "ALLOC_FAILED",
        Blame.SETUP: "NOT_INITIALIZED ARCH_MISMATCH LICENSE_ERROR",
        Blame.UNCLEAR: "MAPPING_ERROR EXECUTION_FAILED INTERNAL_ERROR",
    },
    "CUSOLVERError": {
        Blame.REQUEST: "INVALID_VALUE MATRIX_TYPE_NOT_SUPPORTED NOT_SUPPORTED ZERO_PIVOT",
        Blame.MEMORY: "ALLOC_FAILED",
        Blame.SETUP: "NOT_INITIALIZED ARCH_MISMATCH INVALID_LICENSE",
        Blame.UNCLEAR: "MAPPING_ERROR EXECUTION_FAILED INTERNAL_ERROR",
    },
}


def real(path):
    """What the real CuPy has there."""
    for attribute, kind in INSTANCES.items():
        path = path.replace(f"{attribute}.", f"{kind}.")
    names = path.split(".")
    for n in range(len(names), 0, -1):
        try:
            found = importlib.import_module(".".join(names[:n]))
        except ModuleNotFoundError:
            continue
        for name in names[n:]:
            # A stream has its address only once there is one.
            found = getattr(
                found(non_blocking=True) if getattr(found, "__name__", "") == "Stream" else found, name
            )
        return found
    raise AttributeError(path)


def line(path):
    """The path as the file has it: with parameters, or with its number."""
    found = real(path)
    if path.rpartition(".")[2].isupper() and isinstance(found, int):
        return f"{path} = {int(found)}"
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    if not callable(found) or inspect.isgetsetdescriptor(found) or is_error or inspect.ismodule(found):
        return path
    owner = real(path.rpartition(".")[0])
    return path + signature(path, found, is_method=isinstance(owner, type))


def plain(parameter):
    """Without its type: ``intptr_t handle``, ``str code=None``, ``\\*``."""
    name, _, default = parameter.replace("\\", "").partition("=")
    return name.split()[-1] + ("=..." if default else "")


def signature(path, found, is_method):
    if path == "cupy.RawKernel":  # What is called is the kernel that a module gives.
        found, is_method = found.__call__, True
    try:
        given = list(inspect.signature(found).parameters.values())
    except ValueError:
        # Cython leaves it in the text: types, names and defaults.
        text = re.match(r"[\w.]+\((.*?)\)( ->.*)?$", found.__doc__.strip().splitlines()[0])[1]
        text = ", ".join(map(plain, filter(None, text.replace("/, ", "").split(", "))))
        given = list(inspect.signature(eval(f"lambda {text}: None")).parameters.values())
    parts, is_open = [], False
    for each in given[1:] if is_method and given and given[0].name == "self" else given:
        if each.kind is each.VAR_POSITIONAL:
            is_open = True
        elif each.kind is each.KEYWORD_ONLY and not is_open:
            parts.append("*")
            is_open = True
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        parts.append(star + each.name + ("" if each.default is each.empty else "=..."))
    return f"({', '.join(parts)})"


def test_the_file_says_what_the_real_cupy_has(cupy):
    with pytest.MonkeyPatch.context() as patch:
        paths = wanted() | set(stand_ins(patch))
    text = "".join(f"{each}\n" for each in sorted(map(line, paths)))
    found = Path(GOLDEN).read_text(encoding="utf-8") if GOLDEN.exists() else ""
    if found != text:
        fresh = GOLDEN.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        pytest.fail(f"{GOLDEN.name} is not the real CuPy's; compare it with {fresh.name}, written beside it")


def test_every_error_that_is_judged_by_its_name_is_there(cupy):
    for name, module in ERRORS.items():
        assert issubclass(real(f"{module}.{name}"), Exception)
    assert {*gpu_errors._TABLES, *gpu_errors._SETUP_KINDS, "OutOfMemoryError"} == ERRORS.keys()
    assert asked_bytes(real("cupy.cuda.memory.OutOfMemoryError")(5, 6, 7)) == 5


def test_the_numbers_of_cuda_are_those_of_its_header():
    header = (Path(os.environ["CUDA_PATH"]) / "include/driver_types.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"cudaError(\w+)\s+=\s+(\d+)", header)}
    listed = {blame: {numbers[name] for name in names.split()} for blame, names in NUMBERS.items()}
    assert listed == gpu_errors._CUDA
    assert re.search(rf"define cudaHostRegisterPortable +0x0{cuda._PORTABLE}\b", header)


@pytest.mark.parametrize("kind", sorted(STATUSES))
def test_the_statuses_of_libraries_are_those_of_cupys_errors(cupy, kind):
    error, named = real(f"{ERRORS[kind]}.{kind}"), {}
    for status in range(1, 17):
        with contextlib.suppress(KeyError):  # A number that CuPy has no name for.
            named[str(error(status))] = error(status)
    for blame, names in STATUSES[kind].items():
        for name in names.split():
            found = named[f"{kind.removesuffix('Error')}_STATUS_{name}"]
            assert blame_of(found) is blame, name
