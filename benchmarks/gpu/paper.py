"""Section `paper`: how many times faster a task is on the GPU than on this CPU, beside the paper's Table 2.

The paper's task is a matrix of order 10,000, which is larger than a request may be by default; so the
operations are called as a worker calls them, in this process: on the GPU with both copies from and to pinned
memory, on the CPU with a thread for every core. No server is part of it, as in Table 2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.bare import pinned
from benchmarks.gpu.factorizations import OPERATIONS, params_of, sizes_mb
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.lapack import flops, matrix, order_of
from benchmarks.pipeline.stages import MB
from benchmarks.result import Row, measured, ratio
from benchmarks.yarn_paper.paper import KERNELS
from yarn_accel.operations import get
from yarn_accel.operations.cuda_streams import cupy_module

Array = Any
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
            if not setting.budget.allows(what, 2 * needs_s):
                yield [setting.budget.cut_row(what)]
                continue
            setting.say(what)
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
    _on_gpu(operation, _filled(host, pristine))
    for _ in setting.budget.rounds(f"paper, {operation}, n = {n}", setting.n_rounds):
        gpu_s.append(_on_gpu(operation, _filled(host, pristine)))
        work = pristine.copy("F")
        start_s = time.perf_counter()
        get(operation).run([work], params_of(operation))
        cpu_s.append(time.perf_counter() - start_s)
    return cpu_s, gpu_s


def _filled(host: Array, pristine: Array) -> Array:
    np.copyto(host, pristine)
    return host


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
