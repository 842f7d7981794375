"""The sections of speed: bare cuSOLVER beside ours, small matrices, more workers, and the paper's task.

In `factorizations`, LU, QR and Cholesky of 1 to 50 MB, bare is the rate of the routine on matrices that lie
on the device, with copies from and to pinned memory one after another, and with copies on as many streams as
a worker has lanes, which is what ours is judged by. Ours is the rate in the worker, one request at a time
(copies and checks of the input included), and at a client with several requests under way: of an array of
`Client.empty`, which `Accelerator.empty` gives to users, of an array of numpy's, which is copied, and over
TCP. Echo says how many there would be if they only travelled, beside bare copies to the GPU and back.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.images import JPEG, features_per_s
from benchmarks.gpu.setting import GpuSetting
from benchmarks.papers.yarn_paper.cells import KERNELS
from benchmarks.pipeline.computing import MB
from benchmarks.pipeline.lapack import flops, matrix, order_of
from benchmarks.pipeline.setting import OwnServer, calls, replies, took_s
from benchmarks.result import Row, measured, not_measured, ratio
from yarn_accel.client.calls import Tensor
from yarn_accel.client.client import Client
from yarn_accel.operations import get
from yarn_accel.operations.cuda_qr import geqrf_batched
from yarn_accel.operations.cuda_streams import addresses, cupy_module, library
from yarn_accel.pipeline.workers.launching import N_LANES
from yarn_accel.wire import LARGE_PACK_BYTES

# ---- cuSOLVER and cuBLAS called bare, through CuPy's bindings, timed by CUDA's own events.
#
# A small stack is factored by one call (getrfBatched, potrfBatched); CuPy binds no geqrfBatched, so QR goes
# matrix by matrix there.

Array = Any


def pinned(shape: tuple[int, ...], dtype: str = "f8") -> Array:
    """Host memory, C-ordered, that the GPU copies from and to directly."""
    return importlib.import_module("cupyx").empty_pinned(shape, dtype=dtype)


class Bare:
    """One factorization of a stack of equal matrices.

    Args:
        operation: ``lu``, ``qr`` or ``cholesky``.
        columns: host array ``(b, n, n)`` of float64, C-ordered: columns of each matrix, as LAPACK wants them.
    """

    def __init__(self, operation: str, columns: Array) -> None:
        self._cupy = cupy = cupy_module()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._given, self._taken = pinned(columns.shape), pinned(columns.shape)
        self._given[...] = columns
        with self._stream:
            self._pristine = cupy.asarray(columns)
            self._work = cupy.empty_like(self._pristine)
            self._factor = _ROUTINES[operation](self._work)
        self._libraries = ("cusolver", "cublas")

    def on_device_s(self, n_times: int) -> float:
        """Median seconds of the routine alone; the matrices lie on the device before and after."""
        return median(self._once(copies=False) for _ in range(n_times))

    def with_copies_s(self, n_times: int) -> float:
        """Median seconds of copying in from pinned memory, the routine, copying out, one by one."""
        return median(self._once(copies=True) for _ in range(n_times))

    def copies_s(self, n_times: int) -> float:
        """Median seconds of copying in from pinned memory and out again, with nothing between."""

        def copy() -> None:
            self._work.set(self._given, stream=self._stream)
            self._work.get(stream=self._stream, out=self._taken, blocking=False)

        with self._stream:
            return median(self._timed(copy) for _ in range(n_times))

    def begin(self) -> None:
        """Start copying in, the routine and copying out on this one's stream; `end` waits."""
        with self._stream:
            for name in self._libraries:
                library(name, self._work)  # Its handle follows the current stream from now on.
            self._in_and_out()

    def end(self) -> None:
        """Wait for all that was begun."""
        self._stream.synchronize()

    def product_s(self, n_times: int) -> float:
        """Median seconds of cuBLAS's product of matrices of this order: what the device can do."""
        with self._stream:
            out = self._cupy.empty_like(self._pristine)
            return median(
                self._timed(lambda: self._cupy.matmul(self._pristine, self._pristine, out=out))
                for _ in range(n_times)
            )

    def _once(self, copies: bool) -> float:
        with self._stream:
            if copies:
                return self._timed(self._in_and_out)
            self._work[...] = self._pristine
            return self._timed(self._factor)

    def _in_and_out(self) -> None:
        self._work.set(self._given, stream=self._stream)
        self._factor()
        self._work.get(stream=self._stream, out=self._taken, blocking=False)

    def _timed(self, work: Callable[[], object]) -> float:
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record(self._stream)
        work()
        end.record(self._stream)
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3


