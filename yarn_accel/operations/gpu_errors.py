"""The meaning of errors of CUDA, its libraries and the driver, and who is to bear them: tables, no I/O.

The numbers are those of NVIDIA's headers (driver_types.h, cublas_api.h, cusolver_common.h) and its table of
Xids. CUDA's runtime and driver use the same numbers for what both of them have.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, FrozenSet, NamedTuple, Optional, Union


class Blame(Enum):
    """Who bears an error of a GPU."""

    REQUEST = "request"
    """The request cannot be computed this way: it is answered ``rejected`` and costs nobody else."""
    MEMORY = "memory"
    """Memory is short; the device and the process are well."""
    SETUP = "setup"
    """Driver, toolkit and CuPy do not fit together, or something is missing: no request can be computed."""
    PROCESS = "process"
    """The process can compute no more on the device; a kernel's fault, so a new process may be well."""
    UNCLEAR = "unclear"
    """A library failed inside: CUDA knows whether the process can go on, and if not, why. If it can, another
    process may still do better."""
    DEVICE = "device"
    """The device itself is sick: it rests."""
    NONE = "none"
    """No error of a GPU."""


_CUDA: Dict[Blame, FrozenSet[int]] = {
    Blame.REQUEST: frozenset({1, 9, 12, 16, 20, 21, 701, 720, 801}),
    Blame.MEMORY: frozenset({2}),
    # 3 initialization, 34 stub, 35 driver too old, 36 call too new, 98 function, 100 no device, 101 invalid
    # device, 200 image, 209 no image, 218 to 224 PTX and JIT, 300 to 304 loading, 800 permission, 802 system
    # not ready (fabric manager), 803 driver mismatch, 804 compatibility, 805 no connection to MPS.
    Blame.SETUP: frozenset(
        {3, 34, 35, 36, 98, 100, 101, 200, 209, 218, 221, 222, 223, 224}
        | {300, 301, 302, 303, 304, 800, 802, 803, 804, 805}
    ),
    # 46 the device is another process's, 214 uncorrectable ECC, 220 NVLink, 226 contained, 714 stack error.
    Blame.DEVICE: frozenset({46, 214, 220, 226, 714}),
}
"""All others (4 and 201 a context that is gone, 700 address, 702 timeout, 710 assertion, 715 to 719, 999) end
the process's context."""
_CUBLAS: Dict[Blame, FrozenSet[int]] = {
    Blame.REQUEST: frozenset({7, 15}),
    Blame.MEMORY: frozenset({3}),
    # 1 no context, 8 architecture, 16 licence.
    Blame.SETUP: frozenset({1, 8, 16}),
}
_CUSOLVER: Dict[Blame, FrozenSet[int]] = {
    Blame.REQUEST: frozenset({3, 8, 9, 10}),
    Blame.MEMORY: frozenset({2}),
    Blame.SETUP: frozenset({1, 4, 11}),
}
"""All others of both, cuBLAS's 11, 13, 14 and cuSOLVER's 5, 6, 7 (mapping, execution, internal), do not say
what failed."""
_NVRTC: Dict[Blame, FrozenSet[int]] = {Blame.MEMORY: frozenset({1})}
_TABLES = {
    "CUDARuntimeError": (_CUDA, Blame.PROCESS),
    "CUDADriverError": (_CUDA, Blame.PROCESS),
    "CUBLASError": (_CUBLAS, Blame.UNCLEAR),
    "CUSOLVERError": (_CUSOLVER, Blame.UNCLEAR),
    "NVRTCError": (_NVRTC, Blame.SETUP),
}
_SETUP_KINDS = frozenset({"CompileException", "DynamicLibNotFoundError", "DynamicLibNotAvailableError"})
_SETUP_TEXTS = ("failed to load libcuda", "failure finding", "cannot open shared object file")
"""Texts of a RuntimeError or ImportError by which CuPy says that a library is missing."""

_APPLICATION_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69, 109})
"""A program's kernel or its channel failed; 45 cleans up after another error."""
_INFORMATION_XIDS = frozenset({63, 92, 94, 154, 157})
"""A row was remapped, single-bit errors are frequent, an ECC error was contained, an action is advised. The
process of a contained error gets 226 from CUDA."""


