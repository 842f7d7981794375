"""The processes of a worker that call functions: kept between calls, so that a call does not start one.

A process is used again only by an attempt of the same application with the same archives, environment,
demand and GPUs. Between calls it occupies what its calls do: it is ended where a running attempt needs that,
or one of its GPUs, and in any case when it was idle for a while.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.core.tasks.attempt_orders import AttemptOrder, FunctionCall
from yarn_accel.core.tasks.values import FormDemand
from yarn_accel.worker.file_cache import FileCache
from yarn_accel.worker.function_call import FunctionProcess
from yarn_accel.worker.guarded_process import Guard

_MODULE = "yarn_accel.worker.function_process"
_PROGRAM = str(Path(__file__).with_name("function_process.py"))
#: Marks what a process has started as its own, whichever attempt it ran for.
_MARK = "yarn_accel_function_process"
_THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What attempts that run and idle processes occupy together, and how long a process is idle."""

    cores: int
    memory_bytes: int
    idle_s: float


@dataclass(slots=True)
class FunctionSlot:
    """What one attempt occupies, or did.

    Attributes:
        process: where its function runs; None: it has none yet.
    """

    demand: FormDemand
    devices: tuple[str, ...]
    process: FunctionProcess | None = None


class FunctionPool:
    """One per worker; safe between threads.

    Args:
        folder: its own, with a folder for each process; what an earlier worker left there is deleted.
    """

    def __init__(
        self,
        guard: Guard,
        files: FileCache,
        folder: Path,
        limits: PoolLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._guard = guard
        self._files = files
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._used: list[FunctionSlot] = []
        #: Longest idle first, each with since when.
        self._idle: list[tuple[FunctionSlot, float]] = []

    @contextlib.contextmanager
    def slot(self, order: AttemptOrder, devices: tuple[str, ...]) -> Iterator[FunctionSlot]:
        """Capacity for an attempt, with an idle process that suits it where there is one.

        Idle processes that are in its way are ended first. Its process, if usable still, is idle afterwards.
        """
        slot = FunctionSlot(order.demand, devices)
        with self._lock:
            if order.function is not None:
                slot.process = self._take(_key(order, order.function, devices))
            self._used.append(slot)
            surplus = self._surplus(slot)
        try:
            for each in surplus:
                each.end()
            yield slot
        finally:
            process = slot.process
            with self._lock:
                self._used.remove(slot)
                if process is not None and process.is_usable:
                    self._idle.append((slot, self._clock()))
            if process is not None and not process.is_usable and not process.process.has_ended:
                process.end()

    def start(
        self,
        order: AttemptOrder,
        function: FunctionCall,
        devices: tuple[str, ...],
        environ: Mapping[str, str],
        interpreter: str = "",
    ) -> FunctionProcess:
        """A new process.

        Args:
            environ: of its first call, which all others have but for the names of the attempt.
            interpreter: of another Python environment; empty: our own.

        Raises:
            StorageError: an archive cannot be read.
            UnavailableError: the guard is gone.
        """
        number = next(self._numbers)
        folder = self._folder / str(number)
        folder.mkdir(parents=True)
        own = {**environ, _MARK: f"{number}-{secrets.token_hex(8)}"}
        # Another environment has nothing of ours: the program itself, by its path, is all that it gets.
        program = (interpreter, _PROGRAM) if interpreter else (sys.executable, "-m", _MODULE)
        argv = (*program, *function.archives)
        ours, theirs = socket.socketpair()
        log, printed = os.pipe2(os.O_CLOEXEC)
        try:
            with theirs:
                for name, uri in _archives(order, function):
                    self._files.link(uri, folder / name)
                process = self._guard.start(argv, own, folder, (theirs.fileno(), printed, printed), _MARK)
        except BaseException:
            ours.close()
            os.close(log)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(printed)
        return FunctionProcess(process, ours, log, _key(order, function, devices), folder, own)

    def environment(self, order: AttemptOrder) -> dict[str, str]:
        """What the environment of a function has beside that of a command."""
        given = dict(order.environment)
        threads = {name: given.get(name, str(order.demand.cores)) for name in _THREAD_VARIABLES}
        paths = [given["PYTHONPATH"]] if given.get("PYTHONPATH") else []
        # Packages of this interpreter are none of another one.
        own = [] if order.python else [each or str(Path.cwd()) for each in sys.path]
        return {**threads, "PYTHONPATH": os.pathsep.join([*paths, *own])}

    def end_idle(self) -> None:
        """End those that were idle for too long; called now and then."""
        now_s = self._clock()
        with self._lock:
            old = [slot for slot, since_s in self._idle if now_s - since_s >= self._limits.idle_s]
            self._idle = [each for each in self._idle if each[0] not in old]
        for slot in old:
            if slot.process is not None:
                slot.process.end()

    def _take(self, key: object) -> FunctionProcess | None:
        """The process that was idle for the shortest time of those with this key."""
        for at in reversed(range(len(self._idle))):
            process = self._idle[at][0].process
            if process is not None and process.key == key:
                del self._idle[at]
                if not process.process.has_ended:
                    return process
        return None

    def _surplus(self, slot: FunctionSlot) -> list[FunctionProcess]:
        """Take out of the idle ones what is in the way of a slot."""
        found, kept = [], self._idle
        for each in list(kept):
            demands = [other.demand for other in (*self._used, *(idle for idle, _ in kept))]
            is_full = (
                sum(demand.cores for demand in demands) > self._limits.cores
                or sum(demand.memory_bytes for demand in demands) > self._limits.memory_bytes
            )
            if is_full or set(each[0].devices) & set(slot.devices):
                kept.remove(each)
                if each[0].process is not None:
                    found.append(each[0].process)
        return found


def _key(order: AttemptOrder, function: FunctionCall, devices: tuple[str, ...]) -> object:
    return order.app, _archives(order, function), order.environment, order.python, order.demand, devices


def _archives(order: AttemptOrder, function: FunctionCall) -> tuple[tuple[str, str], ...]:
    """Names and URIs of the archives, in the order in which modules are looked for."""
    uris = dict(order.files)
    return tuple((name, uris[name]) for name in function.archives)
