"""Faults to order: a command or request that is slow, hangs, is cut, fails, or finds no server.

The orders lie in ``faults.json`` in the state folder, so that a test or a person with an editor can
change them while the server runs::

    [{"command": "qstat", "kind": "slow", "seconds": 3, "times": 2},
     {"command": "*", "kind": "gone"}]

``command`` is a name or ``*``. A request of the batch protocol has its own name and that of the command which
sends it: ``StatusJob`` and ``qstat``, ``AsyncRunJob`` and ``qrun``; ``trqauthd`` is the line to it. ``match``
(optional) must occur in the arguments; ``skip`` lets the first calls pass; ``times`` ends it after so many;
``performs`` says that the command takes effect although the client sees the fault.

A request knows two faults more: ``cut`` closes its connection ``after`` so many bytes of request and reply
together (a request that is whole by then takes effect), ``twice`` sends its reply two times. ``exit`` is a
refusal by the number in ``code``, or where that is no error number of Torque's, by that of ``text``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

from torque_sched.errors import ConfigError

KINDS = ("slow", "hang", "partial", "exit", "gone", "cut", "twice")
_NUMBERS = {
    "Unknown Job Id": 15001, "Cannot set attribute": 15003, "Invalid request": 15004,
    "Unauthorized Request": 15007, "Request invalid for state": 15018, "Resource temporarily": 15046,
    "Unknown node-attribute": 15065, "Unknown node": 15064,
}  # fmt: skip
_LEAST_NUMBER, _INTERNAL = 15000, 15013


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
    after: int = 0
    """Bytes of request and reply, for ``cut``."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"fault kind '{self.kind}'", cure=f"known are {', '.join(KINDS)}")

    @property
    def number(self) -> int:
        """The error number of a request that is refused."""
        if self.code >= _LEAST_NUMBER:
            return self.code
        return next((number for text, number in _NUMBERS.items() if text in self.text), _INTERNAL)

    def cut(self, n_request: int, reply: bytes) -> bytes:
        """What of a reply is sent, to a request of so many bytes."""
        if self.kind == "cut":
            return reply[: max(0, self.after - n_request)]
        if self.kind == "partial":
            return reply[: int(len(reply) * self.fraction)]
        return reply


class Faults:
    """Reads the orders again whenever their file changes, and picks the one that a call meets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = str(path)
        self._stamp: tuple[int, int] = (0, 0)
        self._faults: tuple[Fault, ...] = ()
        self._seen: Counter[int] = Counter()

    def pick(self, names: tuple[str, ...], arguments: tuple[str, ...]) -> Fault | None:
        """The first order that a call or request of these names meets; counts the call.

        Raises:
            ConfigError: the file is unreadable or names an unknown key.
        """
        self._reread()
        for number, fault in enumerate(self._faults):
            if fault.command not in ("*", *names) or fault.match not in " ".join(arguments):
                continue
            seen = self._seen[number]
            self._seen[number] += 1
            if seen >= fault.skip and (not fault.times or seen < fault.skip + fault.times):
                return fault
        return None

    def _reread(self) -> None:
        try:
            status = os.stat(self._name)  # noqa: PTH116 -- for each request, and a fifth of the time
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
