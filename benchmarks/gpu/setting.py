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

__all__ = ["GpuSetting", "Servers"]

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
        self._started: dict[str, OwnServer | AccelError] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def gpu(self) -> OwnServer:
        """One worker, on the GPU."""
        return self._server(self._machine.gpu.name)

    @property
    def cpu(self) -> OwnServer:
        """As many workers as a server takes by default."""
        return self._server("cpu")

    def _server(self, device: str) -> OwnServer:
        """The server on that device; what could not be started once is not tried again.

        Raises:
            AccelError: it could not be started.
        """
        if device not in self._started:
            folder = self._folder / device.replace(":", "-")
            try:
                server = OwnServer(
                    folder, self._start_limit_s, devices=[device], extra_operations=_OPERATIONS
                )
                self._started[device] = self._stack.enter_context(server)
            except AccelError as error:
                self._started[device] = error
        found = self._started[device]
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
