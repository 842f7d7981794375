"""How fast a device is: small problems measured while a worker has nothing else to do.

A piece takes about 50 ms at most and runs beside the worker's loop, so real work does not wait for it.  What
was found is kept in a file, by host, device and versions of the libraries, and reported again by the next
server at once.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.local_filesystem import write_atomic
from yarn_accel.pipeline.workers.measuring import PIECE_S, PROBLEMS, Problem

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.workers.launching import Device

logger = logging.getLogger(__name__)

_GROWTH = 8
"""Twice the order of a matrix is eight times the work."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A finding of a calibration: the best of several runs of one problem on one device."""

    device: str
    operation: str
    flops: int
    n_bytes: int
    seconds: float


class Calibration:
    """The measurements of devices, those still to be made, and the file that keeps them.

    Args:
        config: names the file.
        on_measured: called with everything that is found.
        call_soon: has a function called by the thread that all of this belongs to.
        run_aside: has a function called by another thread: the file may lie on a slow disk.
    """

    def __init__(
        self,
        config: PipelineConfig,
        on_measured: Callable[[Measured], None],
        call_soon: Callable[[Callable[[], None]], None],
        run_aside: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._run_aside = run_aside or _run_aside
        self._path = Path(config.calibration_file) if config.calibration_file else _default_path()
        self._on_measured = on_measured
        self._call_soon = call_soon
        self._left: dict[str, list[Problem]] = {}
        self._found: dict[str, list[Measured]] = {}
        self._keys: dict[str, str] = {}
        self._under_way: dict[int, tuple[str, Problem]] = {}

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be measured on the devices seen so far."""
        return not any(self._left.values()) and not self._under_way

    def welcome(self, device: Device, versions: Mapping[str, str]) -> None:
        """A worker started: report what is known about its device, or plan to find out."""
        key = "|".join((platform.node(), device.name, *(versions[name] for name in sorted(versions))))
        if self._keys.get(device.name) == key:
            return
        self._keys[device.name] = key

        def load() -> None:
            rows = _load(self._path).get(key, [])
            self._call_soon(lambda: self._loaded(device.name, rows))

        self._run_aside(load)

    def _loaded(self, device: str, rows: list[list[Any]]) -> None:
        known = [Measured(device, *row) for row in rows]
        self._found[device] = known
        self._left[device] = [] if known else list(PROBLEMS)
        for measured in known:
            self._on_measured(measured)

    def next_problem(self, worker: int, device: Device) -> Problem | None:
        """The problem that an idle worker should measure now; None: none."""
        left = self._left.get(device.name)
        if not left or worker in self._under_way:
            return None
        problem = left.pop(0)
        self._under_way[worker] = (device.name, problem)
        return problem

    def learn(self, worker: int, found: Mapping[str, Any] | None) -> None:
        """A worker has measured what it was given; None: it could not; empty: it was disturbed."""
        device, problem = self._under_way.pop(worker, ("", ("", 0)))
        if not device:
            return
        if found is not None and not found:
            self._left[device].insert(0, problem)
            return
        seconds = float(found["seconds"]) if found else float("inf")
        if seconds * _GROWTH > PIECE_S:
            self._left[device] = [other for other in self._left[device] if other[0] != problem[0]]
        measured = None
        if found:
            measured = Measured(device, problem[0], int(found["flops"]), int(found["n_bytes"]), seconds)
            self._found[device].append(measured)
        if not self._left[device] and all(name != device for name, _ in self._under_way.values()):
            key, rows = self._keys[device], list(self._found[device])
            self._run_aside(lambda: _save(self._path, key, rows))
        if measured is not None:
            self._on_measured(measured)

    def forget(self, worker: int) -> None:
        """A worker is gone; what it was measuring is left out."""
        self._under_way.pop(worker, None)


def _run_aside(task: Callable[[], None]) -> None:
    threading.Thread(target=task, name="calibration", daemon=True).start()


def _default_path() -> Path | None:
    """In the user's cache; None: a user without a home keeps nothing."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(cache) / "cluster-accel" / "calibration.json"


def _load(path: Path | None) -> dict[str, list[list[Any]]]:
    """The content of the file; empty when it is not there or not as it should be."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(key): [[str(row[0]), int(row[1]), int(row[2]), float(row[3])] for row in rows]
            for key, rows in content.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, IndexError, KeyError):
        return {}


def _save(path: Path | None, key: str, found: list[Measured]) -> None:
    if path is None:
        return
    rows = [[one.operation, one.flops, one.n_bytes, one.seconds] for one in found]
    content = {**_load(path), key: rows}
    try:
        write_atomic(path, json.dumps(content, indent=1))
    except OSError as error:
        logger.warning("the calibration is not kept: %s", error)