def streams_s(bares: Sequence[Bare], n_times: int) -> float:
    """Wall seconds for each of so many, with copies, on the streams of these in turn."""
    start_s = time.perf_counter()
    for at in range(n_times):
        bares[at % len(bares)].begin()
    for bare in bares:
        bare.end()
    return (time.perf_counter() - start_s) / n_times


def _lu(stack: Array) -> Callable[[], None]:
    cupy = cupy_module()
    n_items, n, _ = stack.shape
    pivots, status = cupy.empty((n_items, n), dtype="i4"), cupy.empty(n_items, dtype="i4")
    if n_items > 1:
        blas, handle, _ = library("cublas", stack)
        places = addresses(stack)
        return lambda: blas.dgetrfBatched(
            handle, n, places.data.ptr, n, pivots.data.ptr, status.data.ptr, n_items
        )
    solver, handle, _ = library("cusolver", stack)
    work = cupy.empty(solver.dgetrf_bufferSize(handle, n, n, stack.data.ptr, n), dtype="f8")
    return lambda: solver.dgetrf(
        handle, n, n, stack.data.ptr, n, work.data.ptr, pivots.data.ptr, status.data.ptr
    )


def _qr(stack: Array) -> Callable[[], None]:
    cupy = cupy_module()
    n_items, n, _ = stack.shape
    scalars, status = cupy.empty((n_items, n), dtype="f8"), cupy.empty(1, dtype="i4")
    solver, handle, _ = library("cusolver", stack)
    n_work = solver.dgeqrf_bufferSize(handle, n, n, stack.data.ptr, n)
    work = cupy.empty(n_work, dtype="f8")

    def run() -> None:
        for item, tau in zip(stack, scalars, strict=True):
            places = item.data.ptr, n, tau.data.ptr, work.data.ptr, n_work, status.data.ptr
            solver.dgeqrf(handle, n, n, *places)

    return run


def _cholesky(stack: Array) -> Callable[[], None]:
    cupy = cupy_module()
    n_items, n, _ = stack.shape
    status = cupy.empty(n_items, dtype="i4")
    solver, handle, _ = library("cusolver", stack)
    lower = importlib.import_module("cupy_backends.cuda.libs.cublas").CUBLAS_FILL_MODE_LOWER
    if n_items > 1:
        places = addresses(stack)
        return lambda: solver.dpotrfBatched(handle, lower, n, places.data.ptr, n, status.data.ptr, n_items)
    n_work = solver.dpotrf_bufferSize(handle, lower, n, stack.data.ptr, n)
    work = cupy.empty(n_work, dtype="f8")
    return lambda: solver.dpotrf(handle, lower, n, stack.data.ptr, n, work.data.ptr, n_work, status.data.ptr)


_ROUTINES: dict[str, Callable[[Array], Callable[[], None]]] = {"lu": _lu, "qr": _qr, "cholesky": _cholesky}

OPERATIONS = ("lu", "qr", "cholesky")
GOAL, GOAL_OF_1_MB, GOAL_OF_BATCHES, GOAL_OF_ECHO = ">= 0.9", ">= 0.6", ">= 0.5", ">= 0.5"
_WINDOW = 6
_ROUND_S = 0.25
_LEAST_N, _MOST_N = 4, 24
_BARE_DEVICE, _BARE_COPIES, _PRODUCT = "cuSOLVER bare, on the device", "cuSOLVER bare, with copies", "gemm"
_BARE_STREAMS, _BARE_TRAVEL = f"cuSOLVER bare, with copies, {N_LANES} streams", "as many by bare copies"
_WORKER, _MEMORY, _TCP = "in the worker, one at a time", "pipeline", "pipeline, TCP"
_COPIED = "pipeline, numpy's array"
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
            if not setting.begins(str(cell), seconds * cell.gflop / gflop):
                yield [setting.budget.cut_row(str(cell))]
                continue
            start_s = time.monotonic()
            n_times = _measure(setting, cell)
            took_s[operation] = cell.gflop, time.monotonic() - start_s
            yield _rows(cell, n_times)


