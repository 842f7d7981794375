"""The tests here run by ``make test-cuda-emulated`` alone, which starts Python with the emulated CUDA."""

import ctypes
import importlib
import os

import pytest

from yarn_accel.pipeline.workers.cuda import probe

IS_EMULATED = "EMULATED_CUDA_OPTIONS" in os.environ


def pytest_collection_modifyitems(items):
    if not IS_EMULATED:
        skip = pytest.mark.skip(reason="the emulated CUDA is built and used by make test-cuda-emulated")
        for item in items:
            if "emulated_cuda" in item.nodeid:
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels():
    """All kernels are compiled once and kept, so that no server under test waits for a compiler."""
    if IS_EMULATED:
        with importlib.import_module("cupy").cuda.Stream(non_blocking=True):
            probe()


@pytest.fixture(scope="session")
def cupy():
    module = importlib.import_module("cupy")
    name = module.cuda.runtime.getDeviceProperties(0)["name"]
    assert name == b"emulated", "these tests never run on a GPU"
    return module


@pytest.fixture
def hold(cupy):
    """``hold(True)``: from now on no stream begins anything."""
    library = ctypes.CDLL("libcuda.so.1")
    yield library.emulated_hold
    library.emulated_hold(False)
