"""On a GPU: the paper's orders and batches of small ones, as a share of the GEMM rate of the same run.

Speedups stand beside the paper's: 8.9 (LU), 16.6 (QR), 8.0 (Cholesky), for the same orders, against the CPU
of the same machine with one BLAS thread per core. Without a CUDA device there is nothing to measure, and
nothing is claimed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat
from statistics import median
from typing import Any

from benchmarks.pipeline.lapack import flops, matrix
from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.setting import Setting, calls, calls_of, replies
from benchmarks.result import Row, measured, not_measured, observed
from yarn_accel.client.calls import Tensor

__all__ = ["gpu_rows"]

_PAPER = {"lu": 8.9, "qr": 16.6, "cholesky": 8.0}
_WINDOW = 4
_N_REQUESTS = 6


def gpu_rows(setting: Setting) -> Iterator[list[Row]]:
    """Figures of the first device, or one row that says why there are none."""
    from yarn_accel.pipeline.nvml import read_devices

    if not read_devices():
        yield [not_measured("GPU: factorizations, batches, overlap", "no CUDA device")]
        return
    trace = setting.folder.parent / "bench-pipeline-gpu-trace.json"
    with (
        setting.server("gpu", devices=["cuda:0"], trace_file=str(trace)) as gpu,
        setting.server("gpu-cpu", devices=["cpu"]) as cpu,
    ):
        for n in (1000,) if setting.quick else (1000, 2000, 4000, 6000, 8000, 10000):
            yield _large(setting, gpu, cpu, n)
        for n in (32, 128, 512):
            setting.report(f"GPU, batches of n = {n}")
            yield [observed(f"GPU, LU, n = {n}, packed by 64", _packed_rate(gpu, n), "matrices/s")]
    yield [
        observed("GPU: trace of this run", trace.stat().st_size / 1e6, "MB", note=f"{trace}, for Perfetto")
    ]


def _large(setting: Setting, gpu: OwnServer, cpu: OwnServer, n: int) -> list[Row]:
    setting.report(f"GPU, n = {n}")
    factor = matrix("lu", n)
    gemm = 2 * n**3 / 1e9 / _compute_s(gpu, "gemm", {}, (factor, factor))
    rows = [observed(f"GPU, gemm, n = {n}", gemm, "GFLOP/s")]
    for operation, paper in _PAPER.items():
        params = {"form": "packed"} if operation == "qr" else {}
        item = matrix(operation, n)
        rate = flops(operation, n) / 1e9 / _compute_s(gpu, operation, params, (item,))
        rows.append(observed(f"GPU, {operation}, n = {n}", rate, "GFLOP/s"))
        rows.append(observed(f"GPU, {operation}, n = {n}: share of gemm", rate / gemm, "share"))
        if n <= 4000:
            gains = [
                _wall_s(cpu, operation, params, item) / _wall_s(gpu, operation, params, item)
                for _ in range(3)
            ]
            rows.append(
                measured(f"GPU, {operation}, n = {n}: over this CPU", gains, "x", note=f"the paper: {paper}")
            )
    return rows


def _compute_s(server: OwnServer, operation: str, params: dict[str, Any], arrays: tuple[Any, ...]) -> float:
    with server.client() as client:
        found = list(replies(client, calls_of(operation, params, repeat(arrays, _N_REQUESTS)), 1))
    return median(reply.seconds["compute"] for reply in found[1:])


def _wall_s(server: OwnServer, operation: str, params: dict[str, Any], item: Any) -> float:
    with server.client() as client:
        start_s = time.perf_counter()
        for _ in replies(client, calls(operation, params, repeat(Tensor.of(item), _N_REQUESTS)), _WINDOW):
            pass
        return time.perf_counter() - start_s


def _packed_rate(server: OwnServer, n: int) -> float:
    n_matrices = max(64, min(4096, 200_000_000 // (8 * n * n)))
    tensor = Tensor.of(matrix("lu", n))
    with server.client() as client:
        start_s = time.perf_counter()
        done = sum(1 for _ in replies(client, calls("lu", {}, repeat(tensor, n_matrices)), _WINDOW, pack=64))
        return done / (time.perf_counter() - start_s)
