"""Our kernels by the real NVRTC, for every architecture of GPUs: they compile, and what they use is there."""

import ctypes
import functools
import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from yarn_accel.operations import cuda_images, cuda_linalg, cuda_source
from yarn_accel.pipeline.workers.cuda import probe

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
"""From Volta to Blackwell. Up to 100 a compiler that lacks one is a failure."""
REQUIRED_UP_TO = 100
REGISTERS_OF_A_THREAD, REGISTERS_OF_A_BLOCK, SHARED_BYTES = 255, 65536, 48 << 10
"""What every one of them gives a kernel that asks for nothing special."""
REGISTERS_TOGETHER = 8
"""They are given to threads in eights."""
DOCUMENTATION = Path(__file__).parent.parent.parent / "docs/gpu-checks.md"
TEXTS = (cuda_source.IMAGES, cuda_source.HOUSEHOLDER, cuda_source.MATRICES)
THREADS = dict(
    zip(
        TEXTS,
        (cuda_images._THREADS, cuda_source.HOUSEHOLDER_THREADS, cuda_source.MATRICES_THREADS),
        strict=True,
    )
)
ASKED_SHARED_BYTES = dict(zip(TEXTS, (0, cuda_source.HOUSEHOLDER_SHARED_BYTES, 0), strict=True))
"""At the launch, beside what a kernel declares."""
USE = re.compile(
    r"Compiling entry function '(\w+)' for '\w+'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers(?:[^\n]*?, (\d+) bytes smem)?",
    re.DOTALL,
)


class Use(NamedTuple):
    """What ptxas says that a kernel uses."""

    n_stack_bytes: int
    n_spilled_bytes: int
    n_registers: int
    n_shared_bytes: int


def nvrtc():
    return ctypes.CDLL(os.environ["EMULATED_CUDA_NVRTC"])


def supported():
    n = ctypes.c_int()
    assert nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(n)) == 0
    found = (ctypes.c_int * n.value)()
    assert nvrtc().nvrtcGetSupportedArchs(found) == 0
    return set(found)


def compiled(text, options, architecture):
    """NVRTC's log and the cubin."""
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
    flags = [f"--gpu-architecture=sm_{architecture}", "--ptxas-options=-v", *options]
    array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    status = library.nvrtcCompileProgram(program, len(flags), array)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, cubin)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode(), cubin.raw


@functools.cache
def uses(text, options, architecture):
    """Kernel -> `Use`."""
    log, cubin = compiled(text, options, architecture)
    assert cubin.startswith(b"\x7fELF")
    found = {}
    for name, stack, stores, loads, registers, shared in USE.findall(log):
        found[name] = Use(int(stack), int(stores) + int(loads), int(registers), int(shared or 0))
    assert found.keys() == set(re.findall(r'extern "C" __global__ void (\w+)', text)), log
    return found


@pytest.fixture(scope="module")
def shipped(cupy):
    """The text and the options of each of our modules, as CuPy hands them to NVRTC."""
    modules, given, make = [], [], cupy.RawModule
    compiler = cupy.cuda.compiler.nvrtc
    create, compile_program = compiler.createProgram, compiler.compileProgram
    cuda_linalg._kernels.cache_clear()
    cuda_images._forms.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy, "RawModule", lambda **how: modules.append(make(**how)) or modules[-1])
        with cupy.cuda.Stream(non_blocking=True):
            probe()
        patch.setenv("CUPY_CACHE_IN_MEMORY", "1")  # Else what was compiled before is only loaded.
        patch.setattr(
            compiler, "createProgram", lambda text, *rest: given.append([text]) or create(text, *rest)
        )
        patch.setattr(
            compiler,
            "compileProgram",
            lambda program, options: given[-1].append(options) or compile_program(program, options),
        )
        cupy.clear_memo()
        for module in modules:
            module.compile()
    found = [(text, options) for text, options in given if text]
    assert len(found) == len(modules) > 0
    return [(text, tuple(o for o in options if not o.startswith("-arch"))) for text, options in found]


def test_every_text_that_is_shipped_is_looked_at(shipped):
    assert {text for text, _ in shipped} == set(TEXTS)
    assert {option for text, options in shipped for option in options if "REAL" in option} == {
        "-DREAL=float",
        "-DREAL=double",
    }
    assert all(set(cuda_source.IMAGE_OPTIONS) <= set(o) for text, o in shipped if text == cuda_source.IMAGES)
    folder = Path(cuda_source.__file__).parent.parent
    with_kernels = [path.name for path in folder.rglob("*.py") if "__global__" in path.read_text()]
    assert with_kernels == ["cuda_source.py"]


def test_the_compiler_knows_every_architecture():
    missing = set(ARCHITECTURES) - supported()
    assert not {number for number in missing if number <= REQUIRED_UP_TO}


def architectures():
    return [number for number in ARCHITECTURES if number in supported()]


def test_every_kernel_compiles_for_every_architecture_and_fits(shipped):
    for text, options in shipped:
        for architecture in architectures():
            for name, use in uses(text, options, architecture).items():
                where = f"{name} {options} sm_{architecture}: {use}"
                together = -(-use.n_registers // REGISTERS_TOGETHER) * REGISTERS_TOGETHER
                assert use.n_registers <= REGISTERS_OF_A_THREAD, where
                assert together * THREADS[text] <= REGISTERS_OF_A_BLOCK, where
                assert use.n_shared_bytes + ASKED_SHARED_BYTES[text] <= SHARED_BYTES, where
                assert (use.n_stack_bytes, use.n_spilled_bytes) == (0, 0), where


def test_the_documentation_has_these_figures(shipped):
    numbers = architectures()
    lines = [f"| kernel | threads | shared bytes | {' | '.join(f'sm_{number}' for number in numbers)} |"]
    lines.append("|---" * (3 + len(numbers)) + "|")
    for text, options in shipped:
        real = next((f" ({o.partition('=')[2]})" for o in options if "REAL" in o), "")
        for name in sorted(uses(text, options, numbers[0])):
            each = [uses(text, options, number)[name] for number in numbers]
            shared = max(use.n_shared_bytes for use in each) + ASKED_SHARED_BYTES[text]
            registers = " | ".join(str(use.n_registers) for use in each)
            lines.append(f"| `{name}`{real} | {THREADS[text]} | {shared:,} | {registers} |")
    lines[2:] = sorted(lines[2:])
    table = "\n".join(lines)
    assert table in DOCUMENTATION.read_text(encoding="utf-8"), f"docs/gpu-checks.md should have\n{table}"
