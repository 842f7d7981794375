"""The real CuPy on the emulated CUDA: what is done too early, or to the wrong memory, shows."""

import importlib
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from tests.emulated_cuda.build import UUIDS
from tests.fixtures.refusals import refused
from yarn_accel.errors import RejectedError, StartupError, UnavailableError
from yarn_accel.operations import get
from yarn_accel.operations.cuda_streams import set_memory_wait, through_streams, upload, with_memory
from yarn_accel.operations.operation import allocate
from yarn_accel.pipeline.workers.cuda import CudaDevice
from yarn_accel.pipeline.workers.launching import Device


def test_cupy_is_the_wheel_and_its_libraries_are_ours(cupy):
    assert cupy.__version__ == "14.2.0"
    assert cupy.cuda.runtime.getDeviceCount() == 2
    assert (cupy.arange(6.0).reshape(2, 3) @ cupy.ones((3, 2))).get().tolist() == [[3, 3], [12, 12]]


@pytest.mark.parametrize("shown", [0, 1])
def test_a_worker_computes_on_the_gpu_that_it_was_given_and_on_no_other(cupy, monkeypatch, shown):
    properties = cupy.cuda.runtime.getDeviceProperties(shown)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda number: properties)
    assert CudaDevice(Device("cuda:3", "cuda", uuid=UUIDS[shown])).versions()["gpu"] == "emulated"
    with pytest.raises(
        StartupError, match=f"cuda:3 is {UUIDS[1 - shown]}, but CUDA opened the GPU whose UUID"
    ):
        CudaDevice(Device("cuda:3", "cuda", uuid=UUIDS[1 - shown]))


def test_a_copy_out_is_there_only_after_its_stream_was_waited_for(cupy, hold):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        values = cupy.arange(4.0)
        stream.synchronize()
        host = importlib.import_module("cupyx").empty_pinned(4, dtype=np.float64)
        host[:] = -1
        hold(True)
        values.get(stream=stream, out=host, blocking=False)
    assert host.tolist() == [-1, -1, -1, -1]
    hold(False)
    stream.synchronize()
    assert host.tolist() == [0, 1, 2, 3]


def test_pinned_memory_that_changes_too_early_is_copied_changed(cupy, hold):
    stream = cupy.cuda.Stream(non_blocking=True)
    pinned = importlib.import_module("cupyx").empty_pinned(4, dtype=np.float64)
    pageable = np.zeros(4)
    pinned[:] = 0
    first, second = cupy.empty(4), cupy.empty(4)
    hold(True)
    first.set(pinned, stream=stream)
    second.set(pageable, stream=stream)
    pinned[:], pageable[:] = 7, 7
    hold(False)
    stream.synchronize()
    assert first.get().tolist() == [7, 7, 7, 7]
    assert second.get().tolist() == [0, 0, 0, 0], "CUDA copies what is not pinned before it returns"


def test_a_copy_from_or_to_what_is_not_a_gpus_memory_is_refused(cupy, capfd):
    host, device = np.zeros(8), cupy.zeros(8)
    runtime = cupy.cuda.runtime
    for kind in (runtime.memcpyDeviceToHost, runtime.memcpyDeviceToDevice):
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidValue"):
            runtime.memcpy(host.ctypes.data, host.ctypes.data, 8, kind)
    size = device.data.mem.size
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidValue"):
        runtime.memcpy(device.data.mem.ptr, host.ctypes.data, 1 << 40, runtime.memcpyHostToDevice)
    assert size == 512
    assert "emulated CUDA: a copy from or to memory that is not of the kind it says" in capfd.readouterr().err


def test_what_is_not_emulated_says_so(cupy, capfd):
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorNotSupported"):
        cupy.cuda.runtime.mallocManaged(8)
    assert "cudaMallocManaged is not emulated" in capfd.readouterr().err


def test_memory_has_an_end(cupy):
    with pytest.raises(
        cupy.cuda.memory.OutOfMemoryError, match="Out of memory allocating 17,179,869,184 bytes"
    ):
        cupy.empty(1 << 31)


@contextmanager
def limited(pool, n_bytes):
    """The pool takes so many bytes of the GPU at most."""
    pool.set_limit(size=n_bytes)
    try:
        yield
    finally:
        pool.set_limit(size=0)


