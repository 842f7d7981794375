"""QR of a stack by each of its ways, and by the one that was measured to be the fastest."""

import numpy as np
import pytest

from tests.unit.operations.linear import compare, general
from yarn_accel.operations import allocate, cuda_qr, get

WAYS = ("kernel", "cublas", "cusolver")


@pytest.fixture(autouse=True)
def never_measured(monkeypatch):
    monkeypatch.setattr(cuda_qr, "_chosen", {})


def on_device(cupy, stack):
    return cupy.asarray(np.ascontiguousarray(stack.swapaxes(1, 2)))


def compared(found, stack, form):
    """As the CPU's twin."""
    compare(found, get("qr").run([stack.copy()], {"form": form}), stack.dtype.str)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(5, 9, 9), (4, 20, 7), (4, 7, 20)])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_a_qr(cupy, monkeypatch, way, shape, dtype):
    if way == "kernel" and dtype[0] == "c":
        return  # It is for real numbers.
    monkeypatch.setattr(cuda_qr, "fastest_way", lambda columns: way)
    stack = general(shape, f"<{dtype}", "C")
    for form in ("packed", "separate"):
        with cupy.cuda.Stream(non_blocking=True):
            (found,) = get("qr").batch_form("cuda")([([stack.copy()], {"form": form}, allocate)])
        compared(found, stack, form)


@pytest.mark.parametrize(("seconds", "way"), [(1.0, "cublas"), (3.0, "kernel")])
def test_the_fastest_is_taken_and_measured_once(cupy, monkeypatch, seconds, way):
    asked = []

    def took_s(compute, columns):
        asked.append(compute.__name__)
        return seconds if compute is cuda_qr.geqrf_batched else 2.0

    monkeypatch.setattr(cuda_qr, "_took_s", took_s)
    with cupy.cuda.Stream(non_blocking=True):
        for n in (9, 16, 12):
            assert cuda_qr.fastest_way(on_device(cupy, general((5, n, n)))) == way
    assert asked == ["_kernel", "geqrf_batched"]


def test_complex_ones_are_measured_beside_cusolver(cupy, monkeypatch):
    monkeypatch.setattr(cuda_qr, "_took_s", lambda compute, _: float(compute is cuda_qr.geqrf_batched))
    with cupy.cuda.Stream(non_blocking=True):
        assert cuda_qr.fastest_way(on_device(cupy, general((4, 9, 9), "c16"))) == "cusolver"
        monkeypatch.setattr(cuda_qr, "_chosen", {})
        monkeypatch.setattr(cuda_qr, "_took_s", lambda compute, _: float(compute is cuda_qr._one_by_one))
        assert cuda_qr.fastest_way(on_device(cupy, general((4, 9, 9), "c16"))) == "cublas"


def test_a_real_measurement_chooses_one(cupy):
    stack = general((6, 12, 12), order="C")
    with cupy.cuda.Stream(non_blocking=True):
        (found,) = get("qr").batch_form("cuda")([([stack.copy()], {}, allocate)])
    assert set(cuda_qr._chosen.values()) <= {"kernel", "cublas"}
    assert len(cuda_qr._chosen) == 1
    compared(found, stack, "separate")


def wrong(routine):
    """As cuBLAS's, but the scalars are another convention's."""

    def call(handle, m, n, places, ld, tau, code, n_items):
        return 0

    return call


@pytest.mark.parametrize("refusal", [wrong, lambda _: lambda *_: 15])
def test_a_geqrf_batched_that_gives_no_qr_or_refuses_is_never_taken(cupy, monkeypatch, refusal):
    monkeypatch.setattr(cuda_qr, "_routine", refusal)
    monkeypatch.setattr(cuda_qr, "_took_s", lambda compute, _: float(compute is not cuda_qr.geqrf_batched))
    with cupy.cuda.Stream(non_blocking=True):
        assert cuda_qr.fastest_way(on_device(cupy, general((5, 9, 9)))) == "kernel"


def test_one_that_refuses_later_is_done_without(cupy, monkeypatch):
    monkeypatch.setattr(cuda_qr, "fastest_way", lambda columns: "cublas")
    monkeypatch.setattr(cuda_qr, "_routine", lambda _: lambda *_: 3)
    stack = general((5, 9, 9), order="C")
    with cupy.cuda.Stream(non_blocking=True):
        (found,) = get("qr").batch_form("cuda")([([stack.copy()], {}, allocate)])
    compared(found, stack, "separate")


def test_without_cublas_s_routine_nothing_is_measured(cupy, monkeypatch):
    monkeypatch.setattr(cuda_qr, "_routine", lambda _: None)
    monkeypatch.setattr(cuda_qr, "_took_s", None)
    with cupy.cuda.Stream(non_blocking=True):
        assert cuda_qr.fastest_way(on_device(cupy, general((5, 9, 9)))) == "kernel"


def test_where_memory_is_short_it_is_measured_another_time(cupy, monkeypatch):
    def short(*_):
        raise cupy.cuda.memory.OutOfMemoryError(1, 2, 3)

    monkeypatch.setattr(cuda_qr, "_took_s", short)
    with cupy.cuda.Stream(non_blocking=True):
        assert cuda_qr.fastest_way(on_device(cupy, general((5, 9, 9)))) == "kernel"
    assert cuda_qr._chosen == {}
