"""The tests here run by ``make test-cuda-emulated`` alone, which starts Python with the emulated CUDA."""

import contextlib
import ctypes
import importlib
import os
from collections import namedtuple

import pytest

from yarn_accel.pipeline.workers.cuda import probe

Counts = namedtuple("Counts", "copies_in bytes_in copies_out bytes_out launches waits")
"""What is asked of a GPU: copies and their bytes, kernels and routines, and waits of the host."""

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


@contextlib.contextmanager
def counted():
    """``with counted() as found:`` and afterwards ``found`` has the one `Counts` of what was inside."""

    def read():
        numbers = (ctypes.c_longlong * len(Counts._fields))()
        ctypes.CDLL("libcuda.so.1").emulated_counts(numbers)
        return numbers

    before, found = read(), []
    yield found
    found.append(Counts(*(now - then for now, then in zip(read(), before, strict=True))))
