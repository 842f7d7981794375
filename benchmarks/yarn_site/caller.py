"""A mapper on a node that calls its server without end, so that every moment without one is seen."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

__all__ = ["Caller"]

_END_S = 30.0


class Caller:
    """Runs ``caller_program``; use it with ``with``, or `close` it.

    Args:
        argv: the command that runs it on its node.

    Attributes:
        answers: what it printed so far, one mapping each: ``at`` (Unix seconds), ``node`` and ``port`` of the
            server, ``failed`` (how many calls failed since the answer before).
        errors: lines of its standard error, each begins with Unix seconds.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.answers: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=_read, args=(self._process.stdout, self._answer), daemon=True),
            threading.Thread(target=_read, args=(self._process.stderr, self.errors.append), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _answer(self, line: str) -> None:
        self.answers.append(json.loads(line))

    def after(self, at: float, **facts: Any) -> dict[str, Any] | None:
        """The first answer after a time (Unix seconds) with these facts; None: there is none yet."""
        late = (each for each in self.answers if each["at"] > at)
        return next((each for each in late if all(each[key] == facts[key] for key in facts)), None)

    def failures(self) -> list[Any]:
        """Some answers before which calls failed, and why these did; empty when none failed."""
        # Before its first answer the agent of its node may just be starting.
        found: list[Any] = [each for each in self.answers[1:] if each["failed"]]
        late = [line for line in self.errors if float(line.split()[0]) > self.answers[0]["at"]]
        return [*found[:3], *late[:5]] if found else []

    def longest_gap_s(self, since: float) -> float:
        """The longest time between two answers of which the later came after a time (Unix seconds)."""
        late = [each["at"] for each in self.answers if each["at"] > since]
        before = [each["at"] for each in self.answers if each["at"] <= since]
        times = before[-1:] + late
        return max((later - at for at, later in itertools.pairwise(times)), default=0.0)

    def close(self) -> None:
        """Tell it to end, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(stream: Iterable[str], take: Callable[[str], None]) -> None:
    for line in stream:
        take(line)
