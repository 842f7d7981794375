"""What a report that is killed leaves for the next one: a file that is old or new, and a lock.

The lock is held by the report and by the benchmark that it runs: whoever goes on waits until the benchmark
of a killed report has taken down what it started.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from yarn_accel.errors import StartupError
from yarn_accel.local_filesystem import write_atomic

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an experiment ended.

    Attributes:
        wall_s: what its process took, with those before it that were killed.
        why: it failed, or could not be run; empty: it is complete.
    """

    wall_s: float
    why: str = ""


@dataclass
class State:
    """What was done so far, in a file.

    Attributes:
        path: of the file.
        running: the experiment that runs; what a killed report leaves here is begun again.
    """

    path: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    running: str = ""

    @classmethod
    def read(cls, path: Path) -> State:
        """What is there; nothing where the file is absent or no state."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            outcomes = {
                str(name): Outcome(float(each["wall_s"]), str(each["why"]))
                for name, each in document["outcomes"].items()
            }
            return cls(path, outcomes, str(document["running"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path)

    def begin(self, name: str) -> None:
        """This experiment runs now."""
        self.running = name
        self._write()

    def end(self, name: str, outcome: Outcome) -> None:
        """It ended so."""
        self.running = ""
        self.outcomes[name] = outcome
        self._write()

    def _write(self) -> None:
        outcomes = {name: asdict(each) for name, each in self.outcomes.items()}
        write_atomic(self.path, json.dumps({"running": self.running, "outcomes": outcomes}, indent=1) + "\n")


@contextmanager
def locked(path: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock of a folder of reports; gives the descriptor, for a child to hold it, too.

    Raises:
        StartupError: another one holds it for longer than `wait_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until_s = time.monotonic() + wait_s
        while not _is_taken(descriptor):
            if time.monotonic() > until_s:
                raise StartupError(
                    f"another report writes to {path.parent}",
                    cure="wait for it, end it, or give another folder by --out",
                )
            time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