def test_what_can_never_have_its_memory_is_too_large_and_what_may_have_it_later_is_not(cupy):
    runtime, pool = cupy.cuda.runtime, cupy.get_default_memory_pool()
    pool.free_all_blocks()
    free, total = runtime.memGetInfo()
    with refused("too-large", match=f"needs at least .* of {total >> 20} MiB may be used"):
        with_memory(lambda: cupy.empty(total + 8, np.uint8))
    kept = cupy.empty(free // 2, np.uint8)
    with pytest.raises(UnavailableError, match="others use the GPU's memory") as caught:
        with_memory(lambda: cupy.empty(free // 2 + (1 << 20), np.uint8))
    assert caught.value.code == "out-of-memory"
    kept = None
    assert with_memory(lambda: cupy.empty(free // 2 + (1 << 20), np.uint8)).nbytes > free // 2
    pool.free_all_blocks()
    with limited(pool, 1 << 20), pytest.raises(RejectedError, match="1 MiB of"):
        with_memory(lambda: cupy.empty(1 << 21, np.uint8))
    assert kept is None


def test_what_another_lane_takes_meanwhile_makes_no_request_too_large(cupy):
    pool, n_bytes = cupy.get_default_memory_pool(), 40 << 20
    tries, others = [], []

    def work():
        tries.append(None)
        if len(tries) == 1:
            raise cupy.cuda.memory.OutOfMemoryError(n_bytes, 0, 0)
        cupy.empty(n_bytes, np.uint8)  # Given back at once.
        own = cupy.empty(n_bytes, np.uint8)
        lane = threading.Thread(target=lambda: others.append(cupy.empty(n_bytes, np.uint8)))
        lane.start()
        lane.join()
        return own, cupy.empty(n_bytes, np.uint8)

    pool.free_all_blocks()
    needed = r"needs at least 80 MiB of the GPU's memory; \d+ MiB of"
    with limited(pool, pool.used_bytes() + (100 << 20)), pytest.raises(UnavailableError, match=needed):
        with_memory(work)
    assert len(others) == 1


def test_what_a_request_had_when_it_asked_in_vain_counts_though_the_error_gives_it_back(cupy):
    pool, n_bytes = cupy.get_default_memory_pool(), 40 << 20
    pool.free_all_blocks()
    with limited(pool, pool.used_bytes() + (100 << 20)), refused("too-large", "needs at least 120 MiB"):
        with_memory(lambda: [cupy.empty(n_bytes, np.uint8) for _ in range(3)])


def test_what_is_short_is_waited_for_as_long_as_it_was_said(cupy):
    pool, kept = cupy.get_default_memory_pool(), []
    pool.free_all_blocks()
    n_bytes = cupy.cuda.runtime.memGetInfo()[0] // 2 + (1 << 20)
    times = iter(range(100))
    try:
        for sleep, seconds, is_there in ((kept.clear, 50.0, True), (lambda: None, 5.0, False)):
            kept.append(cupy.empty(n_bytes, np.uint8))
            set_memory_wait(seconds, lambda: float(next(times)), lambda _, sleep=sleep: sleep())
            if is_there:
                assert with_memory(lambda: cupy.empty(n_bytes, np.uint8)).nbytes == n_bytes
            else:
                with pytest.raises(UnavailableError, match="others use the GPU's memory"):
                    with_memory(lambda: cupy.empty(n_bytes, np.uint8))
    finally:
        set_memory_wait(0.0, lambda: 0.0, lambda _: None)


def test_a_shortage_that_passes_costs_one_more_try(cupy):
    tries = []

    def work():
        tries.append(None)
        return cupy.empty(1 << 40, np.uint8) if len(tries) == 1 else "done"

    assert (with_memory(work), len(tries)) == ("done", 2)


def test_a_group_for_which_memory_is_short_is_computed_after_those_before_it(cupy):
    """And where it still is, its items are tried one by one, and alone are answered so."""
    short, launched, landed = {2: 1, 4: 1 << 30}, [], []

    def launch(items):
        order = items[0][0][0].shape[0]
        launched.append(order)
        if short.get(order, 0) > 0:
            short[order] -= 1
            raise cupy.cuda.memory.OutOfMemoryError(1 << 62, 0, 0)

        def land():
            landed.append(order)
            return [order] * len(items)

        return land

    items = [([np.eye(order)], {}, allocate) for order in (1, 2, 2, 3, 4, 4, 5)]
    with cupy.cuda.Stream(non_blocking=True):
        found = through_streams(items, launch)
    assert [each if isinstance(each, int) else each.code for each in found] == [
        *(1, 2, 2, 3),
        *("too-large", "too-large"),
        5,
    ]
    assert launched[:4] == [1, 2, 2, 3]
    assert launched.count(5) == 1
    assert landed == [1, 2, 3, 5]


def test_an_error_of_another_kind_leaves_at_once(cupy):
    def fail(*_):
        raise ValueError("not of memory")

    tries = iter([cupy.cuda.memory.OutOfMemoryError(8, 0, 0), ValueError("not of memory")])

    def fail_later():
        raise next(tries)

    with cupy.cuda.Stream(non_blocking=True):
        for work in (fail, fail_later):
            with pytest.raises(ValueError, match="not of memory"):
                with_memory(work)
        with pytest.raises(ValueError, match="not of memory"):
            through_streams([([np.eye(2)], {}, allocate)], fail)


def test_threads_of_a_block_wait_for_one_another(cupy):
    text = r"""
    extern "C" __global__ void turned(const double* in, double* out) {
        extern __shared__ double parts[];
        parts[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
        __syncthreads();
        out[blockIdx.x * blockDim.x + threadIdx.x] = parts[blockDim.x - 1 - threadIdx.x];
    }
    """
    values, found = cupy.arange(256.0), cupy.empty(256)
    cupy.RawModule(code=text).get_function("turned")((2,), (128,), (values, found), shared_mem=1024)
    assert found.get().tolist() == [*range(127, -1, -1), *range(255, 127, -1)]
    without = cupy.RawModule(code=text.replace("__syncthreads();", "/* none */"))
    without.get_function("turned")((2,), (128,), (values, found), shared_mem=1024)
    assert np.isnan(found.get()).any(), "a barrier that is missing shows"


def test_lu_goes_through(cupy):
    matrix = np.random.default_rng(0).standard_normal((40, 40))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        found = get("lu").form("cuda")([matrix.copy()], {})
        stream.synchronize()
    expected = get("lu").run([matrix.copy()], {})
    np.testing.assert_allclose(found.arrays["lu"], expected.arrays["lu"], atol=1e-12)
    np.testing.assert_array_equal(found.arrays["piv"], expected.arrays["piv"])


def test_pinned_memory_of_a_batch_is_nobody_elses_before_it_was_copied(cupy, hold):
    pinned = importlib.import_module("cupyx").empty_pinned
    hosts = [np.asfortranarray(np.random.default_rng(i).standard_normal((8, 8))) for i in range(2)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        hold(True)
        stack = upload(hosts, 2)
        others = [pinned((2, 8, 8), dtype=np.float64) for _ in range(8)]
        for other in others:
            other[:] = np.nan
        hold(False)
        stream.synchronize()
        np.testing.assert_array_equal(stack.get(), np.stack(hosts))


def test_a_result_is_whole_when_a_batch_returns(cupy):
    """Each stream waits at random: what is not waited for would be what was in the memory before."""
    matrices = [np.asfortranarray(np.random.default_rng(i).standard_normal((9, 9))) for i in range(40)]
    items = [([matrix.copy(order="K")], {}, allocate) for matrix in matrices]
    with cupy.cuda.Stream(non_blocking=True):
        found = get("lu").batch_form("cuda")(items)
        for matrix, outcome in zip(matrices, found, strict=True):
            expected = get("lu").run([matrix.copy(order="K")], {})
            np.testing.assert_allclose(outcome.arrays["lu"], expected.arrays["lu"], atol=1e-12)


def test_memory_of_one_gpu_is_counted_apart_from_the_others(cupy):
    runtime = cupy.cuda.runtime
    with cupy.cuda.Device(1):
        before, _ = runtime.memGetInfo()
        kept = cupy.empty(1 << 20)
        assert runtime.memGetInfo()[0] == before - kept.nbytes
        stream = cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        runtime.memsetAsync(kept.data.ptr, 0, 8, stream.ptr)
