"""Builds the emulated CUDA below the real CuPy: packages, one module of CuPy built again, our libraries.

CuPy's wheel has NVIDIA's runtime inside its module ``runtime``. That module is compiled again from CuPy's own
source of the same version (MIT), against our library; every other module is the wheel's. What a module needs
and we have not written is there, says so, and returns "not supported".
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import scipy

from tests.fixtures import fake_nvml
from tests.unit.operations.cupy_contract import CODECS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENV = ROOT / ".venv-cuda"
LIBRARIES, OVERLAY, STAMP = VENV / "emulated", VENV / "overlay", VENV / "emulated" / "built"
CUPY = "14.2.0"
UUIDS = ("GPU-5e1f0a2b-3c4d-5e6f-7a8b-9cadbecfd0e1", "GPU-11111111-1111-1111-1100-111111111111")
"""CuPy's copy of the second one ends before its zero."""
PACKAGES = (
    f"cupy-cuda12x=={CUPY}",
    "cuda-pathfinder==1.9.0",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-nvrtc-cu12==12.9.86",
    "nvidia-cuda-nvcc-cu12==12.9.86",
    "cython==3.2.9",
    "setuptools==80.9.0",
)
HOST_FORM = "-DTHRUST_HOST_SYSTEM=1 -DTHRUST_DEVICE_SYSTEM=4"
"""CuPy's headers for plain C++."""
NEEDED_ONLY = ("libcublasLt.so.12", "libcusparse.so.12", "libnvJitLink.so.12")
"""What has to be there for the others, and is not called."""
NOT_SUPPORTED = {"cuda": 801, "cublas": 15, "cusolver": 9}
OF_KERNELS = tuple(HERE / name for name in ("kernel.h", "launch.h", "nvrtc.cpp"))
PROFILER = 'extern "C" cudaError_t cudaProfilerStart(void), cudaProfilerStop(void);\n'
CODEC = """import sys
import cupy
from tests.unit.operations.emulation import Codec
sys.modules[__name__] = Codec(cupy.asarray, lambda: cupy.cuda.get_current_stream().ptr)
"""
PRELOAD = """import ctypes as _ctypes
for _name in {names}:
    _ctypes.CDLL({folder!r} + "/" + _name, _ctypes.RTLD_GLOBAL)
"""


def codec_folder(version: str) -> Path:
    """Where the real nvImageCodec of that version is, which works without CUDA as far as it opens images."""
    return VENV / f"nvimgcodec-{version}"


def environment() -> dict[str, str]:
    """The environment in which Python finds CuPy and the emulated CUDA."""
    toolkit_headers = _packages() / "nvidia/cuda_nvcc/include"
    first = [str(OVERLAY), str(ROOT), _site(), str(_packages())]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*first, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "CUDA_PATH": str(_packages() / "nvidia/cuda_runtime"),
        "CUPY_ACCELERATORS": "",
        "CUPY_CACHE_DIR": str(LIBRARIES / "kernels"),
        "EMULATED_CUDA_GPUS": ",".join(UUIDS),
        "EMULATED_CUDA_OPTIONS": f"{HOST_FORM} -I{HERE} -I{LIBRARIES} -I{toolkit_headers}",
        "EMULATED_CUDA_NVRTC": str(_packages() / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
        "OPENBLAS_NUM_THREADS": "1",
        **_node().environment(LIBRARIES / "nvml/libnvidia-ml.so.1"),
    }


def build() -> None:
    """Everything, unless it is there and newer than its sources."""
    own = [Path(__file__), *HERE.glob("*.cpp"), *HERE.glob("*.h")]
    sources = [*own, *Path(fake_nvml.__file__).parent.glob("*.*")]
    if STAMP.exists() and STAMP.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return
    print(f"emulated CUDA: building in {VENV} (about 250 MB of packages the first time)", flush=True)
    _install()
    LIBRARIES.mkdir(exist_ok=True)
    # Kernels take minutes to compile again: only where what compiles them has changed.
    if not STAMP.exists() or any(path.stat().st_mtime > STAMP.stat().st_mtime for path in OF_KERNELS):
        shutil.rmtree(LIBRARIES / "kernels", ignore_errors=True)
    runtime = _rebuilt_runtime()
    (LIBRARIES / "cupy").mkdir(exist_ok=True)
    (LIBRARIES / "cupy/atomics.cuh").write_text("// In kernel.h.\n")
    _gpu_library(runtime)
    _linear_libraries()
    _overlay(runtime)
    fake_nvml.build(LIBRARIES / "nvml")
    _node().write()
    STAMP.touch()


def _node() -> fake_nvml.Node:
    """The machine's GPUs as NVML shows them."""
    return fake_nvml.Node(
        LIBRARIES / "nvml/state", [fake_nvml.GpuRow(i, uuid) for i, uuid in enumerate(UUIDS)]
    )


def _packages() -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return VENV / "lib" / version / "site-packages"


