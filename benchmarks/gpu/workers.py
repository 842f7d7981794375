"""Section `workers`: one, two and four worker processes on the GPU, where one is too slow to feed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import repeat

from benchmarks.gpu.factorizations import OPERATIONS, params_of
from benchmarks.gpu.pictured import JPEG, packed_images
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.lapack import flops, matrix, order_of
from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.setting import calls, calls_of, replies
from benchmarks.pipeline.stages import MB
from benchmarks.result import Row, measured, ratio
from yarn_accel.client.calls import Tensor

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
        if not setting.budget.allows(what):
            yield [setting.budget.cut_row(what)]
            continue
        setting.say(what)
        rate = _featuring(setting) if is_images else _factorizing(setting, operation)
        yield _rows(setting, what, "images/s" if is_images else "GFLOP/s", rate)


def _rows(setting: GpuSetting, what: str, unit: str, rate: _Rate) -> list[Row]:
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
            start_s = time.perf_counter()
            done = sum(1 for _ in replies(client, work, _UNDER_WAY * n_workers))
            return done * flops(operation, n) / 1e9 / (time.perf_counter() - start_s)

    return rate


def _featuring(setting: GpuSetting) -> _Rate:
    encoded = JPEG.encoded(8 if setting.quick else 256)
    tensors = tuple(Tensor.of(array) for array in packed_images(encoded))

    def rate(server: OwnServer, n_workers: int) -> float:
        n_requests = 2 * _UNDER_WAY * n_workers
        with server.client("memory") as client:
            start_s = time.perf_counter()
            work = calls_of(_FEATURES, {}, repeat(tensors, n_requests))
            for reply in replies(client, work, _UNDER_WAY * n_workers):
                assert not reply.info.get("rejected"), reply.info
            return n_requests * len(encoded) / (time.perf_counter() - start_s)

    return rate
