"""A cluster for the tests of how a benchmark records its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yarn_accel.errors import JobError


class Pretended:
    """Notes which runs it was asked for; the run number ``break_at`` fails."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.started: list[tuple[object, ...]] = []
        self.n_measured = 0
        self.break_at = -1

    @contextmanager
    def up(self, *asked: object) -> Iterator[Pretended]:
        """In place of what starts the cluster."""
        self.started.append(asked)
        yield self

    def note(self, key: object) -> None:
        if len(self.ran) == self.break_at:
            raise JobError("broken")
        self.ran.append(key)