def _run(*command: "str | Path", **options: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, check=False, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"emulated CUDA: {' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def _install() -> None:
    if not (VENV / "bin" / "python").exists():
        _run(sys.executable, "-m", "venv", VENV)
    pip = [VENV / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if not all(list(_packages().glob(f"{name}-{version}*-info")) for name, version in _pinned()):
        _run(*pip, "install", "--no-deps", *PACKAGES)
    for version in (file.stem for file in CODECS):
        if not codec_folder(version).exists():
            package = f"nvidia-nvimgcodec-cu12=={version}"
            _run(*pip, "install", "--no-deps", "--target", codec_folder(version), package)
    if not (VENV / f"cupy-{CUPY}.tar.gz").exists():
        source = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"cupy=={CUPY}"]
        path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # What pip asks of a source package before it keeps it works without CUDA in this form only.
        variables = {**os.environ, "PATH": path, "CUPY_INSTALL_USE_STUB": "1"}
        # Our own setuptools may be older than CuPy's description of itself asks for.
        variables["PYTHONPATH"] = os.pathsep.join([str(_packages()), _site()])
        _run(*pip, "download", "--dest", VENV, *source, env=variables)


def _pinned() -> "list[tuple[str, str]]":
    return [tuple(package.replace("-", "_").split("==")) for package in PACKAGES]


def _site() -> str:
    return sysconfig.get_path("purelib")


def _rebuilt_runtime() -> Path:
    """CuPy's module ``runtime``, compiled from its source; CUDA's functions are left to be found."""
    source = VENV / f"cupy-{CUPY}"
    if not source.exists():
        with tarfile.open(VENV / f"cupy-{CUPY}.tar.gz") as archive:
            archive.extractall(VENV, filter="data")
    module = source / "cupy_backends/cuda/api/runtime"
    settings = "CUPY_CUDA_VERSION=12090,CUPY_HIP_VERSION=0,CUPY_USE_CUDA_PYTHON=0,CUPY_CUFFT_STATIC=0"
    _run(VENV / "bin/python", "-m", "cython", "-3", "--cplus", "-E", settings, f"{module}.pyx", cwd=source)
    (LIBRARIES / "cuda_profiler_api.h").write_text(PROFILER)
    python = sysconfig.get_path("include")
    _compile(LIBRARIES / "runtime.o", f"{module}.cpp", "-c", f"-I{python}", f"-I{LIBRARIES}", "-O0")
    return LIBRARIES / "runtime.o"


def _compile(target: Path, *arguments: "str | Path") -> None:
    nvidia = _packages() / "nvidia"
    headers = [f"-I{nvidia / part / 'include'}" for part in ("cuda_runtime", "cuda_nvcc", "cuda_nvrtc")]
    _run("g++", "-std=c++17", "-O1", "-w", "-fPIC", *headers, *arguments, "-o", target)


def _wanted(binary: Path, prefix: str) -> list[str]:
    """The functions that a binary does not have itself."""
    found = re.findall(rf"\bU ({prefix}\w+)", _run("nm", "--undefined-only", *_dynamic(binary), binary))
    return sorted(set(found))


def _dynamic(binary: Path) -> list[str]:
    return [] if binary.suffix == ".o" else ["--dynamic"]


def _stubs(name: str, functions: list[str], status: int) -> Path:
    """Functions that say that they are not emulated, wherever ours are none."""
    lines = ['#include "emulated.h"', 'extern "C" {']
    body = f"{{ return emulated::unsupported(__func__, {status}); }}"
    lines += [f"__attribute__((weak)) int {function}() {body}" for function in functions]
    path = LIBRARIES / f"{name}.stubs.cpp"
    path.write_text("\n".join([*lines, "}"]))
    return path


def _gpu_library(runtime: Path) -> None:
    stubs = _stubs("cuda", _wanted(runtime, "cuda"), NOT_SUPPORTED["cuda"])
    shared = ["-shared", "-pthread", "-ldl", f"-I{HERE}"]
    _compile(LIBRARIES / "libcuda.so.1", HERE / "gpu.cpp", stubs, *shared, "-Wl,-soname,libcuda.so.1")
    gpu = [*shared, LIBRARIES / "libcuda.so.1", f"-Wl,-rpath,{LIBRARIES}"]
    _compile(LIBRARIES / "libnvrtc.so.12", HERE / "nvrtc.cpp", *gpu, "-Wl,-soname,libnvrtc.so.12")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    _compile(LIBRARIES / f"runtime{suffix}", runtime, *gpu)


def _linear_libraries() -> None:
    folder = Path(scipy.__file__).parent.parent / "scipy.libs"
    lapack = next(folder.glob("libscipy_openblas-*.so"))
    _compile(LIBRARIES / "linear.o", HERE / "linear.cpp", "-c", f"-I{HERE}")
    for name, soname in {"cublas": "libcublas.so.12", "cusolver": "libcusolver.so.11"}.items():
        module = next((_packages() / "cupy_backends/cuda/libs").glob(f"{name}.*.so"))
        stubs = _stubs(name, _wanted(module, name), NOT_SUPPORTED[name])
        script = LIBRARIES / f"{name}.versions"
        script.write_text(soname + " { *; };\n")
        linked = [LIBRARIES / "linear.o", stubs, lapack, LIBRARIES / "libcuda.so.1", f"-I{HERE}", "-shared"]
        options = [f"-Wl,-rpath,{folder}:{LIBRARIES}", f"-Wl,--version-script={script}"]
        _compile(LIBRARIES / soname, *linked, *options, f"-Wl,-soname,{soname}")

    for name in NEEDED_ONLY:
        _compile(LIBRARIES / name, "-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{name}")


def _overlay(runtime: Path) -> None:
    """A copy of the wheel's package with the rebuilt module, and our libraries loaded before NVIDIA's."""
    shutil.rmtree(OVERLAY, ignore_errors=True)
    shutil.copytree(_packages() / "cupy_backends", OVERLAY / "cupy_backends")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    shutil.copy(LIBRARIES / f"runtime{suffix}", OVERLAY / "cupy_backends/cuda/api" / f"runtime{suffix}")
    names = ("libcuda.so.1", "libnvrtc.so.12", *NEEDED_ONLY, "libcublas.so.12", "libcusolver.so.11")
    (OVERLAY / "nvidia").mkdir()  # no package of its own: the others of that name are found, too
    (OVERLAY / "nvidia/nvimgcodec.py").write_text(CODEC)
    (OVERLAY / "cupy_backends/__init__.py").write_text(PRELOAD.format(names=names, folder=str(LIBRARIES)))
