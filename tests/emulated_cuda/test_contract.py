"""The files to which `make test` holds our modules and the stand-ins say what CuPy and nvImageCodec have."""

import ast
import contextlib
import importlib
import inspect
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.emulated_cuda.build import ROOT, codec_folder
from tests.fixtures.programs import ran
from tests.unit.operations.cupy_contract import CODEC, CODECS, GOLDEN, wanted
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


def used(of_codec):
    with pytest.MonkeyPatch.context() as patch:
        paths = wanted() | set(stand_ins(patch))
    return sorted(path for path in paths if path.startswith(CODEC) == of_codec)


def compare(file, lines):
    text = "".join(f"{each}\n" for each in lines)
    found = file.read_text(encoding="utf-8") if file.exists() else ""
    if found != text:
        fresh = file.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        pytest.fail(f"{file.name} is not what the wheel has; compare it with {fresh.name}, written beside it")


def test_the_file_says_what_the_real_cupy_has(cupy):
    compare(GOLDEN, sorted(map(line, used(of_codec=False))))


ASK_CODEC = """
import json, sys
from functools import reduce
from nvidia import nvimgcodec
found = {}
for path in sys.argv[1:]:
    thing = reduce(getattr, path.split(".")[2:], nvimgcodec)
    function = thing.__init__ if isinstance(thing, type) else thing
    found[path] = function.__doc__ if callable(function) else None
print(json.dumps(found))
"""
OPEN_JPEG = """
import io, os
import numpy as np
from PIL import Image
from nvidia import nvimgcodec
from yarn_accel.operations import cuda_images
stream = io.BytesIO()
Image.fromarray(np.zeros((30, 20, 3), np.uint8)).save(stream, "JPEG")
opener = cuda_images._Decoder(None, None, nvimgcodec.CodeStream, [])
opened = opener.opened(stream.getvalue(), (30, 20))
assert opened is not None
assert opener.opened(stream.getvalue(), (20, 30)) is None
assert opener.opened(b"nothing", (30, 20)) is None
decoder = cuda_images._decoder(0)
said = []
if isinstance(decoder, cuda_images._NoDecoder):
    said.append(decoder.reason)
else:
    try:
        decoder.decode([opened], params=decoder.params, cuda_stream=0)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
print(*said, flush=True)
os._exit(0)  # 0.5 would crash where there is no driver.
"""


def with_codec(version, program, *words):
    """What Python prints with the real nvImageCodec, which complains of what it misses without a driver."""
    paths = [str(codec_folder(version)), str(ROOT), *sys.path[1:]]
    done = ran(
        [sys.executable, "-c", program, *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def forms(text):
    """``(a, b=..., *, c=...)`` for each way in which pybind11's text says that a function is called."""
    found = []
    for given in re.findall(r"^(?:\d+\. )?\w+\((self.*)\) -> .*$", text, re.MULTILINE):
        function = ast.parse(f"def f({re.sub('<[^<>]*>', 'None', given)}): ...").body[0].args
        function.args = [ast.arg(each.arg) for each in [*function.posonlyargs, *function.args][1:]]
        function.posonlyargs, anything = [], ast.Constant(...)
        function.kwonlyargs = [ast.arg(each.arg) for each in function.kwonlyargs]
        function.defaults = [anything for _ in function.defaults]
        function.kw_defaults = [each and anything for each in function.kw_defaults]
        found.append(f"({ast.unparse(function)})")
    return " | ".join(found)


@pytest.mark.parametrize("file", CODECS, ids=lambda file: file.stem)
def test_the_files_say_what_the_real_nvimagecodec_has(file):
    found = json.loads(with_codec(file.stem, ASK_CODEC, *used(of_codec=True)).splitlines()[-1])
    compare(file, [path if text is None else path + forms(text) for path, text in sorted(found.items())])


@pytest.mark.parametrize("file", CODECS, ids=lambda file: file.stem)
def test_the_real_nvimagecodec_opens_images_and_takes_our_settings(file):
    """Without a driver it fails by CUDA's error, not by its arguments: 0.5 when it decodes, 0.9 before."""
    assert re.search("RuntimeError: .*CUDA", with_codec(file.stem, OPEN_JPEG))


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
