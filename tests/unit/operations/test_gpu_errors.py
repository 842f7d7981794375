"""Who bears an error of a GPU: by the tables of NVIDIA, without one."""

import pytest

from yarn_accel.operations.gpu_errors import (
    Blame,
    MemoryShortage,
    MemoryWait,
    blame_of,
    driver_fault,
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


MIB = 1 << 20


def test_what_could_never_have_its_memory_comes_with_figures():
    assert not MemoryShortage(0, 10 * MIB, 0, 5 * MIB, 20 * MIB, 3 * MIB).is_lasting
    lasting = MemoryShortage(15 * MIB, 10 * MIB, 0, 5 * MIB, 20 * MIB, 3 * MIB)
    assert lasting.is_lasting
    assert str(lasting) == (
        "needs at least 25 MiB of the GPU's memory; 20 MiB of 20 MiB may be used, 5 MiB are free, "
        "other processes hold 12 MiB"
    )
    limited = MemoryShortage(0, 10 * MIB, 8 * MIB, 15 * MIB, 20 * MIB, 5 * MIB)
    assert (limited.is_lasting, limited.others) == (True, 0)
    assert "8 MiB of 20 MiB may be used" in str(limited)


@pytest.mark.parametrize(
    ("others", "is_lasting"), [(0, True), (2 * MIB, True), (3 * MIB, False), (15 * MIB, False)]
)
def test_where_a_library_does_not_say_how_much_others_may_be_the_reason(others, is_lasting):
    """They are if they use what this process may use."""
    shortage = MemoryShortage(0, 0, 18 * MIB, 20 * MIB - others, 20 * MIB)
    assert shortage.is_lasting == is_lasting
    assert str(shortage).startswith("needs more of the GPU's memory")


def test_a_shortage_is_waited_for_once_however_many_it_meets():
    wait = MemoryWait(10.0)
    assert wait.may_go_on(100.0)
    assert wait.may_go_on(109.0)
    assert not wait.may_go_on(110.0)
    assert not wait.may_go_on(119.0), "the next computation does not wait again"
    assert wait.may_go_on(130.0), "nobody met it for a while: it is another one"
    assert not wait.may_go_on(140.0)
    wait.end()
    assert wait.may_go_on(141.0)
    assert not MemoryWait().may_go_on(1.0)
