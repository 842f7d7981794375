"""Everything the server decides about requests: events in, commands out, nothing else touched."""

from __future__ import annotations

from typing import Any

from yarn_accel.core.requests.commands import Command
from yarn_accel.core.requests.events import Event
from yarn_accel.core.requests.settings import MachineSettings

__all__ = ["RequestMachine"]


class RequestMachine:
    """The state of all requests of one server; one caller at a time."""

    def __init__(self, settings: MachineSettings) -> None:
        self._settings = settings

    def apply(self, event: Event) -> list[Command]:
        """Take note of what happened and say what to do now, in this order."""
        raise NotImplementedError

    def unfinished(self, now_s: float) -> list[tuple[int, int, str, float]]:
        """Who waits for an answer: connection, request number, stage, seconds since it was received."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, Any]:
        """Queues, memory, tenants and workers as plain values, for `stats`."""
        raise NotImplementedError

    def explain(self, work: int) -> str:
        """One sentence about where a work is and what it waits for."""
        raise NotImplementedError

    def validate(self) -> None:
        """Check that the state agrees with itself; for tests.

        Raises:
            AssertionError: it does not.
        """
        raise NotImplementedError