def _measure(setting: GpuSetting, cell: _Cell) -> int:
    pristine = matrix(cell.operation, cell.n)
    bares = [Bare(cell.operation, pristine.T[None]) for _ in range(N_LANES)]
    bare = bares[0]
    bare.on_device_s(1)  # loads the routine
    alone_s = bare.with_copies_s(2)
    n_times = max(_LEAST_N, min(_MOST_N, int(_ROUND_S / alone_s)))
    tensor = Tensor.of(pristine)
    with setting.servers.gpu.client("memory") as memory, setting.servers.gpu.client("tcp") as tcp:
        own = memory.empty(tensor.spec)
        own.array()[...] = pristine
        for client, given in ((memory, own), (memory, tensor), (tcp, tensor)):
            _client_s(client, cell.operation, given, 2 * _WINDOW)  # touches the connection's memory
        streams_s(bares, N_LANES)
        for _ in setting.budget.rounds(str(cell), setting.n_rounds):
            cell.note(_BARE_DEVICE, cell.gflop, bare.on_device_s(n_times))
            cell.note(_BARE_COPIES, cell.gflop, bare.with_copies_s(n_times))
            cell.note(_BARE_STREAMS, cell.gflop, streams_s(bares, max(n_times, 2 * N_LANES)))
            cell.note(_BARE_TRAVEL, cell.gflop, bare.copies_s(n_times))
            cell.note(_PRODUCT, 2e-9 * cell.n**3, bare.product_s(_LEAST_N))
            cell.note(_WORKER, cell.gflop, _worker_s(memory, cell.operation, own, n_times))
            cell.note(_MEMORY, cell.gflop, _client_s(memory, cell.operation, own, n_times))
            cell.note(_COPIED, cell.gflop, _client_s(memory, cell.operation, tensor, n_times))
            cell.note(_TCP, cell.gflop, _client_s(tcp, cell.operation, tensor, n_times))
            cell.note(_ECHO, cell.gflop, _client_s(memory, "echo", own, n_times))
    return n_times


def _worker_s(client: Client, operation: str, tensor: Tensor, n: int) -> float:
    found = replies(client, calls(operation, params_of(operation), repeat(tensor, n)), 1)
    return median([reply.seconds["compute"] for reply in found])


def _client_s(client: Client, operation: str, tensor: Tensor, n: int) -> float:
    """Wall seconds for each of `n` requests."""
    return took_s(client, calls(operation, params_of(operation), repeat(tensor, n)), _WINDOW) / n


def _rows(cell: _Cell, n_times: int) -> list[Row]:
    rates = cell.rates
    share = median(rates[_BARE_DEVICE]) / median(rates[_PRODUCT])
    notes = {
        _BARE_DEVICE: f"{n_times} a round; {share:.2f} of gemm's rate",
        _BARE_STREAMS: "one thread; ours has a thread for each lane",
        _MEMORY: f"window {_WINDOW}, arrays of empty(), which are not copied",
        _COPIED: f"window {_WINDOW}, copied into shared memory",
        _TCP: f"window {_WINDOW}, loopback",
        _ECHO: f"window {_WINDOW}, shared memory; the matrices travel, nothing is computed",
    }
    rows = [
        measured(f"{cell}: {way}", found, "GFLOP/s", note=notes.get(way, "")) for way, found in rates.items()
    ]
    ours = rates[_MEMORY]
    return [
        *rows,
        ratio(f"{cell}: pipeline / bare on the device", ours, rates[_BARE_DEVICE], "share"),
        ratio(f"{cell}: pipeline / bare with copies", ours, rates[_BARE_COPIES], "share"),
        ratio(
            f"{cell}: pipeline / bare with copies, equal streams",
            ours,
            rates[_BARE_STREAMS],
            "share",
            goal=GOAL_OF_1_MB if cell.size_mb == 1 else GOAL,
        ),
        ratio(f"{cell}: echo / bare copies", rates[_ECHO], rates[_BARE_TRAVEL], "share", goal=GOAL_OF_ECHO),
        ratio(f"{cell}: worker / bare with copies", rates[_WORKER], rates[_BARE_COPIES], "share"),
    ]


# ---- `batches`: many small matrices, packed and computed together, beside one call of the library's

_PACK, _LEAST_PACKS = 64, 4
_BYTES_A_ROUND = 200_000_000
_MOST, _MOST_QUICK = 4096, 128


def batch_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """Matrices per second of each factorization and order, and what ours is of the bare rate."""
    orders = (32, 128) if setting.quick else (32, 128, 512)
    with setting.servers.gpu.client("memory") as client:
        for n in orders:
            for operation in OPERATIONS:
                what = f"{operation}, order {n}, by {_PACK}"
                if setting.begins(what):
                    yield _batch_rows(setting, client, operation, n, what)
                else:
                    yield [setting.budget.cut_row(what)]


