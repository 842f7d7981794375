"""What every section of the benchmark is given: its time, the servers, and where its rows go.

A section measures less often, or leaves something out and says so, but ends in time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.gpu.machine import Machine
from benchmarks.pipeline.setting import OwnServer
from benchmarks.result import Row, not_measured
from yarn_accel.errors import AccelError

SHARES = {
    "operations": 0.1,
    "factorizations": 0.27,
    "batches": 0.11,
    "forms": 0.1,
    "tenants": 0.04,
    "overlap": 0.07,
    "workers": 0.09,
    "images": 0.09,
    "paper": 0.09,
    "killed": 0.04,
}
"""Of all the time, by section."""


class SectionOverError(BaseException):
    """What hangs is ended by it; no section handles it."""


class Budget:
    """The time of one section.

    Args:
        limit_s: seconds from now.
        now: the clock, in seconds.

    Attributes:
        cut: what was left out, or measured less often than meant.
    """

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until_s = now() + limit_s
        self.cut: list[str] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._until_s - self._now())

    def allows(self, what: str, needs_s: float = 0.0) -> bool:
        """Whether there is time for it; what there is none for is noted as cut."""
        if self.left_s > needs_s:
            return True
        self.cut.append(what)
        return False

    def rounds(self, what: str, n: int) -> Iterator[int]:
        """Numbers of rounds: the first in any case, another while there is time for one like the last."""
        took_s = 0.0
        for at in range(n):
            start_s = self._now()
            if at and not self.allows(f"{what}: {at} of {n} rounds", took_s):
                return
            yield at
            took_s = self._now() - start_s

    def cut_row(self, what: str) -> Row:
        """The row of something that there was no time for."""
        return not_measured(what, "cut, the section's time was over; --minutes gives it more")


@contextmanager
def ended_after(limit_s: float) -> Iterator[None]:
    """End what is inside after so many seconds, also where it waits for something that never comes.

    Raises:
        SectionOverError: they are over.
    """

    def end(signum: int, _: object) -> None:
        raise SectionOverError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


_OPERATIONS = ["benchmarks.pipeline.lapack:OPERATIONS", "benchmarks.gpu.traced:OPERATIONS"]


class Servers:
    """A pipeline server on the GPU and one on the CPU, each started when it is first asked for.

    Args:
        folder: for their logs, sockets and configurations.
        machine: the GPU.
        start_limit_s: seconds in which one has to be ready; the first on a GPU compiles all kernels.
    """

    def __init__(self, folder: Path, machine: Machine, start_limit_s: float) -> None:
        self._folder = folder
        self._machine = machine
        self._start_limit_s = start_limit_s
        self._stack = ExitStack()
        self._started: dict[tuple[str, int], OwnServer | AccelError] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def gpu(self) -> OwnServer:
        """One worker, on the GPU."""
        return self.gpu_with(1)

    def gpu_with(self, n_workers: int) -> OwnServer:
        """So many workers, all on the GPU."""
        return self._server(self._machine.gpu.name, n_workers)

    @property
    def cpu(self) -> OwnServer:
        """As many workers as a server takes by default."""
        return self._server("cpu")

    def _server(self, device: str, workers_per_gpu: int = 1) -> OwnServer:
        """The server on that device; what could not be started once is not tried again.

        Raises:
            AccelError: it could not be started.
        """
        key = device, workers_per_gpu
        if key not in self._started:
            folder = self._folder / f"{device.replace(':', '-')}-{workers_per_gpu}"
            settings = {"devices": [device], "workers_per_gpu": workers_per_gpu}
            try:
                server = OwnServer(folder, self._start_limit_s, extra_operations=_OPERATIONS, **settings)
                self._started[key] = self._stack.enter_context(server)
            except AccelError as error:
                self._started[key] = error
        found = self._started[key]
        if isinstance(found, AccelError):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class GpuSetting:
    """How to measure.

    Attributes:
        quick: fewer sizes, once each.
        say: takes progress lines.
        budget: of the section.
        series: a section's own data for the report, by name.
    """

    quick: bool
    say: Callable[[str], None]
    machine: Machine
    servers: Servers
    budget: Budget
    series: dict[str, Any] = field(default_factory=dict)

    @property
    def n_rounds(self) -> int:
        """How often each figure is measured, where there is time."""
        return 1 if self.quick else 3

    def begins(self, what: str, needs_s: float = 0.0) -> bool:
        """Whether there is time to measure this; says what is measured if so."""
        is_begun = self.budget.allows(what, needs_s)
        if is_begun:
            self.say(what)
        return is_begun
