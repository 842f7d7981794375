"""Section `factorizations`: LU, QR and Cholesky of 1 to 50 MB beside cuSOLVER called bare.

Bare is the rate of the routine on matrices that lie on the device, and with copies from and to pinned memory
one after another. Ours is the rate in the worker, one request at a time (copies and checks of the input
included), and at a client with several requests under way, over shared memory and over TCP. Echo says how
many there would be if they only travelled: that bounds ours, however fast the routine is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median

from benchmarks.gpu.bare import Bare
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.lapack import flops, matrix, order_of
from benchmarks.pipeline.setting import calls, replies
from benchmarks.pipeline.stages import MB
from benchmarks.result import Row, measured, ratio
from yarn_accel.client.calls import Tensor
from yarn_accel.client.client import Client

OPERATIONS = ("lu", "qr", "cholesky")
GOAL = ">= 0.9"
_WINDOW = 6
_ROUND_S = 0.25
_LEAST_N, _MOST_N = 4, 24
_BARE_DEVICE, _BARE_COPIES, _PRODUCT = "cuSOLVER bare, on the device", "cuSOLVER bare, with copies", "gemm"
_WORKER, _MEMORY, _TCP = "in the worker, one at a time", "pipeline", "pipeline, TCP"
_ECHO = "as many by echo"


def sizes_mb(quick: bool) -> tuple[int, ...]:
    """Megabytes of a matrix; 1 is below the order up to which requests are computed together, 4 above."""
    return (1, 4) if quick else (1, 4, 16, 50)


def params_of(operation: str) -> dict[str, str]:
    """LAPACK's own form of the factors."""
    return {"form": "packed"} if operation == "qr" else {}


@dataclass
class _Cell:
    """One factorization of one size, and its rates by round and way, in GFLOP/s."""

    operation: str
    size_mb: int
    rates: dict[str, list[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operation}, {self.size_mb} MB"

    @property
    def n(self) -> int:
        """The order."""
        return order_of(self.size_mb * MB)

    @property
    def gflop(self) -> float:
        """The work of one."""
        return flops(self.operation, self.n) / 1e9

    def note(self, way: str, gflop: float, took_s: float) -> None:
        """One more measurement."""
        self.rates.setdefault(way, []).append(gflop / took_s)


def factorization_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """For each factorization and size the rates and what they are of one another."""
    took_s: dict[str, tuple[float, float]] = {}
    for size_mb in sizes_mb(setting.quick):
        for operation in OPERATIONS:
            cell = _Cell(operation, size_mb)
            gflop, seconds = took_s.get(operation, (1.0, 0.0))
            # The larger ones take longer for their bytes and for their work; the latter is the more.
            if not setting.budget.allows(str(cell), seconds * cell.gflop / gflop):
                yield [setting.budget.cut_row(str(cell))]
                continue
            setting.say(str(cell))
            start_s = time.monotonic()
            n_times = _measure(setting, cell)
            took_s[operation] = cell.gflop, time.monotonic() - start_s
            yield _rows(cell, n_times)


def _measure(setting: GpuSetting, cell: _Cell) -> int:
    pristine = matrix(cell.operation, cell.n)
    bare = Bare(cell.operation, pristine.T[None])
    bare.on_device_s(1)  # loads the routine
    alone_s = bare.with_copies_s(2)
    n_times = max(_LEAST_N, min(_MOST_N, int(_ROUND_S / alone_s)))
    tensor = Tensor.of(pristine)
    with setting.servers.gpu.client("memory") as memory, setting.servers.gpu.client("tcp") as tcp:
        for client in (memory, tcp):
            _client_s(client, cell.operation, tensor, 2 * _WINDOW)  # touches the connection's memory
        for _ in setting.budget.rounds(str(cell), setting.n_rounds):
            cell.note(_BARE_DEVICE, cell.gflop, bare.on_device_s(n_times))
            cell.note(_BARE_COPIES, cell.gflop, bare.with_copies_s(n_times))
            cell.note(_PRODUCT, 2e-9 * cell.n**3, bare.product_s(_LEAST_N))
            cell.note(_WORKER, cell.gflop, _worker_s(memory, cell.operation, tensor, n_times))
            cell.note(_MEMORY, cell.gflop, _client_s(memory, cell.operation, tensor, n_times))
            cell.note(_TCP, cell.gflop, _client_s(tcp, cell.operation, tensor, n_times))
            cell.note(_ECHO, cell.gflop, _client_s(memory, "echo", tensor, n_times))
    return n_times


def _worker_s(client: Client, operation: str, tensor: Tensor, n: int) -> float:
    found = replies(client, calls(operation, params_of(operation), repeat(tensor, n)), 1)
    return median([reply.seconds["compute"] for reply in found])


def _client_s(client: Client, operation: str, tensor: Tensor, n: int) -> float:
    """Wall seconds for each of `n` requests."""
    start_s = time.perf_counter()
    for _ in replies(client, calls(operation, params_of(operation), repeat(tensor, n)), _WINDOW):
        pass
    return (time.perf_counter() - start_s) / n


def _rows(cell: _Cell, n_times: int) -> list[Row]:
    rates = cell.rates
    share = median(rates[_BARE_DEVICE]) / median(rates[_PRODUCT])
    notes = {
        _BARE_DEVICE: f"{n_times} a round; {share:.2f} of gemm's rate",
        _MEMORY: f"window {_WINDOW}, shared memory",
        _TCP: f"window {_WINDOW}, loopback",
        _ECHO: f"window {_WINDOW}, shared memory; the matrices travel, nothing is computed",
    }
    rows = [
        measured(f"{cell}: {way}", found, "GFLOP/s", note=notes.get(way, "")) for way, found in rates.items()
    ]
    ours = rates[_MEMORY]
    return [
        *rows,
        ratio(f"{cell}: pipeline / bare on the device", ours, rates[_BARE_DEVICE], "share", goal=GOAL),
        ratio(f"{cell}: pipeline / bare with copies", ours, rates[_BARE_COPIES], "share", goal=GOAL),
        ratio(f"{cell}: worker / bare with copies", rates[_WORKER], rates[_BARE_COPIES], "share"),
    ]
