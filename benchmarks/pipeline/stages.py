"""How well the three stages overlap: N times the slowest stage alone, divided by the wall time.

One CPU worker with one BLAS thread. "Compute alone" is the very same operation run in a process without a
server, on one core, before and after every run of the server; "read alone" and "write alone" are half of a
bare Unix socket's round trip of the payload.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import repeat
from statistics import median
from typing import Any

from benchmarks.pipeline.fleet import Cell, Child, Fleet, one_thread
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.peers.candidate import Route
from benchmarks.pipeline.setting import Setting, calls, replies
from benchmarks.result import Row, measured
from yarn_accel.client.calls import Tensor

__all__ = ["stage_rows", "wall_s"]

MB = 1_000_000
WINDOW = 4
_SMALL_MB, _SMALL_WINDOW = 5, 8
"""Up to this size the server makes batches of several requests, so that 4 are one batch and a rest."""
_GOALS = {1: 0.85, 2: 0.92, 4: 0.95, 8: 0.95}
_STEP_LOWER = {0.95: 0.92, 0.92: 0.85, 0.85: 0.80}
"""Cholesky has half the work of LU for the same bytes, so it may be one step lower."""
_LEAST_S = 1.0
_LEAST_N = 6


def wall_s(
    server: OwnServer, operation: str, params: Mapping[str, Any], tensor: Tensor, n: int, window: int = WINDOW
) -> float:
    """Wall seconds of `n` equal requests by the carrier the client chooses.

    As many as are under way go before and do not count: a new connection's memory is touched for the first
    time by them, which costs as much as three copies and happens once.
    """
    with server.client() as client:
        warming = calls(operation, {**params, "times": 1}, repeat(tensor, 2 * window))
        for _ in replies(client, warming, window):
            pass
        start_s = time.perf_counter()
        for _ in replies(client, calls(operation, params, repeat(tensor, n)), window):
            pass
        return time.perf_counter() - start_s


def _cells(setting: Setting) -> Iterator[tuple[str, int, int]]:
    """Operation, megabytes, intensity; the largest only as often as time allows."""
    sizes = (1, 10) if setting.quick else (1, 5, 10, 20, 50)
    for operation in ("lu",) if setting.quick else ("lu", "qr", "cholesky"):
        for size_mb in sizes:
            for times in (1, 4) if setting.quick else (1, 2, 4, 8):
                if size_mb * times <= 200 and not (operation != "lu" and size_mb == 50 and times == 8):
                    yield operation, size_mb, times


def _transfer_s(setting: Setting) -> dict[int, float]:
    """Seconds of one direction alone, by megabytes."""
    found = {}
    with Fleet(setting.folder) as fleet:
        runner = fleet.runner("bare")
        for size_mb in sorted({size_mb for _, size_mb, _ in _cells(setting)}):
            cell = Cell(size_mb * MB, 1, 1)
            runner.prepare("bare", cell, Route("unix", "none"))
            found[size_mb] = runner.go("bare", cell, 0.3).median_s / 2
            runner.end()
    return found


def stage_rows(setting: Setting) -> list[Row]:
    """A row for each operation, size and intensity."""
    transfer_s = _transfer_s(setting)
    rows = []
    lapack = Child("bench", "lapack", setting.folder / "lapack.log", one_thread())
    try:
        with setting.server("stages", workers=1) as server:
            for operation, size_mb, times in _cells(setting):
                setting.report(f"stages, {operation}, {size_mb} MB, c = {times}")
                rows.append(
                    _one(server, lapack, (operation, size_mb, times), transfer_s[size_mb], setting.quick)
                )
    finally:
        lapack.stop()
    return rows


def _one(server: OwnServer, lapack: Child, cell: tuple[str, int, int], transfer_s: float, quick: bool) -> Row:
    operation, size_mb, times = cell
    params: dict[str, Any] = {"times": times, **({"form": "packed"} if operation == "qr" else {})}
    n = order_of(size_mb * MB)
    tensor = Tensor.of(matrix(operation, n))
    order = {"act": "alone", "operation": f"repeat_{operation}", "params": params, "n": n, "n_times": 1}
    first_s = float(lapack.ask(order)["seconds"][0])
    n_requests = max(_LEAST_N, int((_LEAST_S / 2 if quick else _LEAST_S) / first_s))
    n_rounds = 1 if quick else 3 if first_s < 0.5 else 2
    window = _SMALL_WINDOW if size_mb <= _SMALL_MB else WINDOW
    order["n_times"] = max(2, min(20, int(0.4 / first_s)))
    alone_s = list(lapack.ask(order)["seconds"])
    walls_s = []
    for _ in range(n_rounds):
        walls_s.append(wall_s(server, f"repeat_{operation}", params, tensor, n_requests, window))
        alone_s += lapack.ask(order)["seconds"]
    slowest_s = max(median(alone_s), transfer_s)
    goal = _GOALS[times] if operation != "cholesky" else _STEP_LOWER[_GOALS[times]]
    alone = f"compute {median(alone_s) * 1e3:.3g}, read {transfer_s * 1e3:.2g} ms"
    return measured(
        f"efficiency, {operation}, {size_mb} MB, c = {times}",
        [n_requests * slowest_s / each for each in walls_s],
        "share",
        goal=f">= {goal}",
        note=f"N = {n_requests}, window {window}; alone: {alone}",
    )
