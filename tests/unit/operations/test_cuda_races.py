"""What is done too early shows in the emulation: faults planted in copies of our code give wrong results."""

import ctypes
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tests.unit.operations import emulation
from tests.unit.operations.linear import Area, compare, general
from yarn_accel.errors import AccelError
from yarn_accel.operations import cuda_images, cuda_linalg, cuda_source, cuda_streams, get

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler to emulate CUDA with")
BARRIER = "__syncthreads();"
IMAGE_THREADS, QR_THREADS = cuda_images._THREADS, cuda_source.HOUSEHOLDER_THREADS
N_BARRIERS = {
    name: getattr(cuda_source, name).count(BARRIER) for name in ("HOUSEHOLDER", "IMAGES", "MATRICES")
}
N_OF_WRITE_OUT = cuda_source.HOUSEHOLDER.partition("void write_out")[2].count(BARRIER)


def plant(monkeypatch, old, new):
    """A copy of `cuda_streams` with a fault takes its place."""
    text = Path(cuda_streams.__file__).read_text()
    assert text.count(old) == 1
    copy = types.ModuleType("planted")
    monkeypatch.setitem(sys.modules, "planted", copy)
    exec(compile(text.replace(old, new), "planted", "exec"), copy.__dict__)
    for name in [name for name, value in vars(cuda_linalg).items() if vars(cuda_streams).get(name) is value]:
        monkeypatch.setattr(cuda_linalg, name, getattr(copy, name))


def is_right(name):
    """Whether a batch on the emulated GPU is what the CPU computes."""
    n_inputs = {"lu": 1, "gemm": 2}[name]
    # The last one is a group of its own, whose results are copied straight to where they belong.
    orders = enumerate((9, 9, 9, 9, 8))
    inputs = [[general((n, n), seed=10 * i + j) for j in range(n_inputs)] for i, n in orders]
    expected = [get(name).run([array.copy(order="K") for array in arrays], {}) for arrays in inputs]
    found = get(name).batch_form("cuda")([(arrays, {}, Area().place) for arrays in inputs])
    try:
        for one, other in zip(found, expected, strict=True):
            if isinstance(one, AccelError):
                return False
            compare(one, other, "<f8")
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", ["lu", "gemm"])
def test_nothing_is_done_too_early(codec, name):
    assert is_right(name)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        pytest.param("lu", "    _hold(stream, host)\n", "", id="pinned memory is given back at once"),
        pytest.param("gemm", "[*still, (event, host)]", "[(event, host)]", id="only the last is held"),
        pytest.param("gemm", " if not event.done]", " if event.done]", id="held until nobody waits"),
        pytest.param("gemm", "            stream.synchronize()\n", "", id="results are not waited for"),
        pytest.param("lu", "on_device.set(host, stream=stream)", "stream", id="nothing is copied in"),
        pytest.param(
            "lu",
            "on_device.set(host, stream=stream)",
            "on_device.set(host, stream=cupy.cuda.Stream())",
            id="copied on a stream that nobody waits for",
        ),
    ],
)
def test_what_is_done_too_early_is_seen(codec, monkeypatch, name, old, new):
    plant(monkeypatch, old, new)
    assert not is_right(name)


def test_blocks_have_all_threads_that_a_gpu_gives_them(codec, monkeypatch):
    seen, launch = {}, emulation.launch

    def spy(library, name, grid, n_threads, *arguments, **shared):
        seen.setdefault(name, set()).add(n_threads)
        launch(library, name, grid, n_threads, *arguments, **shared)

    monkeypatch.setattr(emulation, "launch", spy)
    get("qr").form("cuda")([general((40, 30))], {"form": "separate"})
    pictures = np.zeros((1, 4, 4, 3), np.uint8)
    cuda_images._forms().patterns(pictures)
    cuda_images._forms().colours(pictures, (4, 4, 4))
    assert seen == {
        "factor": {QR_THREADS},
        "write_out": {QR_THREADS},
        "mark_unsound": {cuda_source.MATRICES_THREADS},
        **{name: {IMAGE_THREADS} for name in ("grey", "patterns", "colours")},
    }


def with_switches(name):
    """The library of a text of ours in which each barrier can be left out, and what says which are."""
    first, *rest = getattr(cuda_source, name).split(BARRIER)
    switched = [f"if (!(missing >> {i} & 1)) {BARRIER}{part}" for i, part in enumerate(rest)]
    library = emulation.build("".join(['extern "C" int missing = 0;', first, *switched]), "-DREAL=double")
    return library, ctypes.c_int.in_dll(library, "missing")


def computed(name, library):
    """What the kernels compute, with all threads of a block."""
    found = []
    if name == "IMAGES":
        images = np.random.default_rng(1).integers(0, 256, (2, 40, 33, 3)).astype(np.uint8)
        n_pixels, bins, grid = np.int64(40 * 33), (16, 4, 4), (3, 2)
        found = [np.zeros((2, 256), np.uint64) for _ in range(2)]
        emulation.launch(library, "patterns", grid, IMAGE_THREADS, images[..., 0].copy(), 40, 33, found[0])
        emulation.launch(library, "colours", grid, IMAGE_THREADS, images, n_pixels, *bins, found[1])
        return found
    if name == "MATRICES":
        # Another thread than the first finds the largest on the diagonal, and the items' differ.
        stack, marks = np.zeros((2, 100, 100)), np.zeros(2, np.int32)
        stack[0, 39, 39], stack[1, 39, 39] = 1.0, 1e6
        stack[:, 5, 3] = 1e-3
        numbers = np.int64(100 * 100), 1, 100, np.float64(1e-8)
        emulation.launch(
            library, "mark_unsound", (2, 2), cuda_source.MATRICES_THREADS, stack, *numbers, marks
        )
        return [marks]
    for m, n in ((40, 33), (12, 40), (140, 20)):
        k, shared = min(m, n), 8 * n * (m | 1)
        columns, scalars = general((2, n, m), "<f8", "C"), np.empty((2, k))
        emulation.launch(library, "factor", (2, 1), QR_THREADS, columns, scalars, m, n, shared=shared)
        q = columns[:, :k].copy()
        emulation.launch(library, "write_out", (2, 1), QR_THREADS, q, scalars, m, k, shared=shared)
        found += [columns, scalars, q]
    return found


@pytest.mark.parametrize("name", sorted(N_BARRIERS))
def test_a_barrier_that_is_missing_is_seen(name):
    library, missing = with_switches(name)
    right = computed(name, library)

    def is_seen(mask):
        missing.value = mask
        pairs = zip(right, computed(name, library), strict=True)
        return not all(np.allclose(one, other, rtol=1e-9) for one, other in pairs)

    n = N_BARRIERS[name] - (N_OF_WRITE_OUT if name == "HOUSEHOLDER" else 0)
    assert not is_seen(0)
    assert [i for i in range(n) if not is_seen(1 << i)] == []
    if name == "HOUSEHOLDER":
        # These cover for one another: the first reflection begins with a barrier of its own.
        assert is_seen(((1 << N_OF_WRITE_OUT) - 1) << n)
