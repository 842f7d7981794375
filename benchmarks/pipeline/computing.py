"""What is computed: how well the stages overlap, and rates beside those of bare LAPACK.

Section `stages` says how well the three stages overlap: N times the slowest stage alone, divided by the wall
time. One CPU worker with one BLAS thread. "Compute alone" is the very same operation run in a process without
a server, on one core, before and after every run of the server; "read alone" and "write alone" are half of a
bare Unix socket's round trip of the payload. All of it has to be done in 5 minutes: where one request takes
long there are fewer of them and fewer rounds (each row says how many), and QR and Cholesky of 20 MB and more
are not repeated 8 times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, repeat
from statistics import median
from typing import Any

from benchmarks.pipeline.fleet import Cell, Child, Fleet, bare_lapack
from benchmarks.pipeline.lapack import flops, matrix, order_of
from benchmarks.pipeline.peers.candidate import Route
from benchmarks.pipeline.setting import OwnServer, Setting, calls, connect, replies, took_s
from benchmarks.result import Row, measured, ratio
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
    took_s(client, calls(operation, {**params, "times": 1}, repeat(tensor, 2 * window)), window)


def wall_s(
    client: Client, operation: str, params: Mapping[str, Any], tensor: Tensor, n: int, window: int = WINDOW
) -> float:
    """Wall seconds of `n` equal requests by a client that is `warm`."""
    return took_s(client, calls(operation, params, repeat(tensor, n)), window)


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
    with bare_lapack(setting.folder) as lapack, setting.server("stages", workers=1) as server:
        for (operation, size_mb), cells in groupby(
            _cells(setting), lambda cell: (cell.operation, cell.size_mb)
        ):
            tensor = Tensor.of(matrix(operation, order_of(size_mb * MB)))
            with server.client() as client:
                for at, cell in enumerate(cells):
                    setting.report(f"stages, {operation}, {size_mb} MB, c = {cell.times}")
                    if at == 0:
                        warm(client, f"repeat_{operation}", cell.params, tensor, cell.window)
                    yield [_efficiency(client, lapack, cell, tensor, transfer_s[size_mb])]


def _efficiency(client: Client, lapack: Child, cell: _Cell, tensor: Tensor, transfer_s: float) -> Row:
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


# ---- `workers`: what a second one gains, against what a second bare LAPACK process gains in the same run

_TIMES = 4
_N_REQUESTS = {10: 40, 20: 24}
"""By megabytes. Two workers may do N/2 + 1 and N/2 - 1 of N requests: with few, that alone is a tenth."""
_N_QUICK = 12
_LEAD_S = 1.0
"""Time for a process to make its matrix and to warm up."""


def worker_rows(setting: Setting) -> Iterator[list[Row]]:
    """For each size the two gains and their ratio."""
    with ExitStack() as stack:
        bare = [stack.enter_context(bare_lapack(setting.folder, at)) for at in (0, 1)]
        servers = [stack.enter_context(setting.server(f"workers-{n}", workers=n)) for n in (1, 2)]
        for size_mb in (10,) if setting.quick else (10, 20):
            yield _gains_by_workers(setting, servers, bare, size_mb)


def _gains_by_workers(
    setting: Setting, servers: Sequence[OwnServer], children: Sequence[Child], size_mb: int
) -> list[Row]:
    n = order_of(size_mb * MB)
    tensor = Tensor.of(matrix("lu", n))
    n_requests = _N_QUICK if setting.quick else _N_REQUESTS[size_mb]
    ours, bare = [], []
    for turn in range(1 if setting.quick else 3):
        setting.report(f"two workers over one, {size_mb} MB, round {turn + 1}")
        one_s, two_s = (_server_s(each, tensor, n_requests) for each in servers)
        ours.append(one_s / two_s)
        bare.append(_bare_s(children[:1], n, n_requests) / _bare_s(children, n, n_requests))
    what = f"two workers over one, LU, {size_mb} MB, c = {_TIMES}"
    return [
        measured(f"{what}: server", ours, "x"),
        measured(f"{what}: bare LAPACK, two processes", bare, "x"),
        ratio(f"{what}: server / bare", ours, bare, "share", goal=">= 0.92"),
    ]


def _server_s(server: OwnServer, tensor: Tensor, n_requests: int) -> float:
    params = {"times": _TIMES}
    with server.client() as client:
        warm(client, "repeat_lu", params, tensor, WINDOW)
        return wall_s(client, "repeat_lu", params, tensor, n_requests)


def _bare_s(children: Sequence[Child], n: int, n_requests: int) -> float:
    """Wall seconds of the same factorizations, shared by the processes."""
    start_s = time.monotonic() + _LEAD_S
    n_times = n_requests * _TIMES // len(children)
    order = {"act": "share", "operation": "lu", "n": n, "n_times": n_times, "start_s": start_s}
    for core, child in enumerate(children):
        child.tell({**order, "core": core})
    return max(float(child.hear(120.0)["end_s"]) for child in children) - start_s


# ---- `links`: what three stages gain over one where moving the bytes costs as much as computing
#
# The link is the relay of `child`, its rate chosen so that read and write together take as long as the
# computation takes alone. One stage at a time is a window of one: nothing overlaps.

_SIZE_BYTES = 8_000_000


def link_rows(setting: Setting) -> Iterator[list[Row]]:
    """One row: the ratio of the wall times."""
    n_rounds, n_requests = (1, 6) if setting.quick else (3, 16)
    n, params = order_of(_SIZE_BYTES), {"times": _TIMES}
    tensor = Tensor.of(matrix("lu", n))
    with (
        bare_lapack(setting.folder) as lapack,
        Child("relay", "relay", setting.folder / "relay.log") as relay,
        setting.server("links", workers=1) as server,
    ):
        order = {"act": "alone", "operation": "repeat_lu", "params": params, "n": n, "n_times": 5}
        compute_s = median(lapack.ask(order)["seconds"])
        rate = 2 * 8 * n * n / compute_s
        opened = relay.ask({"act": "open", "target_port": server.address["port"], "bytes_per_s": rate})
        address = {**server.address, "port": opened["port"], "unix": ""}

        def relayed_s(window: int) -> float:
            with connect(address, "tcp") as client:
                return wall_s(client, "repeat_lu", params, tensor, n_requests, window)

        gains = []
        for turn in range(n_rounds):
            setting.report(f"three stages over one, round {turn + 1} of {n_rounds}")
            gains.append(relayed_s(1) / relayed_s(WINDOW))
    note = (
        f"LU 8 MB, c = {_TIMES}: compute {compute_s * 1e3:.0f} ms; relayed at {rate / 1e6:.0f} MB/s each way"
    )
    yield [measured("three stages over one, read + write = compute", gains, "x", goal=">= 1.7", note=note)]


# ---- `kernels`: GFLOP/s through the server against LAPACK's bare call, one BLAS thread each
#
# Judged is the time the worker's operation takes (with its check of the input), one request at a time, as
# LAPACK is called bare: with more of them under way, client and server copy the next input beside it, on the
# same cores where there are only two. That is the rate a client sees, reported beside it with the worker's
# own rate then. LAPACK gets an array of numpy's own, ours lies in shared memory: huge pages, which only the
# former may have, made at most 1 or 2 % of CPU time here, either way.

_KERNEL_WINDOW = 2


def kernel_rows(setting: Setting) -> Iterator[list[Row]]:
    """For each factorization and order: both rates, their ratio, and the rate at the client."""
    with bare_lapack(setting.folder) as lapack, setting.server("kernels", workers=1) as server:
        for n in (1000,) if setting.quick else (1000, 2000, 4000):
            for operation in ("lu",) if setting.quick else ("lu", "qr", "cholesky"):
                setting.report(f"kernels, {operation}, n = {n}")
                yield _kernel(server, lapack, operation, n, n_rounds=2 if setting.quick or n > 2000 else 3)


def _kernel(server: OwnServer, lapack: Child, operation: str, n: int, n_rounds: int) -> list[Row]:
    work_gflop = flops(operation, n) / 1e9
    params = {"form": "packed"} if operation == "qr" else {}
    tensor = Tensor.of(matrix(operation, n))
    n_times = max(3, min(24, int(30 / work_gflop)))
    bare, ours, busy, seen = [], [], [], []
    with server.client() as client:

        def rate(n_requests: int, window: int) -> float:
            answers = replies(client, calls(operation, params, repeat(tensor, n_requests)), window)
            return work_gflop / median([reply.seconds["compute"] for reply in answers])

        rate(_KERNEL_WINDOW + 1, _KERNEL_WINDOW)  # touches the memory of the connection for the first time
        for _ in range(n_rounds):
            order = {"act": "routine", "operation": operation, "n": n, "n_times": n_times}
            bare.append(work_gflop / median(lapack.ask(order)["seconds"]))
            ours.append(rate(n_times, 1))
            start_s = time.perf_counter()
            busy.append(rate(n_times, _KERNEL_WINDOW))
            seen.append(work_gflop * n_times / (time.perf_counter() - start_s))
    what = f"kernel, {operation}, n = {n}"
    return [
        measured(f"{what}: bare LAPACK", bare, "GFLOP/s"),
        measured(f"{what}: in the worker", ours, "GFLOP/s"),
        measured(f"{what}: in the worker, window {_KERNEL_WINDOW}", busy, "GFLOP/s"),
        measured(
            f"{what}: at the client", seen, "GFLOP/s", note=f"{n_times} requests, window {_KERNEL_WINDOW}"
        ),
        ratio(f"{what}: worker / bare", ours, bare, "share", goal=">= 0.95"),
    ]


# ---- `small`: many small matrices: one frame each, batched by the server, and packed by the client as well

_SMALL_ORDER = 32
_IN_FLIGHT = 16
_PACK = 64
_MATRICES_UNDER_WAY = 64


def small_rows(setting: Setting) -> Iterator[list[Row]]:
    """Rates, and the gain at an equal window: of requests, and more strictly of matrices."""
    n_rounds, n_matrices = (2, 2000) if setting.quick else (5, 6000)
    rates: dict[str, list[float]] = {}
    with (
        setting.server("single", workers=1, max_batch_size=1) as single,
        setting.server("batching", workers=1) as batching,
    ):
        ways = {
            f"one frame each, window {_IN_FLIGHT}": (single, _IN_FLIGHT, 1),
            f"server batching, window {_IN_FLIGHT}": (batching, _IN_FLIGHT, 1),
            f"packed by {_PACK} and batched, window {_IN_FLIGHT}": (batching, _IN_FLIGHT, _PACK),
            f"one frame each, {_MATRICES_UNDER_WAY} under way": (single, _MATRICES_UNDER_WAY, 1),
            f"packed by 16 and batched, {_MATRICES_UNDER_WAY} under way": (
                batching,
                _MATRICES_UNDER_WAY // 16,
                16,
            ),
        }
        for turn in range(n_rounds):
            setting.report(f"n = {_SMALL_ORDER} matrices, round {turn + 1} of {n_rounds}")
            for name, (server, window, pack) in ways.items():
                rates.setdefault(name, []).append(_rate(server, window, pack, n_matrices))
    what = f"LU n = {_SMALL_ORDER}"
    yield [measured(f"{what}: {name}", values, "matrices/s") for name, values in rates.items()]
    one_each, batched, packed, single_of_64, packed_of_64 = rates.values()
    yield [
        _gain(f"{what}: server batching alone over one frame each", batched, one_each, ""),
        _gain(f"{what}: packing + batching over one frame each", packed, one_each, ">= 4"),
        _gain(f"{what}: the same, equal matrices under way", packed_of_64, single_of_64, ""),
    ]


def _rate(server: OwnServer, window: int, pack: int, n_matrices: int) -> float:
    import numpy as np

    stack = np.random.default_rng(1).standard_normal((n_matrices, _SMALL_ORDER, _SMALL_ORDER))
    tensors = [Tensor.of(np.asfortranarray(each)) for each in stack]
    with server.client() as client:
        took_s(client, calls("lu", {}, tensors[: 4 * pack]), window, pack)
        return n_matrices / took_s(client, calls("lu", {}, tensors), window, pack)


def _gain(what: str, ours: list[float], others: list[float], goal: str) -> Row:
    return ratio(what, ours, others, goal=goal, note=f"medians: {median(ours):.0f} / {median(others):.0f}")