def _batch_rows(setting: GpuSetting, client: Client, operation: str, n: int, what: str) -> list[Row]:
    most = _MOST_QUICK if setting.quick else _MOST
    n_matrices = max(2 * _PACK, min(most, _BYTES_A_ROUND // (8 * n * n)))
    one = matrix(operation, n)
    bare = Bare(operation, np.ascontiguousarray(np.broadcast_to(one.T, (_PACK, n, n))))
    bare.on_device_s(1)
    tensor = Tensor.of(one)
    _rate(client, operation, tensor, 2 * _PACK)
    geqrf = _geqrf_batched(n) if operation == "qr" else None
    on_device, copied, ours, theirs = [], [], [], []
    for _ in setting.budget.rounds(what, setting.n_rounds):
        on_device.append(_PACK / bare.on_device_s(4))
        copied.append(_PACK / bare.with_copies_s(4))
        ours.append(_rate(client, operation, tensor, n_matrices))
        if callable(geqrf):
            theirs.append(_PACK / geqrf())
    by = "one by one: CuPy binds no geqrfBatched" if operation == "qr" else "one call"
    batched = f"{what}: cuBLAS's geqrfBatched, on the device"
    return [
        *([measured(batched, theirs, "matrices/s", note="by ctypes")] if theirs else []),
        *([not_measured(batched, geqrf)] if isinstance(geqrf, str) else []),
        measured(f"{what}: bare, on the device", on_device, "matrices/s", note=by),
        measured(f"{what}: bare, with copies", copied, "matrices/s", note=by),
        measured(
            f"{what}: pipeline",
            ours,
            "matrices/s",
            note=f"{n_matrices} a round, in {_window(n)} packs under way",
        ),
        ratio(f"{what}: pipeline / bare with copies", ours, copied, "share", goal=GOAL_OF_BATCHES),
    ]


def _window(n: int) -> int:
    """Packs under way: so many that twice as many matrices are as bare has in one call."""
    in_one = max(1, min(_PACK, LARGE_PACK_BYTES // (8 * n * n)))
    return max(_LEAST_PACKS, 2 * _PACK // in_one)


def _rate(client: Client, operation: str, tensor: Tensor, n: int) -> float:
    work = calls(operation, params_of(operation), repeat(tensor, n))
    return n / took_s(client, work, _window(tensor.spec.shape[0]), _PACK)


def _geqrf_batched(n: int) -> Callable[[], float] | str:
    """What gives the seconds of cuBLAS's own QR of a stack on the device; a text: why there is none."""
    cupy = cupy_module()
    stack = cupy.asarray(np.broadcast_to(matrix("qr", n).T, (_PACK, n, n)).copy())
    work, scalars = cupy.empty_like(stack), cupy.empty((_PACK, n), dtype="f8")

    def once() -> float:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            work[...] = stack
            stream.synchronize()
            start_s = time.perf_counter()
            geqrf_batched(work, scalars)
            stream.synchronize()
            return time.perf_counter() - start_s

    with cupy.cuda.Stream(non_blocking=True):
        works = geqrf_batched(work, scalars)
    return once if works else "cuBLAS here has no geqrfBatched, or refuses it"


# ---- `workers`: one, two and four worker processes on the GPU, where one is too slow to feed it

_SIZE_MB = 1
_UNDER_WAY = 4
"""Requests for each worker: it computes three at a time."""
_N_REQUESTS, _N_QUICK = 300, 24
_NUMBERS, _QUICK = (1, 2, 4), (1, 2)
_FEATURES = "features"
_Rate = Callable[[OwnServer, int], float]
"""``rate(server, n_workers)``: what it computes a second."""


def worker_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """For small factorizations and for images the rate of each number of workers, and what it is of one's."""
    for operation in (*OPERATIONS, _FEATURES):
        is_images = operation == _FEATURES
        what = f"workers, {f'images, {JPEG}' if is_images else f'{operation}, {_SIZE_MB} MB'}"
        if not setting.begins(what):
            yield [setting.budget.cut_row(what)]
            continue
        rate = _featuring(setting) if is_images else _factorizing(setting, operation)
        yield _gain_rows(setting, what, "images/s" if is_images else "GFLOP/s", rate)


def _gain_rows(setting: GpuSetting, what: str, unit: str, rate: _Rate) -> list[Row]:
    servers = {n: setting.servers.gpu_with(n) for n in (_QUICK if setting.quick else _NUMBERS)}
    found: dict[int, list[float]] = {n: [] for n in servers}
    for n, server in servers.items():
        rate(server, n)
    for _ in setting.budget.rounds(what, setting.n_rounds):
        for n, server in servers.items():
            found[n].append(rate(server, n))
    note = f"{_UNDER_WAY} requests under way for each"
    rows = [measured(f"{what}: {n} on the GPU", rates, unit, note=note) for n, rates in found.items()]
    return rows + [ratio(f"{what}: {n} over 1", found[n], found[1]) for n in found if n > 1]


def _factorizing(setting: GpuSetting, operation: str) -> _Rate:
    n = order_of(_SIZE_MB * MB)
    tensor = Tensor.of(matrix(operation, n))
    n_requests = _N_QUICK if setting.quick else _N_REQUESTS

    def rate(server: OwnServer, n_workers: int) -> float:
        work = calls(operation, params_of(operation), repeat(tensor, n_requests))
        with server.client("memory") as client:
            return n_requests * flops(operation, n) / 1e9 / took_s(client, work, _UNDER_WAY * n_workers)

    return rate


def _featuring(setting: GpuSetting) -> _Rate:
    encoded = JPEG.encoded(8 if setting.quick else 256)
    return lambda server, n_workers: features_per_s(
        server, encoded, 2 * _UNDER_WAY * n_workers, _UNDER_WAY * n_workers
    )


# ---- `paper`: how many times faster a task is on the GPU than on this CPU, beside its Table 2
#
# The paper's task is a matrix of order 10,000, which is larger than a request may be by default. So the
# operations are called as a worker calls them, in this process: on the GPU with both copies from and to
# pinned memory, on the CPU with a thread for every core. No server is part of it, as in Table 2.

ORDER = 10_000
"""Of the paper's matrices."""


def paper_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """For each order and factorization seconds on both, and the N of N-fold."""
    orders = [order_of(size * MB) for size in sizes_mb(setting.quick)] + ([] if setting.quick else [ORDER])
    cpu_flops_s: dict[str, float] = {}
    for n in orders:
        for operation in OPERATIONS:
            what = f"paper, {operation}, n = {n}"
            # Only the CPU takes long; larger matrices go faster there by what is left of the estimate.
            needs_s = flops(operation, n) / cpu_flops_s[operation] if operation in cpu_flops_s else 0.0
            if not setting.begins(what, 2 * needs_s):
                yield [setting.budget.cut_row(what)]
                continue
            cpu_s, gpu_s = _seconds(setting, operation, n)
            cpu_flops_s[operation] = flops(operation, n) / min(cpu_s)
            kernel = KERNELS[operation]
            paper_s = f"{kernel.cpu_s:g} s, {kernel.device_s:g} s"
            table = f"the paper: {paper_s}, {kernel.speedup:.1f}-fold, n = {ORDER}"
            yield [
                measured(f"{what}: this CPU", cpu_s, "s"),
                measured(f"{what}: this GPU", gpu_s, "s", note="with both copies"),
                ratio(f"{what}: over this CPU", cpu_s, gpu_s, note=table),
            ]


def _seconds(setting: GpuSetting, operation: str, n: int) -> tuple[list[float], list[float]]:
    """Seconds of each round on the CPU and on the GPU; the first on the GPU loads the routine."""
    pristine = matrix(operation, n)
    host = pinned((n, n)).T
    cpu_s, gpu_s = [], []
    np.copyto(host, pristine)
    _on_gpu(operation, host)
    for _ in setting.budget.rounds(f"paper, {operation}, n = {n}", setting.n_rounds):
        np.copyto(host, pristine)
        gpu_s.append(_on_gpu(operation, host))
        work = pristine.copy("F")
        start_s = time.perf_counter()
        get(operation).run([work], params_of(operation))
        cpu_s.append(time.perf_counter() - start_s)
    return cpu_s, gpu_s


def _on_gpu(operation: str, host: Array) -> float:
    form = get(operation).form("cuda")
    assert form is not None
    with cupy_module().cuda.Stream(non_blocking=True) as stream:
        start_s = time.perf_counter()
        form([host], params_of(operation), _place)
        stream.synchronize()
        return time.perf_counter() - start_s


def _place(name: str, shape: tuple[int, ...], dtype: str, order: str) -> Array:
    return pinned(shape[::-1], dtype).T if order == "F" else pinned(shape, dtype)