def blame_of(error: BaseException) -> Blame:
    """Who bears an exception of CuPy or of what it calls; by name, so that CuPy need not be imported."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return Blame.MEMORY
    if kind in _TABLES:
        table, rest = _TABLES[kind]
        status = getattr(error, "status", None)
        return next((blame for blame, statuses in table.items() if status in statuses), rest)
    if kind in _SETUP_KINDS:
        return Blame.SETUP
    if isinstance(error, (RuntimeError, ImportError)):
        text = str(error).lower()
        if any(each in text for each in _SETUP_TEXTS):
            return Blame.SETUP
    return Blame.NONE


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception only says that the GPU's memory is short."""
    return blame_of(error) is Blame.MEMORY


def xid_blame(xid: int) -> Blame:
    """Who bears an Xid. One that NVIDIA does not count among the programs' errors is the device's."""
    if xid in _APPLICATION_XIDS:
        return Blame.PROCESS
    return Blame.NONE if xid in _INFORMATION_XIDS else Blame.DEVICE


_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""By CUDA's major version, the oldest driver of its minor-version compatibility."""


def driver_fault(driver: Union[str, bytes, None], cuda_major: int) -> str:
    """Why this driver, such as ``535.129.03``, is too old for that CUDA; empty if it is not, or unknown."""
    text = driver.decode("ascii", "replace") if isinstance(driver, bytes) else driver or ""
    number = text.partition(".")[0]
    least = _LEAST_DRIVER.get(cuda_major)
    if not number.isdigit() or least is None or int(number) >= least:
        return ""
    older = [major for major, oldest in _LEAST_DRIVER.items() if 12 <= major < cuda_major <= 13]
    other = ", or install the extra of CUDA 12 there" if older and int(number) >= _LEAST_DRIVER[12] else ""
    return "the NVIDIA driver is {}; CUDA {} needs {} or newer: update the driver{}".format(
        text, cuda_major, least, other
    )


class MemoryShortage(NamedTuple):
    """A computation did not get its memory on a device.

    Attributes:
        own: bytes it had taken when it failed.
        asked: bytes that it then asked for; 0: unknown.
        limit: bytes that the process may take; 0: no limit but the device.
        free: bytes that are free on the device now.
        total: bytes of the device.
        pooled: bytes that the process has taken from the device, in use or not.
    """

    own: int
    asked: int
    limit: int
    free: int
    total: int
    pooled: int = 0

    @property
    def needed(self) -> int:
        """Bytes it cannot do without, as far as known."""
        return self.own + self.asked

    @property
    def others(self) -> int:
        """Bytes that other processes hold, and CUDA itself."""
        return max(0, self.total - self.free - self.pooled)

    @property
    def is_lasting(self) -> bool:
        """Whether the process could not have it either if no other used the device."""
        if not self.asked:
            return self.others <= self.total - self._most
        return self.needed > self._most

    @property
    def _most(self) -> int:
        return min(self.limit or self.total, self.total)

    def __str__(self) -> str:
        needs = "needs at least {} MiB".format(_mib(self.needed)) if self.asked else "needs more"
        figures = "{} MiB of {} MiB may be used, {} MiB are free, other processes hold {} MiB".format(
            *map(_mib, (self._most, self.total, self.free, self.others))
        )
        return "{} of the GPU's memory; {}".format(needs, figures)


@dataclass
class MemoryWait:
    """How long computations wait for memory that others use.

    Attributes:
        wait_s: of one shortage, however many computations it meets: so that a batch waits no longer than one.
        since_s: when the shortage began; None: there is none. It is over when it met none for `wait_s`.
        met_s: when it last met one.
    """

    wait_s: float = 0.0
    since_s: Optional[float] = None
    met_s: float = 0.0

    def may_go_on(self, now_s: float) -> bool:
        """Whether to wait, or to wait on; begins a shortage where there was none."""
        if self.since_s is None or now_s - self.met_s > self.wait_s:
            self.since_s = now_s
        self.met_s = now_s
        return now_s - self.since_s < self.wait_s

    def end(self) -> None:
        """A computation has got its memory."""
        self.since_s = None


def asked_bytes(error: BaseException) -> int:
    """The bytes that CuPy could not get; 0: another library failed, which does not say."""
    found: Any = getattr(error, "_size", 0)
    return int(found)


def _mib(n_bytes: int) -> int:
    return n_bytes >> 20
