"""What every section is given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.machine import Machine
from benchmarks.pipeline.own_server import OwnServer
from yarn_accel.errors import AccelError

_OPERATIONS = ["benchmarks.pipeline.operations:OPERATIONS", "benchmarks.gpu.traced:OPERATIONS"]


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
