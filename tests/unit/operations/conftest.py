"""What the tests of the CUDA forms run on: an emulation on the CPU, and a GPU where there is one."""

import importlib
import sys

import pytest

from tests.unit.operations import emulation
from yarn_accel.operations import cuda_distances, cuda_images, cuda_qr, cuda_streams

_CACHES = (
    cuda_streams._streams,
    cuda_streams.kernels,
    cuda_qr._routine,
    cuda_qr._shared_bytes_of_gpu,
    cuda_images._forms,
    cuda_distances._kernels,
)


def _has_gpu():
    try:
        return importlib.import_module("cupy").cuda.runtime.getDeviceCount() > 0
    except Exception:  # noqa: BLE001 -- whatever CuPy raises without a driver
        return False


_gpu = pytest.param(
    "gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(not _has_gpu(), reason="no CUDA device")]
)
_no_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler to emulate CUDA with")


@pytest.fixture(params=[pytest.param("emulated", marks=_no_compiler), _gpu])
def device(request, monkeypatch):
    """The CUDA forms run emulated, or on a GPU."""
    _forget()
    if request.param == "emulated":
        _emulate(monkeypatch)
    yield request.param
    _forget()


@pytest.fixture
def codec(monkeypatch):
    """Emulated, with nvImageCodec installed: its module."""
    if emulation.COMPILER is None:
        pytest.skip("no C++ compiler to emulate CUDA with")
    _forget()
    _emulate(monkeypatch)
    yield sys.modules["nvidia.nvimgcodec"]
    _forget()


def _emulate(monkeypatch):
    for name, module in emulation.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


def _forget():
    for cache in _CACHES:
        cache.cache_clear()
    cuda_images._decoders.clear()
    cuda_qr._chosen.clear()
