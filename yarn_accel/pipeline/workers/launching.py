"""A worker process as the kernel has it: how it is started, where it runs, and the page that both ends see.

Nothing more is imported here than starting takes: the libraries of a worker take longest to load of all that
a server needs, so a server starts its first worker before it loads its own modules, and
`worker_process.WorkerProcess` takes it over.

The control word is the first page of a memfd that both ends map: a few numbers that a worker writes and its
owner reads, also after the worker has died. Behind it, by way of the file, lies what `faulthandler` wrote
when the worker was killed by a fault of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from yarn_accel.adapters.nvml import CUDA_VARIABLE

N_LANES = 3
"""Batches a GPU worker is at: one is copied in and another copied out while a third is computed."""

TICK_S = 0.2
"""How often a worker says that it is alive."""

_PAGE_BYTES = 4096
_LAST_WORDS_BYTES = 16384

_PR_SET_PDEATHSIG = 1
_THREAD_VARIABLES = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


class Launched(NamedTuple):
    """A process that was started: our end of its channel, its control word, and itself."""

    channel: socket.socket
    control: ControlWord
    process: subprocess.Popen[bytes]


def launch(n_threads: int, extra_operations: Sequence[str]) -> Launched:
    """Start a worker.  It ends with the *thread* that does this, which therefore has to stay."""
    control = ControlWord()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        numbers = (theirs.fileno(), control.fd, os.getpid())
        # In a packed environment everything is on the path that is passed on: the node's own start-up files,
        # which this process has been through, are not run once more.
        flags = ["-S"] if "ACCEL_ENVIRONMENT" in os.environ else []
        words = ["-m", "yarn_accel.pipeline.workers.main", *map(str, numbers), *extra_operations]
        process = subprocess.Popen(
            [sys.executable, *flags, *words],
            stdin=subprocess.DEVNULL,
            pass_fds=numbers[:2],
            # Kernels that share out processor time by session count it as one, and not as a part of ours.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _path(), **thread_environment(n_threads)},
        )
    return Launched(ours, control, process)


def _path() -> str:
    """Where this process finds modules, so that the worker finds the same."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


class LaneState(IntEnum):
    """The state of a lane of a worker."""

    IDLE = 0
    READING = 1
    """At a job whose inputs are intact."""
    OVERWRITING = 2
    """At a job whose inputs are being destroyed."""


class ControlWord:
    """Shared by the two ends of one worker; each field is a 64-bit number.

    Attributes:
        fd: to be passed to the worker.
        words: `SINCE_NS` (``time.monotonic_ns()`` when it last began a job), and for lane ``i``, from index
            ``i * LANE`` on: `STATE`, `FIRST` (id of the first job it is at), `COUNT` (how many, when they are
            computed as one); `MEASURING`: whether it is at a calibration; `ALIVE_NS`: when a thread of the
            process last ran that computes nothing, written every `TICK_S`.
    """

    STATE: Final = 0
    FIRST: Final = 1
    COUNT: Final = 2
    SINCE_NS: Final = 3
    LANE: Final = 4
    MEASURING: Final = 7
    ALIVE_NS: Final = N_LANES * LANE

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd if fd >= 0 else os.memfd_create("yarn-accel-worker", os.MFD_CLOEXEC)
        if fd < 0:
            os.ftruncate(self.fd, _PAGE_BYTES)
            os.lseek(self.fd, _PAGE_BYTES, os.SEEK_SET)
        self._map = mmap.mmap(self.fd, _PAGE_BYTES)
        self.words = memoryview(self._map).cast("Q")

    def keep_ticking(self) -> None:
        """Say that this process is alive, again and again; never returns."""
        while True:
            self.words[self.ALIVE_NS] = time.monotonic_ns()
            time.sleep(TICK_S)

    def job_at(self, jobs: Container[int]) -> tuple[LaneState, int, int]:
        """Where the worker is among these jobs: state, id of the first, how many; 0: at none of them."""
        for lane in range(N_LANES):
            first = self.words[lane * self.LANE + self.FIRST]
            if first in jobs:
                return self._state(lane), first, self.words[lane * self.LANE + self.COUNT]
        return LaneState.IDLE, 0, 0

    def last_frames(self) -> list[str]:
        """Where the worker was when a fault killed it, innermost first; empty when none did."""
        text = os.pread(self.fd, _LAST_WORDS_BYTES, _PAGE_BYTES).decode("utf-8", "replace")
        # All threads are listed, in no order: the one that failed is called the current one.
        before, _, after = text.partition("Current thread")
        lines = (after or before).partition("\n\n")[0].splitlines()
        return [line.strip() for line in lines if " line " in line]

    def close(self) -> None:
        """Give back memory and descriptor."""
        self.words.release()
        self._map.close()
        os.close(self.fd)

    def _state(self, lane: int) -> LaneState:
        return LaneState(min(self.words[lane * self.LANE + self.STATE], LaneState.OVERWRITING))


def thread_environment(n_threads: int) -> Mapping[str, str]:
    """The environment that makes numerical libraries use that many threads; read when they are loaded."""
    return dict.fromkeys(_THREAD_VARIABLES, str(n_threads))


def bind_to(cores: Iterable[int]) -> None:
    """Bind every thread of this process: those that a library has already started, too."""
    chosen = set(cores)
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), chosen)


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent is gone; False when that has happened already.

    The kernel means the *thread* that started this process, so the parent must start it from one that stays.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Every mapped segment keeps a descriptor.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return os.getppid() == parent


@dataclass(frozen=True, slots=True)
class Device:
    """The device that one worker computes with; it travels to the worker as JSON.

    Attributes:
        name: ``cpu``, ``cuda:3`` or, for part 1 of a GPU that MIG divides, ``cuda:3:1``, as results name it;
            numbered as ``nvidia-smi`` does, whatever of it this process may use.
        kind: ``cpu`` or ``cuda``.
        cores: bound to these; empty: to none.
        fault: why it cannot be used; empty when it can.
        uuid: of the GPU, or of the part.
        product: the model of the GPU.
        memory_bytes: of the GPU, or of the part; 0: unknown.
        n_sharing: workers of this server on it, which share its memory.
        is_exclusive: one process at a time may have a context on it.
        is_for_rest: a CPU beside GPUs, which computes what has no form for these, and nothing else.
    """

    name: str
    kind: str
    cores: tuple[int, ...] = ()
    fault: str = ""
    uuid: str = ""
    product: str = ""
    memory_bytes: int = 0
    n_sharing: int = 1
    is_exclusive: bool = False
    is_for_rest: bool = False

    def environment(self) -> dict[str, str]:
        """Variables that make CUDA see this GPU alone, as its number 0; to be set before CUDA starts.

        Without MPS, too, whose clients fail together when one that hangs is killed: there is no daemon there.
        """
        if self.kind != "cuda":
            return {}
        return {CUDA_VARIABLE: self.uuid, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
