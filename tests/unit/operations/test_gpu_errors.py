"""Who bears an error of a GPU: by the tables of NVIDIA, without one."""

import pytest

from yarn_accel.operations.gpu_errors import (
    Blame,
    blame_of,
    driver_fault,
    shortage,
    xid_blame,
)


def error(kind, status=None, text="", base=RuntimeError):
    made = type(kind, (base,), {})(text)
    if status is not None:
        made.status = status
    return made


@pytest.mark.parametrize(
    ("kind", "status", "blame"),
    [
        ("CUDARuntimeError", 1, Blame.REQUEST),
        ("CUDARuntimeError", 2, Blame.MEMORY),
        ("CUDARuntimeError", 35, Blame.SETUP),
        ("CUDARuntimeError", 100, Blame.SETUP),
        ("CUDARuntimeError", 214, Blame.DEVICE),
        ("CUDARuntimeError", 700, Blame.PROCESS),
        ("CUDARuntimeError", 719, Blame.PROCESS),
        ("CUDARuntimeError", 999, Blame.PROCESS),
        ("CUDADriverError", 2, Blame.MEMORY),
        ("CUDADriverError", 4, Blame.PROCESS),
        ("CUBLASError", 1, Blame.SETUP),
        ("CUBLASError", 3, Blame.MEMORY),
        ("CUBLASError", 7, Blame.REQUEST),
        ("CUBLASError", 13, Blame.UNCLEAR),
        ("CUSOLVERError", 2, Blame.MEMORY),
        ("CUSOLVERError", 3, Blame.REQUEST),
        ("CUSOLVERError", 4, Blame.SETUP),
        ("CUSOLVERError", 7, Blame.UNCLEAR),
        ("NVRTCError", 6, Blame.SETUP),
        ("OutOfMemoryError", None, Blame.MEMORY),
        ("CompileException", None, Blame.SETUP),
        ("DynamicLibNotFoundError", None, Blame.SETUP),
        ("ValueError", None, Blame.NONE),
    ],
)
def test_errors_by_kind_and_status(kind, status, blame):
    assert blame_of(error(kind, status)) is blame


def test_a_library_that_is_missing_is_known_by_cupys_words():
    text = "CuPy failed to load libcuda.so.1: OSError: libcuda.so.1: cannot open shared object file"
    assert blame_of(RuntimeError(text)) is Blame.SETUP
    assert blame_of(ImportError('Failure finding "libcusparse.so.12"')) is Blame.SETUP
    assert blame_of(RuntimeError("something else")) is Blame.NONE
    assert blame_of(KeyError("failed to load libcuda")) is Blame.NONE


@pytest.mark.parametrize(
    ("xid", "blame"),
    [(13, Blame.PROCESS), (31, Blame.PROCESS), (48, Blame.DEVICE), (63, Blame.NONE), (79, Blame.DEVICE)],
)
def test_xids(xid, blame):
    assert xid_blame(xid) is blame


@pytest.mark.parametrize(
    ("driver", "major", "is_old"),
    [
        ("535.129.03", 12, False),
        (b"525.60", 12, False),
        ("470.57", 12, True),
        ("570.10", 13, True),
        ("580.65", 13, False),
        ("", 12, False),
        (None, 12, False),
        ("odd", 12, False),
        ("100", 99, False),
    ],
)
def test_drivers_that_are_too_old(driver, major, is_old):
    assert bool(driver_fault(driver, major)) is is_old


def test_the_cure_of_an_old_driver_names_cuda_12_where_that_would_do():
    assert driver_fault("570.10", 13).endswith("update the driver, or install the extra of CUDA 12 there")
    assert driver_fault("470.57", 13).endswith("update the driver")


def test_what_could_never_have_its_memory_comes_with_figures():
    mib = 1 << 20
    assert shortage(0, 10 * mib, 0, 5 * mib, 20 * mib) is None
    why = shortage(15 * mib, 10 * mib, 0, 5 * mib, 20 * mib)
    assert why == ("needs at least 25 MiB of the GPU's memory; 20 MiB of 20 MiB may be used, 5 MiB are free")
    assert "8 MiB of 20 MiB may be used" in shortage(0, 10 * mib, 8 * mib, 5 * mib, 20 * mib)
    assert shortage(0, 0, 0, 5 * mib, 20 * mib).startswith("needs more of the GPU's memory")
