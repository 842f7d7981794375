"""How well the three stages overlap: N times the slowest stage alone, divided by the wall time.

One CPU worker with one BLAS thread. "Compute alone" is the very same operation run in a process without a
server, on one core, before and after every run of the server; "read alone" and "write alone" are half of a
bare Unix socket's round trip of the payload.

All of it has to be done in 5 minutes: where one request takes long there are fewer of them and fewer rounds
(each row says how many), and QR and Cholesky of 20 MB and more are not repeated 8 times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, repeat
from statistics import median
from typing import Any

from benchmarks.pipeline.fleet import Cell, Child, Fleet, one_thread
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.peers.candidate import Route
from benchmarks.pipeline.setting import Setting, calls, replies
from benchmarks.result import Row, measured
from yarn_accel.client.calls import Tensor
from yarn_accel.client.client import Client

MB = 1_000_000
WINDOW = 4
_SMALL_MB, _SMALL_WINDOW = 5, 8
"""Up to this size the server makes batches of several requests, so that 4 are one batch and a rest."""
_GOALS = {1: 0.85, 2: 0.92, 4: 0.95, 8: 0.95}
_STEP_LOWER = {0.95: 0.92, 0.92: 0.85, 0.85: 0.80}
"""Cholesky has half the work of LU for the same bytes, so it may be one step lower."""
_WALL_S, _ALONE_S = 0.6, 0.25
"""How long one round shall take with the server and alone."""
_LEAST_N, _MOST_ALONE = 6, 20
_SLOW_S = 0.3
_SLOW_N, _SLOW_ROUNDS, _ROUNDS = 4, 2, 3
"""A request that takes longer than `_SLOW_S`: fewer of them, and fewer rounds than the others'."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """One figure: which factorization, of how much, how often for one request."""

    operation: str
    size_mb: int
    times: int

    @property
    def params(self) -> dict[str, Any]:
        """The operation's."""
        return {"times": self.times, **({"form": "packed"} if self.operation == "qr" else {})}

    @property
    def window(self) -> int:
        """Requests under way."""
        return _SMALL_WINDOW if self.size_mb <= _SMALL_MB else WINDOW

    @property
    def goal(self) -> float:
        """The least share."""
        return _STEP_LOWER[_GOALS[self.times]] if self.operation == "cholesky" else _GOALS[self.times]


def warm(client: Client, operation: str, params: Mapping[str, Any], tensor: Tensor, window: int) -> None:
    """Requests that do not count: twice as many as will be under way.

    A new connection's memory is touched for the first time by them, which costs as much as three copies and
    happens once.
    """
    for _ in replies(client, calls(operation, {**params, "times": 1}, repeat(tensor, 2 * window)), window):
        pass


def wall_s(
    client: Client, operation: str, params: Mapping[str, Any], tensor: Tensor, n: int, window: int = WINDOW
) -> float:
    """Wall seconds of `n` equal requests by a client that is `warm`."""
    start_s = time.perf_counter()
    for _ in replies(client, calls(operation, params, repeat(tensor, n)), window):
        pass
    return time.perf_counter() - start_s


def _cells(setting: Setting) -> Iterator[_Cell]:
    sizes = (1, 10) if setting.quick else (1, 5, 10, 20, 50)
    for operation in ("lu",) if setting.quick else ("lu", "qr", "cholesky"):
        for size_mb in sizes:
            for times in (1, 4) if setting.quick else (1, 2, 4, 8):
                if operation == "lu" or size_mb < 20 or times < 8:
                    yield _Cell(operation, size_mb, times)


def _transfer_s(setting: Setting) -> dict[int, float]:
    """Seconds of one direction alone, by megabytes."""
    found = {}
    with Fleet(setting.folder) as fleet:
        runner = fleet.runner("bare")
        for size_mb in sorted({cell.size_mb for cell in _cells(setting)}):
            cell = Cell(size_mb * MB, 1, 1)
            runner.prepare("bare", cell, Route("unix", "none"))
            found[size_mb] = runner.go("bare", cell, 0.3).median_s / 2
            runner.end()
    return found


def stage_rows(setting: Setting) -> Iterator[list[Row]]:
    """A row for each operation, size and intensity."""
    transfer_s = _transfer_s(setting)
    lapack = Child("bench", "lapack", setting.folder / "lapack.log", one_thread())
    try:
        with setting.server("stages", workers=1) as server:
            for (operation, size_mb), cells in groupby(
                _cells(setting), lambda cell: (cell.operation, cell.size_mb)
            ):
                tensor = Tensor.of(matrix(operation, order_of(size_mb * MB)))
                with server.client() as client:
                    for at, cell in enumerate(cells):
                        setting.report(f"stages, {operation}, {size_mb} MB, c = {cell.times}")
                        if at == 0:
                            warm(client, f"repeat_{operation}", cell.params, tensor, cell.window)
                        yield [_one(client, lapack, cell, tensor, transfer_s[size_mb])]
    finally:
        lapack.stop()


def _one(client: Client, lapack: Child, cell: _Cell, tensor: Tensor, transfer_s: float) -> Row:
    name = f"repeat_{cell.operation}"
    n = order_of(cell.size_mb * MB)
    order = {"act": "alone", "operation": name, "params": cell.params, "n": n, "n_times": 1}
    alone_s = list(lapack.ask(order)["seconds"])
    is_slow = alone_s[0] > _SLOW_S
    n_requests = max(_SLOW_N if is_slow else _LEAST_N, int(_WALL_S / alone_s[0]))
    order["n_times"] = max(1, min(_MOST_ALONE, int(_ALONE_S / alone_s[0])))
    walls_s = []
    for _ in range(_SLOW_ROUNDS if is_slow else _ROUNDS):
        walls_s.append(wall_s(client, name, cell.params, tensor, n_requests, cell.window))
        alone_s += lapack.ask(order)["seconds"]
    slowest_s = max(median(alone_s), transfer_s)
    alone = f"compute {median(alone_s) * 1e3:.3g}, read {transfer_s * 1e3:.2g} ms"
    return measured(
        f"efficiency, {cell.operation}, {cell.size_mb} MB, c = {cell.times}",
        [n_requests * slowest_s / each for each in walls_s],
        "share",
        goal=f">= {cell.goal}",
        note=f"N = {n_requests}, window {cell.window}; alone: {alone}",
    )
