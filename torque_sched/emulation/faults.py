"""Faults to order: a command that is slow, hangs, prints half, exits wrongly, or finds no server.

The orders lie in ``faults.json`` in the state folder, so that a test or a person with an editor can
change them while the server runs::

    [{"command": "qstat", "kind": "slow", "seconds": 3, "times": 2},
     {"command": "*", "kind": "gone"}]

``command`` is a name or ``*``; ``match`` (optional) must occur in the arguments; ``skip`` lets the
first calls pass; ``times`` ends it after so many; ``performs`` says that the command takes effect
although the client sees the fault.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

from torque_sched.errors import ConfigError

__all__ = ["KINDS", "Fault", "Faults"]

KINDS = ("slow", "hang", "partial", "exit", "gone")


@dataclass(frozen=True, slots=True)
class Fault:
    """One order."""

    command: str
    kind: str
    seconds: float = 5.0
    fraction: float = 0.5
    """Of the output, for ``partial``."""
    code: int = 1
    text: str = ""
    """Standard error, for ``exit``."""
    times: int = 0
    """0: for ever."""
    skip: int = 0
    match: str = ""
    performs: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"fault kind '{self.kind}'", cure=f"known are {', '.join(KINDS)}")


class Faults:
    """Reads the orders again whenever their file changes, and picks the one that a call meets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] = (0, 0)
        self._faults: tuple[Fault, ...] = ()
        self._seen: Counter[int] = Counter()

    def pick(self, command: str, arguments: tuple[str, ...]) -> Fault | None:
        """The first order that this call meets; counts the call.

        Raises:
            ConfigError: the file is unreadable or names an unknown key.
        """
        self._reread()
        for number, fault in enumerate(self._faults):
            if fault.command not in ("*", command) or fault.match not in " ".join(arguments):
                continue
            seen = self._seen[number]
            self._seen[number] += 1
            if seen >= fault.skip and (not fault.times or seen < fault.skip + fault.times):
                return fault
        return None

    def _reread(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._faults, self._stamp = (), (0, 0)
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return
        known = {entry.name for entry in fields(Fault)}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            for each in found:
                unknown = each.keys() - known
                if unknown:
                    raise ConfigError(
                        f"{self._path}: unknown key {sorted(unknown)}", cure=f"known are {sorted(known)}"
                    )
            self._faults = tuple(Fault(**each) for each in found)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._path}: {error}", cure="write a JSON list of orders") from error
        self._stamp = stamp
        self._seen.clear()
