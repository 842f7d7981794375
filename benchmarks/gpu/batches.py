"""Section `batches`: many small matrices, packed and computed together, beside one call of the library's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat

import numpy as np

from benchmarks.gpu.bare import Bare
from benchmarks.gpu.factorizations import OPERATIONS, params_of
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.lapack import matrix
from benchmarks.pipeline.setting import calls, replies
from benchmarks.result import Row, measured, ratio
from yarn_accel.client.calls import Tensor
from yarn_accel.client.client import Client

_PACK, _WINDOW = 64, 4
_BYTES_A_ROUND = 200_000_000
_MOST, _MOST_QUICK = 4096, 128


def batch_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """Matrices per second of each factorization and order, and what ours is of the bare rate."""
    orders = (32, 128) if setting.quick else (32, 128, 512)
    with setting.servers.gpu.client("memory") as client:
        for n in orders:
            for operation in OPERATIONS:
                what = f"{operation}, order {n}, by {_PACK}"
                if setting.budget.allows(what):
                    setting.say(what)
                    yield _rows(setting, client, operation, n, what)
                else:
                    yield [setting.budget.cut_row(what)]


def _rows(setting: GpuSetting, client: Client, operation: str, n: int, what: str) -> list[Row]:
    most = _MOST_QUICK if setting.quick else _MOST
    n_matrices = max(2 * _PACK, min(most, _BYTES_A_ROUND // (8 * n * n)))
    one = matrix(operation, n)
    bare = Bare(operation, np.ascontiguousarray(np.broadcast_to(one.T, (_PACK, n, n))))
    bare.on_device_s(1)
    tensor = Tensor.of(one)
    _rate(client, operation, tensor, 2 * _PACK)
    on_device, copied, ours = [], [], []
    for _ in setting.budget.rounds(what, setting.n_rounds):
        on_device.append(_PACK / bare.on_device_s(4))
        copied.append(_PACK / bare.with_copies_s(4))
        ours.append(_rate(client, operation, tensor, n_matrices))
    by = "one by one: CuPy binds no geqrfBatched" if operation == "qr" else "one call"
    return [
        measured(f"{what}: bare, on the device", on_device, "matrices/s", note=by),
        measured(f"{what}: bare, with copies", copied, "matrices/s", note=by),
        measured(f"{what}: pipeline", ours, "matrices/s", note=f"{n_matrices} a round, window {_WINDOW}"),
        ratio(f"{what}: pipeline / bare with copies", ours, copied, "share", goal=">= 0.9"),
    ]


def _rate(client: Client, operation: str, tensor: Tensor, n: int) -> float:
    start_s = time.perf_counter()
    work = calls(operation, params_of(operation), repeat(tensor, n))
    done = sum(1 for _ in replies(client, work, _WINDOW, pack=_PACK))
    return done / (time.perf_counter() - start_s)
